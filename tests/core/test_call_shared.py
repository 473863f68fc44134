"""A call that another's answer serves: it is over without an attempt, and says whose it was."""

from __future__ import annotations

from headway.core.model import CallEnded, CallShared, Finish
from tests.core.build import DONE, Bench, route

A = route({"a": 1})


def test_it_says_where_the_answer_came_from_and_is_over() -> None:
    bench = Bench(A)
    hand = bench.begin(1.0)
    hand.call.on_answer("share", "a", DONE, 2.0)

    assert bench.events == [
        CallShared(1, "share", "a", 2.0),
        CallEnded(1, None, DONE, 0, 2.0),
    ]
    assert hand.finish(3.0) == Finish(None)


def test_it_leaves_nothing_behind() -> None:
    bench = Bench(A)
    waiting = bench.begin(0.0)
    waiting.call.on_answer("avoid", "a", DONE, 0.0)

    assert [(p.in_flight, p.queued) for p in bench.engine.pools(0.0)] == [(0, 0)]


def test_a_call_that_is_over_is_not_answered_again() -> None:
    bench = Bench(A)
    hand = bench.begin(0.0)
    hand.call.cancel(0.0)
    before = list(bench.events)
    hand.call.on_answer("share", "a", DONE, 1.0)

    assert bench.events == before
