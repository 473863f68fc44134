"""What a task is: verdicts, nesting, caps, deadlines, and the errors of using it wrongly."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from importlib import import_module
from typing import Any

import pytest

from headway.core.model import INFINITY, CallFacts
from headway.errors import DeadlineExceeded, TaskLimitExceeded
from headway.task import Task, current_scope, task
from tests.tasks.conftest import Clock
from tests.telemetry.play import E503, Player, Try, tokens

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

ANSWER = Try("us-1", usage=tokens(1000, 100))  # 0.0035 USD

# --------------------------------------------------------------------------- verdicts


def test_leaving_without_a_word_is_unknown_and_succeeding_is_success() -> None:
    with task("t") as silent:
        pass
    with task("t") as good:
        good.succeed(score=0.8)
    with task("t") as bad:
        bad.fail("did not parse")

    assert (silent.outcome, silent.outcome_source) == ("unknown", None)
    assert (good.outcome, good.outcome_source, good.score) == ("success", "app", 0.8)
    assert (bad.outcome, bad.reason) == ("failure", "did not parse")


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (ValueError("x"), "error"),
        (asyncio.CancelledError(), "cancelled"),
        (concurrent.futures.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
        (DeadlineExceeded("late"), "deadline"),
    ],
)
def test_an_exception_decides(problem: BaseException, outcome: str) -> None:
    with pytest.raises(type(problem)), task("t") as t:
        raise problem
    assert (t.outcome, t.outcome_source) == (outcome, "exception")
    assert t.error_type == type(problem).__qualname__


def test_what_breaks_after_success_outweighs_it_but_a_failure_stands() -> None:
    with pytest.raises(OSError, match="disk"), task("t") as good:
        good.succeed()
        raise OSError("disk")
    with pytest.raises(OSError, match="disk"), task("t") as bad:
        bad.fail("wrong answer")
        raise OSError("disk")
    assert good.outcome == "error"
    assert (bad.outcome, bad.reason, bad.error_type) == ("failure", "wrong answer", "OSError")


def test_no_exception_can_be_the_verdict_if_one_says_so() -> None:
    with task("t", verdict="no_exception") as fine:
        pass
    with task("t", verdict="no_exception") as failed:
        failed.fail()
    assert (fine.outcome, fine.outcome_source) == ("success", "judge")
    assert failed.outcome == "failure"


def test_a_second_verdict_is_an_error_at_the_second_call() -> None:
    with task("t") as t:
        t.succeed()
        with pytest.raises(RuntimeError, match=r"already has a verdict \(success\): succeed\(\)"):
            t.succeed()
        with pytest.raises(RuntimeError, match=r"already has a verdict \(success\): fail\(\)"):
            t.fail("no")
    assert t.outcome == "success"


def test_verdicts_before_and_after_the_block_are_errors_that_say_what_to_do() -> None:
    t = task("t")
    with pytest.raises(RuntimeError, match="has not begun"):
        t.succeed()
    with t:
        pass
    with pytest.raises(RuntimeError, match="use report"):
        t.succeed()
    with pytest.raises(RuntimeError, match="make a new one"), t:
        pass
    t.report("failure", reason="the user complained")
    assert (t.outcome, t.outcome_source, t.reason) == ("failure", "late", "the user complained")
    with pytest.raises(ValueError, match="'fine'"):
        t.report("fine")


# --------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"deadline": -3}, "deadline must be a positive number of seconds, got -3"),
        ({"deadline": 0}, "deadline must be a positive"),
        ({"deadline": float("nan")}, "deadline must be a positive"),
        ({"deadline": "soon"}, "deadline must be seconds or a timedelta, got 'soon'"),
        ({"deadline": True}, "deadline must be seconds"),
        ({"max_cost": "abc"}, "max_cost must be an amount of USD such as \"0.50\", got 'abc'"),
        ({"max_cost": "-1"}, "max_cost must be an amount"),
        ({"max_cost": "NaN"}, "max_cost must be an amount"),
        ({"max_cost": [1]}, "max_cost must be an amount"),
        ({"max_calls": 1.5}, "max_calls must be a whole number, got 1.5"),
        ({"max_tokens": -1}, "max_tokens must not be negative"),
        ({"verdict": "maybe"}, 'verdict must be "explicit", "no_exception" or a function'),
        ({"priority": 1.5}, "priority must be a whole number or the name of a class"),
        ({"session": ""}, "session must have 1 to 256 characters"),
        ({"id": "x" * 200}, "id must have 1 to 128"),
        ({"attributes": {"a": object()}}, "attribute 'a' must be text, a number or a boolean"),
        ({"attributes": {str(n): n for n in range(40)}}, "attributes may have 32 entries"),
    ],
)
def test_a_wrong_argument_is_an_error_at_once(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        task("t", **arguments)
    assert str(raised.value).startswith(problem)


def test_a_task_needs_a_name() -> None:
    for name in ("", "x" * 300, None):
        with pytest.raises((ValueError, TypeError), match="the task's name must"):
            task(name)  # type: ignore[arg-type]


def test_a_judge_needs_a_decorated_function() -> None:
    with pytest.raises(ValueError, match="judges what a decorated function returns"):
        with task("t", verdict=bool):
            pass


# --------------------------------------------------------------------------- nesting and figures


def test_costs_roll_up_and_are_counted_once(play: Player) -> None:
    with task("outer") as outer:
        play(ANSWER)
        with task("inner") as inner:
            assert Task.current() is inner
            play(Try(outcome=E503), ANSWER)
            inner.succeed()
        assert Task.current() is outer
    assert Task.current() is None

    assert (inner.calls, inner.attempts, inner.cost) == (1, 2, Decimal("0.0035"))
    assert (outer.calls, outer.attempts, outer.cost) == (2, 3, Decimal("0.007"))
    assert outer.tokens == 2200
    assert (outer.depth, inner.depth, inner.parent) == (0, 1, outer)
    assert inner.id != outer.id


def test_what_a_failed_task_cost_is_wasted_there_and_above(play: Player) -> None:
    with task("outer") as outer:
        play(ANSWER)
        with task("inner") as inner:
            play(ANSWER)
            inner.fail()
        outer.succeed()
    assert inner.wasted == inner.cost == Decimal("0.0035")
    assert outer.wasted == Decimal("0.0035")
    assert outer.cost == Decimal("0.007")


def test_a_failed_child_of_a_failed_parent_is_wasted_once(play: Player) -> None:
    with task("outer") as outer:
        with task("inner") as inner:
            play(ANSWER)
            inner.fail()
        play(ANSWER)
        outer.fail()
    assert outer.wasted == outer.cost == Decimal("0.007")


def test_a_call_that_outlives_its_task_still_counts(play: Player) -> None:
    with task("t") as t:
        record = play.open()
        attempt = play.start(record, ANSWER, 1)
        t.fail()
    assert t.cost_complete is False
    play.end(record, ANSWER, attempt)
    play.finish(record, attempt, ANSWER.outcome)
    assert t.cost == t.wasted == Decimal("0.0035")
    assert t.cost_complete is True


def test_calls_outside_a_task_belong_to_none(play: Player) -> None:
    with task("t") as t:
        pass
    record = play(ANSWER)
    assert record.task is None
    assert t.calls == 0


def test_a_call_that_no_route_takes_is_counted_and_its_cost_is_unknown(play: Player) -> None:
    with task("t", max_calls=1) as t:
        play.open().let_pass()
        assert (t.calls, t.cost_complete) == (1, False)
        with pytest.raises(TaskLimitExceeded):
            play.open()


def test_sent_again_it_is_the_same_call(play: Player) -> None:
    with task("t") as t:
        play.open().let_pass()
        play.open().let_pass(is_resend=True)
    assert t.calls == 1


def test_figures_are_exact_under_threads(play: Player) -> None:
    with task("t") as t:
        work = tasks.bind(lambda: [play(ANSWER) for _ in range(50)])
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (t.calls, t.attempts, t.tokens) == (400, 400, 440_000)
    assert t.cost == Decimal("1.4")


# --------------------------------------------------------------------------- caps


def test_max_calls_stops_the_next_call_before_it_is_counted(play: Player) -> None:
    with task("t", max_calls=2) as t:
        play(ANSWER)
        play(ANSWER)
        with pytest.raises(TaskLimitExceeded, match="max_calls is 2, 2 calls begun") as raised:
            play(ANSWER)
    assert raised.value.reason == "max_calls"
    assert t.calls == 2


def test_max_cost_and_max_tokens_stop_a_runaway_loop(play: Player) -> None:
    with task("t", max_cost="0.01") as t:
        with pytest.raises(TaskLimitExceeded, match=r"max_cost is 0\.01 USD, 0\.0105 USD spent"):
            while True:
                play(ANSWER)
    assert t.calls == 3
    with task("t", max_tokens=2000) as t:
        with pytest.raises(TaskLimitExceeded) as raised:
            while True:
                play(ANSWER)
    assert (raised.value.reason, t.calls) == ("max_tokens", 2)


def test_a_fan_out_is_counted_at_the_mean_so_far(play: Player) -> None:
    with task("t", max_cost="0.02"):
        play(ANSWER)  # 0.0035: five more may run at once, the sixth would pass the cap
        for _ in range(5):
            play.open()
        with pytest.raises(TaskLimitExceeded, match="5 calls running"):
            play.open()


def test_every_ancestors_cap_counts_and_the_message_names_it(play: Player) -> None:
    with task("outer", max_calls=1) as outer, task("inner"):
        play(ANSWER)
        with pytest.raises(TaskLimitExceeded, match="Task 'outer'"):
            play(ANSWER)
    assert outer.calls == 1


def test_a_cap_of_zero_lets_nothing_through(play: Player) -> None:
    with task("t", max_cost=0), pytest.raises(TaskLimitExceeded):
        play(ANSWER)


def test_the_deadline_is_inherited_and_can_only_get_shorter(play: Player, clock: Clock) -> None:
    with task("outer", deadline=10, clock=clock) as outer:
        with task("longer", deadline=timedelta(seconds=60)) as longer:
            assert longer.deadline_at == outer.deadline_at == 1010
        with task("shorter", deadline=3) as shorter:
            assert shorter.deadline_at == 1003
            assert current_scope().options.deadline_at == 1003
            record = play.open()
            assert record.facts.deadline_at == 1003
            clock.now += 3
            with pytest.raises(DeadlineExceeded, match="task 'shorter' passed"):
                play.open()
        assert current_scope().options.deadline_at == 1010
        assert outer.remaining_s == 7
    assert current_scope().options.deadline_at == INFINITY


def test_extra_attempts_are_three_or_a_fifth_of_the_calls(play: Player) -> None:
    with task("t") as t:
        assert t.extra_attempts_left == 3
        allowance = play.open().facts.allowance
        assert allowance is not None
        assert allowance.take_extra_attempt()
        assert t.extra_attempts_left == 2
        for _ in range(99):
            play(ANSWER)
        assert t.extra_attempts_left == 19
        for _ in range(19):
            assert t._take_extra_attempt()
        assert not t._take_extra_attempt()


def test_a_call_learns_what_its_task_knows(play: Player) -> None:
    with task("t", id="abc", priority="interactive", session="s1"):
        facts = play.open().facts
        options = current_scope().options
    assert (facts.task_id, facts.task_name) == ("abc", "t")
    assert (options.traffic_class, options.session) == ("interactive", "s1")


# --------------------------------------------------------------------------- scopes


def test_options_merge_inwards() -> None:
    with tasks.options(hedge=True, priority=5, session="a"):
        with tasks.options(session="b", idempotent=True, route="r"):
            inner = current_scope().options
        assert current_scope().options.session == "a"
    assert (inner.hedge, inner.priority, inner.session) == (True, 5, "b")
    assert (inner.idempotent, inner.route) == (True, "r")
    assert current_scope().options.hedge is None


def test_options_take_a_deadline_on_the_tasks_clock(clock: Clock) -> None:
    with task("t", clock=clock), tasks.options(deadline=2) as options:
        assert options.deadline_at == 1002
        with tasks.options(deadline=50) as inner, task("u") as nested:
            assert inner.deadline_at == nested.deadline_at == 1002


@pytest.mark.parametrize(
    "arguments", [{"deadline": -1}, {"hedge": "yes"}, {"idempotent": 1}, {"priority": 0.5}]
)
def test_options_are_checked_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        tasks.options(**arguments)


async def test_the_task_follows_gather_create_task_and_to_thread() -> None:
    async def current() -> Task | None:
        await asyncio.sleep(0)
        return Task.current()

    async with task("t") as t:
        both = await asyncio.gather(current(), asyncio.create_task(current()))
        threaded = await asyncio.to_thread(Task.current)
    assert [*both, threaded] == [t, t, t]


def test_threads_lose_the_task_unless_bound() -> None:
    with task("t") as t, ThreadPoolExecutor(2) as pool:
        assert pool.submit(Task.current).result() is None
        bound = tasks.bind(Task.current)
        assert [f.result() for f in [pool.submit(bound) for _ in range(8)]] == [t] * 8


def test_bind_carries_coroutine_functions_into_another_loop() -> None:
    async def current() -> Task | None:
        await asyncio.sleep(0)
        return Task.current()

    with task("t") as t:
        bound = tasks.bind(current)
    assert asyncio.run(bound()) is t  # type: ignore[arg-type]


# --------------------------------------------------------------------------- left open


def test_a_task_that_nobody_ended_is_settled_as_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[Task] = []

    class Observer(tasks.TaskObserver):
        def task_closed(self, task: Task) -> None:
            closed.append(task)

    observer = Observer()
    tasks.add_observer(observer)
    try:

        def forget() -> None:
            task("forgotten").__enter__()

        thread = threading.Thread(target=forget)
        thread.start()
        thread.join()
        gc.collect()
        with caplog.at_level(logging.WARNING, "headway"), task("next"):
            pass
    finally:
        tasks.remove_observer(observer)
    assert [(t.name, t.outcome) for t in closed] == [("forgotten", "unknown"), ("next", "unknown")]
    assert "task 'forgotten'" in caplog.text
    assert "was never ended" in caplog.text


def test_a_task_still_open_at_exit_is_settled_as_unknown() -> None:
    script = (
        "import headway as tasks, logging\n"
        "logging.basicConfig()\n"
        "t = tasks.task('open'); t.__enter__()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert "still open when the process ended: its outcome is unknown" in done.stderr


def test_facts_keep_what_the_application_named() -> None:
    facts = CallFacts("m", task_name="mine", deadline_at=5.0)
    with task("t", deadline=60):
        current = Task.current()
        assert current is not None
        current._open_call(facts)
    assert facts.task_name == "mine"
    assert facts.deadline_at == 5.0
