"""How long to wait: before a retry, and before an endpoint that asked for quiet is used again.

Backoff is full jitter, U(0, min(cap, base * 2^n)): of the published variants the one that spreads a
fleet widest. A server's hint is a floor, never undercut, and widened so that a fleet told "5 s"
does not come back as one wave.
"""

from __future__ import annotations

import math

from headway.core.model import FailureClass, Outcome, Rng
from headway.core.snapshot import RetryPolicy

HINT_WAIT_MAX_S = 120.0
"""A longer hint is not waited for by any call; the endpoint is left alone for that long instead."""
HINT_MAX_S = 24 * 3600.0
"""Longer hints are taken as this: nothing a server says can silence an endpoint for ever."""
THROTTLE_BASE_S = 1.0
THROTTLE_CAP_S = 20.0
"""429 without a hint: exponential from the base to the cap, by consecutive throttles."""
FAILOVER_JITTER_S = 0.25
"""From a call's second failover on; the first goes at once."""


def usable_hint(hint_s: float | None) -> float | None:
    """The hint if it means something: finite and positive; else None."""
    if hint_s is None or not math.isfinite(hint_s) or hint_s <= 0:
        return None
    return min(hint_s, HINT_MAX_S)


def is_turned_away(outcome: Outcome) -> bool:
    """A 429 that says nothing about when: most likely there was no room just then."""
    return (
        outcome.kind is FailureClass.RATE_LIMITED
        and not outcome.reached_model
        and usable_hint(outcome.retry_after_s) is None
    )


def widen_hint(hint_s: float, rng: Rng) -> float:
    """Draw the wait for a hint: U(h, 1.1 h + min(1, h / 5)) seconds."""
    return hint_s + rng.random() * (0.1 * hint_s + min(1.0, hint_s / 5.0))


def backoff_s(policy: RetryPolicy, retry: int, rng: Rng) -> float:
    """Draw the wait before the `retry`-th retry (from 0) at the same endpoint."""
    return _full_jitter(policy.backoff_base_s, policy.backoff_cap_s, retry, rng)


def patience_s(policy: RetryPolicy, retry: int, rng: Rng) -> float:
    """Draw the wait before the `retry`-th retry (from 0) at an endpoint that has no room and names
    no wait: from half of to the whole step. With full jitter some would ask again at once, and all
    three retries could be spent before a restart of two seconds is over."""
    step = min(policy.backoff_cap_s, policy.backoff_base_s * 2.0 ** min(retry, 16))
    return step * (0.5 + 0.5 * rng.random())


def throttle_s(consecutive: int, rng: Rng) -> float:
    """Draw how long to leave an endpoint alone after its `consecutive`-th 429 (from 0) in a row
    without a hint: between half of and the whole exponential step."""
    step = min(THROTTLE_CAP_S, THROTTLE_BASE_S * 2.0 ** min(consecutive, 16))
    return step * (0.5 + 0.5 * rng.random())


def _full_jitter(base_s: float, cap_s: float, exponent: int, rng: Rng) -> float:
    # 2^16 steps past any cap: the bound keeps the power finite whatever the caller counted.
    return rng.random() * min(cap_s, base_s * 2.0 ** min(exponent, 16))
