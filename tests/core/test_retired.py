"""Endpoints that left the policy: reachable for what is bound to them, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

from headway.core.engine import RETIRED_MAX, VERSIONS_MAX
from headway.core.model import INFINITY, CallFacts, Send
from headway.core.views import VersionStatus
from tests.core.build import Bench, endpoint, route, snapshot

HELD = frozenset({"a"})


def bound(to: str) -> CallFacts:
    return CallFacts(model="m", pinned_to=to)


def test_what_holds_objects_is_kept_and_what_holds_none_is_not() -> None:
    bench = Bench(snapshot(route({"a": 1, "b": 1})))
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 1.0, holding=HELD)

    assert bench.engine.endpoint("a") is not None
    assert bench.engine.endpoint("b") is None
    assert bench.engine.endpoint("c") is not None
    assert bench.engine.begin(bound("b"), 1.0) is None


def test_a_bound_call_goes_there_and_an_unbound_one_does_not() -> None:
    bench = Bench(snapshot(route({"a": 1})))
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 1.0, holding=HELD)
    call = bench.engine.begin(bound("a"), 1.0)
    assert call is not None
    sent = call.next_action(1.0)
    assert isinstance(sent, Send)
    assert (sent.attempt.endpoint_id, sent.attempt.reason) == ("a", "pinned")
    assert call.snapshot.version == 2
    assert "a" not in bench.engine.snapshot.endpoints  # the policy itself stays what it is

    other = bench.engine.begin(CallFacts(model="m"), 1.0)
    assert other is not None
    free = other.next_action(1.0)
    assert isinstance(free, Send)
    assert free.attempt.endpoint_id == "c"


def test_it_is_forgotten_once_nothing_is_held() -> None:
    bench = Bench(snapshot(route({"a": 1})))
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 1.0, holding=HELD)
    bench.engine.swap(snapshot(route({"c": 1}), version=3), 2.0, holding=HELD)
    assert bench.engine.endpoint("a") is not None
    bench.engine.swap(snapshot(route({"c": 1}), version=4), 3.0)
    assert bench.engine.endpoint("a") is None
    assert bench.engine.begin(bound("a"), 3.0) is None


def test_calls_under_way_may_make_something_so_they_hold_it_too() -> None:
    bench = Bench(snapshot(route({"a": 1})))
    call = bench.engine.begin(CallFacts(model="m"), 0.0)
    assert call is not None
    assert isinstance(call.next_action(0.0), Send)
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 1.0)

    assert bench.engine.endpoint("a") is not None


def test_what_comes_back_is_the_policys_again() -> None:
    bench = Bench(snapshot(route({"a": 1})))
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 1.0, holding=HELD)
    back = snapshot(route({"a": 1}), [endpoint("a", credential="k")], version=3)
    bench.engine.swap(back, 2.0, holding=HELD)

    assert bench.engine.endpoint("a") is back.endpoints["a"]


def test_what_is_kept_is_bounded_and_the_longest_gone_goes_first() -> None:
    names = [f"e{i:03}" for i in range(RETIRED_MAX + 10)]
    bench = Bench(snapshot(route(dict.fromkeys(names, 1))))
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 1.0, holding=frozenset(names))

    kept = [name for name in names if bench.engine.endpoint(name) is not None]
    assert kept == names[10:]


def test_a_version_says_since_when_it_holds() -> None:
    first = replace(snapshot(route({"a": 1}), version=3), epoch=1)
    second = replace(snapshot(route({"a": 1}), version=1), epoch=2)
    bench = Bench(first)
    assert bench.engine.versions() == (VersionStatus(1, 3, -INFINITY, 0),)
    bench.engine.begin(CallFacts(model="m"), 0.0)
    bench.engine.swap(second, 7.0)

    assert bench.engine.versions() == (
        VersionStatus(2, 1, 7.0, 0),
        VersionStatus(1, 3, -INFINITY, 1),
    )
    assert bench.engine.versions() == bench.engine.versions()  # looking is no call


def test_versions_count_the_calls_begun_under_each() -> None:
    bench = Bench(snapshot(route({"a": 1}), version=1))
    for version in range(2, 5):
        for _ in range(version):
            bench.engine.begin(CallFacts(model="m"), 0.0)
        bench.engine.swap(snapshot(route({"a": 1}), version=version), float(version))
    assert [(v.version, v.calls) for v in bench.engine.versions()] == [
        (4, 0),
        (3, 4),
        (2, 3),
        (1, 2),
    ]
    for version in range(5, 50):
        bench.engine.swap(snapshot(route({"a": 1}), version=version), float(version))
    assert len(bench.engine.versions()) == VERSIONS_MAX
