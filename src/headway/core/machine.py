# long: one state machine, to be read in one sitting
"""One logical call: which attempt next, when, and when to stop.

    next_action ──▶ Send ──▶ (driver sends) ──▶ on_first_token / on_outcome ──▶ next_action ──▶ ...
                ──▶ Wait (backoff, queue, throttled, hedge, running)
                ──▶ Finish(attempt)        surface what that attempt brought
                ──▶ Finish(None, rejection) refuse

A driver performs the actions and reports what happened; it decides nothing. Until an attempt shows
its first content token the call may still move; from then on that attempt is the answer, and its
end is the call's end. Several attempts are outstanding at once only when a hedge runs.

Deterministic: time and chance come in through `now` and the world's random source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol

from headway.core.admission import Ticket
from headway.core.backoff import HINT_WAIT_MAX_S, is_turned_away
from headway.core.breaker import State
from headway.core.model import (
    CANCELLED,
    DEADLINE_STREAMING,
    INFINITY,
    Action,
    Attempt,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    Batch,
    BudgetExhausted,
    CallDequeued,
    CallEnded,
    CallFacts,
    CallQueued,
    CallRejected,
    CallShared,
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
    Group,
    Placement,
    Request,
    groups_for,
    has_alternative,
    never,
    place,
    place_sole,
    place_usual,
)
from headway.core.retry import RetryPlan, pay
from headway.core.select import Candidate
from headway.core.sending import cannot_finish, kind_of, miss, open_attempt, open_sole
from headway.core.settle import first_token, settle
from headway.core.snapshot import Route, Snapshot, TrafficClass
from headway.core.state import EndpointState, Pool
from headway.core.waiting import DEADLINE_SHARE, Line, Parking, Woken
from headway.core.world import World
from headway.core.yielding import Yielding, met_overload, rank_of

P = ParamSpec("P")

PROBE_BALANCE_MAX = 3.0
"""Retry tokens that a call must find to probe: one for each endpoint that is out, up to this many.
With one, probes of two dead endpoints spent what failures of calls beside them needed."""
PROBE_DEADLINE_SHARE = 0.5
"""A call probes only with this much of its deadline left: it may have to go elsewhere after."""


class Host(Parking, Protocol):
    """What a call needs of the engine."""

    world: World
    lock: Lock
    quiet: frozenset[type[Event]]
    """Events that only a call's own sink wants."""

    outbox: list[tuple[Sink | None, Event]]
    """What waits for delivery."""
    wakes: list[Waker]
    parked: dict[Ticket, Woken]
    """The calls that wait for their turn."""

    def sweep(self, pool: Pool, pool_size: int, now: float) -> None:
        """Compare a pool's endpoints with each other, when it is time to."""
        ...

    def emit(self, sink: Sink | None, event: Event) -> None:
        """Queue an event for delivery after the lock is released."""
        ...

    def wake(self, waker: Waker) -> None:
        """Queue a wake-up for delivery after the lock is released."""
        ...

    def take(self) -> Batch | None:
        """Under the lock: hand over the events and wake-ups of this turn."""
        ...

    def deliver(self, batch: Batch | None) -> None:
        """Without the lock: deliver them."""
        ...


class CallMachine:
    """The decisions of one call, without the lock: `headway.core.call.Call` adds it."""

    __slots__ = (
        "_committed",
        "_deadline_at",
        "_ended",
        "_finish",
        "_groups",
        "_has_entered",
        "_host",
        "_is_cold_ok",
        "_is_expired",
        "_planned",
        "_pool",
        "_sink",
        "_stood",
        "_traffic",
        "_yields_s",
        "attempts",
        "facts",
        "id",
        "owed_since",
        "retry_granted",
        "route",
        "running",
        "snapshot",
        "waker",
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
        """Sends so far."""
        self.running: list[Attempt] = []
        """Outstanding attempts; those marked `lost` are for the driver to close."""
        self.retry_granted = False
        self.owed_since: float | None = None
        """Delegated calls: the budget lets the SDK retry."""
        self._host = host
        self._pool = pool
        self._sink = sink
        self._traffic = snapshot.classes.get(facts.traffic_class or "", _NO_CLASS)
        self._deadline_at = min(facts.deadline_at, now + route.deadline.total_s)
        self._groups: tuple[Group, ...] | None = None
        self._planned: RetryPlan | None = None
        self._stood: Line | None = None
        self._finish: Finish | None = None
        self._committed: Attempt | None = None
        self._is_cold_ok = False
        self._is_expired = is_expired
        self._yields_s = 0.0
        """When it may be tried again, if it was held back for the sake of others."""
        self.waker: Waker | None = None
        self._ended = False
        self._has_entered = False

    @property
    def deadline_at(self) -> float:
        """The call's absolute deadline: its own, its task's and its route's, whichever is first."""
        return self._deadline_at

    @property
    def is_expired(self) -> bool:
        """The policy has expired, and says that nothing is to be answered by it any more."""
        return self._is_expired

    def adopt(self, attempt: Attempt) -> None:
        """Take over an attempt that was opened for this call before it was made."""
        self._has_entered = True
        self.attempts = 1
        self.running.append(attempt)

    def wake(self) -> None:
        """For the engine: hand the driver's waker over for delivery."""
        if self.waker is not None:
            self._host.wake(self.waker)

    @property
    def _plan(self) -> RetryPlan:
        """Made when first asked for: most calls need none (see `_launch_usual`)."""
        plan = self._planned
        if plan is None:
            plan = self._planned = RetryPlan()
            if self.attempts:
                plan.sent()
        return plan

    @property
    def line(self) -> Line:
        """Made when first asked for, too."""
        line = self._stood
        if line is None:
            sheddable = self._traffic.sheddable
            line = self._stood = Line(self._host, self._pool, is_sheddable=sheddable)
        return line

    @property
    def wants_counts(self) -> bool:
        """Whether anybody looks at the token counts of this call's outcomes: whoever hears of its
        events, whoever compares endpoints or paces one, or an objective that is to be kept."""
        sole = self.route.sole
        if self._sink is not None or AttemptEnded not in self._host.quiet:
            return True
        if self._traffic.promised is not None:
            return True
        if sole is None or self.facts.pinned_to is not None:
            return True
        endpoint = self.snapshot.endpoints[sole]
        return endpoint.profile is not None or endpoint.capacity.tpm is not None

    # -- deciding

    def decide(self, now: float) -> Action:
        if self._finish is not None:
            return self._finish
        if self.running:
            return self._beside_running(now)
        if not self._has_entered:
            self._enter(now)
        if now >= self._deadline_at:
            return self._give_up(Rejection("deadline"), now)
        if self._is_expired:
            return self._give_up(Rejection("policy_expired"), now)
        if not self.attempts and self._stood is None:
            if self.facts.priority < 0 and self._must_yield(now):
                self.line.refused = "yielded"
                return self._refused(now)
            usual = self._launch_usual(now)
            if usual is not None:
                return usual
        due = self._plan.next_up.at
        if now < due:
            return Wait(min(due, self._deadline_at), "backoff")
        if self._plan.next_up.owed:
            denied = self._settle_debt(now)
            if denied is not None:
                return denied
        waiting = self.line.pending(now)
        if waiting is not None:
            return waiting
        if self.line.ticket is not None and self.line.refused:
            return self._stop_waiting(self.line.ticket.obstacle, now)
        return self._launch(now)

    def _enter(self, now: float) -> None:
        """Count it among its pool's calls: from its first decision on, which has the lock."""
        pool, size = self._pool, len(self.route.endpoint_ids)
        self._has_entered, pool.inflight = True, pool.inflight + 1  # one statement, see `settle`
        pool.budget.note_inflight(pool.inflight, now)
        if size > 1 and pool.ejector.is_due(now):
            self._host.sweep(pool, size, now)

    def _must_yield(self, now: float) -> bool:
        """Whether this is background work for which there is no room now."""
        facts, pool = self.facts, self._pool
        if not self._traffic.sheddable or facts.delegated:
            return False
        yielding = pool.yielding
        if yielding is None:
            yielding = pool.yielding = Yielding()
        task_id = facts.task_id
        rank = self._host.world.rng.random() if task_id is None else rank_of(task_id)
        self._yields_s = yielding.due_s(rank, now)
        return self._yields_s > 0.0

    def _launch_usual(self, now: float) -> Send | Finish | None:
        """The first attempt where there is no queue, and nothing to say against any endpoint. None:
        it takes a look at everything."""
        if self.facts.owed_since is not None:
            denied = self._settle_resend(self.facts.owed_since, now)
            if denied is not None:
                return denied
        pool, facts, route = self._pool, self.facts, self.route
        if pool.queue.waiters:
            return None
        world, deadline_at = self._host.world, self._deadline_at
        if route.sole is not None:
            sole = place_sole(world, facts, route, self.snapshot)
            if sole is None:
                return None
            attempt = open_sole(sole, facts, route, deadline_at=deadline_at, now=now)
            return self._sent(attempt, sole.state, now)
        placement = place_usual(world, facts, route, self.snapshot, pool, self._traffic, now)
        if placement is None or placement.candidate is None:
            return None
        if cannot_finish(placement, placement.candidate, facts, deadline_at, now):
            return self._give_up(Rejection("deadline"), now)
        return self._open(placement, placement.candidate, AttemptKind.INITIAL, 0.0, now)

    def _launch(self, now: float) -> Action:
        plan = self._plan
        ahead = self.line.must_join(self.facts.priority)
        if ahead:
            return self._stand(ahead, now)
        placement = place(self._host.world, self._request(), now)
        if placement.candidate is None and plan.tried and plan.may_stay():
            placement = place(self._host.world, self._request(retry_same=True), now)
        if placement.candidate is not None:
            return self._send(placement, now)
        return self._face(placement, now)

    def _request(
        self,
        *,
        retry_same: bool = False,
        ignore_guesses: bool = False,
        hedge_of: Attempt | None = None,
    ) -> Request:
        plan = self._plan
        domain = None
        if hedge_of is not None:
            endpoint = self.snapshot.endpoints[hedge_of.endpoint_id]
            domain = endpoint.failure_domain or endpoint.id
        return Request(
            self.facts,
            self.route,
            self.snapshot,
            self._pool,
            self._candidate_groups(),
            self._traffic.usd_per_second,
            self._traffic.promised,
            tried=frozenset() if retry_same else plan.tried,
            last_failure=plan.last_kind.value if plan.last_kind else None,
            ignore_cold=self._is_cold_ok,
            ignore_guesses=ignore_guesses,
            may_probe=self._can_afford_probe if hedge_of is None else never,
            may_force=hedge_of is None,
            other_domain_than=domain,
            min_context=plan.min_context,
        )

    def _candidate_groups(self) -> tuple[Group, ...]:
        if self._groups is None:
            self._groups = groups_for(self.route, self.snapshot, self.facts, self._host.world.zone)
        return self._groups

    def _can_afford_probe(self, now: float) -> bool:
        """A probe that fails has to be hidden by a retry elsewhere: money and time."""
        total = self.route.deadline.total_s
        if total != INFINITY and self._deadline_at - now < PROBE_DEADLINE_SHARE * total:
            return False
        if self._plan.next_up.paid:
            return True
        states = self._host.world.states
        known = [states[e] for e in self.route.endpoint_ids if e in states]
        out = sum(
            any(b.state is not State.CLOSED for b in state.breakers.values()) for state in known
        )
        return self._pool.budget.balance(now) >= max(1.0, min(PROBE_BALANCE_MAX, out))

    # -- sending

    def _send(self, placement: Placement, now: float, kind: AttemptKind | None = None) -> Action:
        candidate, facts = placement.candidate, self.facts
        assert candidate is not None
        if kind is None and cannot_finish(placement, candidate, facts, self._deadline_at, now):
            return self._give_up(Rejection("deadline"), now)
        if self.line.ticket is not None:
            self._leave_line(now)
        if self._host.world.blocks:
            self._host.world.begin_trial(candidate.endpoint, now)
        scheduled = self._plan.sent()
        kind = kind or kind_of(scheduled, placement)
        return self._open(placement, candidate, kind, scheduled.backoff_s, now)

    def _open(
        self,
        placement: Placement,
        candidate: Candidate,
        kind: AttemptKind,
        backoff_s: float,
        now: float,
    ) -> Send:
        attempt = open_attempt(
            placement,
            candidate,
            self.facts,
            self.route,
            number=self.attempts + 1,
            kind=kind,
            backoff_s=backoff_s,
            deadline_at=self._deadline_at,
            now=now,
        )
        return self._sent(attempt, candidate.state, now)

    def _sent(self, attempt: Attempt, state: EndpointState, now: float) -> Send:
        sent, beside = self.attempts + 1, [*self.running, attempt]
        self.attempts, self.running, state.inflight = sent, beside, state.inflight + 1  # as above
        if attempt.number == 1 and self._may_hedge():
            self._pool.hedges.deposit()
        if self._sink is not None or AttemptStarted not in self._host.quiet:
            self._host.emit(self._sink, AttemptStarted(self.id, attempt, now))
        return Send(attempt)

    # -- waiting

    def _face(self, placement: Placement, now: float) -> Action:
        """No endpoint can take the call now: wait for what stands in the way, or refuse."""
        obstacle, last = placement.obstacle, self._plan.last
        if obstacle in FLEETING:
            return self._stand(obstacle, now)
        if obstacle == "exhausted" and placement.until > now + self._patience_s(now):
            may_stay = self._plan.may_stay()
            request = self._request(retry_same=may_stay, ignore_guesses=True)
            asked = place(self._host.world, request, now)
            if asked.candidate is not None:
                return self._send(asked, now)
        if obstacle in TIMED:
            if placement.until - now <= HINT_WAIT_MAX_S and placement.until < self._deadline_at:
                if self._host.world.in_fleet and obstacle == "paced":
                    miss(self._host.world, self.facts, self.route, placement.outs, now)
                self._leave_line(now)
                return Wait(placement.until, "throttled")
        elif (
            obstacle == "open"
            and not self._is_cold_ok
            and (self.route.sole is not None or (last is None and not self.line.ticket))
        ):
            # Someone else is probing: its answer comes soon. Where there is nothing but that
            # endpoint, so may the next one's.
            return self._stand("open", now)
        if last is not None:
            return self._surface(last, "breaker", now)
        detail = tuple((out.endpoint_id, out.reason, out.until - now) for out in placement.outs)
        after = min((left_s for _, _, left_s in detail), default=INFINITY)
        reason = _REJECTION_OF.get(obstacle, "no_endpoint")
        return self._give_up(Rejection(reason, after if after != INFINITY else None, detail), now)

    def _patience_s(self, now: float) -> float:
        """How long a call waits for what may not be needed: as long as it would stand in line."""
        patience = self.route.admission.queue_timeout_s
        return min(patience, DEADLINE_SHARE * (self._deadline_at - now))

    def _stand(self, obstacle: str, now: float) -> Action:
        line = self.line
        is_new = line.ticket is None
        waiting = line.stand(
            self, self.facts, self.route, obstacle=obstacle, deadline_at=self._deadline_at, now=now
        )
        if waiting is None:
            return self._stop_waiting(obstacle, now)
        if is_new:
            self._emit(CallQueued, self.id, self.facts.priority, obstacle, now)
        return waiting

    def _stop_waiting(self, obstacle: str, now: float) -> Action:
        if obstacle == "limit" or self._is_cold_ok:
            return self._refused(now)
        # Holding back was a courtesy to a cold start, never a reason to refuse anyone.
        self._is_cold_ok = True
        self._leave_line(now)
        return self._launch_after_line(now)

    def _refused(self, now: float) -> Action:
        groups = self._candidate_groups()
        fallbacks = tuple(g for g in groups if g.is_fallback)
        if fallbacks and len(fallbacks) < len(groups):
            self._groups = fallbacks
            self._leave_line(now)
            return self._launch_after_line(now)
        reason = self.line.refused
        if self._plan.last is not None:
            return self._surface(self._plan.last, "breaker", now)
        after = self._yields_s or self.route.admission.queue_timeout_s
        return self._give_up(Rejection(reason, after), now)

    def _launch_after_line(self, now: float) -> Action:
        """Try at once, without joining the line that was just given up."""
        self.line.refused = ""
        placement = place(self._host.world, self._request(), now)
        if placement.candidate is not None:
            return self._send(placement, now)
        return self._face(placement, now)

    def _leave_line(self, now: float) -> None:
        waited = None if self._stood is None else self._stood.leave(now)
        if waited is not None:
            self._emit(CallDequeued, self.id, self.facts.priority, waited, now)

    # -- hedging

    def _may_hedge(self) -> bool:
        facts = self.facts
        if facts.hedge is not True and not self.route.hedge.enabled:
            return False
        return not (
            facts.hedge is False or not facts.repeatable or facts.pinned_to or facts.delegated
        )

    def _beside_running(self, now: float) -> Action:
        first = self.running[0]
        running = Wait(first.first_token_by, "running")
        if len(self.running) > 1 or not self._may_hedge():
            return running
        if not self._plan.has_attempts_left(self.route, self.facts):
            return running
        delay = self.route.hedge.delay_s
        if delay is None:
            delay = self._pool.hedge_delay_s(self.facts.prompt_tokens)
        if delay is None:
            return running
        at = first.started_at + delay
        if now < at:
            return Wait(min(at, first.first_token_by), "hedge")
        pool = self._pool
        if not (pool.hedges.can_withdraw() and pool.budget.can_withdraw(now)):
            return running
        placement = place(self._host.world, self._request(hedge_of=first), now)
        if placement.candidate is None or placement.is_probe:
            return running
        if pay(self.facts, pool, now):
            return running
        pool.hedges.withdraw()
        return self._send(placement, now, kind=AttemptKind.HEDGE)

    # -- reports

    def commit(self, attempt: Attempt, now: float) -> bool:
        if attempt.lost or attempt.ended or self._ended:
            return False
        if self._committed is not None:
            return self._committed is attempt
        attempt.first_token_at = now
        self._win(attempt)
        since = self.running[0].started_at  # a hedge begins after the attempt it stands beside
        first_token(
            self._host.world, self.facts, self._pool, attempt, since, now, self._emit_engine
        )
        self._emit(FirstToken, self.id, attempt, now - attempt.started_at, now)
        self._host.wake_next(self._pool, now)
        return True

    def _win(self, attempt: Attempt) -> None:
        self._committed = attempt
        self._finish = Finish(attempt)
        for other in self.running:
            if other is not attempt:
                other.lost = True

    def resume(self, attempt: Attempt, outcome: Outcome, now: float) -> bool:
        """The answer broke off, and the driver knows how to ask for its rest. Whether it may: the
        attempt has then failed like one that never began to answer, and another follows."""
        if self._committed is not attempt or self._ended:
            self.end_attempt(attempt, outcome, now)
            return False
        self._settle(attempt, outcome, now)
        self._committed = self._finish = None
        self._after_failure(attempt, outcome, now)
        return not self._ended

    def end_attempt(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        self._settle(attempt, outcome, now)
        if self._committed is attempt:
            self._close(attempt, outcome, now)
        elif self._committed is not None or self._ended:
            return
        elif outcome.kind is FailureClass.OK:
            self._win(attempt)
            self._close(attempt, outcome, now)
        elif self.running:
            # The other attempt may still bring the answer; another hedge must not go back here.
            self._plan.note(attempt, outcome)
            self._plan.tried |= {attempt.endpoint_id}
        elif outcome.kind is FailureClass.CANCELLED:
            self._surface(attempt, "", now, outcome)
        else:
            self._after_failure(attempt, outcome, now)

    def _settle(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        pool = self._pool
        settle(
            self._host.world,
            self.facts,
            self.route,
            pool,
            attempt,
            outcome,
            now,
            self._emit_engine,
        )
        self.running.remove(attempt)
        if pool.yielding is not None:
            met = met_overload(self.facts, self._traffic, attempt, outcome, now)
            if met is not None:
                pool.yielding.learn(attempt, met_overload=met, now=now)
        if outcome.kind is FailureClass.OK and not attempt.lost:
            pool.budget.deposit(now)
            pool.exhausted = False
        host = self._host
        if self._sink is not None or AttemptEnded not in host.quiet:
            result, duration = _result(attempt, outcome), now - attempt.started_at
            event = AttemptEnded(self.id, attempt, outcome, result, duration, now)
            host.emit(self._sink, event)
        if self._ended and not self.running:
            self._sink = None
        if host.parked:
            host.wake_next(pool, now)

    def _after_failure(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        plan, world = self._plan, self._host.world
        plan.note(attempt, outcome)
        if self.facts.delegated and outcome.free_retry and outcome.status is None:
            self.retry_granted = True  # an old connection broke: the SDK's next attempt is free
            self._surface(attempt, "", now, outcome)
            return
        if plan.schedule_free(outcome, now):
            return
        denied = plan.schedule(
            attempt,
            outcome,
            self.facts,
            self.route,
            self.snapshot,
            self._pool,
            deadline_at=self._deadline_at,
            has_alternative=lambda: has_alternative(world, self._request(), now),
            soonest=lambda: self._soonest(attempt, now) - now,
            is_crowded=is_turned_away(outcome) and world.inflight(attempt.endpoint_id) > 0,
            rng=world.rng,
            now=now,
        )
        if denied:
            self._note_denial(denied, now)
            self._surface(attempt, denied, now, outcome)
        elif self.facts.delegated:
            self.retry_granted = True  # the token is spent: the SDK makes the attempt
            if plan.next_up.owed:
                self.owed_since = attempt.started_at
            plan.sent()
            self._surface(attempt, "", now, outcome)

    def _settle_debt(self, now: float) -> Finish | None:
        """What was scheduled on credit is due; the end, if it can't be paid for."""
        last = self._plan.last
        assert last is not None
        state = self._host.world.states.get(last.endpoint_id)
        served_at = -INFINITY if state is None else state.last_success_at
        denied = self._plan.settle_debt(self.facts, self._pool, served_at, now)
        if not denied:
            return None
        self._note_denial(denied, now)
        return self._surface(last, denied, now)

    def _settle_resend(self, since: float, now: float) -> Finish | None:
        """The same for what the SDK sends again."""
        self.facts.owed_since = None
        state = self._host.world.states.get(self.route.sole or "")
        if state is None or state.last_success_at > since:
            return None
        denied = pay(self.facts, self._pool, now)
        if not denied:
            return None
        self._note_denial(denied, now)
        detail = ((state.endpoint.id, "cooling", 0.0),)
        return self._give_up(Rejection("throttled", None, detail), now)

    def _note_denial(self, denied: str, now: float) -> None:
        if denied == "budget" and not self._pool.exhausted:
            self._pool.exhausted = True
            self._emit_engine(BudgetExhausted(self._pool.name, now))

    def _soonest(self, failed: Attempt, now: float) -> float:
        """When another endpoint than the one that failed last may be back."""
        request = self._request()._replace(tried=frozenset((failed.endpoint_id,)))
        placement = place(self._host.world, request, now)
        is_free = placement.candidate is not None and not placement.is_probe
        return now if is_free else placement.until

    # -- ending

    def _surface(
        self, attempt: Attempt, denied: str, now: float, outcome: Outcome | None = None
    ) -> Finish:
        if denied:
            self._emit(RetryDenied, self.id, denied, now)
        self._plan.withdrawn(self.facts, self._pool, now)
        self._leave_line(now)
        self._finish = Finish(attempt)
        self._close(attempt, outcome or self._plan.last_outcome or CANCELLED, now)
        return self._finish

    def _give_up(self, rejection: Rejection, now: float) -> Finish:
        self._leave_line(now)
        self._plan.withdrawn(self.facts, self._pool, now)
        self._finish = Finish(None, rejection)
        self._emit(CallRejected, self.id, rejection, self.facts.priority, now, self.route.mode)
        self._close(None, Outcome(FailureClass.CANCELLED, error_type=rejection.reason), now)
        return self._finish

    def abandon(self, now: float) -> None:
        for attempt in list(self.running):
            if attempt.ended:  # an interrupt came while it was settled
                self.running.remove(attempt)
            else:
                self._settle(attempt, CANCELLED, now)
        if self._ended:
            return
        self._plan.withdrawn(self.facts, self._pool, now)
        self._leave_line(now)
        self._finish = self._finish or Finish(None, Rejection("cancelled"))
        self._close(self._committed, CANCELLED, now)

    def borrow(self, decision: str, endpoint_id: str, outcome: Outcome, now: float) -> None:
        if not self._ended:
            self._finish = Finish(None)
            self._emit(CallShared, self.id, decision, endpoint_id, now)
            self._close(None, outcome, now)

    def _close(self, winner: Attempt | None, outcome: Outcome, now: float) -> None:
        if self._ended:
            return
        pool = self._pool
        counted = 1 if self._has_entered and pool.inflight else 0  # zero after a fork
        self._ended, pool.inflight = True, pool.inflight - counted  # one statement, see `settle`
        if self._sink is not None or CallEnded not in self._host.quiet:
            self._host.emit(self._sink, CallEnded(self.id, winner, outcome, self.attempts, now))
        if not self.running:
            # It knows the call, too: left in place, only the garbage collector would part them.
            self._sink = None

    def _emit(self, kind: Callable[P, Event], *args: P.args, **kwargs: P.kwargs) -> None:
        if self._sink is not None or kind not in self._host.quiet:
            self._host.emit(self._sink, kind(*args, **kwargs))

    def _emit_engine(self, event: Event) -> None:
        self._host.emit(None, event)


_NO_CLASS = TrafficClass()
_REJECTION_OF = {
    "throttled": "throttled",
    "paced": "throttled",
    "exhausted": "throttled",
    "credential": "quota",
}


def _result(attempt: Attempt, outcome: Outcome) -> str:
    """The attempt's end in one word, for telemetry."""
    if attempt.lost:
        return "lost"
    match outcome.kind:
        case FailureClass.OK:
            return "ok"
        case FailureClass.CANCELLED:
            return "timeout" if outcome.error_type == DEADLINE_STREAMING.error_type else "cancelled"
        case FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN | FailureClass.STALLED:
            return "timeout"
        case _:
            return "error"
