"""The one background thread of a process: it looks after every policy supply that is in use.

What may hang longer than any of its own timeouts (nobody bounds a name look-up) is looked at in a
thread of its own, for as long as that takes: so one source that hangs delays no other.

Started by the first supply that needs it, never at import or construction; a daemon, so a process
ends without waiting for it; gone when no supply is left. Supplies are held weakly, and a forked
child begins with no thread, fresh locks and the same supplies.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("headway.policy")

THREAD_NAME = "headway-policy"
LOOK_NAME = "headway-policy-look"
BACKOFF_START_S = 2.0
BACKOFF_CAP_S = 300.0
FAILED_WAIT_S_MIN = 1.0
IDLE_S_MAX = 30.0  # how long the thread may fail to notice that the last supply is gone
PATIENCE_S = 1.0
"""A look that takes longer goes on by itself; most are over in a tenth of it."""
LOOKS_MAX = 8
"""That go on by themselves at once. With so many sources hanging, one more is waited for."""


class Refreshable(Protocol):
    """What the thread does for a supply. Nothing here may raise."""

    def is_active(self) -> bool:
        """Whether it wants to be looked after."""
        ...

    def due_in_s(self) -> float:
        """Seconds until its next step; 0 or less: now."""
        ...

    def may_hang(self) -> bool:
        """Whether a step may take longer than any timeout of its source."""
        ...

    def step(self) -> None:
        """Look at the source once."""
        ...

    def after_fork(self) -> None:
        """Replace what a thread of the parent may have held."""
        ...


class Refresher:
    """Steps each supply when it is due. One per process: `refresher`."""

    def __init__(self) -> None:
        self.generation = 0
        """Changes in a forked child, which has to start its own thread."""
        self._lock = threading.Lock()
        self._members: list[weakref.ref[Refreshable]] = []
        self._thread: threading.Thread | None = None
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._looks: dict[weakref.ref[Refreshable], threading.Thread] = {}
        """Those that go on by themselves."""

    def adopt(self, supply: Refreshable) -> None:
        """Know of a supply; starts nothing."""
        with self._lock:
            self._members = [ref for ref in self._members if ref() is not None]
            self._members.append(weakref.ref(supply))

    def wake(self) -> None:
        """Look at every supply now, starting the thread if there is none."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
                try:
                    thread.start()
                except RuntimeError as exc:
                    # No threads left, or the interpreter is ending: the call goes on regardless.
                    log.warning("the policy is not refreshed: %s", exc)
                    return
                self._thread = thread
        self._wakes.put(None)

    def notice(self) -> None:
        """Have the thread, if there is one, see who is still there."""
        if self._thread is not None:
            self._wakes.put(None)

    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def _run(self) -> None:
        while True:
            idle_s = self._round()
            if idle_s is None:
                with self._lock:
                    if not self._any_active():
                        self._thread = None
                        return
                continue
            try:
                self._wakes.get(timeout=min(idle_s, IDLE_S_MAX))
            except queue.Empty:
                continue

    def _any_active(self) -> bool:
        return any((s := ref()) is not None and s.is_active() for ref in self._members)

    def _round(self) -> float | None:
        """Step what is due; seconds until the next is, or None when nobody is left."""
        next_s: float | None = None
        self._looks = {ref: look for ref, look in self._looks.items() if look.is_alive()}
        for ref in tuple(self._members):
            due_s = self._step_if_due(ref)
            if due_s is not None:
                next_s = due_s if next_s is None else min(next_s, due_s)
        return None if next_s is None else max(next_s, 0.0)

    def _step_if_due(self, ref: weakref.ref[Refreshable]) -> float | None:
        # A function of its own: the loop must not hold on to a supply while it sleeps.
        supply = ref()
        if supply is None or not supply.is_active():
            return None
        if ref in self._looks:
            return IDLE_S_MAX  # its end wakes the loop
        if supply.due_in_s() > 0:
            return supply.due_in_s()
        is_sound = self._look_aside(ref) if supply.may_hang() else _step(ref)
        # Never a tight loop, whatever went wrong.
        return supply.due_in_s() if is_sound else IDLE_S_MAX

    def _look_aside(self, ref: weakref.ref[Refreshable]) -> bool:
        """Step it in a thread of its own; False when that failed, or goes on."""
        ended: list[bool] = []
        wakes = self._wakes

        def look() -> None:
            ended.append(_step(ref))
            wakes.put(None)

        thread = threading.Thread(target=look, name=LOOK_NAME, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no threads left
            return _step(ref)
        thread.join(PATIENCE_S if len(self._looks) < LOOKS_MAX else None)
        if thread.is_alive():
            self._looks[ref] = thread
        return bool(ended) and ended[0]

    def after_fork(self) -> None:
        """Run in a forked child, where only the forking thread lives on."""
        self.generation += 1
        self._looks = {}
        self._lock = threading.Lock()
        self._thread = None
        self._wakes = queue.SimpleQueue()
        for ref in self._members:
            supply = ref()
            if supply is not None:
                supply.after_fork()


def _step(ref: weakref.ref[Refreshable]) -> bool:
    """Whether it did not raise."""
    supply = ref()
    try:
        if supply is not None:
            supply.step()
    except Exception:
        log.exception("refreshing the policy failed")
        return False
    return True


def default_backoff() -> Callable[[RetryCallState], float]:
    """The wait between failing fetches: full jitter below a doubling ceiling."""
    # tenacity is imported when something first fails, not with headway.
    import tenacity

    return tenacity.wait_random_exponential(multiplier=BACKOFF_START_S, max=BACKOFF_CAP_S)


def failed_wait_s(backoff: Callable[[RetryCallState], float], failures: int) -> float:
    """Seconds to wait after so many failures in a row, by a tenacity `wait` object."""
    import tenacity

    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.attempt_number = failures
    return max(backoff(state), FAILED_WAIT_S_MIN)


refresher = Refresher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=refresher.after_fork)
