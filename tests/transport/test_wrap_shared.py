"""Shared requests and kept answers, with every kind of client and every way to call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headway.core.snapshot import CachePolicy
from tests.e2e.sharing import Crowd, Gate, callers, wait_until
from tests.servers import OK, OK_STREAM, Seen
from tests.transport.callers import MESSAGES, Caller
from tests.transport.hosts import Host, policy

ASKED: dict[str, Any] = {"model": "m", "messages": MESSAGES, "temperature": 0}


def as_asked(seen: Seen) -> Any:
    return OK_STREAM if seen.json.get("stream") else OK


async def _whole(completions: Any) -> str:
    return str((await completions.create(**ASKED)).choices[0].message.content)


async def _chunks(completions: Any) -> str:
    chunks = await completions.create(**ASKED, stream=True)
    return "".join([c.choices[0].delta.content or "" async for c in chunks])


async def _helper(completions: Any) -> str:
    async with completions.stream(**ASKED) as stream:
        return "".join([e.delta async for e in stream if e.type == "content.delta"])


async def _raw(completions: Any) -> str:
    reply = await completions.with_raw_response.create(**ASKED)
    return str(reply.parse().choices[0].message.content)


async def _bytes(completions: Any) -> str:
    streaming = completions.with_streaming_response
    async with streaming.create(**ASKED, stream=True) as reply:
        body = b"".join([piece async for piece in reply.iter_bytes()])
    return "hello" if body == b"".join(OK_STREAM.parts) else repr(body)  # type: ignore[arg-type]


class _Awaitable:
    """A sync resource, to be used like an async one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _Awaitable(found) if name.startswith("with_") or callable(found) else found

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _Result(self._inner(*args, **options))


class _Result:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __await__(self) -> Any:
        yield from ()
        return _Iterable(self._inner) if hasattr(self._inner, "__next__") else self._inner

    async def __aenter__(self) -> Any:
        return _Iterable(self._inner.__enter__())

    async def __aexit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)


class _Iterable:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def iter_bytes(self) -> Any:
        return _Iterable(self._inner.iter_bytes())

    async def __aiter__(self) -> Any:
        for item in self._inner:
            yield item


WAYS = {f.__name__.strip("_"): f for f in (_whole, _chunks, _helper, _raw, _bytes)}


def both(client: Caller, way: Any, host: Host, gate: Gate) -> list[str]:
    """Two calls at once, from the same client."""
    completions = client.client.chat.completions
    if not client.is_async:
        crowd = Crowd(2, lambda _: client.run(way(_Awaitable(completions))))
        wait_until(lambda: callers(host) == 2)
        gate.open()
        found: list[str] = crowd.join()
        assert crowd.errors == [None, None]
        return found

    async def gather() -> list[str]:
        calls = [asyncio.create_task(way(completions)) for _ in "12"]
        while callers(host) < 2:
            await asyncio.sleep(0.002)
        gate.open()
        return await asyncio.gather(*calls)

    answers: list[str] = client.run(gather())
    return answers


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_two_share_a_request_and_a_third_reuses_the_answer(
    way: Any, serve: Callable[..., Any], caller: Callable[..., Caller]
) -> None:
    gate = Gate(as_asked)
    server = serve(gate)
    host = Host(policy({"a": server.url}, coalesce=True, cache=CachePolicy(enabled=True)))
    client = caller(server.url, host)

    found = both(client, way, host, gate)
    completions = client.client.chat.completions
    again = client.run(way(completions if client.is_async else _Awaitable(completions)))

    assert {text.lower() for text in (*found, again)} == {"hello"}
    assert len(server.hits) == 1
    assert host.in_flight == 0
    assert not len(host.board)
