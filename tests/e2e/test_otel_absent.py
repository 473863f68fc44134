"""Without an SDK, without OpenTelemetry's help, and with providers that come late."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.replies import answer

SRC = Path(__file__).parents[2] / "src"


def run(script: str, url: str) -> Any:
    """Run in a fresh interpreter against a server of this test; what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


CALLS = """
import json, sys
import headway, openai

url = sys.argv[1]
policy = {
    "schema_version": "1.0", "version": 1,
    "endpoints": {"a": {"base_url": url, "price": {"input_per_mtok": "2.5", "output_per_mtok": "10"}}},
    "routes": [{"weights": {"a": 1}}],
}
with openai.OpenAI(api_key="k", base_url=url) as plain:
    client = headway.wrap(plain, policy)
"""

WITHOUT_SDK = (
    """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")):
            raise ImportError(name)

sys.meta_path.insert(0, Block())
"""
    + CALLS
    + """
    with headway.task("t") as task:
        for stream in (False, True):
            reply = client.chat.completions.create(model="m", messages=[], stream=stream)
            if stream:
                list(reply)
        task.succeed()
print(json.dumps([str(task.cost.normalize()), task.calls]))
"""
)

PROVIDERS = (
    CALLS
    + """
    from opentelemetry import metrics, trace
    from opentelemetry._logs import get_logger_provider

    def providers():
        return trace.get_tracer_provider(), metrics.get_meter_provider(), get_logger_provider()

    before = providers()
    for _ in range(10):
        with headway.task("early"):
            client.chat.completions.create(model="m", messages=[])
    untouched = [a is b for a, b in zip(before, providers())]

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans = InMemorySpanExporter()
    late = TracerProvider(shutdown_on_exit=False)
    late.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(late)
    with headway.task("late") as task:
        client.chat.completions.create(model="m", messages=[])
    names = sorted(s.name for s in spans.get_finished_spans())
    print(json.dumps([untouched, names, trace.get_tracer_provider() is late]))
"""
)

LOADED = (
    """
import sys
import headway
loaded = sorted(m for m in sys.modules
                if m.split(".")[0] == "genai_prices"
                or m.startswith(("opentelemetry.sdk", "opentelemetry.exporter")))
"""
    + CALLS
    + """
    client.chat.completions.create(model="m", messages=[])
    later = sorted(m for m in sys.modules
                   if m.split(".")[0] == "genai_prices" or m.startswith("opentelemetry.exporter"))
print(json.dumps([loaded, later]))
"""
)


def test_calls_work_where_only_the_otel_api_is_installed(serve: Callable[..., Any]) -> None:
    cost, calls = run(WITHOUT_SDK, serve(answer()).url)

    assert (cost, calls) == ("0.007", 2)


def test_providers_are_never_set_and_a_late_one_is_used(serve: Callable[..., Any]) -> None:
    untouched, names, still = run(PROVIDERS, serve(answer()).url)

    assert untouched == [True, True, True]
    assert names == ["chat m", "headway.attempt", "invoke_workflow late"]
    assert still


def test_neither_importing_nor_calling_loads_prices_or_an_exporter(
    serve: Callable[..., Any],
) -> None:
    assert run(LOADED, serve(answer()).url) == [[], []]
