"""A supply that has keys pinned: the attacks of TUF's list, one after the other.

The names are those of the specification (theupdateframework.github.io/specification, 1.1), and of
docs/explanation/policy-trust.md, which says how each is met.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.errors import VerifyError
from headway.policy.cache import DiskCache
from headway.policy.signing import PublicKeys, keygen, sign, signature_file
from headway.policy.sources import FileSource, NotModified, Reply
from tests.policy.bench import Bench, Remote
from tests.policy.samples import document, encoded

OLD, NEW, THIRD = keygen("ops-2025"), keygen("ops-2026"), keygen("security")


class Signed(Remote):
    """A remote whose documents come with signatures."""

    cache_key = "signed"

    def __init__(self) -> None:
        super().__init__()
        self.signatures: bytes | None = None
        self.publish()

    def publish(self, *pairs: Any, content: bytes | None = None, **top: object) -> bytes:
        self.content = encoded(document(**top)) if content is None else content
        self.signatures = signature_file(
            sign(self.content, pair.private, key_id=pair.key_id) for pair in pairs or (OLD,)
        )
        return self.content

    def read_signatures(self) -> list[bytes] | None:
        return None if self.signatures is None else [self.signatures]


@pytest.fixture
def remote() -> Signed:
    return Signed()


def pinned(*pairs: Any, threshold: int = 1) -> PublicKeys:
    return PublicKeys({pair.key_id: pair.public for pair in pairs}, threshold)


def bench(remote: Any, *pairs: Any, threshold: int = 1, **options: Any) -> Bench:
    keys = pinned(*(pairs or (OLD,)), threshold=threshold)
    return Bench(remote, public_keys=keys, allow_unsigned=False, **options)


def refused(found: Bench, reason: str, words: str) -> None:
    """The good one stays, and the reason is told and shown."""
    status = found.supply.status()
    assert (status.version, status.last_reason) == (7, reason)
    assert words in (status.last_error or "")
    assert found.reasons() == [reason]


def test_a_signed_document_says_who_vouches_for_it(remote: Signed) -> None:
    found = bench(remote)
    assert found.supply.initial().version == 7
    assert found.supply.status().signed_by == ("ops-2025",)
    remote.publish(OLD, NEW, version=8)
    assert found.later(30)
    assert found.supply.status().signed_by == ("ops-2025",)  # the other one isn't pinned


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (lambda r: r.publish(NEW, version=8), "by no pinned key"),
        (lambda r: setattr(r, "content", encoded(document(version=8))), "for other bytes"),
        (
            lambda r: (r.publish(version=8), setattr(r, "signatures", None)),
            "is not signed",
        ),
        (
            lambda r: (r.publish(version=8), setattr(r, "signatures", b"{")),
            "signature file can't be read",
        ),
        (
            lambda r: (r.publish(version=8), setattr(r, "content", r.content + b" ")),
            "for other bytes",
        ),
    ],
    ids=["wrong key", "replayed signature", "removed signature", "half a signature", "one byte"],
)
def test_arbitrary_software(remote: Signed, attack: Any, words: str) -> None:
    found = bench(remote)
    found.supply.initial()
    attack(remote)
    assert not found.later(30)

    refused(found, "signature", words)


def test_rollback(remote: Signed, tmp_path: Path) -> None:
    old = remote.publish(version=6), remote.signatures
    remote.publish(version=7)
    found = bench(remote, cache_dir=tmp_path)
    found.supply.initial()
    remote.content, remote.signatures = old  # properly signed, in its day
    assert not found.later(30)
    refused(found, "rollback", "older than (0, 7)")

    again = bench(remote, cache_dir=tmp_path)
    again.supply.initial()
    assert not again.later(30)
    refused(again, "rollback", "older than (0, 7)")


def test_fast_forward_is_undone_by_taking_the_key_out(remote: Signed, tmp_path: Path) -> None:
    stolen = remote.publish(OLD, epoch=2**53 - 1, version=2**53 - 1)
    assert bench(remote, OLD, NEW, cache_dir=tmp_path).supply.initial().version == 2**53 - 1

    remote.publish(NEW, version=9)
    kept = bench(remote, OLD, NEW, cache_dir=tmp_path)
    kept.supply.initial()
    kept.later(30)
    assert kept.reasons() == ["rollback"]  # while the key is trusted, so is its word

    found = bench(remote, NEW, cache_dir=tmp_path)
    assert found.supply.initial().version == 9
    # and what is on the disk is the good one again, though its mark is the lower one
    remote.content = OSError("down")
    assert bench(remote, NEW, cache_dir=tmp_path).supply.initial().version == 9
    assert stolen not in (tmp_path / "signed.policy").read_bytes()


def test_indefinite_freeze_is_seen_and_ends(remote: Signed) -> None:
    remote.publish(
        issued_at="2026-11-30T11:00:00Z",
        fresh_until="2026-11-30T11:05:00Z",
        expires_at="2026-11-30T12:00:00Z",
        on_expiry="fail",
    )
    found = bench(remote)
    snapshot = found.supply.initial()
    found.later(301)  # the server goes on giving the same answer, properly signed
    assert (found.supply.status().stale, found.supply.status().expired) == (True, False)
    found.later(3600)
    assert found.supply.status().expired
    assert snapshot.on_expiry == "fail"


def test_a_signed_policy_that_never_expires_says_that_a_freeze_would_not_be_seen(
    remote: Signed,
) -> None:
    found = bench(remote)
    found.supply.initial()
    assert "expires_at" in " ".join(found.supply.status().warnings)
    remote.publish(version=8, expires_at="2027-01-01T00:00:00Z")
    found.later(30)
    assert found.supply.status().warnings == ()


def test_mix_and_match(remote: Signed, tmp_path: Path) -> None:
    found = bench(remote, cache_dir=tmp_path)
    found.supply.initial()
    remote.publish(version=99, policy_id="staging")  # the same key signs that one, too
    assert not found.later(30)
    refused(found, "other_policy", '"staging"')

    # bound by what is on the disk, too; and by the code from the very first document on
    again = bench(remote, cache_dir=tmp_path)
    again.supply.initial()
    assert not again.later(30)
    with pytest.raises(VerifyError, match="policy_id"):
        bench(remote, policy_id="prod-eu").supply.initial()
    assert bench(remote, policy_id="staging").supply.initial().version == 99


def test_mix_and_match_against_what_is_left_of_a_damaged_cache(
    remote: Signed, tmp_path: Path
) -> None:
    bench(remote, cache_dir=tmp_path).supply.initial()
    path = tmp_path / "signed.policy"
    path.write_bytes(path.read_bytes()[:-5])
    remote.publish(version=99, policy_id="staging")

    with pytest.raises(VerifyError, match='"staging"'):
        bench(remote, cache_dir=tmp_path).supply.initial()


def test_a_policy_without_a_name_may_be_given_one(remote: Signed) -> None:
    remote.publish(policy_id="default")
    found = bench(remote)
    found.supply.initial()
    remote.publish(version=8, policy_id="prod-eu")
    assert found.later(30)
    remote.publish(version=9, policy_id="default")
    assert not found.later(30)
    assert found.reasons() == ["other_policy"]


def test_a_pinned_policy_is_one_wherever_it_is_fetched_from(tmp_path: Path) -> None:
    first, mirror = Signed(), Signed()
    mirror.cache_key = "mirror"
    first.publish(version=8)
    bench(first, policy_id="prod-eu", cache_dir=tmp_path).supply.initial()
    mirror.publish(version=7)
    found = bench(mirror, policy_id="prod-eu", cache_dir=tmp_path)
    assert found.supply.initial().version == 8
    found.later(30)
    assert found.reasons() == ["rollback"]


def test_one_stolen_key_of_two_is_not_enough(remote: Signed) -> None:
    remote.publish(OLD, THIRD)
    found = bench(remote, OLD, NEW, THIRD, threshold=2)
    found.supply.initial()
    remote.publish(OLD, version=8)
    assert not found.later(30)

    refused(found, "signature", "too few of the pinned keys: ops-2025")


def test_keys_are_rotated_without_a_flag_day(remote: Signed, tmp_path: Path) -> None:
    """Three fleets at once: not yet rolled, in between, rolled. None of them misses a version."""
    fleets = [
        bench(remote, OLD, cache_dir=tmp_path / "a"),
        bench(remote, OLD, NEW, cache_dir=tmp_path / "b"),
        bench(remote, NEW, OLD, cache_dir=tmp_path / "c"),
    ]
    for found in fleets:
        found.supply.initial()
    remote.publish(OLD, NEW, version=8)  # from now on both sign
    assert all(found.later(30) for found in fleets)
    fleets[0] = bench(remote, NEW, cache_dir=tmp_path / "a")  # the last one is rolled
    assert fleets[0].supply.initial().version == 8
    remote.publish(NEW, version=9)  # and only then the old one stops
    assert all(found.later(30) for found in fleets)
    assert [found.reasons() for found in fleets] == [[], [], []]


def test_signatures_that_come_after_their_document_are_looked_for(remote: Signed) -> None:
    remote.etag = '"7"'
    found = bench(remote)
    found.supply.initial()
    before = remote.signatures
    remote.publish(version=8)
    after, remote.signatures, remote.etag = remote.signatures, before, '"8"'
    assert not found.later(30)
    assert not found.later(30)
    assert found.reasons() == ["signature"]  # told once
    remote.signatures = after

    assert found.later(30)
    assert found.supply.status().last_error is None


def test_what_is_cached_is_verified_again(remote: Signed, tmp_path: Path) -> None:
    bench(remote, cache_dir=tmp_path).supply.initial()
    remote.content = OSError("down")
    assert bench(remote, cache_dir=tmp_path).supply.initial().version == 7
    assert bench(remote, cache_dir=tmp_path).supply.status().signed_by == ()
    cache = DiskCache(tmp_path)
    kept = cache.load("signed")
    assert kept is not None
    assert kept.content is not None
    forged = kept.content.replace(b"a.example", b"b.example")
    assert cache.store(  # whoever can write there still can't sign
        "signed",
        forged,
        format="json",
        etag=None,
        mark=(0, 7),
        label="remote",
        signatures=kept.signatures,
        policy_id="prod-eu",
    )
    with pytest.raises(Exception, match="no policy to start from"):
        bench(remote, cache_dir=tmp_path).supply.initial()


def test_a_file_is_verified_too_and_what_is_code_is_not(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(encoded(document()))
    with pytest.raises(VerifyError, match=r"\.sig"):
        bench(FileSource(path)).supply.initial()
    signed = signature_file([sign(path.read_bytes(), OLD.private, key_id="ops-2025")])
    (tmp_path / "policy.json.sig").write_bytes(signed)
    assert bench(FileSource(path)).supply.initial().version == 7

    assert bench(document()).supply.initial().version == 7


class Slow(Signed):
    def read(self, etag: str | None) -> Reply | NotModified:
        raise OSError("down")


def test_a_bootstrap_is_part_of_the_application(remote: Signed) -> None:
    from headway.policy.sources import StaticSource

    down = Slow()
    down.bootstrap = StaticSource(document(version=3))
    assert bench(down).supply.initial().version == 3
