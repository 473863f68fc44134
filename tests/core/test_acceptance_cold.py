"""Two endpoints, one dead from the start: no error reaches the caller, few sends reach the dead."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headway.core.model import INFINITY, CallFacts, Outcome
from tests.core.build import REFUSED, THROTTLED, UNAVAILABLE, route, snapshot, throttled
from tests.core.fleet import Endpoint, Fleet, Reply, Result, Scripted, summary

PROCESSES = 20
CALLS = 200
DEAD_MAX = 5
"""Sends to the dead endpoint in its first minute."""


def works(now: float, rng: random.Random) -> Reply:
    del now
    return Reply(rng.uniform(0.5, 2.0))


def black_hole(now: float, rng: random.Random) -> Reply:
    del now, rng
    return Reply(INFINITY)


def works_slowly(now: float, rng: random.Random) -> Reply:
    del now
    return Reply(rng.uniform(4.0, 16.0))


def always(outcome: Outcome, after_s: float) -> Callable[[float, random.Random], Reply]:
    return lambda now, rng: Reply(after_s, outcome)


WAYS_TO_BE_DEAD = {
    "refused": always(REFUSED, 0.001),
    "black_hole": black_hole,
    "503": always(UNAVAILABLE, 0.05),
    "503_with_a_hint": always(UNAVAILABLE._replace(retry_after_s=3.0), 0.05),
    "429": always(THROTTLED, 0.05),
    "429_with_a_hint": always(throttled(3.0), 0.05),
}


def fleet_with(dead: str, seed: int) -> tuple[Fleet, Scripted]:
    down = Scripted(WAYS_TO_BE_DEAD[dead])
    policy = snapshot(route({"dead": 1, "good": 1}))
    made: dict[str, Endpoint] = {"dead": down, "good": Scripted(works)}
    fleet = Fleet.of(PROCESSES, policy, made, seed=seed, read_timeout_s=10.0)
    return fleet, down


def most_in_the_first_minute(dead: Scripted) -> int:
    per_process = [0] * PROCESSES
    for at, process in dead.sends:
        per_process[process] += at < 60.0
    return max(per_process)


@pytest.mark.parametrize("dead", sorted(WAYS_TO_BE_DEAD))
@pytest.mark.parametrize("seed", [1, 2])
def test_calls_one_after_another(dead: str, seed: int) -> None:
    fleet, down = fleet_with(dead, seed)
    left = [CALLS] * PROCESSES

    def next_call(result: Result) -> None:
        left[result.process] -= 1
        if left[result.process] > 0:
            fleet.call(result.process, CallFacts("m"), next_call)

    for process in range(PROCESSES):
        fleet.call(process, CallFacts("m"), next_call)
    fleet.run()

    print(dead, summary(fleet.results), "dead in minute one:", most_in_the_first_minute(down))
    assert len(fleet.results) == PROCESSES * CALLS
    assert all(r.ok for r in fleet.results), f"seed {seed}: {summary(fleet.results)}"
    assert most_in_the_first_minute(down) <= DEAD_MAX
    assert fleet.idle()


def at_once(fleet: Fleet, calls: int, at_once: int) -> None:
    """Every process makes `calls` calls, `at_once` of them at a time from the first instant."""
    left = [calls - at_once] * PROCESSES

    def next_call(result: Result) -> None:
        if left[result.process] > 0:
            left[result.process] -= 1
            fleet.call(result.process, CallFacts("m"), next_call)

    for process in range(PROCESSES):
        for _ in range(at_once):
            fleet.call(process, CallFacts("m"), next_call)
    fleet.run()


@pytest.mark.parametrize("dead", sorted(WAYS_TO_BE_DEAD))
@pytest.mark.parametrize("seed", [1, 2])
def test_sixty_four_calls_at_once(dead: str, seed: int) -> None:
    fleet, down = fleet_with(dead, seed)

    at_once(fleet, CALLS, 64)

    print(dead, summary(fleet.results), "dead in minute one:", most_in_the_first_minute(down))
    assert len(fleet.results) == PROCESSES * CALLS
    assert all(r.ok for r in fleet.results), f"seed {seed}: {summary(fleet.results)}"
    assert most_in_the_first_minute(down) <= DEAD_MAX
    assert fleet.idle()


@pytest.mark.parametrize("dead", ["refused", "black_hole", "429"])
def test_sixty_four_calls_at_once_beside_one_that_takes_ten_seconds(dead: str) -> None:
    """Nothing has shown life when the first ones get impatient: they must not go unproven."""
    fleet, down = fleet_with(dead, 1)
    fleet.endpoints["good"] = Scripted(works_slowly)
    fleet.read_timeout_s = 60.0

    at_once(fleet, 64, 64)

    assert all(r.ok for r in fleet.results), summary(fleet.results)
    assert most_in_the_first_minute(down) <= DEAD_MAX


@pytest.mark.parametrize("dead", ["refused", "black_hole"])
def test_two_hundred_calls_at_once_are_more_than_the_queue_but_no_reason_to_refuse(
    dead: str,
) -> None:
    fleet, down = fleet_with(dead, 1)

    at_once(fleet, 200, 200)

    assert all(r.ok for r in fleet.results), summary(fleet.results)
    assert most_in_the_first_minute(down) <= DEAD_MAX
    assert fleet.idle()
