"""When a supply looks at its source next."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.errors import FetchError
from headway.policy.refresh import default_backoff, failed_wait_s
from headway.policy.sources import PolicySource, UnavailableError

if TYPE_CHECKING:
    from tenacity import RetryCallState


class Pace:
    """The interval of a source with its jitter, stretched by failures and by what the source asks.

    `due` is in the monotonic seconds of `now`; 0 at the start: look as soon as anybody wants it.
    """

    def __init__(
        self,
        source: PolicySource | None,
        rng: random.Random,
        backoff: Callable[[RetryCallState], float] | None,
    ) -> None:
        self.due = 0.0
        self.failures = 0
        """In a row."""
        self._source = source
        self._rng = rng
        self._backoff = backoff

    def answered(self, now: float, fresh_s: float | None = None) -> None:
        """The source gave an answer, good or bad, and perhaps for how long it holds."""
        self.failures = 0
        # Never sooner than the interval; and what a whole fleet is told must not make it one wave.
        jitter = 0.0 if self._source is None else self._source.jitter
        stretched = (fresh_s or 0.0) * (1.0 + jitter * self._rng.random())
        self.due = now + max(self.interval_s(), stretched)

    def soon(self, now: float, again_s: float) -> None:
        """Something is going on at the source: look again in a moment."""
        self.due = now + again_s

    def failed(self, now: float, exc: FetchError) -> None:
        """The source gave no answer."""
        self.failures += 1
        self.due = now + self._failed_wait_s(exc)

    def forked(self, now: float) -> None:
        """Children forked together must not ask together."""
        self._rng.seed()
        self.due = now + self.interval_s() * self._rng.random()

    def interval_s(self) -> float:
        """The usual time between two looks, jittered."""
        source = self._source
        if source is None or source.interval_s is None:
            return 0.0
        return source.interval_s * (1.0 + source.jitter * (2.0 * self._rng.random() - 1.0))

    def _failed_wait_s(self, exc: FetchError) -> float:
        if self._source is None or not self._source.fetched:
            return self.interval_s()
        if self._backoff is None:
            self._backoff = default_backoff()
        wait_s = failed_wait_s(self._backoff, self.failures)
        hint_s = exc.retry_after_s if isinstance(exc, UnavailableError) else None
        return wait_s if hint_s is None else max(wait_s, hint_s)
