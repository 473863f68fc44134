"""Rates that a fleet shares exactly: a store lends them to processes, and no call waits for it.

`Router(..., shared_state="redis://...")`, or any object with the methods of `RateStore`. See
`headway.core.fleet` for the rule and `docs/how-to/share-rates.md` for its use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.shared_state.keeper import FleetKeeper, FleetStatus
from headway.shared_state.store import RateStore, RedisRateStore, store_for

if TYPE_CHECKING:
    from headway.core.engine import Engine
    from headway.core.model import Sink

__all__ = ["FleetKeeper", "FleetStatus", "RateStore", "RedisRateStore", "keeper_for", "store_for"]


def keeper_for(
    given: object, engine: Engine, clock: Callable[[], float], on_event: Sink
) -> FleetKeeper:
    """What borrows for an engine from the store that an application names."""
    return FleetKeeper(engine, store_for(given), clock=clock, on_event=on_event)
