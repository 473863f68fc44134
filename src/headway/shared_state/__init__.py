"""Rates that a fleet shares exactly: a store lends them to processes, and no call waits for it.

`Router(..., shared_state="redis://...")`, or any object with the methods of `RateStore`. See
`headway.core.fleet` for the rule and `docs/how-to/share-rates.md` for its use.
"""

from __future__ import annotations

from headway.shared_state.keeper import FleetKeeper, FleetStatus
from headway.shared_state.store import RateStore, RedisRateStore, store_for

__all__ = ["FleetKeeper", "FleetStatus", "RateStore", "RedisRateStore", "store_for"]
