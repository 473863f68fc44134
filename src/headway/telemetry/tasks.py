"""Tasks as spans, metrics and verdict events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headway.telemetry import attributes as a
from headway.telemetry import names as n
from headway.telemetry.calls import Current, traceparent_headers
from headway.telemetry.metrics import Attributes
from headway.telemetry.otel_api import quietly

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from headway.task import Task
    from headway.telemetry.telemetry import Telemetry

EVALUATION_OF_TASKS = "headway.task"
_ERRORS = frozenset({"failure", "error", "shed", "deadline"})


class TaskSpan:
    """The span of one task, and where it is current."""

    __slots__ = ("_entered", "context", "span")

    def __init__(self, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context

        self.span = span
        self.context: Context = set_span_in_context(span)
        self._entered: list[Current] = []

    def enter(self) -> None:
        """Make it current."""
        current = Current(self.span)
        current.__enter__()
        self._entered.append(current)

    def leave(self) -> None:
        """Make what was current before it current again."""
        if self._entered:
            self._entered.pop().__exit__(None, None, None)


def open_span(task: Task, tracer: Tracer, semconv: n.Semconv) -> TaskSpan:
    """Start a task's span: child of the current one, or of the process that the task came from."""
    from opentelemetry import trace

    context: Context | None = None
    links: list[trace.Link] = []
    if task.part_of:
        remote = _remote_context(task.part_of)
        origin = trace.get_current_span(remote).get_span_context()
        if origin.is_valid:
            links.append(trace.Link(origin))
            if not trace.get_current_span().get_span_context().is_valid:
                context = remote
    span = tracer.start_span(
        f"{n.WORKFLOW} {task.name}",
        context=context,
        kind=trace.SpanKind.INTERNAL,
        attributes=a.task_start(task, semconv),
        links=links,
    )
    if span.get_span_context().is_valid:
        task.traceparent = traceparent_headers(span).get("traceparent")
    return TaskSpan(span)


def _remote_context(traceparent: str) -> Context:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def close_span(task: Task, opened: TaskSpan) -> None:
    """End a task's span with its verdict and figures."""
    span = opened.span
    if span.is_recording():
        span.set_attributes(a.task_end(task))
        if task.outcome in _ERRORS:
            from opentelemetry.trace import Status, StatusCode

            span.set_attribute(n.ERROR_TYPE, task.error_type or task.outcome)
            span.set_status(Status(StatusCode.ERROR))
    lasted_s = task.duration_s
    end_ns = None if lasted_s is None else int((task.started_wall + lasted_s) * 1e9)
    quietly(span.end, _not_before(span, end_ns))


def _not_before(span: Any, end_ns: int | None) -> int | None:
    """A deferred task ends when its block did; a clock that a test drives says nothing of real
    time."""
    now = time.time_ns()
    start: int | None = getattr(span, "start_time", None)
    if end_ns is None or start is None or not start <= end_ns <= now:
        return now
    return end_ns


def verdict(task: Task) -> Attributes | None:
    """Attributes of the evaluation event; None when nobody gave a verdict."""
    if task.outcome not in ("success", "failure") or task.outcome_source is None:
        return None
    good = task.outcome == "success"
    found: Attributes = {
        n.EVALUATION_NAME: EVALUATION_OF_TASKS,
        n.EVALUATION_SCORE: task.score if task.score is not None else float(good),
        n.EVALUATION_LABEL: task.outcome,
        n.TASK_NAME: task.name,
        n.TASK_ID: task.id,
        n.TASK_OUTCOME_SOURCE: task.outcome_source,
    }
    if task.reason is not None:
        found[n.EVALUATION_EXPLANATION] = task.reason
    return found


def count(task: Task, telemetry: Telemetry, context: Context | None) -> None:
    """Record an outermost task; of a part done for another process only its money."""
    instruments = telemetry.metering.instruments()
    if instruments is None or task.parent is not None:
        return
    named: Attributes = {
        n.TASK_NAME: telemetry.metering.task_name(task.name),
        n.TASK_OUTCOME: task.outcome,
    }
    cost = task.cost
    if cost is not None:
        priced = named | {n.COST_SOURCE: task.cost_source}
        instruments.record("headway.task.cost", float(cost), priced, context)
    if task.part_of is None:
        duration_s = task.duration_s
        if duration_s is not None:
            instruments.record("headway.task.duration", duration_s, named, context)
        instruments.add("headway.task.outcomes", 1, named | {n.TASK_OUTCOME_LATE: False})


def count_late(task: Task, telemetry: Telemetry) -> None:
    """A verdict that came late is counted as such; cost and duration are not recorded again."""
    instruments = telemetry.metering.instruments()
    if instruments is not None and task.parent is None and task.part_of is None:
        instruments.add(
            "headway.task.outcomes",
            1,
            {
                n.TASK_NAME: telemetry.metering.task_name(task.name),
                n.TASK_OUTCOME: task.outcome,
                n.TASK_OUTCOME_LATE: True,
            },
        )
