"""A call that nobody listens to, at a route's one healthy endpoint: an attempt and no machine.

Nothing can be chosen for such a call until its attempt fails. So it begins as the attempt alone,
opened and settled by the very rules of the machine; when the attempt comes to anything but success,
`grown` makes an ordinary call of it, with the attempt outstanding.

Deterministic, like the machine; takes the engine's lock once at each end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.model import INFINITY, Attempt, AttemptStarted, CallFacts, Event, Outcome
from headway.core.place import place_sole
from headway.core.sending import open_sole
from headway.core.settle import settle

if TYPE_CHECKING:
    from headway.core.call import Call
    from headway.core.engine import Engine
    from headway.core.snapshot import Route, Snapshot
    from headway.core.state import Pool


class LightCall:
    """One attempt under way. Ends in one of `succeed`, `grown` and `cancel`."""

    __slots__ = (
        "_engine", "_facts", "_has_left", "_number", "_pool", "_route", "_snapshot", "attempt",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        number: int,
        facts: CallFacts,
        route: Route,
        snapshot: Snapshot,
        pool: Pool,
        attempt: Attempt,
    ) -> None:
        self.attempt = attempt
        self._engine = engine
        self._number = number
        self._facts = facts
        self._route = route
        self._snapshot = snapshot
        self._pool = pool
        self._has_left = False
        """Its pool counts it no more."""

    def succeed(self, outcome: Outcome, now: float) -> None:
        """The attempt brought the answer, and the call is over. `outcome.kind` is OK."""
        engine, pool, attempt = self._engine, self._pool, self.attempt
        with engine.lock:
            settle(engine.world, self._facts, self._route, pool, attempt, outcome, now, self._emit)
            # Zero after a fork. One statement, as in `settle`: see `cancel`.
            self._has_left, pool.inflight = True, pool.inflight - 1 if pool.inflight else 0
            pool.budget.deposit(now)
            pool.exhausted = False
            if engine.parked:
                engine.wake_next(pool, now)
            batch = engine.take() if engine.outbox or engine.wakes else None
        if batch is not None:
            engine.deliver(batch)

    def grown(self, facts: CallFacts) -> Call:
        """The same call with everything that may be decided about it. `facts`: the whole of them;
        so far only what success needs was looked at."""
        call = self._engine.adopt(
            self._number, facts, self._route, self._snapshot, self._pool, self.attempt
        )
        self._has_left = True  # its pool counts the call in its place
        return call

    def cancel(self, now: float) -> None:
        """The caller gave up, and there was not even time to make a call of it. Also ends what an
        interrupt has left undone of another end."""
        if not self.attempt.ended:
            self.grown(self._facts).cancel(now)
        elif not self._has_left:
            pool = self._pool
            with self._engine.lock:
                self._has_left, pool.inflight = True, pool.inflight - 1 if pool.inflight else 0

    def _emit(self, event: Event) -> None:
        self._engine.emit(None, event)


def begin_light(engine: Engine, facts: CallFacts, now: float) -> LightCall | None:
    """Begin a light call; None where there is more to it: it needs `Engine.begin`.

    `facts`: of a call that isn't streamed, whose route is found by its model and surface.
    """
    snapshot = engine.snapshot
    if snapshot.expires_at is not None or AttemptStarted not in engine.quiet:
        return None
    route = snapshot.route_for(facts.model, surface=facts.surface)
    if route is None or route.hedge.enabled or route.deadline.total_s != INFINITY:
        return None
    world = engine.world
    pool = world.pools.get(route.name)
    if pool is None:
        return None
    begun: LightCall | None = None
    try:
        with engine.lock:
            if pool.queue.waiters:
                return None
            sole = place_sole(world, facts, route, snapshot)
            if sole is None:
                return None
            attempt = open_sole(sole, facts, route, deadline_at=INFINITY, now=now)
            call = LightCall(engine, next(engine.ids), facts, route, snapshot, pool, attempt)
            state = sole.state
            # One statement, as in `settle`.
            state.inflight, pool.inflight, begun = state.inflight + 1, pool.inflight + 1, call
            pool.budget.note_inflight(pool.inflight, now)
        return begun
    except BaseException:  # an interrupt
        if begun is not None:
            begun.cancel(now)
        raise
