"""The task log and its report."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headway.report import as_text, percentile, read_lines, rotated, summarize
from headway.task import continue_task, task
from headway.tasklog import TaskLog
from tests.telemetry.play import E503, LOST, Player, Try, tokens

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

ANSWER = Try("us-1", usage=tokens(1000, 100, 600))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TaskLog]:
    log = TaskLog(tmp_path / "tasks.jsonl")
    tasks.add_observer(log)
    yield log
    tasks.remove_observer(log)


def lines(log: TaskLog) -> list[dict[str, Any]]:
    assert log.path is not None
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def test_one_line_per_task_with_calls_and_attempts(log: TaskLog, play: Player) -> None:
    with task("t", attributes={"team": "x"}) as t:
        play(Try(outcome=E503), ANSWER)
        play(LOST, Try("us-1", usage=tokens(1000, 100)), prompt_tokens=9)
        t.succeed(score=1)
    [line] = lines(log)

    assert line["id"] == t.id
    assert (line["name"], line["outcome"], line["score"]) == ("t", "success", 1.0)
    assert line["cost_usd"] == "0.00875"
    assert line["wasted_usd"] == "0.0025"
    assert (line["cost_source"], line["complete"]) == ("estimated", True)
    assert line["cost_by_source_usd"] == {"estimated": "0.0025", "local": "0.00625"}
    assert (line["n_calls"], line["n_attempts"]) == (2, 4)
    assert line["attributes"] == {"team": "x"}
    first = line["calls"][0]
    assert (first["model"], first["endpoint"], first["cost_usd"]) == ("gpt-4o", "us-1", "0.00275")
    failed, answered = first["attempts"]
    assert (failed["status"], failed["failure"], failed["cost_usd"]) == (503, "server_error", "0")
    assert (answered["result"], answered["cached_tokens"]) == ("ok", 600)


def test_the_file_is_private(log: TaskLog) -> None:
    with task("t"):
        pass
    assert log.path is not None
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_the_variable_says_where_even_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with task("unheard"):
        pass
    path = tmp_path / "later.jsonl"
    monkeypatch.setenv("HEADWAY_TASK_LOG", str(path))
    with task("heard"):
        pass
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["heard"]


def test_rotation_keeps_a_bounded_number_of_files(tmp_path: Path) -> None:
    log = TaskLog(tmp_path / "t.jsonl", size_max=1000, kept_max=2)
    tasks.add_observer(log)
    try:
        for number in range(40):
            with task(f"t{number}"):
                pass
    finally:
        tasks.remove_observer(log)
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["t.jsonl", "t.jsonl.1", "t.jsonl.2"]
    assert all(p.stat().st_size < 1600 for p in tmp_path.iterdir())
    names = [line["name"] for line in read_lines(rotated(tmp_path / "t.jsonl")) if line]
    assert names == [f"t{n}" for n in range(40 - len(names), 40)]


def test_many_processes_write_whole_lines(tmp_path: Path) -> None:
    script = "import headway as tasks\nfor n in range(200):\n    with tasks.task('t' * 150): pass\n"
    path = tmp_path / "t.jsonl"
    environment = os.environ | {"HEADWAY_TASK_LOG": str(path)}
    running = [subprocess.Popen([sys.executable, "-c", script], env=environment) for _ in range(2)]
    assert [p.wait(60) for p in running] == [0] * 2
    found = list(read_lines([path]))
    assert len(found) == 400
    assert None not in found


@pytest.mark.parametrize("where", ["missing/dir/t.jsonl", "", "link"])
def test_a_log_that_cannot_be_written_is_only_complained_about(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    log = TaskLog(tmp_path / where)
    tasks.add_observer(log)
    try:
        with caplog.at_level(logging.WARNING, "headway"):
            for _ in range(3):
                with task("t") as t:
                    t.succeed()
    finally:
        tasks.remove_observer(log)
    assert t.outcome == "success"
    assert len(caplog.records) == 1
    assert "can't be written" in caplog.text
    assert not (tmp_path / "target").exists()


def test_a_pipe_that_nobody_reads_does_not_stop_the_application(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    log = TaskLog(tmp_path / "pipe")
    tasks.add_observer(log)
    try:
        with task("t"):
            pass
    finally:
        tasks.remove_observer(log)


def test_a_task_of_very_many_calls_has_a_bounded_line(log: TaskLog, play: Player) -> None:
    with task("t"):
        for _ in range(1000):
            play(ANSWER)
    [line] = lines(log)
    assert line["n_calls"] == 1000
    assert len(line["calls"]) == 200


# --------------------------------------------------------------------------- report


def test_the_report_adds_up_before_it_divides(log: TaskLog, play: Player) -> None:
    for number in range(10):
        with task("triage" if number % 2 else "draft") as t:
            play(Try(outcome=E503), ANSWER)
            with task("step"):
                play(ANSWER)
            if number < 4:
                t.succeed()
            elif number < 7:
                t.fail("no")
    report = summarize(read_lines([log.path or ""]))

    assert report.total.tasks == 10
    assert report.total.succeeded == 4
    assert report.total.success_rate == 0.4
    assert report.total.unknown_share == 0.3
    assert report.total.cost == Decimal("0.055")
    assert report.total.cost_per_success == Decimal("0.01375")
    assert report.total.wasted == Decimal("0.0165")
    assert (report.total.calls, report.total.attempts) == (20, 30)
    assert report.total.attempts_per_call == 1.5
    assert set(report.by_task) == {"triage", "draft"}  # steps are parts of these
    assert report.by_endpoint["us-1"].attempts == 20
    assert report.by_endpoint["us-1"].cost == Decimal("0.055")
    assert report.by_endpoint["eu-1"].results == {"error": 10}
    text = as_text(report)
    assert "$0.013750" in text
    assert "40.0 %" in text


def test_late_verdicts_and_parts_belong_to_their_task(log: TaskLog, play: Player) -> None:
    with task("t") as t:
        play(ANSWER)
        headers = t.headers()
    with continue_task(headers):
        play(ANSWER)
    t.report("success")
    report = summarize(read_lines([log.path or ""]))

    assert report.total.tasks == 1
    assert report.total.outcomes == {"success": 1}
    assert report.total.cost == report.total.cost_per_success == Decimal("0.0055")


def test_no_success_means_no_cost_per_success(log: TaskLog, play: Player) -> None:
    with task("t"):
        play(ANSWER)
    report = summarize(read_lines([log.path or ""]))
    assert report.total.cost_per_success is None
    assert as_text(report).splitlines()[2].endswith("-")


def test_broken_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"id":"a","name":"t","outcome":"success","cost_usd":"x","calls":[1,{"attempts":{}}]}\n'
        '{"id":"b","na\n[1]\n{}\nnull\n\n{"id":1,"name":"t","outcome":"success"}\n'
        + "[" * 100_000 + "\n"
    )  # fmt: skip
    report = summarize(read_lines([path]))
    assert (report.total.tasks, report.skipped) == (1, 6)
    assert "skipped: 6 lines" in as_text(report)


def test_an_empty_report_can_be_shown() -> None:
    assert "all" in as_text(summarize([]))


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (50.0, 95.0)
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([], 0.5) is None
