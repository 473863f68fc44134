"""Everything one process knows: endpoint states, pools, blocked credentials, warm prefixes.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.core.affinity import AffinityMap
from headway.core.model import INFINITY, Rng
from headway.core.select import Candidate, Row
from headway.core.snapshot import Endpoint, Route, Snapshot, Weights
from headway.core.state import EndpointState, Pool, Tally

ROWS_MAX = 256
"""Weights and models with a row kept ready; past this all are made again. A row is 2 kB or so."""
POOLS_MAX = 10_240
"""Routes with live state; the least recently used is dropped."""
TRIAL_LEASE_S = 30.0
"""When a block lapses one call tries the credential; the others wait this long for its verdict."""


class Block(NamedTuple):
    """A credential that is left alone until `until`."""

    until: float
    reason: str
    since: float
    on_trial: bool = False
    """The block itself has lapsed; an attempt that began at `since` is finding out."""


class World:
    """The mutable knowledge of one process."""

    __slots__ = (
        "affinity",
        "blocks",
        "ceilings",
        "in_fleet",
        "pools",
        "rng",
        "rows",
        "states",
        "tally",
        "zone",
    )

    def __init__(self, *, zone: str | None, rng: Rng, in_fleet: bool = False) -> None:
        self.zone = zone
        self.in_fleet = in_fleet
        """Rates are paced by what a store lends (see `headway.core.fleet`)."""
        self.rng = rng
        self.states: dict[str, EndpointState] = {}
        self.ceilings: dict[str, int] = {}
        """endpoint id -> the tightest in-flight ceiling of the routes it serves."""
        self.pools: dict[str, Pool] = {}
        self.blocks: dict[str, Block] = {}
        """By credential key. Bounded by the credentials of the policy."""
        self.rows: dict[tuple[int, str], Row] = {}
        """By identity of the weights, and model. Emptied by a new policy; see `row`."""
        self.affinity = AffinityMap()
        self.tally = Tally()

    def state(self, endpoint: Endpoint) -> EndpointState:
        """The state of an endpoint, made at first use."""
        state = self.states.get(endpoint.id)
        if state is None:
            ceiling = self.ceilings.get(endpoint.id)
            state = EndpointState(endpoint, ceiling, self.tally, in_fleet=self.in_fleet)
            self.states[endpoint.id] = state
        return state

    def inflight(self, endpoint_id: str) -> int:
        """Attempts under way there; 0 where nothing is known of it (any more)."""
        state = self.states.get(endpoint_id)
        return 0 if state is None else state.inflight

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

    def row(self, weights: Weights, model: str, snapshot: Snapshot) -> Row:
        """The candidates that weights name, ready to be looked at."""
        row = self.rows.get((id(weights), model))
        # A row keeps its weights alive: while it is there, no others have their identity.
        if row is not None and row.snapshot is snapshot and row.dropped == self.tally.dropped:
            return row
        candidates: list[Candidate] = []
        states, endpoints = self.states, snapshot.endpoints
        for endpoint_id, share in weights:
            endpoint = endpoints.get(endpoint_id)
            if endpoint is not None:
                state = states.get(endpoint_id) or self.state(endpoint)
                upstream = endpoint.upstream_model(model)
                breaker = state.breakers.get(upstream) or state.breaker(upstream, self.rng)
                candidates.append(Candidate(endpoint, state, breaker, upstream, share))
        if len(self.rows) >= ROWS_MAX:
            self.rows.clear()
        made = Row(weights, snapshot, candidates, self.tally.dropped)
        self.rows[id(weights), model] = made
        return made

    def blocked_until(self, endpoint: Endpoint) -> float:
        """When the endpoint's credential may be used again; in the past if it may be now."""
        block = self.blocks.get(credential_key(endpoint)) if self.blocks else None
        return block.until if block is not None else -INFINITY

    def begin_trial(self, endpoint: Endpoint, now: float) -> None:
        """An attempt goes out: if its credential's block has lapsed, it alone tries it."""
        key = credential_key(endpoint)
        block = self.blocks.get(key)
        if block is not None and now >= block.until:
            self.blocks[key] = Block(now + TRIAL_LEASE_S, block.reason, now, on_trial=True)

    def end_trial(self, endpoint: Endpoint, started_at: float, now: float, *, ok: bool) -> None:
        """An attempt was answered, or gave no answer, without blaming its credential."""
        key = credential_key(endpoint)
        block = self.blocks.get(key)
        if block is None or started_at < block.since:
            return  # it began before the block: it says nothing about today's quota or key
        if ok:
            del self.blocks[key]
        elif block.on_trial:
            self.blocks[key] = block._replace(until=now)


def credential_key(endpoint: Endpoint) -> str:
    """What a blocked credential is filed under; an endpoint without one stands for itself."""
    return endpoint.credential or f"endpoint:{endpoint.id}"
