from __future__ import annotations

from typing import Any

import pytest

from headway.core import waiting
from headway.core.model import (
    Attempt,
    CallDequeued,
    CallEnded,
    CallFacts,
    CallQueued,
    CallRejected,
    Rejection,
    RetryDenied,
    Wait,
)
from headway.core.snapshot import (
    AdmissionPolicy,
    Capacity,
    DeadlinePolicy,
    Fallback,
    Match,
    TrafficClass,
)
from tests.core.build import (
    BROKEN,
    DONE,
    REFUSED,
    Bench,
    Even,
    Hand,
    endpoint,
    facts,
    route,
    snapshot,
    throttled,
)


def full(
    *, max_inflight: int = 1, max_queue: int = 64, timeout_s: float = 2.0, **known: object
) -> tuple[Bench, Hand, Attempt]:
    """One proven endpoint, at its limit; the call that holds the place, and its attempt."""
    admission = AdmissionPolicy(
        max_inflight=max_inflight, max_queue=max_queue, queue_timeout_s=timeout_s
    )
    bench = Bench(
        snapshot(
            route({"a": 1}, admission=admission, **known),  # type: ignore[arg-type]
            classes={"steel": TrafficClass(sheddable=False)},
        ),
        rng=Even(),
    )
    bench.prove("a")
    busy = bench.begin(0.0)
    return bench, busy, busy.send(0.0)


def queued(bench: Bench) -> int:
    return len(bench.world.pools["chat"].queue)


class Bell:
    """A waker that counts."""

    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


def in_line(bench: Bench, at: float = 0.0, **known: Any) -> tuple[Hand, Bell]:
    hand, bell = bench.begin(at, **known), Bell()
    hand.wait(at, "queue")
    assert not hand.call.set_waker(bell)
    return hand, bell


# ---------------------------------------------------------------- waiting one's turn


def test_a_call_waits_in_line_and_is_woken_when_a_place_comes_up() -> None:
    bench, busy, attempt = full()
    hand, bell = in_line(bench, 0.5)
    assert hand.wait(1.0, "queue").until == 2.5
    assert bell.rung == 0

    busy.end(attempt, DONE, 1.5)
    assert bell.rung == 1
    assert hand.send(1.5).endpoint_id == "a"

    assert queued(bench) == 0
    assert bench.engine.parked == {}
    assert bench.of(CallQueued) == [CallQueued(hand.call.id, 0, "limit", 0.5)]
    assert bench.of(CallDequeued) == [CallDequeued(hand.call.id, 0, 1.0, 1.5)]


def test_a_place_that_came_up_before_the_waker_was_set_is_not_lost() -> None:
    bench, busy, attempt = full()
    hand = bench.begin(0.0)
    hand.wait(0.0, "queue")
    busy.end(attempt, DONE, 1.0)

    assert hand.call.set_waker(Bell())
    assert hand.send(1.0).number == 1
    assert not hand.call.set_waker(Bell())


def test_the_line_moves_one_by_one_in_order() -> None:
    bench, busy, attempt = full()
    (one, bell_one), (two, bell_two) = in_line(bench, 0.0), in_line(bench, 0.1)

    busy.end(attempt, DONE, 0.5)
    assert (bell_one.rung, bell_two.rung) == (1, 0)
    second = one.send(0.5)
    assert bell_two.rung == 1  # whoever got through lets the next one look
    assert isinstance(two.next(0.5), Wait)
    one.end(second, DONE, 0.6)
    assert bell_two.rung == 2

    assert two.send(0.6).number == 1


def test_a_newcomer_does_not_overtake_even_where_there_is_room() -> None:
    bench, busy, attempt = full(max_inflight=2)
    two = bench.begin(0.0)
    two.send(0.0)
    waiting_one, _ = in_line(bench)
    busy.end(attempt, DONE, 0.5)

    newcomer, _ = in_line(bench, 0.5)
    assert waiting_one.send(0.5).number == 1
    assert isinstance(newcomer.next(0.5), Wait)


def test_a_newcomer_of_higher_priority_does() -> None:
    bench, busy, attempt = full()
    in_line(bench)
    busy.end(attempt, DONE, 0.5)

    assert bench.begin(0.5, priority=1).send(0.5).number == 1


def test_who_waits_for_another_route_is_woken_too_where_they_share_an_endpoint() -> None:
    admission = AdmissionPolicy(max_inflight=1)
    bench = Bench(
        snapshot(
            [
                route(
                    {"a": 1}, name="one", admission=admission, match=Match(models=frozenset("m"))
                ),
                route(
                    {"a": 1}, name="two", admission=admission, match=Match(models=frozenset("n"))
                ),
            ]
        )
    )
    busy = bench.begin(0.0)
    attempt = busy.send(0.0)
    hand, bell = in_line(bench, 0.0, model="n")
    busy.end(attempt, DONE, 1.0)

    assert bell.rung == 1
    assert hand.send(1.0).number == 1


def test_a_finished_stream_frees_its_place_at_its_end_not_at_its_first_token() -> None:
    bench, busy, attempt = full()
    hand, _ = in_line(bench)
    busy.call.on_first_token(attempt, 0.5)
    assert isinstance(hand.next(0.5), Wait)
    busy.end(attempt, DONE, 1.0)

    assert hand.send(1.0).number == 1


# ---------------------------------------------------------------- giving up


def test_after_two_seconds_in_line_a_call_is_refused() -> None:
    bench, _, _ = full()
    hand, _ = in_line(bench)

    assert hand.refusal(2.0) == Rejection("queue_wait", 2.0)

    assert queued(bench) == 0
    assert bench.world.pools["chat"].inflight == 1
    assert bench.of(CallRejected)[0].rejection.reason == "queue_wait"
    assert bench.of(CallEnded)[-1].outcome.error_type == "queue_wait"


def test_a_place_at_the_last_moment_is_taken() -> None:
    bench, busy, attempt = full()
    hand, _ = in_line(bench)
    busy.end(attempt, DONE, 2.0)

    assert hand.send(2.0).number == 1


def test_a_tenth_of_the_time_left_is_spent_in_line_at_most() -> None:
    bench, _, _ = full()

    assert bench.begin(0.0, deadline_at=5.0).wait(0.0, "queue").until == 0.5
    assert bench.begin(10.0, deadline_at=15.0).wait(10.0, "queue").until == 10.5


def test_a_route_may_forbid_waiting() -> None:
    bench, _, _ = full(timeout_s=0.0)

    assert bench.begin(0.0).refusal(0.0).reason == "queue_wait"


def test_a_full_line_refuses_at_once() -> None:
    bench, _, _ = full(max_queue=1)
    in_line(bench)

    refused = bench.begin(0.0).refusal(0.0)

    assert refused == Rejection("queue_full", 2.0)
    assert queued(bench) == 1


def test_a_full_line_makes_room_for_a_higher_priority_and_tells_who_was_evicted() -> None:
    bench, _, _ = full(max_queue=1)
    low, bell = in_line(bench, 0.0, priority=-1)

    high, _ = in_line(bench, 0.5, priority=1)

    assert bell.rung == 1
    assert low.call.set_waker(bell)
    assert low.refusal(0.5).reason == "queue_full"
    assert isinstance(high.next(0.5), Wait)
    assert queued(bench) == 1
    assert len(bench.engine.parked) == 1


def test_what_may_not_be_shed_is_not_evicted() -> None:
    bench, _, _ = full(max_queue=1)
    _, bell = in_line(bench, 0.0, priority=-1, traffic_class="steel")

    assert bench.begin(0.5, priority=1).refusal(0.5).reason == "queue_full"
    assert bell.rung == 0


def test_a_call_that_has_failed_before_surfaces_its_failure_instead_of_a_refusal() -> None:
    bench, busy, attempt = full(timeout_s=0.2)
    busy.end(attempt, BROKEN, 0.0)
    other = bench.begin(0.0)
    other.send(0.0)

    busy.wait(0.25, "queue")
    assert busy.finish(0.45).attempt is attempt
    assert bench.of(RetryDenied)[-1].reason == "breaker"
    assert queued(bench) == 0
    assert bench.balance(0.45) == pytest.approx(3.1)  # its retry was never sent


def test_after_waiting_in_vain_a_fallback_is_used() -> None:
    bench, _, _ = full(fallback=[Fallback(endpoint="f")])
    hand, _ = in_line(bench)

    assert hand.send(2.0).endpoint_id == "f"
    assert queued(bench) == 0


def test_a_full_line_goes_to_the_fallback_at_once() -> None:
    bench, _, _ = full(max_queue=1, fallback=[Fallback(endpoint="f")])
    in_line(bench)

    assert bench.begin(0.0).send(0.0).endpoint_id == "f"


def test_a_full_fallback_is_waited_for_in_its_turn() -> None:
    bench = Bench(
        snapshot(
            route(
                {"a": 1},
                fallback=[Fallback(endpoint="f")],
                admission=AdmissionPolicy(max_inflight=1),
            ),
            [endpoint("f", capacity=Capacity(concurrency=1))],
        )
    )
    bench.prove("a", "f")
    bench.begin(0.0).send(0.0)
    busy = bench.begin(0.0, pinned_to="f")
    attempt = busy.send(0.0)
    hand = bench.begin(0.0)
    hand.wait(0.0, "queue")

    assert hand.wait(2.0, "queue").until == 4.0
    busy.end(attempt, DONE, 3.0)
    assert hand.send(3.0).endpoint_id == "f"


def test_a_full_fallback_is_waited_for_once() -> None:
    bench = Bench(
        snapshot(
            route(
                {"a": 1},
                fallback=[Fallback(endpoint="f")],
                admission=AdmissionPolicy(max_inflight=1),
            ),
            [endpoint("f", capacity=Capacity(concurrency=1))],
        )
    )
    bench.prove("a", "f")
    bench.begin(0.0).send(0.0)
    bench.begin(0.0, pinned_to="f").send(0.0)
    hand = bench.begin(0.0)
    hand.wait(0.0, "queue")
    hand.wait(2.0, "queue")

    assert hand.refusal(4.0).reason == "queue_wait"
    assert queued(bench) == 0


def test_who_comes_up_and_finds_the_endpoint_asking_for_quiet_leaves_the_line() -> None:
    bench, busy, attempt = full()
    hand, _ = in_line(bench)
    busy.end(attempt, throttled(1.0), 1.0)

    assert hand.wait(1.0, "throttled").until > 2.0
    assert queued(bench) == 0
    assert bench.of(CallDequeued)


def test_a_deadline_that_passes_in_line_ends_the_wait() -> None:
    bench, _, _ = full(deadline=DeadlinePolicy(total_s=30.0))
    hand, _ = in_line(bench)

    assert hand.refusal(30.0).reason == "deadline"
    assert queued(bench) == 0


# ---------------------------------------------------------------- a cold start


def cold(calls: int = 6) -> tuple[Bench, list[tuple[Hand, Attempt]]]:
    """Two endpoints, three attempts at each, none answered yet."""
    bench = Bench(route({"a": 1, "b": 1}))
    sent = []
    for _ in range(calls):
        hand = bench.begin(0.0)
        sent.append((hand, hand.send(0.0)))
    return bench, sent


def test_the_seventh_call_of_a_cold_start_waits_for_a_sign_of_life() -> None:
    bench, sent = cold()
    hand, bell = in_line(bench)
    assert bench.of(CallQueued)[0].reason == "cold"
    assert hand.wait(0.0, "queue").until == 30.0
    first, attempt = sent[0]
    first.end(attempt, DONE, 4.0)

    assert bell.rung == 1
    assert hand.send(4.0).endpoint_id == attempt.endpoint_id


def test_a_first_token_is_a_sign_of_life() -> None:
    bench, sent = cold()
    hand, bell = in_line(bench)
    first, attempt = sent[0]
    first.call.on_first_token(attempt, 1.0)

    assert bell.rung == 1
    assert hand.send(1.0).endpoint_id == attempt.endpoint_id


def test_a_cold_start_lets_the_whole_line_through_at_the_first_sign_of_life() -> None:
    bench, sent = cold()
    line = [in_line(bench) for _ in range(100)]  # more than the queue of a full endpoint holds
    first, attempt = sent[0]
    first.end(attempt, DONE, 1.0)

    for hand, bell in line:
        assert bell.rung == 1
        hand.send(1.0)
    assert queued(bench) == 0


def test_holding_back_is_never_a_reason_to_refuse() -> None:
    bench, _ = cold()
    hand, _ = in_line(bench)

    assert hand.send(30.0).number == 1
    assert bench.of(CallRejected) == []


def test_the_cold_wait_is_a_tenth_of_the_deadline_at_most() -> None:
    bench, _ = cold()

    assert bench.begin(0.0, deadline_at=20.0).wait(0.0, "queue").until == 2.0


def test_when_the_one_that_works_is_full_the_cold_line_becomes_an_ordinary_one() -> None:
    bench = Bench(route({"a": 1, "b": 1}, admission=AdmissionPolicy(max_inflight=3)), rng=Even())
    sent = []
    for _ in range(6):
        hand = bench.begin(0.0)
        sent.append((hand, hand.send(0.0)))
    late = bench.begin(1.0)
    assert late.wait(1.0).until == 3.0  # all are at their limit: that rule comes first
    first, attempt = sent[0]
    first.end(attempt, DONE, 1.5)
    late.send(1.5)

    assert queued(bench) == 0


def test_who_waited_for_a_sign_of_life_waits_two_seconds_more_once_those_that_live_are_full() -> (
    None
):
    admission = AdmissionPolicy(max_inflight=3, cold_concurrency=2)
    bench = Bench(route({"a": 1, "b": 1}, admission=admission), rng=Even())
    streams = [bench.begin(0.0, stream=True) for _ in range(4)]
    attempts = [stream.send(0.0) for stream in streams]
    hand, bell = in_line(bench)
    assert hand.wait(0.0, "queue").until == 30.0
    for name in "ab":
        bench.begin(1.0, pinned_to=name, priority=1).send(1.0)

    streams[0].call.on_first_token(attempts[0], 5.0)
    assert bell.rung >= 1
    assert hand.wait(5.0, "queue").until == 7.0
    streams[1].call.on_first_token(attempts[1], 6.0)
    assert hand.wait(6.0, "queue").until == 7.0  # and no longer, however often it is woken
    assert hand.refusal(7.0).reason == "queue_wait"


def test_past_the_bound_of_the_cold_line_calls_go_ahead_unproven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "COLD_QUEUE_MAX", 2)
    bench, _ = cold()
    in_line(bench)
    in_line(bench)

    assert bench.begin(0.0).send(0.0).number == 1


def test_a_waiter_evicted_from_the_cold_line_goes_ahead_unproven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "COLD_QUEUE_MAX", 1)
    bench, _ = cold()
    low, bell = in_line(bench, priority=-1)
    in_line(bench, priority=0)

    assert bell.rung == 1
    assert low.send(0.0).number == 1


def test_who_was_evicted_from_the_cold_line_may_still_wait_for_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "COLD_QUEUE_MAX", 1)
    admission = AdmissionPolicy(max_inflight=3, cold_concurrency=2)
    bench = Bench(route({"a": 1, "b": 1}, admission=admission), rng=Even())
    for _ in range(4):
        bench.begin(0.0).send(0.0)
    low, _ = in_line(bench, priority=-1)
    in_line(bench, priority=0)
    for name in "ab":
        bench.begin(0.0, pinned_to=name, priority=1).send(0.0)  # now both are full

    assert low.wait(1.0, "queue").until == 3.0
    assert queued(bench) == 2


# ---------------------------------------------------------------- someone else is probing


def test_while_the_last_hope_is_probed_others_wait_two_seconds_for_its_answer() -> None:
    bench = Bench(route({"a": 1}), rng=Even())
    bench.prove("a")
    bench.kill("a")
    probing = bench.begin(1.0)
    probe = probing.send(1.0)
    assert probe.is_probe
    hand, bell = in_line(bench, 1.0)
    assert bench.of(CallQueued)[-1].reason == "open"
    assert hand.wait(1.0, "queue").until == 3.0

    probing.end(probe, DONE, 2.0)
    assert bell.rung == 1
    assert hand.send(2.0).is_probe is False


def test_while_all_that_is_left_is_being_probed_others_wait_for_an_answer() -> None:
    bench = Bench(route({"a": 1, "b": 1}), rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    bench.kill("b")
    for _ in range(2):
        assert bench.begin(1.0).send(1.0).is_probe
    hand, _ = in_line(bench, 1.0)

    assert hand.wait(1.0, "queue").until == 3.0
    assert bench.of(CallQueued)[-1].reason == "open"


def test_and_are_refused_when_it_does_not_come() -> None:
    bench = Bench(route({"a": 1}), rng=Even())
    bench.prove("a")
    bench.kill("a")
    bench.begin(1.0).send(1.0)
    hand, _ = in_line(bench, 1.0)

    refused = hand.refusal(3.0)

    assert refused.reason == "no_endpoint"
    assert refused.retry_after_s == 28.0  # the probe's lease
    assert refused.detail == (("a", "open", 28.0),)


def test_when_the_probe_fails_the_next_in_line_tries_itself() -> None:
    bench = Bench(route({"a": 1}), rng=Even())
    bench.prove("a")
    bench.kill("a")
    probing = bench.begin(1.0, attempts_max=1)
    probe = probing.send(1.0)
    hand, bell = in_line(bench, 1.0)
    probing.end(probe, REFUSED, 1.5)

    assert bell.rung == 1
    assert hand.send(1.5).is_probe


def test_a_call_that_has_failed_does_not_wait_for_anothers_probe() -> None:
    """Where there are others. Alone, it would be refused what its neighbours are about to get."""
    bench = Bench(route({"a": 1, "b": 1}), rng=Even())
    bench.prove("a", "b")
    failing = bench.begin(0.0)
    attempt = failing.send(0.0)
    bench.kill("a")
    bench.kill("b")
    failing.end(attempt, BROKEN, 0.0)
    for _ in range(2):
        bench.begin(0.1).send(0.1)

    failing.wait(0.1, "backoff")
    assert failing.finish(0.25).attempt is attempt


# ---------------------------------------------------------------- leaving


def test_who_leaves_the_line_makes_way_for_the_next() -> None:
    bench, busy, attempt = full()
    (one, _), (two, bell) = in_line(bench), in_line(bench)
    busy.end(attempt, DONE, 0.5)

    one.call.cancel(0.5)

    assert bell.rung == 1
    assert two.send(0.5).number == 1
    assert bench.of(CallDequeued)[0] == CallDequeued(one.call.id, 0, 0.5, 0.5)


def test_a_waker_may_be_taken_away() -> None:
    bench, busy, attempt = full()
    hand, bell = in_line(bench)
    hand.call.set_waker(None)
    busy.end(attempt, DONE, 0.5)

    assert bell.rung == 0
    assert hand.send(0.5).number == 1


def test_the_facts_of_a_call_name_its_priority_and_task() -> None:
    what = CallFacts("m", priority=-1, task_id="t")
    bench, _, _ = full()
    hand = bench.begin(0.0, what)
    hand.wait(0.0, "queue")
    (ticket,) = bench.world.pools["chat"].queue.waiters

    assert (ticket.priority, ticket.task_id, ticket.sheddable) == (-1, "t", True)
    assert bench.of(CallQueued)[0].priority == -1
    assert facts("m").priority == 0
