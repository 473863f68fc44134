"""Retry and hedge budgets: token buckets that successes fill and extra attempts drain.

A bucket credited by *successes* cannot feed a retry storm: when nothing succeeds nothing is
deposited, so a total outage costs the stock and no more. (Credit by requests stays metastable;
Finagle's and Envoy's budgets are of that kind. gRPC's retry throttling, gRFC A6, is the closest
relative of this one.)

Pure: instants come in as `now`, single-threaded under the engine's lock. Reading changes nothing;
decay and trickle are computed from the last change.
"""

from __future__ import annotations

import math

from headway.core.snapshot import HedgePolicy, RetryPolicy

TRICKLE_CEILING = 2.0
"""The time-based trickle never lifts the balance above this: no fleet wakes up rich."""
PEAK_HALF_LIFE_S = 120.0
"""How fast the remembered peak of in-flight calls fades."""
HEDGE_CAPACITY = 3.0
"""More stock would let a quiet hour pay for a burst of hedges."""


class RetryBudget:
    """The shared allowance for retries and hedges of one pool.

    Invariant: 0 <= balance(now) <= capacity(now).
    """

    __slots__ = ("_at", "_peak", "_peak_at", "_policy", "_tokens")

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self._policy = policy
        self._tokens = min(policy.budget_start, policy.budget_capacity)
        self._at = now
        self._peak = 0.0
        self._peak_at = now

    def reconfigure(self, policy: RetryPolicy) -> None:
        """Adopt a new policy's rates; the balance is kept."""
        self._policy = policy

    def capacity(self, now: float) -> float:
        """The most the bucket may hold: the configured floor, or half the recent peak in-flight.

        Scaling with concurrency is what lets a fan-out of 20 survive one dead endpoint of three.
        """
        return max(self._policy.budget_capacity, 0.5 * self._decayed_peak(now))

    def balance(self, now: float) -> float:
        """Whole and fractional tokens available at `now`."""
        tokens = self._tokens
        if tokens < TRICKLE_CEILING and self._policy.budget_trickle_s > 0:
            gained = max(0.0, now - self._at) / self._policy.budget_trickle_s
            tokens = min(TRICKLE_CEILING, tokens + gained)
        return min(tokens, self.capacity(now))

    def note_inflight(self, inflight: int, now: float) -> None:
        """Remember the pool's concurrency, as a call begins.

        At the beginning and not at the end: in a burst beside a dead endpoint the failures come
        before the first success, and need the tokens saved up in earlier bursts.
        """
        if inflight > 2.0 * self._policy.budget_capacity and inflight >= self._decayed_peak(now):
            self._peak = float(inflight)
            self._peak_at = now

    def deposit(self, now: float) -> None:
        """Credit one successful call."""
        if self._peak == 0.0 and self._tokens >= self._policy.budget_capacity:
            return  # full, as it nearly always is
        self._set(self.balance(now) + self._policy.budget_per_success, now)

    def can_withdraw(self, now: float) -> bool:
        """Whether one more extra attempt is affordable."""
        return self.balance(now) >= 1.0 - 1e-9

    def withdraw(self, now: float) -> bool:
        """Take one token, if `can_withdraw`. Called when a retry is scheduled, not when it is sent:
        otherwise a thousand failures enter backoff together and then all fire."""
        if not self.can_withdraw(now):
            return False
        self._set(self.balance(now) - 1.0, now)
        return True

    def refund(self, now: float) -> None:
        """Give back a token whose retry was never sent."""
        self._set(self.balance(now) + 1.0, now)

    def _decayed_peak(self, now: float) -> float:
        if self._peak == 0.0:
            return 0.0
        return self._peak * math.pow(0.5, max(0.0, now - self._peak_at) / PEAK_HALF_LIFE_S)

    def _set(self, tokens: float, now: float) -> None:
        self._tokens = min(max(tokens, 0.0), self.capacity(now))
        self._at = now


class HedgeBudget:
    """The allowance for hedges alone: a fraction of eligible calls, on top of the retry budget.

    Starts empty, so a process that has not yet seen what normal looks like hedges nothing.
    """

    __slots__ = ("_fraction", "_tokens")

    def __init__(self, policy: HedgePolicy) -> None:
        self._fraction = policy.max_extra_fraction
        self._tokens = 0.0

    def reconfigure(self, policy: HedgePolicy) -> None:
        """Adopt a new policy's fraction; the balance is kept."""
        self._fraction = policy.max_extra_fraction

    @property
    def balance(self) -> float:
        """Tokens available."""
        return self._tokens

    def deposit(self) -> None:
        """Credit one call that was eligible for a hedge."""
        self._tokens = min(HEDGE_CAPACITY, self._tokens + self._fraction)

    def can_withdraw(self) -> bool:
        """Whether one hedge is affordable."""
        return self._tokens >= 1.0 - 1e-9

    def withdraw(self) -> bool:
        """Take one token, if there is one. Check the retry budget first, then take both."""
        if not self.can_withdraw():
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        return True
