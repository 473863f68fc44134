"""Circuit breaker: stop sending attempts to an endpoint and model that keep failing.

        CLOSED ──trip──▶ OPEN ──cooled / forced──▶ HALF_OPEN (one leased probe)
          ▲               ▲                            │  │
          │               └────────probe_failed────────┘  │
          └────────────────────probe_ok───────────────────┘

It trips on 3 consecutive hard failures, or when at least half of at least 10 results within 120 s
were bad. It stays open for min(300, 10 * 2^k) s, jittered by U(0.5, 1.5), where k counts recent
trips and fades by one per clean minute: a flapping endpoint is remembered. Every permit carries the
breaker's generation, so a call admitted before the trip can settle nothing after it: with calls
that last a minute this is the normal case, not a corner.

Pure: reads no clock, takes no lock, does no I/O.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headway.core.model import Health, Rng

CONSECUTIVE_MAX = 3
"""1.3e-4 false trips per window at 5 % errors; detects a dead endpoint in three calls."""
BURST_MAX = 5
"""Simultaneous failures of one admission burst count as one event until there are this many."""
BURST_SPAN_S = 1.0
RATIO_MIN_RESULTS = 10
RATIO_BAD = 0.5
BUCKET_S = 10.0
BUCKETS = 12
"""12 x 10 s = 120 s: longer than the calls it judges, or results would miss their own window."""
OPEN_BASE_S = 10.0
OPEN_MAX_S = 300.0
CLEAN_S = 60.0
CLEAN_SUCCESSES = 4
"""A minute without failures is clean only if this many successes stand behind it: between the bad
spells of a flapping endpoint a slow caller may send nothing, and no news is not good news."""
TRIPS_MAX = 5
"""10 * 2^5 = 320 s is already past OPEN_MAX_S."""


class State(enum.StrEnum):
    """Whether attempts flow."""

    CLOSED = "closed"  # attempts flow
    OPEN = "open"  # attempts are refused
    HALF_OPEN = "half_open"  # one probe is in flight


class Signal(enum.StrEnum):
    """What can happen to a breaker."""

    TRIP = "trip"
    COOLED = "cooled"
    FORCED = "forced"
    PROBE_OK = "probe_ok"
    PROBE_FAILED = "probe_failed"
    PROBE_RELEASED = "probe_released"


TRANSITIONS: dict[tuple[State, Signal], State] = {
    (State.CLOSED, Signal.TRIP): State.OPEN,
    (State.OPEN, Signal.COOLED): State.HALF_OPEN,
    (State.OPEN, Signal.FORCED): State.HALF_OPEN,
    (State.HALF_OPEN, Signal.PROBE_OK): State.CLOSED,
    (State.HALF_OPEN, Signal.PROBE_FAILED): State.OPEN,
    (State.HALF_OPEN, Signal.PROBE_RELEASED): State.OPEN,
}
"""The whole machine. A pair that is not here changes nothing."""


class Permit(NamedTuple):
    """The right to make one attempt; hand it back to `record` or `release` exactly once."""

    generation: int
    is_probe: bool


class Breaker:
    """The breaker of one endpoint x model x credential."""

    __slots__ = (
        "_bad",
        "_broken",
        "_clean_since",
        "_clean_successes",
        "_consecutive",
        "_epochs",
        "_first_failure_at",
        "_forced",
        "_last_failure_at",
        "_lease_until",
        "_rng",
        "_seen",
        "_slot",
        "_trips",
        "closed_at",
        "generation",
        "is_hard",
        "open_until",
        "proven",
        "reason",
        "state",
    )

    def __init__(self, rng: Rng) -> None:
        self.state = State.CLOSED
        self.is_hard = False
        """Whether the last trip was on hard evidence; soft opens yield when too little is left."""
        self.proven = False
        """Whether an attempt has ever succeeded since the breaker last tripped."""
        self.reason = ""
        self.open_until = float("-inf")
        self.closed_at: float | None = None
        """When a probe last closed it; None if it never tripped. Slow start counts from here."""
        self._rng = rng
        self.generation = 0
        """Changes with the state; a permit of another one settles nothing."""
        self._trips = 0
        self._clean_since = float("-inf")
        self._clean_successes = 0
        self._lease_until = float("-inf")
        self._forced = False
        self._consecutive = 0
        self._epochs = 0
        self._first_failure_at = float("-inf")
        self._last_failure_at = float("-inf")
        self._slot = 0
        self._seen = [0] * BUCKETS
        self._bad = [0] * BUCKETS
        self._broken = [0] * BUCKETS

    # -- admission

    def is_admitting(self, now: float) -> bool:
        """Whether a permit could be had at `now` without force."""
        return self.state is State.CLOSED or self.is_probe_due(now)

    def is_probe_due(self, now: float) -> bool:
        """Whether the next permit would be a probe: cooled off, or a probe's lease ran out."""
        if self.state is State.OPEN:
            return now >= self.open_until
        return self.state is State.HALF_OPEN and now >= self._lease_until

    def can_force(self, now: float) -> bool:
        """Whether a probe may be forced at `now`: no other probe holds the lease."""
        return self.state is State.OPEN or (
            self.state is State.HALF_OPEN and now >= self._lease_until
        )

    def acquire(self, now: float, *, lease_s: float, force: bool = False) -> Permit | None:
        """Take a permit, or None. A probe's lease runs `lease_s`; then another may replace it."""
        if self.state is State.CLOSED:
            return Permit(self.generation, is_probe=False)
        if not self.is_probe_due(now) and not (force and self.can_force(now)):
            return None
        self._forced = self.state is State.OPEN and now < self.open_until
        if self.state is State.OPEN:
            self._move(Signal.FORCED if self._forced else Signal.COOLED)
        else:
            self.generation += 1  # the hung probe's permit is void
        self._lease_until = now + lease_s
        return Permit(self.generation, is_probe=True)

    @property
    def failures_in_row(self) -> int:
        """Failures since the last success, or since it last changed state."""
        return self._consecutive

    # -- results

    def record(self, permit: Permit, health: Health, started_at: float, now: float) -> None:
        """Report what an attempt showed. Results of an earlier generation are stale: ignored."""
        if permit.generation != self.generation or health is Health.NOTHING:
            return
        if self.state is State.HALF_OPEN:
            self._settle_probe(health, now)
        elif self.state is State.CLOSED:
            if health is Health.GOOD:
                self.record_good(now)
            else:
                self._count(health, started_at, now)

    def record_good(self, now: float) -> None:
        """An attempt admitted by this closed breaker was answered."""
        self._consecutive = 0
        self._clean_successes += 1
        self.proven = True
        slot = int(now // BUCKET_S)
        if slot > self._slot:
            self._advance(slot)
        self._seen[slot % BUCKETS] += 1

    def record_slow(self, permit: Permit, now: float) -> None:
        """Report an answer that came, but far later than its profile promises: soft evidence."""
        if permit.generation == self.generation and self.state is State.CLOSED:
            self._consecutive = 0
            self.proven = True
            self._tally(now, Health.SOFT)
            self._trip_on_ratio(now)

    def release(self, permit: Permit) -> None:
        """Give a permit back without a verdict: the caller cancelled, or the attempt lost a hedge.

        A cancelled probe neither closes nor re-opens: the next caller may probe at once.
        """
        is_current_probe = permit.is_probe and permit.generation == self.generation
        if is_current_probe and self.state is State.HALF_OPEN:
            self._move(Signal.PROBE_RELEASED)

    def open_time_s(self, now: float) -> float:
        """Seconds until a probe may be sent; 0 when attempts flow."""
        if self.state is State.OPEN:
            return max(0.0, self.open_until - now)
        if self.state is State.HALF_OPEN:
            return max(0.0, self._lease_until - now)
        return 0.0

    def trips(self, now: float) -> int:
        """The back-off exponent k: recent trips, less one per clean minute while closed
        (see CLEAN_SUCCESSES)."""
        if self.state is not State.CLOSED or self._trips == 0:
            return self._trips
        minutes = int(max(0.0, now - self._clean_since) // CLEAN_S)
        if minutes >= TRIPS_MAX and self._clean_successes >= CLEAN_SUCCESSES:
            return 0  # long enough for any flapping to have shown, however rarely we call
        return max(0, self._trips - min(minutes, self._clean_successes // CLEAN_SUCCESSES))

    # -- inside

    def _settle_probe(self, health: Health, now: float) -> None:
        if health is Health.GOOD:
            self._move(Signal.PROBE_OK)
            self.closed_at = self._clean_since = now
            self._clean_successes = 0
            self.proven = True
        elif self._forced:
            # Forced because nothing else was left: says nothing new about how long to stay away.
            self._move(Signal.PROBE_FAILED)
        else:
            self._move(Signal.PROBE_FAILED)
            self._open(now, hard=health is Health.HARD or self.is_hard, reason="probe_failed")

    def _count(self, health: Health, started_at: float, now: float) -> None:
        self._trips = self.trips(now)
        self._clean_since = now
        self._clean_successes = 0
        self._tally(now, health)
        if health is Health.HARD or not self.proven:
            self._count_consecutive(started_at, now)
            if self._consecutive >= CONSECUTIVE_MAX and self._is_more_than_one_burst(now):
                self._trip(now, hard=health is Health.HARD, reason="consecutive")
                return
        self._trip_on_ratio(now)

    def _count_consecutive(self, started_at: float, now: float) -> None:
        if self._consecutive == 0:
            self._epochs = 0
            self._first_failure_at = now
            self._last_failure_at = float("-inf")
        # Sent after the last failure was known: fresh evidence. Sent along with it: the same news.
        if started_at >= self._last_failure_at:
            self._epochs += 1
            self._last_failure_at = now
        self._consecutive += 1

    def _is_more_than_one_burst(self, now: float) -> bool:
        return (
            not self.proven  # it never worked: three failures are all the news there is
            or self._epochs >= CONSECUTIVE_MAX
            or self._consecutive >= BURST_MAX
            or now - self._first_failure_at >= BURST_SPAN_S
        )

    def _tally(self, now: float, health: Health) -> None:
        slot = int(now // BUCKET_S)
        if slot > self._slot:
            self._advance(slot)
        self._seen[slot % BUCKETS] += 1
        self._bad[slot % BUCKETS] += 1
        self._broken[slot % BUCKETS] += health is Health.HARD

    def _advance(self, slot: int) -> None:
        """Empty the buckets that time has passed over."""
        for i in range(min(slot - self._slot, BUCKETS)):
            old = (slot - i) % BUCKETS
            self._seen[old] = self._bad[old] = self._broken[old] = 0
        self._slot = slot

    def _trip_on_ratio(self, now: float) -> None:
        seen, bad = sum(self._seen), sum(self._bad)
        if seen >= RATIO_MIN_RESULTS and bad >= RATIO_BAD * seen:
            # What mostly breaks is broken; what is mostly late or busy may still be all there is.
            self._trip(now, hard=2 * sum(self._broken) >= bad, reason="ratio")

    def _trip(self, now: float, *, hard: bool, reason: str) -> None:
        self._move(Signal.TRIP)
        self._open(now, hard=hard, reason=reason)

    def _open(self, now: float, *, hard: bool, reason: str) -> None:
        # An endpoint that never worked starts at the second step: nothing says it ever will.
        exponent = self._trips if self.proven else max(self._trips, 1)
        jitter = 0.5 + self._rng.random()
        self.open_until = now + min(OPEN_MAX_S, OPEN_BASE_S * 2.0**exponent) * jitter
        self._trips = min(TRIPS_MAX, exponent + 1)
        self.is_hard = hard
        self.reason = reason
        self.proven = False
        self._forget()

    def _forget(self) -> None:
        self._consecutive = 0
        self._seen = [0] * BUCKETS
        self._bad = [0] * BUCKETS
        self._broken = [0] * BUCKETS

    def _move(self, signal: Signal) -> None:
        self.state = TRANSITIONS[self.state, signal]
        self.generation += 1
