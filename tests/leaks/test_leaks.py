"""What calls leave behind: nothing. Connections are counted where they end, at the server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import headway
from headway.core.model import AttemptEnded
from tests.leaks.soak import GROWTH_MAX_BYTES, soak
from tests.servers import (
    DONE,
    FIN,
    OK,
    OK_STREAM,
    ROLE,
    SSE,
    Close,
    R,
    Rst,
    Server,
    chunk,
    error,
    event,
)
from tests.transport.callers import Caller
from tests.transport.hosts import Host, policy

FAULTS = {
    "a status": R(503, error("down")),
    "no reply": Close(),
    "a reset": Rst(),
    "an error in a 200": R(200, error("down", code=502)),
    "a web page": R(200, b"<html></html>", ctype="text/html"),
    "an empty stream": SSE([DONE]),
    "an error event": SSE([ROLE, event(error("down", code=503))]),
    "a stream cut short": SSE([ROLE], end="eof"),
    "broken json": SSE([ROLE, b"data: {oops\n\n"]),
}
STREAMED = ("an empty stream", "an error event", "a stream cut short", "broken json")


class Leaps:
    """A clock that a test moves on between calls: breakers open in one and are half open in the
    next, so that each call begins at the endpoint that fails."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def sockets() -> int:
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(fd.readlink()).startswith("socket:")
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test there are no more threads than before, and nobody has complained."""
    threads = set(threading.enumerate())
    complaints: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, complaints.append
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", ResourceWarning)
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook
    until = time.monotonic() + 3.0
    while (new := set(threading.enumerate()) - threads) and time.monotonic() < until:
        time.sleep(0.01)  # closers of streams, threads of the scripted servers
    assert not [thread for thread in new if thread.is_alive()]
    assert not complaints
    assert not [str(w.message) for w in warned if issubclass(w.category, ResourceWarning)]


def failing_over(kind: str, fault: str, calls: int) -> None:
    is_stream = fault in STREAMED
    good = OK_STREAM if is_stream else OK
    clock = Leaps()
    with Server(FAULTS[fault]) as a, Server(good) as b:
        host = Host(policy({"a": a.url, "b": b.url}), clock=clock)
        before = sockets()
        caller = Caller(kind, a.url, host)
        for _ in range(calls):
            if is_stream:
                assert caller.text() == "Hello"
            else:
                assert caller.chat().choices[0].message.content == "hello"
            clock.ahead += 1000.0
        attempts = host.named(AttemptEnded)
        assert len(attempts) == 2 * calls
        assert len(b.hits) == calls
        assert host.in_flight == 0
        if caller.is_async:
            assert not caller.run(_tasks())
        caller.close()
        host.close()
        until = time.monotonic() + 3.0
        while a.open_sockets + b.open_sockets and time.monotonic() < until:
            time.sleep(0.005)
        assert (a.open_sockets, b.open_sockets) == (0, 0)
        assert sockets() <= before


async def _tasks() -> list[Any]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


KINDS = ["sync-httpx2", "async-httpx2"]


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("fault", ["a status", "a reset", "an error event", "a stream cut short"])
@pytest.mark.parametrize("kind", KINDS)
def test_failovers_leave_nothing_behind(kind: str, fault: str) -> None:
    failing_over(kind, fault, 12)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [*KINDS, "sync-httpx", "async-httpx"])
def test_a_thousand_failovers_leave_nothing_behind(kind: str, fault: str) -> None:
    failing_over(kind, fault, 1000)


def test_fifteen_streams_need_one_connection_where_the_plain_client_needs_fifteen() -> None:
    def read(client: openai.OpenAI) -> str:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        stream = client.chat.completions.create(model="m", messages=messages, stream=True)
        return "".join(c.choices[0].delta.content or "" for c in stream)

    with Server(OK_STREAM) as plain, Server(OK_STREAM) as wrapped:
        with openai.OpenAI(base_url=plain.url, api_key="sk-own") as client:
            for _ in range(15):
                assert read(client) == "Hello"
        with headway.wrap(openai.OpenAI(base_url=wrapped.url, api_key="sk-own")) as client:
            for _ in range(15):
                assert read(client) == "Hello"

        assert (plain.connections, wrapped.connections) == (15, 1)


@pytest.mark.parametrize("how", ["left", "in a cycle", "cancelled", "closed twice"])
def test_async_streams_that_are_dropped_are_closed_in_peace(how: str) -> None:
    complaints: list[Any] = []

    async def use(client: openai.AsyncOpenAI) -> None:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        seen = 0
        async for _ in stream:
            seen += 1
            if how == "cancelled":
                await asyncio.sleep(0.01)
            elif seen == 3:
                break
        if how == "in a cycle":
            cycle: list[Any] = [stream]
            cycle.append(cycle)
        if how == "closed twice":
            await asyncio.gather(stream.close(), stream.close())

    async def main(server: Server, host: Host) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        async with host.wrap(openai.AsyncOpenAI(base_url=server.url, api_key="k")) as client:
            for _ in range(10):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05 if how == "cancelled" else 10.0):
                        await use(client)
            until = time.monotonic() + 3.0
            while (host.in_flight or server.open_sockets) and time.monotonic() < until:
                gc.collect()
                await asyncio.sleep(0.01)
            assert host.in_flight == 0
            assert server.open_sockets == 0
            assert not await _tasks()

    with Server(SSE([ROLE, *[chunk("x"), 0.002] * 100, FIN, DONE])) as server:
        host = Host(policy({"a": server.url}))
        asyncio.run(main(server, host))
        assert len(host.named(AttemptEnded)) == 10
    assert complaints == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_calls_among_faults_leave_the_process_as_it_was() -> None:
    before, after, soaked = soak(100_000, seed=1)

    assert after.anon_bytes - before.anon_bytes < GROWTH_MAX_BYTES
    assert after.threads <= before.threads + 2
    assert soaked.came_to.total() == 100_000
