"""What a call has to do with others in money: a request that several calls paid for, an answer that
was kept.

    lead's attempts priced ─▶ Joint.settle ─▶ one part for each call that waited for them

The parts of a sum add up to it exactly: each call that joined gets the same amount, rounded down to
10^-12 USD, and the call that made the request gets the rest.
"""

from __future__ import annotations

import threading
from decimal import ROUND_DOWN, Decimal
from typing import TYPE_CHECKING

from headway.core.model import Attempt, AttemptKind, CallFacts
from headway.cost import MONEY, PICO_USD, ZERO, Cost, Pricer, add, worst_source
from headway.forks import free_in_children
from headway.record.attempt import AttemptRecord, price_attempt
from headway.task.ledger import Settlement

if TYPE_CHECKING:
    from headway.core.model import Usage
    from headway.core.snapshot import Endpoint
    from headway.record.call import CallRecord

_lock = free_in_children(threading.RLock())
"""Held to add a call or to close a joint. Reentrant: a collector run inside may settle a call."""


class Joint:
    """One request's cost, and the calls that share it."""

    __slots__ = ("_is_closed", "_joined", "callers")

    def __init__(self) -> None:
        self.callers = 1
        """Calls that share it, the one that made the request included."""
        self._joined: list[CallRecord] = []
        self._is_closed = False

    def join(self, record: CallRecord) -> bool:
        """One more call; False once the cost stands."""
        shared = share_of(record)
        with _lock:
            if self._is_closed:
                return False
            self._joined.append(record)
            self.callers += 1
            shared.awaited += 1
            shared.joint = self
        return True

    def defer(self) -> None:
        """The price list is still being loaded: the tasks of those who joined wait for it, too."""
        for record in list(self._joined):
            record.defer()

    def settle(self, whole: Settlement, cost: Cost) -> Settlement:
        """Close it and hand out the parts, once; returns the lead's own."""
        with _lock:
            joined, self._joined = self._joined, []
            self._is_closed = True
        if not joined:
            return whole
        part, rest = split(whole, len(joined) + 1)
        for record in joined:
            shared = share_of(record)
            with _lock:
                shared.parts.append((part, cost))
                shared.awaited -= 1
                shared.add_saved(_less(cost.amount, part.total))
            record.settle_if_over()
        return rest


class Shared:
    """What one call's account has to do with others'."""

    __slots__ = ("awaited", "decision", "joint", "kept", "leads", "parts", "saved")

    def __init__(self) -> None:
        self.decision: str | None = None
        """share: another call's request answered this one. avoid: an answer that had been kept.
        None: it made a request itself."""
        self.leads: Joint | None = None
        """The calls that wait for this one's request."""
        self.joint: Joint | None = None
        """What it joined last."""
        self.awaited = 0
        """Requests that it is still to pay its part of."""
        self.parts: list[tuple[Settlement, Cost]] = []
        self.kept: AttemptRecord | None = None
        """What the kept answer had taken, as an attempt that would cost the same again."""
        self.saved: Decimal | None = ZERO
        """USD that the call would have cost more on its own; None: unknown."""

    @property
    def callers(self) -> int:
        """Calls that one request answered."""
        joint = self.leads or self.joint
        return 1 if joint is None else joint.callers

    def add_saved(self, amount: Decimal | None) -> None:
        """So much less than alone; None: nobody knows how much."""
        known = self.saved
        self.saved = None if known is None or amount is None else add(known, amount)

    def settled(
        self, own: Settlement, cost: Cost, pricer: Pricer, facts: CallFacts
    ) -> tuple[Settlement, Cost]:
        """The call's figures: what its own attempts came to, less what others bear of it, and its
        parts of theirs."""
        source = cost.source
        if self.leads is not None:
            whole = cost.amount
            own = self.leads.settle(own, cost)
            if self.leads.callers > 1:
                self.add_saved(_less(whole, own.total))
        for part, of in self.parts:
            own = _sum(own, part)
            source = worst_source(source, of.source)
        if self.kept is not None:
            self.add_saved(price_attempt(self.kept, pricer, facts).amount)
        own = own._replace(saved=self.saved or ZERO)
        amount = None if own.unknown_attempts and not own.total else own.total
        return own, Cost(amount, "unknown" if amount is None else source)


def share_of(record: CallRecord) -> Shared:
    """The record's dealings with others; made when it has some."""
    shared = record.shared
    if shared is None:
        shared = record.shared = Shared()
    return shared


def kept_attempt(
    endpoint: Endpoint,
    model: str,
    *,
    usage: Usage | None,
    response_model: str | None,
    service_tier: str | None,
    duration_s: float | None,
    busy_s: float,
) -> AttemptRecord:
    """An attempt that was spared, as one to be priced."""
    attempt = Attempt(0, AttemptKind.INITIAL, endpoint.id, model, 0.0, 0.0, 0.0, 0.0)
    record = AttemptRecord(attempt, endpoint)
    record.usage = record.settled_usage = usage
    record.response_model = response_model
    record.service_tier = service_tier
    record.duration_s = duration_s
    record.busy_s = busy_s
    record.result = "ok"
    return record


def split(whole: Settlement, callers: int) -> tuple[Settlement, Settlement]:
    """(a part, what is left when all the others have taken one)."""
    part = Settlement(
        {source: _portion(amount, callers) for source, amount in whole.by_source.items()},
        whole.unknown_attempts,  # no money: it says that something is missing, and it is for all
        _portion(whole.wasted, callers),
        whole.input_tokens // callers,
        whole.output_tokens // callers,
    )
    part = part._replace(total=_total(part.by_source))
    others = callers - 1
    rest = Settlement(
        {source: _rest(whole.by_source[source], part.by_source[source], others)
         for source in whole.by_source},
        whole.unknown_attempts,
        _rest(whole.wasted, part.wasted, others),
        whole.input_tokens - part.input_tokens * others,
        whole.output_tokens - part.output_tokens * others,
    )  # fmt: skip
    return part, rest._replace(total=_total(rest.by_source))


def _portion(amount: Decimal, callers: int) -> Decimal:
    return MONEY.divide(amount, Decimal(callers)).quantize(PICO_USD, ROUND_DOWN, context=MONEY)


def _rest(amount: Decimal, part: Decimal, others: int) -> Decimal:
    return MONEY.subtract(amount, MONEY.multiply(part, Decimal(others)))


def _total(by_source: dict[str, Decimal]) -> Decimal:
    total = ZERO
    for amount in by_source.values():
        total = add(total, amount)
    return total


def _less(whole: Decimal | None, part: Decimal) -> Decimal | None:
    return None if whole is None else MONEY.subtract(whole, part)


def _sum(a: Settlement, b: Settlement) -> Settlement:
    by_source = dict(a.by_source)
    for source, amount in b.by_source.items():
        by_source[source] = add(by_source.get(source, ZERO), amount)
    return Settlement(
        by_source,
        a.unknown_attempts + b.unknown_attempts,
        add(a.wasted, b.wasted),
        a.input_tokens + b.input_tokens,
        a.output_tokens + b.output_tokens,
        add(a.total, b.total),
        add(a.saved, b.saved),
    )
