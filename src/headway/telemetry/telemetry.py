"""Telemetry of a process: watches calls, observes tasks, and hears the engine's events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.core.model import (
    BreakerChanged,
    BudgetExhausted,
    CallRejected,
    CredentialBlocked,
    EndpointEjected,
    EndpointReadmitted,
    EndpointThrottled,
    Event,
    FleetStoreChanged,
    LimitChanged,
    PolicyLoaded,
    PolicyRejected,
    PolicyStale,
)
from headway.record import CallRecord, CallWatch
from headway.task.observe import TaskObserver
from headway.telemetry import names as n
from headway.telemetry import tasks
from headway.telemetry.calls import CallTelemetry, is_llm_span
from headway.telemetry.logs import EventLog
from headway.telemetry.metrics import Attributes, Gauged, Metering
from headway.telemetry.otel_api import Providers

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from headway.task import Task

log = logging.getLogger("headway")

EXHAUSTED_EVERY_S = 10.0
"""A drained budget is reported at most this often per pool."""
POOLS_MAX = 256
SHED_QUIET_S = 10.0
"""Shedding is over after this long without a refusal."""
_SHED_REASONS = frozenset({"queue_full", "queue_wait", "yielded"})


class Telemetry(TaskObserver):
    """Events to spans, metrics and log events. Made once per process; see `headway.telemetry`.

    Providers are used as given, else the global ones of the moment; none is ever set. `semconv` is
    "genai-0.1" or "1.41". `gen_ai_spans`: "auto" adopts the span of another LLM instrumentation
    where there is one, "always" opens our own beside it, "never" hangs attempts below whatever is
    current. `propagate_trace_context` sends `traceparent` to every endpoint; otherwise only to
    those whose policy entry supports "trace_context". `span_events` mirrors verdicts as span
    events, for backends that take traces only."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        semconv: str = "genai-0.1",
        gen_ai_spans: str = "auto",
        propagate_trace_context: bool = False,
        span_events: bool = False,
    ) -> None:
        if semconv not in n.SEMCONV:
            raise ValueError(f"semconv must be one of {', '.join(n.SEMCONV)}, got {semconv!r}")
        if gen_ai_spans not in ("auto", "always", "never"):
            raise ValueError(f"gen_ai_spans must be auto, always or never, got {gen_ai_spans!r}")
        self.semconv = n.SEMCONV[semconv]
        self.gen_ai_spans = gen_ai_spans
        self.propagate_trace_context = propagate_trace_context
        self._span_events = span_events
        self._providers = Providers(tracer_provider, meter_provider, logger_provider)
        self.metering = Metering(self._providers)
        self.metering.semconv = semconv
        self.events = EventLog(self._providers)
        self._exhausted_at: dict[str, float] = {}
        self._shed_at: float | None = None

    # ----------------------------------------------------------------- calls

    def watch(self, record: CallRecord) -> CallWatch | None:
        """See `headway.record.CallObserver`."""
        if self._shed_at is not None:
            self._calm(record.started_at)
        tracer = self._providers.tracer()
        instruments = self.metering.instruments()
        if tracer is None and instruments is None:
            return None
        from opentelemetry import context, trace

        adopted: Span | None = None
        if self.gen_ai_spans == "auto":
            current = trace.get_current_span()
            if is_llm_span(current):
                adopted = current
        base = None if tracer is None else context.get_current()
        return CallTelemetry(self, tracer, instruments, adopted, base)

    def is_idle(self) -> bool:
        """Whether no call is watched: nobody collects spans or metrics."""
        return self._shed_at is None and self._providers.are_known_to_be_none()

    def watch_router(self, router: Gauged) -> None:
        """Observe a router's breakers, budgets and policy age for as long as it lives."""
        self.metering.watch(router)

    # ----------------------------------------------------------------- the process

    def on_event(self, event: Event) -> None:
        """The sink for `Engine(on_event=...)` and for the policy refresher. Never raises."""
        act = _ACT.get(type(event))
        if act is not None:
            try:
                act(self, event)
            except Exception as problem:  # noqa: BLE001 - telemetry breaks nothing
                log.warning("telemetry failed and was ignored: %s", type(problem).__name__)

    def price_unknown(self, model: str, provider: str) -> None:
        """For `Pricer(on_unknown=...)`: once per model."""
        self.events.emit(n.PRICE_UNKNOWN, {n.REQUEST_MODEL: model, n.PROVIDER: provider})

    def _breaker(self, event: BreakerChanged) -> None:
        instruments = self.metering.instruments()
        if instruments is not None:
            instruments.add(
                "headway.breaker.transitions",
                1,
                {n.ENDPOINT_ID: event.endpoint_id, n.BREAKER_TO: event.new},
            )
        row = n.BREAKER_TRANSITION
        if event.new == "open":
            row = row._replace(severity="WARN")
        self.events.emit(
            row,
            {
                n.ENDPOINT_ID: event.endpoint_id,
                n.REQUEST_MODEL: event.model,
                n.BREAKER_FROM: event.old,
                n.BREAKER_TO: event.new,
                n.REASON: event.reason,
            },
        )

    def _throttled(self, event: EndpointThrottled) -> None:
        self.events.emit(
            n.ENDPOINT_THROTTLED,
            _until(event.at, event.until)
            | {n.ENDPOINT_ID: event.endpoint_id, n.REQUEST_MODEL: event.model},
        )

    def _credential(self, event: CredentialBlocked) -> None:
        self.events.emit(
            n.CREDENTIAL_BLOCKED,
            _until(event.at, event.until)
            | {n.ENDPOINT_ID: event.endpoint_id, n.REASON: event.reason},
        )

    def _ejected(self, event: EndpointEjected) -> None:
        self.events.emit(
            n.ENDPOINT_EJECTED,
            _until(event.at, event.until)
            | {n.ENDPOINT_ID: event.endpoint_id, n.REASON: event.reason},
        )

    def _readmitted(self, event: EndpointReadmitted) -> None:
        self.events.emit(n.ENDPOINT_READMITTED, {n.ENDPOINT_ID: event.endpoint_id})

    def _limit(self, event: LimitChanged) -> None:
        self.events.emit(n.LIMIT_CHANGED, {n.ENDPOINT_ID: event.endpoint_id, n.LIMIT: event.limit})

    def _exhausted(self, event: BudgetExhausted) -> None:
        last = self._exhausted_at.get(event.pool)
        if last is not None and event.at - last < EXHAUSTED_EVERY_S:
            return
        if len(self._exhausted_at) >= POOLS_MAX:
            self._exhausted_at.clear()
        self._exhausted_at[event.pool] = event.at
        self.events.emit(n.BUDGET_EXHAUSTED, {n.RETRY_BUDGET: event.pool})

    def _fleet(self, event: FleetStoreChanged) -> None:
        if event.is_reachable:
            self.events.emit(n.FLEET_RESTORED, {})
        else:
            self.events.emit(n.FLEET_LOST, {n.REASON: event.reason})

    def _loaded(self, event: PolicyLoaded) -> None:
        self.events.emit(
            n.POLICY_LOADED,
            {
                n.POLICY_ID: event.policy_id,
                n.POLICY_EPOCH: event.epoch,
                n.POLICY_VERSION: event.version,
                n.POLICY_SOURCE: event.source,
            },
        )

    def _refused(self, event: PolicyRejected) -> None:
        instruments = self.metering.instruments()
        if instruments is not None:
            instruments.add("headway.policy.rejections", 1, {n.REASON: event.reason})
        self.events.emit(
            n.POLICY_REJECTED,
            {
                n.POLICY_SOURCE: event.source,
                n.REASON: event.reason,
                n.MESSAGE: event.message,
            },
        )

    def _stale(self, event: PolicyStale) -> None:
        self.events.emit(
            n.POLICY_STALENESS,
            {
                n.POLICY_ID: event.policy_id,
                n.POLICY_VERSION: event.version,
                n.POLICY_AGE: event.age_s,
            },
        )

    def _shed(self, event: CallRejected) -> None:
        if event.rejection.reason not in _SHED_REASONS:
            return
        started = self._shed_at is None
        self._shed_at = event.at
        if started:
            self.events.emit(n.SHED_STARTED, {n.SHED_REASON: event.rejection.reason})

    def _calm(self, at: float) -> None:
        if self._shed_at is not None and at - self._shed_at >= SHED_QUIET_S:
            self._shed_at = None
            self.events.emit(n.SHED_STOPPED, {})

    # ----------------------------------------------------------------- tasks

    def task_opened(self, task: Task) -> None:
        """See `headway.task.TaskObserver`."""
        tracer = self._providers.tracer()
        if tracer is not None:
            task._notes[self] = tasks.open_span(task, tracer, self.semconv)

    def task_entered(self, task: Task) -> None:
        """Make its span current."""
        opened = self._span_of(task)
        if opened is not None:
            opened.enter()

    def task_left(self, task: Task) -> None:
        """Make its parent current again."""
        opened = self._span_of(task)
        if opened is not None:
            opened.leave()

    def task_closed(self, task: Task) -> None:
        """End its span; record metrics and the verdict."""
        opened = self._span_of(task)
        context = None if opened is None else opened.context
        tasks.count(task, self, context)
        self._say_verdict(task, opened)
        if opened is not None:
            tasks.close_span(task, opened)

    def task_reported(self, task: Task) -> None:
        """A late verdict: counted and logged under the span's context."""
        tasks.count_late(task, self)
        self._say_verdict(task, self._span_of(task))

    def _say_verdict(self, task: Task, opened: tasks.TaskSpan | None) -> None:
        said = tasks.verdict(task)
        if said is None:
            return
        self.events.emit(n.EVALUATION, said, None if opened is None else opened.context)
        if self._span_events and opened is not None and opened.span.is_recording():
            opened.span.add_event(n.EVALUATION.name, dict(said))

    def _span_of(self, task: Task) -> tasks.TaskSpan | None:
        found: tasks.TaskSpan | None = task._notes.get(self)
        return found


def _until(at: float, until: float) -> Attributes:
    return {n.FOR_SECONDS: max(0.0, until - at)}


_ACT: dict[type, Callable[[Telemetry, Any], None]] = {
    BreakerChanged: Telemetry._breaker,
    EndpointThrottled: Telemetry._throttled,
    CredentialBlocked: Telemetry._credential,
    EndpointEjected: Telemetry._ejected,
    EndpointReadmitted: Telemetry._readmitted,
    LimitChanged: Telemetry._limit,
    BudgetExhausted: Telemetry._exhausted,
    FleetStoreChanged: Telemetry._fleet,
    PolicyLoaded: Telemetry._loaded,
    PolicyRejected: Telemetry._refused,
    PolicyStale: Telemetry._stale,
    CallRejected: Telemetry._shed,
}
