"""When a supply looks, and when it says that a policy is stale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.core.model import PolicyStale
from headway.policy.sources import UnavailableError
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


def test_stale_is_told_once_and_shown_always(remote: Remote) -> None:
    times = {"issued_at": "2026-11-30T11:00:00Z", "fresh_until": "2026-11-30T11:05:00Z"}
    remote.content = encoded(document(**times))
    bench = Bench(remote)
    bench.supply.initial()
    bench.later(299)
    assert not bench.supply.status().stale
    bench.later(2)
    bench.later(30)

    status = bench.supply.status()
    assert status.stale
    assert status.age_s == 331
    stale = [e for e in bench.events if isinstance(e, PolicyStale)]
    assert [(e.version, e.age_s) for e in stale] == [(7, 301)]
    assert bench.later(0) is False


def test_age_without_issued_at_counts_from_loading(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    bench.later(42)

    assert bench.supply.status().age_s == 42


def test_looks_are_spread_around_the_interval(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    gaps = []
    for _ in range(200):
        gaps.append(bench.supply.due_in_s())
        bench.later(gaps[-1])

    assert 24 <= min(gaps) < 25
    assert 35 < max(gaps) <= 36


def test_failures_are_asked_about_less_and_less_often(remote: Remote) -> None:
    waits: list[int] = []

    def backoff(state: Any) -> float:
        waits.append(state.attempt_number)
        return 2.0**state.attempt_number

    bench = Bench(remote, backoff=backoff)
    bench.supply.initial()
    remote.content = OSError("down")
    due = []
    for _ in range(4):
        bench.later(0)
        due.append(bench.supply.due_in_s())
    assert due == [2, 4, 8, 16]
    assert waits == [1, 2, 3, 4]
    remote.content = encoded(document())
    bench.later(0)
    assert 24 <= bench.supply.due_in_s() <= 36
    assert bench.supply.status().last_error is None


def test_the_default_backoff_is_tenacitys_and_bounded(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = OSError("down")
    for _ in range(40):
        bench.later(0)
        assert 1 <= bench.supply.due_in_s() <= 300


def test_retry_after_is_honoured(remote: Remote) -> None:
    bench = Bench(remote)
    bench.supply.initial()
    error = UnavailableError("answered 503", source="remote")
    error.retry_after_s = 1234.0
    remote.content = error
    bench.later(0)

    assert bench.supply.due_in_s() == 1234


def test_a_source_that_says_for_how_long_it_holds_is_left_alone_for_so_long(
    server: PolicyServer,
) -> None:
    server.answer = lambda h: (200, {"Cache-Control": "max-age=120"}, encoded(document()))
    bench = Bench(server.url)
    bench.supply.initial()
    assert 120 <= bench.supply.due_in_s() <= 144  # jittered: a fleet is told alike
    server.answer = lambda h: (200, {"Cache-Control": "max-age=1"}, encoded(document()))
    bench.later(0)
    assert 24 <= bench.supply.due_in_s() <= 36  # never sooner than the interval


def test_a_file_that_is_missing_is_looked_for_at_the_usual_pace(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(encoded(document()))
    bench = Bench(path)
    bench.supply.initial()
    path.unlink()
    for _ in range(10):
        bench.later(2)

    assert bench.supply.due_in_s() == 2
