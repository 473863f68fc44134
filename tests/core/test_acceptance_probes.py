"""Half-open, cancel storms and the recovery of a whole fleet."""

from __future__ import annotations

import random

import pytest

from headway.core.model import BreakerChanged, CallFacts, Event
from headway.core.snapshot import DeadlinePolicy, HedgePolicy
from headway.core.state import EndpointState, Pool
from tests.core.build import BROKEN, DONE, Bench, Even, Hand, route, snapshot
from tests.core.fleet import Endpoint, Fleet, Reply, Scripted, summary

SEED = 20261130

# ---------------------------------------------------------------- 12: half-open


def opened(**known: object) -> Bench:
    """Endpoint a beside b; a has 64 long calls out and trips at 1 s, to cool off at 11 s."""
    bench = Bench(route({"a": 1, "b": 1}, **known), rng=Even())  # type: ignore[arg-type]
    bench.prove("a", "b")
    return bench


def test_check_12_sixty_four_late_successes_settle_nothing() -> None:
    bench = opened()
    stale = [bench.begin(0.0, pinned_to="a") for _ in range(64)]
    attempts = [hand.send(0.0) for hand in stale]
    bench.kill("a", now=1.0)

    for hand, attempt in list(zip(stale, attempts, strict=True))[:32]:
        hand.end(attempt, DONE, 5.0)
    assert bench.breaker("a").state.value == "open"
    probing = [bench.begin(11.0) for _ in range(20)]
    sent = [hand.send(11.0) for hand in probing]
    assert [a.endpoint_id for a in sent].count("a") == 1
    for hand, attempt in list(zip(stale, attempts, strict=True))[32:]:
        hand.end(attempt, DONE, 11.5)

    assert bench.breaker("a").state.value == "half_open"
    assert bench.begin(11.6).send(11.6).endpoint_id == "b"


@pytest.mark.parametrize(("ttft_s", "lease_s"), [(float("inf"), 30.0), (4.0, 4.0)])
def test_check_12_a_probe_that_hangs_is_replaced_at_its_lease(
    ttft_s: float, lease_s: float
) -> None:
    bench = opened(deadline=DeadlinePolicy(ttft_s=ttft_s))
    bench.kill("a", now=1.0)
    assert bench.begin(11.0).send(11.0).is_probe

    at, replaced_at = 11.0, None
    while replaced_at is None and at < 60.0:
        at += 0.1
        if bench.begin(at).send(at).is_probe:
            replaced_at = at

    assert replaced_at is not None
    assert lease_s <= replaced_at - 11.0 <= lease_s + 0.1 + 1e-9


def test_check_12_a_cancelled_probe_neither_closes_nor_reopens() -> None:
    bench = opened()
    bench.kill("a", now=1.0)
    breaker = bench.breaker("a")
    probing = bench.begin(11.0)
    probing.send(11.0)
    k, until = breaker.trips(11.0), breaker.open_until
    probing.call.cancel(12.0)

    assert breaker.state.value == "open"
    assert (breaker.trips(12.0), breaker.open_until) == (k, until)
    assert bench.begin(12.0).send(12.0).is_probe


# ---------------------------------------------------------------- 13: cancel storm


def learned(state: EndpointState, pool: Pool) -> tuple[object, ...]:
    """Everything breaker, budget, penalty and limit know, bit for bit."""
    breaker = state.breakers["m"]
    return (
        [
            getattr(breaker, slot)
            for slot in type(breaker).__slots__
            if slot not in ("_rng", "_seen", "_bad")
        ],
        list(breaker._seen),
        list(breaker._bad),
        [getattr(pool.budget, s) for s in ("_tokens", "_at", "_peak", "_peak_at")],
        [getattr(state, s) for s in ("_badness", "_badness_at", "_residual", "_residual_at")],
        [getattr(state.limit, s) for s in ("limit", "_ceiling", "_decreased_at")],
        [state.call_time_s, state.last_success_at, state.throttles_in_row, dict(state.outs)],
        [state.rpm.wait_s(1e6), state.inflight, pool.inflight, len(pool.queue)],
    )


def cancel_at(hand: Hand, at: float, when: int) -> None:
    """Cancel before the first send, right after it, or after a while."""
    if when:
        hand.send(at)
        hand.next(at + 0.1)
    hand.call.cancel(at + 0.2 * when)


def test_check_13_a_thousand_cancels_change_nothing() -> None:
    bench = opened()
    bench.serve(0.0, BROKEN, takes=0.5, pinned_to="a", attempts_max=1)
    pool = bench.world.pools["chat"]
    before = {name: learned(bench.state(name), pool) for name in "ab"}

    for i in range(1000):
        cancel_at(bench.begin(1.0 + i), 1.0 + i, i % 3)

    assert {name: learned(bench.state(name), pool) for name in "ab"} == before


def test_check_13_a_thousand_lost_hedges_change_nothing() -> None:
    """Each loser's end is looked at alone: the winner's success is news, the loss is not."""
    hedge = HedgePolicy(enabled=True, delay_s=1.0)
    bench = opened(hedge=hedge)
    pool = bench.world.pools["chat"]
    hedged = 0
    for i in range(1000):
        at = 10.0 * i
        pool.hedges._tokens, pool.budget._tokens, pool.budget._at = 3.0, 3.0, at
        hand = bench.begin(at)
        first = hand.send(at)
        second = hand.send(at + 1.0)
        winner, loser = (first, second) if i % 2 else (second, first)
        hand.end(winner, DONE, at + 2.0)
        state = bench.state(loser.endpoint_id)
        before = learned(state, pool)
        state.inflight -= 1
        expected = learned(state, pool)
        state.inflight += 1
        assert before != expected
        hand.end(loser, DONE if i % 3 else BROKEN, at + 2.1)  # too late, whatever it brought
        assert learned(state, pool) == expected
        hedged += 1

    assert hedged == 1000
    assert all(s.inflight == 0 for s in bench.world.states.values())


def test_check_13_cancelled_probes_leak_no_lease() -> None:
    bench = opened()
    bench.kill("a", now=1.0)
    at = bench.breaker("a").open_until
    before = learned(bench.state("a"), bench.world.pools["chat"])
    for _ in range(1000):
        probing = bench.begin(at)
        assert probing.send(at).is_probe
        probing.call.cancel(at + 0.1)

    after = learned(bench.state("a"), bench.world.pools["chat"])
    assert after[1:] == before[1:]
    assert bench.breaker("a").state.value == "open"
    assert bench.begin(at).send(at).is_probe


# ---------------------------------------------------------------- 11: a fleet comes back


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("processes", [200, 1000])
def test_check_11_a_fleet_does_not_come_back_as_a_herd(processes: int) -> None:
    """One of two is down for 200 s; every process has found out; it comes back at t."""
    back_at = 300.0
    closed_at: list[float] = []

    def watch(process: int, event: Event) -> None:
        if isinstance(event, BreakerChanged) and event.new == "closed" and event.at >= back_at:
            closed_at.append(event.at)

    def answer(now: float, rng: random.Random) -> Reply:
        if 100.0 <= now < back_at:
            return Reply(0.2, BROKEN)
        return Reply(rng.expovariate(1 / 2.0))

    back = Scripted(answer)
    made: dict[str, Endpoint] = {
        "back": back,
        "b": Scripted(lambda now, rng: Reply(rng.expovariate(1 / 2.0))),
    }
    fleet = Fleet.of(
        processes, snapshot(route({"back": 1, "b": 1})), made, seed=SEED, on_event=watch
    )
    fleet.load(0.3, 0.0, 750.0, lambda now, rng: CallFacts("m"))
    fleet.run()

    probes = [at for at, _ in back.sends if back_at - 60.0 <= at < back_at]  # all are probes then
    busiest = max(sum(t <= p < t + 1.0 for p in probes) for t in range(240, 300))
    median = sorted(closed_at)[len(closed_at) // 2]

    def rate(start: float, end: float) -> float:
        return sum(start <= at < end for at, _ in back.sends) / (end - start)

    final = rate(620.0, 750.0)
    peak = max(rate(t, t + 20.0) for t in range(300, 620, 5))
    by_then = rate(median + 60.0, median + 120.0)
    spread = sorted(closed_at)
    print(
        f"{processes} processes: at most {busiest / processes:.2%} probe within a second; peak "
        f"{peak / final:.3f} x the final rate; {by_then / final:.3f} of it 60 to 120 s after the "
        f"median close at {median - back_at:.0f} s (p95 {spread[int(0.95 * len(spread))] - back_at:.0f} s);"
        f" {summary(fleet.results)}"
    )
    assert busiest <= 0.05 * processes
    assert peak <= 1.2 * final
    assert by_then >= 0.85 * final  # the last tenth is still out by then
