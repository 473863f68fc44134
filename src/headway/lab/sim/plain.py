"""Clients to compare with: a rule that picks an endpoint, and the SDK's own retries around it.

A rule sees what its process could see: the policy's weights, and its own calls. `PlainCall` does
what `openai` does with `max_retries=2`: connection errors, 408, 409, 429 and 5xx are repeated after
half a second, doubled, or after what the server asks for; each retry goes where the rule says then.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from headway.core.model import (
    CANCELLED,
    INFINITY,
    Action,
    Attempt,
    AttemptKind,
    CallFacts,
    FailureClass,
    Finish,
    Outcome,
    Rejection,
    Send,
    Wait,
    Waker,
)

MAX_RETRIES = 2
BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 8.0
HINT_MAX_S = 120.0
RETRIED = frozenset(
    {
        FailureClass.CONNECT,
        FailureClass.RATE_LIMITED,
        FailureClass.OVERLOADED,
        FailureClass.SERVER_ERROR,
        FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN,
    }
)
"""What the SDK repeats. A stream that broke after it began is not among it."""


class Rule(Protocol):
    """Picks endpoints for one process."""

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The endpoint for an attempt; None: refuse the call."""
        ...

    def sent(self, endpoint_id: str, facts: CallFacts, now: float) -> None:
        """An attempt went out."""
        ...

    def ended(self, attempt: Attempt, facts: CallFacts, outcome: Outcome, now: float) -> None:
        """An attempt is over."""
        ...


class Rules(ABC):
    """What most rules need: own outstanding attempts per endpoint, and chance."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        self.ids = list(ids)
        self.weights = list(weights)
        self.weight_of = dict(zip(ids, weights, strict=True))
        self.rng = rng
        self.process = process
        self.inflight = dict.fromkeys(ids, 0)

    @abstractmethod
    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The endpoint for an attempt."""

    def sent(self, endpoint_id: str, facts: CallFacts, now: float) -> None:
        """An attempt went out."""
        self.inflight[endpoint_id] += 1

    def ended(self, attempt: Attempt, facts: CallFacts, outcome: Outcome, now: float) -> None:
        """An attempt is over."""
        self.inflight[attempt.endpoint_id] -= 1


class PlainClient:
    """The client of one process."""

    def __init__(
        self,
        rule: Rule,
        rng: random.Random,
        *,
        timeout_s: float = INFINITY,
        silence_s: float = INFINITY,
    ) -> None:
        self.rule = rule
        self.rng = rng
        self.timeout_s = timeout_s
        """Of a call in whole; the application's, since the SDK has none."""
        self.silence_s = silence_s
        """The SDK's `timeout`: of an attempt, until it shows something."""

    def begin(self, facts: CallFacts, now: float, *, wall_now: float = 0.0) -> PlainCall:
        """Begin a call."""
        del wall_now
        return PlainCall(self, facts, min(facts.deadline_at, now + self.timeout_s))


class PlainCall:
    """One call: an attempt, and up to two more."""

    __slots__ = ("_attempt", "_client", "_due", "_finish", "_sent", "deadline_at", "facts")

    def __init__(self, client: PlainClient, facts: CallFacts, deadline_at: float) -> None:
        self.facts = facts
        self.deadline_at = deadline_at
        self._client = client
        self._sent = 0
        self._due = -INFINITY
        self._attempt: Attempt | None = None
        self._finish: Finish | None = None

    def next_action(self, now: float) -> Action:
        """Send, wait for a backoff or an answer, or finish."""
        if self._finish is not None:
            return self._finish
        if self._attempt is not None:
            return Wait(INFINITY, "running")
        if now < self._due:
            return Wait(self._due, "backoff")
        if now >= self.deadline_at:
            self._finish = Finish(None, Rejection("deadline"))
            return self._finish
        chosen = self._client.rule.pick(self.facts, now)
        if chosen is None:
            self._finish = Finish(None, Rejection("no_endpoint"))
            return self._finish
        self._sent += 1
        self._client.rule.sent(chosen, self.facts, now)
        self._attempt = Attempt(
            number=self._sent,
            kind=AttemptKind.RETRY if self._sent > 1 else AttemptKind.INITIAL,
            endpoint_id=chosen,
            model=self.facts.model,
            started_at=now,
            deadline_at=self.deadline_at,
            first_token_by=min(self.deadline_at, now + self._client.silence_s),
            idle_s=INFINITY,
        )
        return Send(self._attempt)

    def on_first_token(self, attempt: Attempt, now: float) -> bool:
        """The stream has begun: this attempt is the answer."""
        attempt.first_token_at = now
        self._finish = Finish(attempt)
        return True

    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt is over: the answer, or perhaps another one."""
        if attempt.ended:
            return
        attempt.ended = True
        self._attempt = None
        self._client.rule.ended(attempt, self.facts, outcome, now)
        if self._finish is not None:
            return
        if outcome.kind not in RETRIED or self._sent > MAX_RETRIES:
            self._finish = Finish(attempt)
            return
        hint = outcome.retry_after_s
        if hint is not None and hint > HINT_MAX_S:
            self._finish = Finish(attempt)
        elif hint is not None and hint > 0:
            self._due = now + hint
        else:
            wait = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** (self._sent - 1))
            self._due = now + wait * (1.0 - 0.25 * self._client.rng.random())

    def cancel(self, now: float) -> None:
        """The caller gave up."""
        if self._attempt is not None:
            self.on_outcome(self._attempt, CANCELLED, now)
        self._finish = self._finish or Finish(None, Rejection("cancelled"))

    def set_waker(self, waker: Waker | None) -> bool:
        """Nothing here waits for others."""
        del waker
        return False
