"""Waiting for a call to be woken: from another thread, from another loop, or by its clock."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

import anyio

from headway.collecting import is_collecting
from headway.core.model import INFINITY, Waker


class Waitable(Protocol):
    """What can be waited for: a call, a reader of another's answer, work done aside."""

    def set_waker(self, waker: Waker | None, /) -> bool:
        """Ask to be woken, once; None: no more. True: what is awaited is there already."""
        ...


def sleep(call: Waitable, seconds: float) -> None:
    """Block that long, or until the call is woken."""
    woken = threading.Event()
    if call.set_waker(woken.set):
        return
    try:
        woken.wait(None if seconds == INFINITY else max(seconds, 0.0))
    finally:
        call.set_waker(None)


async def asleep(call: Waitable, woken: anyio.Event, seconds: float) -> None:
    """Wait that long, or until `woken` is set, here or by the call from whatever thread."""
    loop = current_loop()
    run_soon: Callable[..., Any] = (
        loop.call_soon_threadsafe
        if isinstance(loop, asyncio.AbstractEventLoop)
        else loop.run_sync_soon
    )

    def wake() -> None:
        # The loop may be gone by the time another thread gets round to waking us.
        with contextlib.suppress(RuntimeError):
            run_soon(woken.set)

    if call.set_waker(wake):
        return
    try:
        with anyio.move_on_after(None if seconds == INFINITY else max(seconds, 0.0)):
            await woken.wait()
    finally:
        if not is_collecting():  # where a waker stays, it wakes nobody
            call.set_waker(None)


def current_loop() -> Any:
    """What connections are bound to: asyncio's loop, or trio's run."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return sys.modules["trio"].lowlevel.current_trio_token()
