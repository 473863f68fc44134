# long: a document's blocks are compiled in the order in which they are written
"""From a checked document to the snapshot that decisions read.

Milliseconds become seconds, blocks are laid over `defaults`, weights are normalised, and capacity
is divided by this process's share. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, cast

from headway.core import snapshot as core
from headway.core.model import INFINITY
from headway.hosts import split_url
from headway.policy import fleet
from headway.policy.blocks import Handling
from headway.policy.builtin import CLASSES
from headway.policy.checks import candidates, route_names, weight_tables
from headway.policy.fields import Block
from headway.policy.models import Policy, Route

T = TypeVar("T")

_EXPECTED: dict[str, int] = {
    f.name: cast("int", f.default)
    for f in dataclasses.fields(core.Route)
    if f.name.startswith("expected_")
}


def _ms(value: float) -> float:
    return value / 1000.0


def _us(value: float) -> float:
    return value / 1e6


# Core block -> its fields: (name in the core, place in the document, conversion).
_SETTINGS: dict[type, tuple[tuple[str, str, Callable[[Any], object] | None], ...]] = {
    core.SelectionPolicy: (
        ("algorithm", "selection.algorithm", None),
        ("choices", "selection.choices", None),
        ("explore", "selection.explore", None),
    ),
    core.AffinityPolicy: (
        ("key", "affinity.key", None),
        ("min_prefix_tokens", "affinity.min_prefix_tokens", None),
        ("max_load_factor", "affinity.max_load_factor", None),
        ("ttl_s", "affinity.ttl_s", None),
    ),
    core.DeadlinePolicy: (
        ("total_s", "deadline.total_ms", _ms),
        ("ttft_s", "deadline.ttft_ms", _ms),
        ("idle_s", "deadline.idle_ms", _ms),
    ),
    core.RetryPolicy: (
        ("attempts_max", "retry.max_attempts", None),
        ("budget_start", "retry.budget.start", None),
        ("budget_per_success", "retry.budget.per_success", None),
        ("budget_trickle_s", "retry.budget.trickle_s", None),
        ("budget_capacity", "retry.budget.capacity", None),
        ("backoff_base_s", "retry.backoff.base_ms", _ms),
        ("backoff_cap_s", "retry.backoff.cap_ms", _ms),
        ("on", "retry.on", frozenset),
    ),
    core.HedgePolicy: (
        ("enabled", "hedge.enabled", None),
        ("delay_s", "hedge.delay_ms", _ms),
        ("max_extra_fraction", "hedge.max_extra_fraction", None),
    ),
    core.AdmissionPolicy: (
        ("max_inflight", "admission.max_inflight", None),
        ("max_queue", "admission.max_queue", None),
        ("queue_timeout_s", "admission.queue_timeout_ms", _ms),
        ("cold_concurrency", "admission.cold_concurrency", None),
    ),
    core.ContinuationPolicy: (
        ("enabled", "continuation.enabled", None),
        ("params", "continuation.params", None),
    ),
    core.CachePolicy: (
        ("enabled", "cache.enabled", None),
        ("ttl_s", "cache.ttl_s", None),
        ("max_bytes", "cache.max_bytes", None),
    ),
}


_BLOCK = {kind: rows[0][1].partition(".")[0] for kind, rows in _SETTINGS.items()}
"""Core block -> the document's block that it is made of."""


class _Layers:
    """Where the handling of a policy's routes comes from: each route's own blocks, laid over
    `defaults`. What a route leaves out whole it shares with the others that do: most do, and a
    document may have ten thousand."""

    def __init__(self, defaults: Handling | None) -> None:
        self._defaults = defaults
        self._shared: dict[type, Any] = {}

    def settled(self, kind: type[T], route: Handling) -> T:
        """A block of the core from the first layer that gives each field; its default else."""
        if getattr(route, _BLOCK[kind]) is not None:
            return self._made(kind, (route, self._defaults))
        found: T | None = self._shared.get(kind)
        if found is None:
            found = self._shared[kind] = self._made(kind, (self._defaults,))
        return found

    def first(self, route: Handling, *place: str) -> Any:  # the fields' types differ
        """The value at a place, of the first layer that has one."""
        return _first((route, self._defaults), place)

    def _made(self, kind: type[T], layers: Sequence[Handling | None]) -> T:
        given: dict[str, object] = {}
        for name, place, convert in _SETTINGS[kind]:
            value = _first(layers, place.split("."))
            if value is not None:
                given[name] = value if convert is None else convert(value)
        return kind(**given)


def _first(layers: Sequence[Handling | None], place: Sequence[str]) -> Any:
    for layer in layers:
        value: Any = layer
        for name in place:
            value = None if value is None else getattr(value, name)
        if value is not None:
            return value
    return None


def _given(block: Block | None, *names: str) -> dict[str, Any]:
    """The named fields of a block that are not None, to leave the rest to the core's defaults."""
    if block is None:
        return {}
    return {n: v for n in names if (v := getattr(block, n)) is not None}


def build_snapshot(policy: Policy, *, source: str, zone: str | None) -> core.Snapshot:
    """Compile a policy that `document` has found sound, for a caller in `zone`."""
    hinted = any(endpoint.observed is not None for endpoint in policy.endpoints.values())
    if (policy.fresh_until is None and policy.expires_at is None) or not hinted:
        return _snapshot(policy, source, zone)
    static = {
        endpoint_id: endpoint.model_copy(update={"observed": None})
        for endpoint_id, endpoint in policy.endpoints.items()
    }
    without_hints = _snapshot(policy.model_copy(update={"endpoints": static}), source, zone)
    return _snapshot(policy, source, zone, without_hints)


def _snapshot(
    policy: Policy, source: str, zone: str | None, without_hints: core.Snapshot | None = None
) -> core.Snapshot:
    profiles = {name: _profile(profile) for name, profile in policy.profiles.items()}
    share = _share(policy.shares)
    endpoints = {
        endpoint_id: _endpoint(endpoint_id, endpoint, policy, profiles, share, zone)
        for endpoint_id, endpoint in policy.endpoints.items()
    }
    names = route_names(policy)
    layers = _Layers(policy.defaults)
    return core.Snapshot(
        policy_id=policy.policy_id,
        epoch=policy.epoch,
        version=policy.version,
        schema_version=policy.schema_version,
        source=source,
        issued_at=_wall(policy.issued_at),
        fresh_until=_wall(policy.fresh_until),
        expires_at=_wall(policy.expires_at),
        on_expiry=policy.on_expiry,
        **_rollout(policy.rollout),
        endpoints=endpoints,
        routes=tuple(
            _route(name, route, policy, endpoints, layers)
            for name, route in zip(names, policy.routes, strict=True)
        ),
        classes=CLASSES | {name: _class(name, traffic) for name, traffic in policy.classes.items()},
        tenants={
            name: core.TenantBudget(max_cost=budget.max_cost, period_s=budget.period_s, share=share)
            for name, budget in policy.tenants.items()
        },
        without_hints=without_hints,
    )


def _wall(instant: datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def _rollout(rollout: fleet.Rollout | None) -> dict[str, Any]:
    if rollout is None:
        return {}
    return {"rollout_share": rollout.share, "rollout_seed": rollout.seed or ""}


def _share(shares: fleet.Shares | None) -> float:
    if shares is None:
        return 1.0
    return shares.share if shares.share is not None else 1.0 / (shares.client_count or 1)


def _curve(x: Sequence[float], y_ms: Sequence[float]) -> core.Curve:
    return core.Curve(x=tuple(x), y=tuple(_ms(value) for value in y_ms))


def _profile(profile: fleet.Profile) -> core.Profile:
    ttft, tpot = profile.ttft_ms, profile.tpot_ms
    return core.Profile(
        ttft_s=_curve(ttft.x, ttft.mean),
        ttft_p99_s=None if ttft.p99 is None else _curve(ttft.x, ttft.p99),
        tpot_s=_curve(tpot.x, tpot.mean),
        tpot_p99_s=None if tpot.p99 is None else _curve(tpot.x, tpot.p99),
        prefill_s_per_token=_us(profile.prefill_us_per_token or 0.0),
        **_given(profile, "load", "ttft_ref_uncached_tokens"),
    )


def _endpoint(
    endpoint_id: str,
    endpoint: fleet.Endpoint,
    policy: Policy,
    profiles: Mapping[str, core.Profile],
    share: float,
    zone: str | None,
) -> core.Endpoint:
    origin, path = split_url(endpoint.base_url)
    profile = None if endpoint.profile is None else profiles[endpoint.profile]
    params = endpoint.params or fleet.Params()
    return core.Endpoint(
        id=endpoint_id,
        base_url=f"{origin}{path}",
        api_version=endpoint.api_version,
        provider=endpoint.provider,
        model=endpoint.model,
        models=dict(endpoint.models),
        credential=endpoint.credential,
        zone=endpoint.zone,
        failure_domain=endpoint.failure_domain,
        profile=profile,
        capacity=_capacity(endpoint.capacity, share),
        planned_load=_planned_load(endpoint, profile),
        rtt_s=_rtt_s(policy.network, zone, endpoint.zone),
        price=_price(endpoint.price, endpoint.capacity),
        prefix_cache=core.PrefixCache(
            **_given(endpoint.prefix_cache, "block_tokens", "blocks", "ttl_s")
        ),
        supports=frozenset(endpoint.supports),
        max_context_tokens=endpoint.max_context_tokens,
        max_body_bytes=endpoint.max_body_bytes,
        params_drop=params.drop,
        params_rename=dict(params.rename),
        params_set=dict(params.set_),
        headers=dict(endpoint.headers),
        **_given(endpoint, "dialect", "state"),
    )


def _capacity(capacity: fleet.Capacity | None, share: float) -> core.Capacity:
    if capacity is None:
        return core.Capacity()
    rates = _given(capacity, "rpm", "tpm", "input_tps", "output_tps")
    whole = capacity.concurrency
    return core.Capacity(
        # A process whose share is under one call still has to be able to make one.
        concurrency=None if whole is None else max(1, round(whole * share)),
        **{name: rate * share for name, rate in rates.items()},
        fleet_rpm=capacity.rpm,
        fleet_tpm=capacity.tpm,
    )


def _planned_load(endpoint: fleet.Endpoint, profile: core.Profile | None) -> float:
    seen = endpoint.observed or fleet.Observed()
    if profile is not None and profile.load == "inflight":
        if seen.in_flight is not None:
            return seen.in_flight
        most = endpoint.capacity.concurrency if endpoint.capacity is not None else None
        return core.DEFAULT_PLANNED_LOAD * (profile.ttft_s.x[-1] if most is None else most)
    planned = seen.planned_utilization
    planned = planned if planned is not None else seen.utilization
    return core.DEFAULT_PLANNED_LOAD if planned is None else planned


def _rtt_s(network: fleet.Network | None, here: str | None, there: str | None) -> float:
    if network is None:
        return 0.0
    if here is not None and there is not None:
        for a, b in ((here, there), (there, here)):  # a round trip is the same both ways
            if (rtt_ms := network.rtt_ms.get(a, {}).get(b)) is not None:
                return _ms(rtt_ms)
        if here == there:
            return 0.0
    return _ms(network.default_rtt_ms or 0.0)


def _price(price: fleet.Price | None, capacity: fleet.Capacity | None) -> core.Price | None:
    if price is None:
        return None
    slots = price.slots
    if slots is None and price.per_gpu_hour is not None and capacity is not None:
        slots = capacity.concurrency  # of the engine, not this process's share of it
    return core.Price(
        input_per_mtok=price.input_per_mtok,
        cached_input_per_mtok=price.cached_input_per_mtok,
        cache_write_per_mtok=price.cache_write_per_mtok,
        output_per_mtok=price.output_per_mtok,
        per_request=price.per_request,
        per_gpu_hour=price.per_gpu_hour,
        gpus=Decimal(1) if price.gpus is None else price.gpus,
        slots=slots,
    )


def _class(name: str, traffic: fleet.TrafficClass) -> core.TrafficClass:
    slo = traffic.slo or fleet.Slo()
    return dataclasses.replace(
        CLASSES.get(name, core.TrafficClass()),
        ttft_slo_s=INFINITY if slo.ttft_p99_ms is None else _ms(slo.ttft_p99_ms),
        tpot_slo_s=INFINITY if slo.tpot_p99_ms is None else _ms(slo.tpot_p99_ms),
        total_slo_s=INFINITY if slo.total_p99_ms is None else _ms(slo.total_p99_ms),
        usd_per_second=float(traffic.usd_per_second or 0),
        **_given(traffic, "priority", "sheddable"),
    )


def _route(
    name: str,
    route: Route,
    policy: Policy,
    endpoints: Mapping[str, core.Endpoint],
    layers: _Layers,
) -> core.Route:
    tokens: dict[str, int] = {}
    for field, place in (("expected_input_tokens", "input"), ("expected_output_tokens", "output")):
        if (count := layers.first(route, "expected_tokens", place)) is not None:
            tokens[field] = count
    weights = _weights(route, policy, endpoints, tokens)
    return core.Route(
        name=name,
        match=_match(route),
        weights=weights,
        fallback=tuple(
            core.Fallback(
                endpoint=fallback.endpoint,
                route=fallback.route,
                model=fallback.model,
                on=None if fallback.on is None else frozenset(fallback.on),
            )
            for fallback in route.fallback
        ),
        selection=layers.settled(core.SelectionPolicy, route),
        affinity=layers.settled(core.AffinityPolicy, route),
        deadline=layers.settled(core.DeadlinePolicy, route),
        retry=layers.settled(core.RetryPolicy, route),
        hedge=layers.settled(core.HedgePolicy, route),
        admission=layers.settled(core.AdmissionPolicy, route),
        continuation=layers.settled(core.ContinuationPolicy, route),
        coalesce=bool(layers.first(route, "coalesce")),
        cache=layers.settled(core.CachePolicy, route),
        mode=layers.first(route, "mode"),
        endpoint_ids=frozenset(
            endpoint_id
            for buckets in weights.by_zone.values()
            for _, table in buckets
            for endpoint_id, _ in table
        ),
        **tokens,
    )


def _match(route: Route) -> core.Match:
    match = route.match
    if match is None:
        return core.Match()
    return core.Match(
        models=frozenset(match.model or ()),
        tasks=frozenset(match.task or ()),
        classes=frozenset(match.class_ or ()),
        surfaces=frozenset(match.surface or ()),
    )


def _weights(
    route: Route,
    policy: Policy,
    endpoints: Mapping[str, core.Endpoint],
    tokens: Mapping[str, int],
) -> core.WeightTable:
    if route.weights is None:
        derived = derived_weights(candidates(route, policy), endpoints, tokens)
        return core.WeightTable(by_zone={"*": ((INFINITY, derived),)})
    sizes: dict[float, dict[str, Mapping[str, float]]] = {}
    for _, bound, zone, table in weight_tables(route):
        sizes.setdefault(INFINITY if bound is None else float(bound), {})[zone] = table
    zones = sorted({zone for by_zone in sizes.values() for zone in by_zone})
    return core.WeightTable(
        by_zone={
            zone: tuple(
                # A size that doesn't name the zone has "*": `checks` made sure.
                (bound, _normalised(by_zone.get(zone) or by_zone["*"]))
                for bound, by_zone in sorted(sizes.items())
            )
            for zone in zones
        }
    )


def _normalised(table: Mapping[str, float]) -> core.Weights:
    total = sum(table.values())
    return tuple((endpoint_id, w / total) for endpoint_id, w in table.items() if w > 0)


def derived_weights(
    ids: Sequence[str], endpoints: Mapping[str, core.Endpoint], tokens: Mapping[str, int]
) -> core.Weights:
    """Weights in inverse proportion to a typical call's expected time, times capacity where known.

    What has no profile is taken to be as fast as the mean of what has; without any profile or
    capacity the weights are equal.
    """
    input_tokens = tokens.get("expected_input_tokens", _EXPECTED["expected_input_tokens"])
    output_tokens = tokens.get("expected_output_tokens", _EXPECTED["expected_output_tokens"])
    expected_s: dict[str, float] = {}
    for endpoint_id in ids:
        endpoint = endpoints[endpoint_id]
        if (profile := endpoint.profile) is not None:
            expected_s[endpoint_id] = (
                endpoint.rtt_s
                + profile.predict_ttft_s(endpoint.planned_load, input_tokens)
                + output_tokens * profile.predict_tpot_s(endpoint.planned_load)
            )
    mean_s = sum(expected_s.values()) / len(expected_s) if expected_s else 1.0
    slots = [endpoints[endpoint_id].capacity.concurrency for endpoint_id in ids]
    table = {
        endpoint_id: (slots[i] or 1.0 if all(slots) else 1.0) / expected_s.get(endpoint_id, mean_s)
        for i, endpoint_id in enumerate(ids)
    }
    return _normalised(table)
