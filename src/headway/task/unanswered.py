"""Calls whose request failed, and which the SDK may send again by itself.

Where the SDK runs the retry loop, one call comes to the transport as several requests, and nobody
says whether another will follow. The loop runs in one context (of a thread or an async task): there
the next request finds what the failed one has left, and goes on with the same account. If none
follows, the account is closed by what comes first: another call in that context, the end of the
task, or of the process; once the context is gone, by any call or task.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

from headway.forks import free_in_children

if TYPE_CHECKING:
    from headway.record import CallRecord
    from headway.task.task import Task


class Unanswered:
    """A failed request of a call."""

    __slots__ = ("__weakref__", "_pid", "is_open", "record", "sender", "sent")

    def __init__(self, record: CallRecord, sender: object, sent: int, *, is_open: bool) -> None:
        self.record = record
        self.sender = sender
        """Whose request it was."""
        self.sent = sent
        """Requests of this call that the SDK had sent before it."""
        self.is_open = is_open
        """The account is kept open for another request; else one would come as a surprise."""
        self._pid = os.getpid()

    def close(self) -> None:
        """No other request came. Idempotent."""
        if self.is_open:
            self.is_open = False
            if self._pid == os.getpid():  # a forked child leaves its parent's calls alone
                self.record.release()

    def __del__(self) -> None:
        # Runs at any point of any thread: no locks here.
        if getattr(self, "is_open", False):
            _lost.append(self)


_here: ContextVar[Unanswered | None] = ContextVar("headway_unanswered", default=None)
_lost: deque[Unanswered] = deque()
_open: weakref.WeakSet[Unanswered] = weakref.WeakSet()
_lock = free_in_children(threading.Lock())
_at_exit_registered = False


def leave(unanswered: Unanswered) -> None:
    """Leave it for the next request in this context."""
    global _at_exit_registered
    _here.set(unanswered)
    if unanswered.is_open:
        with _lock:
            _open.add(unanswered)
            if not _at_exit_registered:
                _at_exit_registered = True
                atexit.register(settle_unanswered)


def is_awaited() -> bool:
    """Whether a request of this context has failed, and the next one may be its resend."""
    return _here.get() is not None or bool(_lost)


def take() -> Unanswered | None:
    """What the request before this one has left in this context: to be gone on with, or closed."""
    if _lost:
        _settle_lost()
    found = _here.get()
    if found is not None:
        _here.set(None)
    return found


def settle_unanswered(task: Task | None = None) -> None:
    """Close the calls of a task, or all, that no other request has come for."""
    if _lost:
        _settle_lost()
    if _open:
        with _lock:
            found = list(_open)
        for unanswered in found:
            if task is None or unanswered.record.task is task:
                unanswered.close()


def _settle_lost() -> None:
    while _lost:
        try:
            unanswered = _lost.popleft()
        except IndexError:  # another thread was faster
            return
        unanswered.close()
