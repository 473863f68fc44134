"""An OTLP receiver in this process: what really goes over the wire, decoded from protobuf.

`Otlp` is a plain HTTP server on loopback; `Pipeline` is a real SDK whose exporters point at it.
Both are fixtures in `conftest.py`, and any end-to-end test may use them."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import Message
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}
STATUS = {0: "UNSET", 1: "OK", 2: "ERROR"}


@dataclass
class Span:
    name: str
    kind: str
    status: str
    trace_id: str
    span_id: str
    parent_id: str
    scope: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[str]
    events: list[str]


@dataclass
class Point:
    attributes: dict[str, Any]
    value: float | None = None
    count: int | None = None
    sum: float | None = None
    bounds: list[float] = field(default_factory=list)
    exemplar_trace_ids: list[str] = field(default_factory=list)


@dataclass
class Metric:
    name: str
    unit: str
    kind: str
    scope: str
    points: list[Point]

    def point(self, **wanted: Any) -> Point:
        """The one point whose attributes end in these names: `point(outcome="success")`."""
        found = [
            p
            for p in self.points
            if all(
                any(k == key or k.endswith(f".{key}") for k in p.attributes if p.attributes[k] == v)
                for key, v in wanted.items()
            )
        ]
        assert len(found) == 1, (wanted, self.points)
        return found[0]


@dataclass
class Log:
    event: str
    severity: str
    trace_id: str
    span_id: str
    attributes: dict[str, Any]


class Otlp:
    """Receives all three signals; `spans`, `metrics` and `logs` are what arrived since
    `clear()`."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.spans: list[Span] = []
        self.metrics: dict[str, Metric] = {}
        self.logs: list[Log] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def clear(self) -> None:
        with self._lock:
            self.raw, self.spans, self.metrics, self.logs = [], [], {}, []

    def take(self, path: str, body: bytes) -> None:
        with self._lock:
            self.raw.append(body)
            if path.endswith("/v1/traces"):
                self._spans(_parsed(ExportTraceServiceRequest(), body))
            elif path.endswith("/v1/metrics"):
                self._metrics(_parsed(ExportMetricsServiceRequest(), body))
            elif path.endswith("/v1/logs"):
                self._logs(_parsed(ExportLogsServiceRequest(), body))

    def _spans(self, request: Any) -> None:
        for resource in request.resource_spans:
            for scoped in resource.scope_spans:
                for s in scoped.spans:
                    self.spans.append(
                        Span(
                            s.name,
                            KINDS.get(s.kind, str(s.kind)),
                            STATUS[s.status.code],
                            s.trace_id.hex(),
                            s.span_id.hex(),
                            s.parent_span_id.hex(),
                            scoped.scope.name,
                            s.start_time_unix_nano,
                            s.end_time_unix_nano,
                            _attributes(s.attributes),
                            [link.trace_id.hex() for link in s.links],
                            [e.name for e in s.events],
                        )
                    )

    def _metrics(self, request: Any) -> None:
        for resource in request.resource_metrics:
            for scoped in resource.scope_metrics:
                for m in scoped.metrics:
                    kind = m.WhichOneof("data")
                    points = [_point(kind, p) for p in getattr(m, kind).data_points]
                    # Cumulative: the newest export holds everything.
                    self.metrics[m.name] = Metric(m.name, m.unit, kind, scoped.scope.name, points)

    def _logs(self, request: Any) -> None:
        for resource in request.resource_logs:
            for scoped in resource.scope_logs:
                for r in scoped.log_records:
                    self.logs.append(
                        Log(
                            r.event_name,
                            r.severity_text,
                            r.trace_id.hex(),
                            r.span_id.hex(),
                            _attributes(r.attributes),
                        )
                    )

    # ----------------------------------------------------------------- asking

    def named(self, name: str) -> list[Span]:
        return [s for s in self.spans if s.name == name]

    def one(self, name: str) -> Span:
        found = self.named(name)
        assert len(found) == 1, [s.name for s in self.spans]
        return found[0]

    def events(self, name: str) -> list[Log]:
        return [e for e in self.logs if e.event == name]

    def contains(self, text: str) -> bool:
        """Whether any exported byte sequence holds this text."""
        return any(text.encode() in body for body in self.raw)


def _parsed(message: Message, body: bytes) -> Message:
    message.ParseFromString(body)
    return message


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(v) for v in value.array_value.values]
    return getattr(value, kind) if kind else None


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _point(kind: str, p: Any) -> Point:
    found = Point(_attributes(p.attributes))
    if kind == "histogram":
        found.count, found.sum, found.bounds = p.count, p.sum, list(p.explicit_bounds)
    else:
        found.value = getattr(p, p.WhichOneof("value"))
    found.exemplar_trace_ids = [e.trace_id.hex() for e in p.exemplars]
    return found


class Pipeline:
    """A real SDK that exports to the receiver. Nothing here touches the global providers."""

    def __init__(self, otlp: Otlp, *, sampler: Sampler | None = None) -> None:
        resource = Resource.create({"service.name": "headway-tests"})
        self.otlp = otlp
        self.tracer_provider = TracerProvider(
            resource=resource, sampler=sampler, shutdown_on_exit=False
        )
        self.tracer_provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{otlp.url}/v1/traces"))
        )
        self._reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{otlp.url}/v1/metrics"),
            export_interval_millis=3_600_000,
        )
        self.meter_provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self.logger_provider = LoggerProvider(resource, shutdown_on_exit=False)
        self.logger_provider.add_log_record_processor(
            BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{otlp.url}/v1/logs"))
        )

    def flush(self) -> Otlp:
        """Send everything; returns the receiver."""
        self.tracer_provider.force_flush(10_000)
        self.meter_provider.force_flush(10_000)
        self.logger_provider.force_flush(10_000)
        return self.otlp

    def close(self) -> None:
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()
        self.logger_provider.shutdown()
