"""Work of a store that isn't ours, done on a thread of its own and waited for only so long.

A store may be a mapping on a slow disk, or a server that hangs: neither an event loop nor a call's
deadline must depend on it. A job that isn't done in time is left behind, and its outcome unheard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

THREADS_MAX = 64
"""Jobs at once in a process, those left behind included; beyond it stores are not asked."""


class Slots:
    """How many jobs may still begin."""

    def __init__(self) -> None:
        self._left = threading.BoundedSemaphore(THREADS_MAX)

    def take(self) -> bool:
        """Begin one more; False: there are too many."""
        return self._left.acquire(blocking=False)

    def give_back(self) -> None:
        """One has ended."""
        self._left.release()


class Job(Generic[T]):
    """One operation. Waited on like a call: see `set_waker`."""

    def __init__(self, work: Callable[[], T], slots: Slots) -> None:
        self._work = work
        self._slots = slots
        self._lock = threading.Lock()
        self._waker: Callable[[], None] | None = None
        self.is_done = False
        self.result: T | None = None
        self.error: BaseException | None = None

    def start(self) -> bool:
        """Begin it; False where too many are under way, or no thread can be had any more."""
        if not self._slots.take():
            return False
        try:
            threading.Thread(target=self._run, name="headway-store", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down
            self._slots.give_back()
            return False
        return True

    def set_waker(self, waker: Callable[[], None] | None) -> bool:
        """Ask to be woken when it is done; True: it is."""
        with self._lock:
            self._waker = waker
            return self.is_done

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as exc:  # noqa: BLE001 - whatever a store raises; judged by the shelf
            self.error = exc
        finally:
            self._slots.give_back()
            with self._lock:
                self.is_done = True
                waker = self._waker
            if waker is not None:
                waker()
