"""Opening an attempt: the permit, the limits it runs under, and what it is charged.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from headway.core.breaker import State
from headway.core.fleet import FleetGate
from headway.core.model import INFINITY, Attempt, AttemptKind, CallFacts
from headway.core.place import Placement, Sole
from headway.core.retry import Scheduled
from headway.core.select import Candidate, Out
from headway.core.snapshot import Route
from headway.core.world import World

PROBE_LEASE_S = 30.0
"""A probe that has shown nothing for this long gives its place to the next."""
GENERATION_ALLOWANCE = 3.0
"""A call that is not streamed shows its first token with its last: it may take this many times the
expected whole before it counts as late."""


def open_attempt(
    placement: Placement,
    candidate: Candidate,
    facts: CallFacts,
    route: Route,
    *,
    number: int,
    kind: AttemptKind,
    backoff_s: float,
    deadline_at: float,
    now: float,
) -> Attempt:
    """Take the permit, charge the endpoint's rates, and describe the attempt for the driver.

    Whoever makes it known as outstanding counts it in, too (`EndpointState.inflight`).
    """
    breaker, state = candidate.breaker, candidate.state
    if breaker.state is State.CLOSED:
        breaker_state, generation, is_probe = "closed", breaker.generation, False
    else:
        lease_s = min(PROBE_LEASE_S, route.deadline.ttft_s)
        permit = breaker.acquire(now, lease_s=lease_s, force=placement.is_probe)
        # A pinned call goes where its object lives, beside a running probe if need be. The permit
        # is of no generation then: its result settles nothing.
        generation, is_probe = permit if permit is not None else (-1, False)
        breaker_state = breaker.state.value
    limit_s = first_token_limit_s(candidate, facts, route)
    if state.is_paced:
        state.rpm.charge(1.0, now)
        state.tpm.charge(facts.prompt_tokens + route.expected_output_tokens, now)
    return Attempt(
        facts.resend + number,
        AttemptKind.RETRY if facts.resend and kind is AttemptKind.INITIAL else kind,
        candidate.endpoint.id,
        candidate.model,
        now,
        deadline_at,
        min(deadline_at, now + limit_s),
        route.deadline.idle_s,
        placement.reason,
        candidate.expected_s,
        backoff_s,
        breaker_state,
        generation,
        is_probe,
        planned_uncached_tokens=max(0, facts.prompt_tokens - placement.warm_tokens),
    )


def open_sole(
    sole: Sole, facts: CallFacts, route: Route, *, deadline_at: float, now: float
) -> Attempt:
    """The same for a call's first attempt at its route's one endpoint, which is in good health."""
    deadline = route.deadline
    limit_s = deadline.ttft_s if facts.stream else INFINITY
    late_at = now + limit_s
    return Attempt(
        facts.resend + 1,
        AttemptKind.RETRY if facts.resend else AttemptKind.INITIAL,
        sole.endpoint.id,
        sole.model,
        now,
        deadline_at,
        min(deadline_at, late_at),
        deadline.idle_s,
        permit=sole.breaker.generation,
        planned_uncached_tokens=facts.prompt_tokens,
    )


def miss(world: World, facts: CallFacts, route: Route, outs: tuple[Out, ...], now: float) -> None:
    """A call waits for rates that its fleet shares: borrow for it, too."""
    for out in outs:
        state = world.states.get(out.endpoint_id) if out.reason == "paced" else None
        if state is not None and isinstance(state.rpm, FleetGate):
            state.rpm.miss(1.0, now)
        if state is not None and isinstance(state.tpm, FleetGate):
            state.tpm.miss(facts.prompt_tokens + route.expected_output_tokens, now)


def cannot_finish(
    placement: Placement, candidate: Candidate, facts: CallFacts, deadline_at: float, now: float
) -> bool:
    """Whether the profile says that no first token can come before the deadline."""
    endpoint = candidate.endpoint
    if deadline_at == INFINITY or endpoint.plan is None:
        return False
    ttft = endpoint.plan.ttft_of(max(0, facts.prompt_tokens - placement.warm_tokens))
    return deadline_at - now < ttft + endpoint.rtt_s


def first_token_limit_s(candidate: Candidate, facts: CallFacts, route: Route) -> float:
    """Seconds the attempt may take to show its first token; INFINITY without a limit."""
    limit = route.deadline.ttft_s
    if facts.stream or limit == INFINITY:
        return limit
    if candidate.endpoint.profile is None or candidate.expected_s is None:
        return INFINITY
    return limit + GENERATION_ALLOWANCE * candidate.expected_s


def kind_of(scheduled: Scheduled, placement: Placement) -> AttemptKind:
    """Why the attempt is made."""
    if placement.is_fallback:
        return AttemptKind.FALLBACK
    if scheduled.kind is AttemptKind.INITIAL and placement.is_probe:
        return AttemptKind.PROBE
    return scheduled.kind
