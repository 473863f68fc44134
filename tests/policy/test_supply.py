"""A bad policy never replaces a good one, and nobody's call notices that a fetch failed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.model import PolicyLoaded
from headway.core.snapshot import Snapshot
from headway.credentials import Credential
from headway.errors import FetchError, PolicyError, ValidationError, VerifyError
from headway.policy.builtin import pass_through
from headway.policy.decide import Verdict, verdict
from headway.policy.models import Policy
from headway.policy.sources import FILE_SETTLE_S, FileSource, NotModified, Reply
from headway.policy.supply import PolicySupply
from tests.policy.bench import HOSTS, Bench, Remote
from tests.policy.samples import CREDENTIALS, compiled, document, encoded
from tests.policy.servers import PolicyServer, policy_server


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as running:
        running.content = encoded(document())
        yield running


# ----------------------------------------------------------------------------- the first snapshot


@pytest.mark.parametrize(
    "make",
    [
        lambda p: Policy.load(document()),
        lambda p: document(),
        lambda p: encoded(document()),
        lambda p: encoded(document()).decode(),
        lambda p: p,
        str,
        FileSource,
    ],
)
def test_a_local_policy_is_there_at_once(make: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(encoded(document()))
    bench = Bench(make(path))

    snapshot = bench.supply.initial()

    assert snapshot.version == 7
    assert bench.supply.snapshot is snapshot
    assert bench.supply.initial() is snapshot
    assert [type(e) for e in bench.events] == [PolicyLoaded]
    assert bench.snapshots == []  # the first is returned, not announced
    status = bench.supply.status()
    assert (status.version, status.epoch, status.policy_id) == (7, 0, "prod-eu")
    assert status.last_error is None
    assert not status.stale


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (b"{", ValidationError),
        ({"schema_version": "1.0"}, ValidationError),
        ("/absent/policy.json", FetchError),
    ],
)
def test_a_bad_first_local_document_raises(argument: Any, error: type[PolicyError]) -> None:
    with pytest.raises(error):
        Bench(argument).supply.initial()


def test_a_snapshot_is_used_as_it_is() -> None:
    snapshot = pass_through("http://10.0.0.1/v1")
    bench = Bench(snapshot)

    assert bench.supply.initial() is snapshot
    assert not bench.later(1000)
    assert bench.supply.status().source == "builtin"


def test_status_before_the_first_snapshot_says_so(remote: Remote) -> None:
    status = Bench(remote).supply.status()

    assert status.last_error == "not loaded yet"
    assert status.source == "remote"


def test_a_remote_policy_is_fetched_at_the_start(server: PolicyServer) -> None:
    bench = Bench(server.url)

    assert bench.supply.initial().version == 7
    assert bench.supply.status().source == server.url


def test_an_unreachable_remote_says_what_to_do(remote: Remote) -> None:
    remote.content = OSError("no route")

    with pytest.raises(FetchError) as caught:
        Bench(remote).supply.initial()

    for words in ("no policy to start from", "no route", "cache_dir", "bootstrap"):
        assert words in str(caught.value)


def test_the_first_fetch_blocks_no_longer_than_it_may() -> None:
    class Silent(Remote):
        def read(self, etag: str | None) -> Reply | NotModified:
            never.wait(10)
            raise AssertionError

    import threading

    never = threading.Event()
    try:
        with pytest.raises(FetchError, match=r"no answer within 0\.05 s"):
            Bench(Silent(), initial_timeout_s=0.05).supply.initial()
    finally:
        never.set()


def test_a_bad_first_remote_document_raises_its_own_error(remote: Remote) -> None:
    remote.content = encoded(document(version="x"))

    with pytest.raises(ValidationError, match="version"):
        Bench(remote).supply.initial()


def test_an_unsigned_policy_from_another_machine_has_to_be_meant(
    remote: Remote, server: PolicyServer, tmp_path: Path
) -> None:
    with pytest.raises(VerifyError, match="allow_unsigned=True") as caught:
        PolicySupply(remote)
    assert "public_keys=" in str(caught.value)
    for here in (server.url, tmp_path / "policy.json", document()):
        PolicySupply(here)


def test_nothing_declared_means_only_loopback_from_loopback(server: PolicyServer) -> None:
    with pytest.raises(ValidationError, match=r"endpoints\.a\.base_url"):
        Bench(server.url, allowed_hosts=None, credentials={}).supply.initial()
    server.content = encoded(
        {
            "schema_version": "1.0",
            "version": 1,
            "endpoints": {"a": {"base_url": "http://127.0.0.1:8000/v1"}},
            "routes": [{"weights": {"a": 1}}],
        }
    )
    assert Bench(server.url, allowed_hosts=None, credentials={}).supply.initial().version == 1


def test_the_clients_own_host_is_always_allowed(remote: Remote) -> None:
    def change(d: dict[str, Any]) -> None:
        d["endpoints"] = {"a": {"base_url": "http://10.0.0.1:8000/v1"}}
        d["routes"] = [{"weights": {"a": 1}}]

    remote.content = encoded(document(change))

    with pytest.raises(ValidationError):
        Bench(remote, allowed_hosts=None).supply.initial()
    bench = Bench(remote, allowed_hosts=None, own_hosts=["http://10.0.0.1:8000"])
    assert bench.supply.initial().version == 7


# ----------------------------------------------------------------------------- the ones that follow


def test_a_newer_version_is_put_in_force_and_announced(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = encoded(document(version=8))

    assert bench.later(30)

    assert [s.version for s in bench.snapshots] == [8]
    assert bench.supply.snapshot is bench.snapshots[0]
    assert [e.version for e in bench.events if isinstance(e, PolicyLoaded)] == [7, 8]


@pytest.mark.parametrize(
    ("content", "reason", "words"),
    [
        (encoded(document(version=6)), "rollback", "older than (0, 7)"),
        (encoded(document(epoch=0, version=7, on_expiry="fail")), "same", "raise version"),
        (encoded(document(version=8, routes=[])), "invalid", "routes: got 0"),
        (b"not json", "invalid", "JSON"),
        (b" " * 1_100_000, "too_large", "1048576"),
        (OSError("gone"), "fetch", "gone"),
        (encoded(document(version=8, expires_at="2026-11-30T10:00:00Z")), "expired", "expired"),
    ],
)
def test_what_is_refused_leaves_the_last_good_one_and_is_told(
    remote: Remote, content: bytes | Exception, reason: str, words: str
) -> None:
    bench = Bench(remote)
    good = bench.supply.initial()
    remote.content = content

    assert not bench.later(30)

    assert bench.supply.snapshot is good
    assert bench.snapshots == []
    assert bench.reasons() == [reason]
    assert words in (bench.supply.status().last_error or "")
    remote.content = encoded(document(version=9))
    assert bench.later(30)
    assert bench.supply.status().last_error is None


def test_a_refused_document_is_told_once_not_at_every_look(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = encoded(document(version=6))
    for _ in range(5):
        bench.later(30)

    assert bench.reasons() == ["rollback"]
    assert "older" in (bench.supply.status().last_error or "")


def test_going_back_to_the_good_document_ends_the_complaint(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = b"oops"
    bench.later(30)
    remote.content = encoded(document()) + b"\n"  # other bytes, same policy

    assert not bench.later(30)
    assert bench.reasons() == ["invalid"]
    assert bench.supply.status().last_error is None


def test_a_raised_epoch_is_the_way_down(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = encoded(document(version=3, epoch=1))
    assert bench.later(30)
    remote.content = encoded(document(version=9, epoch=0))
    assert not bench.later(30)

    assert bench.supply.status().epoch == 1


def test_refusal_of_a_good_offer_does_not_lower_the_mark(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    for version in (9, 8, 9, 10):
        remote.content = encoded(document(version=version))
        bench.later(30)

    assert [s.version for s in bench.snapshots] == [9, 10]
    assert bench.reasons() == ["rollback"]


def test_a_304_costs_nothing_and_says_nothing(server: PolicyServer) -> None:
    server.etag = '"7"'
    bench = Bench(server.url)
    bench.supply.initial()
    for _ in range(3):
        assert not bench.later(30)

    assert [r.get("if-none-match") for r in server.requests] == [None, '"7"', '"7"', '"7"']
    assert len(bench.events) == 1


def test_a_file_is_followed_through_bad_and_good(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"

    def write(content: bytes) -> None:
        new = tmp_path / "new"
        new.write_bytes(content)
        new.replace(path)

    write(encoded(document()))
    bench = Bench(path)
    bench.supply.initial()
    write(encoded(document(version=8))[:-20])
    assert not bench.later(2)
    assert not bench.later(bench.supply.due_in_s())
    path.unlink()
    assert not bench.later(2)
    write(encoded(document(version=8)))
    assert not bench.later(2)
    assert bench.supply.due_in_s() == FILE_SETTLE_S  # it may still be growing
    assert bench.later(FILE_SETTLE_S)

    assert bench.version == 8
    assert bench.reasons() == ["invalid", "fetch"]


def test_hooks_that_raise_harm_nobody(remote: Remote, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("hook")

    supply = PolicySupply(
        remote,
        credentials=CREDENTIALS,
        allowed_hosts=HOSTS,
        allow_unsigned=True,
        on_snapshot=fails,
        on_event=fails,
    )
    supply.initial()
    remote.content = encoded(document(version=8))

    assert supply.refresh_once()
    assert supply.status().version == 8
    assert "hook" in caplog.text


def test_warnings_are_in_the_status(remote: Remote) -> None:
    bench = Bench(remote, credentials={})
    bench.supply.initial()

    [warning] = bench.supply.status().warnings
    assert "endpoints.b.credential" in warning


def test_closing_ends_it_and_keeps_the_last_snapshot(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    bench.supply.close()
    bench.supply.close()
    remote.content = encoded(document(version=8))

    assert not bench.later(30)
    assert not bench.supply.is_active()
    assert bench.version == 7


# ----------------------------------------------------------------------------- the decision


def test_the_decision_table() -> None:
    def snapshot(version: int, epoch: int = 0, expires: float | None = None) -> Snapshot:
        from dataclasses import replace

        return replace(compiled(document(version=version, epoch=epoch)), expires_at=expires)

    table = [
        (snapshot(1), None, None, Verdict.REPLACE),
        (snapshot(1), None, (0, 1), Verdict.REPLACE),
        (snapshot(1), None, (0, 2), Verdict.ROLLBACK),
        (snapshot(2), snapshot(1), (0, 1), Verdict.REPLACE),
        (snapshot(1), snapshot(1), (0, 1), Verdict.SAME),
        (snapshot(1), snapshot(2), (0, 2), Verdict.ROLLBACK),
        (snapshot(1, epoch=1), snapshot(2), (0, 2), Verdict.REPLACE),
        (snapshot(2), snapshot(1), (0, 2), Verdict.REPLACE),
        (snapshot(3, expires=9), snapshot(2), (0, 2), Verdict.EXPIRED),
        (snapshot(3, expires=9), snapshot(2, expires=8), (0, 2), Verdict.REPLACE),
        (snapshot(3, expires=9), None, None, Verdict.REPLACE),
        (snapshot(3, expires=11), snapshot(2), (0, 2), Verdict.REPLACE),
    ]
    for offered, current, mark, expected in table:
        assert verdict(offered, current, mark, 10.0) is expected


def test_only_ever_upwards(remote: Remote) -> None:
    """Whatever order documents come in, what is in force only rises."""
    for order in itertools.permutations([5, 6, 8, 9]):
        bench = Bench(remote)
        remote.content = encoded(document(version=7))
        bench.supply.initial()
        seen = [7]
        for version in order:
            remote.content = encoded(document(version=version))
            bench.later(30)
            seen.append(bench.version)
        assert seen == sorted(seen)
        assert seen[-1] == 9


def test_a_credential_declared_later_brings_the_endpoint_back(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(encoded(document()))

    assert set(Bench(path, credentials={}).supply.initial().endpoints) == {"a", "c"}
    declared = {"b-key": Credential(env="K", hosts=["b.example"])}
    assert set(Bench(path, credentials=declared).supply.initial().endpoints) == {"a", "b", "c"}
