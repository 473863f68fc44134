"""The accounting of one call: what every attempt did, what it cost, and how much of that was wasted.

`CallRecord.on_event` is the sink to hand to `Engine.begin`. The transport fills in what it read of the
answer (usage, model, finish reasons, ...) before it reports an attempt's outcome. When the call has
ended and so have all its attempts, a hedge's loser included, the call is settled: priced, added to its
task, and shown to telemetry. That happens once. Nothing here knows of OpenTelemetry.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from headway.core.model import (
    Attempt,
    AttemptEnded,
    AttemptStarted,
    CallDequeued,
    CallEnded,
    CallFacts,
    CallRejected,
    Event,
    FailureClass,
    FirstToken,
    Outcome,
    Rejection,
    RetryDenied,
    Usage,
)
from headway.core.snapshot import Endpoint
from headway.cost import FREE, MONEY, UNKNOWN, ZERO, Cost, Pricer, worst_source
from headway.estimate import estimated_usage, upper_bound_usage
from headway.task.ledger import Settlement
from headway.task.scope import current_scope

if TYPE_CHECKING:
    from headway.core.call import Call
    from headway.task.task import Task

logger = logging.getLogger("headway")

_NO_SPAN: AbstractContextManager[None] = nullcontext()
_settling = threading.Lock()
"""Held for one flag test: two attempts of a call may end on two threads."""


class AttemptRecord:
    """One attempt. The transport fills in the second group before it reports the outcome."""

    __slots__ = (
        "attempt", "busy_mark", "content_chunks", "cost", "duration_s", "endpoint", "ended_wall_ns",
        "finish_reasons", "outcome", "response_id", "response_model", "result", "server_address",
        "server_port", "service_tier", "settled_usage", "span", "status", "system_fingerprint",
        "ttft_s", "upper_bound", "usage", "usage_injected", "wasted",
    )  # fmt: skip

    def __init__(self, attempt: Attempt, endpoint: Endpoint) -> None:
        self.attempt = attempt
        self.endpoint = endpoint

        self.usage: Usage | None = None
        self.response_model: str | None = None
        self.response_id: str | None = None
        self.finish_reasons: list[str] = []
        self.service_tier: str | None = None
        """The tier on the response: it decides the price."""
        self.system_fingerprint: str | None = None
        self.content_chunks = 0
        self.server_address: str | None = None
        self.server_port: int | None = None
        self.status: int | None = None
        self.usage_injected = False

        self.outcome: Outcome | None = None
        self.result: str | None = None
        """ok | error | timeout | cancelled | lost; None while it runs."""
        self.duration_s: float | None = None
        self.ttft_s: float | None = None
        self.cost: Cost | None = None
        """Set when the call is settled."""
        self.wasted = False
        self.settled_usage: Usage | None = None
        """`usage`, or what was estimated in its place."""
        self.upper_bound: Decimal | None = None
        """USD at most, when the output was cut off and only its beginning was counted."""
        self.busy_mark = 0.0
        self.span: object | None = None
        """Telemetry's own."""
        self.ended_wall_ns: int | None = None


class CallWatch(Protocol):
    """Telemetry's view of one call."""

    def on_event(self, record: CallRecord, event: Event) -> None:
        """Something happened; the record has taken it in already (but `CallEnded` is not settled)."""
        ...

    def settled(self, record: CallRecord) -> None:
        """Costs stand; nothing more will happen."""
        ...

    def sending(self, record: CallRecord, attempt: AttemptRecord) -> AbstractContextManager[None]:
        """The attempt's span is current inside."""
        ...

    def propagation_headers(self, record: CallRecord, attempt: AttemptRecord) -> dict[str, str]:
        """Trace headers to send along, if so configured."""
        ...


class CallObserver(Protocol):
    """Telemetry, as far as calls are concerned."""

    def watch(self, record: CallRecord) -> CallWatch | None:
        """Watch this call; None when nobody looks (no provider is set up): then calls pay nothing."""
        ...


class Books:
    """What the accounting of a router's calls needs. One per router; thread-safe.

    `endpoint` finds an endpoint by id for events that come before `CallRecord.call` is set.
    """

    def __init__(
        self,
        *,
        pricer: Pricer | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        self.pricer = pricer if pricer is not None else Pricer()
        self.observer = observer
        self._busy: dict[str, BusyTime] = {}
        self._lock = threading.Lock()

    def open_call(self, facts: CallFacts, now: float) -> CallRecord:
        """Begin the account of a call in the current task and trace context.

        Raises `TaskLimitExceeded` or `DeadlineExceeded` when a cap of the task forbids the call.
        """
        task = current_scope().task
        if task is not None:
            task.open_call(facts)
        return CallRecord(self, facts, task, now)

    def busy(self, endpoint_id: str) -> BusyTime:
        """The concurrency meter of an endpoint priced by GPU-hour. As many as such endpoints exist."""
        busy = self._busy.get(endpoint_id)
        if busy is None:
            with self._lock:
                busy = self._busy.setdefault(endpoint_id, BusyTime())
        return busy


class BusyTime:
    """Shares out the time an endpoint was busy: n attempts at once are each charged 1/n of it.

    The charges of all attempts add up to the busy time, so money per GPU-hour is attributed exactly
    once. (An attempt's mean in-flight is the harmonic one: its seconds / its share.)
    """

    __slots__ = ("_at", "_inflight", "_lock", "_share")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._inflight = 0
        self._share = 0.0

    def start(self, at: float) -> float:
        """Count an attempt in; keep the mark for `stop`."""
        with self._lock:
            self._advance(at)
            self._inflight += 1
            return self._share

    def stop(self, at: float, mark: float) -> float:
        """Count it out; returns the seconds it is charged."""
        with self._lock:
            self._advance(at)
            self._inflight -= 1
            return self._share - mark

    def _advance(self, at: float) -> None:
        # Two threads may bring their instants in the wrong order: time never runs backwards here.
        if at > self._at:
            if self._inflight:
                self._share += (at - self._at) / self._inflight
            self._at = at


class CallRecord:
    """The account of one call. Made by `Books.open_call`; `call` is set once the engine has begun it."""

    __slots__ = (
        "_books", "_complete", "_cost", "_running", "_settled", "_started", "_watch", "attempts",
        "call", "deferred", "denied_by", "ended", "ended_at", "facts", "outcome", "queue_wait_s",
        "rejection", "settlement", "started_at", "task", "winner",
    )  # fmt: skip

    def __init__(self, books: Books, facts: CallFacts, task: Task | None, now: float) -> None:
        self._books = books
        self.facts = facts
        self.task = task
        self.call: Call | None = None
        self.attempts: list[AttemptRecord] = []
        self.started_at = now
        self.ended = False
        """The application has its answer (or its error), the stream included."""
        self.ended_at: float | None = None
        self.winner: AttemptRecord | None = None
        self.outcome: Outcome | None = None
        self.rejection: Rejection | None = None
        self.denied_by: str | None = None
        """Why there was no further retry, if one was denied."""
        self.queue_wait_s = 0.0
        self.deferred = False
        """Ended, but waiting for the price list."""
        self.settlement = _NOTHING
        self._cost: Cost | None = None
        self._complete = False
        self._running = 0
        self._settled = False
        self._watch: CallWatch | None = None
        observer = books.observer
        if observer is not None:
            try:
                self._watch = observer.watch(self)
            except Exception as problem:  # noqa: BLE001
                self._unwatch(problem)

    # ----------------------------------------------------------------- questions

    @property
    def wants_usage(self) -> bool:
        """Whether anybody will look at the cost: a task, or telemetry that is recording."""
        return self.task is not None or self._watch is not None

    @property
    def settled(self) -> bool:
        """Whether costs stand."""
        return self._settled and not self.deferred

    @property
    def cost(self) -> Cost:
        """USD over all attempts and the worst source among them; unknown until settled."""
        return self._cost if self._cost is not None else UNKNOWN

    @property
    def wasted(self) -> Decimal:
        """USD of the attempts that bought nothing."""
        return self.settlement.wasted

    @property
    def cost_complete(self) -> bool:
        """Whether every attempt's cost is known."""
        return self._complete

    def attempt(self, attempt: Attempt) -> AttemptRecord:
        """The record of an attempt that has been started."""
        for record in self.attempts:
            if record.attempt is attempt:
                return record
        record = AttemptRecord(attempt, self._endpoint(attempt.endpoint_id))
        self.attempts.append(record)
        return record

    # ----------------------------------------------------------------- the transport's side

    def sending(self, attempt: Attempt) -> AbstractContextManager[None]:
        """The attempt's span is current inside, so that HTTP instrumentation nests under it."""
        if self._watch is None:
            return _NO_SPAN
        try:
            return self._watch.sending(self, self.attempt(attempt))
        except Exception as problem:  # noqa: BLE001
            self._unwatch(problem)
            return _NO_SPAN

    def propagation_headers(self, attempt: Attempt) -> dict[str, str]:
        """Trace headers for the attempt's request: empty unless propagation is configured."""
        if self._watch is None:
            return {}
        try:
            return self._watch.propagation_headers(self, self.attempt(attempt))
        except Exception as problem:  # noqa: BLE001
            self._unwatch(problem)
            return {}

    def discard(self) -> None:
        """The request turned out not to be managed (no route matches): it was never a call."""
        if self._settled:
            return
        self._settled = True
        if self.task is not None:
            self.task.ledger.discard_call()

    def on_event(self, event: Event) -> None:
        """The sink for the engine's events of this call. Never raises."""
        take = _TAKE.get(type(event))
        if take is not None:
            take(self, event)
        if self._watch is not None:
            try:
                self._watch.on_event(self, event)
            except Exception as problem:  # noqa: BLE001
                self._unwatch(problem)
        if self.ended and not self._running:
            self._settle_once()

    # ----------------------------------------------------------------- taking events in

    def _attempt_started(self, event: AttemptStarted) -> None:
        attempt = event.attempt
        record = self.attempt(attempt)
        self._running += 1
        if self.task is not None:
            self.task.ledger.start_attempt(attempt.number)
        endpoint = record.endpoint
        if endpoint.price is not None and endpoint.price.per_gpu_hour is not None:
            record.busy_mark = self._books.busy(endpoint.id).start(event.at)
        elif self.wants_usage:
            self._books.pricer.warm(endpoint)

    def _first_token(self, event: FirstToken) -> None:
        self.attempt(event.attempt).ttft_s = event.ttft_s

    def _attempt_ended(self, event: AttemptEnded) -> None:
        record = self.attempt(event.attempt)
        if record.result is not None:
            return
        self._running -= 1
        record.outcome = event.outcome
        record.result = event.result
        record.duration_s = event.duration_s
        if record.status is None:
            record.status = event.outcome.status
        endpoint = record.endpoint
        if endpoint.price is not None and endpoint.price.per_gpu_hour is not None:
            record.busy_mark = self._books.busy(endpoint.id).stop(event.at, record.busy_mark)

    def _retry_denied(self, event: RetryDenied) -> None:
        self.denied_by = event.reason

    def _dequeued(self, event: CallDequeued) -> None:
        self.queue_wait_s += event.wait_s

    def _rejected(self, event: CallRejected) -> None:
        self.rejection = event.rejection
        self._end(event.at)

    def _call_ended(self, event: CallEnded) -> None:
        if event.winner is not None:
            self.winner = self.attempt(event.winner)
        self.outcome = event.outcome
        self._end(event.at)

    def _end(self, at: float) -> None:
        self.ended = True
        self.ended_at = at

    # ----------------------------------------------------------------- settling

    def _settle_once(self) -> None:
        with _settling:
            if self._settled:
                return
            self._settled = True
        if not self.wants_usage:
            return
        pricer = self._books.pricer
        if any(pricer.pending(a.endpoint) and a.result == "ok" for a in self.attempts):
            # The first calls of a process: importing the price list would hold the answer back.
            self.deferred = True
            if self.task is not None:
                self.task.defer(pricer.wait)
            pricer.when_ready(self._settle)
        else:
            self._settle()

    def _settle(self) -> None:
        try:
            self._price()
        except Exception:
            logger.exception("a call could not be priced: its cost is unknown")
            self._cost, self._complete = UNKNOWN, False
        if self.task is not None:
            self.task.settle(self)
        self.deferred = False
        if self._watch is not None:
            try:
                self._watch.settled(self)
            except Exception as problem:  # noqa: BLE001
                self._unwatch(problem)

    def _price(self) -> None:
        by_source: dict[str, Decimal] = {}
        unknown = tokens_in = tokens_out = 0
        total = wasted = ZERO
        source = "provider"
        for record in self.attempts:
            cost = self._price_attempt(record)
            record.cost = cost
            record.wasted = record is not self.winner or record.result != "ok"
            source = worst_source(source, cost.source)
            if cost.amount is None:
                unknown += 1
            else:
                by_source[cost.source] = MONEY.add(by_source.get(cost.source, ZERO), cost.amount)
                total = MONEY.add(total, cost.amount)
                if record.wasted:
                    wasted = MONEY.add(wasted, cost.amount)
            usage = record.settled_usage
            if usage is not None:
                tokens_in += usage.input_tokens or 0
                tokens_out += usage.output_tokens or 0
        self.settlement = Settlement(by_source, unknown, wasted, tokens_in, tokens_out)
        self._complete = not unknown
        self._cost = UNKNOWN if unknown and not total else Cost(total, source)

    def _price_attempt(self, record: AttemptRecord) -> Cost:
        pricer = self._books.pricer
        price = record.endpoint.price
        usage = record.usage
        if usage is None:
            usage = estimated_usage(record, self.winner, self.facts)
        record.settled_usage = usage
        if usage is None:
            return UNKNOWN
        if usage is NOT_BILLED:
            return FREE
        duration_s, inflight = record.duration_s, 1.0
        if price is not None and price.per_gpu_hour is not None and duration_s is not None:
            share_s = record.busy_mark
            inflight = duration_s / share_s if share_s > 0 else 1.0
        model = record.response_model or record.attempt.model
        cost = pricer.price(
            record.endpoint, model, usage,
            service_tier=record.service_tier, duration_s=duration_s, inflight=inflight,
        )  # fmt: skip
        if cost.amount is None and record.response_model not in (None, record.attempt.model):
            cost = pricer.price(
                record.endpoint, record.attempt.model, usage,
                service_tier=record.service_tier, duration_s=duration_s, inflight=inflight,
            )  # fmt: skip
        return cost

    def _endpoint(self, endpoint_id: str) -> Endpoint:
        if self.call is not None:
            endpoint = self.call.snapshot.endpoints.get(endpoint_id)
            if endpoint is not None:
                return endpoint
        return Endpoint(id=endpoint_id, base_url="")

    def _unwatch(self, problem: Exception) -> None:
        self._watch = None
        logger.warning(
            "telemetry failed and was left out of this call: %s", type(problem).__name__,
            exc_info=logger.isEnabledFor(logging.DEBUG),
        )  # fmt: skip
