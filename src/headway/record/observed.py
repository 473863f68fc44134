"""What was decided about calls that are only observed: told, and not done."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headway.core.model import FailureClass
from headway.core.retry import ATTEMPTS_DEFAULT

if TYPE_CHECKING:
    from headway.record.call import CallRecord


class ObservedCalls(NamedTuple):
    """Calls that were only observed, and in how many the decision differed from what happened."""

    calls: int = 0
    """Calls that were only observed."""
    elsewhere: int = 0
    """Would have gone to another endpoint."""
    refused: int = 0
    """Would have been refused."""
    retried: int = 0
    """Failed, and would have been attempted again."""

    def and_one(self, record: CallRecord) -> ObservedCalls:
        """With one more call that is over."""
        return ObservedCalls(
            self.calls + 1,
            self.elsewhere + (elsewhere(record) is not None),
            self.refused + (record.rejection is not None),
            self.retried + would_retry(record),
        )


def elsewhere(record: CallRecord) -> str | None:
    """The id of the endpoint that an observed call would have gone to instead."""
    first = record.attempts[0] if record.attempts else None
    if first is None or first.attempt.endpoint_id == first.endpoint.id:
        return None
    return first.attempt.endpoint_id


def would_retry(record: CallRecord) -> bool:
    """Whether an observed call failed and would have been attempted again, once more than the SDK
    did by itself."""
    call, outcome = record.call, record.outcome
    if call is None:
        return False
    bounds = (call.route.retry.attempts_max, record.facts.attempts_max, ATTEMPTS_DEFAULT)
    attempts_max = next(bound for bound in bounds if bound is not None)
    return (
        outcome is not None
        and record.rejection is None
        and len(record.attempts) < attempts_max
        and outcome.kind not in (FailureClass.OK, FailureClass.CANCELLED)
        and record.winner is not None
        and record.denied_by is None
        and elsewhere(record) is None
    )
