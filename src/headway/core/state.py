"""What this process knows of one endpoint, and of one pool of endpoints.

`EndpointState` outlives snapshots: a policy swap keeps it for every endpoint whose id stays.
`Pool` is what the calls of one route share: budgets, queue, peers, latency history.

Pure; single-threaded under the engine's lock. Reads never change state: decays are computed from
the last event, so a thousand cancelled calls leave it bit-identical.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

from headway.core.admission import ConcurrencyLimit, RateGate, WaitQueue
from headway.core.breaker import Breaker
from headway.core.budget import HedgeBudget, RetryBudget
from headway.core.eject import PeerEjector
from headway.core.fleet import FleetGate
from headway.core.model import INFINITY, Rng
from headway.core.snapshot import Endpoint, Route
from headway.core.yielding import Yielding

RESIDUAL_GAIN = 0.2
RESIDUAL_RANGE = (0.5, 4.0)
RESIDUAL_FORGET_S = 180.0
"""Own evidence fades to neutral over this long: an idle slow endpoint gets another look."""
RESIDUAL_FORGET_CALLS = 50
"""... but not before so many calls of this process: a process that makes ten calls in three minutes
would otherwise spend a good part of them on looking at an endpoint that it knows to be slow."""
RESIDUAL_FORGET_MAX_S = 900.0
"""Past this age evidence counts for nothing, however few calls were made."""
SAMPLES_FADE_S = 120.0
"""Samples this far apart say nothing of each other: the first of a new time counts for half."""
BADNESS_HALF_LIFE_S = 30.0
BADNESS_MAX = 3.0
PENALTY_PER_BADNESS = 2.0
"""One fresh hard failure divides an endpoint's share by e^2 = 7.4."""
SLOW_START_S = 30.0
SLOW_START_FLOOR = 0.1
BREAKERS_MAX = 256
"""Models per endpoint with a breaker of their own; the least recent is dropped."""
UNIT_OVERHEAD_TOKENS = 64.0
"""Where there is no profile, a call costs (64 + output tokens) units of its pool's mean time."""
TTFT_RATIO_RANGE = (0.25, 64.0)
TTFT_HISTORY = 200
TTFT_HISTORY_MIN = 50
TTFT_REFRESH = 20
SIZE_BUCKETS = (1_000, 8_000, 64_000)
"""Prompt tokens: TTFT is compared within a bucket."""


GUESSES = frozenset({"cooling", "exhausted"})
"""Reasons to leave an endpoint alone that nobody asked for: it answered 429 without saying how
long ("cooling"), or 200 saying that this was the last for now ("exhausted"). They send calls
elsewhere; where there is nowhere else, a wait that may be for nothing is worse than asking."""


class Tally:
    """What is counted over all the endpoints of a process."""

    __slots__ = ("answered", "dropped")

    def __init__(self) -> None:
        self.answered = 0
        """Calls seen answered, whichever endpoint did."""
        self.dropped = 0
        """Breakers that were forgotten for want of room: a `Row` may still hold one."""


def on_surface(model: str, surface: str) -> str:
    """What a cool-down is kept under that stands for one surface of a model alone."""
    return f"{model} ({surface})"


class EndpointState:
    """The mutable side of one endpoint."""

    __slots__ = (
        "_badness",
        "_badness_at",
        "_ceiling",
        "_residual",
        "_residual_at",
        "_residual_tally",
        "_samples",
        "_tally",
        "breakers",
        "call_time_s",
        "endpoint",
        "has_failed",
        "inflight",
        "is_paced",
        "last_success_at",
        "limit",
        "outs",
        "rpm",
        "throttles_in_row",
        "tpm",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        ceiling: int | None,
        tally: Tally | None = None,
        *,
        in_fleet: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self._ceiling = ceiling
        self.inflight = 0
        self.limit = ConcurrencyLimit(_tighter(endpoint.capacity.concurrency, ceiling))
        capacity = endpoint.capacity
        if in_fleet:
            self.rpm: RateGate = FleetGate(capacity.rpm, capacity.fleet_rpm)
            self.tpm: RateGate = FleetGate(capacity.tpm, capacity.fleet_tpm)
        else:
            self.rpm = RateGate(capacity.rpm)
            self.tpm = RateGate(capacity.tpm)
        self.is_paced = _has_rate(endpoint)
        """Whether a rate per minute is published; saves asking the gates on every call."""
        self.breakers: dict[str, Breaker] = {}
        self.outs: dict[str, tuple[float, str]] = {}
        """model, or model `on_surface` -> (until, reason): cool-downs asked for or guessed, and
        what isn't there."""
        self.throttles_in_row = 0
        self.call_time_s = 1.0
        self.last_success_at = -INFINITY
        self._residual = 1.0
        self._residual_at = -INFINITY
        self._tally = tally if tally is not None else Tally()
        self._residual_tally = 0
        self._samples = 0.0
        self.has_failed = False
        """Whether there was ever something to blame it for: saves asking for `badness`."""
        self._badness = 0.0
        self._badness_at = -INFINITY

    def reconfigure(self, endpoint: Endpoint, ceiling: int | None) -> None:
        """Adopt a new document's entry for the same id; everything learned is kept."""
        known, self.endpoint, capacity = self.endpoint.capacity, endpoint, endpoint.capacity
        if ceiling == self._ceiling and (known is capacity or known == capacity):
            return
        self._ceiling = ceiling
        self.limit.reconfigure(_tighter(capacity.concurrency, ceiling))
        for gate, own, whole in (
            (self.rpm, capacity.rpm, capacity.fleet_rpm),
            (self.tpm, capacity.tpm, capacity.fleet_tpm),
        ):
            if isinstance(gate, FleetGate):
                gate.reshare(own, whole)
            else:
                gate.reconfigure(own)
        self.is_paced = _has_rate(endpoint)

    def breaker(self, model: str, rng: Rng) -> Breaker:
        """The breaker for this endpoint and upstream model."""
        breaker = self.breakers.get(model)
        if breaker is None:
            if len(self.breakers) >= BREAKERS_MAX:
                del self.breakers[next(iter(self.breakers))]
                self._tally.dropped += 1
            breaker = self.breakers[model] = Breaker(rng)
        return breaker

    # -- latency evidence

    def residual(self, now: float) -> float | None:
        """Seen over planned latency, faded towards 1 with age; None when nothing is known."""
        age = now - self._residual_at
        faded = age / RESIDUAL_FORGET_S
        calls = (self._tally.answered - self._residual_tally) / RESIDUAL_FORGET_CALLS
        if faded > calls and (faded := age / RESIDUAL_FORGET_MAX_S) < calls:
            faded = calls
        if faded >= 1.0:
            return None
        return 1.0 + (self._residual - 1.0) * (1.0 - faded)

    def observe_latency(self, seen_s: float, planned_s: float, now: float) -> None:
        """Fold one finished call into the residual.

        A first sample counts for half, from the fourth in a row on for a fifth: what is known is
        little at first, and little again after a long time.
        """
        low, high = RESIDUAL_RANGE
        ratio = min(high, max(low, seen_s / planned_s)) if planned_s > 0 else 1.0
        known = self.residual(now)
        left = 1.0 - (now - self._residual_at) / SAMPLES_FADE_S
        self._samples = samples = 1.0 + (self._samples * left if left > 0.0 else 0.0)
        base = 1.0 if known is None else known
        gain = max(RESIDUAL_GAIN, 1.0 / (1.0 + samples))
        self._residual = base + gain * (ratio - base)
        self._residual_at = now
        tally = self._tally
        tally.answered = self._residual_tally = tally.answered + 1

    # -- failure evidence

    def badness(self, now: float) -> float:
        """Recent failures, halved every 30 s."""
        if self._badness == 0.0:
            return 0.0
        return self._badness * math.pow(0.5, max(0.0, now - self._badness_at) / BADNESS_HALF_LIFE_S)

    def blame(self, amount: float, now: float) -> None:
        """Add to the badness: 1 for a hard failure, less for a soft one."""
        self._badness = min(BADNESS_MAX, self.badness(now) + amount)
        self.has_failed = True
        self._badness_at = now

    def out_until(self, model: str) -> tuple[float, str]:
        """When a cool-down or quarantine of this model ends, and why it stands."""
        return self.outs.get(model, (-INFINITY, ""))

    def put_out(self, model: str, until: float, reason: str, now: float) -> None:
        """Leave this model alone until `until`; a longer existing cool-down stands, and what is
        known stands before what is guessed."""
        known_until, known_reason = self.out_until(model)
        if known_until > now and (reason in GUESSES) != (known_reason in GUESSES):
            stands = reason in GUESSES
        else:
            stands = known_until >= until
        if not stands:
            if len(self.outs) >= BREAKERS_MAX and model not in self.outs:
                del self.outs[next(iter(self.outs))]
            self.outs[model] = (until, reason)

    def served(self, model: str, now: float) -> None:
        """A call succeeded: forget what has passed, and what was only guessed."""
        until, reason = self.out_until(model)
        if until <= now or reason in GUESSES:
            self.outs.pop(model, None)


class _Ttft:
    """Times to first token of one size of prompts."""

    __slots__ = ("delay_s", "recent", "since")

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=TTFT_HISTORY)
        self.since = 0
        """Samples since `delay_s` was worked out."""
        self.delay_s: float | None = None


class Pool:
    """What the calls of one route share."""

    __slots__ = (
        "_ttft",
        "_unit_s",
        "budget",
        "ejector",
        "exhausted",
        "hedges",
        "inflight",
        "name",
        "queue",
        "ttft_ratio",
        "turn",
        "yielding",
    )

    def __init__(self, route: Route, now: float) -> None:
        self.name = route.name
        self.budget = RetryBudget(route.retry, now)
        self.hedges = HedgeBudget(route.hedge)
        self.queue = WaitQueue()
        self.ejector = PeerEjector(now)
        self.inflight = 0
        self.exhausted = False
        self.yielding: Yielding | None = None
        """How much background work begins; None before there was any."""
        self.turn: dict[str, float] = {}
        """Credits of the smooth weighted round robin."""
        self.ttft_ratio = 1.0
        """Median of seen over planned TTFT, over all of the pool's endpoints."""
        self._unit_s: float | None = None
        self._ttft: dict[int, _Ttft] = {}

    def reconfigure(self, route: Route) -> None:
        """Adopt a new document's route of the same name."""
        self.budget.reconfigure(route.retry)
        self.hedges.reconfigure(route.hedge)
        self.ejector.retain(route.endpoint_ids)
        if self.yielding is not None:
            self.yielding.retain(route.endpoint_ids)

    def planned_s(self, output_tokens: int) -> float | None:
        """The pool's own mean for a call of this size; None before the first one."""
        if self._unit_s is None:
            return None
        return self._unit_s * (UNIT_OVERHEAD_TOKENS + output_tokens)

    def observe_call(self, seconds: float, output_tokens: int) -> None:
        """Fold a finished call into the pool's mean (weight 1/20)."""
        unit = seconds / (UNIT_OVERHEAD_TOKENS + output_tokens)
        known = self._unit_s
        self._unit_s = unit if known is None else known + 0.05 * (unit - known)

    def observe_ttft_ratio(self, ratio: float) -> None:
        """Fold seen over planned TTFT into the pool's median (a step of 5 % towards the sample).

        The median, and not a mean: one slow endpoint of three must not make its own lateness look
        usual, while lateness everywhere (overload, a client short of CPU) must.
        """
        step = 1.05 if ratio > self.ttft_ratio else 1.0 / 1.05
        low, high = TTFT_RATIO_RANGE
        self.ttft_ratio = min(high, max(low, self.ttft_ratio * step))

    def observe_ttft(self, ttft_s: float, prompt_tokens: int) -> None:
        """Remember a successful TTFT for the hedge delay."""
        bucket = size_bucket(prompt_tokens)
        known = self._ttft.get(bucket)
        if known is None:
            known = self._ttft[bucket] = _Ttft()
        known.recent.append(ttft_s)
        known.since += 1

    def hedge_delay_s(self, prompt_tokens: int) -> float | None:
        """max(1.2 x median, p95) of recent TTFTs in the prompt's bucket; None below 50 samples."""
        known = self._ttft.get(size_bucket(prompt_tokens))
        if known is None or len(known.recent) < TTFT_HISTORY_MIN:
            return None
        if known.delay_s is None or known.since >= TTFT_REFRESH:
            ordered = sorted(known.recent)
            n = len(ordered)
            known.delay_s = max(1.2 * ordered[n // 2], ordered[int(0.95 * n)])
            known.since = 0
        return known.delay_s


def size_bucket(prompt_tokens: int) -> int:
    """Index of the prompt-size bucket."""
    return bisect_left(SIZE_BUCKETS, prompt_tokens)


def slow_start(breaker: Breaker, now: float) -> float:
    """Share an endpoint gets back after its breaker closed: 10 % to 100 % over 30 s."""
    if breaker.closed_at is None:
        return 1.0
    return min(1.0, max(SLOW_START_FLOOR, (now - breaker.closed_at) / SLOW_START_S))


def _has_rate(endpoint: Endpoint) -> bool:
    return endpoint.capacity.rpm is not None or endpoint.capacity.tpm is not None


def _tighter(a: int | None, b: int | None) -> float | None:
    if a is None or b is None:
        a = b if a is None else a
        return None if a is None else float(a)
    return float(min(a, b))
