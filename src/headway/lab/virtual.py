"""Many client processes in virtual time: the third driver of the production core.

Each process has an `Engine` of its own, exactly as a real one would; a heap of events takes the
place of sockets and sleeps. What this shows is what ships: the drivers decide nothing.

    def serve(request: VirtualRequest) -> Served:
        return Served(OK, total_s=request.rng.expovariate(1.0), first_token_s=0.2)

    fleet = VirtualFleet(
        snapshot, processes=200, endpoints={"a": FunctionEndpoint(serve), "b": ...},
        arrivals=poisson(40.0, until_s=300.0, processes=200, seed=1), seed=1,
    )
    result = fleet.run()
    result.calls[0].ok, result.calls[0].attempts[0].endpoint_id, result.amplification

- **Endpoints** are models: `FunctionEndpoint` asks a function per attempt how it will end,
  `EngineEndpoint` has an engine behind it; anything with `send` and `cancel` fits.
- **Arrivals** are `Arrival`s in time order, consumed lazily. For closed loops call `fleet.submit`
  from `on_call`.
- **Anything else over time** is `fleet.at(t, f)`: swap a policy (`fleet.publish`), look at
  `fleet.engines[i].status(t)`, change what an endpoint does.
- **Records**: one `CallRecord` per call; hand `keep_calls=False` and an `on_call` to run millions
  in constant memory. `on_event` sees every core event with its process.
- **Limits** the real drivers enforce are enforced here: the total deadline, and the limit to the
  first token. Silence after the first token is for the endpoint model to end as `STALLED`.

Same arguments, same seed: same result, to the last bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import heappop, heappush
from threading import Lock
from typing import Protocol

from headway.core.engine import Engine
from headway.core.model import (
    CANCELLED,
    DEADLINE_SILENT,
    DEADLINE_STREAMING,
    FIRST_TOKEN_LATE,
    INFINITY,
    Attempt,
    Event,
    Finish,
    Outcome,
    Rejection,
    Send,
    Wait,
)
from headway.core.snapshot import Snapshot
from headway.lab.virtual_client import Client, DrivenCall
from headway.lab.virtual_records import Arrival, AttemptRecord, CallRecord, VirtualResult


class VirtualRequest:
    """One attempt as an endpoint model sees it: report on it with `first_token` and `end`."""

    __slots__ = ("_run", "attempt", "ended", "facts", "fleet", "inflight", "now", "process")

    def __init__(self, run: _Run, attempt: Attempt, inflight: int, now: float) -> None:
        self.attempt = attempt
        self.facts = run.arrival.facts
        self.process = run.arrival.process
        self.fleet = run.fleet
        self.inflight = inflight
        """Requests at this endpoint from all processes, this one included."""
        self.now = now
        """When it was sent."""
        self.ended = False
        self._run = run

    @property
    def rng(self) -> random.Random:
        """The run's random source for endpoints."""
        return self.fleet.endpoint_rng

    @property
    def tag(self) -> object:
        """The arrival's own."""
        return self._run.arrival.tag

    def first_token(self) -> None:
        """The first content token arrives at the client now."""
        if not self.ended:
            self._run.first_token(self)

    def end(self, outcome: Outcome) -> None:
        """The attempt ends now."""
        if not self.ended:
            self._run.end(self, outcome)


class EndpointModel(Protocol):
    """What serves attempts. Both methods are called at the fleet's `now`."""

    def send(self, request: VirtualRequest) -> None:
        """An attempt arrives."""
        ...

    def cancel(self, request: VirtualRequest) -> None:
        """The client gave the attempt up: its reports are ignored from now on."""
        ...


class VirtualFleet:
    """N processes, their engines, and the endpoints they share.

    Args:
        snapshot: the policy each process begins with.
        processes: how many; arrivals name them from 0.
        endpoints: a model per endpoint id of the snapshot.
        arrivals: calls in time order.
        seed: of everything random here; engines get one stream each, endpoints another.
        zones: zone of each process, cycled; None: no zones.
        on_call: receives each ended call.
        on_event: receives (process, core event).
        keep_calls: keep every record in the result.
        clients: makes the client of each process instead of an `Engine`: others, on the same
            arrivals, before the same endpoints.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        processes: int,
        endpoints: Mapping[str, EndpointModel],
        arrivals: Iterable[Arrival] = (),
        seed: int = 0,
        *,
        zones: tuple[str | None, ...] = (None,),
        on_call: Callable[[CallRecord], None] | None = None,
        on_event: Callable[[int, Event], None] | None = None,
        keep_calls: bool = True,
        clients: Callable[[int], Client] | None = None,
    ) -> None:
        missing = snapshot.endpoints.keys() - endpoints.keys()
        if missing:
            msg = f"no model for endpoints {sorted(missing)}"
            raise ValueError(msg)
        self.now = 0.0
        self.endpoints = dict(endpoints)
        self.endpoint_rng = random.Random(f"{seed}/endpoints")
        self.engines: list[Engine] = [
            Engine(
                snapshot,
                zone=zones[i % len(zones)],
                rng=random.Random(f"{seed}/process/{i}"),
                lock=Lock(),
                on_event=None if on_event is None else partial(on_event, i),
            )
            for i in range(processes if clients is None else 0)
        ]
        made = self.engines if clients is None else [clients(i) for i in range(processes)]
        self.clients: list[Client] = list(made)
        self.inflight: dict[str, int] = dict.fromkeys(self.endpoints, 0)
        self.result = VirtualResult()
        self._arrivals = iter(arrivals)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._started = False
        self._on_call = on_call
        self._keep = keep_calls

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do `action` at `when` (now, if that is past). Equal instants: in order of asking."""
        when = max(when, self.now)
        self._order = order = self._order + 1
        heappush(self._heap, (when, order, action))

    def submit(self, arrival: Arrival) -> None:
        """Add a call, from now on."""
        self.at(arrival.at_s, partial(self.start, arrival))

    def start(self, arrival: Arrival) -> None:
        """Begin a call now, whatever its `at_s`."""
        _Run(self, arrival).begin()

    def publish(self, snapshot: Snapshot, at_s: float, poll_s: float = 0.0) -> None:
        """New policy at `at_s`; each process picks it up within `poll_s`, uniformly."""
        rng = random.Random(f"poll/{at_s}")
        for engine in self.engines:
            when = at_s + rng.random() * poll_s
            self.at(when, partial(self._swap, engine, snapshot))

    def _swap(self, engine: Engine, snapshot: Snapshot) -> None:
        engine.swap(snapshot, self.now)

    def run(self, until_s: float = INFINITY) -> VirtualResult:
        """Run until nothing is left to do, or until `until_s`. May be called again to go on."""
        heap = self._heap
        if not self._started:
            self._started = True
            self._next_arrival()
        while heap and heap[0][0] <= until_s:
            self.now, _, action = heappop(heap)
            action()
        if until_s != INFINITY:
            self.now = max(self.now, until_s)
        self.result.ended_at = self.now
        return self.result

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self.at(arrival.at_s, lambda: self._arrive(arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._next_arrival()
        _Run(self, arrival).begin()

    def ended(self, record: CallRecord) -> None:
        """Book an ended call."""
        result = self.result
        result.calls_ended += 1
        result.failed += not record.ok and not record.caller_left
        if self._keep:
            result.calls.append(record)
        if self._on_call is not None:
            self._on_call(record)


class _Run:
    """One call under way: performs what the core says, reports what happened."""

    __slots__ = (
        "_finish",
        "_is_waiting",
        "arrival",
        "arrived_at",
        "call",
        "done",
        "fleet",
        "left",
        "log",
        "requests",
    )

    def __init__(self, fleet: VirtualFleet, arrival: Arrival) -> None:
        self.fleet = fleet
        self.arrival = arrival
        self.arrived_at = fleet.now
        self.call: DrivenCall | None = None
        self.requests: list[VirtualRequest] = []
        self.log: list[AttemptRecord] = []
        self.done = False
        self.left = False
        self._finish: Finish | None = None
        self._is_waiting = False

    def begin(self) -> None:
        fleet, arrival = self.fleet, self.arrival
        now = fleet.now
        call = fleet.clients[arrival.process].begin(arrival.facts, now, wall_now=now)
        self.call = call
        if call is None:
            self._book(CANCELLED, None, None, managed=False)
            return
        if arrival.cancel_after_s != INFINITY:
            fleet.at(now + arrival.cancel_after_s, self._caller_leaves)
        if call.deadline_at != INFINITY:
            fleet.at(call.deadline_at, self._deadline)
        self.step()

    def step(self) -> None:
        """Ask the core what to do until it says wait or finish."""
        call, fleet = self.call, self.fleet
        assert call is not None
        while not self.done and self._finish is None:
            action = call.next_action(fleet.now)
            if isinstance(action, Send):
                self._send(action.attempt)
            elif isinstance(action, Wait):
                # Who has an attempt under way stands in no line, and attempts have their timers.
                if action.reason == "running":
                    return
                self._is_waiting = True
                if call.set_waker(self._woken):
                    continue
                if action.until != INFINITY:
                    fleet.at(action.until, self._tick)
                return
            else:
                self._finish = action
                if self._is_waiting:
                    call.set_waker(None)
                if self.requests:
                    self._drop_lost()
        self._maybe_over()

    def _tick(self) -> None:
        if not self.done and self._finish is None:
            self.step()

    def _woken(self) -> None:
        # Called from inside another call's report: act on it in turn, not in its stack.
        self.fleet.at(self.fleet.now, self._tick)

    def _send(self, attempt: Attempt) -> None:
        fleet, endpoint_id = self.fleet, attempt.endpoint_id
        fleet.result.attempts_sent += 1
        fleet.inflight[endpoint_id] = inflight = fleet.inflight[endpoint_id] + 1
        request = VirtualRequest(self, attempt, inflight, fleet.now)
        self.requests.append(request)
        if attempt.first_token_by < attempt.deadline_at:
            fleet.at(attempt.first_token_by, lambda: self._first_token_limit(request))
        fleet.endpoints[endpoint_id].send(request)

    def first_token(self, request: VirtualRequest) -> None:
        call = self.call
        assert call is not None
        if call.on_first_token(request.attempt, self.fleet.now):
            if len(self.requests) > 1:
                self._drop_lost()
            self.step()
        else:
            self.end(request, CANCELLED, told=False)

    def end(self, request: VirtualRequest, outcome: Outcome, *, told: bool = True) -> None:
        """Report an attempt's end. `told`: the endpoint said so itself; no need to cancel it."""
        call, fleet, attempt = self.call, self.fleet, request.attempt
        assert call is not None
        request.ended = True
        self.requests.remove(request)
        fleet.inflight[attempt.endpoint_id] -= 1
        self.log.append(AttemptRecord.of(attempt, fleet.now, outcome))
        if not told:
            fleet.endpoints[attempt.endpoint_id].cancel(request)
        call.on_outcome(attempt, outcome, fleet.now)
        if self._finish is None:
            self.step()
        else:
            self._maybe_over()

    def _drop_lost(self) -> None:
        for request in [r for r in self.requests if r.attempt.lost]:
            self.end(request, CANCELLED, told=False)

    def _first_token_limit(self, request: VirtualRequest) -> None:
        if not request.ended and request.attempt.first_token_at is None:
            self.end(request, FIRST_TOKEN_LATE, told=False)

    def _deadline(self) -> None:
        if self.done:
            return
        for request in list(self.requests):
            started = request.attempt.first_token_at is not None
            self.end(request, DEADLINE_STREAMING if started else DEADLINE_SILENT, told=False)
        self._tick()

    def _caller_leaves(self) -> None:
        if self.done:
            return
        assert self.call is not None
        self.left = True
        self.call.cancel(self.fleet.now)
        for request in list(self.requests):
            self.end(request, CANCELLED, told=False)
        self._tick()

    def _maybe_over(self) -> None:
        finish = self._finish
        if finish is None or self.done or self.requests:
            return
        attempt = finish.attempt
        mine = None
        if attempt is not None:
            mine = next((a for a in self.log if a.number == attempt.number), None)
        self._book(mine.outcome if mine else CANCELLED, finish.rejection, mine)

    def _book(
        self,
        outcome: Outcome,
        rejection: Rejection | None,
        winner: AttemptRecord | None,
        *,
        managed: bool = True,
    ) -> None:
        self.done = True
        arrival = self.arrival
        self.fleet.ended(
            CallRecord(
                arrival.process,
                arrival.facts,
                arrival.tag,
                self.arrived_at,
                self.fleet.now,
                outcome,
                rejection,
                winner.endpoint_id if winner else None,
                winner.first_token_at if winner else None,
                tuple(self.log),
                managed,
                self.left,
            )
        )
