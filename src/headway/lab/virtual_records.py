"""What goes into a virtual-time run and what comes out of it, as values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.model import INFINITY, Attempt, CallFacts, FailureClass, Outcome, Rejection


class Served(NamedTuple):
    """How an attempt will end, in seconds after its send."""

    outcome: Outcome
    total_s: float
    """INFINITY: never."""
    first_token_s: float | None = None
    """Streams only; None: no content came."""


class Arrival(NamedTuple):
    """One call that some process makes."""

    at_s: float
    process: int
    facts: CallFacts
    cancel_after_s: float = INFINITY
    tag: object = None
    """Yours: comes back on the call's record."""


class AttemptRecord(NamedTuple):
    number: int
    kind: str
    reason: str
    endpoint_id: str
    model: str
    started_at: float
    first_token_at: float | None
    ended_at: float
    outcome: Outcome
    lost: bool

    @classmethod
    def of(cls, attempt: Attempt, ended_at: float, outcome: Outcome) -> AttemptRecord:
        """What became of an attempt."""
        return cls(
            attempt.number,
            attempt.kind._value_,  # what `value` returns, without its descriptor
            attempt.reason,
            attempt.endpoint_id,
            attempt.model,
            attempt.started_at,
            attempt.first_token_at,
            ended_at,
            outcome,
            attempt.lost,
        )


class CallRecord(NamedTuple):
    """One call, ended. For a stream `ended_at` is the stream's end."""

    process: int
    facts: CallFacts
    tag: object
    arrived_at: float
    ended_at: float
    outcome: Outcome
    """Of the attempt that was surfaced; CANCELLED when the caller left or the call was refused."""
    rejection: Rejection | None
    endpoint_id: str | None
    first_token_at: float | None
    attempts: tuple[AttemptRecord, ...]
    managed: bool = True
    """False: no route matched."""
    caller_left: bool = False

    @property
    def ok(self) -> bool:
        """Did the caller get an answer?"""
        return self.outcome.kind is FailureClass.OK

    @property
    def duration_s(self) -> float:
        """From arrival to end."""
        return self.ended_at - self.arrived_at


@dataclass(slots=True)
class VirtualResult:
    """What a run did."""

    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    calls_ended: int = 0
    attempts_sent: int = 0
    failed: int = 0
    """Calls that ended without an answer, callers who left not counted."""
    ended_at: float = 0.0

    @property
    def amplification(self) -> float:
        """Attempts per call."""
        return self.attempts_sent / self.calls_ended if self.calls_ended else 0.0

    @property
    def attempts(self) -> Iterator[AttemptRecord]:
        """Every attempt of every kept call."""
        return (attempt for call in self.calls for attempt in call.attempts)
