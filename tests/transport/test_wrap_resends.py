"""Where the SDK runs the retry loop, what it sends again is the same call: one call in the task,
its caps, its log, its span and its metrics, with as many attempts as were sent."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headway import telemetry
from headway.core.model import AttemptKind
from headway.core.snapshot import Endpoint, Price
from headway.cost import Pricer
from headway.errors import DeadlineExceeded, TaskLimitExceeded
from headway.task import task
from tests.servers import OK, OK_STREAM, R, Rst, error
from tests.transport.hosts import Host, own, policy

DOWN = R(503, error("down"), {"retry-after-ms": "1"})
MODES = ["own", "observe"]


def host_of(mode: str, url: str) -> Host:
    """No policy; or one that is only observed, whose endpoint is the client's own."""
    if mode == "own":
        return Host(own(url))
    priced = Endpoint(
        id="a", base_url=url, price=Price(input_per_mtok=Decimal(1), output_per_mtok=Decimal(2))
    )
    return Host(policy({"a": priced}), mode="observe")


@pytest.fixture(autouse=True, scope="module")
def _prices_are_loaded() -> None:
    """The first calls of a process wait for them, and so do their spans and lines."""
    Pricer().wait()


class Telemetry:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        telemetry.configure(tracer_provider=provider, meter_provider=MeterProvider([self.reader]))

    def named(self, name: str) -> list[Any]:
        return [s for s in self.exporter.get_finished_spans() if s.name == name]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def seen() -> Iterator[Telemetry]:
    before = telemetry.telemetry()
    yield Telemetry()
    telemetry.install(before)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    path = tmp_path / "tasks.jsonl"
    monkeypatch.setenv("HEADWAY_TASK_LOG", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_succeeds_when_sent_again_is_one_call(
    mode: str,
    seen: Telemetry,
    log: Callable[[], list[Any]],
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    a = serve(DOWN, OK)
    host = host_of(mode, a.url)
    client = caller(a.url, host, max_retries=2)

    with task("t", max_calls=1) as one:
        assert client.chat().choices[0].message.content == "hello"
        assert (one.calls, one.attempts) == (1, 2)
        one.succeed()

    [record] = host.records
    assert [(r.attempt.number, r.attempt.kind) for r in record.attempts] == [
        (1, AttemptKind.INITIAL),
        (2, AttemptKind.RETRY),
    ]
    assert [r.wasted for r in record.attempts] == [True, False]

    [line] = log()
    assert (line["n_calls"], line["n_attempts"]) == (1, 2)
    [call] = line["calls"]
    assert call["outcome"] == "ok"
    assert [(x["n"], x["kind"], x["result"]) for x in call["attempts"]] == [
        (1, "initial", "error"),
        (2, "retry", "ok"),
    ]

    [span] = seen.named("chat m")
    assert span.status.is_unset
    assert "error.type" not in span.attributes
    assert span.attributes["headway.call.attempts"] == 2
    assert span.attributes["headway.call.retries"] == 1
    assert span.attributes["gen_ai.usage.input_tokens"] == 1
    first, second = seen.named("headway.attempt")
    assert {first.parent.span_id, second.parent.span_id} == {span.context.span_id}
    assert "http.request.resend_count" not in first.attributes
    assert second.attributes["http.request.resend_count"] == 1

    [calls] = seen.points("gen_ai.client.inference.duration")
    assert calls.count == 1
    kinds = {p.attributes["headway.attempt.kind"] for p in seen.points("headway.attempts")}
    assert kinds == {"initial", "retry"}
    assert host.in_flight == 0
    if mode == "observe":
        assert host.status().observed == (1, 0, 0, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_connection_is_part_of_the_call_that_is_sent_again(
    mode: str, serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
    a = serve(Rst(), OK)
    client = caller(a.url, host_of(mode, a.url), max_retries=1)

    with task("t") as one:
        client.chat()

    assert (one.calls, one.attempts) == (1, 2)
    assert one.cost_complete or one.cost is None


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_is_sent_again_is_one_call(
    mode: str, seen: Telemetry, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(DOWN, OK_STREAM)
    client = caller(a.url, host_of(mode, a.url), max_retries=1)

    with task("t") as one:
        assert client.text() == "Hello"

    assert (one.calls, one.attempts) == (1, 2)
    [span] = seen.named("chat m")
    assert span.status.is_unset
    assert span.attributes["headway.call.attempts"] == 2


def test_what_the_failed_part_cost_is_wasted(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(503, error("down"), {"retry-after-ms": "1"}), OK)
    priced = Endpoint(id="a", base_url=a.url, price=Price(per_request=Decimal("0.01")))
    client = caller(a.url, Host(policy({"a": priced}), mode="observe"), max_retries=1)

    with task("t") as one:
        client.chat()
        one.succeed()

    wasted = one.wasted
    assert one.cost is not None
    assert one.cost - wasted == Decimal("0.01")


@pytest.mark.parametrize("mode", MODES)
def test_a_call_whose_attempts_all_fail_is_one_failed_call(
    mode: str,
    seen: Telemetry,
    log: Callable[[], list[Any]],
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    a = serve(DOWN)
    client = caller(a.url, host_of(mode, a.url), max_retries=2)

    with task("t") as one, pytest.raises(openai.InternalServerError):
        client.chat()
    assert (one.calls, one.attempts) == (1, 3)

    [span] = seen.named("chat m")  # it was over with its last attempt
    assert span.attributes["error.type"] == "503"
    assert span.attributes["headway.call.attempts"] == 3
    [line] = log()
    [call] = line["calls"]
    assert [x["n"] for x in call["attempts"]] == [1, 2, 3]
    assert call["outcome"] == "overloaded"


@pytest.mark.parametrize("mode", MODES)
def test_two_calls_are_two_calls(
    mode: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(DOWN, OK, DOWN, OK)
    client = caller(a.url, host_of(mode, a.url), max_retries=1)

    with task("t") as both:
        client.chat()
        client.chat()

    assert (both.calls, both.attempts) == (2, 4)


def test_the_cap_binds_the_call_after_it(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(DOWN, OK)
    client = caller(a.url, Host(own(a.url)), max_retries=1)

    with task("t", max_calls=1):
        client.chat()
        with pytest.raises(TaskLimitExceeded):
            client.chat()

    assert len(a.hits) == 2


# ------------------------------------------------------- when the SDK does otherwise than expected


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_not_sent_again_is_over_with_its_task(
    mode: str, seen: Telemetry, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(DOWN)
    client = caller(a.url, host_of(mode, a.url), max_retries=2)
    once = client.client.with_options(max_retries=0)

    with task("t") as one, pytest.raises(openai.InternalServerError):
        client.run(once.chat.completions.create(model="m", messages=[]))

    assert (one.calls, one.attempts) == (1, 1)
    assert one.cost_complete
    [span] = seen.named("chat m")
    assert span.attributes["error.type"] == "503"


def test_a_call_that_is_not_sent_again_is_over_with_the_next(
    seen: Telemetry, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(DOWN, OK)
    client = caller(a.url, Host(own(a.url)), max_retries=2)
    once = client.client.with_options(max_retries=0)

    with task("t") as both:
        with pytest.raises(openai.InternalServerError):
            client.run(once.chat.completions.create(model="m", messages=[]))
        gc.collect()
        client.chat()
        assert (both.calls, both.attempts) == (2, 2)
        assert both.cost_complete or both.cost is None

    failed, answered = seen.named("chat m")
    assert failed.attributes["error.type"] == "503"
    assert answered.status.is_unset
    durations = seen.points("gen_ai.client.inference.duration")
    calls = {point.attributes.get("error.type"): point.count for point in durations}
    assert calls == {"503": 1, None: 1}


@pytest.mark.parametrize("mode", MODES)
def test_more_resends_than_the_client_was_set_to_are_no_new_calls(
    mode: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(DOWN, DOWN, OK)
    client = caller(a.url, host_of(mode, a.url), max_retries=0)
    often = client.client.with_options(max_retries=3)

    with task("t", max_calls=1) as one:
        client.run(often.chat.completions.create(model="m", messages=[]))

    assert (one.calls, one.attempts) == (1, 3)
    assert one.cost_complete or one.cost is None


def test_a_header_of_the_applications_own_makes_no_call_a_resend(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    client = caller(a.url, Host(own(a.url)))

    with task("t") as both:
        for count in ("1", "many"):
            client.chat(extra_headers={"x-stainless-retry-count": count})

    assert (both.calls, both.attempts) == (2, 2)


def test_a_deadline_that_has_passed_stops_what_is_sent_again(
    serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = "openai._base_client.BaseClient._calculate_retry_timeout"
    monkeypatch.setattr(late, lambda *_: 0.2)
    a = serve(DOWN, OK)
    client = caller(a.url, Host(own(a.url)), max_retries=2)

    with task("t", deadline=0.15) as one, pytest.raises(DeadlineExceeded):
        client.chat()

    assert len(a.hits) == 1
    assert (one.calls, one.attempts) == (1, 1)
    assert one.cost_complete
