"""What the engine shows of itself: status rows and explanations, for people and dashboards."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.select import Candidate, Out


class BreakerStatus(NamedTuple):
    """One breaker, for people."""

    model: str
    state: str
    reason: str
    opens_in_s: float
    """Seconds until a probe may go; 0 when closed."""
    trips: int


class EndpointStatus(NamedTuple):
    """One endpoint as this process sees it, for people."""

    endpoint_id: str
    state: str
    in_flight: int
    limit: float | None
    breakers: tuple[BreakerStatus, ...]
    out: tuple[tuple[str, str, float], ...]
    """(model, reason, seconds left) of cool-downs and quarantines."""
    credential_blocked_s: float
    ejected_s: float
    residual: float | None
    """Seen over planned latency; None when nothing recent is known."""
    badness: float
    """Recent failures, half-life 30 s."""


class PoolStatus(NamedTuple):
    """One route's shared state, for people."""

    route: str
    in_flight: int
    queued: int
    retry_budget: float
    retry_capacity: float
    hedge_budget: float


class VersionStatus(NamedTuple):
    """One version of the policy, for people."""

    epoch: int
    version: int
    since: float
    """When it came into force (monotonic seconds); -infinity: from the start."""
    calls: int
    """Begun under it. Each call finishes under the version it began with."""


class CandidateRow(NamedTuple):
    """One line of an explanation."""

    endpoint_id: str
    group: int
    """0: the route's own endpoints; 1 and up: fallbacks in order."""
    eligible: bool
    why_not: str
    weight: float
    q: float
    slow_start: float
    penalty: float
    outstanding: int
    share: float
    """Probability mass before own outstanding is taken into account."""
    expected_s: float | None
    usd: float | None


class Explanation(NamedTuple):
    """Why a call would go where it would go."""

    route: str | None
    algorithm: str
    warm_endpoint: str | None
    warm_tokens: int
    candidates: tuple[CandidateRow, ...]


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
