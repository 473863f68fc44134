"""What servers say about when to come back: rate limits, exhausted quotas, hints, deadlines."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest

from headway.core.model import (
    INFINITY,
    AttemptStarted,
    BreakerChanged,
    CallFacts,
    CredentialBlocked,
    EndpointThrottled,
    Event,
    FailureClass,
    Outcome,
)
from headway.core.snapshot import DeadlinePolicy, Fallback, RetryPolicy
from tests.core.build import BROKEN, EXHAUSTED, LATE, endpoint, route, snapshot, throttled
from tests.core.fleet import Endpoint, Fleet, Reply, Scripted, summary

SEED = 20261130
PROCESSES = 200
FEWER = 60
"""In the quick suite, where each process is a sample of the same: they share no state."""
SIZES = [FEWER, pytest.param(PROCESSES, marks=pytest.mark.slow)]


def a_call(now: float, rng: random.Random) -> CallFacts:
    del now, rng
    return CallFacts("m")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# ---------------------------------------------------------------- 8: 429 with Retry-After


@pytest.mark.parametrize("processes", SIZES)
def test_check_8_a_rate_limit_with_a_hint_is_honoured_and_the_fleet_spread(processes: int) -> None:
    """30 % of answers are 429 with Retry-After: 5, at 1 call/s per process, beside another."""
    told_at: dict[int, float] = {}
    waits: list[float] = []
    hard_trips: list[BreakerChanged] = []

    def watch(process: int, event: Event) -> None:
        if isinstance(event, BreakerChanged) and event.new == "open":
            breaker = fleet.engines[process].world.states[event.endpoint_id].breakers["m"]
            hard_trips.extend([event] if breaker.is_hard else [])
        elif isinstance(event, EndpointThrottled):
            told_at[process] = event.at
        elif isinstance(event, AttemptStarted) and process in told_at:
            is_back = event.attempt.endpoint_id == "limited"
            waits.extend([event.at - told_at.pop(process)] if is_back else [])

    def limited(now: float, rng: random.Random) -> Reply:
        if rng.random() < 0.3:
            return Reply(0.05, throttled(5.0))
        return Reply(rng.expovariate(1 / 2.0))

    made: dict[str, Endpoint] = {
        "limited": Scripted(limited),
        "other": Scripted(lambda now, rng: Reply(rng.expovariate(1 / 2.0))),
    }
    fleet = Fleet.of(
        processes, snapshot(route({"limited": 1, "other": 1})), made, seed=SEED, on_event=watch
    )
    fleet.load(1.0, 0.0, 90.0, a_call)
    fleet.run()

    spread = percentile(waits, 0.95) - percentile(waits, 0.05)
    print(
        f"429 with a hint: {len(waits)} returns, earliest after {min(waits):.3f} s, spread "
        f"{spread:.2f} s, {len(hard_trips)} hard trips; {summary(fleet.results)}"
    )
    assert len(waits) > 5 * processes
    assert min(waits) >= 5.0
    assert spread >= 0.9
    assert hard_trips == []


def test_check_8_a_fleet_told_the_same_at_the_same_time_comes_back_over_a_second() -> None:
    """Demand is always there: what spreads them is the jitter alone."""
    made: dict[str, Endpoint] = {
        "e": Scripted(lambda now, rng: Reply(0.01, throttled(5.0) if now < 1.0 else BROKEN))
    }
    fleet = Fleet.of(PROCESSES, snapshot(route({"e": 1})), made, seed=SEED)
    for process in range(PROCESSES):
        fleet.call(process, CallFacts("m"))
    fleet.run(20.0)

    e = made["e"]
    assert isinstance(e, Scripted)
    second: dict[int, float] = {}
    for at, process in e.sends:
        if at > 1.0:
            second.setdefault(process, at - 0.01)
    waits = list(second.values())
    spread = percentile(waits, 0.95) - percentile(waits, 0.05)
    print(f"first sends after one 429 for all: {min(waits):.3f} s at least, spread {spread:.2f} s")
    assert len(waits) == PROCESSES
    assert min(waits) >= 5.0
    assert spread >= 0.9


# ---------------------------------------------------------------- 9: quota exhausted


@pytest.mark.parametrize("processes", SIZES)
def test_check_9_an_exhausted_account_is_asked_once_per_five_minutes(processes: int) -> None:
    """Counted from the first answer that says so; 0.2 calls/s per process, beside another account."""
    told_at: dict[int, float] = {}
    asked: dict[int, list[float]] = defaultdict(list)

    def watch(process: int, event: Event) -> None:
        if isinstance(event, CredentialBlocked):
            told_at.setdefault(process, event.at)
        elif isinstance(event, AttemptStarted):
            is_late = event.at >= told_at.get(process, INFINITY)
            if is_late and event.attempt.endpoint_id == "spent":
                asked[process].append(event.at)

    made: dict[str, Endpoint] = {
        "spent": Scripted(lambda now, rng: Reply(0.2, EXHAUSTED)),
        "other": Scripted(lambda now, rng: Reply(rng.expovariate(1 / 2.0))),
    }
    policy = snapshot(
        route({"spent": 1, "other": 1}),
        [endpoint("spent", credential="k1"), endpoint("other", credential="k2")],
    )
    fleet = Fleet.of(processes, policy, made, seed=SEED, on_event=watch)
    fleet.load(0.2, 0.0, 800.0, a_call)
    fleet.run()

    gaps = [
        later - earlier
        for process, times in asked.items()
        for earlier, later in pairwise([told_at[process], *times])
    ]
    print(
        f"quota: {len(gaps)} gaps of {min(gaps):.1f} to {max(gaps):.1f} s; {summary(fleet.results)}"
    )
    assert len(gaps) >= 2 * processes
    assert min(gaps) >= 300.0
    assert all(r.ok for r in fleet.results)


# ---------------------------------------------------------------- 16: deadlines


def random_cases(cases: int, seed: int) -> None:
    """Random deadlines, hints, latencies and fleets of two; every bound checked in each."""
    rng = random.Random(seed)
    overrun = 0.0
    waits = sends = 0
    kinds = [k for k in FailureClass if k not in (FailureClass.OK, FailureClass.CANCELLED)]
    for case in range(cases):
        hint = rng.choice([None, rng.uniform(0, 5), rng.uniform(0, 200), -1.0, float("nan")])
        kind = rng.choice(kinds)
        failing = rng.random()

        def answer(
            now: float,
            r: random.Random,
            hint: float | None = hint,
            kind: FailureClass = kind,
            failing: float = failing,
        ) -> Reply:
            takes = r.choice([0.0, r.uniform(0, 1), r.uniform(0, 30), INFINITY])
            if r.random() < failing:
                return Reply(takes, Outcome(kind, retry_after_s=hint))
            return Reply(takes)

        names = ["a", "b"] if rng.random() < 0.7 else ["a"]
        policy = snapshot(
            route(
                dict.fromkeys(names, 1.0),
                fallback=[Fallback(endpoint="c")] if rng.random() < 0.3 else [],
                deadline=DeadlinePolicy(
                    total_s=rng.choice([INFINITY, rng.uniform(0, 40)]),
                    ttft_s=rng.choice([INFINITY, rng.uniform(0, 10)]),
                ),
                retry=RetryPolicy(attempts_max=rng.choice([None, 1, 5])),
            )
        )
        made: dict[str, Endpoint] = {e: Scripted(answer) for e in policy.endpoints}
        fleet = Fleet.of(1, policy, made, seed=seed + case)
        deadline_at = rng.choice([INFINITY, 0.0, rng.uniform(0, 0.01), rng.uniform(0, 60)])
        total = min(deadline_at, policy.routes[0].deadline.total_s)
        for _ in range(rng.choice([1, 1, 8])):
            fleet.call(0, CallFacts("m", deadline_at=deadline_at, stream=rng.random() < 0.5))
        fleet.run()
        assert fleet.idle(), f"seed {seed}, case {case}"
        waits += fleet.waits_past_deadline
        sends += fleet.sends_past_deadline
        for result in fleet.results:
            overrun = max(overrun, result.ended_at - max(total, 0.0))
    print(f"{cases} cases: {waits} waits and {sends} sends past, overrun {overrun:.4f} s")
    assert waits == 0
    assert sends == 0
    assert overrun <= 0.050


def test_check_16_nothing_waits_or_starts_past_its_deadline() -> None:
    random_cases(2_000, seed=SEED)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_check_16_in_a_hundred_thousand_cases() -> None:
    random_cases(100_000, seed=7)


def test_a_first_token_limit_moves_the_call_on() -> None:
    """LATE is what the driver reports when nothing came by `first_token_by`."""
    made: dict[str, Endpoint] = {
        "a": Scripted(lambda now, rng: Reply(INFINITY)),
        "b": Scripted(lambda now, rng: Reply(INFINITY)),
    }
    policy = snapshot(route({"a": 1, "b": 1}, deadline=DeadlinePolicy(ttft_s=2.0, total_s=60.0)))
    fleet = Fleet.of(1, policy, made, seed=1)
    fleet.call(0, CallFacts("m", stream=True))
    fleet.run()

    (result,) = fleet.results
    assert result.reason == LATE.kind.value
    assert result.attempts == 3
    assert 6.0 <= result.ended_at <= 6.0 + 8.0
