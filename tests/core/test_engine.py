from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from headway.core.engine import Engine, NoLock, route_of
from headway.core.model import (
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    EndpointEjected,
    EndpointReadmitted,
    Event,
    FirstToken,
    Outcome,
)
from headway.core.snapshot import (
    AdmissionPolicy,
    Capacity,
    Fallback,
    HedgePolicy,
    Match,
    Price,
    RetryPolicy,
    Route,
    Snapshot,
    TrafficClass,
)
from headway.core.views import BreakerStatus, CandidateRow
from tests.core.build import (
    BROKEN,
    DONE,
    EXHAUSTED,
    THROTTLED,
    Bench,
    Even,
    F,
    endpoint,
    facts,
    profile,
    route,
    snapshot,
    throttled,
)

AB = route({"a": 1, "b": 1})


def only(model: str, name: str, **known: object) -> Route:
    return route({"a": 1}, name=name, match=Match(models=frozenset({model})), **known)  # type: ignore[arg-type]


# ---------------------------------------------------------------- beginning


def test_a_model_without_a_route_is_not_ours_to_manage() -> None:
    bench = Bench(snapshot(only("m", "r")))

    assert bench.engine.begin(facts("other"), 0.0) is None
    assert bench.engine.begin(facts("m"), 0.0) is not None


def test_a_pin_to_an_endpoint_the_policy_does_not_know_is_not_either() -> None:
    bench = Bench(AB)

    assert bench.engine.begin(facts(pinned_to="ghost"), 0.0) is None
    assert bench.engine.begin(facts(pinned_to="a"), 0.0) is not None


def test_a_route_named_by_the_caller_comes_before_matching() -> None:
    bench = Bench(snapshot([only("m", "one"), only("n", "two")]))
    call = bench.engine.begin(facts("m", route="two"), 0.0)

    assert call is not None
    assert call.route.name == "two"
    assert bench.engine.begin(facts("m", route="three"), 0.0) is None


def test_task_class_and_surface_choose_the_route() -> None:
    bench = Bench(
        snapshot(
            [
                route({"a": 1}, name="t", match=Match(tasks=frozenset({"triage"}))),
                route({"a": 1}, name="c", match=Match(classes=frozenset({"gold"}))),
                route({"a": 1}, name="s", match=Match(surfaces=frozenset({"embeddings"}))),
            ]
        )
    )

    def name(**known: str) -> str:
        call = bench.engine.begin(facts(**known), 0.0)
        return call.route.name if call else ""

    assert name(task_name="triage") == "t"
    assert name(traffic_class="gold") == "c"
    assert name(surface="embeddings") == "s"
    assert name() == ""


def test_calls_are_numbered() -> None:
    bench = Bench(AB)

    assert [bench.begin().call.id for _ in range(3)] == [1, 2, 3]


# ---------------------------------------------------------------- events


def test_a_calls_own_sink_gets_its_events_and_the_engines_gets_all() -> None:
    bench, own = Bench(AB), list[Event]()
    call = bench.engine.begin(facts(), 0.0, sink=own.append)
    other = bench.begin()
    assert call is not None
    action = call.next_action(0.0)
    call.on_outcome(action.attempt, BROKEN, 0.0)  # type: ignore[union-attr, arg-type]
    other.call.cancel(0.0)

    assert {getattr(e, "call_id", None) for e in own} == {1}
    assert [type(e) for e in own] == [AttemptStarted, AttemptEnded]
    assert [e for e in bench.events if getattr(e, "call_id", None) == 1] == own
    assert CallEnded in {type(e) for e in bench.events}


def test_events_of_the_endpoint_go_to_the_engines_sink_only() -> None:
    bench, own = Bench(route({"a": 1}), rng=Even()), list[Event]()
    for _ in range(3):
        call = bench.engine.begin(facts(attempts_max=1), 0.0, sink=own.append)
        assert call is not None
        call.on_outcome(call.next_action(0.0).attempt, BROKEN, 0.0)  # type: ignore[union-attr, arg-type]

    names = [type(e).__name__ for e in bench.events]
    assert names.count("BreakerChanged") == 1
    assert names.index("BreakerChanged") < len(names) - 1  # before the attempt's own end
    assert "BreakerChanged" not in {type(e).__name__ for e in own}


def test_without_anyone_listening_nothing_is_kept() -> None:
    engine = Engine(snapshot(AB), rng=random.Random(1))
    call = engine.begin(facts(), 0.0)
    assert call is not None
    call.on_outcome(call.next_action(0.0).attempt, DONE, 0.0)  # type: ignore[union-attr, arg-type]

    assert engine.outbox == []


def test_a_sink_may_call_back_in() -> None:
    depth = 0

    def sink(event: Event) -> None:
        nonlocal depth
        depth += 1
        if depth < 3:
            engine.status(0.0)
            call = engine.begin(facts(), 0.0)
            assert call is not None
            call.next_action(0.0)

    engine = Engine(snapshot(AB), rng=random.Random(1), lock=NonReentrant(), on_event=sink)
    call = engine.begin(facts(), 0.0)
    assert call is not None
    call.next_action(0.0)

    assert depth == 3


def test_a_sink_that_raises_leaves_nobody_waiting() -> None:
    bench = Bench(route({"a": 1}, admission=AdmissionPolicy(max_inflight=1)))
    bench.prove("a")
    busy = bench.begin()
    attempt = busy.send(0.0)
    waiter = bench.begin()
    waiter.wait(0.0, "queue")
    woken: list[bool] = []
    waiter.call.set_waker(lambda: woken.append(True))

    def broken_sink(event: Event) -> None:
        raise RuntimeError(type(event).__name__)

    bench.engine._on_event = broken_sink
    with pytest.raises(RuntimeError):
        busy.end(attempt, DONE, 1.0)

    assert woken == [True]


class NonReentrant:
    """A lock that fails at once where a real one would hang."""

    def __init__(self) -> None:
        self.held = False

    def __enter__(self) -> None:
        assert not self.held
        self.held = True

    def __exit__(self, *exc: object) -> None:
        self.held = False


class Intruder(NonReentrant):
    """A lock that lets another thread's turn in as soon as it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside = False
        self.turn: Callable[[], object] | None = None

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        turn, self.turn = self.turn, None
        if turn is not None:
            self.is_inside = True
            turn()
            self.is_inside = False


def test_nobody_else_delivers_what_a_call_has_to_tell() -> None:
    lock, stolen = Intruder(), list[Event]()
    bench = Bench(AB, lock=lock)
    other = bench.begin()
    call = bench.engine.begin(
        facts(), 0.0, sink=lambda event: stolen.append(event) if lock.is_inside else None
    )
    assert call is not None
    lock.turn = lambda: other.next(0.0)

    call.next_action(0.0)

    assert stolen == []
    assert len(bench.of(AttemptStarted)) == 2


def test_every_public_method_takes_the_lock_once_and_lets_it_go() -> None:
    lock = NonReentrant()
    bench = Bench(AB, lock=lock)
    hand = bench.begin(stream=True)
    attempt = hand.send(0.0)
    hand.call.on_first_token(attempt, 0.5)
    hand.end(attempt, DONE, 1.0)
    hand.call.set_waker(None)
    hand.call.cancel(1.0)
    bench.engine.status(1.0)
    bench.engine.pools(1.0)
    bench.engine.breaker_states()
    bench.engine.explain(facts(), 1.0)
    bench.engine.swap(bench.engine.snapshot, 1.0)

    assert not lock.held
    with NoLock() as held:
        assert isinstance(held, NoLock)


def test_ejected_and_readmitted_peers_are_told() -> None:
    bench = Bench(route(dict.fromkeys("abcdef", 1.0)))
    bench.begin(0.0).call.cancel(0.0)
    for name in "abcdef":
        for _ in range(20):
            bench.world.pools["chat"].ejector.record(name, ok=name != "a")
    first = bench.begin(10.0)
    first.send(10.0)
    assert len(bench.of(EndpointEjected)) == 1  # told with the call's first decision
    first.call.cancel(10.0)
    second = bench.begin(40.0)
    second.send(40.0)
    second.call.cancel(40.0)

    assert bench.of(EndpointEjected) == [EndpointEjected("a", "success_rate", 40.0, 10.0)]
    assert bench.of(EndpointReadmitted) == [EndpointReadmitted("a", 40.0)]


# ---------------------------------------------------------------- a new policy


def test_a_new_policy_keeps_the_state_of_endpoints_and_routes_that_stay() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    busy = bench.begin(0.0)
    busy.send(0.0)
    state, pool, balance = bench.state("b"), bench.world.pools["chat"], bench.balance(0.0)

    bench.engine.swap(snapshot(route({"a": 1, "b": 3, "c": 1}), version=2), 1.0)

    assert bench.engine.snapshot.version == 2
    assert bench.state("b") is state
    assert state.inflight == 1
    assert bench.breaker("a").state.value == "open"
    assert bench.world.pools["chat"] is pool
    assert bench.balance(0.0) == balance


def test_endpoints_and_routes_that_went_are_forgotten_once_idle() -> None:
    bench = Bench(snapshot([only("m", "one"), route({"b": 1}, name="two")]))
    busy = bench.begin(model="other")
    attempt = busy.send(0.0)
    bench.prove("a")
    smaller = snapshot(only("m", "one"), version=2)

    bench.engine.swap(smaller, 1.0)
    assert set(bench.world.states) == {"a", "b"}
    assert set(bench.world.pools) == {"one", "two"}
    busy.end(attempt, DONE, 2.0)
    assert busy.finish(2.0).attempt is attempt
    bench.engine.swap(smaller, 3.0)

    assert set(bench.world.states) == {"a"}
    assert set(bench.world.pools) == {"one"}


def test_a_call_under_way_finishes_on_the_policy_it_began_with() -> None:
    bench = Bench(AB, rng=Even(0.0))
    old = bench.engine.snapshot
    hand = bench.begin()
    first = hand.fail(0.0)
    bench.engine.swap(snapshot(route({"c": 1}), version=2), 0.0)
    second = hand.send(0.0)

    assert hand.call.snapshot is old
    assert {first.endpoint_id, second.endpoint_id} == {"a", "b"}
    hand.end(second, DONE, 1.0)
    assert hand.finish(1.0).attempt is second
    assert bench.begin(1.0).send(1.0).endpoint_id == "c"


def test_new_limits_hold_at_once_and_waiters_are_told() -> None:
    tight = route({"a": 1}, admission=AdmissionPolicy(max_inflight=1))
    wide = route({"a": 1}, admission=AdmissionPolicy(max_inflight=2))
    bench = Bench(tight)
    bench.prove("a")
    bench.begin().send(0.0)
    waiter = bench.begin()
    waiter.wait(0.0, "queue")
    woken: list[bool] = []
    waiter.call.set_waker(lambda: woken.append(True))

    bench.engine.swap(snapshot(wide, version=2), 0.5)

    assert woken == [True]
    assert waiter.send(0.5).endpoint_id == "a"


def test_an_address_that_changed_has_a_cold_cache() -> None:
    bench = Bench(AB)
    bench.prove("a", "b")
    bench.serve(0.0, takes=0.0, session="s", pinned_to="a")
    assert bench.engine.explain(facts(session="s"), 1.0).warm_endpoint == "a"
    same = snapshot(AB, version=2)
    bench.engine.swap(same, 1.0)
    assert bench.engine.explain(facts(session="s"), 1.0).warm_endpoint == "a"

    moved = type(endpoint("a"))(id="a", base_url="https://elsewhere/v1")
    bench.engine.swap(snapshot(AB, [moved], version=3), 1.0)

    assert bench.engine.explain(facts(session="s"), 1.0).warm_endpoint is None


def test_blocks_of_credentials_that_went_are_forgotten() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", credential="k"), endpoint("b", credential="l")])
    for name in "ab":
        bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to=name)
    bench.engine.swap(snapshot(AB, [endpoint("a", credential="k"), endpoint("b")]), 1.0)

    assert set(bench.world.blocks) == {"k"}


def test_the_tightest_ceiling_of_all_routes_holds_whoever_comes_first() -> None:
    routes = [
        only("m", "wide", admission=AdmissionPolicy(max_inflight=9)),
        only("n", "tight", admission=AdmissionPolicy(max_inflight=2)),
        only("o", "free"),
    ]
    first_used, looked_at = Bench(snapshot(routes)), Bench(snapshot(routes))
    first_used.prove("a")
    looked_at.engine.status(0.0)

    for bench in (first_used, looked_at):
        assert bench.state("a").limit.limit == 2.0


# ---------------------------------------------------------------- looking in


def test_status_says_what_this_process_knows_of_each_endpoint() -> None:
    bench = Bench(
        route({"a": 1, "b": 1, "c": 1}),
        endpoints=[
            endpoint("a", credential="k"),
            endpoint("c", state="draining", capacity=Capacity(concurrency=7)),
        ],
        rng=Even(0.5),
    )
    bench.prove("a", "b")
    bench.kill("b")
    bench.serve(0.0, throttled(4.0), takes=0.0, pinned_to="a", attempts_max=1)
    a, c, b = bench.engine.status(0.0)

    assert [a.endpoint_id, b.endpoint_id, c.endpoint_id] == ["a", "b", "c"]
    assert (a.state, a.in_flight, a.limit) == ("active", 0, 1.0)
    ((model, why, left),) = a.out
    assert (model, why) == ("m", "throttled")
    assert left == pytest.approx(4.6)
    assert (a.credential_blocked_s, a.ejected_s, a.badness, a.residual) == (0.0, 0.0, 0.5, 1.0)
    assert a.breakers == (BreakerStatus("m", "closed", "", 0.0, 0),)
    assert b.breakers == (BreakerStatus("m", "open", "consecutive", 10.0, 1),)
    assert b.badness == 3.0
    assert (c.state, c.limit, c.breakers, c.out, c.residual) == ("draining", 7.0, (), (), None)
    assert bench.engine.status(1.6)[0].out[0][2] == pytest.approx(3.0)
    assert bench.engine.status(4.6)[0].out == ()


def test_status_counts_down_blocks_and_ejections() -> None:
    bench = Bench(route(dict.fromkeys("abcdef", 1.0)), rng=Even(0.0))
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="b", attempts_max=1)
    for name in "abcdef":
        for _ in range(20):
            bench.world.pools["chat"].ejector.record(name, ok=name != "a")
    looking = bench.begin(10.0)
    looking.send(10.0)
    looking.call.cancel(10.0)
    rows = {s.endpoint_id: s for s in bench.engine.status(15.0)}

    assert rows["b"].credential_blocked_s == 285.0
    assert rows["a"].ejected_s == 25.0
    assert rows["c"].credential_blocked_s == rows["c"].ejected_s == 0.0


def test_pools_say_what_the_calls_of_a_route_share() -> None:
    bench = Bench(AB)
    assert bench.engine.pools(0.0) == ()
    hand = bench.begin()
    hand.fail(0.0)
    (row,) = bench.engine.pools(0.0)

    assert (row.route, row.in_flight, row.queued) == ("chat", 1, 0)
    assert (row.retry_budget, row.retry_capacity, row.hedge_budget) == (2.0, 5.0, 0.0)


def test_a_pools_budget_grows_with_the_calls_under_way() -> None:
    bench = Bench(AB)
    bench.prove("a", "b")
    for _ in range(24):
        bench.begin().send(0.0)
    (row,) = bench.engine.pools(0.0)

    assert (row.in_flight, row.retry_capacity) == (24, 12.0)


def test_breaker_states_name_the_worst_of_an_endpoints_models() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.prove("a", model="n")
    bench.kill("a", model="n")
    bench.engine.status(0.0)
    assert dict(bench.engine.breaker_states()) == {"a": "open", "b": "closed"}

    cooled = bench.breaker("a", "n").open_until
    bench.begin(cooled, model="n").send(cooled)

    assert dict(bench.engine.breaker_states())["a"] == "half_open"
    bench.kill("a", now=cooled)
    assert dict(bench.engine.breaker_states())["a"] == "open"  # worse than half open
    bench.kill("b", model="n")
    bench.begin(cooled, model="n", pinned_to="b").send(cooled)
    bench.prove("b", model="o")
    bench.kill("b", model="o", now=cooled)
    assert dict(bench.engine.breaker_states())["b"] == "open"
    untouched = Bench(AB)
    untouched.engine.status(0.0)
    assert dict(untouched.engine.breaker_states()) == {"a": "closed", "b": "closed"}


def test_explain_shows_candidates_terms_and_why_not() -> None:
    bench = Bench(
        snapshot(
            route({"a": 3, "b": 1, "c": 4}, fallback=[Fallback(endpoint="f")]),
            [
                endpoint("a", profile=profile(1.0, 0.01), price=PRICE),
                endpoint("c", state="disabled"),
            ],
        )
    )
    bench.prove("a", "b")
    bench.serve(0.0, takes=0.0, pinned_to="b", session="s", prompt_tokens=700)
    bench.begin(0.0, pinned_to="b").send(0.0)
    told = bench.engine.explain(facts(session="s", prompt_tokens=1000), 0.0)
    rows = {r.endpoint_id: r for r in told.candidates}

    assert (told.route, told.algorithm) == ("chat", "steady")
    cold = bench.engine.explain(facts(), 0.0)
    assert (cold.warm_endpoint, cold.warm_tokens) == (None, 0)
    assert (told.warm_endpoint, told.warm_tokens) == ("b", 700)
    assert [(r.endpoint_id, r.group) for r in told.candidates] == [
        ("a", 0), ("b", 0), ("c", 0), ("f", 1),
    ]  # fmt: skip
    a, b, c, f = rows["a"], rows["b"], rows["c"], rows["f"]
    assert (a.eligible, a.why_not, a.weight, a.outstanding) == (True, "", 0.75, 0)
    assert c == CandidateRow(
        "c", 0, False, "disabled", 0.5, 1.0, 1.0, 1.0, outstanding=0, share=0.0, expected_s=None,
        usd=None,
    )  # fmt: skip
    assert (b.outstanding, b.slow_start, b.penalty) == (1, 1.0, 1.0)
    assert a.share + b.share == pytest.approx(1.0)
    assert f.share == 1.0
    assert a.usd == pytest.approx((1000 * 1 + 200 * 2) / 1e6)
    assert a.expected_s is not None


PRICE = Price(input_per_mtok=Decimal(1), output_per_mtok=Decimal(2))


def test_explain_shares_out_nothing_where_nothing_has_a_share() -> None:
    """The one with all the weight is far too dear, the cheap one has no weight."""
    dear = Price(input_per_mtok=Decimal(1_000_000), output_per_mtok=Decimal(1_000_000))
    bench = Bench(
        snapshot(
            route({"a": 1, "b": 0}),
            [
                endpoint("a", profile=profile(1.0), price=dear),
                endpoint("b", profile=profile(1.0), price=PRICE),
            ],
            classes={"gold": TrafficClass(usd_per_second=0.001)},
        )
    )
    told = bench.engine.explain(facts(prompt_tokens=9000, traffic_class="gold"), 0.0)

    assert [(r.eligible, r.share) for r in told.candidates] == [(True, 0.0), (True, 0.0)]


def test_explain_holds_endpoints_against_what_the_class_is_promised() -> None:
    bench = Bench(
        snapshot(
            AB,
            [endpoint("a", profile=profile(0.5)), endpoint("b", profile=profile(3.0))],
            classes={"gold": TrafficClass(ttft_slo_s=1.0)},
        )
    )

    def shares(**known: str) -> list[float]:
        return [r.share for r in bench.engine.explain(facts(**known), 0.0).candidates]

    assert shares() == [0.5, 0.5]
    assert shares(traffic_class="gold")[0] > 0.9


def test_explain_of_an_unknown_model_is_empty() -> None:
    bench = Bench(snapshot(only("m", "r")))

    assert bench.engine.explain(facts("other"), 0.0) == (None, "", None, 0, (), "")


def test_explaining_changes_no_decision() -> None:
    asked, silent = Bench(AB, seed=5), Bench(AB, seed=5)
    chosen = []
    for bench in (asked, silent):
        for i in range(100):
            if bench is asked:
                bench.engine.explain(facts(), float(i))
                bench.engine.status(float(i))
                bench.engine.pools(float(i))
            chosen.append(bench.serve(float(i)).endpoint_id)

    assert chosen[:100] == chosen[100:]


def test_a_class_of_traffic_brings_its_rate_into_explanations() -> None:
    dear = Price(input_per_mtok=Decimal(1000), output_per_mtok=Decimal(1000))
    bench = Bench(
        snapshot(
            AB,
            [
                endpoint("a", profile=profile(1.0), price=dear),
                endpoint("b", profile=profile(1.0), price=PRICE),
            ],
            classes={"gold": TrafficClass(usd_per_second=0.5)},
        )
    )

    def share(**known: str) -> float:
        return bench.engine.explain(facts(prompt_tokens=900, **known), 0.0).candidates[0].share

    assert share() == 0.5
    assert share(traffic_class="gold") < 0.3
    assert share(traffic_class="unknown") == 0.5


def test_endpoints_that_left_take_their_warmth_with_them() -> None:
    bench = Bench(AB)
    bench.prove("a", "b")
    bench.serve(0.0, takes=0.0, session="s", pinned_to="a")
    bench.engine.swap(snapshot(route({"b": 1}), version=2), 1.0)

    assert len(bench.world.affinity) == 0


def test_a_new_policys_budgets_and_hedges_hold_for_routes_that_stay() -> None:
    bench = Bench(AB)
    bench.begin(0.0).call.cancel(0.0)
    retry = RetryPolicy(budget_capacity=1.5)
    bench.engine.swap(snapshot(route({"a": 1, "b": 1}, retry=retry), version=2), 0.0)

    assert bench.balance(0.0) == 1.5


def test_a_new_policys_share_of_hedges_holds_for_routes_that_stay() -> None:
    def hedged(fraction: float) -> Snapshot:
        hedge = HedgePolicy(enabled=True, max_extra_fraction=fraction)
        return snapshot(route({"a": 1, "b": 1}, hedge=hedge))

    bench = Bench(hedged(0.05))
    bench.serve(0.0)
    assert bench.engine.pools(0.0)[0].hedge_budget == pytest.approx(0.05)

    bench.engine.swap(hedged(0.5), 1.0)
    bench.serve(1.0)

    assert bench.engine.pools(1.0)[0].hedge_budget == pytest.approx(0.55)


def test_an_ejected_endpoint_that_left_the_route_comes_back_as_a_new_one() -> None:
    six = route(dict.fromkeys("abcdef", 1.0))
    bench = Bench(six)
    bench.begin(0.0).next(0.0)
    for name in "abcdef":
        for _ in range(20):
            bench.pool().ejector.record(name, ok=name != "a")
    bench.begin(10.0).next(10.0)
    assert {s.endpoint_id for s in bench.engine.status(10.0) if s.ejected_s} == {"a"}

    bench.engine.swap(snapshot(route(dict.fromkeys("bcdef", 1.0)), version=2), 11.0)
    bench.engine.swap(snapshot(six, version=3), 12.0)

    assert [s.endpoint_id for s in bench.engine.status(12.0) if s.ejected_s] == []


def test_a_sole_endpoint_has_no_peers_to_be_compared_with() -> None:
    bench = Bench(route({"a": 1}))
    bench.begin(0.0).next(0.0)
    sweeps = bench.world.pools["chat"].ejector._swept_at
    bench.begin(100.0).next(100.0)

    assert bench.world.pools["chat"].ejector._swept_at == sweeps


# ---------------------------------------------------------------- retries made outside


def test_a_retry_made_outside_is_paid_by_the_models_pool_or_by_the_poorest() -> None:
    bench = Bench(
        snapshot(
            [
                only("m", "rich", retry=RetryPolicy(budget_start=3.0)),
                only("n", "poor", retry=RetryPolicy(budget_start=1.0)),
            ]
        )
    )
    assert bench.engine.take_retry(0.0) is True  # nothing has run yet
    assert bench.engine.take_retry(0.0, model="unknown") is True
    bench.begin(0.0, model="m").call.cancel(0.0)
    bench.begin(0.0, model="n").call.cancel(0.0)

    assert bench.engine.take_retry(0.0, model="m") is True
    assert bench.balance(0.0, "rich") == 2.0
    assert bench.engine.take_retry(0.0) is True
    assert (bench.balance(0.0, "rich"), bench.balance(0.0, "poor")) == (2.0, 0.0)
    assert bench.engine.take_retry(0.0) is False
    assert bench.engine.take_retry(0.0, model="n") is False
    assert bench.engine.take_retry(0.0, model="m") is True


def test_the_route_of_a_call_can_be_asked_for() -> None:
    policy = snapshot([only("m", "one"), only("n", "two")])
    found = route_of(policy, facts("n"))

    assert found is not None
    assert found.name == "two"
    assert route_of(policy, facts("o")) is None


# ---------------------------------------------------------------- hints that go stale


def test_past_its_fresh_time_a_policy_is_used_without_its_load_hints() -> None:
    described = endpoint("a", profile=profile(1.0), load=0.9)
    plain = snapshot(route({"a": 1}), [endpoint("a", profile=profile(1.0), load=0.5)])
    hinted = replace(
        snapshot(route({"a": 1}), [described]), fresh_until=1000.0, without_hints=plain
    )
    bench = Bench(hinted)
    bench.prove("a")

    def begin(wall_now: float) -> Snapshot:
        call = bench.engine.begin(facts(), 0.0, wall_now=wall_now)
        assert call is not None
        return call.snapshot

    assert begin(1000.0) is hinted
    assert bench.state("a").endpoint is described
    assert begin(1000.1) is plain
    assert bench.engine.snapshot is plain
    assert bench.state("a").endpoint.planned_load == 0.5


def test_a_new_policy_that_comes_first_is_not_replaced_by_the_faded_old_one() -> None:
    class Overtaken(NonReentrant):
        """Another thread gets the lock first, and puts in a new policy."""

        def __enter__(self) -> None:
            super().__enter__()
            engine.snapshot = newer

    newer = snapshot(AB, version=9)
    stale = replace(snapshot(AB), fresh_until=1000.0, without_hints=snapshot(AB))
    engine = Engine(stale, rng=Even(), lock=Overtaken())
    call = engine.begin(facts(), 0.0, wall_now=1001.0)

    assert call is not None
    assert call.snapshot is engine.snapshot is newer


def test_without_the_wall_clock_nothing_expires() -> None:
    bench = Bench(snapshot(AB, expires_at=1.0, on_expiry="fail"))

    assert bench.begin().send(0.0).number == 1


def test_a_policy_without_a_fresh_time_never_goes_stale() -> None:
    policy = replace(snapshot(AB), without_hints=snapshot(AB))
    bench = Bench(policy)
    call = bench.engine.begin(facts(), 0.0, wall_now=1e12)

    assert call is not None
    assert call.snapshot is policy


# ---------------------------------------------------------------- quiet events


def test_events_nobody_asked_for_are_not_delivered_but_a_calls_own_sink_gets_them() -> None:
    heard: list[Event] = []
    own: list[Event] = []
    engine = Engine(
        snapshot(AB),
        rng=random.Random(1),
        on_event=heard.append,
        quiet=frozenset({AttemptStarted}),
    )
    silent = engine.begin(facts(), 0.0)
    loud = engine.begin(facts(), 0.0, sink=own.append)
    assert silent is not None
    assert loud is not None
    for call in (silent, loud):
        call.next_action(0.0)
        call.cancel(0.0)

    assert [type(e) for e in own] == [AttemptStarted, AttemptEnded, CallEnded]
    assert [type(e) for e in heard] == [AttemptEnded, CallEnded] * 2


def test_where_the_engines_listener_has_no_use_for_anything_a_calls_own_sink_gets_it_all() -> None:
    own: list[Event] = []
    engine = Engine(snapshot(AB), rng=random.Random(1))
    call = engine.begin(facts(stream=True), 0.0, sink=own.append)
    assert call is not None
    action = call.next_action(0.0)
    call.on_outcome(action.attempt, BROKEN, 0.0)  # type: ignore[union-attr, arg-type]
    attempt = call.next_action(0.0).attempt  # type: ignore[union-attr]
    assert attempt is not None
    call.on_first_token(attempt, 1.0)
    call.on_outcome(attempt, DONE, 2.0)

    assert [type(e) for e in own] == [
        AttemptStarted, AttemptEnded, AttemptStarted, FirstToken, AttemptEnded, CallEnded,
    ]  # fmt: skip


# ---------------------------------------------------------------- bounds


def test_a_finished_call_leaves_no_garbage_for_the_collector() -> None:
    bench = Bench(route({"a": 1, "b": 1}, retry=RetryPolicy(budget_per_success=1.0)))
    bench.prove("a", "b")
    bench.serve(0.0)
    gc.collect()
    gc.disable()
    try:
        for i in range(50):
            bench.serve(float(i))
        for i in range(2):
            hand = bench.begin(60.0 + i)
            hand.fail(60.0 + i)
            hand.end(hand.send(60.0 + i), DONE, 60.5 + i)
            hand.finish(60.5 + i)
            del hand
        bench.events.clear()
        assert gc.collect() == 0
    finally:
        gc.enable()


# ---------------------------------------------------------------- fork


def test_a_forked_child_starts_with_its_own_lock_dice_and_nothing_outstanding() -> None:
    bench = Bench(route({"a": 1}, admission=AdmissionPolicy(max_inflight=1)))
    bench.prove("a")
    running = bench.begin()
    attempt = running.send(0.0)
    waiting = bench.begin()
    waiting.wait(0.0, "queue")
    lock, rng = NonReentrant(), random.Random(9)

    bench.engine.after_fork(lock, rng)

    assert bench.engine.lock is lock
    assert bench.world.rng is rng
    assert bench.state("a").inflight == 0
    assert [(p.in_flight, p.queued) for p in bench.engine.pools(0.0)] == [(0, 0)]
    assert bench.begin(0.0).send(0.0).endpoint_id == "a"
    assert attempt.ended is False


def test_what_the_parent_had_outstanding_may_end_in_the_child_without_going_below_zero() -> None:
    bench = Bench(AB)
    hand = bench.begin(stream=True)
    attempt = hand.send(0.0)
    hand.call.on_first_token(attempt, 0.5)
    waiting = bench.begin()

    bench.engine.after_fork(NoLock(), random.Random(9))
    hand.end(attempt, DONE, 1.0)
    waiting.call.cancel(1.0)

    assert bench.state(attempt.endpoint_id).inflight == 0
    assert bench.world.pools["chat"].inflight == 0


def test_what_was_learned_survives_a_fork() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    bench.engine.after_fork(NoLock(), random.Random(9))

    assert bench.breaker("a").state.value == "open"


def test_an_outcome_the_endpoint_did_not_cause_keeps_it_in() -> None:
    bench = Bench(AB)
    bench.serve(0.0, Outcome(F.BAD_REQUEST), takes=0.0, pinned_to="a")

    assert bench.engine.explain(facts(), 0.0).candidates[0].eligible


# ---------------------------------------------------------------- freshness


def test_past_fresh_until_load_hints_no_longer_count() -> None:
    busy = replace(endpoint("a"), planned_load=0.9)
    quiet = replace(busy, planned_load=0.5)
    static = replace(snapshot(route({"a": 1}), [quiet]), fresh_until=1000.0)
    engine = Engine(replace(static, endpoints={"a": busy}, without_hints=static), rng=Even())

    engine.begin(facts(), 0.0, wall_now=1000.0)
    assert engine.snapshot.endpoints["a"].planned_load == 0.9

    call = engine.begin(facts(), 1.0, wall_now=1000.1)
    assert call is not None
    assert call.snapshot is engine.snapshot is static


def test_a_child_ends_what_a_new_policy_has_made_it_forget() -> None:
    bench = Bench(route({"a": 1}), rng=Even())
    hand = bench.begin(0.0)
    attempt = hand.send(0.0)
    bench.engine.after_fork(NoLock(), random.Random(9))
    bench.engine.swap(snapshot(route({"b": 1}), version=2), 0.5)
    hand.end(attempt, THROTTLED, 1.0)

    assert attempt.ended is True
    assert hand.next(1.0) is not None
