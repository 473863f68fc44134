"""A tenant's budget for a period, counted by a whole fleet: what one process may spend of it.

A call is reserved by estimate before it is sent and corrected by what it cost. A call only looks at
figures that are at hand: what the fleet's store has granted to this process, and how much it last
said was left for all. Of what is left a process may use its own share before it asks again, and go
one call beyond what it was granted; so the fleet ends at most by that one call for each process
above the budget. Without a store, or before its first answer, all is left, and the share of that is
the static share of the budget.

Claims are totals of the period, not differences: one that is lost, or arrives twice, changes
nothing, and a store that has forgotten everything is told again.

Amounts are whole pico-USD, and nano-USD where a store counts: a sum that is exact. Pure;
single-threaded under its owner's lock.
"""

from __future__ import annotations

import math
from typing import NamedTuple

PICO_PER_NANO = 1000
AHEAD = 1.25
"""Ask for this much more than was used since the last time."""
IDLE_S = 10.0
"""What was granted and not used for this long is given back."""
NOT_TOLD = -1
"""The number of a period that no store has named yet."""


class Terms(NamedTuple):
    """What a policy says of a tenant's spending."""

    limit: int
    """Pico-USD for a whole fleet and period."""
    period_s: int
    share: float
    """The part of this process, where it can't ask."""


class Claim(NamedTuple):
    """What a process tells a store of a tenant, and asks for. Nano-USD."""

    tenant: str
    part: str
    """Whose figures these are: no two purses of a fleet have the same."""
    period_s: int
    limit: int
    window: int
    """The period that `used` belongs to, by the store's count; below zero: not told yet."""
    used: int
    """All that was used in this period, what is reserved included."""
    ahead: int
    """What is asked for beside it."""


class Grant(NamedTuple):
    """What a store answers. Nano-USD."""

    tenant: str
    part: str
    window: int
    ends_in_s: float
    """Until this period ends."""
    ahead: int
    """What was granted of it."""
    left: int
    """For all others and for later; negative where more was used than there was."""


class Purse:
    """One tenant's budget in one process, in the period that runs."""

    __slots__ = (
        "_asked",
        "_asked_period",
        "_calls",
        "_cost",
        "_is_changed",
        "_is_told",
        "_missed",
        "_spent",
        "_unit",
        "_used_at",
        "ends_at",
        "granted",
        "left",
        "part",
        "period",
        "terms",
        "used",
        "window",
    )  # fmt: skip

    def __init__(self, terms: Terms, part: str, now: float, wall_now: float) -> None:
        self.terms = terms
        self.part = part
        self.period = 0
        """Counts the periods of this purse: a reservation belongs to one."""
        self.window = math.floor(wall_now / terms.period_s)
        self.ends_at = now + (self.window + 1) * terms.period_s - wall_now
        self.used = 0
        self.granted = 0
        self.left = terms.limit
        """What the store last said was left for all, beside what it granted."""
        self._is_told = False
        self._calls = 0
        self._cost = 0
        self._spent = 0
        self._missed = 0
        self._unit = 0
        self._used_at = float("-inf")
        self._is_changed = False
        self._asked = 0
        self._asked_period = 0

    # -- calls

    def reserve(self, amount: int, now: float, *, anyway: bool = False) -> bool:
        """Reserve for a call that is about to be sent; False: the budget can't carry it.

        At least 1, so that a call of no known cost finds nothing where nothing is left.
        """
        self.turn(now)
        self._used_at = now
        if not (anyway or self.can_carry(amount)):
            self._missed = max(self._missed, amount)
            return False
        self.used += amount
        self._spent += amount
        self._unit = amount
        self._is_changed = True
        return True

    def can_carry(self, amount: int) -> bool:
        """Whether so much more may be used, by what is known here."""
        beyond = self.used + amount - self.granted
        if beyond <= max(0, math.floor(self.left * self.terms.share)):
            return True
        return self.used <= self.granted and beyond <= self.left

    def fits_fleet(self, amount: int) -> bool:
        """Whether the fleet had room for it when the store answered last."""
        return self.used + amount - self.granted <= self.left

    def correct(self, reserved: int, cost: int, period: int) -> None:
        """The call is over: what it cost takes the place of what was reserved in a `period`."""
        self._calls += 1
        self._cost += cost
        if period != self.period:
            return  # it counts in the period in which it began
        self.used += cost - reserved
        self._is_changed = True

    def mean(self) -> int:
        """What calls cost so far, on average; 0: none is over."""
        return self._cost // self._calls if self._calls else 0

    # -- time and terms

    def turn(self, now: float) -> None:
        """Begin the next period, if it is time."""
        if now >= self.ends_at:
            periods = 1 + math.floor((now - self.ends_at) / self.terms.period_s)
            self.window += periods
            self.ends_at += periods * self.terms.period_s
            self._begin()

    def adopt(self, terms: Terms) -> None:
        """A new policy's terms, of the same length of period; what was used stays used."""
        self.left += terms.limit - self.terms.limit
        self.terms = terms
        self._is_changed = True

    def _begin(self) -> None:
        self.period += 1
        self.used = self.granted = self._spent = self._missed = 0
        self.left = self.terms.limit
        self._is_changed = False

    # -- the store

    def claim(self, tenant: str, now: float, *, closing: bool = False) -> Claim | None:
        """What to tell the store, and to ask for; None: it knows all, and nothing is wanted."""
        self.turn(now)
        is_idle = closing or self.is_idle(now)
        if not (self._is_changed or self._missed or (is_idle and self.granted > self.used)):
            return None
        wanted = 0 if is_idle else max(math.ceil(AHEAD * self._spent), self._unit) + self._missed
        self._spent = self._missed = 0
        self._is_changed = False
        self._asked, self._asked_period = self.used, self.period
        return Claim(
            tenant,
            self.part,
            self.terms.period_s,
            self.terms.limit // PICO_PER_NANO,
            self.window if self._is_told else NOT_TOLD,
            nano(self.used),
            nano(wanted),
        )

    def grant(self, grant: Grant, now: float) -> None:
        """The store has answered the last claim."""
        self.turn(now)
        if self._asked_period != self.period:
            self._is_changed = self.used > 0  # of a period that has ended meanwhile
            return
        told = nano(self._asked)
        if self._is_told and grant.window > self.window:
            since = max(0, self.used - self._asked)
            self._begin()
            self.used, self._is_changed, told = since, since > 0, 0
        self._is_told = True
        self.window = grant.window
        self.ends_at = now + grant.ends_in_s
        self.granted = (told + grant.ahead) * PICO_PER_NANO
        self.left = grant.left * PICO_PER_NANO

    def lose(self) -> None:
        """The store did not answer: it is to be told again."""
        self._is_changed = True

    @property
    def is_told(self) -> bool:
        """Whether a store has answered since this purse was made."""
        return self._is_told

    def is_idle(self, now: float) -> bool:
        """Whether nothing was used for a while."""
        return now - self._used_at >= IDLE_S


def nano(pico: int) -> int:
    """Whole nano-USD, rounded up; nothing negative."""
    return max(0, -(-pico // PICO_PER_NANO))
