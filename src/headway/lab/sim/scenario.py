"""A scenario as a value: what stands there, what comes, what happens, and what has to hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headway.core.model import INFINITY
from headway.core.snapshot import (
    AdmissionPolicy,
    AffinityPolicy,
    HedgePolicy,
    RetryPolicy,
    SelectionPolicy,
    TrafficClass,
)
from headway.lab.faults import Fault
from headway.lab.sim.arrivals import Arrivals
from headway.lab.sim.sites import Site
from headway.lab.sim.sizes import Sizes


class Check(NamedTuple):
    """One expectation: a figure of a contender, or its ratio to that of another, within bounds."""

    metric: str
    """A field of `Figures`; "share:a" is that of endpoint a."""
    of: str = "headway"
    over: str | None = None
    """Divide by the same figure of this contender."""
    at_most: float = INFINITY
    at_least: float = -INFINITY
    why: str = ""

    def __str__(self) -> str:
        what = f"{self.metric} of {self.of}"
        if self.over is not None:
            what += f" / {self.over}"
        bounds: list[str] = []
        if self.at_most != INFINITY:
            bounds.append(f"<= {self.at_most:g}")
        if self.at_least != -INFINITY:
            bounds.append(f">= {self.at_least:g}")
        return f"{what} {' and '.join(bounds)}"

    def holds(self, value: float) -> bool:
        """Whether the figure is within bounds."""
        return self.at_least <= value <= self.at_most


class PriceChange(NamedTuple):
    """From `at_s` on, an endpoint costs this many times as much; the next document says so."""

    at_s: float
    endpoint: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """Blocks of the route, where a scenario needs others than the defaults."""

    selection: SelectionPolicy = field(default_factory=SelectionPolicy)
    affinity: AffinityPolicy = field(default_factory=AffinityPolicy)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hedge: HedgePolicy = field(default_factory=HedgePolicy)
    admission: AdmissionPolicy = field(default_factory=AdmissionPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row of `scenarios.SCENARIOS`. Times in seconds from the run's start."""

    name: str
    about: str
    fleet: tuple[Site, ...]
    workload: str = "chat"
    """A name in `workload.WORKLOADS`, or "kind:path" of a trace file."""
    arrivals: Arrivals | None = None
    """When visits come, instead of the workload's own."""
    load: float = 0.7
    """Calls that come, over what the fleet could carry if it were always busy."""
    processes: int = 200
    cells: int = 1
    """The fleet is cut into so many: a process's policy names the sites of its own cell only, as a
    controller would publish it, so that nobody weighs a thousand endpoints for each call."""
    zones: tuple[str, ...] = ("east",)
    """Where the processes run, in turn."""
    duration_s: float = 600.0
    warmup_s: float = 120.0
    """What begins before is not counted."""
    policy_age_s: float = 10.0
    """A document is published every so often, and taken up within half of that."""
    is_planned: bool = True
    """Whether the policy carries profiles; without, residuals are over the pool's own mean."""
    sizes: Sizes | None = None
    """Documents give weights per prompt size."""
    states_observed: bool = False
    """Documents state the load that was seen at each endpoint, instead of the one planned."""
    freeze: tuple[float, float] | None = None
    """Nothing is published in between."""
    restart_at: float | None = None
    """Every process is replaced by one that knows nothing; calls under way end in the old one."""
    faults: tuple[Fault, ...] = ()
    prices: tuple[PriceChange, ...] = ()
    timeout_s: float = INFINITY
    """Of a call, in whole."""
    silence_s: float = INFINITY
    """Until an attempt's first token; then it is given up and perhaps repeated."""
    options: RouteOptions = RouteOptions()
    classes: Mapping[str, TrafficClass] = field(default_factory=dict[str, TrafficClass])
    traffic_class: str | None = None
    """Of every call, unless its workload says otherwise."""
    contenders: tuple[str, ...] = ("headway", "weighted_random", "gateway")
    checks: tuple[Check, ...] = ()
    tags: frozenset[str] = frozenset()


Table = Mapping[str, Callable[[], Scenario]]
