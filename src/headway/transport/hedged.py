"""Several attempts of one call at once: as tasks on an event loop, as threads without one.

Used only for calls that may hedge; all others never leave their own task or thread. The first
attempt to show content (or a whole answer) wins, the others are cancelled, closed and reported.

A thread can't be cancelled. A sync loser is given up: it begins no further wait, a request not yet
sent is never sent, and the connection that it waits on is shut down under it. What remains is a
loser that is just connecting (until its connect timeout) or shares its connection (HTTP/2: until
the next bytes come). Hence a bound on such threads.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from headway.collecting import outside
from headway.core.model import INFINITY, Finish, Send, Wait
from headway.transport.family import stream_of
from headway.transport.limits import Leash
from headway.transport.wake import asleep

if TYPE_CHECKING:
    import httpx2

    from headway.transport.flight import Flight
    from headway.transport.trial import Trial

THREADS_MAX = 64
"""Attempts of hedging sync calls at once in a process, losers on their way out included; beyond it
calls are made without a hedge."""


# --------------------------------------------------------------------------- threads


class Workers:
    """How many threads there may be. Each hedging call takes two in advance."""

    PER_CALL = 2

    def __init__(self, at_most: int = THREADS_MAX) -> None:
        self._lock = threading.Lock()
        self._left = at_most

    def room(self) -> Room | None:
        """Room for one call's attempts; None: there is none, so that it can't hedge."""
        with self._lock:
            if self._left < self.PER_CALL:
                return None
            self._left -= self.PER_CALL
        return Room(self, self.PER_CALL)

    def give_back(self, count: int) -> None:
        """So many have ended, or weren't needed."""
        with self._lock:
            self._left += count

    @property
    def left(self) -> int:
        """Threads that may still be begun."""
        return self._left


class Room:
    """The threads of one call. One that has ended makes room for the next attempt."""

    def __init__(self, workers: Workers, count: int) -> None:
        self._workers = workers
        self._free = threading.Condition()
        self._count = count
        self._is_closed = False

    def take(self) -> None:
        """Begin one: at once, or when an attempt that failed has cleaned up after itself."""
        with self._free:
            self._free.wait_for(lambda: self._count > 0)
            self._count -= 1

    def give_back(self) -> None:
        """One has ended."""
        with self._free:
            if not self._is_closed:
                self._count += 1
                self._free.notify()
                return
        self._workers.give_back(1)

    def close(self) -> None:
        """The call is over; threads that still run give their place back when they end."""
        with self._free:
            self._is_closed = True
            count, self._count = self._count, 0
        self._workers.give_back(count)


workers = Workers()


def _after_fork_in_child() -> None:
    global workers
    workers = Workers()  # the parent's threads live on there


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def fly_threads(
    flight: Flight,
    attempt: Callable[[Flight, Trial], None],
    carrier_of: Callable[[Trial, httpx2.Request], object],
    room: Room,
) -> Finish:
    """Perform a call with an attempt per thread. Losers are reported before it returns.

    `carrier_of` finds the transport that carries an attempt's request.
    """
    bell = threading.Event()
    running: list[_Thread] = []
    call = flight.call
    try:
        while True:
            bell.clear()
            action = call.next_action(flight.clock())
            if isinstance(action, Finish):
                # The call is decided within a report; the thread that made it may still be at the
                # response: giving back the connection, putting the body in its place.
                for thread in running:
                    if thread.trial.attempt is action.attempt:
                        thread.join()
                return action
            if isinstance(action, Send):
                trial = flight.trial(action.attempt)
                trial.limits = Leash(action.attempt, flight.clock)
                room.take()
                running.append(_Thread(flight, trial, attempt, bell, room))
            elif not call.set_waker(bell.set):
                _wait(bell, action, flight)
                call.set_waker(None)
            for thread in running:
                if thread.error is not None:
                    raise thread.error
    finally:
        for thread in running:
            thread.give_up(carrier_of)
        room.close()


def _wait(bell: threading.Event, action: Wait, flight: Flight) -> None:
    seconds = action.until - flight.clock()
    bell.wait(None if seconds == INFINITY else max(seconds, 0.0))


class _Thread:
    """One attempt on a thread of its own, in the context of the call."""

    def __init__(
        self,
        flight: Flight,
        trial: Trial,
        attempt: Callable[[Flight, Trial], None],
        bell: threading.Event,
        room: Room,
    ) -> None:
        self.trial = trial
        self.error: BaseException | None = None
        self._flight = flight
        self._attempt = attempt
        self._bell = bell
        self._room = room
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="headway-attempt", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:  # no more threads to be had
            room.give_back()
            raise

    def join(self) -> None:
        """Wait until it is done with its attempt; raises what it raised."""
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._attempt(self._flight, self.trial)
        except BaseException as exc:  # noqa: BLE001 - raised in the thread that made the call
            self.error = exc
        finally:
            self._room.give_back()
            self._bell.set()

    def give_up(self, carrier_of: Callable[[Trial, httpx2.Request], object]) -> None:
        """Another attempt is the answer: report this one, and break what it is waiting on."""
        trial = self.trial
        if trial.finished or trial.is_winner:
            return
        trial.closed()
        limits = trial.limits
        assert type(limits) is Leash

        def cut() -> None:
            stream = self._stream(limits, carrier_of)
            if stream is not None:
                with contextlib.suppress(Exception):
                    # The base class's shutdown: a TLS socket's own would tear its state from under
                    # the thread that reads it.
                    socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

        limits.give_up(cut)

    def _stream(self, limits: Leash, carrier_of: Callable[[Trial, httpx2.Request], object]) -> Any:
        """The connection that the attempt waits on, if it is its alone."""
        trial = self.trial
        response, request = trial.response, trial.request
        if response is not None:
            return response.extensions.get("network_stream") if trial.reads_are_limited else None
        if request is None or not limits.awaits_answer:
            return None
        return stream_of(carrier_of(trial, request), request.extensions.get("timeout"))


# --------------------------------------------------------------------------- tasks


async def fly_tasks(flight: Flight, attempt: Callable[[Flight, Trial], Awaitable[None]]) -> Finish:
    """Perform a call with an attempt per task. Losers are closed before it returns."""
    call = flight.call
    errors: list[BaseException] = []
    finish: Finish | None = None
    bell = anyio.Event()

    async def run(trial: Trial, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await attempt(flight, trial)
        except Exception as exc:  # noqa: BLE001 - raised where the call was made
            errors.append(exc)
        finally:
            if not trial.is_winner:
                outside(trial.closed)
            bell.set()

    cut_short: BaseException | None = None
    try:
        async with anyio.create_task_group() as group:
            scopes: list[tuple[Trial, anyio.CancelScope]] = []
            try:
                while finish is None and not errors:
                    bell = anyio.Event()
                    action = call.next_action(flight.clock())
                    if isinstance(action, Finish):
                        finish = action
                    elif isinstance(action, Send):
                        trial, scope = flight.trial(action.attempt), anyio.CancelScope()
                        scopes.append((trial, scope))
                        group.start_soon(run, trial, scope)
                    else:
                        await asleep(call, bell, action.until - flight.clock())
            except BaseException as exc:
                cut_short = exc
                raise
            for trial, scope in scopes:
                if not trial.is_winner:
                    scope.cancel()
    except BaseExceptionGroup as several:
        if len(several.exceptions) == 1:
            raise several.exceptions[0] from None
        raise
    if cut_short is not None:
        # The group takes a cancellation that meets one of its own scopes' for its own: it is not.
        raise cut_short
    if errors:
        raise errors[0]
    assert finish is not None
    return finish
