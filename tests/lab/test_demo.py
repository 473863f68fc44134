"""The demo as a whole: long, so only in the slow suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli import main
from headway.lab.agents import Workload, plan_sessions
from headway.lab.demo import run_demo
from headway.lab.traces import excerpt_sessions


def test_sessions_are_planned_alike_for_a_seed_and_fit_the_run() -> None:
    load = Workload(sessions=40, duration_s=10.0)
    plans = plan_sessions(excerpt_sessions(), load, seed=3)
    assert plans == plan_sessions(excerpt_sessions(), load, seed=3)
    assert plans != plan_sessions(excerpt_sessions(), load, seed=4)
    assert sum(plan.start_s <= 1.0 for plan in plans) >= 20
    tasks = [task for plan in plans for task in plan.tasks]
    assert all(1 <= len(task.calls) <= load.calls_max for task in tasks)
    assert all(call.wait_s <= load.wait_cap_s / load.time_scale for t in tasks for call in t.calls)
    assert len({task.id for task in tasks}) == len(tasks)


def test_a_run_too_short_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds", "3"]) == 2
    assert "at least 16 s" in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    report = tmp_path / "out" / "demo.html"
    assert run_demo(report, duration_s=16.0) == 0
    assert "Headway demo" in report.read_text(encoding="utf-8")
