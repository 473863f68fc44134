"""Waits that nobody asked for: a 429 that names none, a 200 that was the last for now.

They send calls elsewhere. Where there is nowhere else, asking beats waiting for nothing.
"""

from __future__ import annotations

import pytest

from headway.core.model import (
    BudgetExhausted,
    CallRejected,
    EndpointThrottled,
    Finish,
    Outcome,
    RetryDenied,
    Send,
)
from headway.core.snapshot import Capacity, RetryPolicy
from tests.core.build import (
    BROKEN,
    DONE,
    THROTTLED,
    Bench,
    Even,
    Hand,
    endpoint,
    route,
    throttled,
)

A = route({"a": 1})
AB = route({"a": 1, "b": 1})


def last_for(seconds: float) -> Outcome:
    return DONE._replace(retry_after_s=seconds)


@pytest.fixture
def alone() -> Bench:
    bench = Bench(A, rng=Even(0.5))
    bench.prove("a")
    return bench


def test_a_429_without_a_hint_is_repeated_after_half_to_the_whole_step(alone: Bench) -> None:
    hand = alone.begin(attempts_max=4)
    for at, until in ((0.0, 0.375), (0.375, 1.125), (1.125, 2.625)):
        hand.fail(at, THROTTLED)
        assert hand.wait(at, "backoff").until == pytest.approx(until)  # 0.5, 1 and 2 s, by 0.75

    assert hand.send(2.625).endpoint_id == "a"


def test_the_next_call_asks_at_once_where_there_is_nowhere_else(alone: Bench) -> None:
    for _ in range(50):
        hand = alone.begin(1.0, attempts_max=1)
        hand.fail(1.0, THROTTLED)
        assert hand.finish(1.0).attempt is not None
    assert alone.breaker("a").state.value == "closed"


def test_persistent_429s_cost_the_budget_and_no_more(alone: Bench) -> None:
    sends, now = 0, 0.0
    for _ in range(100):
        hand = alone.begin(now)
        for _ in range(3):
            hand.fail(now, THROTTLED)
            sends += 1
            action = hand.next(now)
            if hand.call.running or getattr(action, "until", None) is None:
                break
            now = action.until
    assert sends == 103
    assert now < 3.0


def test_where_there_is_another_it_takes_the_calls_meanwhile() -> None:
    bench = Bench(AB, rng=Even(0.5))
    bench.prove("a", "b")
    bench.serve(0.0, THROTTLED, takes=0.0, pinned_to="a", attempts_max=1)

    assert bench.state("a").out_until("m") == (0.75, "cooling")
    assert {bench.serve(0.1).endpoint_id for _ in range(20)} == {"b"}


def test_an_endpoint_that_only_cools_goes_before_one_that_asked_for_quiet() -> None:
    bench = Bench(AB, rng=Even(0.5))
    bench.prove("a", "b")
    bench.serve(0.0, THROTTLED, takes=0.0, pinned_to="a", attempts_max=1)
    hand = bench.begin(0.0)
    hand.fail(0.0, throttled(30.0))  # b

    assert hand.send(0.0).endpoint_id == "a"


def test_a_success_disproves_the_guess(alone: Bench) -> None:
    alone.serve(0.0, THROTTLED, takes=0.0, attempts_max=1)
    alone.serve(0.1)

    assert alone.state("a").outs == {}


def test_a_wait_that_was_asked_for_replaces_a_guess_and_is_not_replaced_by_one(
    alone: Bench,
) -> None:
    hands = [alone.begin(attempts_max=1) for _ in range(3)]
    sent = [hand.send(0.0) for hand in hands]
    ends = (THROTTLED, throttled(0.1), THROTTLED)
    seen = []
    for hand, attempt, end in zip(hands, sent, ends, strict=True):
        hand.end(attempt, end, 0.0)
        seen.append(alone.state("a").out_until("m"))

    assert [reason for _, reason in seen] == ["cooling", "throttled", "throttled"]
    assert seen[2] == seen[1] == (pytest.approx(0.115), "throttled")


# --------------------------------------------------------------------------- the last for now


def test_an_answer_that_was_the_last_for_now_sends_the_next_elsewhere_until_the_reset() -> None:
    bench = Bench(AB, seed=3)
    bench.prove("a", "b")
    bench.serve(0.0, last_for(360.0), takes=0.0, pinned_to="a")

    assert bench.of(EndpointThrottled) == [EndpointThrottled("a", "m", 360.0, 0.0)]
    assert {bench.serve(t).endpoint_id for t in (1.0, 100.0, 359.0)} == {"b"}
    assert {bench.serve(360.0 + t).endpoint_id for t in range(20)} == {"a", "b"}


def test_alone_it_is_waited_for_if_that_is_short(alone: Bench) -> None:
    alone.serve(0.0, last_for(1.5), takes=0.0)
    hand = alone.begin(0.5)

    assert hand.wait(0.5, "throttled").until == 1.5
    assert hand.send(1.5).endpoint_id == "a"


@pytest.mark.parametrize(("reset_s", "known"), [(3.0, {}), (1.5, {"deadline_at": 5.0})])
def test_alone_it_is_asked_if_the_wait_would_be_long(
    reset_s: float, known: dict[str, float], alone: Bench
) -> None:
    """Longer than a place in a queue is kept: 2 s, or a tenth of the time left."""
    alone.serve(0.0, last_for(reset_s), takes=0.0)

    assert alone.begin(0.1, **known).send(0.1).endpoint_id == "a"


def test_how_long_is_a_matter_of_the_time_left_from_now(alone: Bench) -> None:
    alone.serve(10.0, last_for(1.5), takes=0.0)

    assert alone.begin(10.0, deadline_at=15.0).send(10.0).endpoint_id == "a"
    alone.begin(10.0, deadline_at=40.0).wait(10.0, "throttled")


def test_alone_it_is_asked_again_by_a_call_that_failed_there_too(alone: Bench) -> None:
    hand, other = alone.begin(0.0), alone.begin(0.0)
    attempt = other.send(0.0)
    hand.fail(0.0, BROKEN)
    other.end(attempt, last_for(9.0), 0.1)
    due = hand.wait(0.1, "backoff").until

    assert hand.send(due).endpoint_id == "a"


def test_where_asking_is_no_way_either_a_long_wait_is_refused_as_a_throttle() -> None:
    bench = Bench(A, endpoints=[endpoint("a", capacity=Capacity(concurrency=2))])
    bench.prove("a")
    last, _ = bench.begin(), bench.begin().send(0.0)
    last.end(last.send(0.0), last_for(200.0), 0.0)
    bench.begin().send(0.0)  # asked all the same; now it is full, too

    refused = bench.begin().refusal(0.0)

    assert (refused.reason, refused.retry_after_s) == ("throttled", 200.0)


def test_the_last_answer_of_the_only_other_is_no_reason_to_go_back_to_a_spent_account() -> None:
    bench = Bench(AB, rng=Even(0.5))
    bench.prove("a", "b")
    bench.serve(0.0, last_for(60.0), takes=0.0, pinned_to="a")
    hand = bench.begin(0.0)
    assert hand.fail(0.0, BROKEN).endpoint_id == "b"

    assert hand.wait(0.0, "backoff").until > 0.0  # b again, not a
    assert hand.send(1.0).endpoint_id == "b"


def test_a_reset_without_meaning_changes_nothing(alone: Bench) -> None:
    alone.serve(0.0, last_for(float("nan")), takes=0.0)
    alone.serve(0.0, last_for(0.0), takes=0.0)

    assert alone.state("a").outs == {}


# --------------------------------------------------------------------------- turned away


def crowd(bench: Bench, calls: int, served: int) -> list[Hand]:
    """That many calls at once, of which only the first few find room; those still run."""
    hands = [bench.begin(0.0) for _ in range(calls)]
    sent = [hand.send(0.0) for hand in hands]
    for hand, attempt in zip(hands[served:], sent[served:], strict=True):
        hand.end(attempt, THROTTLED, 0.01)
    hands[0].end(sent[0], DONE, 0.1) if served else None
    return hands[served:]


def test_who_was_turned_away_beside_others_goes_again_as_places_become_free() -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.prove("a")
    before = bench.balance(0.01)
    away = crowd(bench, 20, served=4)
    assert bench.state("a").limit.limit == 4.0
    due = away[0].wait(0.01, "backoff").until
    again = away[0].send(due)

    assert bench.balance(due) >= before  # nothing was paid for it
    assert away[1].wait(due, "queue")  # four are under way
    away[0].end(again, DONE, due + 0.1)
    assert away[1].send(due + 0.1).kind.value == "retry"


def test_if_nobody_was_served_meanwhile_it_is_a_retry_like_any_other() -> None:
    bench = Bench(A, rng=Even(0.5))
    away = crowd(bench, 16, served=0)
    sends = 0
    for hand in away:
        now = hand.wait(0.01, "backoff").until if not isinstance(hand.next(0.01), Finish) else 0.01
        if isinstance(hand.next(now), Send):
            sends += 1
            hand.call.cancel(now)

    assert sends == 3  # the budget's start
    assert {event.reason for event in bench.of(RetryDenied)} == {"budget"}


def test_a_debt_is_paid_once_and_given_back_where_nothing_was_sent_for_it() -> None:
    bench = Bench(A, rng=Even(0.5))
    away, other = bench.begin(0.0), bench.begin(0.0)
    other.send(0.0)
    away.fail(0.01, THROTTLED)
    due = away.wait(0.01, "backoff").until
    assert bench.balance(due) == 3.0

    away.wait(due, "queue")  # the other has the only place there is
    away.wait(due + 0.1, "queue")
    assert bench.balance(due) == pytest.approx(2.0, abs=0.01)
    away.call.cancel(due + 0.2)
    assert bench.balance(due) == pytest.approx(3.0, abs=0.01)


def test_who_goes_again_on_credit_and_cannot_pay_surfaces_its_refusal_when_it_is_due() -> None:
    bench = Bench(route({"a": 1}, retry=RetryPolicy(budget_start=0.0)), rng=Even(0.5))
    away, other = bench.begin(0.0), bench.begin(0.0)
    other.send(0.0)
    attempt = away.fail(0.01, THROTTLED)
    due = away.wait(0.01, "backoff").until
    assert bench.of(BudgetExhausted) == []

    assert away.finish(due).attempt is attempt
    assert [event.reason for event in bench.of(RetryDenied)] == ["budget"]
    assert bench.of(BudgetExhausted) == [BudgetExhausted("chat", due)]
    assert bench.engine.pools(due)[0].in_flight == 1


@pytest.mark.parametrize("served", [4, 0])
def test_what_the_sdk_sends_again_is_free_only_if_somebody_was_served_meanwhile(
    served: int,
) -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.prove("a", now=-1.0)
    hands = [bench.begin(0.0, delegated=True) for _ in range(20)]
    sent = [hand.send(0.0) for hand in hands]
    for hand, attempt in zip(hands[served:], sent[served:], strict=True):
        hand.end(attempt, THROTTLED, 0.01)
    assert all(hand.call.retry_granted for hand in hands[served:-1])
    for hand, attempt in zip(hands[:served], sent[:served], strict=True):
        hand.end(attempt, DONE, 0.1)
    before = bench.balance(1.0)
    again = [
        bench.begin(1.0, delegated=True, resend=1, owed_since=hand.call.owed_since)
        for hand in hands[served:-1]
    ]
    refused = [hand.next(1.0) for hand in again]
    denied = sum(isinstance(action, Finish) for action in refused)

    assert bench.balance(1.0) == pytest.approx(before if served else 0.0, abs=0.5)
    assert (denied == 0) is bool(served)


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("mode", [None, "observe", "enforce"])
def test_a_refusal_says_whether_its_route_is_only_observed(mode: str | None) -> None:
    bench = Bench(route({"a": 1}, mode=mode))
    bench.begin(0.0, deadline_at=0.0).refusal(0.0)

    assert [event.mode for event in bench.of(CallRejected)] == [mode]


# --------------------------------------------------------------------------- one probe at a time


def test_alone_the_others_wait_for_the_probe_and_for_the_next() -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.kill("a")
    hands = [bench.begin(0.0) for _ in range(3)]
    probe = hands[0].send(0.0)
    waits = [hand.wait(0.0, "queue") for hand in hands[1:]]
    hands[0].end(probe, BROKEN, 0.1)
    second = hands[1].send(0.1)

    assert second.is_probe
    assert hands[2].wait(0.1, "queue").until == waits[1].until == 2.0
    hands[1].end(second, DONE, 0.2)
    assert hands[2].send(0.2).endpoint_id == "a"


def test_a_retry_waits_for_a_probe_too_but_no_longer_than_its_place_is_kept() -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.prove("a")
    hands = [bench.begin(0.0) for _ in range(4)]
    for hand, attempt in [(hand, hand.send(0.0)) for hand in hands]:
        hand.end(attempt, BROKEN, 0.0)
    due = hands[0].wait(0.0, "backoff").until
    assert hands[0].send(due).is_probe
    until = hands[1].wait(due, "queue").until

    assert until == due + 2.0
    assert hands[1].finish(until).attempt is not None
