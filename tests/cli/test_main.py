"""The command: what it prints, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import headway
from headway.cli import COMMANDS, MISSING_EXTRA, NO, OK, USAGE, main

GOOD = {
    "schema_version": "1.0",
    "version": 7,
    "endpoints": {
        "a": {"base_url": "https://a.example/v1"},
        "b": {"base_url": "https://b.example/v1", "model": "large"},
    },
    "routes": [
        {
            "match": {"model": "m"},
            "weights": {"us": {"a": 1}, "*": {"a": 1, "b": 3}},
            "fallback": [{"endpoint": "b", "model": "n"}],
        }
    ],
}


@pytest.fixture
def good(tmp_path) -> str:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(GOOD))
    return str(path)


@pytest.fixture
def bad(tmp_path) -> str:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**GOOD, "routes": [{"weights": {"nowhere": 1}}]}))
    return str(path)


def test_version_says_what_a_bug_report_needs(capsys, monkeypatch) -> None:
    monkeypatch.setenv("HEADWAY_POLICY", "https://token@config.example/policy.json")

    assert main(["version", "--json"]) == OK

    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["headway"] == headway.__version__
    assert found["environment"]["HEADWAY_POLICY"] is True
    assert "token" not in json.dumps(found)


def test_a_valid_document_passes_the_check(good, capsys) -> None:
    assert main(["policy", "check", good]) == OK
    assert capsys.readouterr().out == f"{good}: valid, version 7: 2 endpoints, 1 route\n"


def test_an_invalid_one_fails_it_and_the_place_is_named(good, bad, capsys) -> None:
    assert main(["policy", "check", bad, good]) == NO

    said = capsys.readouterr()
    assert "routes[0].weights" in said.err
    assert "nowhere" in said.err
    assert "good.json: valid" in said.out


def test_programs_get_one_object_a_line(good, bad, capsys) -> None:
    assert main(["policy", "check", "--json", good, bad]) == NO

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"file": good, "valid": True, "version": 7, "doubts": []}
    assert second["valid"] is False
    assert second["path"].startswith("routes[0]")


def test_a_missing_file_is_a_clear_no(capsys) -> None:
    assert main(["policy", "check", "/nowhere/policy.json"]) == NO
    assert "can't be read" in capsys.readouterr().err


def test_show_gives_the_shares_that_a_caller_of_a_zone_sees(good, capsys) -> None:
    assert main(["policy", "show", good]) == OK
    anywhere = capsys.readouterr().out
    assert main(["policy", "show", "--zone", "us", good]) == OK
    there = capsys.readouterr().out

    assert "a 25.0%, b 75.0%" in anywhere
    assert "a 100.0%" in there
    assert "else endpoint b as n" in anywhere


def test_show_for_programs_is_json(good, capsys) -> None:
    assert main(["policy", "show", "--json", good]) == OK

    tree = json.loads(capsys.readouterr().out)
    assert tree["routes"][0]["weights"][0]["shares"] == {"a": 0.25, "b": 0.75}


def test_the_schema_is_json(capsys) -> None:
    assert main(["policy", "schema"]) == OK
    assert json.loads(capsys.readouterr().out)["type"] == "object"


@pytest.mark.parametrize("argv", [[], ["policy"]])
def test_alone_it_says_what_there_is(argv, capsys) -> None:
    assert main(argv) == USAGE
    said = capsys.readouterr()
    assert "usage: headway" in said.err
    assert ("doctor" if not argv else "explain") in said.err
    assert said.out == ""


@pytest.mark.parametrize("argv", [["nonsense"], ["policy", "nonsense"], ["policy", "check"]])
def test_wrong_usage_exits_with_2(argv, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage: headway" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_is_there_for_everything(argv, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 0
    assert "usage: headway" in capsys.readouterr().out


def test_a_missing_extra_is_named(monkeypatch, capsys) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr("headway.cli.import_module", missing)
    monkeypatch.setitem(COMMANDS, "demo", COMMANDS["demo"]._replace(extra="lab"))

    assert main(["demo"]) == MISSING_EXTRA
    assert "pip install 'headway[lab]'" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(good) -> None:
    command = f"{sys.executable} -m headway policy schema | head -c 10"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.returncode == 0
