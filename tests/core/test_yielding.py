"""Background work gives way while its pool is overloaded, by whole tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import (
    CANCELLED,
    DEADLINE_SILENT,
    DEADLINE_STREAMING,
    Attempt,
    AttemptKind,
    Outcome,
)
from headway.core.snapshot import AdmissionPolicy, Fallback, RetryPolicy, TrafficClass
from headway.core.yielding import CUT, GAIN, QUIET_S, RECOVERY_S, Yielding, met_overload, rank_of
from tests.core.build import (
    BROKEN,
    DONE,
    LATE,
    THROTTLED,
    UNAVAILABLE,
    Bench,
    Even,
    Hand,
    facts,
    route,
    snapshot,
)

CLASSES = {
    "batch": TrafficClass(priority=-1),
    "steel": TrafficClass(priority=-1, sheddable=False),
    "chat": TrafficClass(ttft_slo_s=1.0, tpot_slo_s=0.1, total_slo_s=10.0),
}
LOW = next(name for i in range(99) if rank_of(name := f"task-{i}") < 0.2)
HIGH = next(name for i in range(99) if 0.6 < rank_of(name := f"task-{i}") < 0.9)


def attempt(endpoint: str = "a", at: float = 0.0, first_token_at: float | None = None) -> Attempt:
    made = Attempt(1, AttemptKind.INITIAL, endpoint, "m", at, math.inf, math.inf, math.inf)
    made.first_token_at = first_token_at
    return made


def overloaded(
    *endpoints: str, times: int = 1, at: float = 0.0, found: Yielding | None = None
) -> Yielding:
    found = found or Yielding()
    for i in range(times):
        for endpoint in endpoints:
            found.learn(attempt(endpoint, at + i), met_overload=True, now=at + i)
    return found


# ---------------------------------------------------------------- the level


def test_all_background_begins_where_nothing_was_overloaded() -> None:
    fresh = Yielding()
    assert fresh.level(0.0) == 1.0
    assert fresh.due_s(0.999, 0.0) == 0.0


def test_a_sign_of_overload_halves_it() -> None:
    assert overloaded("a").level(0.0) == 1.0 - CUT


def test_it_never_stops_altogether() -> None:
    assert overloaded("a", times=40).level(39.0) == 0.02


def test_what_was_under_way_at_the_last_cut_is_the_same_news() -> None:
    found = Yielding()
    found.learn(attempt(at=0.0), met_overload=True, now=10.0)
    found.learn(attempt(at=9.9), met_overload=True, now=12.0)
    assert found.level(12.0) == 0.5
    found.learn(attempt(at=10.0), met_overload=True, now=13.0)
    assert found.level(13.0) == 0.25


def test_answers_bring_it_back() -> None:
    found = overloaded("a")
    found.learn(attempt(), met_overload=False, now=1.0)
    assert found.level(1.0) == pytest.approx(0.5 * (1.0 + GAIN))
    for _ in range(60):
        found.learn(attempt(), met_overload=False, now=1.0)
    assert found.level(1.0) == 1.0


def test_after_a_minute_of_quiet_time_brings_it_back_too() -> None:
    found = overloaded("a", times=2)
    assert found.level(1.0 + QUIET_S) == 0.25
    assert found.level(1.0 + QUIET_S + RECOVERY_S / 2) == pytest.approx(0.25 * math.exp(0.5))
    assert found.level(1.0 + QUIET_S + RECOVERY_S) == pytest.approx(0.25 * math.e)
    assert found.level(1.0 + QUIET_S + 2 * RECOVERY_S) == 1.0


def test_a_cut_counts_from_what_time_has_brought_back() -> None:
    found = overloaded("a", times=2)
    late = 1.0 + QUIET_S + RECOVERY_S
    found.learn(attempt(at=late), met_overload=True, now=late)
    assert found.level(late) == pytest.approx(0.125 * math.e)
    assert found.level(late + QUIET_S) == pytest.approx(0.125 * math.e)


def test_the_wait_that_is_told_is_the_wait() -> None:
    found = overloaded("a", times=2)
    wait = found.due_s(0.6, 11.0)
    assert wait == pytest.approx(50.0 + RECOVERY_S * math.log(0.6 / 0.25))
    assert found.due_s(0.6, 11.0 + wait - 0.1) == pytest.approx(0.1)
    assert found.due_s(0.6, 11.0 + wait + 0.1) == 0.0
    found = overloaded("a", times=2)
    assert found.due_s(0.25, 1.0) == QUIET_S  # the level itself is outside
    assert found.due_s(0.2499, 1.0) == 0.0


def test_an_endpoint_that_is_broken_alone_is_no_overload() -> None:
    found = Yielding()
    for at in range(200):
        name = "abcd"[at % 4]
        found.learn(attempt(name, at), met_overload=name == "a", now=float(at))
    assert found.level(200.0) > 0.95


def test_endpoints_that_refuse_alike_are_overloaded() -> None:
    together = overloaded(*"abcd", times=3)
    assert together.level(2.0) < 0.5


def test_the_first_refusal_of_several_endpoints_is_not_believed_in_whole() -> None:
    found = Yielding()
    for name in "abcd":
        found.learn(attempt(name), met_overload=False, now=0.0)
    found.learn(attempt("a"), met_overload=True, now=0.0)
    shared = (0.2 / 8.0) * (7.0 / 1.2)
    assert found.level(0.0) == pytest.approx(1.0 - CUT * shared)


def test_where_the_others_are_worse_off_it_counts_in_whole_and_no_more() -> None:
    found = Yielding()
    for name in "bc":
        for _ in range(5):  # all under way at the first cut
            found.learn(attempt(name, -1.0), met_overload=True, now=0.0)
    before = found.level(0.0)
    found.learn(attempt("a"), met_overload=True, now=0.0)
    assert found.level(0.0) == pytest.approx(0.5 * before)


def test_time_brings_it_back_e_fold_in_five_minutes() -> None:
    found = overloaded("a", times=2)
    assert found.level(1.0 + 60.0 + 300.0) == pytest.approx(0.25 * math.e)


def test_counts_are_of_late_and_of_endpoints_that_are_left() -> None:
    found = Yielding()
    for at in range(300):
        found.learn(attempt("a"), met_overload=False, now=float(at))
        found.learn(attempt("b"), met_overload=False, now=float(at))
    assert found._counts["a"][1] <= 64.0
    for at in range(300, 340):  # what was well for long is not believed so for ever
        found.learn(attempt("a", at), met_overload=True, now=float(at))
        found.learn(attempt("b", at), met_overload=True, now=float(at))
    assert found.level(340.0) < 0.05

    found.retain(frozenset("b"))
    assert set(found._counts) == {"b"}


def test_sixty_four_attempts_are_counted_then_all_weigh_half() -> None:
    found = Yielding()
    for _ in range(64):
        found.learn(attempt(), met_overload=True, now=0.0)
    assert found._counts["a"] == [64.0, 64.0]
    found.learn(attempt(), met_overload=True, now=0.0)
    assert found._counts["a"] == [32.5, 32.5]


@pytest.mark.parametrize("gap_s", [0.01, 3.0])
def test_it_settles_where_three_per_cent_meet_overload(gap_s: float) -> None:
    """However many calls a process makes."""
    found, at, met_by_late, calls = Yielding(), 0.0, 0, 8000
    for i in range(calls):
        at += gap_s
        share = 2.0 * (found.level(at) - 0.1)  # that of the calls which meet overload
        met = (i * 0.6180339887) % 1.0 < share
        met_by_late += met and i >= calls / 2
        found.learn(attempt(at=at), met_overload=met, now=at)
    assert met_by_late / (calls / 2) == pytest.approx(0.028, abs=0.006)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.floats(0.0, 1000.0))))
def test_the_level_stays_within_its_bounds(news: list[tuple[bool, str, float]]) -> None:
    found, at = Yielding(), 0.0
    for met, endpoint, later in news:
        at += later
        before = found.level(at)
        found.learn(attempt(endpoint, at), met_overload=met, now=at)
        assert 0.02 <= found.level(at) <= 1.0
        assert found.level(at) <= before if met else found.level(at) >= before
        assert found.due_s(0.5, at) >= 0.0


def test_a_rank_is_the_same_everywhere_and_spread_evenly() -> None:
    assert rank_of("task-3") == pytest.approx(0.2195, abs=0.0001)
    ranks = sorted(rank_of(f"task {i}") for i in range(2000))
    assert all(abs(rank - i / 2000) < 0.05 for i, rank in enumerate(ranks))


# ---------------------------------------------------------------- what counts as overload


@pytest.mark.parametrize("sign", [THROTTLED, UNAVAILABLE, LATE])
def test_refusals_and_silence_are_signs_of_any_class(sign: Outcome) -> None:
    for traffic in CLASSES.values():
        assert met_overload(facts(), traffic, attempt(), sign, 1.0) is True


@pytest.mark.parametrize(
    "outcome", [BROKEN, CANCELLED, DEADLINE_SILENT, UNAVAILABLE._replace(free_retry=True)]
)
def test_other_ends_say_nothing(outcome: Outcome) -> None:
    assert met_overload(facts(), CLASSES["chat"], attempt(), outcome, 1.0) is None


def test_lost_attempts_say_nothing() -> None:
    lost = attempt()
    lost.lost = True
    assert met_overload(facts(), CLASSES["chat"], lost, DONE, 1.0) is None


def test_a_deadline_in_mid_answer_counts_where_there_are_objectives() -> None:
    late = DEADLINE_STREAMING
    assert met_overload(facts(), CLASSES["chat"], attempt(), late, 1.0) is True
    assert met_overload(facts(), TrafficClass(), attempt(), late, 1.0) is None
    assert met_overload(facts(priority=-1), CLASSES["chat"], attempt(), late, 1.0) is None


@pytest.mark.parametrize(
    ("first_token_at", "ended_at", "tokens", "met"),
    [
        (1.0, 2.0, 20, False),
        (1.001, 2.0, 20, True),  # first token: 1 s
        (1.0, 2.9, 20, False),
        (1.0, 2.901, 20, True),  # a further token: 0.1 s
        (1.0, 9.0, 1, False),  # no further token
        (1.0, 1.101, 2, True),
        (1.0, 9.0, None, False),
        (0.5, 10.0, 200, False),
        (0.5, 10.001, 200, True),  # in whole: 10 s
        (None, 10.0, 20, False),  # not streamed: only the whole is known
        (None, 10.001, 20, True),
    ],
)
def test_a_missed_objective_is_a_sign(
    first_token_at: float | None, ended_at: float, tokens: int | None, met: bool
) -> None:
    done = DONE._replace(output_tokens=tokens)
    made = attempt(first_token_at=first_token_at)
    assert met_overload(facts(), CLASSES["chat"], made, done, ended_at) is met
    assert met_overload(facts(priority=-1), CLASSES["chat"], made, done, ended_at) is False
    assert met_overload(facts(), TrafficClass(), made, done, ended_at) is False


def test_objectives_are_held_against_the_attempts_own_time() -> None:
    done = DONE._replace(output_tokens=5)
    exact = TrafficClass(ttft_slo_s=1.0, tpot_slo_s=0.25, total_slo_s=10.0)
    streamed = attempt(at=100.0, first_token_at=101.0)
    assert met_overload(facts(), exact, streamed, done, 102.0) is False  # four steps in a second
    assert met_overload(facts(), exact, streamed, done, 102.001) is True
    whole = attempt(at=100.0)
    assert met_overload(facts(), exact, whole, done, 110.0) is False
    assert met_overload(facts(), exact, whole, done, 110.001) is True


# ---------------------------------------------------------------- calls


def bench(**known: Any) -> Bench:
    made = Bench(
        snapshot(
            route({"a": 1}, retry=RetryPolicy(attempts_max=1), **known), classes=dict(CLASSES)
        ),
        rng=Even(0.7),
    )
    made.prove("a")
    return made


def background(made: Bench, at: float, task: str | None = HIGH, **known: Any) -> Hand:
    known = {"priority": -1, "traffic_class": "batch", **known}
    return made.begin(at, task_id=task, **known)


def refused(made: Bench, at: float) -> None:
    """A background call is sent, and turned away: half of the tasks may begin now."""
    hand = background(made, at, LOW)
    hand.end(hand.send(at), UNAVAILABLE, at)


def test_background_tasks_of_high_rank_are_held_back_and_told_how_long() -> None:
    made = bench()
    refused(made, 0.0)

    rejection = background(made, 1.0).refusal(1.0)

    assert rejection.reason == "yielded"
    expected = 59.0 + RECOVERY_S * math.log(rank_of(HIGH) / 0.5)
    assert rejection.retry_after_s == pytest.approx(expected)
    assert made.world.pools["chat"].inflight == 0


def test_those_of_low_rank_and_all_others_go_on() -> None:
    made = bench()
    refused(made, 0.0)

    for known in ({"task": LOW}, {"priority": 0}, {"priority": 1}, {"traffic_class": "steel"}):
        hand = background(made, 1.0, **known)  # type: ignore[arg-type]
        hand.end(hand.send(1.0), DONE, 1.5)


def test_the_same_task_is_held_back_until_its_time_has_come() -> None:
    made = bench()
    refused(made, 0.0)
    after = background(made, 1.0).refusal(1.0).retry_after_s
    assert after is not None
    assert background(made, 0.9 + after).refusal(0.9 + after).reason == "yielded"
    assert background(made, 1.1 + after).send(1.1 + after).number == 1


def test_calls_of_no_task_are_held_back_by_chance() -> None:
    made = bench()
    refused(made, 0.0)
    assert background(made, 1.0, None).refusal(1.0).reason == "yielded"
    made.world.rng = Even(0.3)
    assert background(made, 1.0, None).send(1.0).number == 1


def test_a_fallback_is_used_instead() -> None:
    made = bench(fallback=[Fallback(endpoint="f")])
    refused(made, 0.0)
    assert background(made, 1.0).send(1.0).endpoint_id == "f"


def test_no_call_is_held_back_before_there_was_background_work() -> None:
    """Refusals before the first background call aren't remembered: nobody could have yielded."""
    made = bench()
    hand = made.begin(0.0)
    hand.end(hand.send(0.0), UNAVAILABLE, 0.0)
    assert made.world.pools["chat"].yielding is None
    assert background(made, 10.0).send(10.0).number == 1


def test_a_call_that_the_sdk_repeats_is_not_held_back() -> None:
    made = bench()
    refused(made, 0.0)
    assert background(made, 1.0, delegated=True).send(1.0).number == 1


def test_objectives_of_other_classes_hold_background_back() -> None:
    made = bench()
    low = background(made, 0.0, LOW)
    low.end(low.send(0.0), DONE, 0.5)
    hand = made.begin(1.0, traffic_class="chat")
    assert hand.call.wants_counts
    hand.end(hand.send(1.0), DONE, 12.0)
    assert background(made, 12.0).refusal(12.0).reason == "yielded"


def test_an_answer_in_time_lets_more_begin() -> None:
    made = bench()
    refused(made, 0.0)
    yielding = made.world.pools["chat"].yielding
    assert yielding is not None
    hand = made.begin(1.0)
    hand.end(hand.send(1.0), DONE, 1.5)
    assert yielding.level(1.5) == pytest.approx(0.5 * (1.0 + GAIN))


def test_a_new_document_keeps_the_level() -> None:
    made = bench(admission=AdmissionPolicy())
    refused(made, 0.0)
    made.engine.swap(snapshot(route({"a": 1, "b": 1}), classes=dict(CLASSES), version=2), 1.0)
    assert background(made, 1.0).refusal(1.0).reason == "yielded"
    made.engine.swap(snapshot(route({"b": 1}), classes=dict(CLASSES), version=3), 1.0)
    pool = made.world.pools["chat"]
    assert pool.yielding is not None
    assert not pool.yielding._counts
