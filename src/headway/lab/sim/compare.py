"""A scenario over contenders and seeds: runs in a process pool, means with intervals, verdicts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, cast

from headway.lab.sim.figures import Figures
from headway.lab.sim.jobs import Job, perform
from headway.lab.sim.on_ray import results_of
from headway.lab.sim.scenario import Check, Scenario

T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t, two-sided 95 %, by degrees of freedom."""


class Interval(NamedTuple):
    """A mean over seeds, and half the width of its 95 % interval (NaN with one seed)."""

    mean: float
    half: float

    def __str__(self) -> str:
        return (
            f"{self.mean:.3g} ± {self.half:.2g}" if self.half == self.half else f"{self.mean:.3g}"
        )


def interval(values: Sequence[float]) -> Interval:
    """Student's interval of a few values. Infinite ones make it infinite."""
    n = len(values)
    mean = sum(values) / n
    if n < 2 or not math.isfinite(mean):
        return Interval(mean, math.nan)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return Interval(mean, T_95.get(n - 1, 1.96) * spread / math.sqrt(n))


def metric(figures: Figures, name: str) -> float:
    """A figure by name; "share:a" looks into a mapping."""
    field, _, key = name.partition(":")
    value = cast("object", getattr(figures, field))
    if key:
        return cast("dict[str, float]", value).get(key, 0.0)
    return float(cast("float", value))


class Verdict(NamedTuple):
    """What became of a check. Ratios are taken seed by seed: arrivals are the same."""

    check: Check
    value: Interval
    holds: bool
    """By the mean over seeds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of one scenario."""

    scenario: Scenario
    seeds: tuple[int, ...]
    runs: dict[str, tuple[Figures, ...]]
    """By contender, in the order of the seeds."""

    def of(self, contender: str, name: str) -> Interval:
        """A figure over seeds."""
        return interval([metric(f, name) for f in self.runs[contender]])

    def ratio(self, contender: str, over: str, name: str) -> Interval:
        """A figure over the same seed's of another."""
        ours, theirs = self.runs[contender], self.runs[over]
        return interval(
            [_over(metric(a, name), metric(b, name)) for a, b in zip(ours, theirs, strict=True)]
        )

    def verdicts(self) -> list[Verdict]:
        """Every check whose contenders ran."""
        out: list[Verdict] = []
        for check in self.scenario.checks:
            if check.of not in self.runs or (check.over and check.over not in self.runs):
                continue
            if check.over is None:
                value = self.of(check.of, check.metric)
            else:
                value = self.ratio(check.of, check.over, check.metric)
            out.append(Verdict(check, value, check.holds(value.mean)))
        return out


def _over(a: float, b: float) -> float:
    return a / b if b else math.inf if a else math.nan


def compare(
    scenarios: Sequence[Scenario],
    *,
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    contenders: Sequence[str] = (),
    workers: int = 0,
    told: Callable[[str], None] | None = None,
    ray: str | None = None,
) -> list[Comparison]:
    """Run scenarios with their contenders (or these) over seeds.

    `workers`: processes; 0 is one per core, 1 runs here. `ray`: on the Ray cluster of this address
    instead; empty: RAY_ADDRESS, or one of its own with so many cores.
    """
    jobs = [
        Job(s, c, seed, lines=seed == seeds[0])
        for s in scenarios
        for c in (contenders or s.contenders)
        for seed in seeds
    ]
    figures = (
        _local(jobs, workers) if ray is None else results_of(jobs, address=ray, workers=workers)
    )
    results = (_told(f, job, told) for f, job in zip(figures, jobs, strict=True))
    out: list[Comparison] = []
    for scenario in scenarios:
        runs = {c: tuple(next(results) for _ in seeds) for c in (contenders or scenario.contenders)}
        out.append(Comparison(scenario, tuple(seeds), runs))
    return out


def _local(jobs: Sequence[Job], workers: int) -> Iterator[Figures]:
    count = workers or os.cpu_count() or 1
    if count == 1:
        yield from map(perform, jobs)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(perform, jobs)


def _told(figures: Figures, job: Job, told: Callable[[str], None] | None) -> Figures:
    if told is not None:
        told(
            f"{job.scenario.name} {job.contender} seed {job.seed}: {figures.calls} calls, "
            f"mean {figures.mean_s:.3f} s, first token {figures.ttft_s:.3f} s, "
            f"{figures.failed:.2%} failed, {figures.amplification:.3f} attempts a call"
        )
    return figures
