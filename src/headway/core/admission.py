"""Admission: how many attempts an endpoint carries at once, how fast they start, who waits.

`ConcurrencyLimit` is AIMD on loss, not on latency: LLM latency grows with the answer's length, so
gradient limiters read a long answer as congestion. `RateGate` paces published rpm and tpm by GCRA
with debt, so a large request is never starved by small ones. `WaitQueue` is bounded, divides
turns between priority bands, turns last-in-first-out when it is backed up, and sheds by task:
dropping one call in ten at random kills 88 % of tasks that make twenty.

Sources: Netflix concurrency-limits (AIMD), ITU-T I.371 (GCRA), Facebook's adaptive LIFO, WeChat's
DAGOR (shedding by whole task). Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

LIMIT_MIN = 1.0
LIMIT_MAX = 256.0
"""Past this a learned limit is forgotten: one process is no longer what overloads the endpoint."""
DECREASE = 0.7
DECREASE_INTERVAL_MIN_S = 1.0
HOLD_S = 5.0
"""Room that was found by being turned away is not tested again for this long: each test costs a
call one of its attempts."""
BURST_S = 10.0
"""A rate gate lets this much of its rate through at once: arrivals come in bursts."""
BAND_WEIGHTS = (0.6, 0.3, 0.1)
"""Turns for interactive, normal and background waiters; unused turns go to whoever waits."""


class ConcurrencyLimit:
    """The in-flight limit of one endpoint in this process.

    Unlimited until the first sign of overload unless the policy states a ceiling: a healthy
    endpoint must not make a burst of 64 calls wait for a limit to be learned.
    """

    __slots__ = ("_before", "_ceiling", "_decreased_at", "_held_until", "limit")

    def __init__(self, ceiling: float | None) -> None:
        self._ceiling = ceiling
        self.limit: float | None = ceiling
        """The current limit; None is unlimited."""
        self._decreased_at = float("-inf")
        self._before = 0.0
        """What was carried before a burst of refusals; 0 outside one."""
        self._held_until = float("-inf")

    def reconfigure(self, ceiling: float | None) -> None:
        """Adopt a new ceiling; what was learned below it is kept."""
        if self.limit == self._ceiling:
            self.limit = ceiling
        elif self.limit is not None and ceiling is not None:
            self.limit = min(self.limit, ceiling)
        self._ceiling = ceiling

    def has_room(self, inflight: int) -> bool:
        """Whether one more attempt fits beside `inflight` others."""
        return self.limit is None or inflight < max(1, int(self.limit))

    def on_success(self, inflight: int, now: float) -> None:
        """Grow by 1/limit while half of the limit is in use (`inflight` counts this one)."""
        limit = self.limit
        if limit is None:
            return
        self._before = 0.0
        if limit == self._ceiling or inflight < limit / 2 or now < self._held_until:
            return
        limit += 1.0 / limit
        if self._ceiling is not None:
            limit = min(limit, self._ceiling)
        self.limit = None if self._ceiling is None and limit >= LIMIT_MAX else limit

    def on_refused(self, remaining: int, now: float) -> bool:
        """One was turned away while `remaining` others were under way: that many fit, and no more.

        A burst that was turned away to the last says nothing about room: it met a rate limit, and
        the limit shrinks as for any overload. Returns whether the limit changed.
        """
        limit = self.limit
        self._before = max(self._before, remaining + 1.0 if limit is None else limit)
        if remaining >= 1:
            self._held_until = now + HOLD_S
            if limit is not None and limit <= remaining:
                return False
            self.limit = float(remaining)
        else:
            self._held_until = float("-inf")
            self.limit = max(LIMIT_MIN, self._before * DECREASE)
            self._before = 0.0
        return self.limit != limit

    def on_overload(self, inflight: int, call_time_s: float, now: float) -> bool:
        """Shrink to 0.7 of what was in flight; at most once per typical call time, since the
        failures of one burst are one piece of news. Returns whether the limit changed."""
        if now - self._decreased_at < max(DECREASE_INTERVAL_MIN_S, call_time_s):
            return False
        self._decreased_at = now
        base = float(inflight) if self.limit is None else min(self.limit, float(inflight))
        self.limit = max(LIMIT_MIN, base * DECREASE)
        return True


class RateGate:
    """Paces attempts to a published rate per minute (requests or tokens), in arrival order."""

    __slots__ = ("_burst_s", "_due", "_per_s")

    def __init__(self, per_minute: float | None, *, burst_s: float = BURST_S) -> None:
        self._burst_s = burst_s
        self._per_s = per_minute / 60.0 if per_minute else None
        self._due = float("-inf")

    def reconfigure(self, per_minute: float | None) -> None:
        """Adopt a new rate; debt is kept."""
        self._per_s = per_minute / 60.0 if per_minute else None

    def wait_s(self, now: float, need: float = 0.0) -> float:
        """Seconds until the next attempt may start; independent of its size, `need`."""
        del need
        if self._per_s is None:
            return 0.0
        return max(0.0, self._due - self._burst_s - now)

    def charge(self, amount: float, now: float) -> None:
        """Book `amount` requests or tokens; negative amounts correct an earlier estimate."""
        if self._per_s is not None:
            self._due = max(self._due, now) + amount / self._per_s


@dataclass(slots=True, eq=False)
class Ticket:
    """A call's place in the queue. `granted` means: try again, something changed."""

    priority: int
    task_id: str | None
    enqueued_at: float
    expires_at: float
    sheddable: bool = True
    obstacle: str = "limit"
    """limit: the endpoints are full | cold: none has shown life yet | open: one is being probed."""
    granted: bool = False
    evicted: bool = False
    shed_rank: int = field(init=False)
    """Stable per task, so that shedding hits the same tasks again and spares the others."""

    def __post_init__(self) -> None:
        self.shed_rank = zlib.crc32((self.task_id or "").encode())

    @property
    def band(self) -> int:
        """0 interactive, 1 normal, 2 background."""
        return 0 if self.priority > 0 else 1 if self.priority == 0 else 2


@dataclass(slots=True)
class WaitQueue:
    """The waiters of one pool, oldest first. Never longer than `max_queue`."""

    waiters: list[Ticket] = field(default_factory=list[Ticket])
    _served: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def __len__(self) -> int:
        return len(self.waiters)

    def obstacle_for(self, priority: int) -> str:
        """What a new call of `priority` has to queue for although there may be room, "" if nothing:
        nobody of its own rank or above is overtaken."""
        return next((t.obstacle for t in self.waiters if t.priority >= priority), "")

    def offer(self, ticket: Ticket, max_queue: int) -> tuple[bool, Ticket | None]:
        """Add `ticket`. Full: the lowest-ranked waiter below it gives way, else it is refused.

        Returns (admitted, evicted waiter).
        """
        evicted = None
        if len(self.waiters) >= max_queue:
            victims = [t for t in self.waiters if t.sheddable and t.priority < ticket.priority]
            if not victims:
                victims = [
                    t
                    for t in self.waiters
                    if t.sheddable
                    and t.priority == ticket.priority
                    and t.shed_rank > ticket.shed_rank
                ]
            if not victims:
                return False, None
            evicted = min(victims, key=lambda t: (t.priority, -t.shed_rank))
            evicted.evicted = True
            self.waiters.remove(evicted)
        self.waiters.append(ticket)
        return True, evicted

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket that was served, expired or cancelled; unknown ones are ignored."""
        if ticket in self.waiters:
            self.waiters.remove(ticket)

    def grant(self, now: float) -> Ticket | None:
        """Choose who tries next and mark it granted; None when nobody waits ungranted."""
        waiting = [t for t in self.waiters if not t.granted]
        if not waiting:
            return None
        bands = {t.band for t in waiting}
        band = min(bands, key=lambda b: (self._served[b] / BAND_WEIGHTS[b], b))
        self._served[band] += 1.0
        if self._served[band] > 1000.0:  # keep the ratio, not the history
            self._served = [s / 2.0 for s in self._served]
        line = [t for t in waiting if t.band == band]
        oldest = line[0]
        backed_up = now - oldest.enqueued_at > (oldest.expires_at - oldest.enqueued_at) / 2.0
        # Backed up, someone waits in vain: the same tasks again, and of equals the oldest.
        chosen = min(reversed(line), key=lambda t: t.shed_rank) if backed_up else oldest
        chosen.granted = True
        return chosen
