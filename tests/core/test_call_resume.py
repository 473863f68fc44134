"""An answer that broke off after its first token may be gone on with, at the price of a retry."""

from __future__ import annotations

import pytest

from headway.core.model import (
    AttemptEnded,
    AttemptKind,
    CallEnded,
    FailureClass,
    FirstToken,
    Outcome,
    RetryDenied,
)
from headway.core.snapshot import RetryPolicy
from tests.core.build import DONE, Bench, Even, Hand, route

CUT = Outcome(FailureClass.INCOMPLETE_STREAM, error_type="ReadError")


def bench_of_two(**known: object) -> Bench:
    bench = Bench(route({"a": 1, "b": 1}, **known), rng=Even())  # type: ignore[arg-type]
    bench.prove("a", "b")
    return bench


def streaming(bench: Bench, at: float = 0.0) -> Hand:
    """A call whose answer has begun."""
    hand = bench.begin()
    attempt = hand.send(at)
    assert hand.call.on_first_token(attempt, at + 0.1)
    return hand


def ended(bench: Bench, hand: Hand) -> list[CallEnded]:
    return [event for event in bench.of(CallEnded) if event.call_id == hand.call.id]


def test_it_goes_on_at_another_endpoint() -> None:
    bench = bench_of_two()
    hand = streaming(bench)
    first = hand.call.running[0]
    before = bench.balance(1.0)

    assert hand.call.on_interruption(first, CUT, 1.0)

    second = hand.send(1.0)
    assert second.endpoint_id != first.endpoint_id
    assert (second.number, second.kind) == (2, AttemptKind.RETRY)
    assert bench.balance(1.0) == pytest.approx(before - 1.0)
    assert ended(bench, hand) == []
    assert hand.call.on_first_token(second, 1.1)
    hand.call.on_outcome(second, DONE, 2.0)
    [end] = ended(bench, hand)
    assert (end.winner, end.attempts) == (second, 2)
    assert [event.attempt for event in bench.of(FirstToken)][-2:] == [first, second]
    assert hand.finish(2.0).attempt is second
    assert bench.world.pools["chat"].inflight == 0


def test_it_counts_against_the_endpoint_that_broke_off() -> None:
    bench = bench_of_two()
    hand = streaming(bench)
    first = hand.call.running[0]
    hand.call.on_interruption(first, CUT, 1.0)

    end = bench.of(AttemptEnded)[-1]
    assert (end.attempt, end.result) == (first, "error")
    assert bench.world.states[first.endpoint_id].inflight == 0


def test_attempts_are_bounded_as_ever() -> None:
    bench = bench_of_two(retry=RetryPolicy(attempts_max=2, budget_start=9, budget_capacity=9))
    hand = streaming(bench)
    assert hand.call.on_interruption(hand.call.running[0], CUT, 1.0)
    second = hand.send(1.0)
    assert hand.call.on_first_token(second, 1.1)

    assert not hand.call.on_interruption(second, CUT, 2.0)

    assert bench.of(RetryDenied)[-1].reason == "attempts"
    assert bench.of(CallEnded)[-1].winner is second
    assert hand.finish(2.0).attempt is second


def test_the_budget_pays() -> None:
    bench = bench_of_two(retry=RetryPolicy(budget_start=0, budget_capacity=0, budget_per_success=0))
    hand = streaming(bench)

    assert not hand.call.on_interruption(hand.call.running[0], CUT, 1.0)

    assert bench.of(RetryDenied)[-1].reason == "budget"
    assert bench.world.pools["chat"].inflight == 0


def test_what_is_not_the_answer_any_more_only_ends() -> None:
    bench = bench_of_two()
    hand = streaming(bench)
    first = hand.call.running[0]
    hand.call.cancel(0.5)

    assert not hand.call.on_interruption(first, CUT, 1.0)
    assert len(ended(bench, hand)) == 1


def test_before_the_first_token_it_is_a_failure_like_any_other() -> None:
    bench = bench_of_two()
    hand = bench.begin()
    first = hand.send(0.0)

    assert not hand.call.on_interruption(first, CUT, 1.0)

    second = hand.send(1.0)
    assert second.endpoint_id != first.endpoint_id


def test_when_the_rest_fails_too_the_call_ends_with_it() -> None:
    bench = bench_of_two(retry=RetryPolicy(attempts_max=2, budget_start=9, budget_capacity=9))
    hand = streaming(bench)
    hand.call.on_interruption(hand.call.running[0], CUT, 1.0)
    second = hand.send(1.0)
    hand.call.on_outcome(second, CUT, 2.0)

    assert hand.finish(2.0).attempt is second
    assert bench.of(CallEnded)[-1].outcome.kind is FailureClass.INCOMPLETE_STREAM
