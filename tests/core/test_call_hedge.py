from __future__ import annotations

import pytest

from headway.core.model import (
    CANCELLED,
    AttemptEnded,
    AttemptKind,
    CallEnded,
    CallFacts,
    Event,
    Outcome,
    Send,
)
from headway.core.snapshot import (
    Capacity,
    DeadlinePolicy,
    Fallback,
    HedgePolicy,
    RetryPolicy,
    Route,
)
from tests.core.build import BROKEN, DONE, Bench, Even, Extra, F, Hand, endpoint, facts, route

HEDGED = HedgePolicy(enabled=True, delay_s=1.0)


def hedging(
    hedge: HedgePolicy = HEDGED, *, tokens: float = 3.0, r: Route | None = None, **known: object
) -> Bench:
    """Two proven endpoints and hedge tokens saved up."""
    bench = Bench(
        r or route({"a": 1, "b": 1}, hedge=hedge),
        rng=Even(0.0),
        **known,  # type: ignore[arg-type]
    )
    bench.prove("a", "b")
    bench.world.pools["chat"].hedges._tokens = tokens
    return bench


def hedge_tokens(bench: Bench) -> float:
    return bench.world.pools["chat"].hedges.balance


def both_running(bench: Bench, at: float = 0.0) -> Hand:
    hand = bench.begin(at)
    hand.send(at)
    hand.send(at + 1.0)
    return hand


def test_after_the_delay_a_second_attempt_runs_beside_the_first() -> None:
    bench = hedging()
    hand = bench.begin()
    first = hand.send(0.0)

    assert hand.wait(0.0, "hedge").until == 1.0
    assert hand.wait(0.99, "hedge").until == 1.0
    second = hand.send(1.0)

    assert second.kind is AttemptKind.HEDGE
    assert second.backoff_s == 0.0
    assert second.endpoint_id != first.endpoint_id
    assert hand.call.running == [first, second]
    assert hand.wait(1.0, "running")
    assert hedge_tokens(bench) == 2.0
    assert bench.balance(1.0) == pytest.approx(2.2)


def test_the_first_to_finish_wins_and_the_other_is_lost_and_teaches_nothing() -> None:
    bench = hedging()
    hand = both_running(bench)
    first, second = hand.call.running
    hand.end(second, DONE, 2.0)

    assert hand.finish(2.0).attempt is second
    assert first.lost
    assert hand.call.running == [first]
    loser = bench.state(first.endpoint_id)
    before = (loser.badness(2.0), loser.residual(2.0), loser.limit.limit, loser.call_time_s)
    hand.end(first, CANCELLED, 2.1)

    assert (loser.badness(2.0), loser.residual(2.0), loser.limit.limit, loser.call_time_s) == before
    assert [s.inflight for s in bench.world.states.values()] == [0, 0]
    assert bench.of(AttemptEnded)[-1].result == "lost"
    assert [e.winner for e in bench.of(CallEnded)][-1] is second


def test_the_first_token_decides_between_streams() -> None:
    bench = hedging()
    hand = bench.begin(stream=True)
    first = hand.send(0.0)
    second = hand.send(1.0)

    assert hand.call.on_first_token(first, 1.5)
    assert not hand.call.on_first_token(second, 1.6)
    assert second.lost
    assert hand.finish(1.6).attempt is first


def test_a_loser_that_finishes_after_all_changes_nothing() -> None:
    bench = hedging()
    hand = both_running(bench)
    first, second = hand.call.running
    hand.end(second, DONE, 2.0)
    balance = bench.balance(2.0)

    hand.end(first, DONE, 2.1)

    assert hand.finish(2.1).attempt is second
    assert bench.balance(2.1) == pytest.approx(balance)
    assert bench.of(AttemptEnded)[-1].result == "lost"


@pytest.mark.parametrize("outcome", [BROKEN, DONE, CANCELLED])
def test_a_loser_that_ends_while_the_winner_streams_changes_nothing(outcome: Outcome) -> None:
    bench = hedging()
    hand = bench.begin(stream=True)
    first = hand.send(0.0)
    second = hand.send(1.0)
    hand.call.on_first_token(first, 1.5)
    hand.end(second, outcome, 1.6)

    assert hand.finish(1.6).attempt is first
    assert bench.of(CallEnded)[-1].call_id != hand.call.id  # it still streams
    hand.end(first, DONE, 9.0)
    assert bench.of(CallEnded)[-1].winner is first


def test_a_failed_first_attempt_leaves_the_hedge_to_bring_the_answer() -> None:
    bench = hedging()
    hand = both_running(bench)
    first, second = hand.call.running
    hand.end(first, BROKEN, 2.0)

    assert hand.wait(2.0, "running")  # and no further hedge goes where the first has just failed
    hand.end(second, DONE, 3.0)
    assert hand.finish(3.0).attempt is second


def test_a_further_hedge_goes_to_a_fallback_only_where_it_is_for_the_failure_seen() -> None:
    def third(on: str) -> list[str]:
        fallback = Fallback(endpoint="f", on=frozenset({on}))
        bench = hedging(r=route({"a": 1, "b": 1}, hedge=HEDGED, fallback=[fallback]))
        hand = both_running(bench)
        first, second = hand.call.running
        hand.end(first, BROKEN, 2.0)
        hand.next(2.0)  # the second has run for a second alone
        return [a.endpoint_id for a in hand.call.running if a is not second]

    assert third("server_error") == ["f"]
    assert third("rate_limited") == []


def test_a_hedged_call_lets_go_of_its_listener_when_the_last_of_its_attempts_has_ended() -> None:
    bench, own = hedging(), list[Event]()
    call = bench.engine.begin(facts(), 0.0, sink=own.append)
    assert call is not None
    hand = Hand(call, 0.0)
    first, second = hand.send(0.0), hand.send(1.0)
    hand.end(second, DONE, 2.0)
    assert call._sink is not None
    hand.end(first, CANCELLED, 2.1)

    assert call._sink is None
    assert [type(e) for e in own[-3:]] == [AttemptEnded, CallEnded, AttemptEnded]


def test_when_both_fail_the_call_goes_on_as_after_any_failure() -> None:
    bench = hedging()
    hand = both_running(bench)
    first, second = hand.call.running
    hand.end(first, BROKEN, 2.0)
    hand.end(second, BROKEN, 2.0)

    action = hand.next(2.0)
    assert isinstance(action, Send) or action.__class__.__name__ == "Wait"
    assert hand.call.attempts <= 3


def test_when_the_hedge_is_cancelled_and_the_first_failed_the_hedges_end_surfaces() -> None:
    bench = hedging()
    hand = both_running(bench)
    first, second = hand.call.running
    hand.end(first, BROKEN, 2.0)
    hand.end(second, CANCELLED, 2.0)

    assert hand.finish(2.0).attempt is second


@pytest.mark.parametrize(
    "what",
    [
        facts(hedge=False),
        facts(repeatable=False),
        facts(pinned_to="a"),
        facts(delegated=True),
        facts(attempts_max=1),
        facts(allowance=Extra(0)),
    ],
)
def test_calls_that_must_not_be_doubled_are_not(what: CallFacts) -> None:
    hand = hedging().begin(0.0, what)
    hand.send(0.0)

    assert hand.wait(5.0, "running")


def test_a_call_may_ask_for_a_hedge_where_the_route_does_not() -> None:
    bench = hedging(HedgePolicy(enabled=False, delay_s=1.0))
    plain, asking = bench.begin(), bench.begin(hedge=True)
    plain.send(0.0)
    asking.send(0.0)

    assert plain.wait(5.0, "running")
    assert asking.send(5.0).kind is AttemptKind.HEDGE


def test_no_hedge_without_tokens_in_both_budgets() -> None:
    no_hedge_tokens, no_retry_tokens = hedging(tokens=0.9), hedging()
    budget = no_retry_tokens.world.pools["chat"].budget
    while budget.withdraw(0.0):
        pass
    for bench in (no_hedge_tokens, no_retry_tokens):
        hand = bench.begin()
        hand.send(0.0)
        assert hand.wait(5.0, "running")

    assert hedge_tokens(no_retry_tokens) == 3.0  # checked both, took neither
    assert no_hedge_tokens.balance(0.0) == pytest.approx(3.2)


def test_only_calls_that_could_be_hedged_pay_in() -> None:
    bench = hedging(tokens=0.0)
    bench.serve(0.0, takes=0.1)
    bench.serve(0.0, takes=0.1, hedge=False)
    assert hedge_tokens(bench) == pytest.approx(0.05)
    retried = bench.begin()
    retried.fail(0.0)
    retried.send(0.0)

    assert hedge_tokens(bench) == pytest.approx(0.1)  # once per call


def test_no_hedge_within_one_failure_domain() -> None:
    bench = hedging(
        endpoints=[endpoint("a", domain="east"), endpoint("b", domain="east")],
    )
    hand = bench.begin()
    hand.send(0.0)

    assert hand.wait(5.0, "running")
    assert hedge_tokens(bench) == 3.0


def test_a_hedge_is_no_probe() -> None:
    bench = hedging()
    bench.kill("b")
    cooled = bench.breaker("b").open_until
    hand = bench.begin(cooled, pinned_to=None)
    first = hand.send(cooled)
    if first.endpoint_id == "b":  # the call itself was the probe: its hedge may go to a
        assert first.is_probe
        return
    assert hand.wait(cooled + 5.0, "running")


def test_a_hedge_never_joins_a_queue() -> None:
    r = route({"a": 1, "b": 1}, hedge=HEDGED)
    bench = hedging(r=r, endpoints=[endpoint("b", capacity=Capacity(concurrency=1))])
    bench.begin(0.0, pinned_to="b").send(0.0)
    hand = bench.begin()
    assert hand.send(0.0).endpoint_id == "a"

    assert hand.wait(5.0, "running")
    assert len(bench.world.pools["chat"].queue) == 0


def test_without_a_stated_delay_it_is_learned_from_own_first_tokens() -> None:
    bench = hedging(HedgePolicy(enabled=True))
    pool = bench.world.pools["chat"]
    hand = bench.begin()
    hand.send(0.0)
    assert hand.wait(9.0, "running")

    for _ in range(50):
        pool.observe_ttft(2.0, 0)

    assert hand.wait(0.0, "hedge").until == pytest.approx(2.4)
    assert hand.send(2.5).kind is AttemptKind.HEDGE


def test_the_wait_for_a_hedge_ends_at_the_first_token_limit() -> None:
    r = route({"a": 1, "b": 1}, hedge=HEDGED, deadline=DeadlinePolicy(ttft_s=0.5))
    hand = hedging(r=r).begin(stream=True)
    hand.send(0.0)

    assert hand.wait(0.0, "hedge").until == 0.5


def test_hedges_stay_within_their_fraction_of_calls() -> None:
    bench = hedging(
        tokens=0.0,
        r=route({"a": 1, "b": 1}, hedge=HEDGED, retry=RetryPolicy(budget_per_success=1.0)),
    )
    hedged = 0
    for i in range(1000):
        at = i * 10.0
        hand = bench.begin(at)
        attempt = hand.send(at)
        second = hand.next(at + 1.0)
        if isinstance(second, Send):
            hedged += 1
            hand.end(second.attempt, DONE, at + 2.0)
            hand.end(attempt, CANCELLED, at + 2.0)
        else:
            hand.end(attempt, DONE, at + 2.0)

    assert 45 <= hedged <= 50


def test_a_cancelled_call_ends_both() -> None:
    bench = hedging()
    hand = both_running(bench)
    hand.call.cancel(2.0)

    assert [s.inflight for s in bench.world.states.values()] == [0, 0]
    assert hand.call.running == []
    assert [e.result for e in bench.of(AttemptEnded)[-2:]] == ["cancelled", "cancelled"]
    assert bench.of(CallEnded)[-1].winner is None


def test_a_timeout_of_both_surfaces_a_timeout() -> None:
    bench = hedging(r=route({"a": 1, "b": 1}, hedge=HEDGED, retry=RetryPolicy(attempts_max=2)))
    hand = both_running(bench)
    first, second = hand.call.running
    late = Outcome(F.TIMEOUT_BEFORE_FIRST_TOKEN)
    hand.end(first, late, 9.0)
    hand.end(second, late, 10.0)

    assert hand.finish(10.0).attempt is second
    assert [e.result for e in bench.of(AttemptEnded)[-2:]] == ["timeout", "timeout"]
