"""What comes before the first token is held back, within bounds; what comes after the end is not
waited for, beyond bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from headway.transport.trial import HELD_BYTES_MAX, HELD_EVENTS_MAX
from headway.transport.watch import DRAIN_BYTES_MAX
from tests.servers import DONE, FIN, OK_STREAM, ROLE, SSE, chunk, event
from tests.transport.callers import Caller
from tests.transport.hosts import Host, policy


def start(**extra: Any) -> bytes:
    """An event of no content."""
    choice = {"index": 0, "delta": {}, "finish_reason": None}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **extra})


ENDLESS = {
    "events": [start(n=n) for n in range(HELD_EVENTS_MAX + 1)],
    "bytes": [start(pad="x" * 50_000)] * (HELD_BYTES_MAX // 50_000 + 1),
}


def first_bytes(client: Caller, reply: Any, size: int) -> bytes:
    """As much of a raw body as was sent."""
    if not client.is_async:
        body = b""
        for part in reply.http_response.iter_raw():
            body += part
            if len(body) >= size:
                break
        reply.http_response.close()
        return body

    async def read() -> bytes:
        body = b""
        async for part in reply.http_response.aiter_raw():
            body += part
            if len(body) >= size:
                break
        await reply.http_response.aclose()
        return body

    found: bytes = client.run(read())
    return found


@pytest.mark.parametrize("what", ENDLESS)
def test_a_beginning_that_does_not_end_is_handed_over_as_it_came(
    what: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    parts = ENDLESS[what]
    a = serve(SSE(parts, end="noterm"))
    client = caller(a.url, Host(policy({"a": a.url})))

    reply = client.raw(stream=True)  # returns, though no token ever comes

    whole = b"".join(parts)
    assert first_bytes(client, reply, len(whole)) == whole


@pytest.mark.parametrize("what", ENDLESS)
def test_a_beginning_within_the_bounds_can_still_be_made_good(
    what: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(SSE(ENDLESS[what][:-1], end="eof")), serve(OK_STREAM)

    assert caller(a.url, Host(policy({"a": a.url, "b": b.url}))).text() == "Hello"
    assert len(a.hits) == 1


def test_what_floods_in_after_the_end_is_not_read(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    flood = [b": " + b"x" * DRAIN_BYTES_MAX + b"\n\n"] * 2000
    a = serve(SSE([ROLE, chunk("Hello"), FIN, DONE, *flood]))
    client = caller(a.url, Host(policy({"a": a.url})))

    assert client.text() == "Hello"

    until = time.monotonic() + 20
    while a.open_sockets and time.monotonic() < until:
        time.sleep(0.005)
    assert a.open_sockets == 0
