"""One logical call: which attempt next, when, and when to stop.

    next_action ──▶ Send ──▶ (driver sends) ──▶ on_first_token / on_outcome ──▶ next_action ──▶ ...
                ──▶ Wait (backoff, queue, throttled, hedge, running)
                ──▶ Finish(attempt)        surface what that attempt brought
                ──▶ Finish(None, rejection) refuse

A driver performs the actions and reports what happened; it decides nothing. Until an attempt shows
its first content token the call may still move; from then on that attempt is the answer, and its end
is the call's end. Several attempts are outstanding at once only when a hedge runs.

Deterministic: time and chance come in through `now` and the world's random source. Every public
method takes the engine's lock once and delivers events after releasing it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headway.core.admission import Ticket
from headway.core.backoff import FAILOVER_JITTER_S, HINT_WAIT_MAX_S, backoff_s, usable_hint
from headway.core.breaker import Permit
from headway.core.model import (
    CANCELLED,
    INFINITY,
    TRAITS,
    Action,
    Attempt,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    BudgetExhausted,
    CallDequeued,
    CallEnded,
    CallFacts,
    CallQueued,
    CallRejected,
    Event,
    FailureClass,
    Finish,
    FirstToken,
    Lock,
    Outcome,
    Rejection,
    RetryDenied,
    Send,
    Sink,
    Wait,
    Waker,
)
from headway.core.place import (
    FLEETING,
    TIMED,
    Placement,
    Request,
    World,
    expected_output,
    groups_for,
    has_alternative,
    place,
)
from headway.core.settle import first_token, settle
from headway.core.snapshot import Route, Snapshot, TrafficClass
from headway.core.state import Pool

ATTEMPTS_DEFAULT = 3
FREE_RETRIES_MAX = 2
PROBE_LEASE_S = 30.0
PROBE_DEADLINE_SHARE = 0.5
"""A call probes only with this much of its deadline left: it may have to go elsewhere after."""
COLD_QUEUE_MAX = 1024
"""Waiters for the first sign of life at a cold start; beyond it they go ahead unproven."""
QUEUE_DEADLINE_SHARE = 0.1


class Host(Protocol):
    """What a call needs of the engine."""

    world: World
    lock: Lock

    def emit(self, sink: Sink | None, event: Event) -> None:
        """Queue an event for delivery after the lock is released."""
        ...

    def wake(self, waker: Waker) -> None:
        """Queue a wake-up for delivery after the lock is released."""
        ...

    def flush(self) -> None:
        """Deliver queued events and wake-ups; call without the lock."""
        ...

    def wake_next(self, pool: Pool, now: float) -> None:
        """Let the next waiter of the pool try again."""
        ...

    def park(self, ticket: Ticket, call: Call) -> None:
        """Remember which call a ticket belongs to."""
        ...

    def unpark(self, ticket: Ticket) -> None:
        """Forget a ticket."""
        ...


class _Next(NamedTuple):
    """A scheduled attempt; its budget token is already taken."""

    at: float
    kind: AttemptKind
    backoff_s: float
    paid: bool


_SENT = _Next(-INFINITY, AttemptKind.RETRY, 0.0, paid=False)


class Call:
    """The state machine of one call. Made by `Engine.begin`; used by one driver."""

    __slots__ = (
        "_cold_ok",
        "_committed",
        "_counted",
        "_deadline_at",
        "_ended",
        "_failovers",
        "_finish",
        "_free_retries",
        "_groups",
        "_host",
        "_is_expired",
        "_last",
        "_last_kind",
        "_min_context",
        "_next_up",
        "_pool",
        "_retries",
        "_sink",
        "_ticket",
        "_traffic",
        "_tried",
        "_waker",
        "attempts",
        "facts",
        "id",
        "retry_granted",
        "route",
        "running",
        "snapshot",
    )

    def __init__(
        self,
        host: Host,
        call_id: int,
        facts: CallFacts,
        route: Route,
        snapshot: Snapshot,
        pool: Pool,
        sink: Sink | None,
        now: float,
        *,
        is_expired: bool = False,
    ) -> None:
        self.id = call_id
        self.facts = facts
        self.route = route
        self.snapshot = snapshot
        self.attempts = 0
        self.running: list[Attempt] = []
        self.retry_granted = False
        self._host = host
        self._pool = pool
        self._sink = sink
        self._traffic = snapshot.classes.get(facts.traffic_class or "", TrafficClass())
        self._deadline_at = min(facts.deadline_at, now + route.deadline.total_s)
        self._groups = groups_for(route, snapshot, facts, host.world.zone)
        self._next_up = _Next(now, AttemptKind.INITIAL, 0.0, paid=False)
        self._finish: Finish | None = None
        self._committed: Attempt | None = None
        self._last: Attempt | None = None
        self._last_kind: FailureClass | None = None
        self._tried: frozenset[str] = frozenset()
        self._min_context = 0
        self._retries = 0
        self._failovers = 0
        self._free_retries = 0
        self._ticket: Ticket | None = None
        self._cold_ok = False
        self._is_expired = is_expired
        self._counted = 0
        self._waker: Waker | None = None
        self._ended = False
        pool.inflight += 1

    @property
    def deadline_at(self) -> float:
        """The call's absolute deadline: its own, its task's and its route's, whichever is first."""
        return self._deadline_at

    # -- the driver's side

    def next_action(self, now: float) -> Action:
        """What to do now. Idempotent between reports."""
        with self._host.lock:
            action = self._next(now)
        self._host.flush()
        return action

    def on_first_token(self, attempt: Attempt, now: float) -> bool:
        """The first content token of a stream arrived. True: the attempt is the answer.

        False: it lost to another attempt; close it and report CANCELLED.
        """
        with self._host.lock:
            won = self._commit(attempt, now)
        self._host.flush()
        return won

    def on_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """An attempt ended. Only the first report counts."""
        with self._host.lock:
            if not attempt.ended:
                self._end_attempt(attempt, outcome, now)
        self._host.flush()

    def cancel(self, now: float) -> None:
        """The caller gave up: everything outstanding ends as cancelled and teaches nothing."""
        with self._host.lock:
            self._abandon(now)
        self._host.flush()

    def set_waker(self, waker: Waker | None) -> bool:
        """Ask to be woken when a queue place comes up; True: it already has."""
        with self._host.lock:
            self._waker = waker
            ticket = self._ticket
            return ticket is not None and (ticket.granted or ticket.evicted)

    def wake(self) -> None:
        """For the engine: hand the waker over for delivery."""
        if self._waker is not None:
            self._host.wake(self._waker)

    # -- deciding (all below: under the lock)

    def _next(self, now: float) -> Action:
        if self._finish is not None:
            return self._finish
        if self.running:
            return self._beside_running(now)
        if now >= self._deadline_at:
            return self._give_up(Rejection("deadline"), now)
        if self._is_expired:
            return self._give_up(Rejection("policy_expired"), now)
        if now < self._next_up.at:
            return Wait(min(self._next_up.at, self._deadline_at), "backoff")
        if self._ticket is not None and not self._ticket.granted:
            if self._ticket.evicted:
                return self._leave_queue_refused("queue_full", now)
            if now < self._ticket.expires_at:
                return Wait(self._ticket.expires_at, "queue")
        return self._launch(now)

    def _launch(self, now: float) -> Action:
        queue = self._pool.queue
        if self._ticket is None and len(queue) and queue.must_wait_behind(self.facts.priority):
            return self._enqueue("limit", now)
        placement = place(self._host.world, self._request(now), now)
        if placement.candidate is None and self._tried and self._may_stay():
            placement = place(self._host.world, self._request(now, retry_same=True), now)
        if placement.candidate is not None:
            return self._send(placement, now)
        return self._face(placement, now)

    def _may_stay(self) -> bool:
        return self._last_kind is None or TRAITS[self._last_kind].retry_here

    def _request(
        self, now: float, *, retry_same: bool = False, hedge_of: Attempt | None = None
    ) -> Request:
        remaining = self._deadline_at - now
        budgeted = self._next_up.paid or self._pool.budget.can_withdraw(now)
        domain = None
        if hedge_of is not None:
            endpoint = self.snapshot.endpoints[hedge_of.endpoint_id]
            domain = endpoint.failure_domain or endpoint.id
        return Request(
            self.facts,
            self.route,
            self.snapshot,
            self._pool,
            self._groups,
            self._traffic.usd_per_second,
            self._traffic.ttft_slo_s,
            tried=frozenset() if retry_same else self._tried,
            last_failure=self._last_kind.value if self._last_kind else None,
            ignore_cold=self._cold_ok,
            may_probe=budgeted
            and hedge_of is None
            and (remaining == INFINITY or remaining > PROBE_DEADLINE_SHARE * self._full_time()),
            may_force=hedge_of is None,
            other_domain_than=domain,
            min_context=self._min_context,
        )

    def _full_time(self) -> float:
        total = self.route.deadline.total_s
        return total if total != INFINITY else 0.0

    def _send(self, placement: Placement, now: float, kind: AttemptKind | None = None) -> Action:
        candidate = placement.candidate
        assert candidate is not None
        planned = candidate.expected_s
        if kind is None and self._cannot_finish(planned, placement, now):
            return self._give_up(Rejection("deadline"), now)
        permit = candidate.breaker.acquire(now, lease_s=self._lease_s(), force=placement.is_probe)
        if permit is None:
            # A pinned call goes where its object lives, beside a running probe if need be. The
            # permit is of no generation: its result settles nothing.
            permit = Permit(-1, is_probe=False)
        self._leave_queue(now)
        self.attempts += 1
        self._counted += 1
        if kind is None:
            kind = self._kind_of(placement)
        ttft_s = self._first_token_limit_s(candidate.endpoint.profile is not None, planned)
        attempt = Attempt(
            number=self.attempts,
            kind=kind,
            endpoint_id=candidate.endpoint.id,
            model=candidate.model,
            started_at=now,
            deadline_at=self._deadline_at,
            first_token_by=min(self._deadline_at, now + ttft_s),
            idle_s=self.route.deadline.idle_s,
            reason=placement.reason,
            predicted_s=planned,
            backoff_s=self._next_up.backoff_s,
            breaker_state=candidate.breaker.state.value,
            permit=permit.generation,
            is_probe=permit.is_probe,
            planned_uncached_tokens=max(0, self.facts.prompt_tokens - placement.warm_tokens),
        )
        self._next_up = _SENT
        state = candidate.state
        state.inflight += 1
        state.rpm.charge(1.0, now)
        state.tpm.charge(self.facts.prompt_tokens + self.route.expected_output_tokens, now)
        self.running.append(attempt)
        if attempt.number == 1 and self._may_hedge():
            self._pool.hedges.deposit()
        self._host.emit(self._sink, AttemptStarted(self.id, attempt, now))
        return Send(attempt)

    def _kind_of(self, placement: Placement) -> AttemptKind:
        if self._next_up.kind is AttemptKind.INITIAL:
            if placement.is_probe:
                return AttemptKind.PROBE
            return AttemptKind.FALLBACK if placement.is_fallback else AttemptKind.INITIAL
        return AttemptKind.FALLBACK if placement.is_fallback else self._next_up.kind

    def _cannot_finish(self, planned: float | None, placement: Placement, now: float) -> bool:
        """Nothing starts that can't show a first token before its deadline."""
        candidate = placement.candidate
        if candidate is None or self._deadline_at == INFINITY or planned is None:
            return False
        profile = candidate.endpoint.profile
        if profile is None:
            return False
        uncached = max(0, self.facts.prompt_tokens - placement.warm_tokens)
        ttft = profile.predict_ttft_s(candidate.endpoint.planned_load, uncached)
        return self._deadline_at - now < ttft + candidate.endpoint.rtt_s

    def _first_token_limit_s(self, has_profile: bool, planned: float | None) -> float:
        limit = self.route.deadline.ttft_s
        if self.facts.stream or limit == INFINITY:
            return limit
        # A call that is not streamed shows its first token with its last: allow for generation.
        if not has_profile or planned is None:
            return INFINITY
        return limit + 3.0 * planned

    def _lease_s(self) -> float:
        return min(PROBE_LEASE_S, self.route.deadline.ttft_s)

    # -- waiting

    def _face(self, placement: Placement, now: float) -> Action:
        obstacle = placement.obstacle
        if obstacle in FLEETING:
            return self._enqueue(obstacle, now)
        if obstacle in TIMED:
            wait = placement.until - now
            if wait <= HINT_WAIT_MAX_S and placement.until < self._deadline_at:
                self._leave_queue(now)
                return Wait(placement.until, "throttled")
        elif obstacle == "open" and self._last is None and self._ticket is None:
            return self._enqueue("cold", now)  # someone else is probing: its answer comes soon
        if self._last is not None:
            return self._surface(self._last, "breaker", now)
        detail = tuple(
            (out.endpoint_id, out.reason, max(0.0, out.until - now)) for out in placement.outs
        )
        after = min((d[2] for d in detail if d[2] > 0), default=INFINITY)
        reason = {"throttled": "throttled", "paced": "throttled", "credential": "quota"}.get(
            obstacle, "no_endpoint"
        )
        return self._give_up(Rejection(reason, after if after != INFINITY else None, detail), now)

    def _enqueue(self, obstacle: str, now: float) -> Action:
        ticket, queue = self._ticket, self._pool.queue
        is_cold = obstacle == "cold"
        if ticket is not None:
            if now >= ticket.expires_at:
                return self._waited_long_enough(is_cold=is_cold, now=now)
            ticket.granted = False
            return Wait(ticket.expires_at, "queue")
        admission = self.route.admission
        limit = min(admission.queue_timeout_s, QUEUE_DEADLINE_SHARE * (self._deadline_at - now))
        ticket = Ticket(
            self.facts.priority, self.facts.task_id, now, now + limit, self._traffic.sheddable
        )
        admitted, evicted = queue.offer(ticket, COLD_QUEUE_MAX if is_cold else admission.max_queue)
        if not admitted or limit <= 0:
            queue.leave(ticket)
            return self._waited_long_enough(is_cold=is_cold, now=now, reason="queue_full")
        self._ticket = ticket
        self._host.park(ticket, self)
        if evicted is not None:
            self._host.unpark(evicted)
        self._host.emit(self._sink, CallQueued(self.id, self.facts.priority, obstacle, now))
        return Wait(ticket.expires_at, "queue")

    def _waited_long_enough(
        self, *, is_cold: bool, now: float, reason: str = "queue_wait"
    ) -> Action:
        if is_cold and not self._cold_ok:
            # Holding back was a courtesy to a cold start, never a reason to refuse anyone.
            self._leave_queue(now)
            self._cold_ok = True
            return self._launch(now)
        fallbacks = tuple(g for g in self._groups if g.is_fallback)
        if fallbacks and len(fallbacks) < len(self._groups):
            self._leave_queue(now)
            self._groups = fallbacks
            return self._launch(now)
        return self._leave_queue_refused(reason, now)

    def _leave_queue(self, now: float) -> None:
        ticket = self._ticket
        if ticket is None:
            return
        self._ticket = None
        self._pool.queue.leave(ticket)
        self._host.unpark(ticket)
        wait = now - ticket.enqueued_at
        self._host.emit(self._sink, CallDequeued(self.id, ticket.priority, wait, now))
        self._host.wake_next(self._pool, now)

    def _leave_queue_refused(self, reason: str, now: float) -> Action:
        self._leave_queue(now)
        if self._last is not None:
            return self._surface(self._last, "breaker", now)
        return self._give_up(Rejection(reason, self.route.admission.queue_timeout_s), now)

    # -- hedging

    def _may_hedge(self) -> bool:
        facts = self.facts
        if facts.hedge is False or not facts.repeatable or facts.pinned_to or facts.delegated:
            return False
        return self.route.hedge.enabled or facts.hedge is True

    def _beside_running(self, now: float) -> Action:
        first = self.running[0]
        if len(self.running) > 1 or self._counted >= self._attempts_max() or not self._may_hedge():
            return Wait(first.first_token_by, "running")
        delay = self.route.hedge.delay_s
        if delay is None:
            delay = self._pool.hedge_delay_s(self.facts.prompt_tokens)
        if delay is None:
            return Wait(first.first_token_by, "running")
        at = first.started_at + delay
        if now < at:
            return Wait(min(at, first.first_token_by), "hedge")
        budget, hedges = self._pool.budget, self._pool.hedges
        if not (hedges.can_withdraw() and budget.can_withdraw(now)) or self._task_budget_spent():
            return Wait(first.first_token_by, "running")
        placement = place(self._host.world, self._request(now, hedge_of=first), now)
        if placement.candidate is None or placement.is_probe:
            return Wait(first.first_token_by, "running")
        hedges.withdraw()
        budget.withdraw(now)
        return self._send(placement, now, kind=AttemptKind.HEDGE)

    # -- reports

    def _commit(self, attempt: Attempt, now: float) -> bool:
        if attempt.lost or attempt.ended or self._ended:
            return False
        if self._committed is not None:
            return self._committed is attempt
        attempt.first_token_at = now
        self._committed = attempt
        self._finish = Finish(attempt)
        first_token(self._host.world, self.facts, self._pool, attempt, now, self._emit_engine)
        ttft = now - attempt.started_at
        self._host.emit(self._sink, FirstToken(self.id, attempt, ttft, now))
        self._lose_others(attempt)
        self._host.wake_next(self._pool, now)
        return True

    def _lose_others(self, winner: Attempt) -> None:
        for other in self.running:
            if other is not winner:
                other.lost = True

    def _end_attempt(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        if self._committed is attempt:
            self._close(attempt, outcome, now)
        elif self._committed is not None or self._ended:
            return
        elif outcome.kind is FailureClass.OK:
            self._committed = attempt
            self._finish = Finish(attempt)
            self._lose_others(attempt)
            self._close(attempt, outcome, now)
        elif outcome.kind is FailureClass.CANCELLED:
            if not self.running:
                self._surface(attempt, "", now, outcome)
        elif self.running:
            self._last, self._last_kind = attempt, outcome.kind
        else:
            self._after_failure(attempt, outcome, now)

    def _settle(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        attempt.ended = True
        self.running.remove(attempt)
        settle(
            self._host.world,
            self.facts,
            self.route,
            self._pool,
            attempt,
            outcome,
            now,
            self._emit_engine,
        )
        if outcome.kind is FailureClass.OK and not attempt.lost:
            self._pool.budget.deposit(now, self._pool.inflight)
            self._pool.exhausted = False
        duration = now - attempt.started_at
        result = _result(attempt, outcome)
        self._host.emit(self._sink, AttemptEnded(self.id, attempt, outcome, result, duration, now))
        self._host.wake_next(self._pool, now)

    def _after_failure(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        self._last, self._last_kind = attempt, outcome.kind
        if outcome.free_retry and self._free_retries < FREE_RETRIES_MAX:
            self._free_retries += 1
            self._counted -= 1  # it said nothing: it is not an attempt the caller set a limit on
            self._next_up = _Next(now, AttemptKind.RETRY, 0.0, paid=False)
            return
        denied = self._schedule_retry(attempt, outcome, now)
        if denied:
            self._surface(attempt, denied, now, outcome)

    def _schedule_retry(self, attempt: Attempt, outcome: Outcome, now: float) -> str:
        """Schedule the next attempt, or say why there is none."""
        traits = TRAITS[outcome.kind]
        facts, policy = self.facts, self.route.retry
        forced = outcome.should_retry is True
        if outcome.should_retry is False or not (
            traits.retry_here or traits.move_elsewhere or forced
        ):
            return "not_retryable"
        if policy.on is not None and not ({outcome.kind.value, str(outcome.status)} & policy.on):
            return "not_retryable"
        if outcome.reached_model and not facts.repeatable:
            return "not_retryable"
        if not facts.delegated and self._counted >= self._attempts_max():
            return "attempts"
        if self._task_budget_spent():
            return "task_budget"
        if outcome.kind is FailureClass.CONTEXT_LENGTH:
            window = self.snapshot.endpoints[attempt.endpoint_id].max_context_tokens
            self._min_context = max(self._min_context, window or max(1, facts.prompt_tokens))
        self._tried |= {attempt.endpoint_id}
        delay = self._retry_delay_s(outcome, now, may_stay=traits.retry_here or forced)
        if delay is None:
            return "hint" if usable_hint(outcome.retry_after_s) else "breaker"
        if now + delay >= self._deadline_at:
            return "deadline"
        if not self._pool.budget.withdraw(now):
            if not self._pool.exhausted:
                self._pool.exhausted = True
                self._emit_engine(BudgetExhausted(self._pool.name, now))
            return "budget"
        self._retries += 1
        if facts.delegated:
            self.retry_granted = True
            self._surface(attempt, "", now, outcome)
            return ""
        self._next_up = _Next(now + delay, AttemptKind.RETRY, delay, paid=True)
        return ""

    def _retry_delay_s(self, outcome: Outcome, now: float, *, may_stay: bool) -> float | None:
        rng = self._host.world.rng
        if not self.facts.delegated and not self.facts.pinned_to:
            if has_alternative(self._host.world, self._request(now), now):
                self._failovers += 1
                return 0.0 if self._failovers == 1 else rng.random() * FAILOVER_JITTER_S
        if not may_stay:
            return None
        hint = usable_hint(outcome.retry_after_s)
        if hint is not None:
            if hint > HINT_WAIT_MAX_S:
                return None
            return hint  # the endpoint's own cool-down, widened by jitter, holds the send back
        return backoff_s(self.route.retry, self._retries, rng)

    def _attempts_max(self) -> int:
        # A caller who set max_retries=0 wants one attempt; a policy that says otherwise is explicit.
        for bound in (self.route.retry.attempts_max, self.facts.attempts_max):
            if bound is not None:
                return bound
        return ATTEMPTS_DEFAULT

    def _task_budget_spent(self) -> bool:
        left = self.facts.extra_attempts_left
        return left is not None and self._counted - 1 >= left

    # -- ending

    def _surface(
        self, attempt: Attempt, denied: str, now: float, outcome: Outcome | None = None
    ) -> Finish:
        if denied:
            self._host.emit(self._sink, RetryDenied(self.id, denied, now))
        self._leave_queue(now)
        self._finish = Finish(attempt)
        kind = self._last_kind or FailureClass.CANCELLED
        self._close(attempt, outcome or Outcome(kind), now)
        return self._finish

    def _give_up(self, rejection: Rejection, now: float) -> Finish:
        self._leave_queue(now)
        if self._next_up.paid:
            self._pool.budget.refund(now)
        if self._last is not None and rejection.reason != "deadline":
            return self._surface(self._last, "deadline", now)
        self._finish = Finish(None, rejection)
        self._host.emit(self._sink, CallRejected(self.id, rejection, self.facts.priority, now))
        self._close(None, Outcome(FailureClass.CANCELLED, error_type=rejection.reason), now)
        return self._finish

    def _abandon(self, now: float) -> None:
        if self._ended:
            for attempt in list(self.running):
                self._settle(attempt, CANCELLED, now)
            return
        for attempt in list(self.running):
            self._settle(attempt, CANCELLED, now)
        if self._next_up.paid and self._finish is None:
            self._pool.budget.refund(now)
        self._leave_queue(now)
        self._finish = self._finish or Finish(None, Rejection("cancelled"))
        self._close(self._committed, CANCELLED, now)

    def _close(self, winner: Attempt | None, outcome: Outcome, now: float) -> None:
        if self._ended:
            return
        self._ended = True
        self._pool.inflight -= 1
        self._host.emit(self._sink, CallEnded(self.id, winner, outcome, self.attempts, now))

    def _emit_engine(self, event: Event) -> None:
        self._host.emit(None, event)

    def expected_output_tokens(self) -> int:
        """Output tokens the call is planned with."""
        return expected_output(self.facts, self.route)


def _result(attempt: Attempt, outcome: Outcome) -> str:
    if attempt.lost:
        return "lost"
    match outcome.kind:
        case FailureClass.OK:
            return "ok"
        case FailureClass.CANCELLED:
            return "cancelled"
        case FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN | FailureClass.STALLED:
            return "timeout"
        case _:
            return "error"
