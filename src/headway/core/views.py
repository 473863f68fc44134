"""What the engine shows of itself: status rows and explanations, for people and dashboards."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.select import Candidate, Out


class BreakerStatus(NamedTuple):
    """One breaker, for people."""

    model: str
    """The upstream model."""
    state: str
    """closed | half_open | open"""
    reason: str
    """Why it tripped last: consecutive | ratio | probe_failed."""
    opens_in_s: float
    """Seconds until a probe may go; 0 when closed."""
    trips: int
    """Recent trips: each doubles how long it stays open."""


class EndpointStatus(NamedTuple):
    """One endpoint as this process sees it, for people."""

    endpoint_id: str
    """As the policy names it."""
    state: str
    """active | draining | disabled, by the policy."""
    in_flight: int
    """Attempts of this process under way there."""
    limit: float | None
    """Attempts at once, published or learned; None: unlimited."""
    breakers: tuple[BreakerStatus, ...]
    """One for each upstream model that was asked."""
    out: tuple[tuple[str, str, float], ...]
    """(model, reason, seconds left) of cool-downs and quarantines."""
    credential_blocked_s: float
    """Seconds until its credential is used again (bad key, quota)."""
    ejected_s: float
    """Seconds until it takes part again, where it was worse than its peers."""
    residual: float | None
    """Seen over planned latency; None when nothing recent is known."""
    badness: float
    """Recent failures, half-life 30 s."""


class PoolStatus(NamedTuple):
    """One route's shared state, for people."""

    route: str
    """Its name."""
    in_flight: int
    """Calls under way."""
    queued: int
    """Calls that wait for their turn."""
    retry_budget: float
    """Tokens at hand: one for each retry or hedge."""
    retry_capacity: float
    """Tokens at most."""
    hedge_budget: float
    """Tokens that hedges need beside those."""


class VersionStatus(NamedTuple):
    """One version of the policy, for people."""

    epoch: int
    """Of the document."""
    version: int
    """Of the document."""
    since: float
    """When it came into force (monotonic seconds); -infinity: from the start."""
    calls: int
    """Begun under it. Each call finishes under the version it began with."""


class CandidateRow(NamedTuple):
    """One line of an explanation."""

    endpoint_id: str
    """Where the call might go."""
    group: int
    """0: the route's own endpoints; 1 and up: fallbacks in order."""
    eligible: bool
    """Whether it could take the call now."""
    why_not: str
    """open | limit | cold | throttled | paced | credential | ...; "" where it is eligible."""
    weight: float
    """The published share among those eligible."""
    q: float
    """Seen over planned latency, over the mean of the known ones."""
    slow_start: float
    """The part of its share that it has back since its breaker closed, 0.1 to 1."""
    penalty: float
    """The part that recent failures leave it, 0 to 1."""
    outstanding: int
    """Attempts of this process under way there."""
    share: float
    """Probability mass before own outstanding is taken into account."""
    expected_s: float | None
    """Seconds that the policy's profile, and what was seen, promise; None: no profile."""
    usd: float | None
    """What the call should cost there; None: no price in the policy."""


class Explanation(NamedTuple):
    """Why a call would go where it would go."""

    route: str | None
    """The route that takes it; None: no route does, it passes through."""
    algorithm: str
    """The route's strategy."""
    warm_endpoint: str | None
    """Where the session, or the longest known prefix of the prompt, was served last."""
    warm_tokens: int
    """How much of the prompt is known there."""
    candidates: tuple[CandidateRow, ...]
    """The route's own endpoints, then those of its fallbacks."""
    why: str = ""
    """Where no route takes it: what becomes of the call, and whose names are near."""


def eligible_row(candidate: Candidate, candidates: list[Candidate], group: int) -> CandidateRow:
    """The row of a candidate that could take the call."""
    total = sum(c.p for c in candidates)
    return CandidateRow(
        candidate.endpoint.id,
        group,
        True,
        "",
        candidate.weight,
        candidate.q,
        candidate.slow_start,
        candidate.penalty,
        candidate.state.inflight,
        candidate.p / total if total > 0 else 0.0,
        candidate.expected_s,
        candidate.usd,
    )


def out_row(out: Out, weights: tuple[tuple[str, float], ...], group: int) -> CandidateRow:
    """The row of an endpoint that could not, with why."""
    weight = dict(weights)[out.endpoint_id]
    return CandidateRow(
        out.endpoint_id, group, False, out.reason, weight, 1.0, 1.0, 1.0, 0, 0.0, None, None
    )
