"""Every managed surface fails over like chat, whole or streamed; the rest is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.core.model import AttemptEnded
from headway.core.snapshot import Endpoint, RetryPolicy
from headway.task import task
from tests.servers import DONE, SSE, R, error, event
from tests.transport.hosts import Host, policy

DOWN = R(503, error("down"))
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
TEXT = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}],
}
WHOLE: dict[str, tuple[Callable[[Any], Any], R]] = {
    "completions": (lambda c: c.completions.create(model="m", prompt="x"), R(200, TEXT)),
    "embeddings": (
        lambda c: c.embeddings.create(model="m", input=["x", "y"], encoding_format="float"),
        R(200, {"object": "list", "model": "m", "data": [{"index": 0, "embedding": [0.5]}]}),
    ),
    "moderations": (
        lambda c: c.moderations.create(input=["x", "y"]),
        R(200, {"id": "modr-1", "model": "m", "results": [{"flagged": False}]}),
    ),
    "responses": (lambda c: c.responses.create(model="m", input="x"), R(200, RESPONSE)),
    "input_tokens": (
        lambda c: c.responses.input_tokens.count(model="m", input="x"),
        R(200, {"object": "response.input_tokens", "input_tokens": 7}),
    ),
    "images": (
        lambda c: c.images.generate(model="m", prompt="x"),
        R(200, {"created": 1, "data": [{"b64_json": "aGk="}]}),
    ),
    "audio": (
        lambda c: c.audio.speech.create(model="m", input="x", voice="alloy"),
        R(200, b"\x00\x01\xffsound" * 5000, ctype="audio/mpeg"),
    ),
}
STREAMED: dict[str, tuple[Callable[[Any], Any], list[bytes]]] = {
    "completions": (
        lambda c: c.completions.create(model="m", prompt="x", stream=True),
        [event(TEXT), DONE],
    ),
    "responses": (
        lambda c: c.responses.create(model="m", input="x", stream=True),
        [
            event({"type": "response.created", "response": RESPONSE}),
            event({"type": "response.output_text.delta", "delta": "hello", "output_index": 0}),
            event({"type": "response.completed", "response": RESPONSE}),
        ],
    ),
    "images": (
        lambda c: c.images.generate(model="m", prompt="x", stream=True),
        [
            event({"type": "image_generation.partial_image", "b64_json": "aGk="}),
            event({"type": "image_generation.completed", "b64_json": "aGk="}),
        ],
    ),
}


@pytest.mark.parametrize("surface", WHOLE)
def test_a_call_of_any_surface_is_answered_by_the_next_endpoint(
    surface: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    call, answer = WHOLE[surface]
    a, b = serve(DOWN), serve(answer)
    other = Endpoint(id="b", base_url=b.url, model="n")
    host = Host(policy({"a": a.url, "b": other}))
    user = caller(a.url, host)

    with task("work") as work:
        reply = user.run(call(user.client))

    [first], [second] = a.hits, b.hits
    assert second.path == first.path
    assert second.json == {**first.json, "model": "n"}
    if surface == "audio":
        assert reply.content == answer.body
    assert [e.attempt.endpoint_id for e in host.named(AttemptEnded)] == ["a", "b"]
    assert host.records[0].facts.surface == surface
    assert (work.calls, work.attempts) == (1, 2)
    assert host.in_flight == 0


@pytest.mark.parametrize("surface", STREAMED)
def test_a_stream_of_any_surface_fails_over_until_its_first_content(
    surface: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    call, parts = STREAMED[surface]
    a, b = serve(SSE([], end="eof")), serve(SSE(parts))
    host = Host(policy({"a": a.url, "b": b.url}))
    user = caller(a.url, host)

    events = user.drain(user.run(call(user.client)))

    assert len(events) == len([part for part in parts if part is not DONE])
    assert (len(a.hits), len(b.hits)) == (1, 1)
    assert host.in_flight == 0


def test_speech_that_is_read_piece_by_piece_fails_over_until_its_first_byte(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    _, sound = WHOLE["audio"]
    a, b = serve(DOWN), serve(sound)
    user = caller(a.url, Host(policy({"a": a.url, "b": b.url})))
    speech = user.client.audio.speech.with_streaming_response
    options = {"model": "m", "input": "x", "voice": "alloy"}

    async def read() -> bytes:
        async with speech.create(**options) as reply:
            return b"".join([chunk async for chunk in reply.iter_bytes()])

    if user.is_async:
        assert user.run(read()) == sound.body
    else:
        with speech.create(**options) as reply:
            assert b"".join(reply.iter_bytes()) == sound.body
    assert len(a.hits) == 1


@pytest.mark.parametrize("surface", WHOLE)
def test_the_last_failure_of_any_surface_surfaces_once(
    surface: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    call, _ = WHOLE[surface]
    a, b = serve(DOWN), serve(R(500, error("b is down")))
    twice = RetryPolicy(attempts_max=2, budget_start=100, budget_capacity=100)
    host = Host(policy({"a": a.url, "b": b.url}, retry=twice))
    user = caller(a.url, host, max_retries=9)

    with pytest.raises(openai.InternalServerError, match="b is down"):
        user.run(call(user.client))
    assert (len(a.hits), len(b.hits)) == (1, 1)


def test_a_background_job_is_begun_once_and_at_home(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(500, error("ran, perhaps"))), serve(R(200, RESPONSE))
    user = caller(a.url, Host(policy({"b": b.url, "a": a.url})), max_retries=4)

    with pytest.raises(openai.InternalServerError):
        user.run(user.client.responses.create(model="m", input="x", background=True))

    assert (len(a.hits), len(b.hits)) == (1, 0)
