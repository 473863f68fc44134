"""Decorated functions: every call is a task of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from importlib import import_module

import pytest

from headway.task import Task, task

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function


@pytest.fixture
def closed() -> Iterator[list[Task]]:
    found: list[Task] = []

    class Observer(tasks.TaskObserver):
        def task_closed(self, task: Task) -> None:
            found.append(task)

    observer = Observer()
    tasks.add_observer(observer)
    yield found
    tasks.remove_observer(observer)


def test_each_call_is_its_own_task(closed: list[Task]) -> None:
    @task("sum")
    def add(a: int, b: int) -> int:
        """Adds."""
        current = Task.current()
        assert current is not None
        current.succeed()
        return a + b

    assert (add(1, b=2), add(3, 4)) == (3, 7)
    assert add.__doc__ == "Adds."
    assert [t.outcome for t in closed] == ["success", "success"]
    assert closed[0].id != closed[1].id


async def test_coroutines_and_judges(closed: list[Task]) -> None:
    @task("answer", verdict=lambda answer: None if answer is None else len(answer) > 3)
    async def answer(text: str | None) -> str | None:
        assert Task.current() is not None
        return text

    assert await answer("hello") == "hello"
    await answer("no")
    await answer(None)
    assert [t.outcome for t in closed] == ["success", "failure", "unknown"]
    assert closed[0].outcome_source == "judge"
    assert Task.current() is None


def test_a_judge_that_fails_has_no_verdict(
    closed: list[Task], caplog: pytest.LogCaptureFixture
) -> None:
    @task("t", verdict=lambda result: result["missing"])
    def work() -> dict[str, bool]:
        return {}

    with caplog.at_level(logging.WARNING, "headway"):
        assert work() == {}
    assert closed[0].outcome == "unknown"
    assert "verdict function of task 't' failed (KeyError)" in caplog.text


def test_the_exception_passes_through(closed: list[Task]) -> None:
    @task("t", verdict="no_exception")
    def work() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        work()
    assert (closed[0].outcome, closed[0].error_type) == ("error", "LookupError")


def test_a_generators_task_is_current_only_in_its_body(closed: list[Task]) -> None:
    inside: list[Task | None] = []

    @task("items", verdict="no_exception")
    def items() -> Iterator[int]:
        for n in range(3):
            inside.append(Task.current())
            yield n

    for _ in items():
        assert Task.current() is None
    assert len(set(inside)) == 1
    assert inside[0] is closed[0]
    assert closed[0].outcome == "success"


def test_generators_take_values_exceptions_and_closing(closed: list[Task]) -> None:
    @task("echo", verdict="no_exception")
    def echo() -> Iterator[object]:
        got: object = "first"
        while True:
            try:
                got = yield got
            except KeyError:
                got = "caught"

    body = echo()
    assert next(body) == "first"
    assert body.send("a") == "a"  # type: ignore[attr-defined]
    assert body.throw(KeyError("x")) == "caught"  # type: ignore[attr-defined]
    body.close()  # type: ignore[attr-defined]
    assert closed[0].outcome == "cancelled"


async def test_async_generators(closed: list[Task]) -> None:
    @task("items", verdict="no_exception")
    async def items() -> AsyncIterator[int]:
        for n in range(3):
            assert Task.current() is not None
            yield n

    assert [n async for n in items()] == [0, 1, 2]
    assert closed[0].outcome == "success"
    body = items()
    assert await anext(body) == 0
    assert Task.current() is None
    await body.aclose()  # type: ignore[attr-defined]
    assert closed[1].outcome == "cancelled"


def test_only_functions_can_be_decorated() -> None:
    with pytest.raises(TypeError, match="can decorate functions"):
        task("t")("not a function")  # type: ignore[type-var]
