"""What is valid in a policy and yet hardly meant.

Routes that nothing reaches, weights that capacity can't carry, prices that look swapped.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headway.core.snapshot import OPEN, Endpoint, Price, Route, Snapshot
from headway.policy.models import Policy
from headway.policy.parse import path_text

OVERCOMMITTED = 2.0
"""A share of the calls that is this many times the share of the capacity is pointed out."""
PRICES_APART = 100.0
NOBODYS_MODEL = "\0"  # no document can name it


class Doubt(NamedTuple):
    """One of them."""

    path: str
    message: str


def doubts(policy: Policy, snapshot: Snapshot, *, wall_now: float | None = None) -> list[Doubt]:
    """Everything doubtful, in document order."""
    now = time.time() if wall_now is None else wall_now
    found = [*_head(policy, now), *_endpoints(snapshot)]
    for i, route in enumerate(snapshot.routes):
        found += (
            Doubt(path_text(("routes", i, *path)), said) for path, said in _route(route, snapshot)
        )
    return found


def _head(policy: Policy, now: float) -> Iterator[Doubt]:
    for name in ("fresh_until", "expires_at"):
        instant = getattr(policy, name)
        if instant is not None and instant.timestamp() < now:
            yield Doubt(name, f"{instant.isoformat()} is over")
    if policy.rollout is not None and policy.rollout.share == 0:
        yield Doubt("rollout.share", "0: no process puts this version in force")


def _endpoints(snapshot: Snapshot) -> Iterator[Doubt]:
    used = {f.endpoint for route in snapshot.routes for f in route.fallback if f.endpoint}
    for route in snapshot.routes:
        used |= route.endpoint_ids
    for endpoint in snapshot.endpoints.values():
        path = path_text(("endpoints", endpoint.id))
        if endpoint.id not in used and endpoint.state == "active":
            yield Doubt(path, "no route leads here")
        if endpoint.price is not None:
            for name, said in _price(endpoint.price):
                yield Doubt(f"{path}.price.{name}", said)


def _price(price: Price) -> Iterator[tuple[str, str]]:
    paid, cached, made = price.input_per_mtok, price.cached_input_per_mtok, price.output_per_mtok
    if paid is not None and made is not None and made < paid:
        yield "output_per_mtok", f"{made} is less than an input token costs ({paid}): swapped?"
    if paid is not None and cached is not None and cached > paid:
        yield "cached_input_per_mtok", f"{cached} is more than an uncached token costs ({paid})"


Found = tuple[tuple[str | int, ...], str]


def _route(route: Route, snapshot: Snapshot) -> Iterator[Found]:
    if not _is_reached(route, snapshot):
        yield (), "routes before it take every call that it matches"
    own = [snapshot.endpoints[e] for e in sorted(route.endpoint_ids)]
    if not any(e.state == "active" for e in own) and not route.fallback:
        yield (), "none of its endpoints takes new calls (draining or disabled)"
    if route.sole is not None and route.hedge.enabled:
        yield ("hedge", "enabled"), "there is no second endpoint to hedge with"
    deadline = route.deadline
    if deadline.ttft_s > deadline.total_s and deadline.ttft_s != float("inf"):
        yield ("deadline", "ttft_ms"), "is later than the end of the call (total_ms)"
    yield from _cost(route, own)
    yield from _capacity(route, snapshot)


def _is_reached(route: Route, snapshot: Snapshot) -> bool:
    m = route.match
    kinds = itertools.product(
        m.models or (NOBODYS_MODEL,), m.tasks or OPEN, m.classes or OPEN, m.surfaces or ("chat",)
    )
    return any(
        snapshot.route_for(model, task=task, traffic_class=traffic_class, surface=surface) is route
        for model, task, traffic_class, surface in kinds
    )


def _cost(route: Route, own: Iterable[Endpoint]) -> Iterator[Found]:
    priced = {e.id: e.price.input_per_mtok for e in own if e.price and e.price.input_per_mtok}
    if len(priced) > 1:
        cheap, dear = min(priced, key=lambda e: priced[e]), max(priced, key=lambda e: priced[e])
        if float(priced[dear]) > PRICES_APART * float(priced[cheap]):
            yield (
                ("weights",),
                (
                    f"a prompt costs more than {PRICES_APART:g} times as much at {dear} "
                    f"({priced[dear]}) as at {cheap} ({priced[cheap]}): a slip of a decimal place?"
                ),
            )
    if route.selection.algorithm == "min_cost":
        unpriced = [e.id for e in own if e.price is None]
        if unpriced:
            yield (
                ("selection", "algorithm"),
                f"min_cost knows no price of {', '.join(unpriced[:8])} unless a price list does",
            )


def _capacity(route: Route, snapshot: Snapshot) -> Iterator[Found]:
    said: set[str] = set()
    for buckets in route.weights.by_zone.values():
        for _, weights in buckets:
            for name in ("concurrency", "rpm", "tpm"):
                carried = {
                    e: getattr(snapshot.endpoints[e].capacity, name) or 0.0 for e, _ in weights
                }
                total = sum(carried.values())
                if len(carried) < 2 or not all(carried.values()):
                    continue
                for endpoint_id, share in weights:
                    fair = carried[endpoint_id] / total
                    if share > OVERCOMMITTED * fair and endpoint_id not in said:
                        said.add(endpoint_id)
                        yield (
                            ("weights", endpoint_id),
                            f"gets {share:.0%} of the calls with {fair:.0%} of the {name}",
                        )
