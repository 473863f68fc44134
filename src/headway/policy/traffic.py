"""What a policy means for traffic: what changes between two of them, and why a call goes where.

Both work on compiled snapshots (`Policy.load(...).compile(...)`) and send nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from headway.core.engine import Engine
from headway.core.model import CallFacts
from headway.core.place import groups_for
from headway.core.snapshot import OPEN, Endpoint, Fallback, Route, Snapshot, TenantBudget
from headway.core.views import Explanation

KINDS_MAX = 20_000
"""Kinds of traffic that are compared: the names of ten thousand routes, before and after."""
SHARE_NOISE = 1e-9
_UNSAID = frozenset({"headers", "params_set", "continuation.params"})
"""Fields whose values may hold secrets: that they changed is said, not to what."""
_HANDLING = (
    *("selection", "affinity", "deadline", "retry", "hedge", "admission", "continuation"),
    *("coalesce", "cache", "mode", "expected_input_tokens", "expected_output_tokens"),
)
_HEAD = (
    *("policy_id", "epoch", "version", "issued_at", "fresh_until", "expires_at", "on_expiry"),
    *("rollout_share", "rollout_seed"),
)
SIZES = (1_000, 8_000, 32_000, 128_000)
"""Prompt sizes, in tokens, at which weights are compared beside the bounds that routes have."""


class Traffic(NamedTuple):
    """A kind of calls: the names that some route tells calls apart by. None: any other."""

    model: str | None = None
    task: str | None = None
    traffic_class: str | None = None
    surface: str | None = None

    def __str__(self) -> str:
        named = {"model": self.model, "task": self.task, "class": self.traffic_class}
        named["surface"] = self.surface
        said = [f"{name} {value}" for name, value in named.items() if value is not None]
        return ", ".join(said) or "any other call"


class Setting(NamedTuple):
    """One value that is not what it was. `where` is a field, a dotted path below a block."""

    where: str
    before: str
    after: str


class TrafficChange(NamedTuple):
    """What becomes of a kind of calls."""

    traffic: Traffic
    route_before: str | None
    """None: such calls are not routed, they pass through."""
    route_after: str | None
    prompt_tokens: int
    """The prompt size at which most of it moves."""
    before: Mapping[str, float]
    """Shares by endpoint, as published."""
    after: Mapping[str, float]
    moved: float
    """Part of the calls that go elsewhere, 0 to 1."""
    fallback_before: tuple[str, ...]
    fallback_after: tuple[str, ...]
    settings: tuple[Setting, ...]
    """Handling that is not what it was: deadlines, retries, limits, ..."""


class PolicyDiff(NamedTuple):
    """What changes with a policy."""

    head: tuple[Setting, ...]
    """Of the document as a whole, its classes of traffic among it."""
    endpoints_added: tuple[str, ...]
    endpoints_removed: tuple[str, ...]
    endpoints_changed: Mapping[str, tuple[Setting, ...]]
    traffic: tuple[TrafficChange, ...]
    """Only kinds for which something changes, the most moved first."""
    kinds_left_out: int
    """Kinds of traffic that were too many to compare."""

    @property
    def is_empty(self) -> bool:
        """Whether calls notice nothing, the version aside."""
        return not (
            self.endpoints_added
            or self.endpoints_removed
            or self.endpoints_changed
            or self.traffic
            or any(setting.where not in ("version", "issued_at") for setting in self.head)
        )


def diff(old: Snapshot, new: Snapshot, *, zone: str | None = None) -> PolicyDiff:
    """What changes for which traffic, for a caller in `zone`, when `new` follows `old`."""
    changed: dict[str, tuple[Setting, ...]] = {}
    for endpoint_id in old.endpoints.keys() & new.endpoints.keys():
        settings = tuple(_endpoint_settings(old.endpoints[endpoint_id], new.endpoints[endpoint_id]))
        if settings:
            changed[endpoint_id] = settings
    kinds = dict.fromkeys(itertools.chain(_kinds(old), _kinds(new)))
    kinds[Traffic()] = None
    compared = list(kinds)[-KINDS_MAX:]
    changes = [c for kind in compared if (c := _change(kind, old, new, zone)) is not None]
    return PolicyDiff(
        (*_settings(old, new, _HEAD), *_class_settings(old, new), *_budgets(old, new)),
        tuple(e for e in new.endpoints if e not in old.endpoints),
        tuple(e for e in old.endpoints if e not in new.endpoints),
        {name: changed[name] for name in old.endpoints if name in changed},
        tuple(sorted(changes, key=lambda c: (-c.moved, str(c.traffic)))),
        len(kinds) - len(compared),
    )


def explain(
    policy: Snapshot,
    *,
    model: str,
    prompt_tokens: int = 1000,
    surface: str = "chat",
    task: str | None = None,
    traffic_class: str | None = None,
    max_output_tokens: int | None = None,
    zone: str | None = None,
) -> Explanation:
    """Why a call would go to A and not to B, by the document alone: in a process that has seen
    nothing yet. For one that has, `Router.explain`.
    """
    facts = CallFacts(
        model=model,
        surface=surface,
        task_name=task,
        traffic_class=traffic_class,
        prompt_tokens=prompt_tokens,
        max_output_tokens=max_output_tokens,
    )
    return Engine(policy, zone=zone, rng=random.Random(0)).explain(facts, 0.0)


# ----------------------------------------------------------------------------- inside


def _kinds(snapshot: Snapshot) -> Iterator[Traffic]:
    for route in snapshot.routes:
        m = route.match
        for names in itertools.product(
            m.models or OPEN, m.tasks or OPEN, m.classes or OPEN, m.surfaces or OPEN
        ):
            yield Traffic(*names)


def _route(snapshot: Snapshot, kind: Traffic) -> Route | None:
    return snapshot.route_for(
        kind.model or "",
        task=kind.task,
        traffic_class=kind.traffic_class,
        surface=kind.surface or "chat",
    )


def _change(kind: Traffic, old: Snapshot, new: Snapshot, zone: str | None) -> TrafficChange | None:
    routes = _route(old, kind), _route(new, kind)
    if routes == (None, None):
        return None
    worst: tuple[float, int, dict[str, float], dict[str, float]] = (-1.0, 0, {}, {})
    for size in sorted({*SIZES, *_bounds(routes[0]), *_bounds(routes[1])}):
        before = _shares(routes[0], zone, size)
        after = _shares(routes[1], zone, size)
        moved = sum(max(w - after.get(e, 0.0), 0.0) for e, w in before.items())
        if bool(before) != bool(after):
            moved = 1.0
        if moved > worst[0]:
            worst = moved, size, before, after
    fallbacks = tuple(_fallback(r, s, kind, zone) for r, s in zip(routes, (old, new), strict=True))
    settings: tuple[Setting, ...] = ()
    if routes[0] is not None and routes[1] is not None:
        settings = tuple(map(_veiled, _settings(routes[0], routes[1], _HANDLING)))
    moved, size, before, after = worst
    if moved <= SHARE_NOISE and fallbacks[0] == fallbacks[1] and not settings:
        return None
    names = tuple(None if route is None else route.name for route in routes)
    return TrafficChange(
        kind, names[0], names[1], size, before, after, moved, fallbacks[0], fallbacks[1], settings
    )


def _bounds(route: Route | None) -> Iterator[int]:
    for buckets in () if route is None else route.weights.by_zone.values():
        for bound, _ in buckets:
            if bound < 1e12:
                yield int(bound)
                yield int(bound) + 1


def _shares(route: Route | None, zone: str | None, prompt_tokens: int) -> dict[str, float]:
    return {} if route is None else dict(route.weights.pick(zone, prompt_tokens))


def _fallback(
    route: Route | None, snapshot: Snapshot, kind: Traffic, zone: str | None
) -> tuple[str, ...]:
    if route is None:
        return ()
    facts = CallFacts(model=kind.model or "", surface=kind.surface or "chat")
    groups = groups_for(route, snapshot, facts, zone)[1:]
    return tuple(
        "+".join(endpoint_id for endpoint_id, _ in group.weights)
        + (f" as {group.model}" if group.model else "")
        + (f" on {', '.join(sorted(group.on))}" if group.on else "")
        for group in groups
    )


def _budgets(old: Snapshot, new: Snapshot) -> Iterator[Setting]:
    for tenant in dict.fromkeys((*old.tenants, *new.tenants)):
        before, after = (_budget_text(of.tenants.get(tenant)) for of in (old, new))
        if before != after:
            yield Setting(f"tenants.{tenant}", before, after)


def _budget_text(budget: TenantBudget | None) -> str:
    if budget is None:
        return "unset"
    return f"{budget.max_cost} USD in {budget.period_s} s, {budget.share:.3g} of it here"


def _endpoint_settings(old: Endpoint, new: Endpoint) -> Iterator[Setting]:
    names = [field.name for field in dataclasses.fields(Endpoint) if field.init]
    yield from map(_veiled, _settings(old, new, names))


def _class_settings(old: Snapshot, new: Snapshot) -> Iterator[Setting]:
    for name in sorted(old.classes.keys() | new.classes.keys()):
        before, after = old.classes.get(name), new.classes.get(name)
        for setting in _between(before, after):
            where = f"classes.{name}"
            yield setting._replace(where=f"{where}.{setting.where}" if setting.where else where)


def _veiled(setting: Setting) -> Setting:
    if setting.where in _UNSAID:
        return Setting(setting.where, "not shown", "not shown either")
    return setting


def _settings(old: object, new: object, names: Sequence[str]) -> Iterator[Setting]:
    for name in names:
        for setting in _between(getattr(old, name), getattr(new, name)):
            yield setting._replace(where=f"{name}.{setting.where}" if setting.where else name)


def _between(before: object, after: object) -> Iterator[Setting]:
    """What is not the same in two values; `where` is empty where it is they themselves."""
    if before == after:
        return
    if dataclasses.is_dataclass(before) and type(before) is type(after):
        given = [field.name for field in dataclasses.fields(before) if field.init]
        yield from _settings(before, after, given)
    else:
        yield Setting("", _shown(before), _shown(after))


def _shown(value: object) -> str:
    match value:
        case None:
            return "unset"
        case float() if value == float("inf"):
            return "none"
        case float():
            return f"{value:g}"
        case Fallback():
            return value.endpoint or f"route {value.route}"
        case frozenset() | tuple():
            several = cast("Iterable[object]", value)
            return ", ".join(sorted(str(one) for one in several)) or "nothing"
        case _ if dataclasses.is_dataclass(value):
            return f"given ({type(value).__name__})"
        case _:
            return str(value)
