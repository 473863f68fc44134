"""A light call: an attempt alone, which leaves behind what an ordinary call leaves."""

from __future__ import annotations

import pytest

from headway.core.budget import RetryBudget
from headway.core.engine import Engine, NoLock
from headway.core.light import LightCall, begin_light
from headway.core.model import EVENTS, AttemptStarted, BudgetExhausted, Event, Finish, Outcome, Wait
from headway.core.snapshot import DeadlinePolicy, HedgePolicy, RetryPolicy
from headway.core.state import Pool
from tests.core.build import (
    BROKEN,
    DONE,
    EXHAUSTED,
    UNAVAILABLE,
    Even,
    F,
    facts,
    route,
    snapshot,
    throttled,
)

A = route({"a": 1})


def engine(*, of: object = A, expires_at: float | None = None) -> Engine:
    """An engine that nobody listens to, whose endpoint has served one call."""
    made = Engine(snapshot(of, expires_at=expires_at), rng=Even())  # type: ignore[arg-type]
    serve(made, DONE, 0.0)
    return made


def serve(of: Engine, outcome: Outcome, now: float) -> None:
    """One ordinary call, answered after half a second."""
    call = of.begin(facts(), now)
    assert call is not None
    attempt = call.next_action(now)[0]
    call.on_outcome(attempt, outcome, now + 0.5)  # type: ignore[arg-type]


def light(of: Engine, now: float = 1.0) -> LightCall:
    begun = begin_light(of, facts(), now)
    assert begun is not None
    return begun


def state(of: Engine) -> object:
    return of.status(2.0), of.pools(2.0)


def test_success_leaves_what_an_ordinary_call_leaves() -> None:
    one, other = engine(), engine()
    light(one).succeed(DONE, 1.5)
    serve(other, DONE, 1.0)

    assert state(one) == state(other)


def test_while_it_runs_it_counts() -> None:
    of = engine()
    begun = light(of)
    assert (begun.attempt.number, begun.attempt.endpoint_id, begun.attempt.model) == (1, "a", "m")
    assert of.status(1.0)[0].in_flight == of.pools(1.0)[0].in_flight == 1
    begun.succeed(DONE, 1.5)
    assert of.status(1.5)[0].in_flight == of.pools(1.5)[0].in_flight == 0


def test_it_is_over_with_its_answer() -> None:
    begun = light(engine())
    assert begun.attempt.ended is False
    begun.succeed(DONE, 1.5)

    assert begun.attempt.ended is True


def test_grown_it_keeps_its_number() -> None:
    of = engine()

    assert light(of).grown(facts()).id == 2


def test_after_a_light_success_an_empty_budget_is_told_of_again() -> None:
    heard: list[Event] = []
    poor = route({"a": 1}, retry=RetryPolicy(budget_start=0.0, budget_per_success=0.0))
    of = Engine(
        snapshot(poor), rng=Even(), on_event=heard.append, quiet=frozenset({AttemptStarted})
    )
    serve(of, BROKEN, 0.0)
    light(of).succeed(DONE, 1.5)
    serve(of, BROKEN, 2.0)

    assert [type(e) for e in heard].count(BudgetExhausted) == 2


def test_many_at_once_raise_the_capacity_of_the_budget_as_ordinary_calls_do() -> None:
    of = engine()
    for _ in range(24):
        light(of)

    assert (of.pools(1.0)[0].in_flight, of.pools(1.0)[0].retry_capacity) == (24, 12.0)


def test_what_the_parent_had_outstanding_may_end_in_a_forked_child() -> None:
    of = engine()
    begun = light(of)
    of.after_fork(NoLock(), Even())
    begun.succeed(DONE, 1.5)

    assert of.status(1.5)[0].in_flight == of.pools(1.5)[0].in_flight == 0


def test_who_waits_in_line_is_not_overtaken() -> None:
    of = engine()
    of.world.states["a"].limit.limit = 1.0
    first = of.begin(facts(), 1.0)
    waiting = of.begin(facts(), 1.0)
    assert first is not None
    assert waiting is not None
    first.next_action(1.0)
    assert isinstance(waiting.next_action(1.0), Wait)
    of.world.states["a"].limit.limit = None

    assert begin_light(of, facts(), 1.0) is None


@pytest.mark.parametrize("outcome", [BROKEN, UNAVAILABLE, EXHAUSTED, throttled(3.0)])
def test_what_fails_grows_into_the_call_it_would_have_been(outcome: Outcome) -> None:
    one, other = engine(), engine()
    begun = light(one)
    grown = begun.grown(facts())
    plain = other.begin(facts(), 1.0)
    assert plain is not None
    sent = plain.next_action(1.0)[0]

    grown.on_outcome(begun.attempt, outcome, 1.5)
    plain.on_outcome(sent, outcome, 1.5)  # type: ignore[arg-type]

    assert type(grown.next_action(1.5)) is type(plain.next_action(1.5))
    assert grown.attempts == plain.attempts == 1
    assert state(one) == state(other)


def test_a_call_that_the_sdk_sends_again_is_granted_its_retry() -> None:
    of = engine()
    begun = light(of)
    grown = begun.grown(facts(delegated=True))
    grown.on_outcome(begun.attempt, BROKEN, 1.5)

    assert grown.retry_granted
    assert grown.next_action(1.5) == Finish(begun.attempt)
    assert of.pools(1.5)[0].in_flight == 0


def test_a_cancelled_one_teaches_nothing() -> None:
    one, other = engine(), engine()
    light(one).grown(facts()).cancel(1.5)

    assert state(one) == state(other)


def test_who_waits_is_woken_by_its_end() -> None:
    of = engine()
    begun = light(of)
    of.world.states["a"].limit.reconfigure(1.0)
    of.world.states["a"].limit.limit = 1.0
    waiting = of.begin(facts(), 1.0)
    assert waiting is not None
    waiting.next_action(1.0)
    woken: list[bool] = []
    waiting.set_waker(lambda: woken.append(True))
    begun.succeed(DONE, 1.5)

    assert woken == [True]


def test_where_there_is_more_to_it_there_is_no_light_call() -> None:
    heard: list[Event] = []
    assert begin_light(Engine(snapshot(A), rng=Even()), facts(), 0.0) is None  # never used
    assert begin_light(engine(), facts("other"), 1.0) is None
    assert begin_light(engine(expires_at=9.0), facts(), 1.0) is None
    assert begin_light(engine(of=route({"a": 1, "b": 1})), facts(), 1.0) is None
    limited = route({"a": 1}, deadline=DeadlinePolicy(total_s=5.0))
    assert begin_light(engine(of=limited), facts(), 1.0) is None
    hedged = route({"a": 1}, hedge=HedgePolicy(enabled=True))
    assert begin_light(engine(of=hedged), facts(), 1.0) is None

    heeded = Engine(snapshot(A), rng=Even(), on_event=heard.append)
    serve(heeded, DONE, 0.0)
    assert begin_light(heeded, facts(), 1.0) is None
    deaf = Engine(
        snapshot(A), rng=Even(), on_event=heard.append, quiet=frozenset({AttemptStarted, *EVENTS})
    )
    serve(deaf, DONE, 0.0)
    assert begin_light(deaf, facts(), 1.0) is not None

    failing = engine()
    serve(failing, throttled(9.0), 0.6)
    assert begin_light(failing, facts(), 1.0) is None


def test_what_it_teaches_is_told_to_whom_it_concerns() -> None:
    heard: list[Event] = []
    of = Engine(snapshot(A), rng=Even(), on_event=heard.append, quiet=frozenset({AttemptStarted}))
    serve(of, DONE, 0.0)
    heard.clear()
    light(of).succeed(Outcome(F.OK, status=200, retry_after_s=5.0), 1.5)

    assert [type(e).__name__ for e in heard] == ["EndpointThrottled"]


def test_an_interrupt_before_the_lock_leaves_the_attempt_outstanding() -> None:
    of = engine()
    begun = light(of)

    class Interrupted(NoLock):
        def __enter__(self) -> NoLock:
            raise KeyboardInterrupt

    of.lock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        begun.succeed(DONE, 1.5)
    of.lock = NoLock()
    assert not begun.attempt.ended
    begun.grown(facts()).cancel(1.6)
    assert [row.in_flight for row in of.status(2.0)] == [0]
    assert [row.in_flight for row in of.pools(2.0)] == [0]


def test_one_that_nobody_makes_a_call_of_may_be_cancelled_as_it_is() -> None:
    one, other = engine(), engine()
    begun = light(one)
    begun.cancel(1.5)

    assert begun.attempt.ended
    assert state(one) == state(other)
    begun.cancel(1.6)
    assert state(one) == state(other)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def half_ended(of: Engine, monkeypatch: pytest.MonkeyPatch) -> LightCall:
    """An interrupt came after the attempt was ended, and before its pool was told."""
    begun = light(of)
    with monkeypatch.context() as patched:
        patched.setattr(Pool, "observe_call", interrupt)
        with pytest.raises(KeyboardInterrupt):
            begun.succeed(DONE, 1.5)
    assert begun.attempt.ended
    assert (of.status(1.5)[0].in_flight, of.pools(1.5)[0].in_flight) == (0, 1)
    return begun


def test_what_an_interrupt_has_left_undone_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of = engine()
    begun = half_ended(of, monkeypatch)
    light(of, 1.5)
    for _ in range(2):
        begun.cancel(1.6)
        assert (of.status(1.6)[0].in_flight, of.pools(1.6)[0].in_flight) == (1, 1)


def test_in_a_forked_child_there_is_nothing_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    of = engine()
    begun = half_ended(of, monkeypatch)
    of.after_fork(NoLock(), Even())
    begun.cancel(1.6)

    assert of.pools(1.6)[0].in_flight == 0


def test_once_it_is_over_there_is_nothing_to_cancel() -> None:
    of = engine()
    done, grown = light(of), light(of)
    light(of)  # the one that is left
    done.succeed(DONE, 1.5)
    done.cancel(1.6)
    call = grown.grown(facts())
    call.on_outcome(grown.attempt, DONE, 1.7)
    grown.cancel(1.8)

    assert (of.status(2.0)[0].in_flight, of.pools(2.0)[0].in_flight) == (1, 1)


def test_an_interrupt_while_it_begins_leaves_nothing_outstanding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = engine()
    with monkeypatch.context() as patched:
        patched.setattr(RetryBudget, "note_inflight", interrupt)
        with pytest.raises(KeyboardInterrupt):
            begin_light(of, facts(), 1.0)
    assert (of.status(1.0)[0].in_flight, of.pools(1.0)[0].in_flight) == (0, 0)

    class Interrupted(NoLock):
        def __enter__(self) -> NoLock:
            raise KeyboardInterrupt

    of.lock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        begin_light(of, facts(), 1.0)
