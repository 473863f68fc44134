"""How an attempt is opened: what it is called, what it is planned with, how long it may take."""

from __future__ import annotations

from headway.core.model import INFINITY, AttemptKind
from headway.core.snapshot import DeadlinePolicy, SelectionPolicy
from tests.core.build import Bench, endpoint, profile, route

AB = route({"a": 1, "b": 1})


def warm_at_b() -> Bench:
    """Two endpoints that prefill a thousand tokens a second; one holds a session of a thousand."""
    plan = profile(1.0, 0.0, prefill_s_per_token=0.001)
    bench = Bench(AB, endpoints=[endpoint("a", profile=plan), endpoint("b", profile=plan)])
    bench.prove("a", "b")
    bench.serve(0.0, takes=0.0, pinned_to="b", session="s", prompt_tokens=1000)
    return bench


def test_what_the_sdk_has_sent_before_is_counted_on_and_makes_this_a_retry() -> None:
    first, again = Bench(AB).begin(), Bench(AB).begin(resend=2)
    attempt = again.send(0.0)

    assert (attempt.number, attempt.kind) == (3, AttemptKind.RETRY)
    assert first.send(0.0).kind is AttemptKind.INITIAL


def test_a_probe_of_a_call_sent_before_is_still_called_a_probe() -> None:
    bench = Bench(AB)
    bench.prove("a", "b")
    bench.kill("a")
    reopens = bench.breaker("a").open_until

    assert bench.begin(reopens, resend=1).send(reopens).kind is AttemptKind.PROBE


def test_a_prefix_that_is_cached_is_not_planned_to_be_prefilled() -> None:
    bench = warm_at_b()

    assert bench.begin(session="s", prompt_tokens=1600).send(0.0).planned_uncached_tokens == 600
    assert bench.begin(session="s", prompt_tokens=900).send(0.0).planned_uncached_tokens == 0
    assert bench.begin(session="t", prompt_tokens=900).send(0.0).planned_uncached_tokens == 900


def test_a_deadline_too_short_for_a_prefill_is_enough_for_a_cached_prefix() -> None:
    bench = warm_at_b()

    attempt = bench.begin(session="s", prompt_tokens=1000, deadline_at=1.0).send(0.0)
    assert attempt.endpoint_id == "b"
    cold = bench.begin(session="t", prompt_tokens=1000, deadline_at=1.5)
    assert cold.refusal(0.0).reason == "deadline"


def test_the_time_left_is_counted_from_the_attempts_own_start() -> None:
    bench = Bench(route({"a": 1}), endpoints=[endpoint("a", profile=profile(3.0), rtt_s=0.5)])

    assert bench.begin(10.0, deadline_at=13.4).refusal(10.0).reason == "deadline"
    assert bench.begin(10.0, deadline_at=13.5).send(10.0).endpoint_id == "a"


def test_without_a_plan_a_call_that_is_not_streamed_has_no_limit_for_its_first_token() -> None:
    """Not even where the pool's own mean says how long such a call takes."""
    limited = route(
        {"a": 1, "b": 1},
        selection=SelectionPolicy(algorithm="min_cost"),
        deadline=DeadlinePolicy(ttft_s=1.0),
    )
    bench = Bench(limited)
    bench.serve(0.0, takes=5.0)
    attempt = bench.begin(10.0).send(10.0)

    assert attempt.predicted_s is not None
    assert attempt.first_token_by == INFINITY
