"""What only the whole document shows: dangling names, cycles, weights that add up to nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from headway.policy.blocks import WeightBucket
from headway.policy.fields import JsonPath, Said
from headway.policy.models import Policy, Route
from headway.policy.problems import Problem

_NAME_CHARS_MAX = 120


def route_names(policy: Policy) -> tuple[str, ...]:
    """One name per route: its own, else one made of its match, so that it outlives reordering."""
    taken = {route.name for route in policy.routes if route.name is not None}
    names: list[str] = []
    for route in policy.routes:
        name = route.name
        if name is None:
            base = _name_from_match(route)
            name, n = base, 2
            while name in taken:
                name, n = f"{base}#{n}", n + 1
            taken.add(name)
        names.append(name)
    return tuple(names)


def _name_from_match(route: Route) -> str:
    match = route.match
    if match is None:
        return "*"
    parts = ["+".join(match.model)] if match.model else []
    for label, values in (
        ("task", match.task),
        ("class", match.class_),
        ("surface", match.surface),
    ):
        if values:
            parts.append(f"{label}={'+'.join(values)}")
    name = "|".join(parts) or "*"
    if len(name) > _NAME_CHARS_MAX:
        digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
        name = f"{name[: _NAME_CHARS_MAX - 13]}~{digest}"
    return name


def weight_tables(
    route: Route,
) -> Iterator[tuple[JsonPath, int | None, str, Mapping[str, float]]]:
    """Every weight table of a route: (path below the route, max_prompt_tokens, zone, weights)."""
    weights = route.weights
    if weights is None:
        return
    if not isinstance(weights, tuple):
        for path, zone, table in _by_zone(weights):
            yield ("weights", *path), None, zone, table
        return
    for i, bucket in enumerate(weights):
        for path, zone, table in _by_zone(bucket.weights):
            yield ("weights", i, "weights", *path), bucket.max_prompt_tokens, zone, table


def _by_zone(
    weights: Mapping[str, float] | Mapping[str, dict[str, float]],
) -> Iterator[tuple[JsonPath, str, Mapping[str, float]]]:
    flat: dict[str, float] = {}
    for key, value in weights.items():
        if isinstance(value, dict):
            yield (key,), key, value
        else:
            flat[key] = value
    if flat:
        yield (), "*", flat


def cross_problems(policy: Policy) -> list[Problem]:
    """Everything wrong between the parts of a document."""
    names = route_names(policy)
    problems: list[Problem] = []
    seen: set[str] = set()
    for i, route in enumerate(policy.routes):
        at: JsonPath = ("routes", i)
        if names[i] in seen:
            problems.append(Problem((*at, "name"), "a name that no other route has", names[i]))
        seen.add(names[i])
        problems.extend(_weight_problems(at, route, policy))
        problems.extend(_fallback_problems(at, route, policy, names))
    problems.extend(_cycles(policy, names))
    return problems


def _weight_problems(at: JsonPath, route: Route, policy: Policy) -> Iterator[Problem]:
    known = policy.endpoints
    for i, endpoint in enumerate(route.endpoints or ()):
        if endpoint not in known:
            yield Problem((*at, "endpoints", i), "an endpoint", endpoint, known=known)
    for path, _, _, table in weight_tables(route):
        for endpoint in table:
            if endpoint not in known:
                yield Problem((*at, *path, endpoint), "an endpoint", endpoint, known=known)
        if not any(table.values()):
            yield Problem((*at, *path), "at least one weight above 0", Said("only zeros"))
    if isinstance(route.weights, tuple):
        yield from _bucket_problems((*at, "weights"), route.weights)
    if route.weights is None and route.endpoints is None and not candidates(route, policy):
        yield Problem(
            (*at, "weights"), "weights, or endpoints that serve the route's models", Said("nothing")
        )


def _bucket_problems(at: JsonPath, buckets: tuple[WeightBucket, ...]) -> Iterator[Problem]:
    zones = {zone for bucket in buckets for _, zone, _ in _by_zone(bucket.weights)}
    last, before = len(buckets) - 1, 0
    for i, bucket in enumerate(buckets):
        bound, place = bucket.max_prompt_tokens, (*at, i, "max_prompt_tokens")
        if i == last and bound is not None:
            yield Problem(place, "none in the last entry, which covers every longer prompt", bound)
        if i < last and (bound is None or bound <= before):
            yield Problem(place, f"more than {before}, and only the last entry without one", bound)
        before = bound or before
        covered = {zone for _, zone, _ in _by_zone(bucket.weights)}
        missing = zones - covered - {"*"}
        if missing and "*" not in covered:
            yield Problem(
                (*at, i, "weights"),
                f'weights for zone {min(missing)} or "*" in each entry',
                None,
            )


def candidates(route: Route, policy: Policy) -> tuple[str, ...]:
    """The endpoints that weights are derived for, where a route gives none."""
    if route.endpoints is not None:
        return tuple(dict.fromkeys(route.endpoints))
    reserve = {fallback.endpoint for fallback in route.fallback}
    wanted = route.match.model if route.match is not None and route.match.model else ()
    return tuple(
        endpoint_id
        for endpoint_id, endpoint in policy.endpoints.items()
        if endpoint_id not in reserve
        and endpoint.state != "disabled"
        and (
            not endpoint.models
            or endpoint.model is not None
            or not wanted
            or any(model in endpoint.models for model in wanted)
        )
    )


def _fallback_problems(
    at: JsonPath, route: Route, policy: Policy, names: tuple[str, ...]
) -> Iterator[Problem]:
    for i, fallback in enumerate(route.fallback):
        place = (*at, "fallback", i)
        if (fallback.endpoint is None) == (fallback.route is None):
            got = Said("neither" if fallback.endpoint is None else "both")
            yield Problem(place, "an endpoint or a route", got)
        elif fallback.endpoint is not None and fallback.endpoint not in policy.endpoints:
            known = policy.endpoints
            yield Problem((*place, "endpoint"), "an endpoint", fallback.endpoint, known=known)
        elif fallback.route is not None and fallback.route not in names:
            yield Problem((*place, "route"), "a route", fallback.route, known=names)


def _cycles(policy: Policy, names: tuple[str, ...]) -> Iterator[Problem]:
    """Report the first fallback that closes a cycle (depth first, without recursion)."""
    index = {name: i for i, name in enumerate(names)}
    onward = [
        [(k, index[f.route]) for k, f in enumerate(route.fallback) if f.route in index]
        for route in policy.routes
    ]
    done: set[int] = set()
    for start in range(len(names)):
        trail: list[tuple[int, int]] = [(start, 0)]  # (route, next of its fallbacks to follow)
        on_trail = {start}
        while trail:
            here, step = trail.pop()
            if step >= len(onward[here]) or here in done:
                done.add(here)
                on_trail.discard(here)
                continue
            trail.append((here, step + 1))
            k, target = onward[here][step]
            if target in on_trail:
                walked = [i for i, _ in trail]
                circle = [names[i] for i in walked[walked.index(target) :]] + [names[target]]
                yield Problem(
                    ("routes", here, "fallback", k, "route"),
                    f"fallbacks that end; this is a cycle: {' -> '.join(circle)}",
                    names[target],
                )
                return
            elif target not in done:
                trail.append((target, 0))
                on_trail.add(target)
