"""The call as a driver sees it: five methods, each atomic.

Every method takes the engine's lock once, lets the machine decide, and delivers events and wake-ups
after the lock is released, so that whoever listens may call back in.
"""

from __future__ import annotations

from headway.core.machine import CallMachine
from headway.core.model import Action, Attempt, Outcome, Waker


class Call(CallMachine):
    """One logical call. Made by `Engine.begin`; used by one driver."""

    __slots__ = ()

    def next_action(self, now: float) -> Action:
        """What to do now. Idempotent between reports."""
        with self._host.lock:
            action = self.decide(now)
            batch = self._host.take() if self._host.outbox or self._host.wakes else None
        if batch is not None:
            self._host.deliver(batch)
        return action

    def on_first_token(self, attempt: Attempt, now: float) -> bool:
        """The first content token of a stream arrived. True: the attempt is the answer.

        False: it lost to another attempt; close it and report CANCELLED.
        """
        with self._host.lock:
            won = self.commit(attempt, now)
            batch = self._host.take() if self._host.outbox or self._host.wakes else None
        if batch is not None:
            self._host.deliver(batch)
        return won

    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt ended. Only the first report counts."""
        with self._host.lock:
            if not attempt.ended:
                self.end_attempt(attempt, outcome, now)
            batch = self._host.take() if self._host.outbox or self._host.wakes else None
        if batch is not None:
            self._host.deliver(batch)

    def on_interruption(self, attempt: Attempt, outcome: Outcome, now: float) -> bool:
        """The attempt that is the answer broke off. True: ask for the rest, as `next_action` says;
        False: that was the end of it."""
        goes_on = False
        with self._host.lock:
            if not attempt.ended:
                goes_on = self.resume(attempt, outcome, now)
            batch = self._host.take() if self._host.outbox or self._host.wakes else None
        if batch is not None:
            self._host.deliver(batch)
        return goes_on

    def cancel(self, now: float) -> None:
        """The caller gave up: everything outstanding ends as cancelled and teaches nothing."""
        with self._host.lock:
            self.abandon(now)
            batch = self._host.take() if self._host.outbox or self._host.wakes else None
        if batch is not None:
            self._host.deliver(batch)

    def on_answer(self, decision: str, endpoint_id: str, outcome: Outcome, now: float) -> None:
        """The call was answered without a request of its own: see `CallShared`."""
        with self._host.lock:
            self.borrow(decision, endpoint_id, outcome, now)
            batch = self._host.take()
        if batch is not None:
            self._host.deliver(batch)

    def set_waker(self, waker: Waker | None) -> bool:
        """Ask to be woken when a queue place comes up; True: it already has."""
        with self._host.lock:
            self.waker = waker
            return self._stood is not None and self._stood.is_signalled()
