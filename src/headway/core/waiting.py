"""A call's place in its pool's queue: joining, waiting, giving up.

Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

from typing import Protocol

from headway.core.admission import Ticket
from headway.core.model import CallFacts, Wait
from headway.core.snapshot import Route
from headway.core.state import Pool

COLD_QUEUE_MAX = 1024
"""Waiters for the first sign of life at a cold start; beyond it they go ahead unproven."""
COLD_WAIT_S = 30.0
"""How long they wait for it, as long as a probe's lease: if one of two endpoints never answers and
the other takes ten seconds, whoever goes ahead unproven after two has an even chance to hang."""
DEADLINE_SHARE = 0.1
"""A call waits in line for at most this share of the time it has left."""


class Woken(Protocol):
    """Whatever waits: a call."""

    def wake(self) -> None:
        """Hand the driver's waker over for delivery."""
        ...


class Parking(Protocol):
    """Where the engine keeps the calls that wait."""

    def park(self, ticket: Ticket, waiter: Woken) -> None:
        """Remember whose ticket this is."""
        ...

    def unpark(self, ticket: Ticket) -> None:
        """Forget a ticket; wake its owner if it was evicted."""
        ...

    def wake_next(self, pool: Pool, now: float) -> None:
        """Let the next waiter try again."""
        ...


class Line:
    """One call's side of the queue. `refused` says why the wait is over, "" while it is not."""

    __slots__ = ("_is_sheddable", "_parking", "_pool", "refused", "ticket")

    def __init__(self, parking: Parking, pool: Pool, *, is_sheddable: bool) -> None:
        self._parking = parking
        self._pool = pool
        self._is_sheddable = is_sheddable
        self.ticket: Ticket | None = None
        self.refused = ""

    def is_signalled(self) -> bool:
        """Whether the ticket was granted or evicted."""
        return self.ticket is not None and (self.ticket.granted or self.ticket.evicted)

    def pending(self, now: float) -> Wait | None:
        """The wait that is still on, or None: not in line, granted, evicted or expired."""
        ticket = self.ticket
        if ticket is None or ticket.granted:
            return None
        if ticket.evicted:
            self.refused = "queue_full"
            return None
        return Wait(ticket.expires_at, "queue") if now < ticket.expires_at else None

    def must_join(self, priority: int) -> str:
        """What others of its rank queue for, behind whom a newcomer has to wait; "" if nobody."""
        return self._pool.queue.obstacle_for(priority) if self.ticket is None else ""

    def stand(
        self,
        waiter: Woken,
        facts: CallFacts,
        route: Route,
        *,
        obstacle: str,
        deadline_at: float,
        now: float,
    ) -> Wait | None:
        """Join the queue or stay in it; None when the wait is over (see `refused`)."""
        admission, ticket = route.admission, self.ticket
        patience = COLD_WAIT_S if obstacle == "cold" else admission.queue_timeout_s
        limit = min(patience, DEADLINE_SHARE * (deadline_at - now))
        if ticket is not None:
            if ticket.obstacle != obstacle:  # one works now, and is full: now the queue's own rule
                ticket.expires_at = min(ticket.expires_at, now + limit)
                ticket.obstacle = obstacle
            if now >= ticket.expires_at:
                self.refused = "queue_wait"
                return None
            ticket.granted = False
            return Wait(ticket.expires_at, "queue")
        if limit <= 0:
            self.refused = "queue_wait"
            return None
        ticket = Ticket(
            facts.priority, facts.task_id, now, now + limit, self._is_sheddable, obstacle
        )
        size = admission.max_queue if obstacle == "limit" else COLD_QUEUE_MAX
        admitted, evicted = self._pool.queue.offer(ticket, size)
        if not admitted:
            self.refused = "queue_full"
            return None
        self.ticket = ticket
        self._parking.park(ticket, waiter)
        if evicted is not None:
            self._parking.unpark(evicted)
        return Wait(ticket.expires_at, "queue")

    def leave(self, now: float) -> float | None:
        """Leave the line; returns the seconds waited, None if not in line."""
        ticket = self.ticket
        if ticket is None:
            return None
        self.ticket = None
        self._pool.queue.leave(ticket)
        self._parking.unpark(ticket)
        self._parking.wake_next(self._pool, now)
        return now - ticket.enqueued_at
