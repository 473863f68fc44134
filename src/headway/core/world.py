"""Everything one process knows: endpoint states, pools, blocked credentials, warm prefixes.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from headway.core.affinity import AffinityMap
from headway.core.model import Rng
from headway.core.snapshot import Endpoint, Route
from headway.core.state import EndpointState, Pool

POOLS_MAX = 10_240
"""Routes with live state; the least recently used is dropped."""


class World:
    """The mutable knowledge of one process."""

    __slots__ = ("affinity", "blocks", "pools", "rng", "states", "zone")

    def __init__(self, *, zone: str | None, rng: Rng) -> None:
        self.zone = zone
        self.rng = rng
        self.states: dict[str, EndpointState] = {}
        self.pools: dict[str, Pool] = {}
        self.blocks: dict[str, tuple[float, str]] = {}
        """credential -> (until, reason). Bounded by the credentials of the policy."""
        self.affinity = AffinityMap()

    def state(self, endpoint: Endpoint, ceiling: int | None) -> EndpointState:
        """The state of an endpoint, made at first use."""
        state = self.states.get(endpoint.id)
        if state is None:
            state = self.states[endpoint.id] = EndpointState(endpoint, ceiling)
        return state

    def pool(self, route: Route, now: float) -> Pool:
        """The pool of a route, made at first use."""
        pool = self.pools.get(route.name)
        if pool is None:
            if len(self.pools) >= POOLS_MAX:
                idle = next((n for n, p in self.pools.items() if p.inflight == 0), None)
                if idle is not None:
                    del self.pools[idle]
            pool = self.pools[route.name] = Pool(route, now)
        return pool


def credential_key(endpoint: Endpoint) -> str:
    """What a blocked credential is filed under; an endpoint without one stands for itself."""
    return endpoint.credential or f"endpoint:{endpoint.id}"
