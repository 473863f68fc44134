"""A lower bound: what no routing could beat on the same arrivals, whatever it knew of the future.

Each call is served as if it were alone in the fleet: at once, at the site that is best for it (one
for its first token, perhaps another for its end), by an engine that is idle, with every prefix that
was ever asked for in its cache, in its own chunks. Given up are the other calls in the engine's
steps, its queue, its KV space, the eviction from its cache, that a call has but one site, and
faults and limits.

It bounds every call, and so each mean and quantile, because a step of the engine model gets longer
with everything that is in it, and a prompt is never read in fewer or shorter steps than here: while
a prompt is not done, the step's token budget is used up, by it and by others. How far it is from
what can be reached grows with load: it knows of no contention. The best routing in hindsight lies
between it and the gateways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from headway.lab.engine_model import BLOCK_TOKENS
from headway.lab.engine_profile import EngineProfile
from headway.lab.sim.endpoints import OneWay, SimEndpoint, SimHosted, answered, turn_of
from headway.lab.sim.sites import HOSTED_TPOT_S, Site
from headway.lab.virtual import VirtualRequest

BOUND = "bound"


class Alone(NamedTuple):
    """Seconds that a call takes when it has an engine to itself."""

    first_s: float
    total_s: float


def alone(profile: EngineProfile, prompt: int, cached: int, output: int) -> Alone:
    """In closed form what `EngineModel` makes of one request when it is idle."""
    p = profile
    whole, part = divmod(max(1, prompt - cached), p.step_tokens)
    first_s = p.api_overhead_s + whole * (max(p.floor_s, p.slope_s * p.step_tokens) + p.overhead_s)
    if part:
        first_s += max(p.floor_s, p.slope_s * part) + p.overhead_s
    steps = output - 1
    step_s = max(p.floor_s, p.slope_s) + p.sequence_s + p.overhead_s
    # The n-th step reads the prompt and the n tokens written so far.
    context = steps * prompt + steps * (steps + 1) // 2
    return Alone(first_s, first_s + steps * step_s + p.context_coef_s * context)


class _Cache:
    """One for the fleet, without end."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def hit(self, blocks: Sequence[int]) -> int:
        """Leading blocks that some call had asked for before; these are remembered."""
        known = 0
        for block in blocks:
            if block not in self._seen:
                break
            known += 1
        self._seen.update(blocks)
        return known


class Unloaded(SimHosted):
    """Stands at each site of the fleet, and serves what arrives as the whole fleet at its best."""

    def __init__(
        self, site: Site, sites: Sequence[tuple[Site, OneWay]], cache: _Cache, one_way: OneWay
    ) -> None:
        super().__init__(site, (), one_way)
        self._sites = sites
        self._cache = cache

    def send(self, request: VirtualRequest) -> None:
        """Answer it as soon as anything could."""
        self.gate.sends += 1
        fleet, turn = request.fleet, turn_of(request)
        cached = min(self._cache.hit(turn.blocks) * BLOCK_TOKENS, turn.prompt_tokens - 1)
        output = max(1, turn.output_tokens)
        firsts: list[float] = []
        totals: list[float] = []
        for site, one_way in self._sites:
            if site.engine == "hosted":  # its first token has a chance to come at once
                made = Alone(0.0, site.slowness * HOSTED_TPOT_S * output)
            else:
                made = alone(site.profile, turn.prompt_tokens, cached, output)
            network_s = 2.0 * one_way(request.process)
            firsts.append(made.first_s + network_s)
            totals.append(made.total_s + network_s)
        if request.facts.stream:
            fleet.at(fleet.now + min(firsts), request.first_token)
        done = answered(turn.prompt_tokens, cached, output)
        fleet.at(fleet.now + min(totals), partial(request.end, done))


def unloaded(sites: Sequence[Site], one_way: Callable[[str], OneWay]) -> Mapping[str, SimEndpoint]:
    """The sites, relaxed."""
    unlike: dict[tuple[object, ...], tuple[Site, OneWay]] = {}
    for site in sites:
        unlike.setdefault((site.engine, site.slowness, site.zone), (site, one_way(site.zone)))
    cache, different = _Cache(), list(unlike.values())
    return {s.id: Unloaded(s, different, cache, one_way(s.zone)) for s in sites}
