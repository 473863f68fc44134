"""Random walks through breaker, budget, queue and the whole engine; invariants after every step.

Hypothesis prints the steps and a `@reproduce_failure` blob for a walk that fails.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headway.core.admission import Ticket, WaitQueue
from headway.core.breaker import OPEN_MAX_S, TRANSITIONS, TRIPS_MAX, Breaker, Permit, State
from headway.core.budget import RetryBudget
from headway.core.engine import Engine
from headway.core.model import (
    CANCELLED,
    Attempt,
    AttemptEnded,
    AttemptStarted,
    CallEnded,
    CallFacts,
    Event,
    FailureClass,
    Finish,
    Health,
    Outcome,
    Send,
    Wait,
)
from headway.core.snapshot import (
    AdmissionPolicy,
    Capacity,
    DeadlinePolicy,
    Fallback,
    HedgePolicy,
    RetryPolicy,
    Snapshot,
)
from tests.core.build import Extra, Hand, endpoint, route, snapshot

WALKS = settings(stateful_step_count=60)


class BreakerWalk(RuleBasedStateMachine):
    """Any order of permits, results, releases and pauses."""

    permits = Bundle("permits")

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.breaker = Breaker(random.Random(seed))
        self.now = 0.0
        self.current: dict[int, Permit] = {}
        self.was = State.CLOSED

    @rule(dt=st.one_of(st.floats(0, 2), st.floats(0, 500)))
    def pause(self, dt: float) -> None:
        self.now += dt

    @rule(target=permits, force=st.booleans(), lease_s=st.floats(0.1, 30))
    def acquire(self, force: bool, lease_s: float) -> object:
        due = self.breaker.is_probe_due(self.now) or (force and self.breaker.can_force(self.now))
        before = self.breaker.state
        permit = self.breaker.acquire(self.now, lease_s=lease_s, force=force)
        assert (permit is not None) == (before is State.CLOSED or due)
        if permit is None:
            return multiple()
        assert permit.is_probe == (before is not State.CLOSED)
        if permit.is_probe:
            assert not self.breaker.is_admitting(self.now)  # one leased probe, no second
            self.current = {permit.generation: permit}
        return (permit, self.now)

    @rule(held=consumes(permits), health=st.sampled_from(list(Health)))
    def record(self, held: tuple[Permit, float], health: Health) -> None:
        permit, started_at = held
        before = self.breaker.state
        is_stale = permit.generation != self.breaker.generation
        self.breaker.record(permit, health, started_at, self.now)
        if is_stale or health is Health.NOTHING:
            assert self.breaker.state is before

    @rule(held=consumes(permits))
    def release(self, held: tuple[Permit, float]) -> None:
        k, until = self.breaker.trips(self.now), self.breaker.open_until
        self.breaker.release(held[0])
        assert (self.breaker.trips(self.now), self.breaker.open_until) == (k, until)
        assert self.breaker.state is self.was or self.breaker.state is not State.CLOSED

    @rule(held=consumes(permits))
    def slow(self, held: tuple[Permit, float]) -> None:
        self.breaker.record_slow(held[0], self.now)

    @invariant()
    def holds(self) -> None:
        breaker = self.breaker
        assert 0 <= breaker.trips(self.now) <= TRIPS_MAX
        assert all(0 <= b <= s for b, s in zip(breaker._bad, breaker._seen, strict=True))
        if breaker.state is State.OPEN:
            assert breaker.open_until <= self.now + 1.5 * OPEN_MAX_S
        assert breaker.open_time_s(self.now) >= 0.0
        if breaker.state is not self.was:
            reachable, grown = {self.was}, True
            while grown:
                step = {to for (at, _), to in TRANSITIONS.items() if at in reachable}
                grown = not step <= reachable
                reachable |= step
            assert breaker.state in reachable
        self.was = breaker.state

    @invariant()
    def never_wedged(self) -> None:
        assert self.breaker.is_admitting(self.now + 1.5 * OPEN_MAX_S + 30.0)


class BudgetWalk(RuleBasedStateMachine):
    """0 <= T <= C, and nothing is withdrawn that was not there."""

    @initialize(
        start=st.floats(0, 10),
        capacity=st.floats(0, 10),
        trickle=st.sampled_from([0.0, 1.0, 300.0]),
        per_success=st.floats(0, 1),
    )
    def begin(self, start: float, capacity: float, trickle: float, per_success: float) -> None:
        self.policy = RetryPolicy(
            budget_start=start,
            budget_capacity=capacity,
            budget_trickle_s=trickle,
            budget_per_success=per_success,
        )
        self.budget = RetryBudget(self.policy, 0.0)
        self.now = 0.0
        self.credit = min(start, capacity)

    @rule(dt=st.floats(0, 400))
    def pause(self, dt: float) -> None:
        before = self.budget.balance(self.now)
        self.now += dt
        if self.policy.budget_trickle_s:
            self.credit += dt / self.policy.budget_trickle_s
            after = self.budget.balance(self.now)
            assert after <= max(2.0, before) + 1e-9

    @rule(inflight=st.integers(0, 300))
    def note(self, inflight: int) -> None:
        before = self.budget.capacity(self.now)
        self.budget.note_inflight(inflight, self.now)
        after = self.budget.capacity(self.now)
        assert after >= before - 1e-9
        assert after >= min(0.5 * inflight, 0.5 * inflight)

    @rule()
    def deposit(self) -> None:
        self.credit += self.policy.budget_per_success
        self.budget.deposit(self.now)

    @rule()
    def withdraw(self) -> None:
        before = self.budget.balance(self.now)
        if self.budget.withdraw(self.now):
            assert before >= 1.0 - 1e-6
            self.credit -= 1.0
        else:
            assert before < 1.0
            assert self.budget.balance(self.now) == before

    @invariant()
    def holds(self) -> None:
        balance = self.budget.balance(self.now)
        assert 0.0 <= balance <= self.budget.capacity(self.now)
        assert balance <= self.credit + 1e-6


class QueueWalk(RuleBasedStateMachine):
    """Nobody is lost, nobody waits twice, the bound holds."""

    tickets = Bundle("tickets")

    @initialize(bound=st.integers(1, 5))
    def begin(self, bound: int) -> None:
        self.queue = WaitQueue()
        self.bound = bound
        self.now = 0.0
        self.inside: list[Ticket] = []

    @rule(dt=st.floats(0, 3))
    def pause(self, dt: float) -> None:
        self.now += dt

    @rule(
        target=tickets,
        priority=st.integers(-2, 2),
        task=st.sampled_from([None, "a", "b", "c", "d"]),
        sheddable=st.booleans(),
    )
    def offer(self, priority: int, task: str | None, sheddable: bool) -> Ticket:
        ticket = Ticket(priority, task, self.now, self.now + 2.0, sheddable)
        admitted, evicted = self.queue.offer(ticket, self.bound)
        if evicted is not None:
            assert admitted
            assert evicted.evicted
            assert evicted.sheddable
            assert (evicted.priority, -evicted.shed_rank) <= (priority, -ticket.shed_rank)
            self.inside.remove(evicted)
        if admitted:
            self.inside.append(ticket)
        else:
            assert len(self.inside) == self.bound
        return ticket

    @rule()
    def grant(self) -> None:
        waiting = [t for t in self.inside if not t.granted]
        granted = self.queue.grant(self.now)
        assert (granted is None) == (not waiting)
        if granted is not None:
            assert granted in waiting

    @rule(ticket=tickets)
    def stand_again(self, ticket: Ticket) -> None:
        ticket.granted = False

    @rule(ticket=tickets)
    def leave(self, ticket: Ticket) -> None:
        self.queue.leave(ticket)
        if ticket in self.inside:
            self.inside.remove(ticket)

    @invariant()
    def holds(self) -> None:
        assert self.queue.waiters == self.inside
        assert len(self.queue) <= self.bound


def some_policy(version: int, names: str, *, limit: int | None) -> Snapshot:
    return snapshot(
        route(
            {n: i + 1.0 for i, n in enumerate(names)},
            fallback=[Fallback(endpoint="f")],
            hedge=HedgePolicy(enabled=True, delay_s=0.5, max_extra_fraction=0.5),
            deadline=DeadlinePolicy(total_s=60.0, ttft_s=20.0),
            admission=AdmissionPolicy(max_inflight=limit, max_queue=4),
        ),
        [endpoint("a", capacity=Capacity(rpm=120.0)), endpoint("b", credential="k")],
        version=version,
    )


class EngineWalk(RuleBasedStateMachine):
    """Calls, outcomes, tokens, cancellations, pauses and policy changes in any order."""

    calls = Bundle("calls")

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.events: list[Event] = []
        self.now = 100.0
        self.version = 1
        self.live: list[Hand] = []
        self.engine = Engine(
            some_policy(1, "abc", limit=None), rng=random.Random(seed), on_event=self.events.append
        )

    @rule(
        target=calls,
        stream=st.booleans(),
        priority=st.integers(-1, 1),
        repeatable=st.booleans(),
        pinned=st.sampled_from([None, None, None, "a"]),
        delegated=st.sampled_from([False, False, False, True]),
        left=st.sampled_from([None, None, 0, 1]),
        within=st.sampled_from([1e9, 1e9, 5.0, 0.0]),
    )
    def call(
        self,
        stream: bool,
        priority: int,
        repeatable: bool,
        pinned: str | None,
        delegated: bool,
        left: int | None,
        within: float,
    ) -> object:
        facts = CallFacts(
            "m",
            stream=stream,
            priority=priority,
            repeatable=repeatable,
            pinned_to=pinned,
            delegated=delegated,
            allowance=None if left is None else Extra(left),
            deadline_at=self.now + within,
            session="s",
        )
        call = self.engine.begin(facts, self.now)
        if call is None:
            return multiple()
        hand = Hand(call, self.now)
        self.live.append(hand)
        return hand

    @rule(dt=st.one_of(st.floats(0, 1), st.floats(0, 100)))
    def pause(self, dt: float) -> None:
        self.now += dt

    @rule(hand=calls)
    def act(self, hand: Hand) -> None:
        action = hand.next(self.now)
        if isinstance(action, Send):
            assert action.attempt in hand.call.running
            assert self.now <= action.attempt.deadline_at
            assert len(hand.call.running) <= 2
        elif isinstance(action, Wait):
            assert action.until <= hand.call.deadline_at
            assert hand.next(self.now) == action or action.until <= self.now
        else:
            assert isinstance(action, Finish)
            assert (action.attempt is None) != (action.rejection is None)
            assert hand.next(self.now + 1.0) == action

    def running(self, hand: Hand, which: int) -> Attempt | None:
        running = hand.call.running
        return running[which % len(running)] if running else None

    @rule(
        hand=calls,
        which=st.integers(0, 1),
        kind=st.sampled_from(list(FailureClass)),
        hint=st.sampled_from([None, None, 0.5, 30.0, 500.0, float("nan"), -1.0]),
        insist=st.sampled_from([None, None, None, True, False]),
        free=st.sampled_from([False, False, False, True]),
    )
    def end(
        self,
        hand: Hand,
        which: int,
        kind: FailureClass,
        hint: float | None,
        insist: bool | None,
        free: bool,
    ) -> None:
        attempt = self.running(hand, which)
        if attempt is not None:
            is_free = free and kind is not FailureClass.OK
            outcome = Outcome(
                kind,
                retry_after_s=hint,
                should_retry=insist,
                free_retry=is_free,
                reached_model=kind is not FailureClass.CONNECT,
                input_tokens=50,
                output_tokens=10,
            )
            hand.end(attempt, outcome, self.now)
            assert attempt.ended

    @rule(hand=calls, which=st.integers(0, 1))
    def token(self, hand: Hand, which: int) -> None:
        attempt = self.running(hand, which)
        if attempt is not None:
            won = hand.call.on_first_token(attempt, self.now)
            assert won != attempt.lost

    @rule(hand=calls)
    def cancel(self, hand: Hand) -> None:
        hand.call.cancel(self.now)
        assert hand.call.running == []

    @rule(names=st.sampled_from(["abc", "ab", "b", "bcd"]), limit=st.sampled_from([None, 1, 3]))
    def swap(self, names: str, limit: int | None) -> None:
        self.version += 1
        self.engine.swap(some_policy(self.version, names, limit=limit), self.now)

    @rule()
    def look(self) -> None:
        self.engine.status(self.now)
        self.engine.pools(self.now)
        self.engine.explain(CallFacts("m", session="s"), self.now)

    @precondition(lambda self: bool(self.live))
    @rule()
    def finish_all(self) -> None:
        """Everyone goes home: nothing may be left."""
        for hand in self.live:
            for attempt in list(hand.call.running):
                hand.end(attempt, CANCELLED, self.now)
            hand.call.cancel(self.now)
        self.live.clear()
        world = self.engine.world
        assert all(s.inflight == 0 for s in world.states.values())
        assert all(p.inflight == 0 and len(p.queue) == 0 for p in world.pools.values())
        assert not self.engine.parked
        started = sum(isinstance(e, AttemptStarted) for e in self.events)
        ended = sum(isinstance(e, AttemptEnded) for e in self.events)
        assert started == ended
        calls = [e.call_id for e in self.events if isinstance(e, CallEnded)]
        assert len(calls) == len(set(calls))

    @invariant()
    def holds(self) -> None:
        world = self.engine.world
        for name, state in world.states.items():
            out = sum(a.endpoint_id == name for hand in self.live for a in hand.call.running)
            assert state.inflight == out, name
            assert state.limit.limit is None or state.limit.limit >= 1.0
            assert 0.0 <= state.badness(self.now) <= 3.0
        probes: dict[tuple[str, str], int] = {}
        for hand in self.live:
            for a in hand.call.running:
                breaker = world.states[a.endpoint_id].breaker(a.model, world.rng)
                is_current = a.is_probe and a.permit == breaker.generation
                key = (a.endpoint_id, a.model)
                probes[key] = probes.get(key, 0) + is_current
        assert all(count <= 1 for count in probes.values())
        for pool in world.pools.values():
            assert 0.0 <= pool.budget.balance(self.now) <= pool.budget.capacity(self.now)
            assert len(pool.queue) == sum(t in pool.queue.waiters for t in self.engine.parked)
            assert len(pool.queue) <= 1024


WALKERS = (BreakerWalk, BudgetWalk, QueueWalk, EngineWalk)


@pytest.mark.parametrize("walker", WALKERS)
def test_short_walks(walker: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(walker, settings=WALKS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("walker", WALKERS)
def test_ten_thousand_walks(walker: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(walker, settings=settings(WALKS, max_examples=2500))
