"""What the end of an attempt, or its first token, teaches: as the next calls see it."""

from __future__ import annotations

import pytest

from headway.core import state as state_module
from headway.core.model import BreakerChanged, EndpointEjected, FailureClass, Outcome
from headway.core.snapshot import AffinityPolicy, Capacity, HedgePolicy, RetryPolicy
from tests.core.build import (
    BROKEN,
    DONE,
    EXHAUSTED,
    THROTTLED,
    Bench,
    Even,
    endpoint,
    facts,
    profile,
    route,
)

AB = route({"a": 1, "b": 1})


def stream(bench: Bench, at: float, *, ttft_s: float, **known: object) -> None:
    """A streamed call: its first token after `ttft_s`, its end a second later."""
    hand = bench.begin(at, stream=True, **known)
    attempt = hand.send(at)
    hand.call.on_first_token(attempt, at + ttft_s)
    hand.end(attempt, DONE, at + ttft_s + 1.0)


# ---------------------------------------------------------------- first tokens


def test_the_delay_of_hedges_is_learned_from_first_tokens_of_prompts_of_that_size() -> None:
    bench = Bench(AB)
    for i in range(50):
        stream(bench, 10.0 + 4.0 * i, ttft_s=2.0, prompt_tokens=5000)

    assert bench.pool().hedge_delay_s(5000) == pytest.approx(2.4)
    assert bench.pool().hedge_delay_s(500) is None


def test_where_a_hedge_ran_the_wait_counts_from_the_first_attempt_on() -> None:
    hedge = HedgePolicy(enabled=True, delay_s=1.0, max_extra_fraction=1.0)
    bench = Bench(route({"a": 1, "b": 1}, hedge=hedge, retry=RetryPolicy(budget_per_success=1.0)))
    bench.prove("a", "b")
    for i in range(50):
        at = 10.0 * i
        hand = bench.begin(at, stream=True)
        first, second = hand.send(at), hand.send(at + 1.0)
        hand.call.on_first_token(second, at + 3.0)
        hand.end(first, DONE, at + 3.0)
        hand.end(second, DONE, at + 4.0)

    assert bench.pool().hedge_delay_s(0) == pytest.approx(3.6)


def test_a_probes_first_token_closes_the_breaker_and_says_so_at_once() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    hand = bench.begin(10.0, stream=True)
    attempt = hand.send(10.0)
    hand.call.on_first_token(attempt, 12.0)

    told = bench.of(BreakerChanged)[-1]
    assert (told.endpoint_id, told.model, told.old, told.new, told.at) == (
        "a", "m", "half_open", "closed", 12.0,
    )  # fmt: skip
    hand.end(attempt, DONE, 20.0)
    assert bench.of(BreakerChanged)[-1] is told


def test_an_ordinary_first_token_says_nothing_of_breakers() -> None:
    bench = Bench(AB)
    stream(bench, 0.0, ttft_s=1.0)

    assert bench.of(BreakerChanged) == []


def test_a_first_token_forgets_that_the_credential_was_blocked() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", credential="k")], rng=Even(0.0))
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    trial = bench.begin(300.0, pinned_to="a", stream=True)
    trial.call.on_first_token(trial.send(300.0), 301.0)

    assert bench.world.blocks == {}


# ---------------------------------------------------------------- ends that teach nothing


def test_a_cancelled_probe_leaves_its_place_to_the_next_call() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    cancelled = bench.begin(10.0)
    assert cancelled.send(10.0).is_probe
    cancelled.call.cancel(11.0)

    told = bench.of(BreakerChanged)[-1]
    assert (told.old, told.new, told.at) == ("half_open", "open", 11.0)
    assert bench.begin(11.0).send(11.0).is_probe


def test_a_trial_of_a_key_that_is_refused_again_lets_nobody_else_try() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", credential="k")], rng=Even(0.0))
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    refused = Outcome(FailureClass.AUTH, status=401)
    bench.serve(300.0, refused, takes=1.0, pinned_to="a", delegated=True)

    assert bench.world.blocks["k"].until == 330.0


def test_an_attempt_whose_breaker_was_dropped_meanwhile_is_settled_by_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_module, "BREAKERS_MAX", 1)
    bench = Bench(route({"a": 1}))
    hand = bench.begin(0.0)
    attempt = hand.send(0.0)
    bench.begin(0.0, model="other").send(0.0)
    hand.end(attempt, DONE, 1.0)

    assert hand.finish(1.0).attempt is attempt
    assert bench.state("a").inflight == 1


# ---------------------------------------------------------------- successes


def test_how_long_a_call_takes_is_counted_from_its_own_start() -> None:
    bench = Bench(AB)
    bench.serve(100.0, takes=11.0, pinned_to="a")
    assert bench.state("a").call_time_s == pytest.approx(2.0)

    bench.serve(200.0, takes=22.0, pinned_to="b")  # a mean of eleven: twice as long

    residual = bench.state("b").residual(222.0)
    assert residual is not None
    assert 1.0 < residual < 2.0


def test_without_counts_a_call_is_compared_as_one_without_output() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", profile=profile(1.0, 0.5))])
    bench.serve(0.0, DONE._replace(output_tokens=None), takes=1.0, pinned_to="a")

    assert bench.state("a").residual(1.0) == pytest.approx(1.0)


def test_a_prompt_that_was_cached_in_whole_leaves_nothing_to_prefill() -> None:
    known = profile(1.0, 0.0, prefill_s_per_token=1.0)
    bench = Bench(AB, endpoints=[endpoint("a", profile=known)])
    done = DONE._replace(input_tokens=100, cached_tokens=100)
    bench.serve(0.0, done, takes=1.0, pinned_to="a", prompt_tokens=100)

    assert bench.state("a").residual(1.0) == pytest.approx(1.0)


def test_the_pools_mean_is_learned_from_every_call_where_there_is_a_choice() -> None:
    bench = Bench(AB)
    bench.serve(0.0, DONE._replace(output_tokens=None), takes=6.4)

    assert bench.pool().planned_s(0) == pytest.approx(6.4)


def test_a_sole_endpoint_without_a_plan_teaches_the_mean_only_by_calls_of_known_length() -> None:
    bench = Bench(route({"a": 1}))
    bench.serve(0.0, DONE._replace(output_tokens=None), takes=6.4)
    assert bench.pool().planned_s(0) is None
    bench.serve(10.0, DONE._replace(output_tokens=36), takes=10.0)

    assert bench.pool().planned_s(36) == pytest.approx(10.0)
    assert bench.state("a").residual(20.0) is None


@pytest.mark.parametrize(
    ("keys", "known", "remembered"),
    [
        (("session", "prefix"), {}, 0),
        (("session", "prefix"), {"session": "s"}, 1),
        (("session", "prefix"), {"prefix": (1, 2)}, 2),
        ((), {"session": "s", "prefix": (1, 2)}, 0),
    ],
)
def test_what_is_remembered_is_what_the_route_asks_for_and_the_call_names(
    keys: tuple[str, ...], known: dict[str, object], remembered: int
) -> None:
    bench = Bench(route({"a": 1, "b": 1}, affinity=AffinityPolicy(key=keys)))
    bench.serve(0.0, **known)  # type: ignore[arg-type]

    assert len(bench.world.affinity) == remembered


def test_without_counts_what_was_charged_to_a_rate_stands() -> None:
    bench = Bench(
        route({"a": 1}, output_tokens=1000),
        endpoints=[endpoint("a", capacity=Capacity(tpm=6000.0))],  # 100 a second, 1000 at once
    )
    bench.serve(0.0, DONE._replace(input_tokens=None), takes=0.0, prompt_tokens=2000)

    assert bench.state("a").tpm.wait_s(0.0) == 20.0


# ---------------------------------------------------------------- late first tokens


@pytest.mark.parametrize(
    ("p99_s", "in_time_s"),
    [
        (None, 15.0),  # five times the mean of 2 s and the round trip of 1 s
        (4.0, 8.0),  # twice the promised p99
        (2.5, 6.0),  # but never less than twice the mean
    ],
)
def test_how_late_a_first_token_is_evidence_against_its_endpoint(
    p99_s: float | None, in_time_s: float
) -> None:
    def badness(ttft_s: float) -> float:
        described = endpoint("a", profile=profile(2.0, p99_s=p99_s), rtt_s=1.0)
        bench = Bench(route({"a": 1}), endpoints=[described])
        stream(bench, 100.0, ttft_s=ttft_s)
        return bench.state("a").badness(101.0 + ttft_s)

    assert badness(in_time_s) == 0.0
    assert badness(in_time_s + 0.1) == 0.5


def test_lateness_is_measured_against_the_plan() -> None:
    bench = Bench(route({"a": 1}), endpoints=[endpoint("a", profile=profile(2.0), rtt_s=1.0)])
    stream(bench, 0.0, ttft_s=2.9)
    assert bench.pool().ttft_ratio == pytest.approx(1 / 1.05)
    stream(bench, 10.0, ttft_s=3.1)

    assert bench.pool().ttft_ratio == pytest.approx(1.0)


def test_a_call_that_shows_no_first_token_is_not_late() -> None:
    bench = Bench(route({"a": 1}), endpoints=[endpoint("a", profile=profile(1.0))])
    bench.serve(0.0, takes=1000.0)

    assert bench.state("a").badness(1000.0) == 0.0
    assert bench.pool().ttft_ratio == 1.0


# ---------------------------------------------------------------- peers


@pytest.mark.parametrize(("peers", "ejected"), [("abcde", ["a"]), ("abcd", [])])
def test_one_of_five_or_more_that_fails_where_the_others_work_is_left_out(
    peers: str, ejected: list[str]
) -> None:
    bench = Bench(route(dict.fromkeys(peers, 1.0)))
    bench.begin(0.0).call.next_action(0.0)
    for name in peers:
        for _ in range(20):
            outcome = BROKEN if name == "a" else DONE
            bench.serve(1.0, outcome, takes=0.0, pinned_to=name, attempts_max=1)
    bench.begin(10.0).call.next_action(10.0)

    assert [e.endpoint_id for e in bench.of(EndpointEjected)] == ejected


def test_what_is_nobodys_fault_counts_for_no_peer() -> None:
    bench = Bench(route(dict.fromkeys("abcde", 1.0)))
    bench.begin(0.0).call.next_action(0.0)
    for name in "abcde":
        for _ in range(20):
            outcome = Outcome(FailureClass.BAD_REQUEST) if name == "a" else DONE
            bench.serve(1.0, outcome, takes=0.0, pinned_to=name, attempts_max=1)
    bench.begin(10.0).call.next_action(10.0)

    assert bench.of(EndpointEjected) == []


# ---------------------------------------------------------------- quota


def test_an_exhausted_quota_is_left_alone_for_five_minutes_or_as_long_as_it_says() -> None:
    def until(hint_s: float | None) -> float:
        bench = Bench(AB, rng=Even(0.0))
        outcome = EXHAUSTED._replace(retry_after_s=hint_s)
        bench.serve(0.0, outcome, takes=0.0, pinned_to="a", attempts_max=1)
        return bench.world.blocks["endpoint:a"].until

    assert [until(hint) for hint in (None, 0.5, 301.0)] == [300.0, 300.0, 301.0]


def test_a_success_forgets_a_guessed_cool_down() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    running = bench.begin(0.0, pinned_to="a")
    attempt = running.send(0.0)
    bench.serve(0.0, THROTTLED, takes=0.0, pinned_to="a", attempts_max=1)
    assert "m" in bench.state("a").outs

    running.end(attempt, DONE, 0.1)

    assert bench.state("a").outs == {}
    assert bench.engine.explain(facts(), 0.1).candidates[0].eligible
