"""Going on from another endpoint after a stream broke off: where a route says so, and marked."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

import headway
from headway.core.model import AttemptEnded, BudgetExhausted, CallEnded, FailureClass
from headway.core.snapshot import ContinuationPolicy, DeadlinePolicy, RetryPolicy
from headway.errors import StreamInterrupted
from tests.servers import (
    DONE,
    FIN,
    ROLE,
    SSE,
    USAGE,
    R,
    chunk,
    error,
    event,
)
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, policy

GO_ON = ContinuationPolicy(enabled=True)
REST = SSE([ROLE, chunk(" wor"), chunk("ld"), FIN, USAGE, DONE])
BROKEN = {
    "end of file": SSE([ROLE, chunk("Hel"), chunk("lo")], end="eof"),
    "reset": SSE([ROLE, chunk("Hel"), chunk("lo")], end="rst"),
    "cut short": SSE([ROLE, chunk("Hel"), chunk("lo")]),
    "error event": SSE([ROLE, chunk("Hel"), chunk("lo"), event(error("over", code=503))]),
    "broken json": SSE([ROLE, chunk("Hel"), chunk("lo"), b"data: {oops\n\n"]),
    "silence": SSE([ROLE, chunk("Hel"), chunk("lo"), 5.0]),
}


def marks(chunks: list[Any]) -> list[dict[str, Any]]:
    return [c.model_extra["headway"]["continued"] for c in chunks if "headway" in c.model_extra]


def text(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


@pytest.mark.parametrize("fault", BROKEN)
def test_the_rest_comes_from_another_endpoint_and_the_seam_shows(
    fault: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(BROKEN[fault]), serve(REST)
    deadline = DeadlinePolicy(idle_s=0.3)
    host = Host(policy({"a": a.url, "b": b.url}, deadline=deadline, continuation=GO_ON))
    client = caller(a.url, host, timeout=None)

    chunks = client.drain(client.chat(stream=True, max_tokens=100))

    assert text(chunks) == "Hello world"
    [mark] = marks(chunks)
    reason = mark.pop("reason")
    assert reason
    assert mark == {"from_endpoint": "a", "endpoint": "b", "attempt": 2, "characters": 5}
    seam = next(i for i, c in enumerate(chunks) if "headway" in c.model_extra)
    assert text(chunks[:seam]) == "Hello"
    roles = [c for c in chunks if c.choices and c.choices[0].delta.role]
    assert len(roles) == 1  # the second beginning isn't shown
    sent = b.hits[0].json
    assert sent["messages"] == [*MESSAGES, {"role": "assistant", "content": "Hello"}]
    assert sent["max_tokens"] == 98
    first, second = host.named(AttemptEnded)
    assert first.outcome.kind is not FailureClass.OK
    assert second.outcome.kind is FailureClass.OK
    [ended] = host.named(CallEnded)
    assert ended.winner.endpoint_id == "b"
    assert host.in_flight == 0


def test_without_the_routes_word_nothing_goes_on(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(BROKEN["end of file"]), serve(REST)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    with pytest.raises(StreamInterrupted):
        client.text()

    assert len(b.hits) == 0


def delta(**value: Any) -> bytes:
    choice = {"index": 0, "delta": value, "finish_reason": None}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})


UNFIT: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "a tool call": (
        [chunk("Let me"), delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{"}}])],
        {},
    ),
    "no text yet": ([delta(reasoning_content="hm")], {}),
    "several choices": ([chunk("Hel")], {"n": 2}),
    "a schema": ([chunk('{"a"')], {"response_format": {"type": "json_object"}}),
    "a finished choice": ([chunk("Hel", "length"), delta(content="x")], {}),
}  # fmt: skip


@pytest.mark.parametrize("why", [*UNFIT])
def test_what_cannot_be_gone_on_with_in_words_is_an_interruption(
    why: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    parts, options = UNFIT[why]
    ending = "eof" if why != "a finished choice" else "rst"
    a, b = serve(SSE([ROLE, *parts], end=ending)), serve(REST)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url}, continuation=GO_ON)))

    with pytest.raises(StreamInterrupted):
        client.drain(client.chat(stream=True, **options))

    assert len(b.hits) == 0


def test_it_goes_on_from_a_continuation_too_until_attempts_run_out(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, chunk("one")], end="eof"))
    b = serve(SSE([ROLE, chunk(" two")], end="eof"))
    c = serve(SSE([ROLE, chunk(" three")], end="eof"), REST)
    fleet = {"a": a.url, "b": b.url, "c": c.url}
    host = Host(policy(fleet, continuation=GO_ON))
    client = caller(a.url, host)
    seen: list[Any] = []

    stream = client.chat(stream=True)
    with pytest.raises(StreamInterrupted) as caught:
        for _ in range(50):
            seen += client.take(stream, 1)

    assert [m["endpoint"] for m in marks(seen)] == ["b", "c"]
    assert text(seen) == "one two three"
    assert caught.value.partial.text == "one two three"
    assert caught.value.endpoint == "c"
    assert c.hits[0].json["messages"][-1]["content"] == "one two"
    assert len(c.hits) == 1  # three attempts, as for any call
    [ended] = host.named(CallEnded)
    assert ended.attempts == 3
    assert host.in_flight == 0


def test_where_nobody_can_go_on_the_interruption_is_told(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(BROKEN["reset"]), serve(R(400, error("no prefill", "invalid_request_error")))
    host = Host(policy({"a": a.url, "b": b.url}, continuation=GO_ON))
    client = caller(a.url, host)

    with pytest.raises(StreamInterrupted) as caught:
        client.text()

    assert caught.value.partial.text == "Hello"
    assert caught.value.endpoint == "a"
    assert any("b (400)" in note or "b (" in note for note in caught.value.__notes__)
    assert host.in_flight == 0


def test_the_budget_pays_for_it(serve: Callable[..., Any], caller: Callable[..., Any]) -> None:
    a, b = serve(BROKEN["reset"]), serve(REST)
    poor = RetryPolicy(attempts_max=3, budget_start=0, budget_capacity=1, budget_per_success=0)
    host = Host(policy({"a": a.url, "b": b.url}, retry=poor, continuation=GO_ON))

    with pytest.raises(StreamInterrupted):
        caller(a.url, host).text()

    assert len(b.hits) == 0
    assert len(host.named(BudgetExhausted)) == 1


def test_leaving_a_continuation_frees_its_connection(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(BROKEN["end of file"])
    b = serve(SSE([ROLE, *([chunk("x"), 0.02] * 200)]))
    host = Host(policy({"a": a.url, "b": b.url}, continuation=GO_ON))
    client = caller(a.url, host)

    stream = client.chat(stream=True)
    client.take(stream, 8)
    client.run(stream.close())

    last = host.named(AttemptEnded)[-1]
    assert last.outcome.kind is FailureClass.CANCELLED
    until = time.monotonic() + 20
    while (a.open_sockets or b.open_sockets) and time.monotonic() < until:
        time.sleep(0.01)
    assert (a.open_sockets, b.open_sockets) == (0, 0)
    assert host.in_flight == 0


def test_helpers_that_collect_a_stream_read_across_the_seam(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(BROKEN["end of file"]), serve(REST)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url}, continuation=GO_ON)))
    chat = client.client.chat.completions

    if client.is_async:

        async def collect() -> Any:
            async with chat.stream(model="m", messages=MESSAGES) as stream:
                return await stream.get_final_completion()

        final = client.run(collect())
    else:
        with chat.stream(model="m", messages=MESSAGES) as stream:
            final = stream.get_final_completion()

    assert final.choices[0].message.content == "Hello world"
    assert final.choices[0].message.role == "assistant"


def test_completions_go_on_with_their_prompt(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    def part(said: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": said, "finish_reason": finish}
        return event({"id": "c", "object": "text_completion", "choices": [choice]})

    a = serve(SSE([part("Hel"), part("lo")], end="eof"))
    b = serve(SSE([part(" world"), part("", "stop"), DONE]))
    rule = ContinuationPolicy(enabled=True, params={"cache_prompt": True})
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url}, continuation=rule)))

    create = client.client.completions.create
    chunks = client.drain(client.run(create(model="m", prompt="Say: ", stream=True)))

    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Hello world"
    assert b.hits[0].json["prompt"] == "Say: Hello"
    assert b.hits[0].json["cache_prompt"] is True


def test_what_the_first_half_cost_was_not_wasted(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(BROKEN["end of file"]), serve(REST, BROKEN["end of file"])
    router = headway.Router(
        headway.Policy.load(
            {
                "schema_version": "1.0",
                "version": 1,
                "endpoints": {
                    name: {
                        "base_url": url,
                        "price": {"input_per_mtok": "1", "output_per_mtok": "1"},
                    }
                    for name, url in {"a": a.url, "b": b.url}.items()
                },
                "routes": [
                    {
                        "weights": {"a": 1},
                        "fallback": [{"endpoint": "b"}],
                        "continuation": {"enabled": True},
                    }
                ],
            }
        )
    )
    client = caller(a.url, router)

    with headway.task("whole") as whole:
        assert client.text() == "Hello world"
    with headway.task("half") as half, pytest.raises(StreamInterrupted):
        client.text()

    assert whole.attempts == 2
    assert whole.cost > 0
    assert whole.wasted == Decimal(0)
    assert half.wasted == half.cost > 0
