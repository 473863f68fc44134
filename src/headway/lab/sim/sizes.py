"""Weights per prompt size: long prompts to the engines that read them fastest.

What an operator could compute from profiles: the long prompts go to the prefillers alone, by what
each can carry of them; the short ones fill the fleet up, so that every engine is equally busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from headway.core.model import INFINITY
from headway.core.snapshot import Weights, WeightTable
from headway.lab.engine_profile import EngineProfile
from headway.lab.sim.sites import TURNS, Site, saturation
from headway.lab.sim.workload import Workload


class Sizes(NamedTuple):
    """Two buckets of a route."""

    bound_tokens: int
    """The longest short prompt."""
    prefillers: tuple[str, ...]
    """Where the long ones go."""
    part: float = 1.0
    """Of the long prompts; the rest is spread like all calls were."""


class Rates(NamedTuple):
    """Calls of each bucket that an engine completes per second if it gets nothing else."""

    short: float
    long: float


@lru_cache(maxsize=64)
def rates(engine: EngineProfile, workload: Workload, bound: int) -> Rates:
    """Measured, as capacity is."""
    turns = workload.sample(TURNS, seed=1)[:TURNS]
    return Rates(
        saturation(engine, [t for t in turns if t.prompt_tokens <= bound]),
        saturation(engine, [t for t in turns if t.prompt_tokens > bound]),
    )


def long_part(workload: Workload, bound: int) -> float:
    """Part of the calls with a long prompt."""
    turns = workload.sample(TURNS, seed=1)[:TURNS]
    return sum(t.prompt_tokens > bound for t in turns) / len(turns)


def weights_by_size(
    fleet: Sequence[Site], workload: Workload, sizes: Sizes, usual: Mapping[str, float]
) -> tuple[tuple[float, Mapping[str, float]], ...]:
    """(bound, weights) in ascending size; `usual` are the weights without buckets.

    Raises ValueError if the prefillers cannot carry the long prompts without more than their part.
    """
    carried = {s.id: rates(s.believed, workload, sizes.bound_tokens) for s in fleet}
    total = sum(usual[s.id] for s in fleet)
    able = sum(carried[e].long for e in sizes.prefillers)
    long = {s.id: (1.0 - sizes.part) * usual[s.id] / total for s in fleet}
    for e in sizes.prefillers:
        long[e] += sizes.part * carried[e].long / able
    part = long_part(workload, sizes.bound_tokens)
    # One call a second in all keeps engine e busy for part * long / rate; `busy` is the same for
    # all, and what the long ones leave of it goes to short ones.
    taken = {e: part * long[e] / carried[e].long for e in carried}
    room = sum(carried[e].short for e in carried)
    busy = (1.0 - part + sum(taken[e] * carried[e].short for e in carried)) / room
    if any(t > busy for t in taken.values()):
        msg = f"{', '.join(sizes.prefillers)} cannot carry all prompts over {sizes.bound_tokens}"
        raise ValueError(msg)
    short = {e: (busy - taken[e]) * carried[e].short for e in carried}
    return ((float(sizes.bound_tokens), short), (INFINITY, long))


def table_of(
    fleet: Sequence[Site], workload: Workload, sizes: Sizes | None, usual: Mapping[str, float]
) -> WeightTable:
    """What a document says: one row of weights, or one per size."""
    rows: Sequence[tuple[float, Mapping[str, float]]] = ((INFINITY, usual),)
    if sizes is not None:
        rows = weights_by_size(fleet, workload, sizes, usual)
    made: list[tuple[float, Weights]] = []
    for bound, weights in rows:
        total = sum(weights[s.id] for s in fleet)
        shares = ((s.id, weights[s.id] / total) for s in fleet)
        made.append((bound, tuple(share for share in shares if share[1] > 0.0)))
    return WeightTable(by_zone={"*": tuple(made)})
