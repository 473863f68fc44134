# long: one lock, one owner: what needs both stands together
"""The engine: the one mutable object of a process, and the only place that locks.

It owns the current snapshot and the `World`, begins calls, swaps snapshots without losing what was
learned, answers `status` and `explain`, and delivers events and wake-ups after releasing its lock.
The lock and the random source are handed in: the simulator passes neither threads nor real chance.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Self

from headway.core.admission import Ticket
from headway.core.breaker import Breaker, State
from headway.core.call import Call
from headway.core.expect import excess, expect
from headway.core.fleet import FleetGate, Loan, Want
from headway.core.model import (
    EVENTS,
    INFINITY,
    Attempt,
    Batch,
    CallFacts,
    EndpointEjected,
    EndpointReadmitted,
    Event,
    Lock,
    Rng,
    Sink,
    Waker,
)
from headway.core.place import Request, assess, groups_for
from headway.core.select import Choice, weigh
from headway.core.snapshot import Endpoint, Route, Snapshot, TrafficClass
from headway.core.state import Pool
from headway.core.views import (
    BreakerStatus,
    CandidateRow,
    EndpointStatus,
    Explanation,
    PoolStatus,
    VersionStatus,
    eligible_row,
    out_row,
)
from headway.core.waiting import Woken
from headway.core.world import World, credential_key

RETIRED_MAX = 256
"""Endpoints that left the policy and still hold objects; the longest gone is forgotten."""
VERSIONS_MAX = 8
"""Versions of the policy that `versions` looks back over."""


class NoLock:
    """Mutual exclusion for a single-threaded driver: none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class Engine:
    """State and decisions of one process.

    Args:
        snapshot: the policy to begin with.
        zone: where this process runs; picks the weights.
        rng: the random source (`random.Random(seed)` fits).
        lock: what serialises access; None for single-threaded drivers.
        on_event: receives every event, outside the lock.
        quiet: event types that `on_event` has no use for; unless the call's own sink wants them,
            they aren't even built.
        in_fleet: rates are lent by a store: somebody calls `wants` and `lend`.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        zone: str | None = None,
        rng: Rng,
        lock: Lock | None = None,
        on_event: Sink | None = None,
        quiet: frozenset[type[Event]] = frozenset(),
        in_fleet: bool = False,
    ) -> None:
        self.world = World(zone=zone, rng=rng, in_fleet=in_fleet)
        self.world.ceilings = _ceilings(snapshot)
        self.lock: Lock = lock if lock is not None else NoLock()
        self.snapshot = snapshot
        """The policy in force; `swap` puts in another."""
        self._on_event = on_event
        self.quiet = quiet if on_event is not None else frozenset(EVENTS)
        self.ids = itertools.count(1)
        """Numbers of calls."""
        self._ids_looked_at = 0
        """Ids that no call has, taken to see how far they have come."""
        self._retired: dict[str, Endpoint] = {}
        self._since = deque([(snapshot.epoch, snapshot.version, -INFINITY, 0)], VERSIONS_MAX)
        """(epoch, version, when it came into force, calls begun until then)."""
        self.outbox: list[tuple[Sink | None, Event]] = []
        self.wakes: list[Waker] = []
        self.parked: dict[Ticket, Woken] = {}

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        """An endpoint of the policy in force, or one that left it while it held objects."""
        return self.snapshot.endpoints.get(endpoint_id) or self._retired.get(endpoint_id)

    def versions(self) -> tuple[VersionStatus, ...]:
        """The latest versions of the policy, the one in force first, and the calls of each."""
        with self.lock:
            rows: list[VersionStatus] = []
            until = self._calls_begun()
            for epoch, version, since, calls in reversed(self._since):
                rows.append(VersionStatus(epoch, version, since, until - calls))
                until = calls
            return tuple(rows)

    def _calls_begun(self) -> int:
        # Counting would cost every call something; whoever asks takes an id instead.
        self._ids_looked_at += 1
        return next(self.ids) - self._ids_looked_at

    def _retire(self, snapshot: Snapshot, holding: Collection[str]) -> None:
        """Remember what leaves with a new policy, as long as something is bound to it."""
        if not self._retired and self.snapshot.endpoints.keys() <= snapshot.endpoints.keys():
            return
        states = self.world.states
        known = {**self._retired, **self.snapshot.endpoints}
        kept = [
            endpoint
            for endpoint_id, endpoint in known.items()
            if endpoint_id not in snapshot.endpoints
            and (
                endpoint_id in holding
                or ((state := states.get(endpoint_id)) is not None and state.inflight)
            )
        ]
        self._retired = {endpoint.id: endpoint for endpoint in kept[-RETIRED_MAX:]}

    def swap(self, snapshot: Snapshot, now: float, *, holding: Collection[str] = ()) -> None:
        """Put a new policy in force. Endpoints and routes whose id or name stays keep their state;
        calls under way finish on the snapshot they began with. Endpoints that leave stay reachable
        for calls bound to them while they are among those `holding` objects, or have calls under
        way that may make some."""
        with self.lock:
            world = self.world
            self._retire(snapshot, holding)
            self._since.append((snapshot.epoch, snapshot.version, now, self._calls_begun()))
            ceilings = _ceilings(snapshot)
            for endpoint_id, endpoint in snapshot.endpoints.items():
                state = world.states.get(endpoint_id)
                if state is not None:
                    if state.endpoint.base_url != endpoint.base_url:
                        world.affinity.forget(endpoint_id)
                    state.reconfigure(endpoint, ceilings.get(endpoint_id))
            for gone in world.states.keys() - snapshot.endpoints.keys():
                if not world.states[gone].inflight:
                    del world.states[gone]
                    world.affinity.forget(gone)
            names = {route.name: route for route in snapshot.routes}
            for name, pool in list(world.pools.items()):
                if name in names:
                    pool.reconfigure(names[name])
                elif not pool.inflight:
                    del world.pools[name]
            if world.blocks:
                used = {credential_key(e) for e in snapshot.endpoints.values()}
                world.blocks = {k: v for k, v in world.blocks.items() if k in used}
            world.rows.clear()
            world.ceilings = ceilings
            self.snapshot = snapshot
            for pool in world.pools.values():
                self.wake_next(pool, now)
            batch = self.take()
        self.deliver(batch)

    def begin(
        self,
        facts: CallFacts,
        now: float,
        *,
        wall_now: float = 0.0,
        sink: Sink | None = None,
    ) -> Call | None:
        """Begin a call; None when no route of the policy matches it (it is not ours to manage).

        Takes no lock where the route has been used before: the call counts from its first decision.
        """
        snapshot = self.snapshot
        if snapshot.without_hints is not None:
            snapshot = self._still_fresh(snapshot, wall_now)
        route = route_of(snapshot, facts)
        if route is None:
            return None
        if facts.pinned_to is not None and facts.pinned_to not in snapshot.endpoints:
            retired = self._retired.get(facts.pinned_to)
            if retired is None:
                return None
            snapshot = snapshot.with_endpoint(retired)
        expires_at = snapshot.expires_at
        is_expired = (
            expires_at is not None and snapshot.on_expiry == "fail" and wall_now >= expires_at
        )
        pool = self.world.pools.get(route.name)
        if pool is None:
            with self.lock:
                pool = self.world.pool(route, now)
        return Call(
            self, next(self.ids), facts, route, snapshot, pool, sink, now, is_expired=is_expired
        )

    def adopt(
        self,
        number: int,
        facts: CallFacts,
        route: Route,
        snapshot: Snapshot,
        pool: Pool,
        attempt: Attempt,
    ) -> Call:
        """Make a call of an attempt that is under way already (see `headway.core.light`)."""
        at = attempt.started_at
        call = Call(self, number, facts, route, snapshot, pool, None, at)
        call.adopt(attempt)
        return call

    def _still_fresh(self, snapshot: Snapshot, wall_now: float) -> Snapshot:
        """The snapshot to use now: past `fresh_until` or `expires_at`, the one without hints."""
        faded = snapshot.without_hints
        if faded is None or wall_now <= snapshot.hints_until:
            return snapshot
        with self.lock:
            if self.snapshot is not snapshot:
                return self.snapshot  # another thread was first, or a new policy has come
            for endpoint_id, endpoint in faded.endpoints.items():
                state = self.world.states.get(endpoint_id)
                if state is not None:
                    state.reconfigure(endpoint, self.world.ceilings.get(endpoint_id))
            self.world.rows.clear()
            self.snapshot = faded
        return faded

    def sweep(self, pool: Pool, pool_size: int, now: float) -> None:
        """Compare a pool's endpoints with each other, when it is time to."""
        ejected, back = pool.ejector.sweep(pool_size, now)
        for endpoint_id, until in ejected:
            self.emit(None, EndpointEjected(endpoint_id, "success_rate", until, now))
        for endpoint_id in back:
            self.emit(None, EndpointReadmitted(endpoint_id, now))

    def take_retry(self, now: float, *, model: str | None = None) -> bool:
        """Take one token for a retry made outside: from the pool of `model`, else from the poorest.

        For loops of the application's own, which must not multiply what the budget bounds.
        """
        with self.lock:
            pools = list(self.world.pools.values())
            if model is not None:
                route = self.snapshot.route_for(model)
                pools = [self.world.pool(route, now)] if route is not None else []
            if not pools:
                return True  # nothing of ours has run: there is nothing to bound yet
            return min(pools, key=lambda pool: pool.budget.balance(now)).budget.withdraw(now)

    # -- rates that a fleet shares

    def wants(self, now: float) -> tuple[Want, ...]:
        """What to borrow for the endpoints in use (see `headway.core.fleet`)."""
        with self.lock:
            found: list[Want] = []
            for endpoint_id, state in self.world.states.items():
                for kind, gate in (("rpm", state.rpm), ("tpm", state.tpm)):
                    if isinstance(gate, FleetGate) and gate.fleet_per_s is not None:
                        amount = gate.want(now)
                        if amount > 0:
                            found.append(Want(endpoint_id, kind, gate.fleet_per_s, amount))
            return tuple(found)

    def lend(self, loans: Iterable[Loan], now: float, *, next_s: float, valid_s: float) -> None:
        """What the store lent; it will be asked again in `next_s` seconds."""
        with self.lock:
            lent = {(loan.endpoint_id, loan.kind): loan.amount for loan in loans}
            for endpoint_id, state in self.world.states.items():
                for kind, gate in (("rpm", state.rpm), ("tpm", state.tpm)):
                    if isinstance(gate, FleetGate):
                        amount = lent.get((endpoint_id, kind), 0.0)
                        gate.lend(amount, now, next_s=next_s, valid_s=valid_s)

    def lose(self) -> None:
        """The store can't be asked: this process's own share of each rate holds."""
        with self.lock:
            for state in self.world.states.values():
                for gate in (state.rpm, state.tpm):
                    if isinstance(gate, FleetGate):
                        gate.lose()

    # -- looking in

    def status(self, now: float) -> tuple[EndpointStatus, ...]:
        """Every endpoint of the policy in force, in document order."""
        with self.lock:
            world, snapshot = self.world, self.snapshot
            rows: list[EndpointStatus] = []
            for endpoint in snapshot.endpoints.values():
                state = world.state(endpoint)
                ejected = max(
                    (p.ejector.ejected_until(endpoint.id) for p in world.pools.values()),
                    default=-INFINITY,
                )
                blocked = world.blocked_until(endpoint)
                rows.append(
                    EndpointStatus(
                        endpoint.id,
                        endpoint.state,
                        state.inflight,
                        state.limit.limit,
                        tuple(
                            BreakerStatus(
                                m, b.state.value, b.reason, b.open_time_s(now), b.trips(now)
                            )
                            for m, b in state.breakers.items()
                        ),
                        tuple(
                            (m, why, until - now)
                            for m, (until, why) in state.outs.items()
                            if until > now
                        ),
                        max(0.0, blocked - now),
                        max(0.0, ejected - now),
                        state.residual(now),
                        state.badness(now),
                    )
                )
            return tuple(rows)

    def pools(self, now: float) -> tuple[PoolStatus, ...]:
        """Budgets and queues of every route that has been used."""
        with self.lock:
            return tuple(
                PoolStatus(
                    p.name,
                    p.inflight,
                    len(p.queue),
                    p.budget.balance(now),
                    p.budget.capacity(now),
                    p.hedges.balance,
                )
                for p in self.world.pools.values()
            )

    def breaker_states(self) -> tuple[tuple[str, str], ...]:
        """(endpoint id, worst breaker state): cheap enough for a gauge callback."""
        with self.lock:
            return tuple([(e, _worst(s.breakers.values())) for e, s in self.world.states.items()])

    def explain(self, facts: CallFacts, now: float) -> Explanation:
        """Why A and not B, for a call with these facts, without sending anything."""
        with self.lock:
            snapshot, world = self.snapshot, self.world
            route = route_of(snapshot, facts)
            if route is None:
                return Explanation(None, "", None, 0, ())
            pool = world.pool(route, now)
            traffic = snapshot.classes.get(facts.traffic_class or "", TrafficClass())
            groups = groups_for(route, snapshot, facts, world.zone)
            request = Request(
                facts,
                route,
                snapshot,
                pool,
                groups,
                traffic.usd_per_second,
                traffic.promised,
            )
            warm = world.affinity.find(
                facts.model,
                facts.session,
                facts.prefix,
                ttl_s=route.affinity.ttl_s,
                min_tokens=route.affinity.min_prefix_tokens,
                keys=route.affinity.key,
                now=now,
            )
            rows: list[CandidateRow] = []
            promised = traffic.promised
            choice = Choice(
                route, pool, facts, traffic.usd_per_second, world.rng, promised is not None
            )
            for index, group in enumerate(groups):
                candidates, outs = assess(world, request, group, now)
                for candidate in candidates:
                    expect(candidate, facts, route, pool, warm, now)
                    if promised is not None:
                        candidate.excess = excess(candidate, facts, route, warm, promised, now)
                if candidates:
                    weigh(candidates, choice, now)
                rows += [eligible_row(c, candidates, index) for c in candidates]
                rows += [out_row(o, group.weights, index) for o in outs]
            return Explanation(
                route.name,
                route.selection.algorithm,
                warm.endpoint_id if warm else None,
                warm.tokens if warm else 0,
                tuple(rows),
            )

    # -- for calls: under the lock, except deliver

    def emit(self, sink: Sink | None, event: Event) -> None:
        """Queue an event for the call's own sink and for the engine's."""
        if sink is not None or type(event) not in self.quiet:
            self.outbox.append((sink, event))

    def wake(self, waker: Waker) -> None:
        """Queue a wake-up."""
        self.wakes.append(waker)

    def park(self, ticket: Ticket, waiter: Woken) -> None:
        """Remember whose ticket this is."""
        self.parked[ticket] = waiter

    def unpark(self, ticket: Ticket) -> None:
        """Forget a ticket; an evicted waiter is woken so that it learns of it."""
        waiter = self.parked.pop(ticket, None)
        if ticket.evicted and waiter is not None:
            waiter.wake()

    def wake_next(self, pool: Pool, now: float) -> None:
        """Let the next waiter try again: something ended, or the one before it got through.

        Endpoints are shared between pools, so every pool with a queue gets a turn; whoever finds
        no room goes on waiting.
        """
        if not self.parked:
            return
        for waiting in (pool, *(p for p in self.world.pools.values() if p is not pool)):
            if waiting.queue.waiters:
                ticket = waiting.queue.grant(now)
                waiter = self.parked.get(ticket) if ticket is not None else None
                if waiter is not None:
                    waiter.wake()

    def take(self) -> Batch | None:
        """Under the lock: hand over what this turn has queued.

        Taken before the lock is released, so that whoever caused an event delivers it: a call's
        events reach its sink in order, before its driver acts on them, whatever other threads do.
        """
        if not self.outbox and not self.wakes:
            return None
        batch = self.outbox, self.wakes
        self.outbox, self.wakes = [], []
        return batch

    def deliver(self, batch: Batch | None) -> None:
        """Without the lock: tell the sinks, then wake the waiters. A sink may call back in."""
        if batch is None:
            return
        events, wakes = batch
        try:
            for sink, event in events:
                if sink is not None:
                    sink(event)
                if self._on_event is not None and type(event) not in self.quiet:
                    self._on_event(event)
        finally:  # a sink that raises must not leave anyone waiting
            for waker in wakes:
                waker()

    def after_fork(self, lock: Lock, rng: Rng) -> None:
        """In a forked child: replace the lock (it may have been held) and the random source (jitter
        must differ), and forget attempts that live on in the parent only."""
        self.lock = lock
        self.world.rng = rng
        self.outbox, self.wakes, self.parked = [], [], {}
        for state in self.world.states.values():
            state.inflight = 0
            for gate in (state.rpm, state.tpm):
                if isinstance(gate, FleetGate):
                    gate.after_fork()
        for pool in self.world.pools.values():
            pool.inflight = 0
            pool.queue.waiters.clear()


def route_of(snapshot: Snapshot, facts: CallFacts) -> Route | None:
    """The route that such a call takes; None: it is not ours to manage."""
    if facts.route is not None:
        return snapshot.route_named(facts.route)
    return snapshot.route_for(
        facts.model,
        task=facts.task_name,
        traffic_class=facts.traffic_class,
        surface=facts.surface,
    )


def _worst(breakers: Iterable[Breaker]) -> str:
    worst = State.CLOSED
    for breaker in breakers:
        if breaker.state is not State.CLOSED and worst is not State.OPEN:
            worst = breaker.state
    return worst.value


def _ceilings(snapshot: Snapshot) -> dict[str, int]:
    ceilings: dict[str, int] = {}
    for route in snapshot.routes:
        bound = route.admission.max_inflight
        if bound is not None:
            for endpoint_id in route.endpoint_ids:
                ceilings[endpoint_id] = min(bound, ceilings.get(endpoint_id, bound))
    return ceilings
