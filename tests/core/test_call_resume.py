"""An answer that broke off and whose rest can be asked for: the call goes on."""

from __future__ import annotations

import pytest

from headway.core.model import AttemptEnded, CallEnded, FailureClass, Outcome
from headway.core.snapshot import HedgePolicy
from tests.core.build import DONE, Bench, Hand, route

BROKE_OFF = Outcome(FailureClass.INCOMPLETE_STREAM)


def answering(bench: Bench, **known: object) -> tuple[Hand, object]:
    hand = bench.begin(0.0, stream=True, **known)
    attempt = hand.send(0.0)
    hand.call.on_first_token(attempt, 1.0)
    return hand, attempt


def test_the_rest_is_asked_for_elsewhere_as_after_any_failure() -> None:
    bench = Bench(route({"a": 1, "b": 1}))
    hand, broken = answering(bench)
    assert hand.call.on_interruption(broken, BROKE_OFF, 2.0) is True
    assert bench.of(CallEnded) == []
    assert [e.attempt for e in bench.of(AttemptEnded)] == [broken]  # told at once

    rest = hand.send(2.0)
    assert rest.endpoint_id != broken.endpoint_id  # type: ignore[attr-defined]
    hand.end(rest, DONE, 3.0)
    assert hand.finish(3.0).attempt is rest
    assert bench.balance(3.0) == pytest.approx(2.1)
    assert [p.in_flight for p in bench.engine.pools(3.0)] == [0]


def test_where_nothing_may_follow_the_break_is_the_end() -> None:
    bench = Bench(route({"a": 1, "b": 1}))
    hand, broken = answering(bench, attempts_max=1)

    assert hand.call.on_interruption(broken, BROKE_OFF, 2.0) is False
    assert hand.finish(2.0).attempt is broken
    assert [s.in_flight for s in bench.engine.status(2.0)] == [0, 0]


def test_an_attempt_that_is_not_the_answer_just_ends() -> None:
    bench = Bench(route({"a": 1, "b": 1}))
    hand = bench.begin(0.0, stream=True, attempts_max=1)
    attempt = hand.send(0.0)

    assert hand.call.on_interruption(attempt, BROKE_OFF, 2.0) is False
    assert hand.finish(2.0).attempt is attempt
    assert [s.in_flight for s in bench.engine.status(2.0)] == [0, 0]


def test_a_loser_that_breaks_off_takes_nothing_from_the_winner() -> None:
    hedge = HedgePolicy(enabled=True, delay_s=1.0)
    bench = Bench(route({"a": 1, "b": 1}, hedge=hedge))
    bench.prove("a", "b")
    bench.pool().hedges._tokens = 3.0
    hand = bench.begin(0.0, stream=True)
    first, second = hand.send(0.0), hand.send(1.0)
    hand.call.on_first_token(second, 2.0)

    assert hand.call.on_interruption(first, BROKE_OFF, 2.5) is False
    assert hand.finish(2.5).attempt is second
    hand.end(second, DONE, 3.0)
    assert [e.winner for e in bench.of(CallEnded)][-1] is second


def test_what_has_ended_cannot_break_off() -> None:
    bench = Bench(route({"a": 1, "b": 1}))
    hand, answer = answering(bench)
    hand.end(answer, DONE, 2.0)  # type: ignore[arg-type]

    assert hand.call.on_interruption(answer, BROKE_OFF, 2.5) is False  # type: ignore[arg-type]
    assert hand.finish(2.5).attempt is answer


def test_who_waits_for_the_place_of_what_broke_off_is_woken_at_once() -> None:
    bench = Bench(route({"a": 1}))
    bench.prove("a")
    bench.state("a").limit.reconfigure(1.0)
    hand, broken = answering(bench, attempts_max=1)
    waiting = bench.begin(1.0)
    waiting.wait(1.0, "queue")
    woken: list[bool] = []
    waiting.call.set_waker(lambda: woken.append(True))
    assert hand.call.on_interruption(broken, BROKE_OFF, 2.0) is False  # type: ignore[arg-type]

    assert woken == [True]
