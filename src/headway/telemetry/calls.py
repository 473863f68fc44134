"""One call as spans and metrics: call (CLIENT, ours or adopted) > headway.attempt (CLIENT) per
send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headway.core.model import (
    AttemptEnded,
    AttemptStarted,
    CallDequeued,
    CallEnded,
    CallRejected,
    Event,
    FirstToken,
    RetryDenied,
)
from headway.forks import free_in_children
from headway.telemetry import attributes as a
from headway.telemetry import names as n
from headway.telemetry.genai import count_call
from headway.telemetry.metrics import Attributes, Instruments
from headway.telemetry.otel_api import quietly

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from headway.record import AttemptRecord, CallRecord, Shared
    from headway.telemetry.telemetry import Telemetry

_lock = free_in_children(threading.Lock())
"""An attempt's span is made by whichever comes first: its event, or the send."""
_NOTHING: AbstractContextManager[None] = nullcontext()


def is_llm_span(span: Span) -> bool:
    """Whether a recording span is some instrumentation's span of the very call that is being made.

    By its attributes, as three instrumentations set them. A task, an agent or a tool has an
    operation name too, but not one of these."""
    if not span.is_recording():
        return False
    found: Any = getattr(span, "attributes", None) or {}
    return (
        found.get(n.OPERATION) in n.LLM_OPERATIONS
        or found.get("openinference.span.kind") in ("LLM", "EMBEDDING")
        or found.get("llm.request.type") in ("chat", "completion", "embedding")
    )


class Current:
    """`with Current(span):` makes a span current in the running context, and nothing else."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        from opentelemetry import context
        from opentelemetry.trace import set_span_in_context

        self._token = context.attach(set_span_in_context(self._span))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from opentelemetry import context
        from opentelemetry.trace import get_current_span

        token, self._token = self._token, None
        # Left in another context than entered (a finalised generator): nothing of ours is there.
        if token is not None and get_current_span() is self._span:
            context.detach(token)


class CallTelemetry:
    """The watch of one call. Spans end when the call is settled, with the times they really had."""

    __slots__ = (
        "_base", "_context", "_instruments", "_own", "_span", "_started_ns", "_telemetry",
        "_tracer",
    )  # fmt: skip

    def __init__(
        self,
        telemetry: Telemetry,
        tracer: Tracer | None,
        instruments: Instruments | None,
        adopted: Span | None,
        base: Context | None,
    ) -> None:
        self._telemetry = telemetry
        self._tracer = tracer
        self._instruments = instruments
        self._own = adopted is None and telemetry.gen_ai_spans != "never"
        self._base = base
        """The caller's trace context as the call began."""
        self._span: Span | None = adopted
        self._context: Context | None = base
        """Parent of attempts: the adopted span is current in `base`, our own comes later."""
        self._started_ns = time.time_ns()

    # ----------------------------------------------------------------- the record's side

    def on_event(self, record: CallRecord, event: Event) -> None:
        """See `headway.record.CallWatch`."""
        act = _ACT.get(type(event))
        if act is not None:
            act(self, record, event)

    def sending(self, record: CallRecord, attempt: AttemptRecord) -> AbstractContextManager[None]:
        """The attempt's span, or that of an unsampled call, is current inside."""
        span = self._attempt_span(record, attempt)
        return _NOTHING if span is None else Current(span)

    def propagation_headers(self, record: CallRecord, attempt: AttemptRecord) -> dict[str, str]:
        """W3C trace headers, if the endpoint or the configuration wants them."""
        wanted = self._telemetry.propagate_trace_context
        if not wanted and "trace_context" not in attempt.endpoint.supports:
            return {}
        span = self._attempt_span(record, attempt)
        return {} if span is None else traceparent_headers(span)

    # ----------------------------------------------------------------- events

    def _attempt_started(self, record: CallRecord, event: AttemptStarted) -> None:
        attempt = record.attempt(event.attempt)
        if self._instruments is not None:
            self._instruments.add("headway.inflight", 1, {n.ENDPOINT_ID: attempt.endpoint.id})
        self._attempt_span(record, attempt)

    def _first_token(self, record: CallRecord, event: FirstToken) -> None:
        if self._instruments is not None and record.facts.stream:
            attempt = record.attempt(event.attempt)
            self._instruments.record(
                "headway.attempt.time_to_first_chunk",
                event.ttft_s,
                {n.ENDPOINT_ID: attempt.endpoint.id, n.REQUEST_MODEL: self._model(record)},
            )

    def _attempt_ended(self, record: CallRecord, event: AttemptEnded) -> None:
        attempt = record.attempt(event.attempt)
        attempt.ended_wall_ns = time.time_ns()
        instruments = self._instruments
        if instruments is None:
            return
        endpoint_id = attempt.endpoint.id
        kind = event.attempt.kind.value
        instruments.add("headway.inflight", -1, {n.ENDPOINT_ID: endpoint_id})
        counted: Attributes = {
            n.ENDPOINT_ID: endpoint_id,
            n.ATTEMPT_KIND: kind,
            n.ATTEMPT_OUTCOME: event.result,
        }
        instruments.add("headway.attempts", 1, counted)
        failure = a.attempt_error(attempt)
        timed = counted
        if failure is not None:
            timed = counted | {n.ERROR_TYPE: self._telemetry.metering.error(failure)}
        instruments.record(
            "headway.attempt.duration", event.duration_s, timed, self._exemplar(attempt)
        )
        predicted_s = event.attempt.predicted_s
        if predicted_s is not None and event.result == "ok":
            instruments.record(
                "headway.select.prediction_error",
                abs(event.duration_s - predicted_s),
                {n.ENDPOINT_ID: endpoint_id},
            )

    def _retry_denied(self, _: CallRecord, event: RetryDenied) -> None:
        if self._instruments is not None:
            self._instruments.add("headway.retry.denied", 1, {n.RETRY_DENIED_BY: event.reason})

    def _dequeued(self, _: CallRecord, event: CallDequeued) -> None:
        if self._instruments is not None:
            self._instruments.record(
                "headway.queue.wait", event.wait_s, {n.PRIORITY: event.priority}
            )

    def _rejected(self, record: CallRecord, event: CallRejected) -> None:
        if self._instruments is not None and not record.is_observed:
            self._instruments.add(
                "headway.shed",
                1,
                {n.SHED_REASON: event.rejection.reason, n.PRIORITY: event.priority},
            )

    def _call_ended(self, record: CallRecord, _: CallEnded) -> None:
        self._call_span(record)

    # ----------------------------------------------------------------- spans

    def _call_span(self, record: CallRecord) -> Span | None:
        """Our call span. It starts when the call did, but is made once the first choice is known:
        samplers want provider and server."""
        if self._span is None and self._own and self._tracer is not None:
            from opentelemetry.trace import SpanKind, set_span_in_context

            facts = record.facts
            self._span = self._tracer.start_span(
                f"{a.operation(facts.surface)} {facts.model}",
                context=self._base,
                kind=SpanKind.CLIENT,
                attributes=a.call_start(record),
                start_time=self._started_ns,
            )
            self._context = set_span_in_context(self._span, self._base)
        return self._span

    def _attempt_span(self, record: CallRecord, attempt: AttemptRecord) -> Span | None:
        made: Any = attempt.span
        if made is not None:
            return made  # type: ignore[no-any-return]
        tracer = self._tracer
        if tracer is None:
            return None
        from opentelemetry.trace import SpanKind

        with _lock:
            made = attempt.span
            if made is not None:
                return made  # type: ignore[no-any-return]
            parent = self._call_span(record)
            if parent is not None and not parent.is_recording():
                # Not sampled: no attempt is, but what is sent must inherit the decision.
                attempt.span = parent
                return parent
            span = tracer.start_span(
                n.ATTEMPT_SPAN,
                context=self._context,
                kind=SpanKind.CLIENT,
                attributes=a.attempt_start(attempt),
            )
            attempt.span = span
        return span

    def settled(self, record: CallRecord) -> None:
        """End every span, and count money and tokens."""
        if self._tracer is not None:
            for attempt in record.attempts:
                span: Any = attempt.span
                if span is not None and span is not self._span:
                    quietly(_end_attempt, span, attempt)
        span = self._span
        if span is not None:
            quietly(self._end_call, span, record)
        if self._instruments is not None:
            self._count(record, self._instruments)

    def _end_call(self, span: Span, record: CallRecord) -> None:
        try:
            if span.is_recording():
                span.set_attributes(a.call_decisions(record, "owned" if self._own else "adopted"))
                if self._own:
                    span.set_attributes(a.call_answer(record, self._telemetry.semconv))
                    _set_error(span, a.call_error(record))
        finally:
            if self._own:
                span.end(_end_ns(record, self._started_ns))

    # ----------------------------------------------------------------- money and tokens

    def _count(self, record: CallRecord, instruments: Instruments) -> None:
        model = self._model(record)
        for attempt in record.attempts:
            cost = attempt.cost
            if cost is not None and cost.amount is not None:
                instruments.add(
                    "headway.cost",
                    float(cost.amount),
                    {
                        n.ENDPOINT_ID: attempt.endpoint.id,
                        n.REQUEST_MODEL: model,
                        n.COST_SOURCE: cost.source,
                        n.COST_WASTED: attempt.wasted,
                    },
                )
        shared = record.shared
        if shared is not None:
            _count_shared(shared, instruments, model)
        if self._own:
            count_call(record, instruments, self._telemetry, model)

    def _model(self, record: CallRecord) -> str:
        return self._telemetry.metering.model(record.facts.model)

    def _exemplar(self, attempt: AttemptRecord) -> Context | None:
        span: Any = attempt.span
        if span is None:
            return None
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(span)


def _count_shared(shared: Shared, instruments: Instruments, model: str) -> None:
    how: Attributes = {n.REQUEST_MODEL: model, n.DECISION: shared.decision or "share"}
    if shared.decision is not None:
        instruments.add("headway.calls.shared", 1, how)
    if shared.saved:
        instruments.add("headway.cost.saved", float(shared.saved), how)


def _end_attempt(span: Span, attempt: AttemptRecord) -> None:
    try:
        span.set_attributes(a.attempt_end(attempt))
        _set_error(span, a.attempt_error(attempt))
    finally:
        span.end(attempt.ended_wall_ns)


def _set_error(span: Span, failure: str | None) -> None:
    if failure is not None:
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute(n.ERROR_TYPE, failure)
        span.set_status(Status(StatusCode.ERROR))


def _end_ns(record: CallRecord, started_ns: int) -> int:
    """When the answer was surfaced; a hedge's loser may have been closed after it."""
    winner = record.winner
    if winner is not None and winner.ended_wall_ns is not None:
        return max(winner.ended_wall_ns, started_ns)
    return time.time_ns()


def traceparent_headers(span: Span) -> dict[str, str]:
    """W3C trace context (and tracestate) of a span; empty for one that has no valid context."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(span))
    return headers


_ACT: dict[type, Callable[[CallTelemetry, CallRecord, Any], None]] = {
    AttemptStarted: CallTelemetry._attempt_started,
    FirstToken: CallTelemetry._first_token,
    AttemptEnded: CallTelemetry._attempt_ended,
    RetryDenied: CallTelemetry._retry_denied,
    CallDequeued: CallTelemetry._dequeued,
    CallRejected: CallTelemetry._rejected,
    CallEnded: CallTelemetry._call_ended,
}
