"""Chunks awaited on an event loop, where the connection itself keeps no time."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator

import anyio
import pytest

from headway.core.model import INFINITY, Attempt, AttemptKind
from headway.transport.limits import Limits
from headway.transport.timed import Timed


def limits(*, first: float = INFINITY, idle: float = INFINITY) -> Limits:
    now = time.monotonic()
    attempt = Attempt(
        number=1,
        kind=AttemptKind.INITIAL,
        endpoint_id="a",
        model="m",
        started_at=now,
        deadline_at=INFINITY,
        first_token_by=now + first,
        idle_s=idle,
    )
    return Limits(attempt, time.monotonic)


async def after(*pauses: float) -> AsyncIterator[bytes]:
    for pause in pauses:
        await anyio.sleep(pause)
        yield b"x"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_chunk_that_never_comes_is_a_timeout(backend: str) -> None:
    async def read() -> None:
        chunks = Timed(limits(first=0.05), after(60))
        with pytest.raises(TimeoutError):
            await chunks.__anext__()
        await anyio.sleep(0)  # nothing of the cancellation is left

    anyio.run(read, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_chunk_moves_the_limit_on(backend: str) -> None:
    async def read() -> int:
        made = limits(first=5.0, idle=0.2)
        seen = 0
        async for _ in Timed(made, after(0, *[0.03] * 10)):
            made.progressed()
            seen += 1
        return seen

    assert anyio.run(read, backend=backend) == 11


def test_the_limit_may_come_nearer() -> None:
    async def read() -> float:
        made = limits(first=60.0, idle=0.05)
        chunks = Timed(made, after(0, 60))
        await chunks.__anext__()
        made.progressed()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await chunks.__anext__()
        return time.monotonic() - began

    assert asyncio.run(read()) < 30.0


def test_a_cancellation_stays_a_cancellation() -> None:
    async def read() -> None:
        chunks = Timed(limits(first=60.0), after(60))
        task = asyncio.create_task(chunks.__anext__())  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Timed(limits(first=60.0), after(60)).__anext__()

    asyncio.run(read())


def test_the_clock_of_a_stream_does_not_keep_it_alive() -> None:
    async def read() -> None:
        chunks = Timed(limits(first=60.0), after(0.01, 60))
        await chunks.__anext__()
        gone = weakref.ref(chunks)
        del chunks
        gc.collect()
        assert gone() is None

    asyncio.run(read())


def test_nobody_is_interrupted_who_does_not_wait() -> None:
    async def read() -> None:
        made = limits(first=0.02)
        chunks = Timed(made, after(0, 0))
        await chunks.__anext__()
        await asyncio.sleep(0.1)  # the application thinks
        made.progressed()
        assert await chunks.__anext__() == b"x"

    asyncio.run(read())
