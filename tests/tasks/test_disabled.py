"""With the kill switch on, a task claims nothing: what it doesn't see is no zero."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.task.observe import TaskObserver
from headway.tasklog import TaskLog
from headway.testing import ScriptedEndpoints

tasks = import_module("headway.task")
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TaskLog]:
    log = TaskLog(tmp_path / "tasks.jsonl")
    tasks.add_observer(log)
    yield log
    tasks.remove_observer(log)


def work(fleet: ScriptedEndpoints) -> headway.Task:
    client = fleet.wrap()
    with headway.task("outer", max_calls=0) as task, headway.task("inner") as inner:
        client.chat.completions.create(model="scripted-model", messages=MESSAGES)
        inner.succeed()
        task.succeed()
    assert inner.is_disabled == task.is_disabled
    return task


def test_a_task_accounts_for_nothing_and_says_so(log: TaskLog, monkeypatch: Any) -> None:
    monkeypatch.setenv("HEADWAY_DISABLED", "1")
    with ScriptedEndpoints({"a": "hi"}) as fleet:
        task = work(fleet)
        assert fleet.sends == ["a"]

    assert (task.outcome, task.cost, task.cost_source) == ("success", None, "unknown")
    assert not task.cost_complete
    assert "not accounted for (HEADWAY_DISABLED)" in repr(task)
    assert log.path is not None
    assert not log.path.exists()


class Told(TaskObserver):
    """Stands for telemetry, and whoever else observes tasks."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def task_opened(self, task: headway.Task) -> None:
        self.of.append(task.name)

    def task_entered(self, task: headway.Task) -> None:
        self.of.append(task.name)

    def task_closed(self, task: headway.Task) -> None:
        self.of.append(task.name)

    def task_reported(self, task: headway.Task) -> None:
        self.of.append(task.name)


def test_telemetry_is_told_nothing(monkeypatch: Any) -> None:
    monkeypatch.setenv("HEADWAY_DISABLED", "true")
    told = Told()
    tasks.add_observer(told)
    try:
        with ScriptedEndpoints({"a": "hi"}) as fleet:
            work(fleet).report("failure")
        assert told.of == []
        monkeypatch.delenv("HEADWAY_DISABLED")
        with headway.task("next"):
            pass
        assert told.of == ["next"] * 3
    finally:
        tasks.remove_observer(told)


def test_what_began_before_and_without_the_switch_is_told_of(
    log: TaskLog, monkeypatch: Any
) -> None:
    with headway.task("before"):
        monkeypatch.setenv("HEADWAY_DISABLED", "1")
        with headway.task("inside") as inner:
            pass

    assert not inner.is_disabled
    assert log.path is not None
    assert len(log.path.read_text().splitlines()) == 2
