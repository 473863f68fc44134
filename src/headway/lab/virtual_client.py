"""What the virtual driver asks of a client: `core.engine.Engine` fits, and others may, too."""

from __future__ import annotations

from typing import Protocol

from headway.core.model import Action, Attempt, CallFacts, Outcome, Waker


class DrivenCall(Protocol):
    """A call as the driver needs it: `core.call.Call`, or that of a client to compare with."""

    @property
    def deadline_at(self) -> float: ...
    def next_action(self, now: float) -> Action: ...
    def on_first_token(self, attempt: Attempt, now: float) -> bool: ...
    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None: ...
    def cancel(self, now: float) -> None: ...
    def set_waker(self, waker: Waker | None) -> bool: ...


class Client(Protocol):
    """What begins calls in one process: an `Engine`, or a client to compare with."""

    def begin(self, facts: CallFacts, now: float, *, wall_now: float = 0.0) -> DrivenCall | None:
        """Begin a call; None: not ours to manage."""
        ...
