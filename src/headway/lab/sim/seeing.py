"""Contenders that see more than a client can: gateways with perfect information, and probes.

They mark what is possible: no client matches a gateway that knows each engine's queue at this very
instant. `Prequal` needs engines that answer probes; where they do, a client could run it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headway.core.model import CallFacts
from headway.lab.engine_model import BLOCK_TOKENS, EngineModel
from headway.lab.sim.endpoints import SimEndpoint, SimEngine
from headway.lab.sim.plain import Rules
from headway.lab.sim.sites import HOSTED_TPOT_S, HOSTED_TTFT_S
from headway.lab.sim.workload import TurnFacts


class Outlook(NamedTuple):
    """What sending a call to an endpoint now would come to."""

    completion_s: float
    caused_s: float
    """Delay added to calls that are there already, summed over them."""


def outlook(endpoint: SimEndpoint, facts: TurnFacts, process: int, now: float) -> Outlook:
    """By the engine's true state and costs, and the call's true output."""
    turn, gate = facts.turn, endpoint.gate
    network_s = 2.0 * gate.one_way(process)
    if not isinstance(endpoint, SimEngine):
        slow = gate.site.slowness * (1.0 + gate.site.hidden_load)
        return Outlook(network_s + slow * (HOSTED_TTFT_S + HOSTED_TPOT_S * turn.output_tokens), 0.0)
    engine = endpoint.engine
    p = engine.profile
    hit = engine.cache.peek(turn.blocks) * BLOCK_TOKENS if turn.blocks else 0
    own = max(1, turn.prompt_tokens - hit)
    room = max(1, p.step_tokens - engine.decoding)
    backlog = engine.prefill_backlog
    prefill_s = _prefill_s(engine, backlog + own, room)
    alone_s = prefill_s - _prefill_s(engine, backlog, room) if backlog else prefill_s
    rest_s = engine.busy_until(now) - now
    first_s = network_s + p.api_overhead_s * engine.slowdown + rest_s + prefill_s
    context = turn.prompt_tokens + turn.output_tokens // 2
    peers = engine.decoding + engine.waiting
    step_s = engine.step_s(0, more=1 + engine.waiting, more_context=context)
    left = turn.output_tokens - 1
    # Everybody who decodes is stretched by this prefill, and by a slightly longer step after it.
    # Without the prefill those steps would have taken what a decode step takes.
    stretch_s = max(0.0, alone_s - engine.step_s(0) * own / room) * peers
    # A peer is, on average, half way through: it leaves before this call does, or after.
    longer_s = (step_s - engine.step_s(0, more=engine.waiting)) * left * peers / 2.0
    return Outlook(first_s + step_s * left, stretch_s + max(0.0, longer_s))


def _prefill_s(engine: EngineModel, tokens: int, room: int) -> float:
    whole, part = divmod(tokens, room)
    return whole * engine.step_s(room) + (engine.step_s(part) if part else 0.0)


class Gateway(Rules):
    """Sees every engine as it is, and takes the smallest expected completion."""

    marginal = False
    """Whether it counts what it does to others, too."""

    def __init__(
        self,
        ids: Sequence[str],
        weights: Sequence[float],
        rng: random.Random,
        process: int,
        endpoints: Mapping[str, SimEndpoint],
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self._endpoints = endpoints

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The best by what is true now; never one that refuses."""
        assert isinstance(facts, TurnFacts)
        best, best_s = None, float("inf")
        for endpoint_id in self.ids:
            endpoint = self._endpoints[endpoint_id]
            if any(f.active(now) and f.kind != "slow" for f in endpoint.gate.faults):
                continue
            seen = outlook(endpoint, facts, self.process, now)
            total = seen.completion_s + (seen.caused_s if self.marginal else 0.0)
            if total < best_s:
                best, best_s = endpoint_id, total
        return best if best is not None else self.rng.choice(self.ids)


class MarginalGateway(Gateway):
    """Sees every engine, and takes the smallest sum of the call's own time and the delay it causes
    to others: not what each caller would choose, but best for all."""

    marginal = True


PROBES_PER_CALL = 3
POOL_MAX, POOL_AGE_S = 16, 1.0
HOT_QUANTILE = 0.84
REUSES_MAX = 2


class _Probe:
    __slots__ = ("at", "endpoint_id", "latency_s", "requests", "uses")

    def __init__(self, endpoint_id: str, at: float, requests: int, latency_s: float) -> None:
        self.endpoint_id = endpoint_id
        self.at = at
        self.requests = requests
        self.latency_s = latency_s
        self.uses = 0


class Prequal(Gateway):
    """Prequal (NSDI'24), in outline: probes a few endpoints per call for requests in flight and
    recent latency, keeps a pool of answers, prefers the fastest of those not hot."""

    def __init__(
        self,
        ids: Sequence[str],
        weights: Sequence[float],
        rng: random.Random,
        process: int,
        endpoints: Mapping[str, SimEndpoint],
    ) -> None:
        super().__init__(ids, weights, rng, process, endpoints)
        self._pool: list[_Probe] = []
        self._requests: list[int] = []

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """Hot-cold by the pool; without one, at random. Then probe for the calls to come."""
        pool = [p for p in self._pool if now - p.at <= POOL_AGE_S and p.uses < REUSES_MAX]
        chosen = self._best(pool)
        self._pool = pool
        self._probe(facts, now)
        return chosen if chosen is not None else self.rng.choices(self.ids, self.weights)[0]

    def _best(self, pool: list[_Probe]) -> str | None:
        if len(pool) < 2:
            return None
        seen = sorted(self._requests)
        hot = seen[min(len(seen) - 1, int(HOT_QUANTILE * len(seen)))]
        cold = [p for p in pool if p.requests <= hot]
        best = min(cold, key=lambda p: p.latency_s) if cold else min(pool, key=lambda p: p.requests)
        best.uses += 1
        best.requests += 1
        return best.endpoint_id

    def _probe(self, facts: CallFacts, now: float) -> None:
        assert isinstance(facts, TurnFacts)
        for endpoint_id in self.rng.sample(self.ids, min(PROBES_PER_CALL, len(self.ids))):
            endpoint = self._endpoints[endpoint_id]
            if any(f.active(now) and f.kind != "slow" for f in endpoint.gate.faults):
                continue
            requests = 0
            if isinstance(endpoint, SimEngine):
                requests = endpoint.engine.running + endpoint.engine.waiting
            seen = outlook(endpoint, facts, self.process, now)
            self._pool.append(_Probe(endpoint_id, now, requests, seen.completion_s))
            self._requests.append(requests)
        del self._pool[:-POOL_MAX]
        del self._requests[:-64]


SEEING: dict[str, type[Gateway]] = {
    "gateway": Gateway,
    "gateway_marginal": MarginalGateway,
    "prequal": Prequal,
}
