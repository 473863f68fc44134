"""Money: exact decimal USD, and where an amount comes from."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import NamedTuple

ZERO = Decimal(0)
MONEY = Context(prec=60)
"""Enough digits for exact sums; independent of the application's own decimal context."""
PICO_USD = Decimal(1).scaleb(-12)
"""Amounts that need a division (GPU hours) are rounded to this, so that their sums stay exact."""

SOURCES = ("provider", "local", "estimated", "unknown")
"""Best to worst: the source of a sum is the worst among its parts."""
_RANK = {source: rank for rank, source in enumerate(SOURCES)}


class Cost(NamedTuple):
    """An amount of money (USD) and where it comes from. `amount` is None only when unknown."""

    amount: Decimal | None
    source: str


UNKNOWN = Cost(None, "unknown")
FREE = Cost(ZERO, "local")
"""An attempt that no model ran for: connection failures and refusals are not billed. Part of no
sum, so that the source of what was billed stands."""


def add(a: Decimal, b: Decimal) -> Decimal:
    """The exact sum, whatever the application's decimal context."""
    return MONEY.add(a, b)


def plain(amount: Decimal) -> str:
    """Decimal text without exponent or trailing zeros: "0.00275"."""
    return f"{amount.normalize(MONEY):f}"


def worst_source(a: str, b: str) -> str:
    """The less certain of two sources."""
    return a if _RANK[a] >= _RANK[b] else b
