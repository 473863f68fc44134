"""The body of a response that shares a stream, as each caller reads it. One class per colour.

Threads have no background: whoever has read all that has come fetches the next chunk, for all. On
an event loop a task does, so that nobody's cancellation breaks the others' connection.
Joined with the http family's stream class where they are used (`family.byte_stream_class`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import anyio

from headway.collecting import aside, is_collecting, outside
from headway.share.shelf import WAIT_S
from headway.transport.limits import DRAIN_S
from headway.transport.listener import Listener, Next
from headway.transport.shared_request import Gone, fail, keep
from headway.transport.wake import asleep, sleep

if TYPE_CHECKING:
    from headway.share.board import Leg
    from headway.share.tape import Tape
    from headway.transport.trial import Trial

END_S = 2 * DRAIN_S + WAIT_S
"""How long a caller that has its whole answer waits for the books to close on it."""


class SharedStream:
    """A sync stream. Iterating it again goes on where it was."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_closed = False
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[bytes]:
        listener = self._listener
        while True:
            step = listener.next(pulls=True)
            if step is Next.OVER:
                return
            if step is Next.PULL:
                self._pull()
            elif step is Next.REST:
                sleep(listener.reader, listener.rest_s)
            else:
                assert isinstance(step, bytes)
                yield step

    def _pull(self) -> None:
        """Fetch the next chunk, for all."""
        listener = self._listener
        leg, reader = listener.leg, listener.reader
        try:
            leg.tape.add(next(leg.chunks))
        except StopIteration:
            _complete(leg)
        except BaseException as exc:
            fail(leg, exc)
            leg.source.close()
            if not isinstance(exc, Exception):
                raise
        finally:
            leg.tape.pulled(reader)

    def close(self) -> None:
        """Read no more; the last one to leave ends the request."""
        if self._is_closed:
            return
        if is_collecting():
            outside(self.close)
            return
        self._is_closed = True
        listener = self._listener
        leg = listener.leg
        if os.getpid() != self._pid:  # in a forked child: others read it, there
            leg.trial.closed()
            return
        try:
            if listener.is_complete:
                self._see_to_the_end()
        finally:
            if listener.close():
                fail(leg, Gone(), is_own=True)
                leg.source.close()

    def _see_to_the_end(self) -> None:
        listener = self._listener
        tape, reader = listener.leg.tape, listener.reader
        for _ in range(2):
            if tape.is_over:
                return
            reader.look()
            if tape.claim(reader):
                try:
                    _finish(listener.leg)
                finally:
                    tape.pulled(reader)
                return
            sleep(reader, END_S)

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            aside(self.close)


def _finish(leg: Leg) -> None:
    """Fetch what follows the end of the answer: next to nothing, and for next to no time."""
    try:
        if leg.trial.reads_are_limited:
            for chunk in leg.chunks:
                leg.tape.add(chunk)
    except Exception as exc:  # noqa: BLE001 - raised for whoever still reads
        fail(leg, exc)
        leg.source.close()
    else:
        _complete(leg)


def _complete(leg: Leg) -> None:
    """The whole stream has come."""
    job = keep(leg)
    if job is not None:
        sleep(job, WAIT_S)
        leg.trial.flight.host.shelf.heard(job)
    if leg.board is not None:
        leg.board.close(leg)
    try:
        leg.source.close()
    finally:
        leg.tape.end()


class AsyncSharedStream:
    """An async stream. Iterating it again goes on where it was."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        listener = self._listener
        while True:
            step = listener.next(pulls=False)
            if step is Next.OVER:
                return
            if isinstance(step, bytes):
                yield step
                continue
            if not listener.leg.is_driven():
                fail(listener.leg, Gone(), is_own=True)
                continue
            await asleep(listener.reader, anyio.Event(), listener.rest_s)

    async def aclose(self) -> None:
        """Read no more; the last one to leave ends the request."""
        if self._is_closed:
            return
        if is_collecting():  # of a loop that has ended: nothing can be awaited
            self.__del__()
            return
        self._is_closed = True
        listener = self._listener
        leg = listener.leg
        try:
            if listener.is_complete:
                await _until_over(leg.tape)
        finally:
            if listener.close() and leg.give_up is not None:
                leg.give_up()
                await _until_over(leg.tape)

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self._is_closed = True
            aside(_leave, self._listener)


def _leave(listener: Listener) -> None:
    if listener.close() and listener.leg.give_up is not None:
        listener.leg.give_up()


async def _until_over(tape: Tape) -> None:
    """Wait until the request has ended, whoever drives it, but not for long."""
    watcher = tape.watch()
    try:
        with anyio.move_on_after(END_S, shield=True):
            while True:
                watcher.look()
                if tape.is_over:
                    return
                await asleep(watcher, anyio.Event(), END_S)
    finally:
        tape.unwatch(watcher)


AHEAD_BYTES_MAX = 64 * 1024
"""How much is fetched before anybody wants it: what one read of a connection brings."""


class _Room:
    """What the fetching task waits for: that somebody took something, or left."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def set_waker(self, waker: Callable[[], None] | None) -> bool:
        self._tape.writer = waker
        return self._tape.has_room(AHEAD_BYTES_MAX)


async def pump(leg: Leg) -> None:
    """Fetch the stream, for all, until it ends or nobody reads any more."""
    tape, trial = leg.tape, leg.trial
    room = _Room(tape)
    async with contextlib.aclosing(leg.source.__aiter__()) as chunks:
        async for chunk in chunks:
            tape.add(chunk)
            trial.limits.deadline_at = tape.latest_deadline()
            while not (tape.has_room(AHEAD_BYTES_MAX) or _is_complete(trial)):
                await asleep(room, anyio.Event(), END_S)
    job = keep(leg)
    if job is not None:
        await asleep(job, anyio.Event(), WAIT_S)
        trial.flight.host.shelf.heard(job)
    if leg.board is not None:
        leg.board.close(leg)


def _is_complete(trial: Trial) -> bool:
    return trial.observer is not None and trial.observer.done
