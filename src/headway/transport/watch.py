"""The body of a reply in the application's hands, watched to its end. One class per colour.

They hand on what was held back, then what comes, and end the attempt exactly once: at the end, on
close, on an error, on cancellation, or when collected. Joined with the http family's stream class
where they are used (`family.byte_stream_class`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio

from headway.collecting import aside, is_collecting, outside
from headway.transport.continuing import marker
from headway.transport.handover import Handover
from headway.transport.limits import DRAIN_S
from headway.transport.timed import Timed

if TYPE_CHECKING:
    import httpx2

    from headway.transport.trial import Trial

DRAIN_BYTES_MAX = 64 * 1024
"""What follows the end of an answer is worth reading only if it is short."""


class WatchedStream:
    """A sync stream. Iterating it again goes on where it was."""

    def __init__(
        self,
        trial: Trial,
        source: httpx2.SyncByteStream,
        chunks: Iterator[bytes],
        go_on: Callable[[Trial, BaseException], Trial],
    ) -> None:
        self._trial = trial
        self._handover = Handover(trial)
        self._source = source
        self._chunks = chunks
        _open[id(self)] = (source, chunks)
        self._go_on = go_on
        self._rest: Any = None
        self._pid = os.getpid()
        self._is_over = False
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        handover, limits = self._handover, self._handover.limits
        out, error = self._trial.held(), None
        if out:
            limits.handed_over()
            yield out
            limits.resumed()
        if self._is_over:
            return
        quick = handover.quick
        try:
            for chunk in self._chunks:
                if out := quick(chunk):
                    limits.is_fresh = True
                    yield out
                    continue
                out, error = handover.passed(chunk)
                if error is not None:
                    break
                quick = handover.quick
                if out:
                    limits.handed_over()
                    yield out
                    limits.resumed()
            else:
                self._is_over = True
                out, error = handover.exhausted()
        except GeneratorExit:
            raise  # left alone, not ended: `close` says how
        except Exception as exc:  # noqa: BLE001 - judged there, raised below
            out, error = b"", handover.interrupted(exc)
        except BaseException:
            self._is_over = True
            self._trial.closed()
            raise
        self._is_over = True
        if out:
            yield out
        if error is None:
            return
        if not handover.goes_on:
            raise error
        self._trial.release()
        self._source.close()
        onward = self._go_on(self._trial, error)
        assert onward.response is not None
        self._rest = onward.response.stream
        yield marker(self._trial, onward)
        yield from self._rest

    def close(self) -> None:
        """End the attempt, wherever it is, and give the connection back."""
        if self._is_closed:
            return
        if is_collecting():
            outside(self.close)
            return
        self._is_closed = True
        opened = _open.pop(id(self), None)
        if opened is None:
            return  # another thread was faster
        if self._rest is not None:
            self._rest.close()
        if os.getpid() != self._pid:
            # The connection is the parent's, and so may be whoever held its pool's lock at the
            # fork: draining would steal its bytes, closing could wait for ever.
            _of_parent.append(opened)
            self._trial.closed()
            return
        try:
            if self._handover.wants_drain and not self._is_over:
                self._drain()
            self._trial.closed()
        finally:
            self._trial.release()
            self._trial.flight.forget()
            self._trial.response = None  # which holds this stream
            self._source.close()

    def _drain(self) -> None:
        self._trial.limits.drain()
        budget = DRAIN_BYTES_MAX
        with contextlib.suppress(Exception):  # the answer is complete, whatever comes now
            for chunk in self._chunks:
                budget -= len(chunk)
                if budget < 0 or self._trial.limits.exceeded():
                    return
        self._is_over = True

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            aside(self.close)


class AsyncWatchedStream:
    """An async stream. Iterating it again goes on where it was."""

    def __init__(
        self,
        trial: Trial,
        source: httpx2.AsyncByteStream,
        chunks: AsyncIterator[bytes],
        loop: Any,
        go_on: Callable[[Trial, BaseException], Awaitable[Trial]],
    ) -> None:
        self._trial = trial
        self._handover = Handover(trial)
        self._source = source
        self._chunks = chunks
        _open[id(self)] = (source, chunks)
        self._loop = loop
        needs_timer = (
            trial.limits.is_bounded and not trial.reads_are_limited and not trial.flight.is_observed
        )
        self._awaited = Timed(trial.limits, chunks) if needs_timer else chunks
        self._go_on = go_on
        self._rest: Any = None
        self._pid = os.getpid()
        self._is_over = False
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        handover, limits = self._handover, self._handover.limits
        out, error = self._trial.held(), None
        if out:
            limits.handed_over()
            yield out
            limits.resumed()
        if self._is_over:
            return
        quick = handover.quick
        try:
            async for chunk in self._awaited:
                if out := quick(chunk):
                    limits.is_fresh = True
                    yield out
                    continue
                out, error = handover.passed(chunk)
                if error is not None:
                    break
                quick = handover.quick
                if out:
                    limits.handed_over()
                    yield out
                    limits.resumed()
            else:
                self._is_over = True
                out, error = handover.exhausted()
        except GeneratorExit:
            raise  # left alone, not ended: `aclose` says how
        except Exception as exc:  # noqa: BLE001 - judged there, raised below
            out, error = b"", handover.interrupted(exc)
        except BaseException:
            self._is_over = True
            self._trial.closed()
            raise
        self._is_over = True
        if out:
            yield out
        if error is None:
            return
        if not handover.goes_on:
            raise error
        self._trial.release()
        await self._source.aclose()
        onward = await self._go_on(self._trial, error)
        assert onward.response is not None
        self._rest = onward.response.stream
        yield marker(self._trial, onward)
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        """End the attempt, wherever it is, and give the connection back."""
        if self._is_closed:
            return
        if is_collecting():  # of a loop that has ended: nothing can be awaited
            self.__del__()
            return
        self._is_closed = True
        if self._rest is not None:
            await self._rest.aclose()
        if os.getpid() != self._pid:  # as above
            self.__del__()
            return
        self._trial.closed()
        try:
            if self._handover.wants_drain and not self._is_over:
                await self._drain()
        finally:
            self._trial.release()
            self._trial.flight.forget()
            self._trial.response = None  # which holds this stream
            _open.pop(id(self), None)
            await self._source.aclose()
            if not self._is_over:
                await _finish(self._chunks)

    async def _drain(self) -> None:
        self._trial.limits.drain()
        budget = DRAIN_BYTES_MAX
        with contextlib.suppress(Exception), anyio.move_on_after(DRAIN_S):
            async for chunk in self._chunks:
                budget -= len(chunk)
                if budget < 0:
                    return
            self._is_over = True

    def __del__(self) -> None:
        opened = _open.pop(id(self), None)
        if opened is None:
            return
        self._is_closed = True
        aside(_end, self._trial)
        if os.getpid() != self._pid:
            _of_parent.append(opened)
            return
        with contextlib.suppress(Exception):
            if isinstance(self._loop, asyncio.AbstractEventLoop) and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_close_later, self._loop, *opened)


def _end(trial: Trial) -> None:
    trial.closed()
    trial.release()


def _close_later(
    loop: asyncio.AbstractEventLoop, source: httpx2.AsyncByteStream, chunks: Any
) -> None:
    task = loop.create_task(_close_source(source, chunks))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close_source(source: httpx2.AsyncByteStream, chunks: Any) -> None:
    await _finish(chunks)
    with contextlib.suppress(Exception):
        await source.aclose()


async def _finish(chunks: Any) -> None:
    """End a generator, so that the loop need not do it when it is collected."""
    if (aclose := getattr(chunks, "aclose", None)) is not None:
        with contextlib.suppress(Exception):  # it may be in use, or the http library's own affair
            await aclose()


_open: dict[int, tuple[Any, Any]] = {}
"""What streams in the application's hands read from, by their identity. A stream that is dropped is
collected alone, and closes it in order. Collected together, the http library's nested generators
would be finished by the collector itself, wherever it happens to run: a sync one waits for the
pool's lock, also in the thread that holds it; async ones are finished by the loop all at once, and
get into each other's way ("asynchronous generator is already running")."""

_of_parent: list[tuple[Any, Any]] = []
"""What a forked child's streams read from: the parent's connections, to be left alone for good. At
most the streams that were open at the fork."""

_closing: set[asyncio.Task[None]] = set()
"""The loop itself holds tasks weakly."""
