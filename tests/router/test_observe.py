"""Observe mode: what would have been done is in the status and on the spans, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import headway
from headway import telemetry
from headway.testing import ScriptedEndpoints, document

PRICED = {"price": {"input_per_mtok": "1", "output_per_mtok": "2"}}
ASK: Any = {"model": "scripted-model", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = telemetry.telemetry()
    telemetry.configure(tracer_provider=provider)
    yield exporter
    telemetry.install(before)


def call_span(spans: InMemorySpanExporter) -> Any:
    [span] = [s for s in spans.get_finished_spans() if s.name.startswith("chat")]
    spans.clear()
    return span


def ask(fleet: ScriptedEndpoints, router: headway.Router) -> None:
    client = router.wrap(fleet.client(max_retries=0))
    client.chat.completions.create(**ASK)


def test_an_endpoint_that_would_have_been_chosen(spans: InMemorySpanExporter) -> None:
    policy = document(["a", "b"], weights={"b": 1}, endpoint=PRICED)
    with ScriptedEndpoints({"a": "hi", "b": "ho"}, policy=policy) as fleet:
        router = fleet.new_router(mode="observe")
        ask(fleet, router)
        assert fleet.sends == ["a"]
        assert router.status().observed == (1, 1, 0, 0)
    said = call_span(spans).attributes
    assert said["headway.endpoint.id"] == "a"
    assert said["headway.observed"]
    assert said["headway.observed.endpoint.id"] == "b"
    assert not said["headway.observed.retry"]


def test_a_retry_that_would_have_been_made(spans: InMemorySpanExporter) -> None:
    policy = document(["a"], endpoint=PRICED, route={"retry": {"max_attempts": 3}})
    with ScriptedEndpoints({"a": 503}, policy=policy) as fleet:
        router = fleet.new_router(mode="observe")
        with pytest.raises(openai.InternalServerError), headway.task("t"):
            ask(fleet, router)
        assert router.status().observed == (1, 0, 0, 1)
    span = call_span(spans)
    assert span.attributes["headway.observed.retry"]
    assert span.attributes["error.type"] == "503"
    assert "headway.observed.endpoint.id" not in span.attributes


def test_a_refusal_that_would_have_been_made(spans: InMemorySpanExporter) -> None:
    policy = document(["a"], endpoint={"state": "disabled", **PRICED})
    with ScriptedEndpoints({"a": "hi"}, policy=policy) as fleet:
        router = fleet.new_router(mode="observe")
        with headway.task("t") as task:
            ask(fleet, router)
        assert fleet.sends == ["a"]
        assert router.status().observed == (1, 0, 1, 0)
        assert task.cost is not None  # it was sent, and cost what it cost
        assert task.cost > 0
        assert task.cost_complete
    span = call_span(spans)
    assert span.attributes["headway.observed.rejected"] == "no_endpoint"
    assert "error.type" not in span.attributes
    assert span.status.is_unset


@pytest.mark.parametrize("stream", [False, True])
def test_the_cost_of_what_would_have_been_refused_needs_no_listener(stream: bool) -> None:
    policy = document(["a"], endpoint={"state": "disabled", **PRICED})
    with ScriptedEndpoints({"a": "hi"}, policy=policy) as fleet:
        client = fleet.new_router(mode="observe", on_event=None).wrap(fleet.client(max_retries=0))
        with headway.task("t") as task:
            for _ in client.chat.completions.create(**ASK, stream=stream):
                pass
        assert task.cost
        assert task.calls == 1


def test_an_observed_route_beside_enforced_ones() -> None:
    policy = document(["a", "b"], weights={"b": 1}, route={"mode": "observe"})
    with ScriptedEndpoints({"a": "hi", "b": "ho"}, policy=policy) as fleet:
        ask(fleet, fleet.router)
        assert fleet.sends == ["a"]
        assert fleet.router.status().observed.elsewhere == 1


def test_an_enforced_router_has_observed_nothing(spans: InMemorySpanExporter) -> None:
    policy = document(["a"], endpoint=PRICED)
    with ScriptedEndpoints({"a": "hi"}, policy=policy) as fleet:
        ask(fleet, fleet.router)
        assert fleet.router.status().observed == (0, 0, 0, 0)
    assert "headway.observed" not in call_span(spans).attributes
