"""Metrics, log events and the table behind them; checks 9, 10 and 12 of the telemetry contract."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from importlib import import_module
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from headway.core import model as core
from headway.core.model import AttemptKind, CallDequeued, Usage
from headway.record import Books
from headway.telemetry import EVENT_ROWS, LOG_EVENTS, METRICS, Telemetry
from headway.telemetry.names import TASK_LOGS, TASK_METRICS
from tests.telemetry.otlp import Otlp, Pipeline
from tests.telemetry.play import E503, LOST, Player, Try, tokens

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

ANSWER = Try("us-1", usage=tokens(1000, 100, 600, 7), response_model="gpt-4o-2024-08-06")

PROCESS_EVENTS: tuple[core.Event, ...] = (
    core.BreakerChanged("eu-1", "gpt-4o", "closed", "open", "5xx", 20.0, 10.0),
    core.BreakerChanged("eu-1", "gpt-4o", "open", "half_open", "probe", 0.0, 20.0),
    core.EndpointThrottled("eu-1", "gpt-4o", 12.0, 10.0),
    core.CredentialBlocked("azure-east", "eu-1", "auth", 70.0, 10.0),
    core.EndpointEjected("eu-1", "success_rate", 40.0, 10.0),
    core.EndpointReadmitted("eu-1", 40.0),
    core.LimitChanged("eu-1", 8.0, 10.0),
    core.FleetStoreChanged(False, "ConnectionError", 1.0),
    core.FleetStoreChanged(True, "", 2.0),
    core.BudgetExhausted("chat", 10.0),
    core.BudgetExhausted("chat", 15.0),
    core.BudgetExhausted("chat", 20.5),
    core.PolicyLoaded("acme", 1, 8, "https://policy.example", 10.0),
    core.PolicyRejected("https://policy.example", "invalid", "routes[0]: what\nis this", 10.0),
    core.PolicyStale("acme", 8, 400.0, 10.0),
)


# --------------------------------------------------------------------------- the table


def test_every_event_has_a_row_and_every_row_an_event() -> None:
    assert set(EVENT_ROWS) == set(core.EVENTS)
    assert {row.scope for row in EVENT_ROWS.values()} == {"call", "process"}


def test_every_metric_and_log_event_is_fed_by_something() -> None:
    fed = {name for row in EVENT_ROWS.values() for name in row.metrics} | set(TASK_METRICS)
    assert fed == {m.name for m in METRICS}
    logged = {event for row in EVENT_ROWS.values() for event in row.logs} | set(TASK_LOGS)
    assert logged == set(LOG_EVENTS)


def test_what_arrives_is_what_the_table_says(
    play: Player, telemetry: Telemetry, pipeline: Pipeline
) -> None:
    router = FakeRouter()
    telemetry.watch_router(router)
    everything(play, telemetry)
    seen = pipeline.flush()

    for row in METRICS:
        if row.profile not in (None, "genai-0.1") or row.name.endswith("cache_write.input_tokens"):
            continue
        metric = seen.metrics[row.name]
        assert metric.unit == row.unit, row.name
        assert metric.scope == "headway"
        assert metric.kind == {"histogram": "histogram", "gauge": "gauge"}.get(row.kind, "sum")
        for point in metric.points:
            assert set(point.attributes) <= set(row.dims), row.name
            if row.buckets is not None:
                assert tuple(point.bounds) == row.buckets
    assert set(seen.metrics) <= {m.name for m in METRICS}


def test_log_events_arrive_with_severity_and_a_stdlib_twin(
    play: Player, telemetry: Telemetry, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "headway"):
        everything(play, telemetry)
    seen = pipeline.flush()

    assert {e.event for e in seen.logs} | {"headway.price.unknown"} == {e.name for e in LOG_EVENTS}
    transitions = seen.events("headway.breaker.transition")
    assert [t.severity for t in transitions] == ["WARN", "INFO"]
    assert transitions[0].attributes["headway.breaker.to"] == "open"
    assert len(seen.events("headway.retry.budget.exhausted")) == 2  # not the one 5 s later
    stdlib = [r.getMessage() for r in caplog.records]
    assert not [m for m in stdlib if "\n" in m or "headway." in m]
    # What the policy's own logger has said is not said twice.
    said = {vars(r)["headway_event"]: r for r in caplog.records}
    silent = {"headway.policy.rejected", "headway.policy.stale", "headway.price.unknown"}
    assert set(said) == {e.name for e in LOG_EVENTS} - silent
    for record in said.values():
        assert "%(" not in record.getMessage()
    opened = next(m for m in stdlib if "breaker open" in m)
    assert opened == (
        "endpoint eu-1, model gpt-4o: breaker open (5xx). It gets single probes only, until "
        "one of them is answered"
    )
    fields = vars(said["headway.breaker.transition"])
    assert fields["headway.endpoint.id"] == "eu-1"
    verdict = seen.events("gen_ai.evaluation.result")[0]
    root = seen.one("invoke_workflow everything")
    assert (verdict.trace_id, verdict.span_id) == (root.trace_id, root.span_id)
    assert verdict.attributes["gen_ai.evaluation.score.label"] == "success"
    assert verdict.attributes["gen_ai.evaluation.score.value"] == 1.0


class FakeRouter:
    def breaker_states(self) -> list[tuple[str, str]]:
        return [("eu-1", "open"), ("us-1", "closed")]

    def budget_tokens(self) -> list[tuple[str, float]]:
        return [("chat", 2.5)]

    def policy_age_s(self) -> float | None:
        return 12.0


def everything(play: Player, telemetry: Telemetry) -> None:
    for event in PROCESS_EVENTS:
        telemetry.on_event(event)
    with tasks.task("everything") as task:
        record = play.open(stream=True)
        record.on_event(CallDequeued(1, 0, 0.3, play.now))
        attempt = play.start(record, ANSWER, 1)
        attempt.predicted_s = 0.8
        play.end(record, replace(ANSWER, ttft_s=0.2), attempt)
        play.finish(record, attempt, core.OK)
        play(Try(outcome=E503), denied="budget")
        refused = play.refuse("queue_full")
        assert refused.rejection is not None
        telemetry.on_event(core.CallRejected(1, refused.rejection, 0, 100.0))
        telemetry.on_event(core.CallRejected(1, refused.rejection, 0, 101.0))
        play.reuse(Decimal("0.0035"))
        play.now += 20.0  # no refusal for a while
        play(ANSWER, surface="embeddings")
        task.succeed()


# --------------------------------------------------------------------------- metrics


def test_gauges_read_routers_and_let_them_go(
    telemetry: Telemetry, pipeline: Pipeline, play: Player
) -> None:
    router = FakeRouter()
    telemetry.watch_router(router)
    seen = pipeline.flush()

    states = {
        p.attributes["headway.endpoint.id"]: p.value
        for p in seen.metrics["headway.breaker.state"].points
    }
    assert states == {"eu-1": 2, "us-1": 0}
    assert seen.metrics["headway.retry.budget.tokens"].points[0].value == 2.5
    assert seen.metrics["headway.policy.age"].points[0].value == 12.0
    seen.clear()
    del router
    assert "headway.breaker.state" not in pipeline.flush().metrics


def test_attempts_in_flight_come_back_to_zero(play: Player, pipeline: Pipeline) -> None:
    play(LOST, ANSWER)
    points = pipeline.flush().metrics["headway.inflight"].points
    assert {p.value for p in points} == {0}


def test_tokens_of_a_failed_call_count_as_zero(play: Player, pipeline: Pipeline) -> None:
    play(Try(outcome=E503))
    seen = pipeline.flush()
    used = seen.metrics["gen_ai.client.inference.usage.input_tokens"].points[0]
    assert used.value == 0
    assert used.attributes["gen_ai.token.modality"] == "unknown"
    assert used.attributes["error.type"] == "503"


def test_a_histogram_points_at_the_trace(play: Player, pipeline: Pipeline) -> None:
    with tasks.task("t"):
        play(ANSWER)
    seen = pipeline.flush()
    trace_id = seen.one("invoke_workflow t").trace_id
    assert seen.metrics["headway.task.duration"].points[0].exemplar_trace_ids == [trace_id]
    assert seen.metrics["headway.attempt.duration"].points[0].exemplar_trace_ids == [trace_id]


def test_sampling_has_no_say_in_metrics(
    otlp: Otlp, make_telemetry: Callable[..., Telemetry]
) -> None:
    figures = []
    for sampler in (None, ALWAYS_OFF):
        otlp.clear()
        pipeline = Pipeline(otlp, sampler=sampler)
        play = Player(Books(observer=make_telemetry(pipeline)))
        for _ in range(3):
            ticks = iter((0.0, 1.5))
            with tasks.task("t", clock=ticks.__next__) as task:
                play(Try(outcome=E503), replace(ANSWER, kind=AttemptKind.RETRY))
                play(LOST, ANSWER, prompt_tokens=10)
                task.succeed()
        seen = pipeline.flush()
        figures.append(
            {
                (name, *sorted(map(str, p.attributes.items()))): (p.value, p.count, p.sum)
                for name, m in seen.metrics.items()
                for p in m.points
            }
        )
        n_spans = len(seen.spans)
        pipeline.close()
        for telemetry in (play.books.observer,):
            tasks.remove_observer(telemetry)  # type: ignore[arg-type]
    assert n_spans == 0
    assert figures[0] == figures[1]


def test_dimensions_stay_bounded(play: Player, pipeline: Pipeline) -> None:
    for number in range(200):
        with tasks.task(f"job {number}", id=f"id-{number}"):
            play(Try("us-1", usage=tokens(1, 1)), model=f"model-{number}")
    seen = pipeline.flush()

    names = {
        p.attributes["headway.task.name"] for p in seen.metrics["headway.task.duration"].points
    }
    assert len(names) == 51
    assert "_other" in names
    models = {p.attributes["gen_ai.request.model"] for p in seen.metrics["headway.cost"].points}
    assert len(models) <= 101
    forbidden = {"headway.task.id", "headway.policy.version", "gen_ai.response.id"}
    for metric in seen.metrics.values():
        for point in metric.points:
            assert not forbidden & set(point.attributes)


def test_a_late_verdict_is_counted_and_logged_and_nothing_else_again(
    play: Player, pipeline: Pipeline
) -> None:
    with tasks.task("t") as task:
        play(ANSWER)
    pipeline.flush()
    task.report("success", score=0.9)
    seen = pipeline.flush()

    outcomes = {
        (p.attributes["headway.task.outcome"], p.attributes["headway.task.outcome.late"]): p.value
        for p in seen.metrics["headway.task.outcomes"].points
    }
    assert outcomes == {("unknown", False): 1, ("success", True): 1}
    assert seen.metrics["headway.task.duration"].points[0].count == 1
    assert seen.metrics["headway.task.cost"].points[0].count == 1
    verdict = seen.events("gen_ai.evaluation.result")[0]
    assert verdict.span_id == seen.one("invoke_workflow t").span_id
    assert verdict.attributes["gen_ai.evaluation.score.value"] == 0.9
    assert verdict.attributes["headway.task.outcome.source"] == "late"
    assert task.outcome == "success"


def test_a_part_in_another_process_adds_money_and_no_second_task(
    play: Player, pipeline: Pipeline
) -> None:
    with tasks.task("t") as task:
        headers = task.headers()
        play(ANSWER)
        task.succeed()
    with tasks.continue_task(headers) as part:
        play(ANSWER)
    seen = pipeline.flush()

    assert part.id == task.id
    spans = sorted(seen.named("invoke_workflow t"), key=lambda s: s.start_ns)
    assert spans[1].parent_id == spans[0].span_id
    assert spans[1].links == [spans[0].trace_id]
    assert len({s.trace_id for s in seen.spans}) == 1
    assert sum(p.count or 0 for p in seen.metrics["headway.task.duration"].points) == 1
    assert sum(p.sum or 0 for p in seen.metrics["headway.task.cost"].points) == pytest.approx(
        0.0055
    )


def test_span_events_mirror_the_verdict_for_backends_that_take_traces_only(
    pipeline: Pipeline, make_telemetry: Callable[..., Telemetry]
) -> None:
    make_telemetry(pipeline, span_events=True)
    with tasks.task("t") as task:
        task.succeed()
    assert pipeline.flush().one("invoke_workflow t").events == ["gen_ai.evaluation.result"]


# --------------------------------------------------------------------------- harm


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if span.name == "headway.attempt":
            raise OSError("disk full")

    def on_end(self, span: Any) -> None:
        raise OSError("disk full")


def test_broken_telemetry_never_reaches_the_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken())
    telemetry = Telemetry(tracer_provider=provider)
    tasks.add_observer(telemetry)
    try:
        play = Player(Books(observer=telemetry))
        with caplog.at_level(logging.WARNING, "headway"), tasks.task("t") as task:
            record = play(ANSWER)
            task.succeed()
    finally:
        tasks.remove_observer(telemetry)
    assert task.outcome == "success"
    assert task.cost == record.cost.amount
    assert any("telemetry failed" in r.getMessage() for r in caplog.records)


def test_an_observer_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Bad(tasks.TaskObserver):
        def task_opened(self, task: tasks.Task) -> None:
            raise ValueError("no")

    bad = Bad()
    tasks.add_observer(bad)
    try:
        with caplog.at_level(logging.WARNING, "headway"), tasks.task("t"):
            pass
    finally:
        tasks.remove_observer(bad)
    assert "Bad.task_opened failed and was ignored: ValueError" in caplog.text


def test_a_provider_set_later_is_used_from_then_on() -> None:
    script = """
import headway as tasks
from opentelemetry import metrics, trace
from headway.record import Books
from headway.telemetry import telemetry
from tests.telemetry.play import Player, Try, tokens
play = Player(Books(observer=telemetry()))
before = trace.get_tracer_provider(), metrics.get_meter_provider()
for _ in range(10):
    with tasks.task("early"):
        record = play(Try("us-1", usage=tokens(1, 1)))
assert record.wants_usage
assert before == (trace.get_tracer_provider(), metrics.get_meter_provider())
class R:
    def breaker_states(self): return [("e", "open")]
    def budget_tokens(self): return []
    def policy_age_s(self): return None
router = R()
telemetry().watch_router(router)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
out, reader = InMemorySpanExporter(), InMemoryMetricReader()
provider = TracerProvider(); provider.add_span_processor(SimpleSpanProcessor(out))
trace.set_tracer_provider(provider); metrics.set_meter_provider(MeterProvider([reader]))
with tasks.task("late"):
    play(Try("us-1", usage=tokens(1, 1)))
assert trace.get_tracer_provider() is provider
print(sorted(s.name for s in out.get_finished_spans()))
found = {m.name: m.data.data_points[0].value
         for r in reader.get_metrics_data().resource_metrics
         for s in r.scope_metrics for m in s.metrics if "inflight" not in m.name
         if hasattr(m.data.data_points[0], "value")}
print(found["headway.breaker.state"], found["headway.attempts"])
"""
    out = run(script)
    assert out == ["['chat gpt-4o', 'headway.attempt', 'invoke_workflow late']", "2 1"]


def test_without_a_provider_only_tasks_want_usage_and_nothing_is_watched() -> None:
    script = """
from headway.record import Books
from headway.telemetry import telemetry
from headway.core.model import CallFacts
import headway as tasks
books = Books(observer=telemetry())
print(books.open_call(CallFacts("m"), 0.0).wants_usage)
with tasks.task("t"): print(books.open_call(CallFacts("m"), 0.0).wants_usage)
"""
    assert run(script) == ["False", "True"]


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry._logs"])
def test_works_without(missing: str) -> None:
    script = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r} or name.startswith({missing + "."!r}):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import headway as tasks, headway.tasklog, headway.report, headway.otel
from headway.record import Books
from headway.telemetry import telemetry
from headway.core.model import BudgetExhausted
from tests.telemetry.play import Player, Try, tokens
t = telemetry()
class R: pass
r = R(); t.watch_router(r)
with tasks.task("t") as task:
    Player(Books(observer=t))(Try("us-1", usage=tokens(1000, 100)))
    task.headers()
    task.succeed()
t.on_event(BudgetExhausted("p", 1.0))
print(task.cost)
try:
    headway.otel.setup()
except ImportError as problem:
    print("headway[otel]" in str(problem))
"""
    assert run(script)[0] in ("0.0035", "0.003500", "0.0035000", "0.00350000")


def test_importing_loads_no_extra() -> None:
    script = """
import sys
import headway.task, headway.record, headway.cost, headway.telemetry, headway.tasklog
import headway.report, headway.otel, headway.tenacity
heavy = ("genai_prices", "opentelemetry", "tenacity", "rich")
print([m for m in sys.modules if m.split(".")[0] in heavy])
"""
    assert run(script) == ["[]"]


def run(script: str) -> list[str]:
    """Run in a fresh interpreter, as it would be imported."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# --------------------------------------------------------------------------- secrets

CANARY = "canary-7f3a-do-not-export"


def test_no_prompt_answer_or_key_is_in_anything_that_leaves(
    play: Player, pipeline: Pipeline, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from headway.tasklog import TaskLog

    log = TaskLog(tmp_path / "tasks.jsonl")
    tasks.add_observer(log)
    try:
        with caplog.at_level(logging.DEBUG):
            with pytest.raises(RuntimeError), tasks.task("t") as task:
                record = play(Try("us-1", usage=tokens(10, 1)))
                # Exceptions hold what the server said, and servers quote prompts and keys.
                raise RuntimeError(f"bad request: {CANARY}")
    finally:
        tasks.remove_observer(log)
    seen = pipeline.flush()

    assert not seen.contains(CANARY)
    assert CANARY not in (tmp_path / "tasks.jsonl").read_text()
    assert CANARY not in caplog.text
    assert CANARY not in repr((task, record, record.facts, record.attempts))
    assert seen.one("invoke_workflow t").attributes["error.type"] == "RuntimeError"


def test_metrics_alone_are_enough_to_be_live() -> None:
    reader = InMemoryMetricReader()
    telemetry = Telemetry(meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    record = Player(Books(observer=telemetry))(Try("us-1", usage=Usage(1, 1)))
    assert record.settled
