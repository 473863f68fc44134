"""When visits come: arrival processes as values, at any mean rate."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headway.lab.traces import ClientRate, TraceCall

Arrivals = Callable[[random.Random, float], Iterator[float]]
"""(chance, mean rate per second) -> instants, in order, without end."""


def poisson_times(rng: random.Random, rate: float) -> Iterator[float]:
    """Independent arrivals."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


@dataclass(frozen=True, slots=True)
class GammaTimes:
    """Bursts: gamma-distributed gaps with this coefficient of variation."""

    cv: float

    def __call__(self, rng: random.Random, rate: float) -> Iterator[float]:
        """Instants."""
        shape = 1.0 / (self.cv * self.cv)
        at = 0.0
        while True:
            at += rng.gammavariate(shape, 1.0 / (rate * shape))
            yield at


def _thinned(
    rng: random.Random, rate: float, factor: Callable[[float], float], peak: float
) -> Iterator[float]:
    for at in poisson_times(rng, rate * peak):
        if rng.random() * peak < factor(at):
            yield at


@dataclass(frozen=True, slots=True)
class DiurnalTimes:
    """A day's swing around the mean: +- `depth`."""

    period_s: float = 86_400.0
    depth: float = 0.6

    def __call__(self, rng: random.Random, rate: float) -> Iterator[float]:
        """Instants."""

        def factor(at: float) -> float:
            return 1.0 + self.depth * math.sin(2 * math.pi * at / self.period_s)

        return _thinned(rng, rate, factor, 1.0 + self.depth)


@dataclass(frozen=True, slots=True)
class SteppedTimes:
    """Poisson arrivals; from each (instant, factor) on, that multiple of the rate."""

    steps: tuple[tuple[float, float], ...]

    def __call__(self, rng: random.Random, rate: float) -> Iterator[float]:
        """Instants."""

        def factor(at: float) -> float:
            return next((value for since, value in reversed(self.steps) if at >= since), 1.0)

        return _thinned(rng, rate, factor, max(1.0, *(value for _, value in self.steps)))


def servegen_times(clients: Sequence[ClientRate], window: int = 0) -> Arrivals:
    """A mix of clients with their own burstiness, as ServeGen composes it, scaled to the rate.

    `clients`: one or more windows of per-client rates; `window` picks one by its order.
    """
    starts = sorted({row.window_start_s for row in clients})
    start = starts[window % len(starts)]
    rows = [row for row in clients if row.window_start_s == start and row.rate_rps > 0]
    total = sum(row.rate_rps for row in rows)

    def times(rng: random.Random, rate: float) -> Iterator[float]:
        def one(share: float, cv: float) -> Iterator[float]:
            own = random.Random(rng.random())
            source = GammaTimes(cv) if cv > 0 else poisson_times
            return source(own, rate * share)

        return heapq.merge(*[one(row.rate_rps / total, row.cv) for row in rows])

    return times


def recorded(
    calls: Sequence[TraceCall], rng: random.Random, rate: float
) -> Iterator[tuple[float, TraceCall]]:
    """A trace's own calls at its own instants, brought to the rate by merging and thinning.

    Shrinking the gaps instead would change how bursty it is within an engine's memory. Copies begin
    in the middle of themselves, so that the rate is there from the first second.
    """
    n = len(calls)
    length = max(calls[-1].arrival_s, 1e-9) * (n / (n - 1) if n > 1 else 1.0)
    own = len(calls) / length
    copies = max(1, math.ceil(rate / own))
    keep = rate / (own * copies)

    def one(shift: float) -> Iterator[tuple[float, TraceCall]]:
        for lap in itertools.count(-1):
            for call in calls:
                at = call.arrival_s + shift + lap * length
                if at >= 0:
                    yield at, call

    shifts = [0.0] + [rng.random() * length for _ in range(copies - 1)]
    for at, call in heapq.merge(*map(one, shifts), key=lambda pair: pair[0]):
        if rng.random() < keep:
            yield at, call
