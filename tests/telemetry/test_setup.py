"""`headway.otel.setup()`: in a process of its own, against the receiver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.telemetry.otlp import Otlp

WORK = """
import headway as tasks, headway.otel, logging
logging.basicConfig()
from headway.record import Books
from headway.telemetry import telemetry
from tests.telemetry.play import Player, Try, tokens
print(headway.otel.setup(service_name="shop"))
with tasks.task("t") as task:
    Player(Books(observer=telemetry()))(Try("us-1", usage=tokens(1000, 100)))
    task.succeed()
print(headway.otel.setup())
"""


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, check=False, env=clean | environment,
    )  # fmt: skip


def test_one_call_sends_all_three_signals_and_a_second_changes_nothing(otlp: Otlp) -> None:
    done = run(WORK, OTEL_EXPORTER_OTLP_ENDPOINT=otlp.url, OTEL_METRICS_EXPORTER="otlp")

    assert done.stdout.split() == ["True", "False"], done.stderr
    assert "already has providers for traces, metrics, logs" in done.stderr
    assert len(otlp.spans) == 3
    assert otlp.metrics["headway.task.outcomes"].points[0].value == 1
    assert otlp.events("gen_ai.evaluation.result")
    assert otlp.contains("shop")


def test_it_does_nothing_where_the_sdk_is_disabled_or_a_provider_is_set(otlp: Otlp) -> None:
    done = run("import headway.otel as o; print(o.setup())", OTEL_SDK_DISABLED="true")
    assert done.stdout.strip() == "False"
    mine = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider(); trace.set_tracer_provider(provider)
import headway.otel
print(headway.otel.setup(), trace.get_tracer_provider() is provider)
from opentelemetry import metrics
print("Proxy" in type(metrics.get_meter_provider()).__name__)
"""
    assert run(mine).stdout.split() == ["False", "True", "True"]


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "'zipkin'; otlp, console and none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon", "http/protobuf and grpc are known"),
    ],
)
def test_an_unknown_exporter_is_named_and_nothing_is_half_set(
    variable: str, value: str, problem: str
) -> None:
    script = """
import headway.otel
from opentelemetry import trace
try:
    headway.otel.setup()
except ValueError as error:
    print(error, "Proxy" in type(trace.get_tracer_provider()).__name__)
"""
    out = run(script, **{variable: value}).stdout
    assert problem in out
    assert out.strip().endswith("True")


def test_signals_can_be_left_out() -> None:
    script = """
import headway.otel
from opentelemetry import metrics, trace
print(headway.otel.setup(), "Proxy" in type(trace.get_tracer_provider()).__name__)
"""
    names = ("TRACES", "METRICS", "LOGS")
    done = run(script, **{f"OTEL_{name}_EXPORTER": "none" for name in names})
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_the_names_of_the_older_conventions_can_be_chosen() -> None:
    done = run(
        """
import headway.otel
from headway import telemetry
headway.otel.configure(semconv="1.41")
print(telemetry.telemetry().semconv.workflow_name)
try:
    headway.otel.configure(semconv="2.0")
except ValueError as problem:
    print("ValueError" if "genai-0.1, 1.41" in str(problem) else problem)
"""
    )
    assert done.stdout.split() == ["gen_ai.workflow.name", "ValueError"], done.stderr
