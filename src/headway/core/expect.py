"""Expectation: what a call should take and cost at an endpoint, by the policy's own figures.

The plan that residuals are measured against, and the ground for deadlines, price trade-offs and
explanations. Never a ranking from call to call.
"""

from __future__ import annotations

from headway.core.affinity import Warm
from headway.core.model import CallFacts
from headway.core.select import Candidate
from headway.core.snapshot import Endpoint, Price, Route
from headway.core.state import Pool


def expect(
    candidate: Candidate, facts: CallFacts, route: Route, pool: Pool, warm: Warm | None, now: float
) -> None:
    """Fill in the expected end-to-end latency (s) and price (USD) of a call at the candidate."""
    expect_latency(candidate, facts, route, pool, warm, now)
    candidate.usd, price = None, candidate.endpoint.price
    if price is not None:
        known = _known(candidate, facts, warm)
        uncached = facts.prompt_tokens - known
        candidate.usd = _usd(price, uncached, known, expected_output(facts, route))


def expect_latency(
    candidate: Candidate, facts: CallFacts, route: Route, pool: Pool, warm: Warm | None, now: float
) -> None:
    """Fill in the expected end-to-end latency alone: money is counted in decimals, and takes as
    long as everything else here."""
    uncached = facts.prompt_tokens
    if warm is not None:
        uncached -= _known(candidate, facts, warm)
    output = expected_output(facts, route)
    planned = planned_latency_s(candidate.endpoint, pool, uncached, output)
    if planned is not None:
        planned *= candidate.state.residual(now) or 1.0
    candidate.expected_s = planned


def _known(candidate: Candidate, facts: CallFacts, warm: Warm | None) -> int:
    """Prompt tokens that the candidate probably holds."""
    if warm is None or warm.endpoint_id != candidate.endpoint.id:
        return 0
    return min(warm.tokens, facts.prompt_tokens)  # a session's last prompt may be longer


def excess(
    candidate: Candidate,
    facts: CallFacts,
    route: Route,
    warm: Warm | None,
    promised: tuple[float, float, float],
    now: float,
) -> float:
    """Predicted over promised latency, the worst of the three; at most 1 where all are kept.

    Objectives are 99th percentiles: first token and time per token by the profile's own p99 where
    it states one. 0 without a profile: nothing is known, and nothing is held against it.
    """
    endpoint = candidate.endpoint
    plan = endpoint.plan
    if plan is None:
        return 0.0
    ttft_slo_s, tpot_slo_s, total_slo_s = promised
    factor = candidate.state.residual(now) or 1.0
    known = warm.tokens if warm is not None and warm.endpoint_id == endpoint.id else 0
    ttft = plan.ttft_of(max(0, facts.prompt_tokens - known))
    tpot = plan.tpot_s
    total = factor * (ttft + expected_output(facts, route) * tpot) + endpoint.rtt_s
    if plan.ttft_p99_s is not None:
        ttft = max(ttft, plan.ttft_p99_s)
    if plan.tpot_p99_s is not None:
        tpot = max(tpot, plan.tpot_p99_s)
    first = factor * ttft + endpoint.rtt_s
    return max(first / ttft_slo_s, factor * tpot / tpot_slo_s, total / total_slo_s)


def _usd(price: Price, uncached: int, cached: int, output: int) -> float | None:
    if price.input_per_mtok is None or price.output_per_mtok is None:
        return None
    cached_price = price.cached_input_per_mtok
    if cached_price is None:
        cached_price = price.input_per_mtok
    total = price.input_per_mtok * uncached + cached_price * cached + price.output_per_mtok * output
    return float(total / 1_000_000)


def expected_output(facts: CallFacts, route: Route) -> int:
    """Output tokens a call is planned with."""
    if facts.surface in ("embeddings", "moderations"):
        return 0
    usual, most = route.expected_output_tokens, facts.max_output_tokens
    return most if most and most < usual else usual


def planned_latency_s(
    endpoint: Endpoint, pool: Pool, uncached_tokens: int, output_tokens: int
) -> float | None:
    """Latency the policy plans for a call: rtt + TTFT + tokens x TPOT at the planned load.

    Without a profile: the pool's own mean for a call of that size; None before the first one.
    """
    plan = endpoint.plan
    if plan is None:
        return pool.planned_s(output_tokens)
    return plan.latency_of(uncached_tokens, output_tokens)
