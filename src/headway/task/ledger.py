"""The figures of a task, rolled up to its ancestors as they come in."""

from __future__ import annotations

import threading
from decimal import Decimal
from typing import NamedTuple

from headway.cost import MONEY, SOURCES, ZERO, Cost, add, plain, worst_source

EXTRA_ATTEMPTS_MIN = 3
EXTRA_ATTEMPTS_SHARE = 0.2
"""Retries and hedges one task may use: max(3, 20 % of its calls)."""


class Caps(NamedTuple):
    """What a task may use. None: as much as it likes."""

    cost: Decimal | None = None
    calls: int | None = None
    tokens: int | None = None


class Settlement(NamedTuple):
    """What one call comes to when it is over."""

    by_source: dict[str, Decimal]
    """Known money by source; the attempts of unknown cost are only counted."""
    unknown_attempts: int
    wasted: Decimal
    input_tokens: int
    output_tokens: int
    total: Decimal = ZERO
    """Sum of `by_source`."""
    saved: Decimal = ZERO
    """What it would have cost more, had it shared no request and reused no answer."""


class Ledger:
    """Figures of one task, nested tasks included. Every change is made under the tree's one
    lock."""

    __slots__ = (
        "attempts", "by_source", "calls", "caps", "cost", "extra_attempts", "forfeit",
        "input_tokens", "limits_spending", "lock", "name", "open_calls", "output_tokens", "parent",
        "saved", "settled_calls", "unknown_attempts", "wasted",
    )  # fmt: skip

    def __init__(self, name: str, caps: Caps) -> None:
        self.name = name
        self.caps = caps
        self.parent: Ledger | None = None
        # Reentrant: a collector run inside may finalise a stream, which settles its call.
        self.lock = threading.RLock()
        self.limits_spending = caps.cost is not None or caps.tokens is not None
        """Whether a cap here or above depends on what finished calls came to."""
        self.calls = 0
        self.open_calls = 0
        self.settled_calls = 0
        self.attempts = 0
        self.extra_attempts = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost = ZERO
        self.wasted = ZERO
        self.saved = ZERO
        self.unknown_attempts = 0
        self.by_source: dict[str, Decimal] = {}
        self.forfeit = False

    # ----------------------------------------------------------------- changes

    def nest(self, parent: Ledger) -> None:
        """Roll up to `parent` from now on: before the first call."""
        self.parent = parent
        self.lock = parent.lock
        self.limits_spending = self.limits_spending or parent.limits_spending

    def open_call(self, *, is_exempt: bool = False) -> tuple[str, Ledger] | None:
        """Count one more call, or name the cap (and whose) that forbids it; then nothing
        changes. Exempt: no cap forbids it."""
        with self.lock:
            ledger: Ledger | None = None if is_exempt else self
            while ledger is not None:
                reached = ledger._reached_cap()
                if reached is not None:
                    return reached, ledger
                ledger = ledger.parent
            ledger = self
            while ledger is not None:
                ledger.calls += 1
                ledger.open_calls += 1
                ledger = ledger.parent
        return None

    def reopen_call(self) -> None:
        """A call that was settled goes on after all."""
        with self.lock:
            ledger: Ledger | None = self
            while ledger is not None:
                ledger.open_calls += 1
                ledger.settled_calls -= 1
                ledger = ledger.parent

    def let_pass(self, *, is_resend: bool) -> None:
        """No route takes the call: it is made, and nobody here will know what it costs. One that
        the SDK sends again was counted when it was first sent."""
        with self.lock:
            ledger: Ledger | None = self
            while ledger is not None:
                ledger.open_calls -= 1
                if is_resend:
                    ledger.calls -= 1
                else:
                    ledger.unknown_attempts += 1
                ledger = ledger.parent

    def start_attempt(self) -> None:
        """Count an attempt."""
        with self.lock:
            ledger: Ledger | None = self
            while ledger is not None:
                ledger.attempts += 1
                ledger = ledger.parent

    def take_extra_attempt(self) -> bool:
        """Use up one attempt beyond the calls' first ones, here and in every ancestor, or none."""
        with self.lock:
            if self.extra_attempts_left() <= 0:
                return False
            self._use_extra(1)
        return True

    def return_extra_attempt(self) -> None:
        """It was never sent."""
        with self.lock:
            self._use_extra(-1)

    def _use_extra(self, by: int) -> None:
        ledger: Ledger | None = self
        while ledger is not None:
            ledger.extra_attempts += by
            ledger = ledger.parent

    def settle(self, call: Settlement) -> None:
        """Add what a finished call came to."""
        total, wasted = call.total, call.wasted
        with self.lock:
            ledger: Ledger | None = self
            while ledger is not None:
                ledger.open_calls -= 1
                ledger.settled_calls += 1
                ledger.input_tokens += call.input_tokens
                ledger.output_tokens += call.output_tokens
                ledger.unknown_attempts += call.unknown_attempts
                for source, amount in call.by_source.items():
                    known = ledger.by_source.get(source)
                    ledger.by_source[source] = amount if known is None else add(known, amount)
                if ledger.forfeit:
                    wasted = total  # late money of a failed task is wasted too, here and above
                ledger.cost = add(ledger.cost, total)
                if wasted:
                    ledger.wasted = add(ledger.wasted, wasted)
                if call.saved:
                    ledger.saved = add(ledger.saved, call.saved)
                ledger = ledger.parent

    def forfeit_all(self) -> None:
        """The task did not succeed: everything it cost is wasted. Stays so, whatever is said
        later."""
        with self.lock:
            if self.forfeit:
                return
            self.forfeit = True
            extra = MONEY.subtract(self.cost, self.wasted)
            ledger: Ledger | None = self
            while ledger is not None and (ledger is self or not ledger.forfeit):
                ledger.wasted = MONEY.add(ledger.wasted, extra)
                ledger = ledger.parent

    # ----------------------------------------------------------------- questions

    def explain(self, cap: str) -> str:
        """The sentence for a call refused by `cap` of this task."""
        caps = self.caps
        match cap:
            case "max_calls":
                used, allowed = f"{self.calls} call{'s' * (self.calls != 1)} begun", f"{caps.calls}"
            case "max_tokens":
                used, allowed = f"{self.tokens} tokens used", f"{caps.tokens}"
            case _:
                used, allowed = f"{plain(self.cost)} USD spent", f"{caps.cost} USD"
        plural = "s" * (self.open_calls != 1)
        running = f", {self.open_calls} call{plural} running" if self.open_calls else ""
        return f"Task {self.name!r} can't carry another call: {cap} is {allowed}, {used}{running}."

    @property
    def source(self) -> str:
        """The worst source among the parts; nothing spent is known exactly: "local"."""
        if not self.by_source and not self.unknown_attempts:
            return "local"
        worst = "unknown" if self.unknown_attempts else SOURCES[0]
        for source in self.by_source:
            worst = worst_source(worst, source)
        return worst

    @property
    def total(self) -> Cost:
        """Known cost so far. None when nothing but unknown was spent: unknown is never zero."""
        if self.unknown_attempts and not self.cost:
            return Cost(None, "unknown")
        return Cost(self.cost, self.source)

    @property
    def tokens(self) -> int:
        """Input and output tokens of all attempts."""
        return self.input_tokens + self.output_tokens

    def extra_attempts_left(self) -> int:
        """Retries and hedges still allowed, here and in every ancestor."""
        left = self._own_extra_attempts_left()
        ledger = self.parent
        while ledger is not None:
            left = min(left, ledger._own_extra_attempts_left())
            ledger = ledger.parent
        return max(0, left)

    def _own_extra_attempts_left(self) -> int:
        allowed = int(EXTRA_ATTEMPTS_SHARE * self.calls)
        allowed = max(allowed, EXTRA_ATTEMPTS_MIN)
        return allowed - self.extra_attempts

    def _reached_cap(self) -> str | None:
        caps = self.caps
        if caps.calls is not None and self.calls >= caps.calls:
            return "max_calls"
        if caps.tokens is not None and self.tokens + self._expected(self.tokens) >= caps.tokens:
            return "max_tokens"
        if caps.cost is not None:
            ahead = ZERO
            if self.open_calls and self.settled_calls:
                mean = MONEY.divide(self.cost, Decimal(self.settled_calls))
                ahead = MONEY.multiply(mean, Decimal(self.open_calls))
            if MONEY.add(self.cost, ahead) >= caps.cost:
                return "max_cost"
        return None

    def _expected(self, spent: int) -> float:
        """What the calls still running will probably add: as much as those before them did.

        Without it a fan-out started at once would pass every cap.
        """
        if not self.open_calls or not self.settled_calls:
            return 0.0
        return spent / self.settled_calls * self.open_calls
