"""What a task has used so far, and what it may still use: the reading side of its ledger."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from headway.task.ledger import Caps, Ledger


class Figures:
    """Figures of a task. They include nested tasks and may be read from any thread at any time."""

    __slots__ = ("_deferred", "_ledger", "_wait")

    def __init__(self, name: str, caps: Caps) -> None:
        self._ledger = Ledger(name, caps)
        self._deferred = 0
        self._wait: Callable[[], None] | None = None

    @property
    def cost(self) -> Decimal | None:
        """USD known so far, of every attempt. None when nothing of it is known; never 0 instead."""
        self._settled()
        return self._ledger.total.amount

    @property
    def cost_source(self) -> str:
        """provider | local | estimated | unknown: the least certain part decides."""
        self._settled()
        return self._ledger.total.source

    @property
    def cost_complete(self) -> bool:
        """Whether `cost` is all of it: no attempt of unknown cost, no call still running."""
        self._settled()
        return not self._ledger.unknown_attempts and not self._ledger.open_calls

    @property
    def cost_by_source(self) -> dict[str, Decimal]:
        """Known USD by where the figure comes from."""
        self._settled()
        with self._ledger.lock:
            return dict(self._ledger.by_source)

    @property
    def wasted(self) -> Decimal:
        """USD that bought nothing: failed attempts, hedge losers, abandoned streams, failed
        tasks."""
        self._settled()
        return self._ledger.wasted

    @property
    def saved(self) -> Decimal:
        """USD that the task's calls would have cost more on their own: answers that were kept, and
        requests shared with identical calls. As far as known."""
        self._settled()
        return self._ledger.saved

    @property
    def calls(self) -> int:
        """Calls begun."""
        return self._ledger.calls

    @property
    def attempts(self) -> int:
        """Sends, over all calls."""
        return self._ledger.attempts

    @property
    def tokens(self) -> int:
        """Input and output tokens of every attempt, as far as known."""
        self._settled()
        return self._ledger.tokens

    @property
    def input_tokens(self) -> int:
        """Input tokens of every attempt, cached ones included."""
        self._settled()
        return self._ledger.input_tokens

    @property
    def output_tokens(self) -> int:
        """Output tokens of every attempt, reasoning included."""
        self._settled()
        return self._ledger.output_tokens

    @property
    def extra_attempts_left(self) -> int:
        """Retries and hedges that may still be made: max(3, 20 % of the calls), less those made."""
        return self._ledger.extra_attempts_left()

    def _take_extra_attempt(self) -> bool:
        """Use up one of `extra_attempts_left` for a retry made outside (a tenacity loop)."""
        return self._ledger.take_extra_attempt()

    def _settled(self) -> None:
        # Only right after the first calls of a process, while the price list is being loaded.
        if self._deferred and self._wait is not None:
            self._wait()
