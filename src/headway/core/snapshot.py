# long: everything that a compiled policy is made of
"""The snapshot: a verified policy compiled into an immutable object that decisions read.

Built by `headway.policy.document`, swapped by one reference assignment. Durations are seconds,
money is Decimal USD per million tokens, weights are normalised to sum to 1 within their table.
"""

from __future__ import annotations

import copy
import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from headway.core.model import INFINITY

INDEX_MAX = 100_000
"""Combinations of names that routes are filed under: 10,000 routes with ten each, or 20 MB. What is
beyond (a document written to hurt) is compared one by one."""
TTFT_MIN_S = 0.001
"""No first token is predicted to come sooner."""
DEFAULT_PLANNED_LOAD = 0.5
"""Load axis value assumed where a document states none: the middle of the usual operating range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A piecewise linear function with flat ends: x strictly increasing, y non-decreasing."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def at(self, x: float) -> float:
        """Return the interpolated value at `x`."""
        xs = self.x
        if x <= xs[0]:
            return self.y[0]
        if x >= xs[-1]:
            return self.y[-1]
        i = bisect_right(xs, x)
        x0, x1 = xs[i - 1], xs[i]
        y0, y1 = self.y[i - 1], self.y[i]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """TTFT and TPOT of an engine as functions of load (seconds)."""

    load: str = "utilization"
    """What the x axis is: "utilization" (0..1) or "inflight"."""
    ttft_s: Curve
    ttft_p99_s: Curve | None = None
    tpot_s: Curve
    tpot_p99_s: Curve | None = None
    prefill_s_per_token: float = 0.0
    ttft_ref_uncached_tokens: int = 0

    def predict_ttft_s(self, load: float, uncached_tokens: float) -> float:
        """Mean time to first token at `load` for a prompt with `uncached_tokens` to prefill."""
        return self.plan(load).ttft_of(uncached_tokens)

    def predict_tpot_s(self, load: float) -> float:
        """Mean time per output token at `load`."""
        return self.tpot_s.at(load)

    def plan(self, load: float, rtt_s: float = 0.0) -> Plan:
        """What is planned at `load`, for a caller `rtt_s` away."""
        ttft_s, p99, tpot_p99 = self.ttft_s.at(load), self.ttft_p99_s, self.tpot_p99_s
        return Plan(
            rtt_s=rtt_s,
            ttft_s=ttft_s,
            # Prefill slows with load like the rest of TTFT: scale by the curve's own growth.
            growth=ttft_s / self.ttft_s.y[0] if self.ttft_s.y[0] > 0 else 1.0,
            prefill_s_per_token=self.prefill_s_per_token,
            ttft_ref_uncached_tokens=self.ttft_ref_uncached_tokens,
            tpot_s=self.tpot_s.at(load),
            ttft_p99_s=None if p99 is None else p99.at(load),
            tpot_p99_s=None if tpot_p99 is None else tpot_p99.at(load),
        )


class Plan(NamedTuple):
    """A profile at one load: the curves are read once for each document, not for each call."""

    rtt_s: float
    ttft_s: float
    """Of a prompt with `ttft_ref_uncached_tokens`."""
    growth: float
    prefill_s_per_token: float
    ttft_ref_uncached_tokens: int
    tpot_s: float
    ttft_p99_s: float | None
    tpot_p99_s: float | None

    def ttft_of(self, uncached_tokens: float) -> float:
        """Mean time to first token, without the way there, of a prompt with so much to prefill."""
        extra = self.prefill_s_per_token * (uncached_tokens - self.ttft_ref_uncached_tokens)
        return max(self.ttft_s + extra * self.growth, TTFT_MIN_S)

    def latency_of(self, uncached_tokens: float, output_tokens: int) -> float:
        """Mean time of a whole call: way, first token, and the rest."""
        return self.rtt_s + self.ttft_of(uncached_tokens) + output_tokens * self.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens, or per GPU-hour for self-hosted endpoints."""

    input_per_mtok: Decimal | None = None
    cached_input_per_mtok: Decimal | None = None
    cache_write_per_mtok: Decimal | None = None
    output_per_mtok: Decimal | None = None
    per_request: Decimal | None = None
    per_gpu_hour: Decimal | None = None
    gpus: Decimal = Decimal(1)
    slots: int | None = None
    """Calls the GPUs serve at once; an attempt is charged its share of the busy time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an endpoint can carry; None is unknown. Already divided by this process's share."""

    concurrency: int | None = None
    rpm: float | None = None
    tpm: float | None = None
    fleet_rpm: float | None = None
    """Undivided, as is the next: what all processes share where a store counts for them."""
    fleet_tpm: float | None = None
    input_tps: float | None = None
    output_tps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """What is known of the engine's prefix cache."""

    block_tokens: int = 64
    blocks: int = 6400
    ttl_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One base URL, credential and upstream model that calls can be sent to."""

    id: str
    base_url: str
    dialect: str = "openai"
    api_version: str | None = None
    provider: str | None = None
    """gen_ai.provider.name; None: guessed from the host."""
    model: str | None = None
    """Upstream model; None: the requested name is sent on."""
    models: Mapping[str, str] = field(default_factory=dict[str, str])
    credential: str | None = None
    """A name declared in code; None: the wrapped client's own key, to its own host only."""
    zone: str | None = None
    failure_domain: str | None = None
    profile: Profile | None = None
    state: str = "active"
    capacity: Capacity = Capacity()
    planned_load: float = DEFAULT_PLANNED_LOAD
    rtt_s: float = 0.0
    """Network round trip from this process's zone."""
    price: Price | None = None
    prefix_cache: PrefixCache = PrefixCache()
    supports: frozenset[str] = frozenset()
    max_context_tokens: int | None = None
    max_body_bytes: int | None = None
    params_drop: tuple[str, ...] = ()
    params_rename: Mapping[str, str] = field(default_factory=dict[str, str])
    params_set: Mapping[str, object] = field(default_factory=dict[str, object])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    plan: Plan | None = field(init=False, repr=False, compare=False)
    """The profile at `planned_load`, `rtt_s` away; None without one."""

    def __post_init__(self) -> None:
        profile = self.profile
        plan = None if profile is None else profile.plan(self.planned_load, self.rtt_s)
        object.__setattr__(self, "plan", plan)

    def upstream_model(self, requested: str) -> str:
        """The model name this endpoint knows for `requested`."""
        return self.models.get(requested) or self.model or requested


Weights = tuple[tuple[str, float], ...]
"""(endpoint id, share) pairs; shares are positive and sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTable:
    """Published weights: by source zone, and within a zone by prompt size."""

    by_zone: Mapping[str, tuple[tuple[float, Weights], ...]]
    """zone or "*" -> ((max_prompt_tokens, weights), ...) in ascending size, last one INFINITY."""

    def pick(self, zone: str | None, prompt_tokens: int) -> Weights:
        """The weights for a caller in `zone` and a prompt of this size."""
        buckets = self.by_zone.get(zone or "*") or self.by_zone.get("*")
        if buckets is None:
            buckets = next(iter(self.by_zone.values()))
        for bound, weights in buckets:
            if prompt_tokens <= bound:
                return weights
        return buckets[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """Where a call goes when its route's own endpoints are exhausted."""

    endpoint: str | None = None
    route: str | None = None
    model: str | None = None
    on: frozenset[str] | None = None
    """Failure classes it applies to; None: all that may move elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionPolicy:
    algorithm: str = "steady"
    choices: int = 1
    explore: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityPolicy:
    key: tuple[str, ...] = ("session", "prefix")
    min_prefix_tokens: int = 256
    max_load_factor: float | None = None
    """Leave a warm endpoint when own outstanding exceeds this times the mean; None: never."""
    ttl_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePolicy:
    total_s: float = INFINITY
    ttft_s: float = INFINITY
    idle_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    attempts_max: int | None = None
    """None: the caller's own setting, else 3."""
    budget_start: float = 3.0
    budget_per_success: float = 0.1
    budget_trickle_s: float = 300.0
    budget_capacity: float = 5.0
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 8.0
    on: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgePolicy:
    enabled: bool = False
    delay_s: float | None = None
    """None: from this process's own TTFT history (p95)."""
    max_extra_fraction: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    max_inflight: int | None = None
    """Per endpoint and process; None: learned, starting at the first sign of overload."""
    max_queue: int = 64
    queue_timeout_s: float = 2.0
    cold_concurrency: int = 3
    """Outstanding attempts allowed at an endpoint this process has not yet seen work, while the
    route has another: the retry budget's start, so that a dead endpoint costs no user an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    enabled: bool = False
    ttl_s: float = 300.0
    max_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    priority: int = 0
    sheddable: bool = True
    ttft_slo_s: float = INFINITY
    tpot_slo_s: float = INFINITY
    total_slo_s: float = INFINITY
    usd_per_second: float = 0.0
    promised: tuple[float, float, float] | None = field(init=False, default=None)
    """The three objectives: first token, per token, in whole. None where there are none."""

    def __post_init__(self) -> None:
        promised = (self.ttft_slo_s, self.tpot_slo_s, self.total_slo_s)
        if any(slo != INFINITY for slo in promised):
            object.__setattr__(self, "promised", promised)


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a route applies to; an empty set matches everything."""

    models: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()
    surfaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationPolicy:
    """Going on from another attempt after a stream broke off."""

    enabled: bool = False
    params: Mapping[str, object] = field(default_factory=dict[str, object])
    """Members that the request which asks for the rest has beside the first one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The rule that maps matching calls to endpoints."""

    name: str
    """Stable across versions when the match is: the pool key of budgets and baselines."""
    match: Match = Match()
    weights: WeightTable
    fallback: tuple[Fallback, ...] = ()
    expected_input_tokens: int = 1000
    expected_output_tokens: int = 200
    selection: SelectionPolicy = SelectionPolicy()
    affinity: AffinityPolicy = AffinityPolicy()
    deadline: DeadlinePolicy = DeadlinePolicy()
    retry: RetryPolicy = RetryPolicy()
    hedge: HedgePolicy = HedgePolicy()
    admission: AdmissionPolicy = AdmissionPolicy()
    continuation: ContinuationPolicy = ContinuationPolicy()
    coalesce: bool = False
    cache: CachePolicy = CachePolicy()
    mode: str | None = None
    """"observe" or "enforce" for this route alone; None: as the router."""
    endpoint_ids: frozenset[str] = frozenset()
    """Every endpoint the route can reach by weight (fallbacks excluded)."""
    sole: str | None = field(init=False, default=None)
    """The route's only endpoint, fallbacks included; None where there is a choice."""
    shares: bool = field(init=False)
    """Calls may be answered by another's request, or by an answer that was kept."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", self.coalesce or self.cache.enabled)
        ids = {
            endpoint_id
            for buckets in self.weights.by_zone.values()
            for _, weights in buckets
            for endpoint_id, _ in weights
        }
        if len(ids) == 1 and not self.fallback:
            object.__setattr__(self, "sole", ids.pop())


OPEN = (None,)
MatchKey = tuple[str | None, str | None, str | None, str | None]
"""Model, task, class, surface; None where a route leaves it open."""


class RouteIndex:
    """First match wins, found without looking at the routes one by one.

    A route is filed under every combination of the names it matches, and what a route leaves open
    is None there; a call is looked up once for each pattern of open places that some route has.
    The first route of the document among those found is the one.
    """

    __slots__ = ("_first", "_otherwise", "_patterns", "_plain", "_rest")

    def __init__(self, routes: Sequence[Route]) -> None:
        self._first: dict[MatchKey, tuple[int, Route]] = {}
        self._rest: list[tuple[int, Route]] = []
        """Routes with more combinations than are filed, in document order."""
        room = INDEX_MAX
        patterns: dict[tuple[bool, ...], None] = {}
        for place, route in enumerate(routes):
            m = route.match
            needed = math.prod(len(names) or 1 for names in _matched(m))
            if needed > room:
                self._rest.append((place, route))
                continue
            room -= needed
            patterns[tuple(bool(names) for names in _matched(m))] = None
            for key in itertools.product(
                m.models or OPEN, m.tasks or OPEN, m.classes or OPEN, m.surfaces or OPEN
            ):
                self._first.setdefault(key, (place, route))
        self._patterns = tuple(patterns)
        self._otherwise: Route | None = None
        self._plain: dict[str | None, Route] | None = None
        if not self._rest and patterns.keys() <= {(True, False, False, False), (False,) * 4}:
            # The usual document tells calls apart by model and nothing else.
            rest = self._first.get((None, None, None, None))
            self._plain = {
                key[0]: (found if rest is None else min(found, rest, key=_place))[1]
                for key, found in self._first.items()
            }
            self._otherwise = None if rest is None else rest[1]

    def find(
        self, model: str, task: str | None, traffic_class: str | None, surface: str
    ) -> Route | None:
        """The first route that matches, or None."""
        if self._plain is not None:
            return self._plain.get(model, self._otherwise)
        asked = (model, task, traffic_class, surface)
        best: tuple[int, Route] | None = None
        for by_model, by_task, by_class, by_surface in self._patterns:
            found = self._first.get(
                (
                    model if by_model else None,
                    task if by_task else None,
                    traffic_class if by_class else None,
                    surface if by_surface else None,
                )
            )
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        for place, route in self._rest:
            if best is not None and place > best[0]:
                break
            if all(
                not names or name in names
                for names, name in zip(_matched(route.match), asked, strict=True)
            ):
                return route
        return None if best is None else best[1]


def _place(found: tuple[int, Route]) -> int:
    return found[0]


def _matched(match: Match) -> tuple[frozenset[str], ...]:
    return match.models, match.tasks, match.classes, match.surfaces


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantBudget:
    """What one tenant may spend in each period, in all processes together."""

    max_cost: Decimal
    """USD."""
    period_s: int
    share: float = 1.0
    """This process's part of it, where the processes can't talk."""


ANY_TENANT = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A whole policy, compiled. Immutable: a decision holds on to the one it began with."""

    policy_id: str = "default"
    epoch: int = 0
    version: int = 0
    schema_version: str = "1.0"
    source: str = "builtin"
    issued_at: float | None = None
    """Wall-clock seconds, as are the next two."""
    fresh_until: float | None = None
    expires_at: float | None = None
    on_expiry: str = "degrade"
    rollout_share: float = 1.0
    """The part of all processes that this version is for; which, `headway.policy.decide` says."""
    rollout_seed: str = ""
    endpoints: Mapping[str, Endpoint]
    routes: tuple[Route, ...]
    classes: Mapping[str, TrafficClass] = field(default_factory=dict[str, TrafficClass])
    tenants: Mapping[str, TenantBudget] = field(default_factory=dict[str, TenantBudget])
    """Budgets by tenant; "*" is that of each tenant that isn't named."""
    without_hints: Snapshot | None = None
    """The same policy with nothing observed in it: what holds once `hints_until` has passed. None
    where there are no hints to go stale."""
    pass_through: bool = False
    """True for the built-in policy: unknown models go to the one endpoint under their own name."""
    counts_calls: bool = field(init=False, repr=False, compare=False)
    """Every call is accounted for, whether or not anybody looks: an endpoint is priced by GPU-hour,
    so that its calls share out its time, or a route is only observed, or shares its answers."""
    hints_until: float = field(init=False, repr=False, compare=False)
    """The earlier of `fresh_until` and `expires_at`, wall-clock seconds."""
    _index: RouteIndex = field(init=False, repr=False, compare=False)
    _by_name: Mapping[str, Route] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", RouteIndex(self.routes))
        object.__setattr__(self, "_by_name", {r.name: r for r in self.routes})
        timed = any(
            e.price is not None and e.price.per_gpu_hour is not None
            for e in self.endpoints.values()
        )
        ends = [t for t in (self.fresh_until, self.expires_at) if t is not None]
        object.__setattr__(self, "hints_until", min(ends, default=INFINITY))
        told = any(route.mode == "observe" or route.shares for route in self.routes)
        object.__setattr__(self, "counts_calls", timed or told)

    def with_endpoint(self, endpoint: Endpoint) -> Snapshot:
        """The same policy with one endpoint more, for a call that is bound to it."""
        made = copy.copy(self)  # the indexes of routes stay what they are
        object.__setattr__(made, "endpoints", {**self.endpoints, endpoint.id: endpoint})
        return made

    def route_for(
        self,
        model: str,
        *,
        task: str | None = None,
        traffic_class: str | None = None,
        surface: str = "chat",
    ) -> Route | None:
        """The first route that matches, or None. Constant time in the number of routes."""
        return self._index.find(model, task, traffic_class, surface)

    def budget_of(self, tenant: str) -> TenantBudget | None:
        """What a tenant may spend; None: nobody says."""
        return self.tenants.get(tenant) or self.tenants.get(ANY_TENANT)

    def route_named(self, name: str) -> Route | None:
        """The route with this name."""
        return self._by_name.get(name)
