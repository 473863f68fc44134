"""What the short way to a choice rests on: rows, plans, and what saves a look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.eject import PeerEjector
from headway.core.snapshot import (
    Capacity,
    Snapshot,
)
from headway.core.state import BREAKERS_MAX, SIZE_BUCKETS, EndpointState, size_bucket
from headway.core.world import ROWS_MAX, World
from tests.core.build import (
    Bench,
    Even,
    endpoint,
    facts,
    profile,
    route,
    snapshot,
)

AB = route({"a": 3, "b": 1})
NAMES = "abcdef"


def proven() -> Bench:
    bench = Bench(snapshot(AB), rng=Even(0.1))
    bench.prove("a", "b")
    return bench


def row_of(world: World, policy: Snapshot, model: str = "m") -> object:
    return world.row(policy.routes[0].weights.pick(None, 0), model, policy)


def test_a_row_is_made_once() -> None:
    bench = proven()
    policy = bench.engine.snapshot
    row = bench.world.row(policy.routes[0].weights.pick(None, 0), "m", policy)

    assert row is row_of(bench.world, policy)
    assert row is not row_of(bench.world, policy, "other")
    assert [(c.endpoint.id, c.share, c.model) for c in row.candidates] == [
        ("a", 0.75, "m"),
        ("b", 0.25, "m"),
    ]
    assert row.candidates[0].state is bench.state("a")
    assert row.candidates[0].breaker is bench.breaker("a")


def test_a_row_keeps_its_weights_alive_so_that_no_others_have_their_identity() -> None:
    bench = proven()
    policy = bench.engine.snapshot
    weights = policy.routes[0].weights.pick(None, 0)

    assert bench.world.row(weights, "m", policy).weights is weights


def test_a_new_policy_has_rows_of_its_own() -> None:
    bench = proven()
    old = bench.engine.snapshot
    row = row_of(bench.world, old)
    new = replace(old, endpoints={**old.endpoints, "b": endpoint("b", model="llama")}, version=2)
    bench.engine.swap(new, 1.0)

    assert bench.world.rows == {}
    made = row_of(bench.world, new)
    assert made is not row
    assert row_of(bench.world, new) is made
    # the same weights of another policy: a call that began with the old one
    assert row_of(bench.world, old) is not made
    assert [c.model for c in bench.world.row(old.routes[0].weights.pick(None, 0), "m", old).candidates] == ["m", "m"]  # fmt: skip


def test_a_policy_whose_hints_have_faded_has_rows_of_its_own() -> None:
    plain = snapshot(AB)
    hinted = replace(plain, without_hints=plain, fresh_until=10.0)
    bench = Bench(hinted, rng=Even(0.1))
    bench.prove("a", "b")
    row_of(bench.world, hinted)
    bench.engine.begin(facts(), 20.0, wall_now=20.0)

    assert bench.engine.snapshot is plain
    assert bench.world.rows == {}


def test_an_endpoint_that_the_policy_does_not_describe_is_left_out() -> None:
    policy = snapshot(AB)
    bare = replace(policy, endpoints={"a": policy.endpoints["a"]})

    row = World(zone=None, rng=Even()).row(AB.weights.pick(None, 0), "m", bare)
    assert [c.endpoint.id for c in row.candidates] == ["a"]


def test_a_row_goes_with_a_breaker_that_was_forgotten() -> None:
    bench = proven()
    policy = bench.engine.snapshot
    row = row_of(bench.world, policy)
    for i in range(BREAKERS_MAX - 1):
        bench.state("a").breaker(f"m{i}", Even())
    assert row_of(bench.world, policy) is row

    bench.state("a").breaker("one too many", Even())  # the oldest goes: that of "m"
    made = bench.world.row(policy.routes[0].weights.pick(None, 0), "m", policy)
    assert made is not row
    assert made.candidates[0].breaker is bench.state("a").breakers["m"]


def test_rows_are_bounded() -> None:
    bench = proven()
    policy = bench.engine.snapshot
    bench.world.rows.clear()
    for i in range(ROWS_MAX):
        row_of(bench.world, policy, f"m{i}")
    assert len(bench.world.rows) == ROWS_MAX

    row_of(bench.world, policy, "one more")
    assert len(bench.world.rows) == 1


def test_nothing_is_under_way_where_nothing_is_known() -> None:
    bench = proven()
    bench.state("a").inflight = 3
    assert [bench.world.inflight(name) for name in ("a", "b", "nobody")] == [3, 0, 0]


def test_the_last_ejection_to_end_counts() -> None:
    ejector = proven().pool().ejector
    ejector.ejects_until = 99.0
    for name in NAMES:
        for i in range(20):
            ejector.record(name, ok=name != "a" or i < 5)
    assert ejector.sweep(6, 10.0)[0] == [("a", 40.0)]
    assert ejector.ejects_until == 99.0


def test_a_new_ceiling_counts_though_the_capacity_is_the_same() -> None:
    state = EndpointState(endpoint("a"), None)
    state.reconfigure(endpoint("a"), 4)
    assert state.limit.limit == 4.0
    state.reconfigure(endpoint("a"), 4)
    assert state.limit.limit == 4.0
    state.reconfigure(endpoint("a", capacity=Capacity(concurrency=3, rpm=60.0)), 4)
    assert state.limit.limit == 3.0
    assert state.is_paced
    state.reconfigure(endpoint("a", capacity=Capacity(concurrency=3)), 4)
    assert not state.is_paced
    state.reconfigure(endpoint("a"), None)
    assert state.limit.limit is None
    state.reconfigure(endpoint("a"), 4)
    state.reconfigure(endpoint("a"), None)
    assert state.limit.limit is None


def test_who_was_never_blamed_has_not_failed() -> None:
    state = EndpointState(endpoint("a"), None)
    assert not state.has_failed
    state.blame(0.5, 1.0)
    assert state.has_failed


def test_a_plan_is_the_profile_at_one_load() -> None:
    far = endpoint(
        "a",
        profile=profile(1.0, 0.01, p99_s=4.0, prefill_s_per_token=0.001, ref_tokens=1000),
        rtt_s=0.25,
    )
    assert far.profile is not None
    assert far.plan is not None
    assert far.plan.ttft_of(1500) == far.profile.predict_ttft_s(0.5, 1500) == pytest.approx(1.5)
    assert far.plan.ttft_of(-1e9) == 0.001
    assert far.plan.latency_of(1500, 100) == pytest.approx(0.25 + 1.5 + 1.0)
    assert (far.plan.ttft_p99_s, far.plan.tpot_p99_s) == (4.0, None)
    assert endpoint("a").plan is None
    assert far.profile.plan(0.5).rtt_s == 0.0


def test_sizes_of_prompts_are_told_apart_at_their_bounds() -> None:
    assert [size_bucket(n) for n in (0, *SIZE_BUCKETS)] == [0, 0, 1, 2]
    assert [size_bucket(n + 1) for n in SIZE_BUCKETS] == [1, 2, 3]


# --------------------------------------------------------------------------- the window of peers


def ejector_of(results: dict[int, dict[str, tuple[int, int]]], *, until: int) -> list[str]:
    """Who is ejected by the end of interval `until`, of results (good, bad) by interval and peer."""
    ejector = PeerEjector(0.0)
    out: list[str] = []
    for interval in range(1, until + 1):
        for name, (good, bad) in results.get(interval, {}).items():
            for i in range(good + bad):
                ejector.record(name, ok=i < good)
        out += [name for name, _ in ejector.sweep(60, 10.0 * interval)[0]]
    return out


PEERS = {f"p{i}": (20, 0) for i in range(19)}


@pytest.mark.parametrize(("later", "is_remembered"), [(12, True), (13, False)])
def test_failures_are_held_against_a_peer_for_twelve_intervals(
    later: int, is_remembered: bool
) -> None:
    seen = {1: {"a": (0, 10)}, later: PEERS}

    assert ejector_of(seen, until=later) == (["a"] if is_remembered else [])


def test_successes_count_for_as_long() -> None:
    now = {**PEERS, "a": (0, 10)}

    assert ejector_of({1: {"a": (100, 0)}, 13: now}, until=13) == ["a"]
    assert ejector_of({1: {"a": (1000, 0)}, 12: now}, until=12) == []


def test_each_result_counts_once() -> None:
    many = {f"p{i}": (1000, 0) for i in range(19)}

    assert ejector_of({1: {**many, "a": (17, 3)}}, until=1) == ["a"]
    assert ejector_of({1: {**many, "a": (18, 2)}}, until=1) == []
