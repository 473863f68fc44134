"""The span tree on the wire: checks 1, 2, 5 and 11 of the telemetry contract."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from importlib import import_module

import pytest
from opentelemetry import trace

from headway.core.model import CANCELLED, Attempt, AttemptKind, FailureClass, Outcome
from headway.record import Books, CallRecord
from headway.telemetry import Telemetry
from tests.telemetry.otlp import Otlp, Pipeline
from tests.telemetry.play import E503, LOST, REFUSED, Player, Try, tokens

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

ANSWER = Try("us-1", usage=tokens(1000, 100), response_model="gpt-4o-2024-08-06", finish=["stop"])


def test_a_retried_call_is_four_spans_and_only_its_failed_attempt_is_an_error(
    play: Player, pipeline: Pipeline
) -> None:
    with tasks.task("t") as task:
        play(
            Try(outcome=E503),
            replace(ANSWER, kind=AttemptKind.RETRY),
            model="m",
        )
        task.succeed()
    seen = pipeline.flush()

    assert sorted(s.name for s in seen.spans) == [
        "chat m",
        "headway.attempt",
        "headway.attempt",
        "invoke_workflow t",
    ]
    root, call = seen.one("invoke_workflow t"), seen.one("chat m")
    first, second = sorted(
        seen.named("headway.attempt"), key=lambda s: s.attributes["headway.attempt.number"]
    )
    assert len({s.trace_id for s in seen.spans}) == 1
    assert root.parent_id == ""
    assert call.parent_id == root.span_id
    assert {first.parent_id, second.parent_id} == {call.span_id}
    assert [root.kind, call.kind, first.kind] == ["INTERNAL", "CLIENT", "CLIENT"]
    assert [root.status, call.status, second.status] == ["UNSET"] * 3
    assert first.status == "ERROR"
    assert first.attributes["error.type"] == "503"
    assert first.attributes["http.response.status_code"] == 503
    assert "http.request.resend_count" not in first.attributes
    assert second.attributes["http.request.resend_count"] == 1
    assert second.attributes["headway.attempt.kind"] == "retry"
    assert second.attributes["headway.endpoint.id"] == "us-1"


def test_the_call_span_says_what_was_decided_and_what_came_back(
    play: Player, pipeline: Pipeline
) -> None:
    with tasks.task("t"):
        play(
            Try(outcome=E503),
            Try(
                "us-1", usage=tokens(1000, 100, 600, 7), kind=AttemptKind.FALLBACK, finish=["stop"]
            ),
        )
    call = pipeline.flush().one("chat gpt-4o").attributes

    assert call["gen_ai.operation.name"] == "chat"
    assert call["gen_ai.provider.name"] == "openai"
    assert call["gen_ai.request.model"] == "gpt-4o"
    assert call["gen_ai.response.finish_reasons"] == ["stop"]
    assert call["gen_ai.usage.input_tokens"] == 1000
    assert call["gen_ai.usage.cache_read.input_tokens"] == 600
    assert call["gen_ai.usage.reasoning.output_tokens"] == 7
    assert call["server.address"] == "us-1.example"
    assert call["server.port"] == 8443
    assert call["headway.endpoint.id"] == "us-1"
    assert call["headway.policy.version"] == 7
    assert call["headway.policy.stale"] is False
    assert call["headway.call.attempts"] == 2
    assert call["headway.call.fallbacks"] == 1
    assert call["headway.call.retries"] == 0
    assert call["headway.call.mode"] == "owned"
    assert call["headway.cost.amount"] == 0.00275
    assert call["headway.cost.currency"] == "USD"
    assert call["headway.cost.complete"] is True


def test_the_task_span_carries_verdict_and_figures(play: Player, pipeline: Pipeline) -> None:
    with tasks.task("t", deadline=60, attributes={"team": "x"}) as task:
        play(Try(usage=tokens(1000, 100)))
        task.succeed(score=0.5)
    span = pipeline.flush().one("invoke_workflow t").attributes

    assert span["gen_ai.operation.name"] == "invoke_workflow"
    assert span["gen_ai.agent.name"] == "t"
    assert span["headway.task.id"] == task.id
    assert span["headway.task.outcome"] == "success"
    assert span["headway.task.outcome.source"] == "app"
    assert span["headway.task.score"] == 0.5
    assert span["headway.task.calls"] == 1
    assert span["headway.task.attempts"] == 1
    assert span["headway.task.depth"] == 0
    assert span["headway.task.deadline_s"] == pytest.approx(60)
    assert span["headway.cost.amount"] == 0.0035
    assert span["headway.cost.wasted"] == 0
    assert span["team"] == "x"


def test_tokens_are_on_exactly_one_span_per_call(play: Player, pipeline: Pipeline) -> None:
    with tasks.task("outer"):
        play(Try(outcome=REFUSED), ANSWER)
        with tasks.task("inner"):
            play(ANSWER)
            play(ANSWER, surface="embeddings")
    seen = pipeline.flush()

    assert sum("gen_ai.usage.input_tokens" in s.attributes for s in seen.spans) == 3
    for span in seen.spans:
        if span.name == "headway.attempt" or span.name.startswith("invoke_workflow"):
            assert not [k for k in span.attributes if k.startswith(("gen_ai.usage", "llm."))]
        if span.name == "headway.attempt":
            assert "gen_ai.operation.name" not in span.attributes
    assert seen.one("invoke_workflow inner").parent_id == seen.one("invoke_workflow outer").span_id
    assert seen.one("embeddings gpt-4o").parent_id == seen.one("invoke_workflow inner").span_id


def test_a_hedges_loser_is_priced_with_the_winners_prompt_and_wasted(
    play: Player, pipeline: Pipeline
) -> None:
    loser = LOST
    winner = Try("us-1", usage=tokens(1000, 100), kind=AttemptKind.HEDGE)
    with tasks.task("t") as task:
        record = play(loser, winner, prompt_tokens=777)
    seen = pipeline.flush()
    call = seen.one("chat gpt-4o")
    lost, won = sorted(
        seen.named("headway.attempt"), key=lambda s: s.attributes["headway.attempt.number"]
    )

    assert record.cost.amount == Decimal("0.006")
    assert record.wasted == Decimal("0.0025")
    assert task.wasted == Decimal("0.0025")
    assert call.attributes["headway.cost.amount"] == 0.006
    assert call.attributes["headway.cost.wasted"] == 0.0025
    assert call.attributes["headway.cost.source"] == "estimated"
    assert call.attributes["gen_ai.usage.input_tokens"] == 1000
    assert call.attributes["gen_ai.usage.output_tokens"] == 100
    assert call.attributes["headway.call.hedges"] == 1
    assert lost.parent_id == won.parent_id == call.span_id
    assert lost.attributes["headway.attempt.outcome"] == "lost"
    assert lost.status == "UNSET"
    assert won.attributes["headway.attempt.kind"] == "hedge"
    assert call.end_ns <= lost.end_ns


def test_a_call_outside_any_task_has_a_span_of_its_own_and_no_task_metric(
    play: Player, pipeline: Pipeline
) -> None:
    play(ANSWER)
    seen = pipeline.flush()

    assert seen.one("chat gpt-4o").parent_id == ""
    assert "headway.task.duration" not in seen.metrics
    assert seen.metrics["headway.cost"].points[0].value == 0.0035


def test_an_abandoned_stream_ends_its_call_span_once_with_an_error_as_finish(
    play: Player, pipeline: Pipeline
) -> None:
    with tasks.task("t") as task:
        record = play(
            Try(outcome=CANCELLED, chunks=3, ttft_s=0.2),
            stream=True,
            prompt_tokens=1000,
            max_output_tokens=50,
        )
        assert trace.get_current_span().get_span_context().is_valid  # the task's, not the call's
    seen = pipeline.flush()
    call = seen.one("chat gpt-4o")

    assert call.attributes["gen_ai.response.finish_reasons"] == ["error"]
    assert call.attributes["gen_ai.request.stream"] is True
    assert call.attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.2)
    assert "gen_ai.usage.input_tokens" not in call.attributes
    assert call.status == "UNSET"
    # 1000 tokens in, at least the 3 chunks out, at most the 50 that were allowed.
    assert record.cost.amount == Decimal("0.00253")
    assert task.wasted == record.cost.amount
    assert seen.one("headway.attempt").attributes["headway.cost.upper_bound"] == 0.003


def test_a_refused_call_is_an_error_named_by_its_reason(play: Player, pipeline: Pipeline) -> None:
    with tasks.task("t"):
        play.refuse("queue_full")
    seen = pipeline.flush()
    call = seen.one("chat gpt-4o")

    assert call.status == "ERROR"
    assert call.attributes["error.type"] == "queue_full"
    assert call.attributes["headway.cost.amount"] == 0
    assert seen.metrics["headway.shed"].point(reason="queue_full").value == 1
    assert seen.one("invoke_workflow t").status == "UNSET"


def test_a_call_that_finally_fails_is_an_error(play: Player, pipeline: Pipeline) -> None:
    play(Try(outcome=E503), denied="budget")
    call = pipeline.flush().one("chat gpt-4o")

    assert call.status == "ERROR"
    assert call.attributes["error.type"] == "503"
    assert call.attributes["headway.retry.denied_by"] == "budget"


def test_instrumentation_under_a_send_nests_under_its_attempt(
    play: Player, pipeline: Pipeline
) -> None:
    tracer = pipeline.tracer_provider.get_tracer("http")

    def send(_: CallRecord, __: Attempt) -> None:
        tracer.start_span("POST").end()

    play.while_sending = send
    with tasks.task("t"):
        play(Try(outcome=E503), ANSWER)
    seen = pipeline.flush()

    assert {s.parent_id for s in seen.named("POST")} == {
        s.span_id for s in seen.named("headway.attempt")
    }


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.operation.name": "chat"},
        {"openinference.span.kind": "LLM"},
        {"llm.request.type": "chat"},
    ],
)
def test_another_instrumentations_span_is_adopted_not_doubled(
    play: Player, pipeline: Pipeline, attributes: dict[str, str]
) -> None:
    other = pipeline.tracer_provider.get_tracer("another.instrumentation")
    with tasks.task("t"), other.start_as_current_span("chat gpt-4o", attributes=attributes):
        play(Try(outcome=E503), ANSWER)
    seen = pipeline.flush()
    call = seen.one("chat gpt-4o")

    assert call.scope == "another.instrumentation"
    assert call.attributes["headway.call.mode"] == "adopted"
    assert call.attributes["headway.cost.amount"] == 0.0035
    assert "gen_ai.usage.input_tokens" not in call.attributes  # theirs to set
    assert {s.parent_id for s in seen.named("headway.attempt")} == {call.span_id}
    assert not [m for m in seen.metrics if m.startswith("gen_ai.client")]


def test_an_agents_span_is_not_taken_for_the_call(play: Player, pipeline: Pipeline) -> None:
    other = pipeline.tracer_provider.get_tracer("agents")
    with other.start_as_current_span("a", attributes={"gen_ai.operation.name": "invoke_agent"}):
        play(ANSWER)
    seen = pipeline.flush()

    assert seen.one("chat gpt-4o").parent_id == seen.one("a").span_id


def test_spans_always_and_never(
    pipeline: Pipeline, make_telemetry: Callable[..., Telemetry]
) -> None:
    never = Player(Books(observer=make_telemetry(pipeline, gen_ai_spans="never")))
    outer = pipeline.tracer_provider.get_tracer("app")
    with outer.start_as_current_span("work"):
        never(ANSWER)
    seen = pipeline.flush()
    assert seen.one("headway.attempt").parent_id == seen.one("work").span_id
    assert not seen.named("chat gpt-4o")

    seen.clear()
    always = Player(Books(observer=make_telemetry(pipeline, gen_ai_spans="always")))
    with outer.start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
        always(ANSWER)
    assert pipeline.flush().one("chat gpt-4o").attributes["headway.call.mode"] == "owned"


def test_the_older_conventions_on_request(
    pipeline: Pipeline, make_telemetry: Callable[..., Telemetry]
) -> None:
    play = Player(Books(observer=make_telemetry(pipeline, semconv="1.41")))
    with tasks.task("t"):
        play(ANSWER)
    seen = pipeline.flush()

    assert seen.one("invoke_workflow t").attributes["gen_ai.workflow.name"] == "t"
    assert "gen_ai.client.operation.duration" in seen.metrics
    assert seen.metrics["gen_ai.client.token.usage"].point(type="input").sum == 1000
    assert not [m for m in seen.metrics if m.startswith("gen_ai.client.inference")]
    with pytest.raises(ValueError, match="genai-0"):
        Telemetry(semconv="2.0")


def test_trace_context_is_sent_only_where_it_is_wanted(
    pipeline: Pipeline, make_telemetry: Callable[..., Telemetry]
) -> None:
    sent: list[dict[str, str]] = []

    def send(record: CallRecord, attempt: Attempt) -> None:
        sent.append(record.propagation_headers(attempt))

    for settings in ({}, {"propagate_trace_context": True}):
        play = Player(Books(observer=make_telemetry(pipeline, **settings)))
        play.while_sending = send
        play(ANSWER)
    spans = pipeline.flush().named("headway.attempt")

    assert sent[0] == {}
    assert sent[1]["traceparent"].split("-")[2] in {s.span_id for s in spans}


async def test_concurrent_tasks_never_mix(play: Player, pipeline: Pipeline) -> None:
    async def work(number: int) -> None:
        async with tasks.task(f"t{number}") as task:
            await asyncio.sleep(0)
            record = play.open()
            attempt = play.start(record, Try(), 1)
            await asyncio.sleep(0)
            if number % 3 == 0:  # a stream abandoned half-way
                play.end(record, Try(outcome=CANCELLED, chunks=1, ttft_s=0.1), attempt)
                play.finish(record, attempt, CANCELLED)
            else:
                play.end(record, Try(usage=tokens(10, 1)), attempt)
                play.finish(record, attempt, Outcome(FailureClass.OK))
            task.succeed()

    await asyncio.gather(*(work(n) for n in range(100)))
    _check_tree(pipeline.flush(), 100)


def test_concurrent_tasks_in_threads_never_mix(play: Player, pipeline: Pipeline) -> None:
    def work(number: int) -> None:
        with tasks.task(f"t{number}"):
            play(Try(usage=tokens(10, 1)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(100)))
    _check_tree(pipeline.flush(), 100)


def test_a_hedge_thread_keeps_its_parent(play: Player, pipeline: Pipeline) -> None:
    with tasks.task("t"):
        record = play.open()
        first = play.start(record, Try(), 1)
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(
                play.start, record, Try("us-1", kind=AttemptKind.HEDGE), 2
            ).result()
        play.end(record, Try(usage=tokens(10, 1)), second)
        play.finish(record, second, Outcome(FailureClass.OK))
        first.lost = True
        play.end(record, LOST, first)
    seen = pipeline.flush()

    assert {s.parent_id for s in seen.named("headway.attempt")} == {seen.one("chat gpt-4o").span_id}


def _check_tree(seen: Otlp, n_tasks: int) -> None:
    ids = {s.span_id: s for s in seen.spans}
    assert len(seen.spans) == 3 * n_tasks == len(ids)
    assert len({s.trace_id for s in seen.spans}) == n_tasks
    for span in seen.spans:
        if span.parent_id:
            assert ids[span.parent_id].trace_id == span.trace_id  # no orphan, no stranger
    per_task = Counter(s.parent_id for s in seen.named("chat gpt-4o"))
    assert set(per_task.values()) == {1}
