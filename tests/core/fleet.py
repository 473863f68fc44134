"""A fleet in virtual time: many processes, each with its own engine, before shared endpoints.

An event heap, no threads, no clock, one seed per process. An endpoint is a function of the time
that says how long a send takes and how it ends; `Slots` adds a server with a queue. The driver does
what the real ones do: performs the actions, gives up at `first_token_by`, cancels what is lost.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from headway.core.call import Call
from headway.core.engine import Engine
from headway.core.model import (
    CANCELLED,
    INFINITY,
    Attempt,
    CallFacts,
    Event,
    FailureClass,
    Finish,
    Outcome,
    Send,
    Wait,
)
from headway.core.snapshot import Snapshot

OK = Outcome(FailureClass.OK, status=200)
LATE = Outcome(FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN, error_type="ReadTimeout")


class Reply(NamedTuple):
    """How a send ends: after `takes_s`, with its first token after `first_s` if it streams."""

    takes_s: float
    outcome: Outcome = OK
    first_s: float | None = None


class Caller(Protocol):
    """Who waits for a reply."""

    def first(self) -> None:
        """The first token is there."""
        ...

    def end(self, outcome: Outcome) -> None:
        """The send is over."""
        ...


class Endpoint(Protocol):
    """What processes send to."""

    def send(self, sim: Sim, process: int, caller: Caller) -> Callable[[], None]:
        """Begin. Returns what to call when the client goes away."""
        ...


def lognormal(mean_s: float, rng: random.Random, sigma: float = 0.5) -> float:
    return mean_s * math.exp(sigma * rng.gauss(0.0, 1.0) - sigma * sigma / 2.0)


class Sim:
    """The event heap."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, act))

    def run(self, until: float = INFINITY) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act = heapq.heappop(heap)
            act()
        if until != INFINITY:
            self.now = until


@dataclass
class Scripted:
    """An endpoint without a queue: `answer(now, rng)` says what happens to a send."""

    answer: Callable[[float, random.Random], Reply]
    sends: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(when, which process)."""

    def send(self, sim: Sim, process: int, caller: Caller) -> Callable[[], None]:
        self.sends.append((sim.now, process))
        reply = self.answer(sim.now, sim.rng)
        if reply.first_s is not None:
            sim.at(sim.now + reply.first_s, caller.first)
        if reply.takes_s != INFINITY:
            sim.at(sim.now + reply.takes_s, lambda: caller.end(reply.outcome))
        return _nothing


class _Job(NamedTuple):
    came: float
    gone: list[bool]
    caller: Caller


@dataclass
class Slots:
    """A server that works on `slots` sends at once, first come first served."""

    slots: int
    service_s: Callable[[float, random.Random], float]
    drops_abandoned: bool = False
    busy: int = 0
    line: deque[_Job] = field(default_factory=deque[_Job])
    sends: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def send(self, sim: Sim, process: int, caller: Caller) -> Callable[[], None]:
        self.sends.append((sim.now, process))
        job = _Job(sim.now, [False], caller)
        self.line.append(job)
        self._pull(sim)

        def leave() -> None:
            job.gone[0] = True

        return leave

    def _pull(self, sim: Sim) -> None:
        while self.busy < self.slots and self.line:
            job = self.line.popleft()
            if job.gone[0] and self.drops_abandoned:
                continue
            self.busy += 1
            sim.at(sim.now + self.service_s(sim.now, sim.rng), partial(self._end, sim, job))

    def _end(self, sim: Sim, job: _Job) -> None:
        self.busy -= 1
        job.caller.end(OK)
        self._pull(sim)


def _nothing() -> None:
    return None


class Result(NamedTuple):
    """One finished call."""

    process: int
    began_at: float
    ended_at: float
    ok: bool
    attempts: int
    reason: str
    """ok, a failure class, or why it was refused here."""
    endpoint: str


@dataclass
class Fleet:
    """N processes, each with its own engine, before the same endpoints."""

    sim: Sim
    policy: Snapshot
    endpoints: dict[str, Endpoint]
    engines: list[Engine]
    results: list[Result] = field(default_factory=list[Result])
    read_timeout_s: float = 600.0
    """Where the policy sets no limit to the first token, the client's own read timeout does."""
    hedges: list[float] = field(default_factory=list[float])
    """When hedges were sent, where a test counts them."""
    waits_past_deadline: int = 0
    sends_past_deadline: int = 0

    @classmethod
    def of(
        cls,
        processes: int,
        policy: Snapshot,
        endpoints: dict[str, Endpoint],
        *,
        seed: int,
        read_timeout_s: float = 600.0,
        on_event: Callable[[int, Event], None] | None = None,
    ) -> Fleet:
        def sink(process: int) -> Callable[[Event], None] | None:
            if on_event is None:
                return None
            return lambda event: on_event(process, event)

        engines = [
            Engine(policy, rng=random.Random(f"{seed}/{i}"), on_event=sink(i))
            for i in range(processes)
        ]
        return cls(Sim(seed), policy, endpoints, engines, read_timeout_s=read_timeout_s)

    def load(
        self,
        rate_per_process: float,
        start: float,
        end: float,
        facts: Callable[[float, random.Random], CallFacts],
        *,
        burst: int = 1,
    ) -> None:
        """Poisson arrivals at every process; `burst` calls at each."""
        for process in range(len(self.engines)):
            self._arrive(process, rate_per_process / burst, start, end, facts, burst)

    def _arrive(
        self,
        process: int,
        rate: float,
        now: float,
        end: float,
        facts: Callable[[float, random.Random], CallFacts],
        burst: int,
    ) -> None:
        when = now + self.sim.rng.expovariate(rate)
        if when >= end:
            return

        def arrive() -> None:
            for _ in range(burst):
                self.call(process, facts(when, self.sim.rng))
            self._arrive(process, rate, when, end, facts, burst)

        self.sim.at(when, arrive)

    def call(
        self,
        process: int,
        facts: CallFacts,
        done: Callable[[Result], None] | None = None,
    ) -> Driver:
        """Begin a call now."""
        call = self.engines[process].begin(facts, self.sim.now)
        assert call is not None
        driver = Driver(self, process, call, done)
        driver.step()
        return driver

    def run(self, until: float = INFINITY) -> None:
        self.sim.run(until)

    def idle(self) -> bool:
        """Whether no engine has anything outstanding, in line or unpaid."""
        return all(
            not any(s.inflight for s in e.world.states.values())
            and not any(p.inflight or len(p.queue) for p in e.world.pools.values())
            for e in self.engines
        )


class Driver:
    """Drives one call. The third driver beside the sync and the async one."""

    __slots__ = (
        "_away",
        "_began_at",
        "_call",
        "_done",
        "_fleet",
        "_over",
        "_process",
        "_turn",
        "said",
    )

    def __init__(
        self, fleet: Fleet, process: int, call: Call, done: Callable[[Result], None] | None
    ) -> None:
        self._fleet = fleet
        self._process = process
        self._call = call
        self._done = done
        self._began_at = fleet.sim.now
        self._turn = 0
        self._over = False
        self._away: dict[int, Callable[[], None]] = {}
        self.said: dict[int, Outcome] = {}
        """How each attempt ended."""

    def step(self) -> None:
        """Perform what the call wants until it waits or is over."""
        sim, call = self._fleet.sim, self._call
        self._turn += 1
        turn = self._turn
        while not self._over:
            action = call.next_action(sim.now)
            if isinstance(action, Send):
                self._send(action.attempt)
            elif isinstance(action, Wait):
                if action.reason != "running":
                    if action.until > call.deadline_at:
                        self._fleet.waits_past_deadline += 1
                    sim.at(action.until, lambda: self._step_if(turn))
                if call.set_waker(lambda: sim.at(sim.now, lambda: self._step_if(turn))):
                    continue
                return
            else:
                self._finish(action)

    def _step_if(self, turn: int) -> None:
        if turn == self._turn:
            self.step()

    def cancel(self) -> None:
        """The caller goes away."""
        self._over = True
        self._call.cancel(self._fleet.sim.now)
        for leave in self._away.values():
            leave()

    def _send(self, attempt: Attempt) -> None:
        fleet, sim = self._fleet, self._fleet.sim
        if sim.now > attempt.deadline_at:
            fleet.sends_past_deadline += 1
        caller = _Sending(self, attempt)
        endpoint = fleet.endpoints[attempt.endpoint_id]
        self._away[attempt.number] = endpoint.send(sim, self._process, caller)
        gives_up_at = min(attempt.first_token_by, sim.now + fleet.read_timeout_s)
        if gives_up_at != INFINITY:
            sim.at(gives_up_at, caller.give_up)

    def first(self, attempt: Attempt) -> None:
        """The first token of a stream."""
        if attempt.ended:
            return
        if self._call.on_first_token(attempt, self._fleet.sim.now):
            self._close_the_lost()
            self.step()

    def end(self, attempt: Attempt, outcome: Outcome) -> None:
        """A send is over."""
        if attempt.ended:
            return
        self.said[attempt.number] = outcome
        self._call.on_outcome(attempt, outcome, self._fleet.sim.now)
        self._close_the_lost()
        self.step()

    def leave(self, attempt: Attempt) -> None:
        """Give a send up."""
        self._away[attempt.number]()

    def _close_the_lost(self) -> None:
        for other in list(self._call.running):
            if other.lost:
                self.leave(other)
                self.said[other.number] = CANCELLED
                self._call.on_outcome(other, CANCELLED, self._fleet.sim.now)

    def _finish(self, end: Finish) -> None:
        self._over = True
        self._call.set_waker(None)
        attempt, refusal = end.attempt, end.rejection
        if refusal is not None:
            reason = refusal.reason
        else:
            assert attempt is not None
            reason = self.said.get(attempt.number, OK).kind.value  # a stream is still running
        result = Result(
            self._process,
            self._began_at,
            self._fleet.sim.now,
            reason == "ok",
            self._call.attempts,
            reason,
            attempt.endpoint_id if attempt is not None else "",
        )
        self._fleet.results.append(result)
        if self._done is not None:
            self._done(result)


class _Sending:
    """One send, as the endpoint sees it."""

    __slots__ = ("_attempt", "_driver")

    def __init__(self, driver: Driver, attempt: Attempt) -> None:
        self._driver = driver
        self._attempt = attempt

    def first(self) -> None:
        self._driver.first(self._attempt)

    def end(self, outcome: Outcome) -> None:
        self._driver.end(self._attempt, outcome)

    def give_up(self) -> None:
        attempt = self._attempt
        if not attempt.ended and attempt.first_token_at is None:
            self._driver.leave(attempt)
            self._driver.end(attempt, LATE)


def summary(results: list[Result]) -> str:
    """One line of figures for failure messages."""
    calls = len(results)
    if not calls:
        return "no calls"
    failed = [r for r in results if not r.ok]
    attempts = sum(r.attempts for r in results)
    reasons: dict[str, int] = {}
    for r in failed:
        reasons[r.reason] = reasons.get(r.reason, 0) + 1
    return (
        f"{calls} calls, {attempts / calls:.4f} attempts per call, "
        f"{len(failed) / calls:.4%} failed {reasons}"
    )
