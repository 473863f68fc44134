# long: one decision, from filter to obstacle, to be read in one sitting
"""Placement: where a call may go now, or what it has to wait for.

`place` filters a call's candidates group by group (its route's own endpoints, then each fallback),
honours affinity and due probes, runs the strategy, and when nothing is eligible says what stands in
the way and until when.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headway.core.affinity import Warm
from headway.core.breaker import Breaker, State
from headway.core.expect import excess, expect, expect_latency
from headway.core.model import INFINITY, CallFacts
from headway.core.select import (
    NEEDS_EXPECTATION,
    Candidate,
    Choice,
    Out,
    choose,
    may_stay_warm,
    weigh,
)
from headway.core.snapshot import Endpoint, Route, Snapshot, TrafficClass
from headway.core.state import GUESSES, EndpointState, Pool, on_surface
from headway.core.world import World, credential_key

FALLBACK_DEPTH_MAX = 5
"""Route fallbacks followed; documents with cycles are refused, this bounds the rest."""
PANIC_WEIGHT = 0.5
"""Below this share of weight available, soft evidence no longer keeps an endpoint out."""
COLD_ALONE = 16
"""Attempts at once at an endpoint without an alternative that was not yet seen to work: what a
limit on calls at once refuses of a first burst has to be sent again. The rest wait for the first
sign of life. Not where the application has no policy: there a burst goes out as it came."""
FLEETING = frozenset({"limit", "cold"})
"""Obstacles that end when some attempt ends: worth queueing for."""
TIMED = frozenset({"throttled", "paced", "not_found", "exhausted"})
"""Obstacles that end at a known instant."""


class Group(NamedTuple):
    """One set of endpoints a call may be sent to, in order of preference."""

    weights: tuple[tuple[str, float], ...]
    model: str | None
    """Requested-model override of a fallback."""
    is_fallback: bool
    on: frozenset[str] | None


class Placement(NamedTuple):
    """The answer: a candidate, or the obstacle."""

    candidate: Candidate | None
    reason: str = ""
    """predicted | weight | affinity | only | fallback | probe | pinned"""
    is_fallback: bool = False
    is_probe: bool = False
    warm_tokens: int = 0
    obstacle: str = ""
    """limit | cold | throttled | paced | exhausted | open | credential | none ..."""
    until: float = INFINITY
    outs: tuple[Out, ...] = ()


def groups_for(
    route: Route, snapshot: Snapshot, facts: CallFacts, zone: str | None
) -> tuple[Group, ...]:
    """The call's candidate groups, nested route fallbacks flattened."""
    if facts.pinned_to is not None:
        return (Group(((facts.pinned_to, 1.0),), None, is_fallback=False, on=None),)
    groups = [
        Group(route.weights.pick(zone, facts.prompt_tokens), None, is_fallback=False, on=None)
    ]
    if route.fallback:
        _add_fallbacks(groups, route, snapshot, facts, zone, depth=0)
    return tuple(groups)


def _add_fallbacks(
    groups: list[Group],
    route: Route,
    snapshot: Snapshot,
    facts: CallFacts,
    zone: str | None,
    depth: int,
) -> None:
    for fallback in route.fallback:
        if fallback.endpoint is not None:
            groups.append(
                Group(((fallback.endpoint, 1.0),), fallback.model, is_fallback=True, on=fallback.on)
            )
            continue
        target = snapshot.route_named(fallback.route) if fallback.route else None
        if target is None and fallback.model:
            target = snapshot.route_for(fallback.model, surface=facts.surface)
        if target is None or target is route:
            continue
        weights = target.weights.pick(zone, facts.prompt_tokens)
        groups.append(Group(weights, fallback.model, is_fallback=True, on=fallback.on))
        if depth < FALLBACK_DEPTH_MAX:
            _add_fallbacks(groups, target, snapshot, facts, zone, depth + 1)


def always(now: float) -> bool:
    """Yes, at any time."""
    del now
    return True


def never(now: float) -> bool:
    """No, at no time."""
    del now
    return False


class Request(NamedTuple):
    """What a call asks of placement."""

    facts: CallFacts
    route: Route
    snapshot: Snapshot
    pool: Pool
    groups: tuple[Group, ...]
    usd_per_second: float
    promised: tuple[float, float, float] | None = None
    """`TrafficClass.promised` of the call."""
    tried: frozenset[str] = frozenset()
    last_failure: str | None = None
    """Failure class of the last attempt: gates fallbacks with `on`."""
    ignore_cold: bool = False
    ignore_guesses: bool = False
    """Also endpoints that only a guess keeps out."""
    may_probe: Callable[[float], bool] = always
    """Whether the call could afford a probe that fails; asked only where one is due."""
    may_force: bool = True
    other_domain_than: str | None = None
    """A hedge's: the failure domain to stay out of."""
    min_context: int = 0


class Sole(NamedTuple):
    """The one endpoint of a route, in good health and with nothing to be weighed."""

    endpoint: Endpoint
    state: EndpointState
    breaker: Breaker
    model: str


def place_sole(world: World, facts: CallFacts, route: Route, snapshot: Snapshot) -> Sole | None:
    """The usual case at a fraction of the cost: one endpoint, and nothing to say against it.

    None: something is to be said, or there is a choice; `place` looks at everything.
    """
    state = world.states.get(route.sole or "")
    if state is None or world.blocks or facts.pinned_to is not None:
        return None
    endpoint = snapshot.endpoints[state.endpoint.id]
    model = facts.model
    if endpoint.models or endpoint.model is not None:
        model = endpoint.upstream_model(model)
    breaker = state.breakers.get(model)
    if (
        breaker is None
        or breaker.state is not State.CLOSED
        or endpoint.state != "active"
        or endpoint.profile is not None
        or endpoint.max_context_tokens is not None
        or endpoint.max_body_bytes is not None
        or state.outs
        or state.is_paced
        or state.limit.limit is not None
        or (state.inflight >= COLD_ALONE and not breaker.proven and not facts.delegated)
    ):
        return None
    return Sole(endpoint, state, breaker, model)


def place_usual(
    world: World,
    facts: CallFacts,
    route: Route,
    snapshot: Snapshot,
    pool: Pool,
    traffic: TrafficClass,
    now: float,
) -> Placement | None:
    """The same where there is a choice: a call's first attempt, with nothing to say against any of
    its route's own endpoints. Only the filter is short; the choice is that of `place`."""
    if world.blocks or facts.pinned_to is not None or now < pool.ejector.ejects_until:
        return None
    row = world.row(route.weights.pick(world.zone, facts.prompt_tokens), facts.model, snapshot)
    candidates = row.candidates
    if (
        len(candidates) < 2
        or not row.is_active
        or facts.prompt_tokens + (facts.max_output_tokens or 0) > row.window
        or facts.body_bytes > row.body_max
    ):
        return None
    cold_max = route.admission.cold_concurrency
    for c in candidates:
        state, breaker = c.state, c.breaker
        if (
            breaker.state is not State.CLOSED
            or not (breaker.proven or state.inflight + breaker.failures_in_row < cold_max)
            or state.outs
            or (state.limit.limit is not None and not state.limit.has_room(state.inflight))
            or (state.is_paced and _pace_s(state, facts, route, now) > 0)
        ):
            return None
    choice = Choice(
        route, pool, facts, traffic.usd_per_second, world.rng, traffic.promised is not None
    )
    warm = _warm(world, facts, route, now)
    _foresee(candidates, choice, traffic.promised, warm, now)
    return _among(candidates, choice, warm, now)


def place(world: World, request: Request, now: float) -> Placement:
    """Choose an endpoint for the call, or say what it must wait for."""
    outs: list[Out] = []
    first_obstacle: Placement | None = None
    for group in request.groups:
        if group.is_fallback and not _applies(group, request):
            continue
        candidates, group_outs = assess(world, request, group, now)
        outs += group_outs
        if candidates:
            return _pick(world, request, group, candidates, now)
        fleeting = [o for o in group_outs if o.reason in FLEETING]
        if fleeting and not group.is_fallback:
            # Its own endpoints are busy, not broken: a short wait beats a dearer model.
            reason = "limit" if any(o.reason == "limit" for o in fleeting) else "cold"
            return Placement(None, obstacle=reason, outs=tuple(outs))
        if fleeting and first_obstacle is None:
            first_obstacle = Placement(None, obstacle=fleeting[0].reason)
    if first_obstacle is not None:
        return first_obstacle._replace(outs=tuple(outs))
    if request.may_force:
        if any(o.reason == "cooling" for o in outs):
            return place(world, request._replace(ignore_guesses=True), now)
        forced = _force_probe(world, request, outs, now)
        if forced is not None:
            return forced
    timed = [o for o in outs if o.reason in TIMED]
    if timed:
        soonest = min(timed, key=lambda o: o.until)
        return Placement(None, obstacle=soonest.reason, until=soonest.until, outs=tuple(outs))
    obstacle = "open" if any(o.reason in ("open", "ejected") for o in outs) else "none"
    if outs and all(o.reason == "credential" for o in outs):
        obstacle = "credential"
    until = min((o.until for o in outs), default=INFINITY)
    return Placement(None, obstacle=obstacle, until=until, outs=tuple(outs))


def has_alternative(world: World, request: Request, now: float) -> bool:
    """Whether some endpoint not yet tried could take the call now."""
    return any(
        assess(world, request, group, now)[0]
        for group in request.groups
        if not group.is_fallback or _applies(group, request)
    )


def _applies(group: Group, request: Request) -> bool:
    """A fallback with `on` is for those failures; without a failure it serves when all are out."""
    return group.on is None or request.last_failure is None or request.last_failure in group.on


def assess(
    world: World, request: Request, group: Group, now: float, *, panic: bool = False
) -> tuple[list[Candidate], list[Out]]:
    """Divide a group into those that could take the call now and those that could not, with why."""
    facts, snapshot = request.facts, request.snapshot
    candidates: list[Candidate] = []
    outs: list[Out] = []
    soft: float = 0.0
    open_weight: float = 0.0
    total: float = 0.0
    for endpoint_id, weight in group.weights:
        endpoint = snapshot.endpoints.get(endpoint_id)
        if endpoint is None:
            continue
        state = world.state(endpoint)
        model = endpoint.upstream_model(group.model or facts.model)
        breaker = state.breaker(model, world.rng)
        total += weight
        out = _obstacle(world, request, endpoint, state, model, now)
        if out is None and not facts.pinned_to:
            out = _health_obstacle(request, endpoint, breaker, now, panic=panic)
            if out is not None and out.reason in ("open", "ejected"):
                open_weight += weight
                soft += weight * (out.reason == "ejected" or not breaker.is_hard)
        if out is not None:
            outs.append(out)
            continue
        candidate = Candidate(endpoint, state, breaker, model, weight)
        candidate.is_overruled = (
            panic and breaker.state is not State.CLOSED and not breaker.is_probe_due(now)
        )
        candidates.append(candidate)
    if soft and not panic and total and (total - open_weight) < PANIC_WEIGHT * total:
        return assess(world, request, group, now, panic=True)
    if candidates and not request.ignore_cold and facts.pinned_to is None:
        candidates, cold = _hold_back_cold(candidates, request)
        outs += cold
    return candidates, outs


def _obstacle(
    world: World, request: Request, endpoint: Endpoint, state: EndpointState, model: str, now: float
) -> Out | None:
    """Everything but health: the policy's word, this call's needs, capacity, cool-downs."""
    facts = request.facts
    if endpoint.state != "active" and not (endpoint.state == "draining" and facts.pinned_to):
        return Out(endpoint.id, endpoint.state, INFINITY)
    if endpoint.id in request.tried:
        return Out(endpoint.id, "tried", INFINITY)
    if request.other_domain_than is not None and (
        (endpoint.failure_domain or endpoint.id) == request.other_domain_than
    ):
        return Out(endpoint.id, "domain", INFINITY)
    window = endpoint.max_context_tokens
    if window is not None and facts.prompt_tokens + (facts.max_output_tokens or 0) > window:
        return Out(endpoint.id, "context_window", INFINITY)
    if endpoint.max_body_bytes is not None and facts.body_bytes > endpoint.max_body_bytes:
        return Out(endpoint.id, "body_size", INFINITY)
    if request.min_context and (window is None or window <= request.min_context):
        return Out(endpoint.id, "context_window", INFINITY)
    if world.blocks:
        until = world.blocked_until(endpoint)
        if now < until:
            return Out(endpoint.id, "credential", until)
    out = _kept_out(request, state, model, now) if state.outs else None
    if out is not None:
        return out
    if not state.limit.has_room(state.inflight):
        return Out(endpoint.id, "limit", INFINITY)
    if state.is_paced:
        wait = _pace_s(state, facts, request.route, now)
        if wait > 0:
            return Out(endpoint.id, "paced", now + wait)
    return None


def _pace_s(state: EndpointState, facts: CallFacts, route: Route, now: float) -> float:
    """Seconds until the endpoint's rates allow the call."""
    tokens = facts.prompt_tokens + route.expected_output_tokens
    return max(state.rpm.wait_s(now, 1.0), state.tpm.wait_s(now, tokens))


def _kept_out(request: Request, state: EndpointState, model: str, now: float) -> Out | None:
    for key in (model, on_surface(model, request.facts.surface)):
        until, reason = state.out_until(key)
        if now < until and not (request.ignore_guesses and reason in GUESSES):
            return Out(state.endpoint.id, reason, until)
    return None


def _health_obstacle(
    request: Request, endpoint: Endpoint, breaker: Breaker, now: float, *, panic: bool
) -> Out | None:
    if breaker.state is not State.CLOSED:
        due = breaker.is_probe_due(now) and request.may_probe(now)
        if not due and not (panic and not breaker.is_hard):
            return Out(endpoint.id, "open", now + breaker.open_time_s(now))
    elif not panic and request.pool.ejector.ejected_until(endpoint.id) > now:
        return Out(endpoint.id, "ejected", request.pool.ejector.ejected_until(endpoint.id))
    return None


def _hold_back_cold(
    candidates: list[Candidate], request: Request
) -> tuple[list[Candidate], list[Out]]:
    """Few attempts at endpoints that have not yet been seen to work, while there is a choice; not
    all of a burst where there is none."""
    cap = request.route.admission.cold_concurrency
    if len(candidates) == 1:
        if request.facts.delegated:
            return candidates, []
        cap = max(cap, COLD_ALONE)
    kept: list[Candidate] = []
    outs: list[Out] = []
    for c in candidates:
        # Failures count like attempts under way: the budget's start pays for `cap` of both.
        unproven = not c.breaker.proven and c.breaker.state is State.CLOSED
        if unproven and c.state.inflight + c.breaker.failures_in_row >= cap:
            outs.append(Out(c.endpoint.id, "cold", INFINITY))
        else:
            kept.append(c)
    return kept, outs


def _pick(
    world: World, request: Request, group: Group, candidates: list[Candidate], now: float
) -> Placement:
    facts, route = request.facts, request.route
    promised = request.promised
    choice = Choice(
        route, request.pool, facts, request.usd_per_second, world.rng, promised is not None
    )
    if facts.pinned_to is not None:
        return Placement(candidates[0], "pinned", is_probe=_is_probe(candidates[0]))
    warm = None
    if len(candidates) > 1:
        probe = next((c for c in candidates if _is_probe(c)), None)
        if probe is not None and request.may_probe(now):
            return Placement(probe, "probe", group.is_fallback, is_probe=True)
        usual = [c for c in candidates if not _is_probe(c)]
        candidates = usual or candidates
        warm = _warm(world, facts, route, now)
        _foresee(candidates, choice, promised, warm, now)
    return _among(candidates, choice, warm, now, is_fallback=group.is_fallback)


def _foresee(
    candidates: list[Candidate],
    choice: Choice,
    promised: tuple[float, float, float] | None,
    warm: Warm | None,
    now: float,
) -> None:
    """Fill in what the candidates are expected to take and cost, as far as it counts."""
    route, facts = choice.route, choice.facts
    if _compares(choice):
        for c in candidates:
            expect(c, facts, route, choice.pool, warm, now)
    if promised is not None:
        for c in candidates:
            c.excess = excess(c, facts, route, warm, promised, now)


def _compares(choice: Choice) -> bool:
    """Whether it counts what the call is expected to take and cost at each candidate."""
    return choice.usd_per_second > 0 or choice.route.selection.algorithm in NEEDS_EXPECTATION


def _among(
    candidates: list[Candidate],
    choice: Choice,
    warm: Warm | None,
    now: float,
    *,
    is_fallback: bool = False,
) -> Placement:
    """Choose one of those that may take the call."""
    route, pool, facts = choice.route, choice.pool, choice.facts
    algorithm, only = route.selection.algorithm, len(candidates) == 1
    if warm is not None and not only:
        kept = next((c for c in candidates if c.endpoint.id == warm.endpoint_id), None)
        if kept is not None:
            weigh(candidates, choice, now)
            expect_latency(kept, facts, route, pool, warm, now)
            is_kept = kept.excess <= 1.0 or not choice.is_promised
            if is_kept and may_stay_warm(kept, candidates, choice):
                return Placement(kept, "affinity", is_fallback, warm_tokens=warm.tokens)
    chosen = choose(candidates, choice, now)
    if not _compares(choice):
        if chosen.endpoint.plan is not None:
            expect_latency(chosen, facts, route, pool, warm, now)
        else:
            chosen.expected_s = None
    reason = "fallback" if is_fallback else "only" if only else "weight"
    if not only and algorithm == "min_cost":
        reason = "predicted"
    warm_tokens = warm.tokens if warm is not None and warm.endpoint_id == chosen.endpoint.id else 0
    return Placement(chosen, reason, is_fallback, _is_probe(chosen), warm_tokens)


def _warm(world: World, facts: CallFacts, route: Route, now: float) -> Warm | None:
    affinity = route.affinity
    if not affinity.key or (facts.session is None and not facts.prefix):
        return None
    return world.affinity.find(
        facts.model,
        facts.session,
        facts.prefix,
        ttl_s=affinity.ttl_s,
        min_tokens=affinity.min_prefix_tokens,
        keys=affinity.key,
        now=now,
    )


def _is_probe(candidate: Candidate) -> bool:
    return candidate.breaker.state is not State.CLOSED and not candidate.is_overruled


def _force_probe(world: World, request: Request, outs: list[Out], now: float) -> Placement | None:
    """Nothing is left: one leased probe at the endpoint that would reopen first.

    A sole endpoint is thus never refused for a whole open period, which a plain client would not
    do either; but while it is failing only one call at a time pays for finding out.
    """
    fallbacks = {e: g for g in reversed(request.groups) for e, _ in g.weights}
    for out in sorted((o for o in outs if o.reason in ("open", "ejected")), key=lambda o: o.until):
        endpoint = request.snapshot.endpoints[out.endpoint_id]
        group = fallbacks[out.endpoint_id]
        state = world.states[out.endpoint_id]
        model = endpoint.upstream_model(group.model or request.facts.model)
        breaker = state.breaker(model, world.rng)
        if breaker.state is State.CLOSED or breaker.can_force(now):
            candidate = Candidate(endpoint, state, breaker, model, 1.0)
            is_probe = breaker.state is not State.CLOSED
            return Placement(candidate, "probe", group.is_fallback, is_probe=is_probe)
    quarantined = [o for o in outs if o.reason in ("credential", "not_found")]
    for out in quarantined:
        endpoint = request.snapshot.endpoints[out.endpoint_id]
        is_blocked = out.reason == "credential"
        if is_blocked and world.blocks[credential_key(endpoint)].reason != "auth":
            continue  # an exhausted quota is a fact, not a suspicion: never tried early
        group = fallbacks[out.endpoint_id]
        model = endpoint.upstream_model(group.model or request.facts.model)
        state = world.states[out.endpoint_id]
        candidate = Candidate(endpoint, state, state.breaker(model, world.rng), model, 1.0)
        if candidate.breaker.state is State.CLOSED or candidate.breaker.can_force(now):
            return Placement(candidate, "only", group.is_fallback, is_probe=_is_probe(candidate))
    return None
