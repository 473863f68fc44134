"""What happened: the facts that `Router(on_event=...)` receives and `headway.testing` records.

Immutable values of the core under a public name. Instants (`at`, `until`) are seconds of the
router's clock. More kinds may come: match those that you know, and let the others pass.
"""

from __future__ import annotations

from headway.core.model import (
    EVENTS,
    Attempt,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    BreakerChanged,
    BudgetExhausted,
    CallDequeued,
    CallEnded,
    CallQueued,
    CallRejected,
    CallShared,
    CredentialBlocked,
    EndpointEjected,
    EndpointReadmitted,
    EndpointThrottled,
    Event,
    FailureClass,
    FirstToken,
    FleetStoreChanged,
    LimitChanged,
    Outcome,
    PolicyLoaded,
    PolicyRejected,
    PolicyStale,
    Rejection,
    RetryDenied,
)

__all__ = [
    "EVENTS",
    "Attempt",
    "AttemptEnded",
    "AttemptKind",
    "AttemptStarted",
    "BreakerChanged",
    "BudgetExhausted",
    "CallDequeued",
    "CallEnded",
    "CallQueued",
    "CallRejected",
    "CallShared",
    "CredentialBlocked",
    "EndpointEjected",
    "EndpointReadmitted",
    "EndpointThrottled",
    "Event",
    "FailureClass",
    "FirstToken",
    "FleetStoreChanged",
    "LimitChanged",
    "Outcome",
    "PolicyLoaded",
    "PolicyRejected",
    "PolicyStale",
    "Rejection",
    "RetryDenied",
]
