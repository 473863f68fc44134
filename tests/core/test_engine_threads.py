"""Real threads on one engine: nothing is lost, nothing is counted twice, events stay in order."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headway.core.breaker import State
from headway.core.engine import Engine
from headway.core.model import (
    CANCELLED,
    Attempt,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    Event,
    Finish,
    FirstToken,
    Send,
    Wait,
)
from headway.core.snapshot import AdmissionPolicy, HedgePolicy, Snapshot
from tests.core.build import BROKEN, DONE, EXHAUSTED, THROTTLED, facts, route, snapshot, throttled

THREADS = 64
CALLS = 200
LOOPS = 4


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    """Hand the interpreter over every 20 us: races that take a day show within a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


def policy(version: int = 1) -> Snapshot:
    return snapshot(
        route(
            {"a": 2, "b": 1, "c": 1},
            admission=AdmissionPolicy(max_inflight=20, queue_timeout_s=0.05),
            hedge=HedgePolicy(enabled=True, delay_s=0.0),
        ),
        version=version,
    )


class Watched:
    """An engine with a real lock; every event is checked for order within its call."""

    def __init__(self, seed: int) -> None:
        self.started = time.monotonic()
        self.seen = 0
        self.engine = Engine(policy(), rng=random.Random(seed), lock=threading.Lock())

    def now(self) -> float:
        return time.monotonic() - self.started

    def check(self) -> None:
        """What must hold at any instant, looked at under the lock."""
        now = self.now()
        world = self.engine.world
        with self.engine.lock:
            for pool in world.pools.values():
                assert 0.0 <= pool.budget.balance(now) <= pool.budget.capacity(now)
                assert pool.inflight >= 0
                assert len(pool.queue) <= 1024
            for state in world.states.values():
                assert state.inflight >= 0
                assert all(b.state in State for b in state.breakers.values())


class OneCall:
    """The sink of one call: its events, in the order they came."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def started(self) -> int:
        return sum(isinstance(e, AttemptStarted) for e in self.events)

    def is_in_order(self) -> bool:
        """Each attempt starts, maybe shows a token, and ends; the call ends once, when decided."""
        at: dict[int, str] = {}
        ended = 0
        for event in self.events:
            if isinstance(event, AttemptStarted):
                if event.attempt.number in at:
                    return False
                at[event.attempt.number] = "started"
            elif isinstance(event, FirstToken):
                if at.get(event.attempt.number) != "started":
                    return False
                at[event.attempt.number] = "token"
            elif isinstance(event, AttemptEnded):
                if at.get(event.attempt.number) not in ("started", "token"):
                    return False
                at[event.attempt.number] = "ended"
            elif isinstance(event, CallEnded):
                ended += 1
        return ended == 1 and all(v == "ended" for v in at.values())


OUTCOMES = [DONE] * 12 + [BROKEN, THROTTLED, throttled(0.001), CANCELLED, EXHAUSTED]


def drive(watched: Watched, dice: random.Random, pause: float = 0.0) -> None:
    """One call as a driver makes it, with random outcomes."""
    sink, engine, now = OneCall(), watched.engine, watched.now
    stream = dice.random() < 0.5
    call = engine.begin(
        facts(stream=stream, priority=dice.choice([-1, 0, 1])), now(), sink=sink.events.append
    )
    assert call is not None
    ready = threading.Event()
    streaming = None
    while True:
        action = call.next_action(now())
        if isinstance(action, Send):
            attempt = action.attempt
            assert sink.started() == attempt.number, "an event came after the action it tells of"
            if pause:
                time.sleep(pause)
            if dice.random() < 0.3 and len(call.running) == 1:
                continue  # leave it running: a hedge may start
            outcome = dice.choice(OUTCOMES)
            if stream and outcome is DONE and call.on_first_token(attempt, now()):
                streaming = attempt
            else:
                call.on_outcome(attempt, outcome, now())
        elif isinstance(action, Wait):
            if action.reason in ("running", "hedge"):
                call.on_outcome(call.running[0], dice.choice(OUTCOMES), now())
                continue
            ready.clear()
            if not call.set_waker(ready.set):
                ready.wait(min(0.05, max(0.0, action.until - now())))
            if dice.random() < 0.05:
                call.cancel(now())
        else:
            assert isinstance(action, Finish)
            break
    for lost in list(call.running):
        if lost is not streaming:
            call.on_outcome(lost, CANCELLED, now())
    if streaming is not None:
        call.on_outcome(streaming, DONE, now())
    assert sink.is_in_order(), sink.events


def all_given_back(watched: Watched) -> bool:
    world = watched.engine.world
    return (
        all(s.inflight == 0 for s in world.states.values())
        and all(p.inflight == 0 and len(p.queue) == 0 for p in world.pools.values())
        and not watched.engine.parked
        and not watched.engine.outbox
        and not watched.engine.wakes
    )


def test_64_threads_of_200_calls_leave_everything_as_it_should_be() -> None:
    watched, failures = Watched(seed=1), list[BaseException]()

    def work(seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(CALLS):
                drive(watched, dice)
        except BaseException as exc:  # reported by the main thread
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    version = 1
    while any(t.is_alive() for t in threads):
        version += 1
        watched.engine.swap(policy(version), watched.now())
        watched.engine.status(watched.now())
        watched.engine.explain(facts(), watched.now())
        watched.check()
        time.sleep(0.005)
    for thread in threads:
        thread.join()

    assert not failures, failures[0]
    assert all_given_back(watched)
    assert version > 2


def test_four_event_loops_beside_each_other() -> None:
    watched, failures = Watched(seed=2), list[BaseException]()

    async def some(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(50):
            drive(watched, dice)
            await asyncio.sleep(0)

    def loop(seed: int) -> None:
        try:

            async def many() -> None:
                await asyncio.gather(*(some(seed * 100 + i) for i in range(8)))

            asyncio.run(many())
        except BaseException as exc:  # reported by the main thread
            failures.append(exc)

    threads = [threading.Thread(target=loop, args=(seed,)) for seed in range(LOOPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures, failures[0]
    assert all_given_back(watched)


def test_only_one_probe_at_a_time_from_any_number_of_threads() -> None:
    """A dead endpoint, cooled off: 64 threads ask at the same instant, one gets the probe."""
    engine = Engine(snapshot(route({"a": 1, "b": 1})), rng=random.Random(3), lock=threading.Lock())
    for name in "ab":
        call = engine.begin(facts(pinned_to=name), 0.0)
        assert call is not None
        call.on_outcome(_sent(call.next_action(0.0)), DONE, 0.0)
    for _ in range(3):
        call = engine.begin(facts(pinned_to="a", attempts_max=1), 1.0)
        assert call is not None
        call.on_outcome(_sent(call.next_action(1.0)), BROKEN, 1.0)
    later = engine.world.states["a"].breakers["m"].open_until
    gate, probes = threading.Barrier(THREADS), list[bool]()

    def work() -> None:
        call = engine.begin(facts(), later)
        assert call is not None
        gate.wait()
        attempt = _sent(call.next_action(later))
        probes.append(attempt.is_probe)
        if not attempt.is_probe:
            call.cancel(later)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(probes) == [False] * (THREADS - 1) + [True]


def _sent(action: object) -> Attempt:
    assert isinstance(action, Send)
    return action.attempt
