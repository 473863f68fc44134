"""Whether a call may be attempted again, when, and at whose expense.

`RetryPlan` is one call's memory of its failures and its one scheduled next attempt. The budget
token is taken when a retry is scheduled and given back if it is never sent. A refusal is a reason
in one word; the call then surfaces what the last attempt brought.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headway.core.backoff import (
    FAILOVER_JITTER_S,
    HINT_WAIT_MAX_S,
    backoff_s,
    patience_s,
    usable_hint,
)
from headway.core.model import (
    INFINITY,
    TRAITS,
    Attempt,
    AttemptKind,
    CallFacts,
    FailureClass,
    Outcome,
    Rng,
)
from headway.core.snapshot import Route, Snapshot
from headway.core.state import Pool

ATTEMPTS_DEFAULT = 3
FREE_RETRIES_MAX = 2
"""Failures that say nothing about anyone (a stale connection) are repeated this often per call."""


class Scheduled(NamedTuple):
    """The next attempt; `paid` while it holds a budget token that was not yet spent by sending."""

    at: float
    kind: AttemptKind
    backoff_s: float
    paid: bool
    owed: bool = False
    """Not paid for yet: whether it has to be is seen when it is due (`settle_debt`)."""


_FIRST = Scheduled(-INFINITY, AttemptKind.INITIAL, 0.0, paid=False)
_SENT = Scheduled(-INFINITY, AttemptKind.RETRY, 0.0, paid=False)


class RetryPlan:
    """One call's attempts so far and the next one."""

    __slots__ = (
        "_counted",
        "_failovers",
        "_free_retries",
        "_insisted",
        "_retries",
        "last",
        "last_kind",
        "last_outcome",
        "min_context",
        "next_up",
        "tried",
    )

    def __init__(self) -> None:
        self.next_up = _FIRST
        self.tried: frozenset[str] = frozenset()
        """Endpoints that failed this call: avoided while another is left."""
        self.last: Attempt | None = None
        self.last_kind: FailureClass | None = None
        self.last_outcome: Outcome | None = None
        self.min_context = 0
        """After a context-length failure: only declared windows larger than this will do."""
        self._counted = 0
        self._retries = 0
        self._failovers = 0
        self._free_retries = 0
        self._insisted = False

    def may_stay(self) -> bool:
        """Whether the last failure may be repeated at the endpoint it happened on."""
        return self._insisted or self.last_kind is None or TRAITS[self.last_kind].retry_here

    def sent(self) -> Scheduled:
        """The scheduled attempt is going out; returns what it was."""
        was, self.next_up = self.next_up, _SENT
        self._counted += 1
        return was

    def withdrawn(self, facts: CallFacts, pool: Pool, now: float) -> None:
        """The call is over and the scheduled attempt will never go out: what it took goes back."""
        if self.next_up.paid:
            pool.budget.refund(now)
            if facts.allowance is not None:
                facts.allowance.return_extra_attempt()

    def has_attempts_left(self, route: Route, facts: CallFacts) -> bool:
        """Whether the policy's, or else the caller's, attempt count allows another."""
        for bound in (route.retry.attempts_max, facts.attempts_max):
            if bound is not None:
                return self._counted < bound
        return self._counted < ATTEMPTS_DEFAULT

    def note(self, attempt: Attempt, outcome: Outcome) -> None:
        """Remember the latest failure."""
        self.last, self.last_kind, self.last_outcome = attempt, outcome.kind, outcome
        self._insisted = outcome.should_retry is True

    def schedule_free(self, outcome: Outcome, now: float) -> bool:
        """Schedule an immediate, uncharged repeat if the failure said nothing about anyone."""
        if not outcome.free_retry or self._free_retries >= FREE_RETRIES_MAX:
            return False
        self._free_retries += 1
        self._counted -= 1  # not an attempt in the sense of the caller's limit
        self.next_up = Scheduled(now, AttemptKind.RETRY, 0.0, paid=False)
        return True

    def schedule(
        self,
        attempt: Attempt,
        outcome: Outcome,
        facts: CallFacts,
        route: Route,
        snapshot: Snapshot,
        pool: Pool,
        *,
        deadline_at: float,
        has_alternative: Callable[[], bool],
        soonest: Callable[[], float],
        is_crowded: bool,
        rng: Rng,
        now: float,
    ) -> str:
        """Schedule the next attempt and take its token, or return why there is none.

        `is_crowded`: others were under way where this one was turned away.
        """
        denied = self._forbidden(outcome, facts, route)
        if denied:
            return denied
        if outcome.kind is FailureClass.CONTEXT_LENGTH:
            window = snapshot.endpoints[attempt.endpoint_id].max_context_tokens
            self.min_context = max(self.min_context, window or max(1, facts.prompt_tokens))
        self.tried |= {attempt.endpoint_id}
        failovers = self._failovers
        delay = self._delay_s(outcome, facts, route, has_alternative, soonest, rng)
        if delay is None:
            return "hint" if usable_hint(outcome.retry_after_s) else "breaker"
        if now + delay >= deadline_at:
            return "deadline"
        owes = is_crowded and self._failovers == failovers
        denied = "" if owes else pay(facts, pool, now)
        if denied:
            return denied
        self._retries += 1
        self.next_up = Scheduled(now + delay, AttemptKind.RETRY, delay, not owes, owes)
        return ""

    def settle_debt(self, facts: CallFacts, pool: Pool, last_success_at: float, now: float) -> str:
        """The attempt that is due was not paid for: the last was turned away beside others.

        If its endpoint has answered somebody since, that was for want of room, and a place
        has become free: no load is added. Else it is a retry like any other. Returns what
        denies it.
        """
        assert self.last is not None
        self.next_up = self.next_up._replace(owed=False)
        if last_success_at > self.last.started_at:
            return ""
        denied = pay(facts, pool, now)
        if not denied:
            self.next_up = self.next_up._replace(paid=True)
        return denied

    def _forbidden(self, outcome: Outcome, facts: CallFacts, route: Route) -> str:
        if outcome.should_retry is False or not (
            self.may_stay() or TRAITS[outcome.kind].move_elsewhere
        ):
            return "not_retryable"
        on = route.retry.on
        if on is not None and not ({outcome.kind.value, str(outcome.status)} & on):
            return "not_retryable"
        if outcome.reached_model and not facts.repeatable:
            return "not_retryable"
        # Delegated: the SDK counts its own attempts, and does not tell.
        if not facts.delegated and not self.has_attempts_left(route, facts):
            return "attempts"
        return ""

    def _delay_s(
        self,
        outcome: Outcome,
        facts: CallFacts,
        route: Route,
        has_alternative: Callable[[], bool],
        soonest: Callable[[], float],
        rng: Rng,
    ) -> float | None:
        if not facts.delegated and not facts.pinned_to and has_alternative():
            self._failovers += 1
            return 0.0 if self._failovers == 1 else rng.random() * FAILOVER_JITTER_S
        if not self.may_stay():
            return None
        hint = usable_hint(outcome.retry_after_s)
        if hint is not None:
            # The endpoint's own cool-down, widened by jitter, holds the send back after this. One
            # that failed before it may be back sooner.
            if not facts.delegated:
                hint = min(hint, max(0.0, soonest()))
            return hint if hint <= HINT_WAIT_MAX_S else None
        if outcome.kind in (FailureClass.RATE_LIMITED, FailureClass.OVERLOADED):
            return patience_s(route.retry, self._retries, rng)
        return backoff_s(route.retry, self._retries, rng)


def pay(facts: CallFacts, pool: Pool, now: float) -> str:
    """Take an extra attempt from the pool's budget and the task's allowance: both, or neither.

    Returns which of them denied it, or "".
    """
    if not pool.budget.can_withdraw(now):
        return "budget"
    if facts.allowance is not None and not facts.allowance.take_extra_attempt():
        return "task_budget"
    pool.budget.withdraw(now)
    return ""
