"""Rates and budgets that a fleet shares: a store counts for all, and no call waits for it.

`Router(..., shared_state="redis://...")`, or any object with the methods of `RateStore`, and of
`SpendStore` where tenants have budgets. See `headway.core.fleet` and `headway.core.purse` for the
rules, and `docs/how-to/share-rates.md` and `docs/how-to/cap-costs.md` for their use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.shared_state.keeper import FleetKeeper, FleetStatus
from headway.shared_state.store import RateStore, RedisRateStore, SpendStore, store_for

if TYPE_CHECKING:
    from headway.core.engine import Engine
    from headway.core.model import Sink
    from headway.record import Tenants

__all__ = [
    "FleetKeeper",
    "FleetStatus",
    "RateStore",
    "RedisRateStore",
    "SpendStore",
    "keeper_for",
    "store_for",
]


def keeper_for(
    given: object,
    engine: Engine,
    clock: Callable[[], float],
    on_event: Sink,
    tenants: Tenants | None = None,
) -> FleetKeeper:
    """What borrows for an engine, and for tenants, from the store that an application names."""
    store = store_for(given)
    return FleetKeeper(engine, store, clock=clock, on_event=on_event, tenants=tenants)
