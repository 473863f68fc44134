"""Selection: filter the endpoints of a group, then choose one.

The default strategy, `steady`: the published weights are the centre, and only this process's own
evidence moves them. With r the residual of an endpoint (seen over planned latency) and q = r over
the mean of the known ones,

    p = weight x exp(-(q / q_min - 1) / 0.3) x slow start x penalty

and then one draw by p x 0.05^(own outstanding / (n x share)). The share is the weight, less where
more speaks against an endpoint than chance explains: the balance evens out what a few calls happen
to say, and does not draw calls back to what is known to be slow or dear. With choices = k, k draws
by p of which the one with the lowest own outstanding / weight is kept. Load figures of a shared
snapshot never rank endpoints from call to call: ranking by a 10 s old snapshot herds (1.7 to 3.7 x
the mean latency of an informed gateway), while this rule stays within 1.08 x at any policy age.

To add a strategy: one function, one row in `STRATEGIES`. Pure and deterministic under a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headway.core.breaker import Breaker
from headway.core.model import CallFacts, Rng
from headway.core.snapshot import Endpoint, Route, Snapshot, Weights
from headway.core.state import PENALTY_PER_BADNESS, EndpointState, Pool, slow_start

SHARPNESS = 0.3
"""How far apart two residuals must be for a factor e between shares."""
OUTSTANDING_BASE = 0.05
"""Weight left per own outstanding attempt at an endpoint of average share."""
CHANCE = 3.0
"""Cost that a few calls may come to by chance: own outstanding attempts even that out."""
TIE = 1.02
"""Two draws whose own load differs by less are equal: the first stands."""
AFFINITY_Q_MAX = 2.0
"""A warm endpoint this much slower than the pool's mean is left."""


class Candidate:
    """An endpoint that could take the call now, with what speaks for and against it."""

    __slots__ = (
        "breaker",
        "cost",
        "endpoint",
        "excess",
        "expected_s",
        "is_overruled",
        "model",
        "p",
        "penalty",
        "q",
        "share",
        "slow_start",
        "state",
        "usd",
        "weight",
    )

    q: float
    """Residual over the mean of the known ones. `weigh` fills in this and the next four."""
    cost: float
    """What residual, objectives and price speak against it: p falls by e for each one."""
    slow_start: float
    penalty: float
    p: float

    def __init__(
        self, endpoint: Endpoint, state: EndpointState, breaker: Breaker, model: str, weight: float
    ) -> None:
        self.endpoint = endpoint
        self.state = state
        self.breaker = breaker
        self.model = model
        self.share = weight
        """As published."""
        self.weight = weight
        """Normalised among the candidates, by `weigh`."""
        self.is_overruled = False
        """Its breaker stands open on soft evidence, and is not listened to: too little is left."""
        self.excess = 0.0
        """Predicted over promised latency, the worst of the class's objectives; see `expect`."""
        self.expected_s: float | None = None
        self.usd: float | None = None

    @property
    def pressure(self) -> float:
        """Own outstanding per unit of weight."""
        return self.state.inflight / self.weight if self.weight > 0 else math.inf


class Row:
    """The candidates that one set of weights names for a model, kept from call to call.

    What a call fills in (`weigh`, `expect`) is valid until the next one, under the engine's lock.
    """

    __slots__ = ("body_max", "candidates", "dropped", "is_active", "snapshot", "weights", "window")

    def __init__(
        self, weights: Weights, snapshot: Snapshot, candidates: list[Candidate], dropped: int
    ) -> None:
        self.weights = weights
        self.snapshot = snapshot
        self.candidates = candidates
        self.dropped = dropped
        """`Tally.dropped` when it was made."""
        self.is_active, self.window, self.body_max = True, math.inf, math.inf
        for candidate in candidates:
            endpoint = candidate.endpoint
            if endpoint.state != "active":
                self.is_active = False
            if endpoint.max_context_tokens is not None:
                self.window = min(self.window, endpoint.max_context_tokens)
            if endpoint.max_body_bytes is not None:
                self.body_max = min(self.body_max, endpoint.max_body_bytes)


class Out(NamedTuple):
    """An endpoint that cannot take the call, why, and until when."""

    endpoint_id: str
    reason: str
    """draining | disabled | tried | context_window | body_size | throttled | not_found | credential
    | open | ejected | limit | cold | paced | domain"""
    until: float


class Choice(NamedTuple):
    """What a strategy may look at beside the candidates."""

    route: Route
    pool: Pool
    facts: CallFacts
    usd_per_second: float
    rng: Rng
    is_promised: bool = False
    """Whether the call's class has latency objectives, so that `excess` is filled in."""


Strategy = Callable[[Sequence[Candidate], Choice], Candidate]


def weigh(candidates: Sequence[Candidate], choice: Choice, now: float) -> None:
    """Fill in weight, q, cost, slow start, penalty and p of every candidate."""
    total = sum([c.share for c in candidates])
    residuals = [c.state.residual(now) for c in candidates]
    known = [r for r in residuals if r is not None]
    mean = sum(known) / len(known) if known else 1.0
    qs = [1.0 if r is None else r / mean for r in residuals]
    q_min = min(qs)
    for c, q in zip(candidates, qs, strict=True):
        c.q = q
        c.cost = (q / q_min - 1.0) / SHARPNESS
    if choice.is_promised:
        for c in candidates:
            if c.excess > 1.0:
                c.cost += (c.excess - 1.0) / SHARPNESS
    if choice.usd_per_second > 0:
        _weigh_price(candidates, choice.usd_per_second)
    exp, even = math.exp, 1.0 / len(candidates)
    for c in candidates:
        c.weight = weight = c.share / total if total > 0 else even
        c.p = p = weight * exp(-c.cost)
        c.slow_start = c.penalty = 1.0
        if c.state.has_failed or c.breaker.closed_at is not None:
            c.slow_start = slow_start(c.breaker, now)
            badness = c.state.badness(now)
            c.penalty = exp(-PENALTY_PER_BADNESS * badness) if badness else 1.0
            c.p = p * c.slow_start * c.penalty


def _weigh_price(candidates: Sequence[Candidate], usd_per_second: float) -> None:
    """Trade price against time: a dollar is worth 1 / usd_per_second seconds of latency."""
    totals: list[float] = []
    for c in candidates:
        if c.usd is None or c.expected_s is None:
            return  # an unknown price is not a low one: leave the weights alone
        totals.append(c.expected_s + c.usd / usd_per_second)
    best = min(totals)
    if best > 0:
        for c, total in zip(candidates, totals, strict=True):
            c.cost += (total / best - 1.0) / SHARPNESS


def draw(candidates: Sequence[Candidate], weights: Sequence[float], rng: Rng) -> Candidate:
    """One weighted draw; uniform when nothing has weight."""
    total = sum(weights)
    if not total > 0:
        return candidates[int(rng.random() * len(candidates))]
    x = rng.random() * total
    for candidate, weight in zip(candidates, weights, strict=True):
        x -= weight
        if x < 0:
            return candidate
    return max(zip(candidates, weights, strict=True), key=lambda cw: cw[1])[0]


def steady(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """The default: published weights, moved only by own evidence (see the module)."""
    draws = choice.route.selection.choices
    if draws >= 2:
        return _least_of_draws(candidates, draws, choice.rng)
    weights = [c.p for c in candidates]
    outstanding = [c.state.inflight for c in candidates]
    if any(outstanding):
        n = len(candidates)
        shares = [
            c.weight if c.cost <= CHANCE else c.weight * math.exp(CHANCE - c.cost)
            for c in candidates
        ]
        total = sum(shares)
        loads = [
            own * total / (n * share) if share > 0 else math.inf
            for own, share in zip(outstanding, shares, strict=True)
        ]
        least = min(loads)  # only differences matter; subtracting keeps the powers in range
        for i, load in enumerate(loads):
            if load != least or load == math.inf:
                weights[i] *= OUTSTANDING_BASE ** (load - least) if load < math.inf else 0.0
    return draw(candidates, weights, choice.rng)


def _least_of_draws(candidates: Sequence[Candidate], draws: int, rng: Rng) -> Candidate:
    best = draw(candidates, [c.p for c in candidates], rng)
    rest = [c for c in candidates if c is not best]
    for _ in range(min(draws, len(candidates)) - 1):
        other = draw(rest, [c.p for c in rest], rng)
        rest.remove(other)
        if other.pressure * TIE < best.pressure:
            best = other
    return best


def weighted_random(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """By published weight alone (slow start kept)."""
    return draw(candidates, [c.weight * c.slow_start for c in candidates], choice.rng)


def round_robin(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """Smooth weighted round robin (after nginx): the largest credit goes, and pays one round."""
    turn = choice.pool.turn
    best = candidates[0]
    for c in candidates:
        turn[c.endpoint.id] = turn.get(c.endpoint.id, 0.0) + c.weight
        if turn[c.endpoint.id] > turn[best.endpoint.id]:
            best = c
    turn[best.endpoint.id] -= 1.0
    return best


def least_inflight(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """Fewest own outstanding per weight; ties at random."""
    low = min(c.pressure for c in candidates)
    ties = [c for c in candidates if c.pressure <= low]
    return draw(ties, [c.weight for c in ties], choice.rng)


def two_choices(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """Two draws by published weight, the one with fewer own outstanding per weight."""
    first = draw(candidates, [c.weight for c in candidates], choice.rng)
    rest = [c for c in candidates if c is not first]
    second = draw(rest, [c.weight for c in rest], choice.rng)
    return second if second.pressure < first.pressure else first


def min_cost(candidates: Sequence[Candidate], choice: Choice) -> Candidate:
    """Smallest expected latency plus priced cost. Herds on shared figures: a baseline only."""

    def total(c: Candidate) -> float:
        seconds = (c.expected_s if c.expected_s is not None else 1.0) * c.q
        if choice.usd_per_second > 0 and c.usd is not None:
            seconds += c.usd / choice.usd_per_second
        return seconds

    low = min(total(c) for c in candidates)
    ties = [c for c in candidates if total(c) <= low]
    return draw(ties, [c.weight for c in ties], choice.rng)


STRATEGIES: dict[str, Strategy] = {
    "steady": steady,
    "weighted_random": weighted_random,
    "round_robin": round_robin,
    "least_inflight": least_inflight,
    "two_choices": two_choices,
    "min_cost": min_cost,
}
NEEDS_EXPECTATION = frozenset({"min_cost"})
"""Strategies that read `expected_s` of every candidate."""


def choose(candidates: Sequence[Candidate], choice: Choice, now: float) -> Candidate:
    """Run the route's strategy over candidates that all may take the call."""
    if len(candidates) == 1:
        candidates[0].weight = 1.0
        return candidates[0]
    weigh(candidates, choice, now)
    selection = choice.route.selection
    if selection.explore > 0 and choice.rng.random() < selection.explore:
        return weighted_random(candidates, choice)
    return STRATEGIES[selection.algorithm](candidates, choice)


def may_stay_warm(candidate: Candidate, candidates: Sequence[Candidate], choice: Choice) -> bool:
    """Whether a call should go to the endpoint that holds its prefix, rather than be drawn.

    Call after `weigh`. A tight bound on own outstanding is off by default: in agent sessions it
    throws the cache away (hits fell to 0.39 of the ideal).
    """
    if candidate.q > AFFINITY_Q_MAX:
        return False
    bound = choice.route.affinity.max_load_factor
    if bound is not None and candidate.state.inflight > 0:
        # Both sides count the call about to be placed, as in bounded-load consistent hashing.
        mean = (sum(c.state.inflight for c in candidates) + 1) / len(candidates)
        if candidate.state.inflight + 1 > bound * max(1.0, mean):
            return False
    return True
