"""Budgets of tenants: what a policy lets each of them spend, held against what their calls cost.

`headway.options(tenant=...)` names a call's tenant. Its call is reserved here by estimate before it
is sent, and corrected when its account is settled; `headway.core.purse` has the rule. Where a store
counts for a fleet, `headway.shared_state` carries the claims to it, off every call's way.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from headway.core.engine import route_of
from headway.core.model import Usage
from headway.core.purse import Claim, Grant, Purse, Terms
from headway.cost import MONEY, ZERO, Pricer, plain
from headway.errors import TaskLimitExceeded

if TYPE_CHECKING:
    from headway.core.model import CallFacts
    from headway.core.snapshot import Route, Snapshot

log = logging.getLogger("headway")

REASON = "tenant_max_cost"
TENANTS_MAX = 4096
"""Of which one process remembers what they used; the one that used its budget longest ago is
forgotten."""
CLAIMS_MAX = 512
"""Told to the store at once; the rest is told in the next turn."""
PRICED_MAX = 8
"""Endpoints of a route that are looked at for an estimate."""
SOON_S = 0.2
"""By then the store has been asked again."""


class TenantStatus(NamedTuple):
    """What a tenant's budget is, and what is known here to be used of it in this period."""

    tenant: str
    """As `headway.options` named it."""
    max_cost: Decimal
    """USD that it may use in one period."""
    used: Decimal
    """USD of calls of this process, what is reserved for those under way included."""
    left: Decimal | None
    """USD that the store last said were left for the fleet; None: no store has answered."""
    resets_in_s: float
    """Until the next period starts."""


class Reservation(NamedTuple):
    """What is set aside for one call."""

    tenants: Tenants
    tenant: str
    purse: Purse
    period: int
    amount: int

    def settle(self, known: Decimal, *, is_complete: bool = True) -> None:
        """The call is over, and cost so much. Incomplete: at least so much, and the reservation
        stands where that is less."""
        cost = pico(known)
        if is_complete or cost > self.amount:
            self.tenants.correct(self, cost)


class Tenants:
    """The budgets of one process. Thread-safe."""

    def __init__(
        self, pricer: Pricer, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._pricer = pricer
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.RLock()  # a collector run inside may settle a call
        self._purses: OrderedDict[str, Purse] = OrderedDict()
        self._active: dict[str, Purse] = {}
        """Those whose figures the store may not know."""
        self._asked: dict[str, Purse] = {}
        self._made = 0
        self._process = os.urandom(8).hex()

    # -- calls

    def reserve(
        self, tenant: str, snapshot: Snapshot, facts: CallFacts, now: float, *, anyway: bool = False
    ) -> Reservation | None:
        """Set aside what the call will probably cost; None: the policy gives no such budget.

        Raises `TaskLimitExceeded` where the budget can't carry it, unless `anyway`.
        """
        budget = snapshot.budget_of(tenant)
        if budget is None:
            return None
        terms = Terms(pico(budget.max_cost), budget.period_s, budget.share)
        priced = self._estimate(snapshot, facts)
        with self._lock:
            purse = self._purse(tenant, terms, now)
            amount = max(1, purse.mean() if priced is None else priced)
            is_carried = purse.reserve(amount, now, anyway=anyway)
            self._active[tenant] = purse
            if is_carried:
                return Reservation(self, tenant, purse, purse.period, amount)
            resets_in_s = max(0.0, purse.ends_at - now)
            why = _why(purse, amount)
        raise _refusal(tenant, budget.max_cost, why, resets_in_s, self._wall_clock())

    def correct(self, reserved: Reservation, cost: int) -> None:
        """The call is over: what it cost takes the place of what was reserved."""
        tenant, purse = reserved.tenant, reserved.purse
        with self._lock:
            purse.correct(reserved.amount, cost, reserved.period)
            if self._purses.get(tenant) is purse:
                self._active[tenant] = purse  # a long call: it may have been idle meanwhile

    def _purse(self, tenant: str, terms: Terms, now: float) -> Purse:
        purse = self._purses.get(tenant)
        if purse is not None and purse.terms != terms:
            if purse.terms.period_s != terms.period_s:
                purse = None
            else:
                purse.turn(now)
                purse.adopt(terms)
        if purse is None:
            self._made += 1
            part = f"{self._process}-{self._made}"
            purse = self._purses[tenant] = Purse(terms, part, now, self._wall_clock())
            if len(self._purses) > TENANTS_MAX:
                forgotten, _ = self._purses.popitem(last=False)
                self._active.pop(forgotten, None)
        self._purses.move_to_end(tenant)
        return purse

    def _estimate(self, snapshot: Snapshot, facts: CallFacts) -> int | None:
        """By the price of the costliest endpoint of its route; None: none has a price."""
        route = route_of(snapshot, facts)
        if route is None:
            return None
        output = route.expected_output_tokens
        if facts.max_output_tokens is not None:
            output = min(output, facts.max_output_tokens)
        usage = Usage(facts.prompt_tokens, output, estimated=True)
        most: Decimal | None = None
        for endpoint_id in _some_of(route):
            endpoint = snapshot.endpoints[endpoint_id]
            if endpoint.price is not None and endpoint.price.per_gpu_hour is not None:
                continue  # by its time, which nobody knows yet
            if self._pricer.pending(endpoint):
                self._pricer.warm(endpoint)
                continue
            model = endpoint.upstream_model(facts.model)
            cost = self._pricer.price(endpoint, model, usage, is_last_name=False).amount
            if cost is not None and (most is None or cost > most):
                most = cost
        return None if most is None else pico(most)

    # -- the store's side (see headway.shared_state)

    def claims(self, now: float, *, closing: bool = False) -> list[Claim]:
        """What to tell the store, and to ask it for."""
        with self._lock:
            found: list[Claim] = []
            self._asked = {}
            for tenant, purse in list(self._active.items()):
                if len(found) >= CLAIMS_MAX:
                    break
                claim = purse.claim(tenant, now, closing=closing)
                if claim is not None:
                    found.append(claim)
                    self._asked[purse.part] = purse
                    self._active[tenant] = self._active.pop(tenant)  # the others go first next time
                elif purse.is_idle(now):
                    del self._active[tenant]
            return found

    def grant(self, grants: Iterable[Grant], now: float) -> None:
        """What it answered."""
        with self._lock:
            for grant in grants:
                purse = self._asked.pop(grant.part, None)
                if purse is not None:
                    purse.grant(grant, now)
            self._forget_asked()

    def lose(self) -> None:
        """It did not answer."""
        with self._lock:
            self._forget_asked()

    def _forget_asked(self) -> None:
        for purse in self._asked.values():
            purse.lose()
        self._asked = {}

    # -- looking in

    def status(self, now: float) -> tuple[TenantStatus, ...]:
        """Tenants that had calls here, the one with the latest last."""
        with self._lock:
            rows: list[TenantStatus] = []
            for tenant, purse in self._purses.items():
                purse.turn(now)
                rows.append(
                    TenantStatus(
                        tenant,
                        usd(purse.terms.limit),
                        usd(purse.used),
                        usd(purse.left) if purse.is_told else None,
                        max(0.0, purse.ends_at - now),
                    )
                )
            return tuple(rows)

    def after_fork(self) -> None:
        """In a forked child: what was used, and granted, are the parent's."""
        self._lock = threading.RLock()
        self._purses = OrderedDict()
        self._active, self._asked = {}, {}
        self._process = os.urandom(8).hex()


def pico(amount: Decimal) -> int:
    """Whole pico-USD, rounded up."""
    return math.ceil(amount.scaleb(12, MONEY))


def usd(amount: int) -> Decimal:
    """From pico-USD, exactly."""
    return Decimal(amount).scaleb(-12, MONEY) if amount else ZERO


def _some_of(route: Route) -> Iterable[str]:
    ids = route.endpoint_ids
    return ids if len(ids) <= PRICED_MAX else sorted(ids)[:PRICED_MAX]


USED_UP = "is used up"
SHARE_USED_UP = "is used up as far as it is this process's share"
NEARLY_USED_UP = "is nearly used up, and others may be using the rest"


def _why(purse: Purse, amount: int) -> str:
    if not purse.fits_fleet(amount):
        return USED_UP
    return NEARLY_USED_UP if purse.is_told else SHARE_USED_UP


def _refusal(
    tenant: str, max_cost: Decimal, why: str, resets_in_s: float, wall_now: float
) -> TaskLimitExceeded:
    at = datetime.fromtimestamp(math.ceil(wall_now + resets_in_s), UTC)
    return TaskLimitExceeded(
        f"Tenant {tenant!r} can't carry another call: its budget of {plain(max_cost)} USD "
        f"{why}; it resets at {at:%Y-%m-%dT%H:%M:%SZ}, in {resets_in_s:.0f} s.",
        reason=REASON,
        retry_after_s=SOON_S if why is NEARLY_USED_UP else resets_in_s,
    )
