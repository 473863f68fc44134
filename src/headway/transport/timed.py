"""Awaiting chunks no longer than an attempt may take, where its connection can't see to that.

HTTP/2 shares a connection among responses; aiohttp's and mock transports have none of httpcore's. A
cancel scope around each read would cost more than all else that is done per token. So on asyncio
one timer watches a whole stream; it is set anew only when it fires, which is seldom, since progress
moves the instant that it waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from contextlib import AbstractContextManager
from typing import Any, Self

import anyio

from headway.core.model import INFINITY
from headway.transport.limits import Limits


class Timed:
    """The same chunks; TimeoutError where the next one doesn't come in time."""

    __slots__ = ("__weakref__", "_chunks", "_is_late", "_limits", "_reader", "_timer", "_until")

    def __init__(self, limits: Limits, chunks: Any) -> None:
        self._limits = limits
        self._chunks = chunks
        self._timer: asyncio.TimerHandle | None = None
        self._until = INFINITY
        """The instant that it was set for."""
        self._reader: asyncio.Task[Any] | None = None
        """The task that waits for a chunk at present."""
        self._is_late = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        until = self._limits.until
        chunk: bytes
        if until == INFINITY:
            chunk = await self._chunks.__anext__()
            return chunk
        reader = _current_task()
        if reader is None:
            with anyio.fail_after(self._limits.left_s()):
                chunk = await self._chunks.__anext__()
            return chunk
        if self._timer is None or until < self._until:
            self._arm(reader.get_loop(), until)
        cancelled_before = reader.cancelling()
        self._reader = reader
        try:
            chunk = await self._chunks.__anext__()
        except asyncio.CancelledError:
            if self._is_late and reader.uncancel() <= cancelled_before:
                self._is_late = False
                raise TimeoutError from None
            raise
        except StopAsyncIteration:
            self.stop()
            raise
        finally:
            self._reader = None
        return chunk

    def stop(self) -> None:
        """Nothing more is awaited."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        self.stop()
        self._until = until
        # Weakly: a stream that was dropped must not be kept alive by its own clock.
        watched: weakref.ref[Timed] = weakref.ref(self)
        self._timer = loop.call_later(self._limits.left_s() or 0.0, _fire, watched, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer fired: has the wait been too long, or has it moved on?"""
        self._timer = None
        reader, until = self._reader, self._limits.until
        if reader is None or until == INFINITY:
            return  # whoever waits next sets it anew
        if self._limits.exceeded() is None:
            self._arm(loop, until)
        else:
            self._is_late = True
            reader.cancel()


def _fire(watched: weakref.ref[Timed], loop: asyncio.AbstractEventLoop) -> None:
    timed = watched()
    if timed is not None:
        timed._look(loop)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # trio


def within(seconds: float | None) -> AbstractContextManager[object]:
    """Bounds what is awaited inside; None: not at all."""
    return contextlib.nullcontext() if seconds is None else anyio.fail_after(seconds)
