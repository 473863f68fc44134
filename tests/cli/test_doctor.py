"""`headway doctor`: what this environment would do. It sends nothing unless asked."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from headway.cli import NO, OK, main
from tests.policy.shelf import Shelf

VARIABLES = (
    *("HEADWAY_POLICY", "HEADWAY_POLICY_KEYS", "HEADWAY_POLICY_UNSIGNED"),
    *("HEADWAY_DISABLED", "HEADWAY_TASK_LOG", "NEAR_KEY"),
)


@pytest.fixture(autouse=True)
def _bare(monkeypatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def resolve(host: str, *args: Any, **more: Any) -> list[Any]:
        if host.endswith(".invalid"):
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 443))]

    monkeypatch.setattr("headway.cli.doctor_policy.socket.getaddrinfo", resolve)


@pytest.fixture
def shelf(monkeypatch) -> Iterator[Shelf]:
    monkeypatch.undo()  # a real server needs the real resolver
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = Shelf()
    yield made
    made.close()


def tree(base_url: str, **top: Any) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "version": 4,
        "endpoints": {"near": {"base_url": base_url, **top.pop("endpoint", {})}},
        "routes": [{"weights": {"near": 1}}],
        **top,
    }


def write(tmp_path: Path, document: dict[str, Any]) -> str:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document))
    return str(path)


def doctor(capsys, *arguments: str) -> tuple[int, list[tuple[str, str, str]]]:
    status = main(["doctor", "--json", *arguments])
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is (status == OK)
    return status, [(row["what"], row["state"], row["found"]) for row in found["findings"]]


def states(rows: list[tuple[str, str, str]], what: str) -> list[tuple[str, str]]:
    return [(state, found) for name, state, found in rows if name == what]


def test_without_a_policy_nothing_is_wrong(capsys) -> None:
    status, rows = doctor(capsys)

    assert status == OK
    assert {"python", "headway", "openai", "http stack", "clock", "policy"} <= {r[0] for r in rows}
    assert states(rows, "OPENAI_API_KEY") == [("ok", "set")]


def test_people_get_a_table_and_no_secret(tmp_path, capsys) -> None:
    assert main(["doctor", write(tmp_path, tree("https://near.example/v1"))]) == OK
    said = capsys.readouterr().out
    assert "near.example: 1 address" in said
    assert said.endswith("nothing is wrong\n")
    assert "sk-secret" not in said


def test_a_key_that_is_not_there_is_wrong(tmp_path, capsys, monkeypatch) -> None:
    endpoint = {"credential": "env:NEAR_KEY"}
    file = write(tmp_path, tree("https://near.example/v1", endpoint=endpoint))

    status, rows = doctor(capsys, file)
    assert status == NO
    assert states(rows, "credential") == [("wrong", "of near: NEAR_KEY is not set")]
    monkeypatch.setenv("NEAR_KEY", "s3cret")
    status, rows = doctor(capsys, file)
    assert status == OK
    assert "s3cret" not in str(rows)


def test_a_host_without_an_address_is_wrong(tmp_path, capsys) -> None:
    status, rows = doctor(capsys, write(tmp_path, tree("https://near.invalid/v1")))
    assert status == NO
    [(state, said)] = states(rows, "host")
    assert state == "wrong"
    assert "near.invalid can't be resolved" in said


@pytest.mark.parametrize(
    ("top", "what", "state"),
    [
        ({"expires_at": "2020-01-01T00:00:00Z"}, "policy expires_at", "wrong"),
        ({"fresh_until": "2020-01-01T00:00:00Z"}, "policy fresh_until", "note"),
        ({"issued_at": "2199-01-01T00:00:00Z"}, "policy issued_at", "note"),
        ({"endpoint": {"credential": "team"}}, "credential", "note"),
    ],
)
def test_dates_and_names_are_looked_at(top, what, state, tmp_path, capsys) -> None:
    _, rows = doctor(capsys, write(tmp_path, tree("https://near.example/v1", **top)))
    assert [found[0] for found in states(rows, what)] == [state]


def test_an_invalid_policy_is_one_finding_with_the_place(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HEADWAY_POLICY", write(tmp_path, tree("https://near.example/v1", oops=1)))
    status, rows = doctor(capsys)
    assert status == NO
    [(state, said)] = states(rows, "policy")
    assert state == "wrong"
    assert said.startswith("HEADWAY_POLICY: ")
    assert "oops: unknown field" in said
    _, rows = doctor(capsys, write(tmp_path, tree("https://near.example/v1", oops=1)))
    assert "HEADWAY_POLICY" not in states(rows, "policy")[0][1]  # it was named on the line


def test_a_policy_elsewhere_is_not_fetched_unless_asked(capsys) -> None:
    status, rows = doctor(capsys, "https://config.invalid/policy.json?token=s3cret")

    assert status == OK
    assert states(rows, "policy")[0][0] == "not asked"
    assert "refused unless code pins public_keys" in states(rows, "policy signatures")[0][1]
    assert "s3cret" not in str(rows)


def test_asked_it_fetches_and_knocks(shelf, capsys, monkeypatch) -> None:
    endpoint = shelf.url.removesuffix("/policy.json") + "/v1"
    shelf.kept["/policy.json"] = json.dumps(tree(endpoint)).encode()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    status, rows = doctor(capsys, shelf.url, "--send")
    assert status == OK, rows
    assert states(rows, "policy")[0][0] == "ok"
    [(state, said)] = states(rows, "endpoint near")
    assert state == "ok"
    assert said.startswith("answers (404) after ")


def test_a_clock_that_is_off_is_told(shelf, capsys, monkeypatch) -> None:
    endpoint = shelf.url.removesuffix("/policy.json") + "/v1"
    shelf.kept["/policy.json"] = json.dumps(tree(endpoint)).encode()
    past = "Mon, 01 Jan 2024 00:00:00 GMT"
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda self, *_: past)

    _, rows = doctor(capsys, shelf.url, "--send")
    assert any("s ahead of its own" in said for _, said in states(rows, "endpoint near"))


def test_nobody_at_the_endpoint_is_wrong(shelf, tmp_path, capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        status, rows = doctor(capsys, write(tmp_path, tree(dead)), "--send")
    assert status == NO
    [(state, found)] = states(rows, "endpoint near")
    assert state == "wrong"
    assert found.startswith("no answer: ConnectError: ")
    assert "refused" in found


def test_signatures_are_verified_with_the_keys_of_the_environment(
    tmp_path, capsys, monkeypatch
) -> None:
    file, key = write(tmp_path, tree("https://near.example/v1")), f"{tmp_path}/ops.pem"
    main(["policy", "keygen", key, "--id", "ops", "--json"])
    public = json.loads(capsys.readouterr().out)["public_key"]
    monkeypatch.setenv("HEADWAY_POLICY_KEYS", f"ops={public}")

    status, rows = doctor(capsys, file)
    assert (status, states(rows, "policy signatures")[0][0]) == (NO, "wrong")
    main(["policy", "sign", file, "--key", key])
    capsys.readouterr()
    status, rows = doctor(capsys, file)
    assert (status, states(rows, "policy signatures")) == (OK, [("ok", "signed by ops")])


def test_switches_and_the_task_log_are_told(capsys, monkeypatch) -> None:
    monkeypatch.setenv("HEADWAY_DISABLED", "1")
    monkeypatch.setenv("HEADWAY_TASK_LOG", "/nowhere/at/all/tasks.jsonl")

    status, rows = doctor(capsys)
    assert status == NO
    assert states(rows, "HEADWAY_DISABLED")[0][0] == "note"
    assert states(rows, "HEADWAY_TASK_LOG") == [("wrong", "/nowhere/at/all can't be written to")]


@pytest.mark.parametrize(
    ("version", "fine"), [("2.53.9", False), ("2.54.0", True), ("3.57.0", True), ("4.0.0", False)]
)
def test_a_version_of_the_sdk_that_does_not_fit_is_wrong(
    version, fine, capsys, monkeypatch
) -> None:
    monkeypatch.setattr("headway.cli.doctor._version", lambda name: version)
    _, rows = doctor(capsys)
    assert (states(rows, "openai")[0][0] == "ok") is fine


def test_a_clock_before_this_version_is_wrong(capsys, monkeypatch) -> None:
    monkeypatch.setattr("headway.cli.doctor.time.time", lambda: 0.0)
    status, rows = doctor(capsys)
    assert (status, states(rows, "clock")[0][0]) == (NO, "wrong")
