"""Telemetry: the core's events as OpenTelemetry spans, metrics and log events.

Works with the OpenTelemetry API alone, without any SDK, and without OpenTelemetry at all. It never
sets a provider: an application that has none yet may call `headway.otel.setup()`. There is one
`Telemetry` per process, because tasks belong to the process and not to a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.task.observe import add_observer, remove_observer
from headway.tasklog import TaskLog, ensure_installed
from headway.telemetry.names import EVENT_ROWS, LOG_EVENTS, METRICS
from headway.telemetry.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = [
    "EVENT_ROWS",
    "LOG_EVENTS",
    "METRICS",
    "TaskLog",
    "Telemetry",
    "configure",
    "install",
    "telemetry",
]

_telemetry = Telemetry()
add_observer(_telemetry)
ensure_installed()


def telemetry() -> Telemetry:
    """The telemetry of this process."""
    return _telemetry


def install(new: Telemetry) -> Telemetry:
    """Make `new` the telemetry of this process: tasks are told to it from now on.

    Routers keep the one they were made with.
    """
    global _telemetry
    remove_observer(_telemetry)
    _telemetry = new
    add_observer(new)
    return new


def configure(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    semconv: str = "genai-0.1",
    gen_ai_spans: str = "auto",
    propagate_trace_context: bool = False,
    span_events: bool = False,
) -> Telemetry:
    """Choose other settings than the defaults (see `Telemetry`). Call it before the first
    client."""
    return install(
        Telemetry(
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            logger_provider=logger_provider,
            semconv=semconv,
            gen_ai_spans=gen_ai_spans,
            propagate_trace_context=propagate_trace_context,
            span_events=span_events,
        )
    )
