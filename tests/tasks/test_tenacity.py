"""tenacity loops around Headway: they share its budget and respect its last word."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import openai
import pytest
import tenacity

import headway.tenacity as ours
from headway.errors import DeadlineExceeded, TaskLimitExceeded
from headway.task import task
from headway.testing import ScriptedEndpoints, refuse
from tests.tasks.conftest import Clock


class ParseError(Exception):
    pass


def loop(problem: Exception, **settings: object) -> int:
    """How often a function that always fails is tried."""
    tries = 0

    @tenacity.retry(
        retry=ours.retry(**settings), stop=tenacity.stop_after_attempt(50), reraise=True
    )  # type: ignore[arg-type]
    def work() -> None:
        nonlocal tries
        tries += 1
        raise problem

    with pytest.raises((type(problem), tenacity.RetryError)):
        work()
    return tries


def test_the_applications_own_trouble_is_retried_within_the_tasks_allowance() -> None:
    with task("t") as t:
        assert loop(ParseError(), on=ParseError) == 4  # and 3 extra attempts
        assert t.extra_attempts_left == 0
        assert loop(ParseError(), on=ParseError) == 1
    assert loop(ParseError(), on=ParseError) == 50  # outside a task: as tenacity says
    assert loop(KeyError(), on=ParseError) == 1


def test_what_headway_gave_up_on_is_never_retried() -> None:
    answered = ParseError()
    answered.response = SimpleNamespace(headers={"x-should-retry": "false"})  # type: ignore[attr-defined]
    noted = ParseError()
    noted.add_note("Headway: 3 attempts: eu-1 (503), us-1 (503)")
    wrapped = ParseError()
    wrapped.__cause__ = TaskLimitExceeded("no", reason="max_cost")
    for problem in (answered, noted, wrapped, DeadlineExceeded("late")):
        assert loop(problem) == 1
    cycle = ParseError()
    cycle.__context__ = cycle
    assert loop(cycle, on=ParseError) == 50


def test_the_routers_budget_has_its_say() -> None:
    class Budget:
        left = 2

        def take_retry(self) -> bool:
            self.left -= 1
            return self.left >= 0

    assert loop(ParseError(), budget=Budget()) == 3


def test_results_may_be_retried_and_cancellations_never() -> None:
    answers = iter(["", "", "fine"])

    @tenacity.retry(retry=ours.retry(unless_result=bool))
    def work() -> str:
        return next(answers)

    assert work() == "fine"
    retry = ours.retry(on=BaseException)
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    state.set_exception((asyncio.CancelledError, asyncio.CancelledError(), None))
    assert retry(state) is False


def test_stop_looks_at_the_tasks_deadline(clock: Clock) -> None:
    stop = ours.stop()
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    assert stop(state) is False
    with task("t", deadline=10, clock=clock):
        state.upcoming_sleep = 5.0
        assert stop(state) is False
        clock.now += 6
        assert stop(state) is True


def test_it_composes() -> None:
    tries = 0
    with task("t"), pytest.raises(tenacity.RetryError):
        for attempt in tenacity.Retrying(
            retry=ours.retry(on=ParseError), stop=ours.stop() | tenacity.stop_after_attempt(2)
        ):
            with attempt:
                tries += 1
                raise ParseError
    assert tries == 2


def test_what_a_wrapped_client_surfaces_is_given_up_on() -> None:
    with ScriptedEndpoints({"a": refuse(), "b": 503}) as fleet:
        fleet.script("b", refuse())
        with pytest.raises(openai.APIConnectionError) as unreachable:
            fleet.wrap().embeddings.create(model=fleet.model, input="x")
        fleet.script("a", 503)
        fleet.script("b", 503)
        with pytest.raises(openai.APIError) as failed:
            fleet.wrap().embeddings.create(model=fleet.model, input="x")
    assert ours.given_up(unreachable.value)
    assert ours.given_up(failed.value)
