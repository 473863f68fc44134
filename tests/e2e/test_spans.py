"""The span tree of real calls: wrapped clients, loopback servers, the real SDK, OTLP on the wire."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import openai
import pytest

from tests.e2e.fleet import MESSAGES, Fleet, asay, say
from tests.e2e.replies import answer, slowly
from tests.servers import DONE, FIN, ROLE, SSE, R, Seen, chunk, error
from tests.telemetry.otlp import Otlp, Pipeline, Span

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function


class FirstFails:
    """Two endpoints share this: whichever is asked first fails, the next answers."""

    def __init__(self, failure: Any) -> None:
        self._failure = failure
        self._asked = 0
        self._answer = answer(model="m")

    def __call__(self, seen: Seen) -> Any:
        self._asked += 1
        return self._failure if self._asked == 1 else self._answer(seen)


def attempts(seen: Otlp) -> list[Span]:
    found = seen.named("headway.attempt")
    return sorted(found, key=lambda s: s.attributes["headway.attempt.number"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_one_call_after_a_503_is_four_spans(
    colour: str,
    stream: bool,
    otel: Pipeline,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
) -> None:
    step = FirstFails(R(503, error("down")))
    servers = [serve(step), serve(step)]
    made = fleet({"eu-1": servers[0].url, "us-1": servers[1].url})

    if colour == "async":
        async with tasks.task("t") as task, made.async_client() as client:
            assert await asay(client, stream=stream) == "Hello"
            task.succeed()
    else:
        with tasks.task("t") as task:
            assert say(made.client(), stream=stream) == "Hello"
            task.succeed()
    seen = otel.flush()

    assert Counter(s.name for s in seen.spans) == {
        "invoke_workflow t": 1,
        "chat m": 1,
        "headway.attempt": 2,
    }
    root, call = seen.one("invoke_workflow t"), seen.one("chat m")
    first, second = attempts(seen)
    assert len({s.trace_id for s in seen.spans}) == 1
    assert (root.parent_id, call.parent_id) == ("", root.span_id)
    assert {first.parent_id, second.parent_id} == {call.span_id}
    assert [s.kind for s in (root, call, first, second)] == ["INTERNAL"] + ["CLIENT"] * 3
    assert [s.status for s in (root, call, first, second)] == ["UNSET", "UNSET", "ERROR", "UNSET"]
    assert first.attributes["error.type"] == "503"
    assert first.attributes["http.response.status_code"] == 503
    assert "http.request.resend_count" not in first.attributes
    assert second.attributes["http.request.resend_count"] == 1
    assert first.attributes["headway.endpoint.id"] != second.attributes["headway.endpoint.id"]
    assert call.attributes["headway.endpoint.id"] == second.attributes["headway.endpoint.id"]
    assert call.attributes["gen_ai.usage.input_tokens"] == 1000
    assert call.attributes["headway.call.attempts"] == 2
    assert call.attributes["headway.call.retries"] == 1
    assert call.attributes["server.port"] in {s.port for s in servers}
    assert root.attributes["headway.task.outcome"] == "success"
    assert second.end_ns <= root.end_ns
    assert first.start_ns >= call.start_ns >= root.start_ns


def test_tokens_are_on_call_spans_and_nowhere_else(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    step = FirstFails(R(503, error("down")))
    made = fleet({"a": serve(step).url, "b": serve(step).url})
    client = made.client()

    with tasks.task("outer"):
        say(client)
        say(client, stream=True)
        with tasks.task("inner"):
            say(client, stream=True, stream_options={"include_usage": True})
            client.embeddings.create(model="m", input="x", encoding_format="float")
    say(client)
    seen = otel.flush()

    calls = [s for s in seen.spans if s.name in ("chat m", "embeddings m")]
    counted = [s for s in seen.spans if "gen_ai.usage.input_tokens" in s.attributes]
    assert len(calls) == 5
    assert {s.span_id for s in counted} == {s.span_id for s in calls}
    assert len(seen.named("headway.attempt")) == 6
    for span in seen.spans:
        if span not in calls:
            assert not [k for k in span.attributes if k.startswith("gen_ai.usage")]
    inner, outer = seen.one("invoke_workflow inner"), seen.one("invoke_workflow outer")
    assert inner.parent_id == outer.span_id
    assert sorted(s.parent_id for s in calls) == sorted(
        [outer.span_id] * 2 + [inner.span_id] * 2 + [""]
    )


def test_a_failed_call_says_so_once(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    client = fleet({"a": serve(R(400, error("bad", "invalid_request_error"))).url}).client()

    with pytest.raises(openai.BadRequestError), tasks.task("t"):
        say(client)
    seen = otel.flush()

    call, [attempt] = seen.one("chat m"), attempts(seen)
    assert (call.status, attempt.status) == ("ERROR", "ERROR")
    assert call.attributes["error.type"] == attempt.attributes["error.type"] == "400"
    root = seen.one("invoke_workflow t")
    assert root.status == "ERROR"
    assert root.attributes["headway.task.outcome"] == "error"
    assert root.attributes["error.type"] == "BadRequestError"


# --------------------------------------------------------------------------- many at once

LONG = SSE([ROLE, *slowly(chunk("x"), 0.005, 40), FIN, DONE])


def _mixed(seen: Seen) -> Any:
    return LONG if seen.json.get("stream") else answer(10, 1)(seen)


def _check_tree(seen: Otlp, count: int, abandoned: int) -> None:
    by_id = {s.span_id: s for s in seen.spans}
    assert len(seen.spans) == 3 * count == len(by_id)
    assert len({s.trace_id for s in seen.spans}) == count
    for span in seen.spans:
        if span.parent_id:
            assert by_id[span.parent_id].trace_id == span.trace_id
    calls = seen.named("chat m")
    assert len(calls) == count
    for call in calls:
        task = by_id[call.parent_id]
        # The session names the task that made the call: it must hang below that very one.
        assert task.name == f"invoke_workflow {call.attributes['gen_ai.conversation.id']}"
    errors = [c for c in calls if c.attributes.get("gen_ai.response.finish_reasons") == ["error"]]
    assert len(errors) == abandoned


async def test_a_hundred_tasks_on_one_loop_never_mix(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    made = fleet({"a": serve(_mixed).url, "b": serve(_mixed).url})

    async def work(number: int) -> None:
        name = f"t{number}"
        async with tasks.task(name, session=name):
            if number % 4:
                await asay(client)
                return
            stream: Any = await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True
            )
            async for _ in stream:
                break
            if number % 8:
                await stream.close()

    async with made.async_client() as client:
        await asyncio.gather(*(work(n) for n in range(100)))
        gc.collect()  # streams that nobody closed end when they are collected
        while made.in_flight:
            await asyncio.sleep(0.01)
    made.ended()
    _check_tree(otel.flush(), 100, abandoned=25)


def test_a_hundred_tasks_in_sixteen_threads_never_mix(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    made = fleet({"a": serve(_mixed).url, "b": serve(_mixed).url})
    client = made.client()

    def work(number: int) -> None:
        name = f"t{number}"
        with tasks.task(name, session=name):
            if number % 4:
                say(client)
                return
            stream: Any = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            for _ in stream:
                break
            if number % 8:
                stream.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(100)))
    gc.collect()
    made.ended()
    _check_tree(otel.flush(), 100, abandoned=25)


def test_an_abandoned_stream_ends_its_call_once(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    made = fleet({"a": serve(LONG).url})

    with tasks.task("t"):
        stream: Any = made.client().chat.completions.create(
            model="m", messages=MESSAGES, stream=True
        )
        for _ in range(3):
            next(iter(stream))
        stream.close()
        stream.close()
    made.ended()
    seen = otel.flush()

    call, [attempt] = seen.one("chat m"), attempts(seen)
    assert call.attributes["gen_ai.response.finish_reasons"] == ["error"]
    assert call.attributes["gen_ai.request.stream"] is True
    assert call.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert "gen_ai.usage.output_tokens" not in call.attributes
    assert call.status == "UNSET"
    assert attempt.attributes["headway.attempt.outcome"] == "cancelled"


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_both_attempts_of_a_hedge_hang_below_their_call(
    colour: str, otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    slow_first = FirstFails(answer(text="late", delay=0.5)(_whole()))
    route = {"hedge": {"enabled": True, "delay_ms": 50, "max_extra_fraction": 1.0}}
    made = fleet({"a": serve(slow_first).url, "b": serve(slow_first).url}, route=route)

    with tasks.task("t"):
        if colour == "async":
            async with made.async_client() as client:
                assert await asay(client) == "Hello"
        else:
            assert say(made.client()) == "Hello"
    made.ended()
    seen = otel.flush()

    call, (lost, won) = seen.one("chat m"), attempts(seen)
    assert {lost.parent_id, won.parent_id} == {call.span_id}
    assert lost.attributes["headway.attempt.outcome"] == "lost"
    assert (lost.status, won.status, call.status) == ("UNSET",) * 3
    assert won.attributes["headway.attempt.kind"] == "hedge"
    assert call.attributes["headway.call.hedges"] == 1
    assert call.attributes["headway.endpoint.id"] == won.attributes["headway.endpoint.id"]


def _whole() -> Seen:
    return Seen(0.0, "POST /v1/chat/completions HTTP/1.1", {}, b"{}", 0)
