"""What the steps of a shared call ask for, done: blocking, or awaiting."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import anyio

from headway.collecting import is_collecting, outside
from headway.credentials import Credential, CredentialUnavailable
from headway.transport.alike import fingerprint
from headway.transport.shared import (
    Alone,
    Ask,
    Lead,
    Rest,
    Sharing,
    Step,
    conduct,
)
from headway.transport.shared_request import fail, is_streaming, opened
from headway.transport.shared_streams import pump
from headway.transport.wake import asleep, current_loop, sleep

if TYPE_CHECKING:
    import httpx2

    from headway.share.board import Leg
    from headway.transport.flight import Flight
    from headway.transport.trial import Trial

# --------------------------------------------------------------------------- threads

Fly = Callable[["Flight"], "Trial"]


def share(flight: Flight, sharing: Sharing, fly: Fly) -> httpx2.Response:
    """The response of one call; `fly` makes its request."""
    steps = conduct(flight, sharing)
    go_on: Callable[[Any], Step] = steps.send
    given: Any = None
    while True:
        try:
            step = go_on(given)
        except StopIteration as end:
            response: httpx2.Response = end.value
            return response
        try:
            given, go_on = _do(step, flight, fly), steps.send
        except BaseException as exc:  # noqa: BLE001 - raised inside the steps
            given, go_on = exc, steps.throw


def _do(step: Step, flight: Flight, fly: Fly) -> object:
    match step:
        case Rest(what, seconds):
            sleep(what, seconds)
        case Lead(leg):
            _lead(leg, flight, fly)
        case Alone():
            try:
                return flight.present(fly(flight))
            except BaseException:
                flight.abandon()
                raise
        case Ask(credentials):
            return {name: _known(credential) for name, credential in credentials.items()}
    return None


def _known(credential: Credential) -> bytes:
    try:
        return fingerprint(credential.get())
    except CredentialUnavailable:
        return b""  # its endpoint won't answer


def _always() -> bool:
    return True


def _lead(leg: Leg, flight: Flight, fly: Fly) -> None:
    """Make the request here and now, up to the head of the answer."""
    leg.is_driven = threading.current_thread().is_alive
    try:
        trial = fly(flight)
        response = flight.present(trial)
        body: Any = response.stream
        if is_streaming(trial, response):
            leg.chunks = iter(body)
        opened(leg, trial, response)
        leg.is_driven = _always  # from here on whoever reads does
    except BaseException as exc:
        flight.abandon()
        fail(leg, exc)
        if not isinstance(exc, Exception):
            raise


# --------------------------------------------------------------------------- tasks

AsyncFly = Callable[["Flight"], Awaitable["Trial"]]


async def ashare(flight: Flight, sharing: Sharing, fly: AsyncFly) -> httpx2.Response:
    """The response of one call; `fly` makes its request."""
    steps = conduct(flight, sharing)
    go_on: Callable[[Any], Step] = steps.send
    given: Any = None
    while True:
        try:
            step = go_on(given)
        except StopIteration as end:
            response: httpx2.Response = end.value
            return response
        try:
            given, go_on = await _ado(step, flight, fly), steps.send
        except BaseException as exc:  # noqa: BLE001 - raised inside the steps
            given, go_on = exc, steps.throw


async def _ado(step: Step, flight: Flight, fly: AsyncFly) -> object:
    match step:
        case Rest(what, seconds):
            await asleep(what, anyio.Event(), seconds)
        case Lead(leg):
            _Request(leg, flight, fly).start()
        case Alone():
            try:
                return flight.present(await fly(flight))
            except BaseException:
                flight.abandon()
                raise
        case Ask(credentials):
            return {name: await _aknown(credential) for name, credential in credentials.items()}
    return None


async def _aknown(credential: Credential) -> bytes:
    try:
        return fingerprint(await credential.aget())
    except CredentialUnavailable:
        return b""


class _Request:
    """A request in a task of its own: it belongs to all who wait for it, so nobody's cancellation
    is its own. Ends with its loop, or when nobody waits any more."""

    def __init__(self, leg: Leg, flight: Flight, fly: AsyncFly) -> None:
        self._leg = leg
        self._flight = flight
        self._fly = fly
        self._loop = current_loop()
        self._scope = anyio.CancelScope()

    def start(self) -> None:
        leg = self._leg
        leg.give_up = self._give_up
        leg.is_driven = self._is_driven
        try:
            _spawn(self._loop, self._run)
        except BaseException as exc:
            self._flight.abandon()
            fail(leg, exc, is_own=True)
            raise

    async def _run(self) -> None:
        leg, flight = self._leg, self._flight
        try:
            with self._scope:
                trial = await self._fly(flight)
                response = flight.present(trial)
                opened(leg, trial, response)
                if leg.source is not None:
                    await pump(leg)
        except Exception as exc:  # noqa: BLE001 - raised for whoever waits
            await self._end(exc)
        except BaseException as exc:
            await self._end(exc)
            raise
        else:
            await self._end(None)

    async def _end(self, exc: BaseException | None) -> None:
        """However it ended: the connection goes back, the books close, who waits is told."""
        leg = self._leg
        leg.give_up = None
        if is_collecting():  # its loop has ended
            self._flight.abandon()
            outside(fail, leg, asyncio.CancelledError())
            return
        with anyio.CancelScope(shield=True):
            if leg.source is not None:
                try:
                    await leg.source.aclose()
                except Exception as problem:  # noqa: BLE001
                    exc = exc or problem
        if exc is None and not (leg.tape.head is None or self._scope.cancel_called):
            leg.tape.end()
            return
        self._flight.abandon()
        fail(leg, exc or asyncio.CancelledError(), is_own=None if exc is not None else True)

    def _is_driven(self) -> bool:
        loop = self._loop
        if isinstance(loop, asyncio.AbstractEventLoop):
            return loop.is_running()
        try:
            loop.run_sync_soon(_nothing)
        except RuntimeError:  # trio's run is over
            return False
        return True

    def _give_up(self) -> None:
        loop, cancel = self._loop, self._scope.cancel
        try:
            if isinstance(loop, asyncio.AbstractEventLoop):
                loop.call_soon_threadsafe(cancel)
            else:
                loop.run_sync_soon(cancel)
        except RuntimeError:
            fail(self._leg, asyncio.CancelledError(), is_own=True)


def _spawn(loop: Any, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if isinstance(loop, asyncio.AbstractEventLoop):
        task = loop.create_task(work(), name="headway-request")
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
    else:
        sys.modules["trio"].lowlevel.spawn_system_task(
            work, name="headway-request", context=contextvars.copy_context()
        )


def _nothing() -> None:
    """Asked of a loop to see whether it still takes anything."""


_tasks: set[asyncio.Task[None]] = set()
"""The loop itself holds tasks weakly."""
