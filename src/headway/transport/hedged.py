"""Several attempts of one call at once: as tasks on an event loop, as threads without one.

Used only for calls that may hedge; all others never leave their own task or thread. The first
attempt to show content (or a whole answer) wins, the others are cancelled, closed and reported.

A thread that waits for the head of a reply can't be interrupted: a sync loser is given up at once
(its report, its budget) and its thread ends with its own timeout. Hence a bound on such threads.
"""

from __future__ import annotations

import contextlib
import contextvars
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio

from headway.core.model import INFINITY, Finish, Send, Wait
from headway.transport.wake import asleep

if TYPE_CHECKING:
    from headway.transport.flight import Flight
    from headway.transport.trial import Trial

THREADS_MAX = 64
"""Attempts of hedging sync calls at once in a process; beyond it calls are made without a hedge."""

_threads = threading.BoundedSemaphore(THREADS_MAX)


# --------------------------------------------------------------------------- threads


def fly_threads(flight: Flight, attempt: Callable[[Flight, Trial], None]) -> Finish:
    """Perform a call with an attempt per thread. Losers are reported before it returns."""
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
                running.append(_Thread(flight, trial, attempt, bell))
            elif not call.set_waker(bell.set):
                _wait(bell, action, flight)
                call.set_waker(None)
            for thread in running:
                if thread.error is not None:
                    raise thread.error
    finally:
        for thread in running:
            thread.give_up()


def threads_left() -> bool:
    """Whether a hedging call may begin: it needs two threads at most."""
    if not _threads.acquire(blocking=False):
        return False
    _threads.release()
    return True


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
    ) -> None:
        self.trial = trial
        self.error: BaseException | None = None
        self._flight = flight
        self._attempt = attempt
        self._bell = bell
        self._holds_slot = _threads.acquire(blocking=False)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="headway-attempt", daemon=True
        )
        self._thread.start()

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
            if self._holds_slot:
                _threads.release()
            self._bell.set()

    def give_up(self) -> None:
        """Another attempt is the answer: report this one, and break what it is waiting on."""
        trial = self.trial
        if trial.finished or trial.is_winner:
            return
        trial.closed()
        response = trial.response
        stream: Any = None if response is None else response.extensions.get("network_stream")
        if stream is not None and trial.reads_are_limited:
            with contextlib.suppress(Exception):
                # The base class's shutdown: a TLS socket's own would tear its state from under
                # the thread that reads it.
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)


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
                trial.closed()
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
