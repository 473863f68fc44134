"""The last good policy survives a restart; a bootstrap starts the first one."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.errors import PolicyError, ValidationError, VerifyError
from headway.policy.cache import DiskCache
from headway.policy.http_source import HttpSource
from headway.policy.sources import StaticSource
from tests.policy.bench import Bench, Remote
from tests.policy.samples import document, encoded
from tests.policy.servers import PolicyServer, policy_server


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as running:
        running.content = encoded(document())
        yield running


# ----------------------------------------------------------------------------- the disk


def test_the_last_good_one_survives_a_restart_without_the_remote(
    remote: Remote, tmp_path: Path
) -> None:
    remote.content = encoded(document(version=8))
    Bench(remote, cache_dir=tmp_path / "cache").supply.initial()
    remote.content = OSError("down")
    reads = remote.reads
    bench = Bench(remote, cache_dir=tmp_path / "cache")

    assert bench.supply.initial().version == 8
    assert remote.reads == reads  # nothing is waited for
    assert bench.supply.due_in_s() <= 0  # but asked at once in the background
    bench.later(0)
    assert bench.version == 8
    assert "down" in (bench.supply.status().last_error or "")


def test_the_cached_etag_is_used(server: PolicyServer, tmp_path: Path) -> None:
    server.etag = '"7"'
    Bench(server.url, cache_dir=tmp_path).supply.initial()
    bench = Bench(server.url, cache_dir=tmp_path)
    bench.supply.initial()
    bench.later(0)

    assert [r.get("if-none-match") for r in server.requests] == [None, '"7"']


def test_a_rollback_across_restarts_is_refused(remote: Remote, tmp_path: Path) -> None:
    remote.content = encoded(document(version=8))
    Bench(remote, cache_dir=tmp_path).supply.initial()
    remote.content = encoded(document(version=7))
    bench = Bench(remote, cache_dir=tmp_path)
    bench.supply.initial()
    bench.later(0)
    assert bench.reasons() == ["rollback"]

    # Even when the document itself is damaged, the mark holds.
    path = next(tmp_path.glob("*.policy"))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(VerifyError, match=r"older than \(0, 8\)"):
        Bench(remote, cache_dir=tmp_path).supply.initial()


def test_the_cache_is_private_whole_and_holds_no_temporary_files(
    remote: Remote, tmp_path: Path
) -> None:
    cache = tmp_path / "new" / "cache"
    bench = Bench(remote, cache_dir=cache)
    bench.supply.initial()
    remote.content = encoded(document(version=8))
    bench.later(30)

    [path] = cache.iterdir()
    assert path.name == "remote.policy"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    header, _, content = path.read_bytes().partition(b"\n")
    assert content == remote.content
    assert json.loads(header)["mark"] == [0, 8]


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b"\n",
        lambda b: b"{}\n" + b,
        lambda b: b"[]\n",
        lambda b: b[:-1],
        lambda b: b.replace(b"prod-eu", b"prod-xx"),
        lambda b: b.replace(b'"format": 1', b'"format": 2'),
        lambda b: b.replace(b'"mark": [0, 7]', b'"mark": [0, 8]'),  # one bit of the header
        lambda b: b"\xff" * 100_000,
    ],
)
def test_a_damaged_cache_is_an_empty_one(
    damage: Callable[[bytes], bytes], remote: Remote, tmp_path: Path
) -> None:
    Bench(remote, cache_dir=tmp_path).supply.initial()
    path = tmp_path / "remote.policy"
    path.write_bytes(damage(path.read_bytes()))
    reads = remote.reads

    assert Bench(remote, cache_dir=tmp_path).supply.initial().version == 7
    assert remote.reads == reads + 1
    assert DiskCache(tmp_path).load("remote") is not None


def test_a_cache_that_cannot_be_written_is_no_harm(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert Bench(remote, cache_dir=tmp_path / "file").supply.initial().version == 7


def test_a_process_that_lags_does_not_lower_the_mark_of_the_others(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    for mark, kept in (((0, 5), True), ((0, 4), False), ((0, 5), True), ((1, 0), True)):
        stored = cache.store("k", b"x", format="json", etag=None, mark=mark, label="l")
        assert stored is kept
    found = cache.load("k")
    assert found is not None
    assert found.mark == (1, 0)


def test_a_cached_policy_is_trusted_no_more_than_the_day_it_was_fetched(
    remote: Remote, tmp_path: Path
) -> None:
    Bench(remote, cache_dir=tmp_path).supply.initial()
    remote.content = encoded(
        document(
            version=8,
            endpoints={"c": {"base_url": "https://c.example"}},
            routes=[{"weights": {"c": 1}}],
        )
    )

    bench = Bench(remote, cache_dir=tmp_path, allowed_hosts=["c.example"])
    assert bench.supply.initial().version == 8  # a.example is no longer allowed: fetched anew


def test_what_is_local_is_not_cached(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(encoded(document()))
    Bench(path, cache_dir=tmp_path / "cache").supply.initial()

    assert not (tmp_path / "cache").exists()


# ----------------------------------------------------------------------------- the bootstrap


def bootstrapped(remote: Remote, version: int, **top: object) -> Remote:
    remote.bootstrap = StaticSource(document(version=version, **top), label="bundled")
    return remote


def test_a_bootstrap_starts_without_waiting(remote: Remote) -> None:
    remote.content = OSError("down")
    bench = Bench(bootstrapped(remote, 3))

    assert bench.supply.initial().source == "bundled"
    assert remote.reads == 0
    remote.content = encoded(document(version=4))
    assert bench.later(0)


def test_the_newest_of_cache_and_bootstrap_is_used(remote: Remote, tmp_path: Path) -> None:
    Bench(remote, cache_dir=tmp_path).supply.initial()

    assert Bench(bootstrapped(remote, 6), cache_dir=tmp_path).supply.initial().version == 7
    assert Bench(bootstrapped(remote, 8), cache_dir=tmp_path).supply.initial().version == 8


def test_an_old_bootstrap_gives_way_to_the_version_of_the_mark(
    remote: Remote, tmp_path: Path
) -> None:
    Bench(remote, cache_dir=tmp_path).supply.initial()
    path = tmp_path / "remote.policy"
    path.write_bytes(path.read_bytes()[:-5])
    bench = Bench(bootstrapped(remote, 3), cache_dir=tmp_path)
    assert bench.supply.initial().version == 3

    remote.content = encoded(document(version=6))
    assert not bench.later(0)
    remote.content = encoded(document(version=7))
    assert bench.later(0)


def test_an_expired_start_asks_the_remote_first(remote: Remote) -> None:
    expired = {"expires_at": "2026-11-30T10:00:00Z"}
    bench = Bench(bootstrapped(remote, 3, **expired))
    assert bench.supply.initial().version == 7

    remote.content = OSError("down")
    bench = Bench(bootstrapped(remote, 3, **expired))
    assert bench.supply.initial().version == 3
    assert bench.reasons() == ["fetch"]


def test_a_broken_bootstrap_is_the_applications_fault(remote: Remote) -> None:
    with pytest.raises(ValidationError):
        Bench(bootstrapped(remote, "x")).supply.initial()  # type: ignore[arg-type]


def test_a_bootstrap_must_be_local() -> None:
    with pytest.raises(PolicyError, match="must be local"):
        HttpSource("https://a.example/p", bootstrap="https://b.example/p")
