"""A cold start beside a dead endpoint: what is risked there is what the retry budget can repair."""

from __future__ import annotations

import random

import pytest

from headway.core.engine import Engine
from headway.core.model import Attempt, CallFacts, FailureClass, Outcome, Send
from headway.core.snapshot import AdmissionPolicy, Endpoint, Route, Snapshot, WeightTable

FAILED = Outcome(FailureClass.CONNECT, error_type="ConnectError", reached_model=False)


def engine_over(dead: int, alive: int, *, seed: int, cold: int = 3) -> Engine:
    weights = (("dead", dead / (dead + alive)), ("alive", alive / (dead + alive)))
    route = Route(
        name="all",
        weights=WeightTable(by_zone={"*": ((float("inf"), weights),)}),
        endpoint_ids=frozenset({"dead", "alive"}),
        admission=AdmissionPolicy(cold_concurrency=cold),
    )
    endpoints = {name: Endpoint(id=name, base_url=f"https://{name}.example") for name, _ in weights}
    return Engine(Snapshot(endpoints=endpoints, routes=(route,)), rng=random.Random(seed))


@pytest.mark.parametrize("seed", range(20))
def test_failures_at_an_unproven_endpoint_count_like_attempts_under_way(seed: int) -> None:
    engine = engine_over(9, 1, seed=seed)
    under_way: list[tuple[object, Attempt]] = []
    sent = 0
    for number in range(40):
        call = engine.begin(CallFacts("m"), now=0.001 * number)
        assert call is not None
        action = call.next_action(0.001 * number)
        if not isinstance(action, Send) or action.attempt.endpoint_id != "dead":
            continue
        sent += 1
        under_way.append((call, action.attempt))
        if len(under_way) == 2:  # some fail while others are still out
            failed_call, attempt = under_way.pop(0)
            failed_call.on_outcome(attempt, FAILED, 0.001 * number)  # type: ignore[attr-defined]
            retry = failed_call.next_action(0.001 * number)  # type: ignore[attr-defined]
            assert isinstance(retry, Send)
            assert retry.attempt.endpoint_id == "alive"

    assert sent == 3
