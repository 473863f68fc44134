"""`headway report` over real task logs."""

from __future__ import annotations

import json

import headway
from headway.cli import NO, OK, main
from headway.testing import document, ok

QUESTION = [{"role": "user", "content": "a secret question"}]


def write_log(path, monkeypatch, headway_sandbox) -> None:
    monkeypatch.setenv("HEADWAY_TASK_LOG", str(path))
    policy = document(["a"], endpoint={"price": {"input_per_mtok": "2.5", "output_per_mtok": "10"}})
    fleet = headway_sandbox({"a": ok("hi", input_tokens=1000, output_tokens=100)}, policy=policy)
    monkeypatch.setenv("HEADWAY_TASK_LOG", str(path))
    client = fleet.wrap()
    for succeeds in (True, True, False):
        with headway.task("ticket") as task:
            client.chat.completions.create(model="scripted-model", messages=QUESTION)
            if succeeds:
                task.succeed()
            else:
                task.fail("no luck")


def test_the_cost_of_all_tasks_is_shared_by_those_that_succeeded(
    tmp_path, monkeypatch, headway_sandbox, capsys
) -> None:
    log = tmp_path / "tasks.jsonl"
    write_log(log, monkeypatch, headway_sandbox)

    assert main(["report", "--json", str(log)]) == OK

    found = json.loads(capsys.readouterr().out)
    assert found["total"]["outcomes"] == {"success": 2, "failure": 1}
    assert found["total"]["cost_usd"] == "0.0105"
    assert found["total"]["cost_per_successful_task_usd"] == "0.00525"
    assert found["by_endpoint"]["a"]["attempts"] == 3
    assert "secret" not in log.read_text()


def test_people_get_tables(tmp_path, monkeypatch, headway_sandbox, capsys) -> None:
    log = tmp_path / "tasks.jsonl"
    write_log(log, monkeypatch, headway_sandbox)

    assert main(["report"]) == OK

    said = capsys.readouterr().out
    assert "ticket" in said
    assert "$0.005250" in said


def test_a_missing_log_is_named(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("HEADWAY_TASK_LOG", raising=False)
    missing = tmp_path / "none.jsonl"

    assert main(["report", str(missing)]) == NO
    assert str(missing) in capsys.readouterr().err
    assert main(["report"]) == NO
    assert "HEADWAY_TASK_LOG" in capsys.readouterr().err
