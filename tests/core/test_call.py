"""The call machine step by step: failover, retries and why not, hints, deadlines, odd outcomes."""

from __future__ import annotations

import pytest

from headway.core.model import (
    CANCELLED,
    DEADLINE_STREAMING,
    INFINITY,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    BudgetExhausted,
    CallEnded,
    CallRejected,
    CredentialBlocked,
    EndpointThrottled,
    FailureClass,
    FirstToken,
    LimitChanged,
    Outcome,
    Rejection,
    RetryDenied,
    Send,
)
from headway.core.snapshot import (
    Capacity,
    DeadlinePolicy,
    Fallback,
    RetryPolicy,
)
from tests.core.build import (
    BAD,
    BROKEN,
    DONE,
    EXHAUSTED,
    LATE,
    REFUSED,
    THROTTLED,
    UNAVAILABLE,
    Bench,
    Even,
    Extra,
    F,
    Hand,
    endpoint,
    facts,
    profile,
    route,
    snapshot,
    throttled,
)

A = route({"a": 1})
AB = route({"a": 1, "b": 1})
ABC = route({"a": 1, "b": 1, "c": 1})


def denied(bench: Bench) -> list[str]:
    return [e.reason for e in bench.of(RetryDenied)]


# ---------------------------------------------------------------- one attempt


def test_a_call_that_works_is_one_attempt() -> None:
    bench = Bench(A)
    hand = bench.begin(1.0, prompt_tokens=100)
    attempt = hand.send(1.0)

    assert attempt.number == 1
    assert attempt.kind is AttemptKind.INITIAL
    assert (attempt.endpoint_id, attempt.model) == ("a", "m")
    assert (attempt.started_at, attempt.backoff_s) == (1.0, 0.0)
    assert (attempt.deadline_at, attempt.first_token_by) == (INFINITY, INFINITY)
    assert attempt.idle_s == 60.0
    assert (attempt.breaker_state, attempt.permit, attempt.is_probe) == ("closed", 0, False)
    assert attempt.planned_uncached_tokens == 100
    assert hand.wait(1.5, "running").until == INFINITY
    assert bench.state("a").inflight == 1
    hand.end(attempt, DONE, 3.0)

    end = hand.finish(3.0)
    assert (end.attempt, end.rejection) == (attempt, None)
    assert bench.state("a").inflight == 0
    assert bench.world.pools["chat"].inflight == 0
    assert hand.call.attempts == 1
    assert hand.call.running == []


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (DONE, "ok"),
        (BROKEN, "error"),
        (CANCELLED, "cancelled"),
        (DEADLINE_STREAMING, "timeout"),
        (LATE, "timeout"),
        (Outcome(F.STALLED), "timeout"),
    ],
)
def test_how_an_attempt_ended_is_said_in_a_word(outcome: Outcome, result: str) -> None:
    bench = Bench(A)
    bench.serve(0.0, outcome, attempts_max=1)

    assert [event.result for event in bench.of(AttemptEnded)] == [result]


def test_a_call_of_its_own_was_granted_no_retry_to_anyone_else() -> None:
    hand = Bench(A).begin()
    hand.fail(0.0)

    assert hand.call.retry_granted is False


def test_its_events_in_order() -> None:
    bench = Bench(A)
    hand = bench.begin(1.0)
    attempt = hand.send(1.0)
    hand.end(attempt, DONE, 3.0)

    assert bench.events == [
        AttemptStarted(1, attempt, 1.0),
        AttemptEnded(1, attempt, DONE, "ok", 2.0, 3.0),
        CallEnded(1, attempt, DONE, 1, 3.0),
    ]


def test_a_stream_is_decided_at_its_first_token_and_over_at_its_end() -> None:
    bench = Bench(A)
    hand = bench.begin(1.0, stream=True)
    attempt = hand.send(1.0)

    assert hand.call.on_first_token(attempt, 1.5)
    assert attempt.first_token_at == 1.5
    assert hand.finish(1.5).attempt is attempt
    assert hand.call.on_first_token(attempt, 1.6)  # still its own
    hand.end(attempt, DONE, 9.0)

    assert bench.events == [
        AttemptStarted(1, attempt, 1.0),
        FirstToken(1, attempt, 0.5, 1.5),
        AttemptEnded(1, attempt, DONE, "ok", 8.0, 9.0),
        CallEnded(1, attempt, DONE, 1, 9.0),
    ]


def test_a_stream_that_breaks_after_its_first_token_is_not_moved() -> None:
    bench = Bench(AB)
    hand = bench.begin(stream=True)
    attempt = hand.send(0.0)
    hand.call.on_first_token(attempt, 0.5)
    broken = Outcome(F.INCOMPLETE_STREAM)

    hand.end(attempt, broken, 2.0)

    assert hand.finish(2.0).attempt is attempt
    assert bench.events[-1] == CallEnded(1, attempt, broken, 1, 2.0)
    assert denied(bench) == []


def test_a_finished_call_lets_go_of_its_listener() -> None:
    """The listener knows the call: kept, the two could only be freed by the garbage collector."""
    bench = Bench(A)
    call = bench.engine.begin(facts(stream=True), 0.0, sink=bench.events.append)
    assert call is not None
    hand = Hand(call, 0.0)
    attempt = hand.send(0.0)
    call.on_first_token(attempt, 0.5)
    assert call._sink is not None
    hand.end(attempt, DONE, 1.0)

    assert hand.call._sink is None
    assert type(bench.events[-1]).__name__ == "CallEnded"


def test_only_the_first_report_of_an_attempt_counts() -> None:
    bench = Bench(A)
    hand = bench.begin()
    attempt = hand.send(0.0)
    hand.end(attempt, DONE, 1.0)
    before = list(bench.events)

    hand.end(attempt, BROKEN, 2.0)
    assert hand.call.on_first_token(attempt, 2.0) is False

    assert bench.events == before
    assert bench.state("a").inflight == 0


def test_asking_again_changes_nothing() -> None:
    bench = Bench(A)
    hand = bench.begin()
    attempt = hand.send(0.0)

    assert hand.next(0.5) == hand.next(0.5)
    hand.end(attempt, DONE, 1.0)
    assert hand.next(1.0) == hand.next(5.0)
    assert len(bench.of(AttemptStarted)) == 1


# ---------------------------------------------------------------- failover and retry


@pytest.mark.parametrize("outcome", [BROKEN, REFUSED, UNAVAILABLE, THROTTLED, LATE])
def test_a_failure_moves_to_another_endpoint_at_once(outcome: Outcome) -> None:
    bench = Bench(AB)
    hand = bench.begin()
    first = hand.fail(0.0, outcome)
    second = hand.send(0.0)

    assert {first.endpoint_id, second.endpoint_id} == {"a", "b"}
    assert (second.number, second.kind, second.backoff_s) == (2, AttemptKind.RETRY, 0.0)
    hand.end(second, DONE, 1.0)

    assert hand.finish(1.0).attempt is second
    assert bench.events[-1] == CallEnded(1, second, DONE, 2, 1.0)


def test_the_second_failover_is_spread_over_a_quarter_of_a_second() -> None:
    bench = Bench(ABC, rng=Even(0.5))
    hand = bench.begin()
    hand.fail(0.0)
    hand.fail(0.0)

    assert hand.wait(0.0, "backoff").until == 0.125
    third = hand.send(0.125)
    assert third.backoff_s == 0.125


def test_a_sole_endpoint_is_retried_after_a_drawn_backoff() -> None:
    bench = Bench(A, rng=Even(0.5))
    hand = bench.begin()
    hand.fail(0.0)

    assert hand.wait(0.0, "backoff").until == 0.25  # half of 0.5
    assert hand.wait(0.2, "backoff").until == 0.25
    second = hand.send(0.25)
    assert (second.endpoint_id, second.kind, second.backoff_s) == ("a", AttemptKind.RETRY, 0.25)
    hand.end(second, BROKEN, 0.25)

    assert hand.wait(0.25, "backoff").until == 0.75  # half of 1.0


def test_three_attempts_are_made_by_default_and_the_last_failure_surfaces_unchanged() -> None:
    bench = Bench(ABC, rng=Even(0.0))
    hand = bench.begin()
    hand.fail(0.0)
    hand.fail(0.0)
    last = hand.fail(0.0)

    assert hand.finish(0.0).attempt is last
    assert denied(bench) == ["attempts"]
    assert bench.events[-1] == CallEnded(1, last, BROKEN, 3, 0.0)


@pytest.mark.parametrize(
    ("policy", "caller", "attempts"),
    [(None, None, 3), (None, 1, 1), (None, 5, 5), (2, 5, 2), (4, 1, 4), (1, None, 1)],
)
def test_the_policy_counts_attempts_and_where_it_is_silent_the_caller(
    policy: int | None, caller: int | None, attempts: int
) -> None:
    retry = RetryPolicy(attempts_max=policy, budget_start=9, budget_capacity=9)
    bench = Bench(route({"a": 1}, retry=retry), rng=Even(0.0))
    hand = bench.begin(attempts_max=caller)
    for _ in range(attempts):
        hand.fail(0.0)

    assert hand.finish(0.0).attempt is not None
    assert hand.call.attempts == attempts


@pytest.mark.parametrize("kind", [F.BAD_REQUEST, F.CONTENT_FILTER])
def test_a_bad_request_is_nobodys_fault_elsewhere(kind: FailureClass) -> None:
    bench = Bench(AB)
    hand = bench.begin()
    hand.fail(0.0, Outcome(kind))

    assert hand.finish(0.0).attempt is not None
    assert denied(bench) == ["not_retryable"]
    assert bench.balance(0.0) == 3.0


@pytest.mark.parametrize("kind", [F.AUTH, F.NOT_FOUND, F.QUOTA_EXHAUSTED])
def test_what_another_endpoint_may_know_better_moves_but_never_stays(kind: FailureClass) -> None:
    two, one = Bench(AB), Bench(A)
    moved, stuck = two.begin(), one.begin()
    first = moved.fail(0.0, Outcome(kind))
    stuck.fail(0.0, Outcome(kind))

    assert moved.send(0.0).endpoint_id != first.endpoint_id
    assert stuck.finish(0.0).attempt is not None
    assert denied(one) == ["breaker"]
    assert one.balance(0.0) == 3.0


def test_a_policy_may_narrow_what_is_retried_by_class_or_by_status() -> None:
    retry = RetryPolicy(on=frozenset({"overloaded", "500"}))
    bench = Bench(route({"a": 1, "b": 1}, retry=retry))

    for outcome, again in ((UNAVAILABLE, True), (BROKEN, True), (REFUSED, False)):
        hand = bench.begin()
        hand.fail(0.0, outcome)
        assert (hand.call.attempts, isinstance(hand.next(0.0), tuple)) == (1, True)
        assert ("not_retryable" in denied(bench)) == (not again)


def test_a_call_that_may_have_run_and_is_not_safe_to_repeat_is_not_repeated() -> None:
    bench = Bench(AB)
    hand = bench.begin(repeatable=False)
    hand.fail(0.0, BROKEN)
    assert hand.finish(0.0).attempt is not None
    assert denied(bench) == ["not_retryable"]

    safe = bench.begin(repeatable=False)
    safe.fail(0.0, REFUSED)
    assert safe.send(0.0).number == 2


def test_the_retry_budget_is_shared_and_when_it_is_empty_failures_surface() -> None:
    bench = Bench(ABC)
    bench.prove("a", "b", "c")  # 3.3 tokens
    for _ in range(3):
        hand = bench.begin()
        hand.fail(0.0, BAD._replace(kind=F.SERVER_ERROR))
        attempt = hand.send(0.0)
        hand.end(attempt, CANCELLED, 0.0)
    assert bench.balance(0.0) == pytest.approx(0.3)

    hand = bench.begin()
    last = hand.fail(0.0)

    assert hand.finish(0.0).attempt is last
    assert denied(bench) == ["budget"]
    assert bench.of(BudgetExhausted) == [BudgetExhausted("chat", 0.0)]


def test_an_empty_budget_is_told_once_until_a_success() -> None:
    bench = Bench(route({"a": 1, "b": 1}, retry=RetryPolicy(budget_start=0.0)))
    bench.prove("a", "b")
    for _ in range(2):
        bench.begin().fail(0.0)
    assert len(bench.of(BudgetExhausted)) == 1
    bench.serve(0.0, takes=0.0)
    bench.begin().fail(0.0)

    assert len(bench.of(BudgetExhausted)) == 2


def test_a_budget_that_was_never_there_is_told_of_too() -> None:
    bench = Bench(route({"a": 1, "b": 1}, retry=RetryPolicy(budget_start=0.0)))
    bench.begin().fail(0.0)

    assert bench.of(BudgetExhausted) == [BudgetExhausted("chat", 0.0)]


def test_a_success_credits_a_tenth_once_per_call() -> None:
    bench = Bench(AB)
    hand = bench.begin()
    hand.fail(0.0)
    assert bench.balance(0.0) == 2.0
    hand.end(hand.send(0.0), DONE, 0.0)

    assert bench.balance(0.0) == pytest.approx(2.1)


@pytest.mark.parametrize(("left", "attempts"), [(0, 1), (1, 2), (2, 3), (None, 3)])
def test_a_task_has_its_own_cap_on_extra_attempts(left: int | None, attempts: int) -> None:
    bench = Bench(ABC, rng=Even(0.0))
    hand = bench.begin(allowance=None if left is None else Extra(left))
    for _ in range(attempts):
        hand.fail(0.0)

    assert hand.finish(0.0).attempt is not None
    assert denied(bench) == ["task_budget" if left is not None and left < 2 else "attempts"]


def test_calls_at_once_share_what_their_task_allows() -> None:
    bench = Bench(ABC, rng=Even(0.0))
    extra = Extra(1)
    hands = [bench.begin(allowance=extra) for _ in range(3)]
    for hand in hands:
        hand.fail(0.0)
    retried = [hand for hand in hands if isinstance(hand.call.next_action(0.0), Send)]

    assert len(retried) == 1
    assert denied(bench) == ["task_budget", "task_budget"]


def test_a_retry_that_is_never_sent_goes_back_to_the_task() -> None:
    bench = Bench(ABC, rng=Even(0.0))
    extra = Extra(1)
    hand = bench.begin(allowance=extra)
    hand.fail(0.0)
    assert extra.left == 0

    hand.call.cancel(0.0)
    assert extra.left == 1


def test_an_empty_budget_takes_nothing_from_the_task() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.begin(attempts_max=1).fail(0.0)
    pool = bench.pool()
    while pool.budget.withdraw(0.0):
        pass
    extra = Extra(1)
    hand = bench.begin(allowance=extra)
    hand.fail(0.0)

    assert extra.left == 1
    assert denied(bench)[-1] == "budget"


# ---------------------------------------------------------------- the server's word


def test_x_should_retry_false_wins_over_everything() -> None:
    bench = Bench(AB)
    hand = bench.begin()
    hand.fail(0.0, UNAVAILABLE._replace(should_retry=False))

    assert hand.finish(0.0).attempt is not None
    assert denied(bench) == ["not_retryable"]


def test_x_should_retry_true_repeats_even_a_bad_request_at_the_same_endpoint() -> None:
    bench = Bench(A, rng=Even(0.5))
    hand = bench.begin()
    hand.fail(0.0, BAD._replace(should_retry=True))

    assert hand.wait(0.0, "backoff").until == 0.25
    assert hand.send(0.25).endpoint_id == "a"


def test_x_should_retry_true_does_not_bypass_budget_or_count() -> None:
    bench = Bench(route({"a": 1}, retry=RetryPolicy(budget_start=0.0)))
    hand = bench.begin()
    hand.fail(0.0, BAD._replace(should_retry=True))
    assert hand.finish(0.0).attempt is not None
    assert denied(bench) == ["budget"]

    single = Bench(A).begin(attempts_max=1)
    single.fail(0.0, BAD._replace(should_retry=True))
    assert single.finish(0.0).attempt is not None


def test_an_insistence_ends_with_the_next_answer() -> None:
    bench = Bench(A, rng=Even(0.0))
    hand = bench.begin()
    hand.fail(0.0, BAD._replace(should_retry=True))
    hand.fail(0.0, BAD)

    assert hand.finish(0.0).attempt is not None


def test_a_hint_is_waited_for_at_a_sole_endpoint_and_jittered() -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.prove("a")
    hand = bench.begin()
    hand.fail(0.0, throttled(5.0))

    assert hand.wait(0.0, "backoff").until == 5.0
    assert hand.wait(5.0, "throttled").until == pytest.approx(5.75)  # 5 + half of 0.5 + 1
    again = hand.send(5.75)
    assert again.endpoint_id == "a"
    assert bench.of(EndpointThrottled) == [EndpointThrottled("a", "m", 5.75, 0.0)]


def test_a_hint_is_not_waited_for_where_another_endpoint_can_serve() -> None:
    bench = Bench(AB)
    hand = bench.begin()
    first = hand.fail(0.0, throttled(60.0))

    assert hand.send(0.0).endpoint_id != first.endpoint_id


def test_a_hint_that_comes_with_an_insistence_on_a_bad_request_is_waited_for_too() -> None:
    bench = Bench(A, rng=Even(0.0))
    hand = bench.begin()
    hand.fail(0.0, BAD._replace(should_retry=True, retry_after_s=7.0))

    assert hand.wait(0.0, "backoff").until == 7.0


def test_a_hint_is_waited_for_only_until_another_that_failed_before_is_back() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.prove("a", "b")
    hand = bench.begin(100.0)
    first = hand.fail(100.0, throttled(3.0))
    second = hand.fail(100.0, throttled(10.0))

    assert hand.wait(100.0, "backoff").until == 103.0
    assert hand.send(103.0).endpoint_id == first.endpoint_id != second.endpoint_id


def test_a_hint_longer_than_two_minutes_ends_the_call_and_cools_the_endpoint() -> None:
    bench = Bench(A, rng=Even(0.0))
    hand = bench.begin()
    last = hand.fail(0.0, throttled(121.0))

    assert hand.finish(0.0).attempt is last
    assert denied(bench) == ["hint"]
    refused = bench.begin(0.5).refusal(0.5)
    assert (refused.reason, refused.retry_after_s) == ("throttled", 120.5)
    assert refused.detail == (("a", "throttled", 120.5),)


def test_a_wait_that_another_call_was_told_of_is_long_or_short_from_now() -> None:
    bench = Bench(A, rng=Even(0.0))
    bench.prove("a", now=1000.0)
    bench.serve(1000.0, throttled(200.0), takes=0.0, attempts_max=1)

    assert bench.begin(1079.0).refusal(1079.0).retry_after_s == 121.0
    assert bench.begin(1080.0).wait(1080.0, "throttled").until == 1200.0


def test_the_refusal_names_the_soonest_that_may_be_back() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.prove("a", "b", now=100.0)
    for name, hint in (("a", 300.0), ("b", 200.0)):
        bench.serve(100.0, throttled(hint), takes=0.0, pinned_to=name, attempts_max=1)
    refused = bench.begin(110.0).refusal(110.0)

    assert refused.retry_after_s == 190.0
    assert refused.detail == (("a", "throttled", 290.0), ("b", "throttled", 190.0))


def test_a_hint_of_exactly_two_minutes_is_waited_for() -> None:
    bench = Bench(A, rng=Even(0.0))
    hand = bench.begin()
    hand.fail(0.0, throttled(120.0))

    assert hand.wait(0.0, "backoff").until == 120.0


@pytest.mark.parametrize("hint", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_hint_without_meaning_is_ignored(hint: float) -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.prove("a")
    hand = bench.begin()
    hand.fail(0.0, UNAVAILABLE._replace(retry_after_s=hint))

    assert hand.wait(0.0, "backoff").until == 0.375


def test_throttles_without_a_hint_keep_everyone_away_longer_and_longer() -> None:
    bench = Bench(A, rng=Even(0.0))
    bench.prove("a")
    for at, until in ((0.0, 0.5), (10.0, 11.0), (20.0, 22.0)):
        bench.serve(at, THROTTLED, takes=0.0, attempts_max=1)
        assert bench.state("a").out_until("m") == (until, "cooling")
    bench.serve(30.0, takes=0.0)
    bench.serve(40.0, THROTTLED, takes=0.0, attempts_max=1)

    assert bench.state("a").out_until("m") == (40.5, "cooling")


def test_the_first_throttle_without_a_hint_is_the_shortest() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.serve(0.0, THROTTLED, takes=0.0, pinned_to="a", attempts_max=1)

    assert bench.state("a").out_until("m")[0] == 0.5


def test_overload_with_a_hint_cools_the_endpoint_too() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.serve(0.0, UNAVAILABLE._replace(retry_after_s=7.0), takes=0.0, pinned_to="a")

    assert bench.state("a").out_until("m") == (7.0, "throttled")


def test_a_bad_request_with_a_hint_cools_nothing() -> None:
    bench = Bench(AB)
    bench.serve(0.0, BAD._replace(retry_after_s=7.0), takes=0.0, pinned_to="a")

    assert bench.state("a").outs == {}


# ---------------------------------------------------------------- free retries


def free(outcome: Outcome = REFUSED) -> Outcome:
    return outcome._replace(free_retry=True)


def test_a_failure_that_says_nothing_is_repeated_at_once_for_free_and_teaches_nothing() -> None:
    bench = Bench(A)
    bench.prove("a")
    breaker = bench.breaker("a")
    hand = bench.begin(attempts_max=1)
    hand.fail(0.0, free())
    again = hand.send(0.0)

    assert (again.number, again.kind, again.backoff_s) == (2, AttemptKind.RETRY, 0.0)
    assert bench.balance(0.0) == pytest.approx(3.1)
    assert bench.state("a").badness(0.0) == 0.0
    for _ in range(9):
        bench.begin(attempts_max=1).fail(0.0, free())
    assert breaker.state.value == "closed"


def test_a_free_retry_that_is_never_sent_gives_nothing_back() -> None:
    bench = Bench(A)
    hand = bench.begin()
    hand.fail(0.0, free())
    hand.call.cancel(0.0)

    assert bench.balance(0.0) == 3.0


def test_free_retries_are_honoured_twice() -> None:
    bench = Bench(A)
    hand = bench.begin(attempts_max=1)
    hand.fail(0.0, free())
    hand.fail(0.0, free())
    third = hand.fail(0.0, free())

    assert hand.finish(0.0).attempt is third
    assert denied(bench) == ["attempts"]


def test_free_retries_do_not_use_up_the_callers_attempts() -> None:
    bench = Bench(A, rng=Even(0.0))
    hand = bench.begin()
    hand.fail(0.0, free())
    for _ in range(3):
        hand.fail(0.0)

    assert hand.finish(0.0).attempt is not None
    assert hand.call.attempts == 4


# ---------------------------------------------------------------- context length, fallbacks


def test_a_prompt_too_long_moves_to_a_larger_window_only() -> None:
    bench = Bench(
        snapshot(
            route({"a": 1, "b": 1}, fallback=[Fallback(endpoint="big")]),
            [endpoint("a", window=1000), endpoint("b", window=1000), endpoint("big", window=9000)],
        )
    )
    hand = bench.begin(prompt_tokens=500)
    hand.fail(0.0, Outcome(F.CONTEXT_LENGTH, status=400))
    second = hand.send(0.0)

    assert (second.endpoint_id, second.kind) == ("big", AttemptKind.FALLBACK)
    assert bench.balance(0.0) == 2.0


def test_a_prompt_too_long_for_an_undeclared_window_needs_one_larger_than_the_prompt() -> None:
    bench = Bench(
        snapshot(
            route({"a": 1}, fallback=[Fallback(endpoint="same"), Fallback(endpoint="big")]),
            [endpoint("same", window=500), endpoint("big", window=501)],
        )
    )
    hand = bench.begin(prompt_tokens=500)
    hand.fail(0.0, Outcome(F.CONTEXT_LENGTH, status=400))

    assert hand.send(0.0).endpoint_id == "big"


def test_a_prompt_too_long_for_everyone_surfaces() -> None:
    bench = Bench(AB)
    hand = bench.begin(prompt_tokens=500)
    hand.fail(0.0, Outcome(F.CONTEXT_LENGTH, status=400))

    assert hand.finish(0.0).attempt is not None
    assert denied(bench) == ["breaker"]


def test_fallbacks_come_after_the_routes_own_endpoints_with_their_model() -> None:
    bench = Bench(
        snapshot(
            route(
                {"a": 1, "b": 1},
                fallback=[Fallback(endpoint="f", model="small", on=frozenset({"server_error"}))],
            )
        ),
        rng=Even(0.0),
    )
    hand = bench.begin()
    own = {hand.fail(0.0).endpoint_id, hand.fail(0.0).endpoint_id}
    last = hand.send(0.0)

    assert own == {"a", "b"}
    assert (last.endpoint_id, last.model, last.kind, last.reason) == (
        "f", "small", AttemptKind.FALLBACK, "fallback",
    )  # fmt: skip


# ---------------------------------------------------------------- deadlines


def test_a_call_past_its_deadline_is_refused_before_any_spend() -> None:
    bench = Bench(A)
    refused = bench.begin(5.0, deadline_at=5.0).refusal(5.0)

    assert refused.reason == "deadline"
    assert [type(e) for e in bench.events] == [CallRejected, CallEnded]
    ended = bench.of(CallEnded)[0]
    assert (ended.winner, ended.outcome.kind, ended.outcome.error_type, ended.attempts) == (
        None, F.CANCELLED, "deadline", 0,
    )  # fmt: skip


def test_the_earlier_of_the_calls_and_the_routes_deadline_holds() -> None:
    bench = Bench(route({"a": 1}, deadline=DeadlinePolicy(total_s=10.0, ttft_s=4.0, idle_s=9.0)))

    own = bench.begin(1.0, deadline_at=5.0, stream=True)
    assert own.call.deadline_at == 5.0
    attempt = own.send(1.0)
    assert (attempt.deadline_at, attempt.first_token_by, attempt.idle_s) == (5.0, 5.0, 9.0)
    routes = bench.begin(1.0, stream=True).send(1.0)
    assert (routes.deadline_at, routes.first_token_by) == (11.0, 5.0)


def test_a_first_token_limit_on_a_call_that_is_not_streamed_allows_for_the_whole_answer() -> None:
    limit = DeadlinePolicy(ttft_s=4.0)
    plain = Bench(route({"a": 1}, deadline=limit))
    planned = Bench(
        route({"a": 1}, deadline=limit, output_tokens=100),
        endpoints=[endpoint("a", profile=profile(1.0, 0.01))],
    )

    assert plain.begin().send(0.0).first_token_by == INFINITY
    attempt = planned.begin().send(0.0)
    assert attempt.predicted_s == pytest.approx(2.0)
    assert attempt.first_token_by == pytest.approx(4.0 + 3 * 2.0)


def test_a_retry_that_would_start_past_the_deadline_is_not_scheduled() -> None:
    bench = Bench(A, rng=Even(0.5))
    hand = bench.begin(deadline_at=10.0)
    last = hand.fail(9.75)  # a quarter of a second before it

    assert hand.finish(9.75).attempt is last
    assert denied(bench) == ["deadline"]
    assert bench.balance(9.75) == 3.0


def test_a_hint_past_the_deadline_surfaces_the_failure_now() -> None:
    bench = Bench(A)
    hand = bench.begin(deadline_at=10.0)
    last = hand.fail(0.0, throttled(30.0))

    assert hand.finish(0.0).attempt is last
    assert denied(bench) == ["deadline"]


def test_nothing_starts_that_cannot_show_a_first_token_in_time() -> None:
    bench = Bench(A, endpoints=[endpoint("a", profile=profile(3.0), rtt_s=0.5)])

    assert bench.begin(0.0, deadline_at=3.4).refusal(0.0).reason == "deadline"
    assert bench.begin(0.0, deadline_at=3.5).send(0.0).endpoint_id == "a"


def test_a_deadline_that_passes_during_backoff_refuses_and_gives_the_token_back() -> None:
    bench = Bench(A, rng=Even(0.5))
    hand = bench.begin(deadline_at=10.0)
    hand.fail(9.0)
    assert hand.wait(9.0, "backoff").until == 9.25
    assert bench.balance(9.0) == 2.0

    assert hand.refusal(10.0).reason == "deadline"

    assert bench.balance(10.0) == 3.0


def test_a_throttled_wait_past_the_deadline_is_refused() -> None:
    bench = Bench(A, rng=Even(0.0))
    bench.prove("a")
    bench.serve(0.0, throttled(50.0), takes=0.0, attempts_max=1)

    assert bench.begin(0.0, deadline_at=51.0).wait(0.0, "throttled").until == 50.0
    refused = bench.begin(0.0, deadline_at=50.0).refusal(0.0)
    assert (refused.reason, refused.retry_after_s) == ("throttled", 50.0)


def test_a_rate_that_allows_nothing_before_the_deadline_is_refused_as_a_throttle() -> None:
    bench = Bench(A, endpoints=[endpoint("a", capacity=Capacity(rpm=120.0))])
    for _ in range(21):
        bench.serve(0.0, takes=0.0)

    refused = bench.begin(0.0, deadline_at=0.5).refusal(0.0)

    assert (refused.reason, refused.retry_after_s) == ("throttled", 0.5)
    assert refused.detail == (("a", "paced", 0.5),)


# ---------------------------------------------------------------- nothing left


def test_the_token_of_a_retry_that_found_nothing_goes_back() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.prove("a", "b")
    hand = bench.begin()
    first = hand.fail(0.0, Outcome(F.AUTH, status=401))
    other = "b" if first.endpoint_id == "a" else "a"
    assert bench.balance(0.0) == pytest.approx(2.2)
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to=other, attempts_max=1)

    assert hand.finish(0.0).attempt is first

    assert bench.balance(0.0) == pytest.approx(3.2)
    assert denied(bench)[-1] == "breaker"


def test_all_credentials_exhausted_is_said_so() -> None:
    bench = Bench(A, rng=Even(0.0))
    bench.serve(0.0, EXHAUSTED, takes=0.0)

    refused = bench.begin(10.0).refusal(10.0)

    assert (refused.reason, refused.retry_after_s) == ("quota", 290.0)
    assert bench.of(CredentialBlocked) == [
        CredentialBlocked("endpoint:a", "a", "quota_exhausted", 300.0, 0.0)
    ]


def test_a_block_is_jittered_upwards_only_and_a_longer_hint_counts() -> None:
    bench = Bench(AB, rng=Even(0.5))
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a")
    bench.serve(0.0, EXHAUSTED._replace(retry_after_s=1000.0), takes=0.0, pinned_to="b")

    assert bench.world.blocks["endpoint:a"].until == pytest.approx(330.0)
    assert bench.world.blocks["endpoint:b"].until == pytest.approx(1100.0)


def test_a_refused_key_is_left_alone_for_a_minute() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.serve(0.0, Outcome(F.AUTH, status=401), takes=0.0, pinned_to="a")

    assert bench.world.blocks["endpoint:a"].until == 60.0


def test_no_candidate_at_all_is_refused_with_what_is_wrong_with_each() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", state="disabled"), endpoint("b", window=10)])

    refused = bench.begin(0.0, prompt_tokens=11).refusal(0.0)

    assert refused.reason == "no_endpoint"
    assert refused.retry_after_s == INFINITY or refused.retry_after_s is None
    assert [d[:2] for d in refused.detail] == [("a", "disabled"), ("b", "context_window")]


# ---------------------------------------------------------------- delegated calls


def test_a_delegated_call_makes_one_attempt_and_says_whether_the_sdk_may_retry() -> None:
    bench = Bench(A)
    hand = bench.begin(delegated=True)
    attempt = hand.fail(0.0)

    assert hand.finish(0.0).attempt is attempt
    assert hand.call.retry_granted
    assert bench.balance(0.0) == 2.0
    assert denied(bench) == []
    assert bench.events[-1] == CallEnded(1, attempt, BROKEN, 1, 0.0)


def test_a_delegated_call_is_denied_like_any_other() -> None:
    bench = Bench(route({"a": 1}, retry=RetryPolicy(budget_start=1.0)))
    first, second, bad = (bench.begin(delegated=True) for _ in range(3))
    first.fail(0.0)
    second.fail(0.0)
    bad.fail(0.0, BAD)

    assert first.call.retry_granted
    assert not second.call.retry_granted
    assert not bad.call.retry_granted
    assert denied(bench) == ["budget", "not_retryable"]


def test_a_delegated_call_whose_old_connection_broke_is_sent_again_for_nothing() -> None:
    bench = Bench(A)
    hand = bench.begin(delegated=True)
    attempt = hand.fail(0.0, REFUSED._replace(free_retry=True))

    assert hand.call.retry_granted is True
    assert hand.finish(0.0).attempt is attempt
    assert bench.balance(0.0) == 3.0
    assert denied(bench) == []


def test_what_the_sdk_sends_again_and_cannot_be_paid_for_is_refused() -> None:
    bench = Bench(route({"a": 1}, retry=RetryPolicy(budget_start=0.0)))
    bench.prove("a", now=1.0)

    def resend(since: float) -> Hand:
        return bench.begin(2.0, delegated=True, resend=1, owed_since=since)

    refusal = resend(1.0).refusal(2.0)  # served then is not served since
    assert refusal == Rejection("throttled", None, (("a", "cooling", 0.0),))
    assert bench.of(BudgetExhausted) == [BudgetExhausted("chat", 2.0)]
    assert resend(0.9).send(2.0).number == 2  # somebody was served meanwhile

    rich = Bench(route({"a": 1}, retry=RetryPolicy(budget_per_success=0.0)))
    rich.prove("a", now=1.0)
    assert rich.begin(2.0, delegated=True, resend=1, owed_since=1.5).send(2.0).number == 2
    assert rich.balance(2.0) == 2.0


def test_a_delegated_calls_attempt_count_is_the_sdks_business() -> None:
    hand = Bench(A).begin(delegated=True, attempts_max=1)
    hand.fail(0.0)

    assert hand.call.retry_granted


def test_a_delegated_call_waits_exactly_the_hint_as_the_sdk_does() -> None:
    bench = Bench(A, rng=Even(0.5))
    bench.begin(delegated=True).fail(0.0, throttled(5.0))

    assert bench.state("a").out_until("m") == (5.0, "throttled")


def test_a_delegated_call_learns_nothing_about_keys_and_models() -> None:
    bench = Bench(A)
    bench.begin(delegated=True).fail(0.0, Outcome(F.AUTH, status=401))
    bench.begin(delegated=True).fail(0.0, Outcome(F.NOT_FOUND, status=404))

    assert bench.world.blocks == {}
    assert bench.state("a").outs == {}


# ---------------------------------------------------------------- pinned calls


def test_a_pinned_call_is_retried_where_its_object_lives() -> None:
    bench = Bench(AB, rng=Even(0.5))
    hand = bench.begin(pinned_to="b")
    hand.fail(0.0)
    assert hand.wait(0.0, "backoff").until == 0.25
    again = hand.send(0.25)

    assert (again.endpoint_id, again.reason) == ("b", "pinned")


def test_a_pinned_call_goes_beside_a_running_probe_and_settles_nothing() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("b")
    probe = bench.begin(10.0).send(10.0)
    assert (probe.endpoint_id, probe.is_probe) == ("b", True)
    hand = bench.begin(10.0, pinned_to="b")
    beside = hand.send(10.0)

    assert (beside.permit, beside.is_probe) == (-1, False)
    hand.end(beside, DONE, 10.1)

    assert bench.breaker("b").state.value == "half_open"


# ---------------------------------------------------------------- probes


def test_a_probe_says_so_and_a_success_closes_the_breaker() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    hand = bench.begin(10.0)
    probe = hand.send(10.0)

    assert (probe.kind, probe.reason) == (AttemptKind.PROBE, "probe")
    assert (probe.is_probe, probe.breaker_state) == (True, "half_open")
    hand.end(probe, DONE, 11.0)

    assert bench.breaker("a").state.value == "closed"


def test_a_first_token_is_enough_for_a_probe() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    hand = bench.begin(10.0, stream=True)
    probe = hand.send(10.0)

    hand.call.on_first_token(probe, 11.0)
    assert bench.breaker("a").state.value == "closed"
    assert bench.breaker("a").closed_at == 11.0
    hand.end(probe, Outcome(F.INCOMPLETE_STREAM), 20.0)

    assert bench.breaker("a").state.value == "closed"


def test_a_probe_that_fails_is_hidden_by_a_retry_elsewhere() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    hand = bench.begin(10.0)
    hand.fail(10.0)
    second = hand.send(10.0)

    assert (second.endpoint_id, second.kind) == ("b", AttemptKind.RETRY)


def test_a_call_without_money_or_time_for_a_failure_does_not_probe() -> None:
    poor = Bench(route({"a": 1, "b": 1}, retry=RetryPolicy(budget_start=0.0)), rng=Even())
    late = Bench(route({"a": 1, "b": 1}, deadline=DeadlinePolicy(total_s=20.0)), rng=Even())
    for bench in (poor, late):
        bench.prove("a", "b")
        bench.kill("a")

    assert poor.begin(10.0).send(10.0).endpoint_id == "b"
    assert late.begin(10.0, deadline_at=19.9).send(10.0).endpoint_id == "b"
    assert late.begin(10.0, deadline_at=20.0).send(10.0).endpoint_id == "a"


def test_the_probes_lease_is_the_first_token_limit_or_thirty_seconds() -> None:
    bench = Bench(route({"a": 1, "b": 1}, deadline=DeadlinePolicy(ttft_s=4.0)), rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    bench.begin(10.0).send(10.0)

    assert bench.breaker("a").open_time_s(10.0) == 4.0


# ---------------------------------------------------------------- what failures teach


def test_a_hard_failure_counts_one_against_an_endpoint_and_a_soft_one_half() -> None:
    bench = Bench(AB)
    bench.serve(0.0, BROKEN, takes=0.0, pinned_to="a", attempts_max=1)
    bench.serve(0.0, BROKEN._replace(soft=True), takes=0.0, pinned_to="b", attempts_max=1)

    assert bench.state("a").badness(0.0) == 1.0
    assert bench.state("b").badness(0.0) == 0.5


@pytest.mark.parametrize("outcome", [BAD, EXHAUSTED, Outcome(F.AUTH), Outcome(F.NOT_FOUND)])
def test_a_failure_that_is_not_the_endpoints_counts_nothing_against_it(outcome: Outcome) -> None:
    bench = Bench(A)
    for _ in range(20):
        bench.serve(0.0, outcome, takes=0.0, pinned_to="a", attempts_max=1)
        bench.world.blocks.clear()
        bench.state("a").outs.clear()

    assert bench.state("a").badness(0.0) == 0.0
    assert bench.breaker("a").state.value == "closed"


@pytest.mark.parametrize("outcome", [throttled(1.0), UNAVAILABLE, LATE])
def test_overload_shrinks_the_limit_and_says_so(outcome: Outcome) -> None:
    bench = Bench(AB)
    bench.prove("a")
    hands = [bench.begin(0.0, pinned_to="a", attempts_max=1) for _ in range(10)]
    attempts = [h.send(0.0) for h in hands]
    hands[0].end(attempts[0], outcome, 1.0)

    assert bench.of(LimitChanged) == [LimitChanged("a", 7.0, 1.0)]
    for h, attempt in zip(hands[1:], attempts[1:], strict=True):
        h.end(attempt, DONE, 2.0)
    assert bench.state("a").limit.limit == pytest.approx(7.0 + 6 * 0.14, abs=0.1)


def test_a_server_error_is_no_overload() -> None:
    bench = Bench(AB)
    bench.serve(0.0, BROKEN, takes=0.0, pinned_to="a", attempts_max=1)

    assert bench.of(LimitChanged) == []


def test_a_working_endpoint_that_asks_for_time_is_not_sick() -> None:
    bench = Bench(AB)
    bench.prove("a")
    for at in range(30):
        bench.serve(at * 10.0, throttled(1.0), takes=0.0, pinned_to="a", attempts_max=1)

    assert bench.breaker("a").state.value == "closed"


def test_one_that_never_worked_and_asks_for_time_is_as_good_as_dead() -> None:
    bench = Bench(AB)
    for at in range(3):
        bench.serve(at * 10.0, throttled(1.0), takes=0.0, pinned_to="a", attempts_max=1)

    assert bench.breaker("a").state.value == "open"


def slow_stream(bench: Bench, ttft_s: float, at: float) -> None:
    hand = bench.begin(at, stream=True, pinned_to="a")
    attempt = hand.send(at)
    hand.call.on_first_token(attempt, at + ttft_s)
    hand.end(attempt, DONE, at + ttft_s + 1.0)


@pytest.mark.parametrize(
    ("p99_s", "ttft_s", "slow"),
    [
        (None, 5.0, False),
        (None, 5.1, True),
        (4.0, 8.0, False),
        (4.0, 8.1, True),
        (0.5, 2.1, True),
        (0.5, 2.0, False),
    ],
)
def test_a_first_token_far_later_than_promised_is_soft_evidence(
    p99_s: float | None, ttft_s: float, slow: bool
) -> None:
    """Promised: 1 s on average. Bound: 5 x that, or the larger of 2 x p99 and 2 x the mean."""
    bench = Bench(A, endpoints=[endpoint("a", profile=profile(1.0, p99_s=p99_s))])
    slow_stream(bench, ttft_s, 0.0)

    assert (bench.state("a").badness(ttft_s + 1.0) == 0.5) == slow


def test_ten_streams_slower_than_their_peers_open_the_breaker_on_soft_evidence() -> None:
    bench = Bench(A, endpoints=[endpoint("a", profile=profile(1.0))])
    for i in range(10):
        slow_stream(bench, 6.0, float(i))
        bench.pool().ttft_ratio = 1.0  # where the pool's others keep it

    assert bench.breaker("a").state.value == "open"
    assert not bench.breaker("a").is_hard


def test_lateness_that_all_share_is_nobody_s_fault() -> None:
    bench = Bench(A, endpoints=[endpoint("a", profile=profile(1.0))])
    for i in range(60):
        slow_stream(bench, 6.0, 10.0 * i)

    # ln 6 / ln 1.05 = 37 samples later six times the plan is what the pool's median expects
    assert bench.pool().ttft_ratio == pytest.approx(6.0, rel=0.06)
    for i in range(60, 80):
        slow_stream(bench, 6.0, 10.0 * i)
    assert bench.state("a").badness(1000.0) < 0.01


def test_a_success_is_measured_against_what_was_planned_for_that_very_call() -> None:
    bench = Bench(
        A,
        endpoints=[endpoint("a", profile=profile(1.0, 0.01, prefill_s_per_token=0.001))],
    )
    hand = bench.begin(prompt_tokens=1000)
    attempt = hand.send(0.0)
    done = DONE._replace(input_tokens=2000, cached_tokens=1500, output_tokens=50)
    hand.end(attempt, done, 4.0)

    # planned: 1 + 0.5 (500 uncached) + 0.5 (50 tokens) = 2 s; seen 4 s: 1 + 0.5 x (2 - 1)
    assert bench.state("a").residual(4.0) == pytest.approx(1.5)


def test_typical_call_time_follows_successes_by_a_tenth() -> None:
    bench = Bench(A)
    bench.serve(0.0, takes=11.0)
    bench.serve(20.0, BROKEN, takes=99.0, attempts_max=1)

    assert bench.state("a").call_time_s == pytest.approx(2.0)
    assert bench.state("a").last_success_at == 11.0


# ---------------------------------------------------------------- policy expiry


def test_an_expired_policy_that_says_fail_refuses() -> None:
    bench = Bench(snapshot(A, expires_at=1000.0, on_expiry="fail"))
    call = bench.engine.begin(facts(), 0.0, wall_now=1000.0)
    assert call is not None
    end = call.next_action(0.0)
    assert getattr(end, "rejection", None) is not None
    assert end.rejection.reason == "policy_expired"  # type: ignore[union-attr]
    early = bench.engine.begin(facts(), 0.0, wall_now=999.9)
    assert early is not None
    assert not hasattr(early.next_action(0.0), "rejection")


def test_an_expired_policy_that_says_degrade_goes_on() -> None:
    bench = Bench(snapshot(A, expires_at=1000.0, on_expiry="degrade"))
    call = bench.engine.begin(facts(), 0.0, wall_now=5000.0)
    assert call is not None
    assert not hasattr(call.next_action(0.0), "rejection")


def test_a_probe_leaves_a_token_for_each_endpoint_that_is_out() -> None:
    """Two of three are dead, both due for a probe: with less than two tokens nobody probes."""

    def probes(balance: float, dead: tuple[str, ...]) -> bool:
        bench = Bench(route(dict.fromkeys("abcde", 1)), rng=Even())
        bench.prove(*"abcde")
        for name in dead:
            bench.kill(name)
        due = max(bench.breaker(name).open_until for name in dead) + 1.0
        budget = bench.pool().budget
        while budget.balance(due) >= balance + 1.0:
            budget.withdraw(due)
        return bench.begin(due).send(due).endpoint_id in dead

    assert not probes(1.0, ("a", "b"))
    assert probes(2.0, ("a", "b"))
    assert probes(3.0, ("a", "b", "c", "d"))  # three are enough, however many are out
    assert probes(1.0, ("a",))


def poor_with_one_dead(budget: float) -> Bench:
    retry = RetryPolicy(budget_start=budget, budget_per_success=0.0, budget_trickle_s=0.0)
    bench = Bench(route({"a": 1, "b": 1, "c": 1}, retry=retry), rng=Even())
    bench.prove("a", "b", "c")
    bench.kill("a")
    return bench


def test_one_token_to_the_last_bit_is_one() -> None:
    bench = poor_with_one_dead(1.0)
    due = bench.breaker("a").open_until
    assert bench.balance(due) == 1.0
    assert bench.begin(due).send(due).endpoint_id == "a"


def test_a_retry_that_is_paid_for_may_probe_with_nothing_left() -> None:
    bench = poor_with_one_dead(1.0)
    hand = bench.begin(0.0)
    first = hand.send(0.0)
    due = bench.breaker("a").open_until
    hand.end(first, BROKEN, due)
    assert bench.balance(due) == 0.0
    probe = hand.send(due)

    assert (probe.endpoint_id, probe.is_probe) == ("a", True)


def test_the_first_attempt_where_there_is_a_choice_was_not_waited_for() -> None:
    bench = Bench(route({"a": 1, "b": 1}))
    bench.prove("a", "b")
    attempt = bench.begin(1.0).send(1.0)

    assert (attempt.kind, attempt.backoff_s) == (AttemptKind.INITIAL, 0.0)
