"""OpenTelemetry: `setup` for applications that have none yet, `configure` for other settings.

    import headway.otel
    headway.otel.setup()        # SDK and OTLP exporters, as the standard OTEL_* variables say

Nothing else in Headway sets a provider.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger("headway")

_MISSING = (
    "headway.otel.setup() needs the OpenTelemetry SDK and an OTLP exporter: "
    'pip install "headway[otel]"'
)


def configure(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    semconv: str = "genai-0.1",
    gen_ai_spans: str = "auto",
    propagate_trace_context: bool = False,
    span_events: bool = False,
) -> None:
    """Choose how calls and tasks are told, before the first client is wrapped.

    Providers not given are the global ones of the moment; none is ever set here. `semconv` names
    what the GenAI conventions cover as their release 0.1 does ("genai-0.1") or as the semantic
    conventions 1.41 did ("1.41"). `gen_ai_spans`: "auto" uses the span of another instrumentation
    of the openai package where there is one, "always" opens our own beside it, "never" opens none.
    `propagate_trace_context` sends `traceparent` to every endpoint instead of to those that the
    policy says support "trace_context". `span_events` repeats verdicts as span events.

    Raises `ValueError` for an unknown name. Routers keep the settings they were made with.
    """
    from headway import telemetry

    telemetry.configure(
        tracer_provider=tracer_provider,
        meter_provider=meter_provider,
        logger_provider=logger_provider,
        semconv=semconv,
        gen_ai_spans=gen_ai_spans,
        propagate_trace_context=propagate_trace_context,
        span_events=span_events,
    )


def setup(*, service_name: str | None = None) -> bool:
    """Set up the OpenTelemetry SDK with OTLP exporters for spans, metrics and log events.

    Everything is read from the standard environment: OTEL_EXPORTER_OTLP_ENDPOINT (and _HEADERS,
    _PROTOCOL, the per-signal ones), OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
    OTEL_TRACES_SAMPLER, OTEL_{TRACES,METRICS,LOGS}_EXPORTER ("otlp", "console" or "none").
    `service_name` is used where the environment names none.

    Returns True when it was set up; False, with a warning and nothing changed, when the application
    already has a provider for any signal, or OTEL_SDK_DISABLED is true. Raises `ImportError` naming
    the extra when the SDK or the exporter is not installed, `ValueError` for an unknown exporter or
    protocol. The SDK flushes when the process ends.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        logger.warning("headway.otel.setup() did nothing: OTEL_SDK_DISABLED is true")
        return False
    try:
        from opentelemetry import metrics, trace
        from opentelemetry._logs import set_logger_provider
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as problem:
        raise ImportError(_MISSING) from problem
    taken = _taken()
    if taken:
        logger.warning(
            "headway.otel.setup() changed nothing: this application already has providers for %s, "
            "and Headway uses those",
            ", ".join(taken),
        )
        return False
    # Everything that can fail comes first: never half a setup.
    spans, points, records = _exporter("traces"), _exporter("metrics"), _exporter("logs")
    given = {} if service_name is None else {SERVICE_NAME: service_name}
    resource = Resource(given).merge(Resource.create())
    if service_name is not None and "OTEL_SERVICE_NAME" not in os.environ:
        resource = resource.merge(Resource(given))
    if spans is not None:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        tracer_provider = TracerProvider(resource=resource)
        tracer_provider.add_span_processor(BatchSpanProcessor(spans))
        trace.set_tracer_provider(tracer_provider)
    if points is not None:
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(points)
        metrics.set_meter_provider(MeterProvider(metric_readers=[reader], resource=resource))
    if records is not None:
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

        logger_provider = LoggerProvider(resource=resource)
        logger_provider.add_log_record_processor(BatchLogRecordProcessor(records))
        set_logger_provider(logger_provider)
    return True


def _taken() -> list[str]:
    """The signals that the application collects already."""
    from opentelemetry import metrics, trace
    from opentelemetry._logs import get_logger_provider

    from headway.telemetry.otel_api import is_stand_in

    providers = {
        "traces": trace.get_tracer_provider(),
        "metrics": metrics.get_meter_provider(),
        "logs": get_logger_provider(),
    }
    return [signal for signal, provider in providers.items() if not is_stand_in(provider)]


_OTLP = {
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}
_CONSOLE = {
    "traces": ("opentelemetry.sdk.trace.export", "ConsoleSpanExporter"),
    "metrics": ("opentelemetry.sdk.metrics.export", "ConsoleMetricExporter"),
    "logs": ("opentelemetry.sdk._logs.export", "ConsoleLogRecordExporter"),
}
_PROTOCOLS = {"http/protobuf": "http", "grpc": "grpc"}


def _exporter(signal: str) -> Any:  # one of three unrelated classes
    kind = os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").strip().lower() or "otlp"
    match kind:
        case "none":
            return None
        case "console":
            module, name = _CONSOLE[signal]
        case "otlp":
            specific = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL")
            general = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            protocol = (specific or general or "http/protobuf").strip().lower()
            if protocol not in _PROTOCOLS:
                raise ValueError(
                    f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; http/protobuf and grpc are known"
                )
            part, name = _OTLP[signal]
            module = f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[protocol]}.{part}"
        case _:
            raise ValueError(
                f"OTEL_{signal.upper()}_EXPORTER is {kind!r}; otlp, console and none are known"
            )
    try:
        return getattr(importlib.import_module(module), name)()
    except ImportError as problem:
        raise ImportError(_MISSING) from problem
