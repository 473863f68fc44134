"""The call as a driver sees it: five methods, each atomic.

Every method takes the engine's lock once, lets the machine decide, and delivers events and wake-ups
after the lock is released, so that whoever listens may call back in.
"""

from __future__ import annotations

from typing import Protocol

from headway.core.machine import CallMachine, Host
from headway.core.model import Action, Attempt, Batch, CallFacts, Lock, Outcome, Sink, Waker
from headway.core.snapshot import Route, Snapshot
from headway.core.state import Pool


class LockingHost(Host, Protocol):
    """The engine, as a call needs it."""

    lock: Lock

    def take(self) -> Batch | None:
        """Under the lock: hand over the events and wake-ups of this turn."""
        ...

    def deliver(self, batch: Batch | None) -> None:
        """Without the lock: deliver them."""
        ...


class Call(CallMachine):
    """One logical call. Made by `Engine.begin`; used by one driver."""

    __slots__ = ("_engine",)

    def __init__(
        self,
        engine: LockingHost,
        call_id: int,
        facts: CallFacts,
        route: Route,
        snapshot: Snapshot,
        pool: Pool,
        sink: Sink | None,
        now: float,
        *,
        is_expired: bool = False,
    ) -> None:
        super().__init__(
            engine, call_id, facts, route, snapshot, pool, sink, now, is_expired=is_expired
        )
        self._engine = engine

    def next_action(self, now: float) -> Action:
        """What to do now. Idempotent between reports."""
        with self._engine.lock:
            action = self.decide(now)
            batch = self._engine.take()
        self._engine.deliver(batch)
        return action

    def on_first_token(self, attempt: Attempt, now: float) -> bool:
        """The first content token of a stream arrived. True: the attempt is the answer.

        False: it lost to another attempt; close it and report CANCELLED.
        """
        with self._engine.lock:
            won = self.commit(attempt, now)
            batch = self._engine.take()
        self._engine.deliver(batch)
        return won

    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt ended. Only the first report counts."""
        with self._engine.lock:
            if not attempt.ended:
                self.end_attempt(attempt, outcome, now)
            batch = self._engine.take()
        self._engine.deliver(batch)

    def cancel(self, now: float) -> None:
        """The caller gave up: everything outstanding ends as cancelled and teaches nothing."""
        with self._engine.lock:
            self.abandon(now)
            batch = self._engine.take()
        self._engine.deliver(batch)

    def set_waker(self, waker: Waker | None) -> bool:
        """Ask to be woken when a queue place comes up; True: it already has."""
        with self._engine.lock:
            self.waker = waker
            return self.line.is_signalled()
