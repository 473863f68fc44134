"""An attempt that the engine would not have made: observing, it is made all the same.

The call as decided is over: it would have been refused, or would have waited. What the plain client
sends is watched in its place, for the books alone: of it the engine learns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headway.core.model import (
    INFINITY,
    Attempt,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    CallEnded,
    CallFacts,
    FailureClass,
    FirstToken,
    Outcome,
)

if TYPE_CHECKING:
    from headway.core.call import Call
    from headway.core.snapshot import Endpoint
    from headway.record import CallRecord


class Watcher(Protocol):
    """Who is told what becomes of attempts: the call, or a bystander."""

    def on_first_token(self, attempt: Attempt, now: float) -> bool:
        """The first content token arrived. False: the attempt lost to another."""
        ...

    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt ended. Only the first report counts."""
        ...

    def cancel(self, now: float) -> None:
        """The caller gave up."""
        ...


class Bystander:
    """Tells the books of one attempt."""

    __slots__ = ("_attempt", "_call_id", "_record")

    def __init__(
        self, record: CallRecord, call: Call, facts: CallFacts, endpoint: Endpoint, now: float
    ) -> None:
        """The attempt begins; the call must be over."""
        self._record = record
        self._call_id = call.id
        self._attempt = Attempt(
            number=facts.resend + 1,
            kind=AttemptKind.RETRY if facts.resend else AttemptKind.INITIAL,
            endpoint_id=endpoint.id,
            model=facts.model,
            started_at=now,
            deadline_at=INFINITY,
            first_token_by=INFINITY,
            idle_s=INFINITY,
            reason="observed",
        )
        record.go_on(facts, call)
        record.on_event(AttemptStarted(self._call_id, self._attempt, now))

    @property
    def attempt(self) -> Attempt:
        """The one attempt."""
        return self._attempt

    def on_first_token(self, attempt: Attempt, now: float) -> bool:
        """See `Watcher`."""
        if attempt.first_token_at is None and not attempt.ended:
            attempt.first_token_at = now
            self._record.on_event(FirstToken(self._call_id, attempt, now - attempt.started_at, now))
        return True

    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """See `Watcher`."""
        if attempt.ended:
            return
        attempt.ended = True
        lasted_s = now - attempt.started_at
        result = _RESULTS.get(outcome.kind, "error")
        tell = self._record.on_event
        tell(AttemptEnded(self._call_id, attempt, outcome, result, lasted_s, now))
        tell(CallEnded(self._call_id, attempt, outcome, 1, now))

    def cancel(self, now: float) -> None:
        """See `Watcher`."""
        self.on_outcome(self._attempt, Outcome(FailureClass.CANCELLED, error_type="cancelled"), now)


_RESULTS = {
    FailureClass.OK: "ok",
    FailureClass.CANCELLED: "cancelled",
    FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN: "timeout",
    FailureClass.STALLED: "timeout",
}
