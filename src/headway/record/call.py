# long: one account, from opening to settlement
"""The account of one call: what every attempt did, what it cost, and how much of that was wasted.

`CallRecord.sink` is what to hand to `Engine.begin`. The transport fills in what it read of
an answer before it reports the attempt's outcome. When the call has ended and so have all its
attempts, a hedge's loser included, the call is settled, once: priced, added to its task, shown to
telemetry.

Events of one call may be delivered by any thread and out of order: the engine delivers outside its
lock. Nothing here knows of OpenTelemetry.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headway.core.model import (
    Attempt,
    AttemptEnded,
    AttemptStarted,
    CallDequeued,
    CallEnded,
    CallFacts,
    CallRejected,
    Event,
    FirstToken,
    Outcome,
    Rejection,
    RetryDenied,
    Sink,
)
from headway.core.snapshot import Endpoint
from headway.cost import FREE, UNKNOWN, ZERO, Cost, add, worst_source
from headway.forks import free_in_children
from headway.record.attempt import NOT_BILLED, AttemptRecord, price_attempt, usage_to_price
from headway.task.ledger import Settlement

if TYPE_CHECKING:
    from headway.core.call import Call
    from headway.core.snapshot import Snapshot
    from headway.record.books import Books
    from headway.record.shared import Shared
    from headway.record.tenants import Reservation
    from headway.record.watching import CallWatch
    from headway.task.task import Task

logger = logging.getLogger("headway")

_NO_SPAN: AbstractContextManager[None] = nullcontext()
_NOTHING = Settlement({}, 0, ZERO, 0, 0)
_lock = free_in_children(threading.Lock())
"""Held for a flag test or to add an attempt: shorter than a lock per call takes to make."""


class CallRecord:
    """The account of one call. Made by `Books.open_call`; set `call` once the engine has begun
    it."""

    __slots__ = (
        "_attempts_before", "_attempts_made", "_books", "_cost", "_held", "_settling", "_watch",
        "attempts", "call", "deferred", "denied_by", "ended", "ended_at", "facts", "outcome",
        "queue_wait_s", "rejection", "reserved", "runs_at", "settlement", "shared", "started_at",
        "task", "winner",
    )  # fmt: skip

    def __init__(self, books: Books, facts: CallFacts, task: Task | None, now: float) -> None:
        self._books = books
        self.facts = facts
        self.task = task
        self.call: Call | None = None
        self.attempts: list[AttemptRecord] = []
        self.started_at = now
        self.ended = False
        """The application has its answer or its error, the stream included."""
        self.ended_at: float | None = None
        self.winner: AttemptRecord | None = None
        """The attempt whose answer or error was surfaced."""
        self.outcome: Outcome | None = None
        self.rejection: Rejection | None = None
        self.denied_by: str | None = None
        """Why there was no further retry, if one was denied."""
        self.queue_wait_s = 0.0
        self.deferred = False
        """Over, but waiting for the price list."""
        self.settlement = _NOTHING
        self.runs_at: Endpoint | None = None
        """Where every attempt goes, whatever is decided: observed calls only."""
        self.shared: Shared | None = None
        """What it has to do with other calls: of routes that join calls or keep answers only."""
        self.reserved: Reservation | None = None
        """What is set aside of its tenant's budget."""
        self._attempts_before = 0
        self._attempts_made = 0
        self._held = False
        self._cost: Cost | None = None
        self._settling = False
        self._watch: CallWatch | None = None
        if books.observer is not None:
            try:
                self._watch = books.observer.watch(self)
            except Exception as problem:  # noqa: BLE001 - telemetry never breaks a call
                self._unwatch(problem)

    @property
    def is_observed(self) -> bool:
        """What was decided was not done: the call went as the plain client makes it."""
        call = self.call
        return ((call.route.mode if call is not None else None) or self._books.mode) == "observe"

    @property
    def wants_usage(self) -> bool:
        """Whether anybody will look at the cost: a task, telemetry that records, other calls, or a
        tenant's budget."""
        return (
            self.task is not None
            or self._watch is not None
            or self.shared is not None
            or self.reserved is not None
        )

    def sink(self, snapshot: Snapshot) -> Sink | None:
        """`on_event`, to hand to `Engine.begin`; None when neither anybody looks at this call, nor
        is it among those that are counted anyway."""
        if self.wants_usage or snapshot.counts_calls or self._books.mode == "observe":
            return self.on_event
        return None

    @property
    def settled(self) -> bool:
        """Whether costs stand. Never, when nobody wants them."""
        return self._cost is not None

    @property
    def cost(self) -> Cost:
        """USD over all attempts, and the worst source among them; unknown until settled."""
        return self._cost if self._cost is not None else UNKNOWN

    @property
    def cost_complete(self) -> bool:
        """Whether the cost of every attempt is known."""
        return self._cost is not None and not self.settlement.unknown_attempts

    @property
    def wasted(self) -> Decimal:
        """USD of the attempts that bought nothing."""
        return self.settlement.wasted

    def attempt(self, attempt: Attempt) -> AttemptRecord:
        """The record of an attempt."""
        for record in self.attempts:
            if record.attempt is attempt:
                return record
        with _lock:
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

    def hold(self) -> None:
        """Whatever its attempts come to, the call isn't over before `release`."""
        self._held = True

    def release(self) -> None:
        """It is over once its attempts are."""
        self._held = False
        self.settle_if_over()

    def defer(self) -> None:
        """It will be settled once the price list is there: its task waits for that when asked."""
        if not self.deferred:
            self.deferred = True
            if self.task is not None:
                self.task._defer(self._books.pricer.wait)

    def go_on(self, facts: CallFacts, call: Call) -> None:
        """There are more attempts to come, of the same call."""
        self.facts = facts
        self.call = call
        self.ended = False
        self.ended_at = self.winner = self.outcome = self.denied_by = None
        self._attempts_before = len(self.attempts)

    def let_pass(self, *, is_resend: bool = False) -> None:
        """No route matches the call: it goes its way, and its cost stays unknown."""
        if self._settling:
            return
        self._settling = True
        self._watch = None
        if self.task is not None:
            self.task._ledger.let_pass(is_resend=is_resend)
        if self.reserved is not None:
            self.reserved.settle(ZERO)

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
        self.settle_if_over()

    # ----------------------------------------------------------------- taking events in

    def _attempt_started(self, event: AttemptStarted) -> None:
        record = self.attempt(event.attempt)
        record.started = True
        if self.task is not None:
            self.task._ledger.start_attempt()
        price = record.endpoint.price
        if price is not None and price.per_gpu_hour is not None:
            if record.result is None:  # else its end was told first, by another thread
                record.busy_s = self._books.busy(record.endpoint.id).start(event.at)
        elif self.task is not None or self._watch is not None:
            self._books.pricer.warm(record.endpoint)

    def _first_token(self, event: FirstToken) -> None:
        self.attempt(event.attempt).ttft_s = event.ttft_s

    def _attempt_ended(self, event: AttemptEnded) -> None:
        record = self.attempt(event.attempt)
        record.outcome = event.outcome
        record.duration_s = event.duration_s
        if record.status is None:
            record.status = event.outcome.status
        price = record.endpoint.price
        if price is not None and price.per_gpu_hour is not None and record.started:
            record.busy_s = self._books.busy(record.endpoint.id).stop(event.at, record.busy_s)
        record.result = event.result

    def _retry_denied(self, event: RetryDenied) -> None:
        self.denied_by = event.reason

    def _dequeued(self, event: CallDequeued) -> None:
        self.queue_wait_s += event.wait_s

    def _rejected(self, event: CallRejected) -> None:
        self.rejection = event.rejection

    def _call_ended(self, event: CallEnded) -> None:
        self.outcome = event.outcome
        if event.winner is not None:
            self.winner = self.attempt(event.winner)
        elif self.attempts and self.is_observed:
            # The retry that was decided is not made: the application has what the attempt brought.
            self.winner = self.attempts[-1]
            self.outcome = self.winner.outcome or event.outcome
        self.ended_at = event.at
        self._attempts_made = self._attempts_before + event.attempts
        self.ended = True

    def _is_over(self) -> bool:
        return len(self.attempts) >= self._attempts_made and all(
            a.started and a.result is not None for a in self.attempts
        )

    # ----------------------------------------------------------------- settling

    def settle_if_over(self) -> None:
        """Settle it, if nothing more can come: from its attempts, or from calls it shared with."""
        if self.ended and not self._held and not self._settling and self._is_over():
            shared = self.shared
            if shared is None or not shared.awaited:
                self._settle_once()

    def _settle_once(self) -> None:
        with _lock:
            if self._settling:
                return
            self._settling = True
            if self.is_observed:
                self._books.observed = self._books.observed.and_one(self)
        if not self.wants_usage:
            return
        pricer = self._books.pricer
        waiting = False
        for record in self.attempts:
            usage = usage_to_price(record, self.winner, self.facts)
            record.settled_usage = usage
            record.wasted = not (record is self.winner or record.continued) or (
                self.winner is None or self.winner.result != "ok"
            )
            if usage is not None and usage is not NOT_BILLED and pricer.pending(record.endpoint):
                waiting = True
        shared = self.shared
        if shared is not None and shared.kept is not None:
            waiting = waiting or pricer.pending(shared.kept.endpoint)
        if waiting:
            # The first calls of a process: loading the price list must not hold the answer back.
            self.defer()
            if shared is not None and shared.leads is not None:
                shared.leads.defer()
            pricer.when_ready(self._settle)
        else:
            self._settle()

    def _settle(self) -> None:
        try:
            self._price()
        except Exception:
            logger.exception("a call could not be priced: its cost is unknown")
            self.settlement = _NOTHING._replace(unknown_attempts=len(self.attempts))
            self._cost = UNKNOWN
            if self.shared is not None and self.shared.leads is not None:
                self.shared.leads.settle(self.settlement, UNKNOWN)
        if self.reserved is not None:
            whole = self.settlement
            self.reserved.settle(whole.total, is_complete=not whole.unknown_attempts)
        if self.task is not None:
            self.task._settle(self)
        self.deferred = False
        watch = self._watch
        if watch is not None:
            try:
                watch.settled(self)
            except Exception as problem:  # noqa: BLE001
                self._unwatch(problem)

    def _price(self) -> None:
        by_source: dict[str, Decimal] = {}
        unknown = tokens_in = tokens_out = 0
        total = wasted = ZERO
        source = "provider"
        for record in self.attempts:
            cost = record.cost = price_attempt(record, self._books.pricer, self.facts)
            if cost is FREE:
                continue
            source = worst_source(source, cost.source)
            amount = cost.amount
            if amount is None:
                unknown += 1
            else:
                known = by_source.get(cost.source)
                by_source[cost.source] = amount if known is None else add(known, amount)
                total = amount if total is ZERO else add(total, amount)
                if record.wasted:
                    wasted = add(wasted, amount)
            usage = record.settled_usage
            if usage is not None:
                tokens_in += usage.input_tokens or 0
                tokens_out += usage.output_tokens or 0
        self.settlement = Settlement(by_source, unknown, wasted, tokens_in, tokens_out, total)
        # Nothing sent, nothing spent: a refusal here is known to cost 0.
        if unknown and not total:
            self._cost = UNKNOWN
        else:
            self._cost = Cost(total, source) if by_source or not self.attempts else FREE
        if self.shared is not None:
            whole, cost = self.settlement, self._cost
            self.settlement, self._cost = self.shared.settled(
                whole, cost, self._books.pricer, self.facts
            )

    def _endpoint(self, endpoint_id: str) -> Endpoint:
        if self.runs_at is not None:
            return self.runs_at
        if self.call is not None:
            endpoint = self.call.snapshot.endpoints.get(endpoint_id)
            if endpoint is not None:
                return endpoint
        return Endpoint(id=endpoint_id, base_url="")

    def _unwatch(self, problem: Exception) -> None:
        self._watch = None
        logger.warning(
            "telemetry failed and was left out of this call: %s",
            type(problem).__name__,
            exc_info=logger.isEnabledFor(logging.DEBUG),
        )


_TAKE: dict[type, Callable[[CallRecord, Any], None]] = {
    AttemptStarted: CallRecord._attempt_started,
    FirstToken: CallRecord._first_token,
    AttemptEnded: CallRecord._attempt_ended,
    RetryDenied: CallRecord._retry_denied,
    CallDequeued: CallRecord._dequeued,
    CallRejected: CallRecord._rejected,
    CallEnded: CallRecord._call_ended,
}
