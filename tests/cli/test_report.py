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


# ----------------------------------------------------------------------------- what is unknown


def line(name: str, cost: str | None, *attempts: str | None, **more: object) -> dict[str, object]:
    return {
        "id": f"id-{name}-{cost}-{more.get('parent')}",
        "name": name,
        "outcome": "success",
        "cost_usd": cost,
        "complete": None not in attempts,
        "n_calls": len(attempts),
        "n_attempts": len(attempts),
        "calls": [
            {"attempts": [{"endpoint": f"e{cost}", "result": "ok", "cost_usd": cost}]}
            for cost in attempts
        ],
        **more,
    }


def reported(tmp_path, *lines: dict[str, object]) -> list[str]:
    log = tmp_path / "tasks.jsonl"
    log.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return ["report", str(log)]


def row(said: str, name: str) -> list[str]:
    return next(one for one in said.splitlines() if one.startswith(f"{name} ")).split("  ")


def test_a_cost_that_is_unknown_is_not_zero(tmp_path, capsys) -> None:
    outer = line("dark", None, None, None)
    command = reported(
        tmp_path,
        outer,
        line("inner", None, None, parent=outer["id"], id="inner"),
        line("mixed", "0.5", "0.5", None),
        line("clear", "0.25", "0.25"),
        line("free", "0", "0"),
    )
    assert main(command) == OK
    said = capsys.readouterr().out
    dark, mixed, clear, free = (row(said, name) for name in ("dark", "mixed", "clear", "free"))
    assert [cell.strip() for cell in dark].count("unknown") == 2  # the cost, and that per success
    assert "$0.500000 +" in mixed
    assert "$0.250000" in clear
    assert "$0.000000" in free
    assert "$0.750000 +" in row(said, "all")
    assert "unknown" in [cell.strip() for cell in row(said, "eNone")]
    assert "4 calls at unknown cost, 2 tasks of cost not wholly known" in said

    assert main([*command, "--json"]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["by_task"]["dark"]["cost_usd"] is None
    assert found["by_task"]["dark"]["cost_per_successful_task_usd"] is None
    assert found["by_task"]["dark"]["calls_of_unknown_cost"] == 3
    assert found["by_task"]["free"]["cost_usd"] == "0"
    assert found["by_endpoint"]["eNone"]["cost_usd"] is None
    assert found["total"]["calls_of_unknown_cost"] == 4
    assert found["total"]["cost_usd"] == "0.75"


def test_one_is_not_spoken_of_as_many(tmp_path, capsys) -> None:
    assert main(reported(tmp_path, line("dark", None, None), {"no": "task"})) == OK
    said = capsys.readouterr().out
    assert "1 call at unknown cost, 1 task of" in said
    assert "skipped: 1 line, of no task." in said


def test_a_division_ends_at_what_calls_are_charged_in(tmp_path, capsys) -> None:
    many = [line("third", cost, cost, id=cost) for cost in ("0.01", "0.000000000001", "0")]
    assert main([*reported(tmp_path, *many), "--json"]) == OK
    total = json.loads(capsys.readouterr().out)["total"]
    assert total["cost_usd"] == "0.010000000001"
    assert total["cost_per_successful_task_usd"] == "0.003333333334"
