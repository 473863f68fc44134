"""Clock steps, expired policies, a million calls: no exception, no growth, every bound kept."""

from __future__ import annotations

import gc
import random
import sys

import pytest

from headway.core.engine import Engine
from headway.core.model import CallFacts, Finish, Send
from headway.core.world import World
from tests.core.build import BROKEN, DONE, THROTTLED, Bench, Even, facts, route, snapshot, throttled

SEED = 20261130

# ---------------------------------------------------------------- 19: clocks and policies


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_check_19_a_step_of_the_wall_clock_matters_to_nothing_but_expiry(step_s: float) -> None:
    """Instants in the core are monotonic; the wall clock is read for a policy's expiry alone."""
    policy = snapshot(route({"a": 1, "b": 1}), expires_at=10_000.0, on_expiry="fail")
    steady, stepped = Engine(policy, rng=random.Random(1)), Engine(policy, rng=random.Random(1))
    chosen: list[list[str]] = [[], []]
    for i in range(200):
        for which, engine in enumerate((steady, stepped)):
            wall = 5_000.0 + (step_s if which and i > 100 else 0.0)
            call = engine.begin(facts(), float(i), wall_now=wall)
            assert call is not None
            action = call.next_action(float(i))
            assert isinstance(action, Send)
            chosen[which].append(action.attempt.endpoint_id)
            call.on_outcome(action.attempt, BROKEN if i % 7 == 0 else DONE, float(i))
            call.cancel(float(i))

    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_check_19_even_a_step_of_the_monotonic_clock_breaks_no_bound(step_s: float) -> None:
    """It never steps, by its name; on a suspended machine or in a moved container it has."""
    bench = Bench(route({"a": 1, "b": 1}), seed=SEED)
    rng, now = random.Random(SEED), 10_000.0
    for i in range(2000):
        now += rng.uniform(0.0, 2.0) + (step_s if i in (700, 1400) else 0.0)
        outcome = rng.choice([DONE, DONE, DONE, BROKEN, THROTTLED, throttled(3.0)])
        hand = bench.begin(now)
        action = hand.next(now)
        if isinstance(action, Send):
            hand.end(action.attempt, outcome, now + rng.uniform(0.0, 5.0))
        hand.call.cancel(now)
        pool = bench.world.pools["chat"]
        assert 0.0 <= pool.budget.balance(now) <= pool.budget.capacity(now)
        assert all(s.inflight == 0 for s in bench.world.states.values())
        assert all(0.0 <= s.badness(now) <= 3.0 for s in bench.world.states.values())
        for status in bench.engine.status(now):
            assert all(b.opens_in_s >= 0.0 for b in status.breakers)

    if step_s > 0:  # after a step back, a cool-down may last as long as the step was
        assert isinstance(bench.begin(now + 500.0).next(now + 500.0), Send)


def test_check_19_an_expired_policy_degrades_or_refuses_as_it_says() -> None:
    for on_expiry, refused in (("degrade", False), ("fail", True)):
        engine = Engine(
            snapshot(route({"a": 1}), expires_at=100.0, on_expiry=on_expiry), rng=Even()
        )
        call = engine.begin(facts(), 0.0, wall_now=101.0)
        assert call is not None
        action = call.next_action(0.0)
        assert isinstance(action, Finish) == refused


# ---------------------------------------------------------------- 20: no growth


def sizes(world: World) -> dict[str, int]:
    """The length of every map and list the core keeps."""
    return {
        "states": len(world.states),
        "pools": len(world.pools),
        "blocks": len(world.blocks),
        "affinity": len(world.affinity),
        "breakers": sum(len(s.breakers) for s in world.states.values()),
        "outs": sum(len(s.outs) for s in world.states.values()),
        "turns": sum(len(p.turn) for p in world.pools.values()),
        "queues": sum(len(p.queue) for p in world.pools.values()),
        "ttfts": sum(len(h) for p in world.pools.values() for h in p._ttft.values()),
    }


def many_calls(engine: Engine, calls: int, rng: random.Random, start: float) -> float:
    """Calls of all kinds, one after another; sessions, prefixes and models never repeat."""
    now = start
    for i in range(calls):
        now += 0.05
        unique = start + i
        stream = i % 2 == 0
        call = engine.begin(
            CallFacts(
                "m" if i % 5 else f"model-{unique}",
                stream=stream,
                session=f"s{unique}",
                prefix=(hash((unique, 1)), hash((unique, 2))),
                prompt_tokens=600,
                task_id=f"t{i % 1000}",
            ),
            now,
        )
        assert call is not None
        action = call.next_action(now)
        if isinstance(action, Send):
            dice = rng.random()
            if dice < 0.02:
                call.cancel(now)
            elif dice < 0.05:
                call.on_outcome(action.attempt, BROKEN, now + 0.01)
            else:
                if stream:
                    call.on_first_token(action.attempt, now + 0.01)
                call.on_outcome(action.attempt, DONE, now + 0.04)
        call.cancel(now + 0.04)
    return now


def check_growth(warm: int, calls: int) -> None:
    """Memory blocks and the size of every map, before and after; `warm` calls fill the maps."""
    engine = Engine(snapshot(route({"a": 1, "b": 2})), rng=random.Random(SEED))
    rng = random.Random(SEED)
    now = many_calls(engine, warm, rng, 0.0)
    before, blocks = sizes(engine.world), allocated()
    many_calls(engine, calls, rng, now)
    after, grown = sizes(engine.world), allocated() - blocks

    print(f"{calls} calls after {warm}: {grown:+d} of {blocks} memory blocks; {before} -> {after}")
    assert all(after[name] <= before[name] + 2 for name in before), (before, after)
    assert grown <= 1000


def allocated() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.slow
def test_check_20_two_hundred_thousand_calls_leave_no_trace() -> None:
    check_growth(warm=80_000, calls=120_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_check_20_a_million_calls_leave_no_trace() -> None:
    check_growth(warm=80_000, calls=1_000_000)
