"""A rate that a fleet shares exactly: what the fleet's store lends to this process, and no more.

A published rate can be divided by `shares`, without anybody talking: exact only where all processes
are equally busy. With a store each process borrows what it is about to use, a few times a second
and never while a call waits for it: a call only looks at the balance. What was charged by estimate
is corrected by the usage reported, and a deficit is part of the next loan.

When the store can't be asked, the process falls back to its own share of the rate; so does one that
has not asked for a while, except that what it uses then is owed.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.core.admission import RateGate

OWN_BURST_S = 0.25
"""What a process may send at once by its own share: a whole fleet may fall back at once."""
AHEAD = 1.25
"""Borrow this much more than was used since the last time."""
FLOOR_S = 0.1
"""Keep at least so many seconds of the own share at hand, or one call's worth, while in use."""
IDLE_S = 10.0
"""What is borrowed and not used for this long is no longer there to be used."""
MOST_S = 1.0
"""A loan is at most what all may use in this time, and debts. Larger calls go with as much at hand,
and owe the rest."""
RETRY_S = 0.05
"""When to look again where the next loan is overdue."""


class Want(NamedTuple):
    """What a process asks the store for."""

    endpoint_id: str
    kind: str
    """rpm | tpm"""
    per_s: float
    """The fleet's rate."""
    amount: float


class Loan(NamedTuple):
    """What it got."""

    endpoint_id: str
    kind: str
    amount: float


class FleetGate(RateGate):
    """Paces attempts to a rate that a fleet shares. Amounts are requests, or tokens."""

    __slots__ = (
        "_balance",
        "_is_lost",
        "_missed",
        "_most",
        "_next_at",
        "_promised",
        "_spent",
        "_unit",
        "_used_at",
        "_valid_until",
        "fleet_per_s",
    )  # fmt: skip

    def __init__(self, per_minute: float | None, fleet_per_minute: float | None) -> None:
        super().__init__(per_minute, burst_s=OWN_BURST_S)
        self.fleet_per_s = fleet_per_minute / 60.0 if fleet_per_minute else None
        """What all processes together may use; None: no such rate is published."""
        self._balance = 0.0
        self._spent = 0.0
        self._missed = 0.0
        self._most = 0.0
        self._promised = 0.0
        """The largest need that went without in the last interval: smaller ones let it go first."""
        self._unit = 1.0
        self._used_at = float("-inf")
        self._valid_until = float("-inf")
        self._next_at = float("-inf")
        self._is_lost = False

    def reshare(self, per_minute: float | None, fleet_per_minute: float | None) -> None:
        """Adopt a new document's rates; what was borrowed is kept."""
        self.reconfigure(per_minute)
        self.fleet_per_s = fleet_per_minute / 60.0 if fleet_per_minute else None

    @property
    def balance(self) -> float:
        """What may be used now; negative where more was used than estimated."""
        return self._balance

    def wait_s(self, now: float, need: float = 0.0) -> float:
        """Seconds until it is worth looking again; 0: `need` may be used now."""
        if self.fleet_per_s is None:
            return 0.0
        if now >= self._valid_until:
            return super().wait_s(now)
        # What no second's rate would cover goes into debt, as it does at any gate: a published rate
        # is counted by the minute. Small needs must not eat up what a large one waits for.
        most = self.fleet_per_s * MOST_S
        need, before = min(need, most), min(max(self._most, self._promised), most)
        if need < before:
            need += before
        if self._balance >= need:
            return 0.0
        at_best = (need - self._balance) / self.fleet_per_s - MOST_S
        return max(self._next_at - now, RETRY_S, at_best)

    def charge(self, amount: float, now: float) -> None:
        """Book what is used; negative amounts correct an earlier estimate."""
        if self.fleet_per_s is None:
            return
        if now >= self._valid_until:
            super().charge(amount, now)
        if not self._is_lost:
            self._balance -= amount
        if amount > 0:
            self._spent += amount
            if amount >= max(self._most, self._promised):
                self._most = self._promised = 0.0  # who waited longest for the most has gone
            self._unit = amount
            self._used_at = now

    def miss(self, need: float, now: float) -> None:
        """A call waits for `need`."""
        self._missed += need
        self._most = max(self._most, need)
        self._used_at = now

    def want(self, now: float) -> float:
        """What to borrow now; 0: nothing. Begins a new interval."""
        spent, missed, self._promised = self._spent, self._missed, self._most
        self._spent = self._missed = self._most = 0.0
        whole, own = self.fleet_per_s, self._per_s
        if whole is None or own is None:
            return 0.0
        if now - self._used_at >= IDLE_S:
            self._balance = min(self._balance, 0.0)
            # Debts are paid while there is time: the rate of an idle hour can't be had later.
            return min(-self._balance, whole * MOST_S)
        floor = max(self._unit, own * FLOOR_S)
        wanted = max(AHEAD * spent, floor) + missed - self._balance
        return max(0.0, min(wanted, whole * MOST_S - min(self._balance, 0.0)))

    def lend(self, amount: float, now: float, *, next_s: float, valid_s: float) -> None:
        """The store has answered: `amount` more may be used; the next answer comes in `next_s`."""
        if self._is_lost:
            self._is_lost = False
            self._balance = 0.0  # what was used meanwhile was this process's own share
        self._balance += amount
        if now - self._used_at >= IDLE_S and self._balance >= 0.0:
            return  # not in use: who comes next needn't wait for a loan
        self._next_at = now + next_s
        self._valid_until = now + valid_s
        self._due = now  # falling back begins without a burst saved up

    def after_fork(self) -> None:
        """In a forked child: what was lent, and what is owed, are the parent's."""
        self._balance = self._spent = self._missed = self._most = self._promised = 0.0
        self._used_at = self._valid_until = float("-inf")

    def lose(self) -> None:
        """The store can't be asked: from now on the own share holds."""
        self._is_lost = True
        self._valid_until = float("-inf")
