"""Learning: what the end of an attempt teaches about its endpoint, credential, pool and prompt.

Three-way by design: good, bad, or nothing. A cancelled call or a lost hedge passes through here and
changes nothing but the in-flight count.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.core.backoff import is_turned_away, throttle_s, usable_hint, widen_hint
from headway.core.breaker import Breaker, Permit, State
from headway.core.eject import PEERS_MIN
from headway.core.expect import planned_latency_s
from headway.core.model import (
    INFINITY,
    OVERLOAD,
    TRAITS,
    Attempt,
    Blame,
    BreakerChanged,
    CallFacts,
    CredentialBlocked,
    EndpointThrottled,
    Event,
    FailureClass,
    Health,
    LimitChanged,
    Outcome,
)
from headway.core.snapshot import Plan, Route
from headway.core.state import EndpointState, Pool, on_surface
from headway.core.world import Block, World, credential_key

QUOTA_BLOCK_S = 300.0
AUTH_BLOCK_S = 60.0
NOT_FOUND_S = 60.0
MODEL_NOT_FOUND = "model_not_found"
"""The error type of a reply that names the model or the deployment as what is missing."""
SLOW_VS_P99 = 2.0
SLOW_VS_MEAN = 5.0
"""A first token later than this, against its profile, is soft evidence of trouble."""
SOFT_BADNESS = 0.5

Emit = Callable[[Event], None]


def first_token(
    world: World,
    facts: CallFacts,
    pool: Pool,
    attempt: Attempt,
    since: float,
    now: float,
    emit: Emit,
) -> None:
    """The attempt's first content arrived: the endpoint works, and a probe has its answer.

    `since`: when the first of the attempts then running began. The hedge delay is learned from that
    wait: by the hedges' own first tokens the slow calls would be missing from what is normal, and
    the delay would shrink until the budget is gone on calls that need no hedge.
    """
    state = world.states.get(attempt.endpoint_id)
    if state is None:
        return
    pool.observe_ttft(now - since, facts.prompt_tokens)
    breaker = state.breaker(attempt.model, world.rng)
    breaker.proven = breaker.proven or breaker.state is State.CLOSED
    if world.blocks:
        world.end_trial(state.endpoint, attempt.started_at, now, ok=True)
    if attempt.is_probe:
        before = breaker.state
        permit = Permit(attempt.permit, attempt.is_probe)
        breaker.record(permit, Health.GOOD, attempt.started_at, now)
        if breaker.state is not before:
            _report_breaker(state, attempt.model, breaker, before, now, emit)


def settle(
    world: World,
    facts: CallFacts,
    route: Route,
    pool: Pool,
    attempt: Attempt,
    outcome: Outcome,
    now: float,
    emit: Emit,
) -> None:
    """End an attempt, and fold it into what this process knows."""
    state = world.states.get(attempt.endpoint_id)
    if state is None:
        attempt.ended = True
        return
    breaker = state.breakers.get(attempt.model) or state.breaker(attempt.model, world.rng)
    before = breaker.state
    inflight = state.inflight
    # One statement without a call: no interrupt comes between. It is zero in a forked child, which
    # ends what only its parent counted.
    attempt.ended, state.inflight = True, inflight - 1 if inflight else 0
    kind = outcome.kind
    is_good = kind is FailureClass.OK
    if world.blocks and TRAITS[kind].blame is not Blame.CREDENTIAL:
        ok = is_good and not attempt.lost
        world.end_trial(state.endpoint, attempt.started_at, now, ok=ok)
    if attempt.lost or outcome.free_retry or kind is FailureClass.CANCELLED:
        breaker.release(Permit(attempt.permit, attempt.is_probe))
    elif is_good:
        _learn_success(world, facts, route, pool, state, attempt, outcome, inflight, now)
        _record_success(pool, state, attempt, breaker, now)
        if len(route.endpoint_ids) >= PEERS_MIN:
            pool.ejector.record(attempt.endpoint_id, ok=True)
        if outcome.retry_after_s is not None:
            _exhausted(state, attempt, outcome.retry_after_s, now, emit)
    else:
        _learn_failure(world, facts, pool, state, attempt, outcome, inflight, now, emit)
        permit = Permit(attempt.permit, attempt.is_probe)
        health = outcome.health
        if health is Health.NOTHING:
            breaker.release(permit)
        elif _is_only_a_request_to_wait(outcome, route, breaker) and not attempt.is_probe:
            pass  # the cool-down is the whole answer; a server that paces us is healthy
        else:
            breaker.record(permit, health, attempt.started_at, now)
    if breaker.state is not before:
        _report_breaker(state, attempt.model, breaker, before, now, emit)


def _record_success(
    pool: Pool, state: EndpointState, attempt: Attempt, breaker: Breaker, now: float
) -> None:
    plan = state.endpoint.plan
    if plan is not None and _was_slow(plan, pool, attempt):
        breaker.record_slow(Permit(attempt.permit, attempt.is_probe), now)
        state.blame(SOFT_BADNESS, now)
    elif breaker.state is not State.CLOSED:
        permit = Permit(attempt.permit, attempt.is_probe)
        breaker.record(permit, Health.GOOD, attempt.started_at, now)
    elif attempt.permit == breaker.generation:
        breaker.record_good(now)


def _learn_success(
    world: World,
    facts: CallFacts,
    route: Route,
    pool: Pool,
    state: EndpointState,
    attempt: Attempt,
    outcome: Outcome,
    inflight: int,
    now: float,
) -> None:
    seconds = now - attempt.started_at
    state.throttles_in_row = 0
    state.last_success_at = now
    if state.outs:
        state.served(attempt.model, now)
        state.served(on_surface(attempt.model, facts.surface), now)
    state.call_time_s += 0.1 * (seconds - state.call_time_s)
    if state.limit.limit is not None:
        state.limit.on_success(inflight, now)
    output = outcome.output_tokens or 0
    uncached = attempt.planned_uncached_tokens
    if outcome.input_tokens is not None and outcome.cached_tokens is not None:
        uncached = max(0, outcome.input_tokens - outcome.cached_tokens)
    if route.sole is None or state.endpoint.profile is not None:
        # Alone and without a plan it could only be compared with itself.
        planned = planned_latency_s(state.endpoint, pool, uncached, output)
        pool.observe_call(seconds, output)
        state.observe_latency(seconds, planned if planned is not None else seconds, now)
    elif outcome.output_tokens is not None:
        pool.observe_call(seconds, output)
    if route.affinity.key and (facts.session is not None or facts.prefix):
        world.affinity.remember(
            facts.model,
            facts.session,
            facts.prefix,
            facts.prompt_tokens,
            attempt.endpoint_id,
            now,
        )
    if state.is_paced and outcome.input_tokens is not None:
        estimated = facts.prompt_tokens + route.expected_output_tokens
        state.tpm.charge(outcome.input_tokens + output - estimated, now)


def _exhausted(
    state: EndpointState, attempt: Attempt, reset_s: float, now: float, emit: Emit
) -> None:
    """The answer said that it was the last until then: the next call need not be refused first."""
    hint = usable_hint(reset_s)
    if hint is not None:
        state.put_out(attempt.model, now + hint, "exhausted", now)
        emit(EndpointThrottled(attempt.endpoint_id, attempt.model, now + hint, now))


def _was_slow(plan: Plan, pool: Pool, attempt: Attempt) -> bool:
    """Whether the first token came far later than planned, and later than the pool's others do."""
    if attempt.first_token_at is None:
        return False
    ttft = attempt.first_token_at - attempt.started_at
    planned = plan.ttft_of(attempt.planned_uncached_tokens) + plan.rtt_s
    bound = SLOW_VS_MEAN * planned
    if plan.ttft_p99_s is not None:
        bound = max(SLOW_VS_P99 * plan.ttft_p99_s, 2.0 * planned)
    usual = max(1.0, pool.ttft_ratio)
    pool.observe_ttft_ratio(ttft / planned)
    return ttft > bound * usual


def _is_only_a_request_to_wait(outcome: Outcome, route: Route, breaker: Breaker) -> bool:
    if outcome.kind is not FailureClass.RATE_LIMITED:
        return False
    # Where there is no other endpoint a breaker would only turn its 429s into refusals of ours.
    return route.sole is not None or (
        breaker.proven and usable_hint(outcome.retry_after_s) is not None
    )


def _learn_failure(
    world: World,
    facts: CallFacts,
    pool: Pool,
    state: EndpointState,
    attempt: Attempt,
    outcome: Outcome,
    inflight: int,
    now: float,
    emit: Emit,
) -> None:
    kind = outcome.kind
    health = outcome.health
    hint = usable_hint(outcome.retry_after_s)
    if kind is FailureClass.QUOTA_EXHAUSTED:
        _block_credential(world, state, QUOTA_BLOCK_S, hint, "quota_exhausted", now, emit)
    elif kind is FailureClass.AUTH and not facts.delegated:
        _block_credential(world, state, AUTH_BLOCK_S, None, "auth", now, emit)
    elif kind is FailureClass.NOT_FOUND and not facts.delegated:
        # A path that isn't served says nothing about the model's other surfaces.
        is_model = outcome.error_type == MODEL_NOT_FOUND
        missing = attempt.model if is_model else on_surface(attempt.model, facts.surface)
        state.put_out(missing, now + NOT_FOUND_S, "not_found", now)
    elif kind is FailureClass.RATE_LIMITED or (health is not Health.NOTHING and hint is not None):
        _cool_down(world, facts, state, attempt, hint, now, emit)
    # Soft: the caller's own deadline was short. That says nothing of what the endpoint carries.
    if kind in OVERLOAD and not outcome.soft:
        changed = (
            state.limit.on_refused(inflight - 1, now)
            if is_turned_away(outcome)
            else state.limit.on_overload(inflight, state.call_time_s, now)
        )
        if changed:
            limit = state.limit.limit
            emit(LimitChanged(attempt.endpoint_id, INFINITY if limit is None else limit, now))
    if health is not Health.NOTHING:
        state.blame(1.0 if health is Health.HARD else SOFT_BADNESS, now)
        pool.ejector.record(attempt.endpoint_id, ok=False)


def _cool_down(
    world: World,
    facts: CallFacts,
    state: EndpointState,
    attempt: Attempt,
    hint: float | None,
    now: float,
    emit: Emit,
) -> None:
    if hint is None:
        wait = throttle_s(state.throttles_in_row, world.rng)
        state.throttles_in_row += 1
    elif facts.delegated:
        wait = hint  # the SDK sleeps exactly the hint; a wider wait here would only add to it
    else:
        wait = widen_hint(hint, world.rng)
    state.put_out(attempt.model, now + wait, "cooling" if hint is None else "throttled", now)
    emit(EndpointThrottled(attempt.endpoint_id, attempt.model, now + wait, now))


def _block_credential(
    world: World,
    state: EndpointState,
    seconds: float,
    hint: float | None,
    reason: str,
    now: float,
    emit: Emit,
) -> None:
    # Jittered upwards only: a fleet sharing one account must not return as one wave, nor early.
    until = now + max(seconds, hint or 0.0) * (1.0 + 0.2 * world.rng.random())
    key = credential_key(state.endpoint)
    world.blocks[key] = Block(until, reason, now)
    emit(CredentialBlocked(key, state.endpoint.id, reason, until, now))


def _report_breaker(
    state: EndpointState, model: str, breaker: Breaker, before: State, now: float, emit: Emit
) -> None:
    emit(
        BreakerChanged(
            state.endpoint.id,
            model,
            before.value,
            breaker.state.value,
            breaker.reason,
            breaker.open_until,
            now,
        )
    )
