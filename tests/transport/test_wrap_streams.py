"""Streams in the application's hands: how they end, once, and what becomes of their connection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.core.model import AttemptEnded, FailureClass, FirstToken
from headway.core.snapshot import DeadlinePolicy
from headway.errors import HeadwayError, StreamInterrupted, StreamStalled, StreamTimedOut
from tests.servers import (
    DONE,
    FIN,
    OK_STREAM,
    ROLE,
    SSE,
    USAGE,
    Hang,
    R,
    chunk,
    completion,
    error,
    event,
)
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, policy


def ended(host: Host) -> list[Any]:
    deadline = time.monotonic() + 20
    while host.in_flight and time.monotonic() < deadline:
        time.sleep(0.005)
    return host.named(AttemptEnded)


BROKEN = {
    "reset": (SSE([ROLE, chunk("Hel"), chunk("lo")], end="rst"), StreamInterrupted),
    "end of file": (SSE([ROLE, chunk("Hel"), chunk("lo")], end="eof"), StreamInterrupted),
    "cut short": (SSE([ROLE, chunk("Hel"), chunk("lo")]), StreamInterrupted),
    "error event": (
        SSE([ROLE, chunk("Hel"), chunk("lo"), event(error("over", "server_error", 503))]),
        StreamInterrupted,
    ),
    "broken json": (SSE([ROLE, chunk("Hel"), chunk("lo"), b"data: {oops\n\n"]), StreamInterrupted),
    "silence": (SSE([ROLE, chunk("Hel"), chunk("lo"), 5.0]), StreamStalled),
    "pings only": (
        SSE([ROLE, chunk("Hel"), chunk("lo"), *([b": ping\n\n", 0.05] * 40)]),
        StreamStalled,
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_stream_says_what_had_come(
    fault: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    step, kind = BROKEN[fault]
    a, b = serve(step), serve(OK_STREAM)
    host = Host(policy({"a": a.url, "b": b.url}, deadline=DeadlinePolicy(idle_s=0.3)))
    client = caller(a.url, host, timeout=None)

    with pytest.raises(kind) as caught:
        client.text()

    broken = caught.value
    assert isinstance(broken, openai.APIConnectionError)
    assert isinstance(broken, openai.APITimeoutError) == (kind is StreamStalled)
    assert broken.partial.text == "Hello"
    assert broken.endpoint == "a"
    assert broken.usage is not None
    assert broken.usage.estimated
    assert len(b.hits) == 0
    [end] = ended(host)
    assert end.outcome.kind in (
        FailureClass.INCOMPLETE_STREAM,
        FailureClass.STALLED,
        FailureClass.OVERLOADED,
        FailureClass.SERVER_ERROR,
    )


def test_a_partial_tool_call_is_kept(serve: Callable[..., Any], caller: Callable[..., Any]) -> None:
    def delta(**call: Any) -> bytes:
        choice = {"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}}
        return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})

    a = serve(
        SSE(
            [
                delta(id="call_1", type="function", function={"name": "look", "arguments": ""}),
                delta(function={"arguments": '{"q": '}),
                delta(function={"arguments": '"x'}),
            ],
            end="eof",
        )
    )
    client = caller(a.url, Host(policy({"a": a.url})))

    with pytest.raises(StreamInterrupted) as caught:
        client.drain(client.chat(stream=True))

    [call] = caught.value.partial.tool_calls
    assert (call.id, call.name, call.arguments) == ("call_1", "look", '{"q": "x')


def test_the_total_deadline_ends_a_stream_that_keeps_coming(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, *([chunk("x"), 0.03] * 600)]))
    host = Host(policy({"a": a.url}, deadline=DeadlinePolicy(total_s=0.4)))
    client = caller(a.url, host, timeout=None)
    began = time.monotonic()

    with pytest.raises(StreamTimedOut) as caught:
        client.text()

    assert time.monotonic() - began < 0.4 + 8.0  # a busy machine; all of it takes eighteen
    assert caught.value.partial.text.startswith("xxx")
    assert isinstance(caught.value, openai.APITimeoutError)
    assert isinstance(caught.value, HeadwayError)


def test_the_applications_own_time_is_not_the_servers_silence(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, chunk("a"), 0.05, chunk("b"), 0.05, chunk("c"), FIN, DONE]))
    host = Host(policy({"a": a.url}, deadline=DeadlinePolicy(idle_s=0.5)))
    client = caller(a.url, host)

    stream = client.chat(stream=True)
    client.take(stream, 2)
    time.sleep(0.7)

    assert len(client.drain(stream)) >= 1


def test_what_came_before_the_first_token_arrives_unchanged(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    first = event(
        {"choices": [], "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]}
    )
    parts = [first, b": hello\n\n", ROLE, chunk("Hel"), chunk("lo"), FIN, USAGE, DONE]
    a = serve(SSE(parts))
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host)

    reply = client.raw(stream=True)
    if client.is_async:

        async def read() -> bytes:
            return b"".join([part async for part in reply.http_response.aiter_raw()])

        body = client.run(read())
    else:
        body = b"".join(reply.http_response.iter_raw())

    assert body.replace(b": hello\n\n", b"") == b"".join(p for p in parts if p != parts[1])
    [token] = host.named(FirstToken)
    assert token.ttft_s >= 0


def test_streams_reuse_one_connection(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK_STREAM)
    client = caller(a.url, Host(policy({"a": a.url})))

    for _ in range(4):
        assert client.text() == "Hello"

    assert a.connections == 1


def test_a_server_that_never_ends_its_body_holds_nobody_up(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, chunk("Hel"), chunk("lo"), FIN, DONE], end="noterm"))
    client = caller(a.url, Host(policy({"a": a.url})))
    began = time.monotonic()

    assert client.text() == "Hello"

    assert time.monotonic() - began < 20  # it is held for thirty


@pytest.mark.parametrize("how", ["close", "forget", "cancel"])
def test_a_stream_left_early_ends_its_attempt_once_and_frees_the_connection(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, *([chunk("x"), 0.02] * 200)]))
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host)
    if how == "cancel" and not client.is_async:
        pytest.skip("nothing to cancel without a loop")

    if how == "cancel":

        async def leave() -> None:
            async def consume() -> None:
                async for _ in await client.client.chat.completions.create(
                    model="m", messages=MESSAGES, stream=True
                ):
                    pass

            task = asyncio.create_task(consume())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        client.run(leave())
    else:
        stream = client.chat(stream=True)
        client.take(stream, 2)
        if how == "close":
            client.run(stream.close())
            client.run(stream.close())
        del stream
        for _ in range(3):  # generators of generators are finalised one layer at a time
            gc.collect()
            if client.is_async:
                client.run(asyncio.sleep(0.02))

    [end] = ended(host)
    assert end.outcome.kind is FailureClass.CANCELLED
    assert host.in_flight == 0
    deadline = time.monotonic() + 20
    while a.open_sockets and time.monotonic() < deadline:
        time.sleep(0.01)
    assert a.open_sockets == 0


def test_cancelling_while_the_head_is_awaited_ends_the_attempt(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    if kind.startswith("sync"):
        pytest.skip("nothing to cancel without a loop")
    a = serve(Hang(5))
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.client.chat.completions.create(model="m", messages=MESSAGES)

    client.run(leave())

    [end] = ended(host)
    assert end.outcome.kind is FailureClass.CANCELLED


def test_an_exception_of_the_application_leaves_nothing_behind(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, *([chunk("x"), 0.02] * 100)]))
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host)

    class MineError(Exception): ...

    def use() -> None:
        with client.chat(stream=True) as stream:
            for _ in stream:
                raise MineError

    async def ause() -> None:
        async with await client.client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True
        ) as stream:
            async for _ in stream:
                raise MineError

    with pytest.raises(MineError):
        client.run(ause()) if client.is_async else use()

    [end] = ended(host)
    assert end.outcome.kind is FailureClass.CANCELLED


@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "plain"])
def test_a_compressed_stream_is_read_all_the_same(
    packed: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    body = b"".join([ROLE, chunk("Hel"), chunk("lo"), FIN, DONE])
    step = (
        SSE([gzip.compress(body)], headers={"content-encoding": "gzip"}) if packed else SSE([body])
    )
    a = serve(step)
    host = Host(policy({"a": a.url}))

    assert caller(a.url, host).text() == "Hello"

    [end] = ended(host)
    assert end.outcome.kind is FailureClass.OK


def test_events_without_data_do_not_break_the_sdk(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(
        SSE([b"id: 7\n" + ROLE, b": ping\n\n", b"data:\n\n", chunk("Hello"), b"event: ping\n\n"])
    )
    a.steps[0].parts = [*a.steps[0].parts, FIN, DONE]

    assert caller(a.url, Host(policy({"a": a.url}))).text() == "Hello"


def test_helpers_that_stream_or_parse_work_as_ever(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(lambda seen: OK_STREAM if seen.json.get("stream") else R(200, completion('{"a": 1}')))
    client = caller(a.url, Host(policy({"a": a.url})))
    chat = client.client.chat.completions

    if client.is_async:

        async def streamed() -> str:
            async with chat.stream(model="m", messages=MESSAGES) as stream:
                final = await stream.get_final_completion()
            return str(final.choices[0].message.content)

        async def lines() -> list[str]:
            async with chat.with_streaming_response.create(model="m", messages=MESSAGES) as reply:
                assert reply.headers["x-headway-endpoint"] == "a"
                return [line async for line in reply.iter_lines()]

        assert client.run(streamed()) == "Hello"
        assert client.run(lines())
    else:
        with chat.stream(model="m", messages=MESSAGES) as stream:
            assert stream.get_final_completion().choices[0].message.content == "Hello"
        with chat.with_streaming_response.create(model="m", messages=MESSAGES) as reply:
            assert reply.headers["x-headway-endpoint"] == "a"
            assert list(reply.iter_lines())

    reply = client.raw()
    assert reply.retries_taken == 0
    assert reply.elapsed.total_seconds() > 0
    assert reply.http_response.is_closed
    parsed = client.run(chat.parse(model="m", messages=MESSAGES))
    assert parsed.choices[0].message.content == '{"a": 1}'


def pool_locks() -> list[Any]:
    """Of every connection pool that there is. The http library has no public way to them."""
    pools = [obj for obj in gc.get_objects() if type(obj).__name__ == "ConnectionPool"]
    locks = [pool._optional_thread_lock for pool in pools if hasattr(pool, "_optional_thread_lock")]
    assert locks
    return locks


def test_a_stream_that_the_collector_closes_under_a_lock_does_not_deadlock(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    if kind.startswith("async"):
        pytest.skip("async streams are closed by their loop, never by the collector")
    a = serve(SSE([ROLE, *([chunk("x"), 0.02] * 50)]))
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host)
    stream = client.chat(stream=True)
    client.take(stream, 2)
    cycle = [stream]
    cycle.append(cycle)
    gc.disable()
    try:
        del stream, cycle
        assert not host.named(AttemptEnded)
        with contextlib.ExitStack() as held:
            held.enter_context(host.engine.lock)
            for lock in pool_locks():
                held.enter_context(lock)
            gc.collect()
    finally:
        gc.enable()

    [end] = ended(host)
    assert end.outcome.kind is FailureClass.CANCELLED
