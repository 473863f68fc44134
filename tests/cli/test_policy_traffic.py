"""`headway policy explain` and `diff`."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli import NO, OK, main

TREE: dict[str, Any] = {
    "schema_version": "1.0",
    "version": 1,
    "endpoints": {
        "near": {"base_url": "https://near.example/v1"},
        "far": {"base_url": "https://far.example/v1"},
        "small": {"base_url": "https://small.example/v1", "max_context_tokens": 4000},
        "spare": {"base_url": "https://spare.example/v1", "state": "disabled"},
        "last": {"base_url": "https://last.example/v1", "headers": {"x-team": "old-secret"}},
    },
    "routes": [
        {
            "match": {"model": "large"},
            "weights": {"near": 3, "far": 1, "small": 1, "spare": 1},
            "fallback": [{"endpoint": "last"}],
        }
    ],
}


def write(path: Path, tree: dict[str, Any]) -> str:
    path.write_text(json.dumps(tree))
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "policy.json", TREE)


def test_a_call_is_explained_against_every_candidate(file, capsys) -> None:
    assert main(["policy", "explain", file, "--model", "large", "--prompt-tokens", "9000"]) == OK

    said = capsys.readouterr().out
    assert "route large, selection steady" in said
    assert "most likely near (75.0% of such calls)" in said
    assert "not far: weight 25.0% instead of 75.0%; 25.0% of such calls" in said
    assert "not small: the call doesn't fit its context" in said
    assert "not spare: it is disabled" in said
    assert "not last: a fallback" in said


def test_budgets_of_tenants_are_compared(file, tmp_path: Path, capsys) -> None:
    budgets = {"acme": {"max_cost": "5.00"}, "*": {"max_cost": "0.5", "period_s": 3600}}
    new = write(tmp_path / "new.json", {**TREE, "version": 2, "tenants": budgets})
    assert main(["policy", "diff", file, new, "--exit-code"]) == NO
    said = capsys.readouterr().out
    assert "tenants.acme: unset -> 5.00 USD in 86400 s, 1 of it here" in said
    assert "tenants.*: unset -> 0.5 USD in 3600 s, 1 of it here" in said

    shared = {**TREE, "version": 3, "tenants": budgets, "shares": {"client_count": 4}}
    newer = write(tmp_path / "newer.json", shared)
    assert main(["policy", "diff", new, newer]) == OK
    assert "tenants.acme: 5.00 USD in 86400 s, 1 of it here -> 5.00 USD in 86400 s, 0.25" in (
        capsys.readouterr().out
    )


def test_a_smaller_call_has_one_more_candidate(file, capsys) -> None:
    assert main(["policy", "explain", file, "--model", "large", "--json"]) == OK

    found = json.loads(capsys.readouterr().out)
    rows = {row["endpoint_id"]: row for row in found["candidates"]}
    assert rows["small"]["eligible"]
    assert rows["small"]["share"] == pytest.approx(0.2)
    assert rows["spare"]["why_not"] == "disabled"


def test_what_no_route_matches_is_a_no(file, capsys) -> None:
    assert main(["policy", "explain", file, "--model", "other"]) == NO
    assert capsys.readouterr().out == "no route matches: such a call passes through untouched\n"


def test_a_call_that_fits_nowhere_is_told(tmp_path, capsys) -> None:
    tree = copy.deepcopy(TREE)
    tree["routes"] = [{"weights": {"small": 1}}]
    file = write(tmp_path / "small.json", tree)

    assert main(["policy", "explain", file, "--model", "m", "--prompt-tokens", "9000"]) == OK
    assert "nowhere: no endpoint" in capsys.readouterr().out


def request(tmp_path: Path, **body: Any) -> str:
    return write(tmp_path / "request.json", body)


def explained(capsys, file: str, *arguments: str) -> dict[str, Any]:
    assert main(["policy", "explain", file, "--json", *arguments]) == OK
    return json.loads(capsys.readouterr().out)


def eligible(found: dict[str, Any]) -> set[str]:
    return {row["endpoint_id"] for row in found["candidates"] if row["eligible"]}


def test_a_request_is_explained_as_a_process_would_see_it(file, tmp_path, capsys) -> None:
    short = [{"role": "user", "content": "a secret question"}]
    body = request(tmp_path, messages=short, model="large", max_completion_tokens=5000)
    found = explained(capsys, file, "--request", body)
    assert found["call"]["model"] == "large"
    assert found["call"]["surface"] == "chat"
    assert found["call"]["max_output_tokens"] == 5000
    assert 1 <= found["call"]["prompt_tokens"] < 50
    assert "small" not in eligible(found)  # 5000 tokens out don't fit into 4000
    assert "secret" not in str(found)
    body = request(tmp_path, messages=short, model="other")
    assert "small" in eligible(explained(capsys, file, "--request", body, "--model", "large"))

    long = request(tmp_path, model="large", messages=[{"role": "user", "content": "word " * 9000}])
    assert main(["policy", "explain", file, "--request", long]) == OK
    said = capsys.readouterr().out
    assert said.startswith("model large, chat, about ")
    assert "(estimated from its size)" in said
    assert "not small: the call doesn't fit its context" in said


def test_a_request_from_stdin_and_a_prompt(file, capsys, monkeypatch) -> None:
    body = json.dumps({"model": "large", "input": "hello there"}).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert explained(capsys, file, "--request", "-")["call"]["surface"] == "responses"
    found = explained(capsys, file, "--prompt", "word " * 9000, "--model", "large")
    assert "small" not in eligible(found)
    assert found["call"]["is_estimate"] is True


def test_a_line_of_a_batch_says_what_kind_it_is(file, tmp_path, capsys) -> None:
    line = request(
        tmp_path,
        custom_id="1",
        method="POST",
        url="/v1/embeddings",
        body={"model": "large", "input": "x"},
    )
    assert explained(capsys, file, "--request", line)["call"]["surface"] == "embeddings"
    assert explained(capsys, file, "--request", line, "--surface", "chat")["route"] == "large"


def test_a_request_that_is_bound_says_so(file, tmp_path, capsys) -> None:
    body = request(tmp_path, model="large", input="go on", previous_response_id="resp_1")
    found = explained(capsys, file, "--request", body)
    assert "where the response that it names lives" in found["reasons"][0]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("{a secret", [], "expected the JSON body of one request"),
        ("[1]", [], "expected a JSON object"),
        ('{"model": "large"}', [], "Say --surface"),
        ('{"messages": []}', [], "names no model"),
        (None, [], "request.json"),
    ],
)
def test_what_is_no_request_is_one_line(content, arguments, said, file, tmp_path, capsys) -> None:
    path = tmp_path / "request.json"
    if content is not None:
        path.write_text(content)
    assert main(["policy", "explain", file, "--request", str(path), *arguments]) == NO
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert "secret" not in err


def test_without_a_model_or_a_request_there_is_no_call(file, capsys) -> None:
    assert main(["policy", "explain", file]) == NO
    assert "--model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["policy", "explain", file, "--prompt", "a", "--prompt-tokens", "3"])


def changed(tmp_path: Path, **routes: Any) -> str:
    tree = copy.deepcopy(TREE)
    tree["version"] = 2
    tree["routes"][0].update(routes)
    return write(tmp_path / "new.json", tree)


def test_moved_weights_are_told_as_traffic(file, tmp_path, capsys) -> None:
    new = changed(tmp_path, weights={"near": 1, "far": 1})

    assert main(["policy", "diff", file, new]) == OK
    [line] = [line for line in capsys.readouterr().out.splitlines() if "model large" in line]
    assert "33.3% (at 1000 tokens)" in line
    assert "near 50.0%" in line
    assert main(["policy", "diff", "--exit-code", file, new]) == NO


def test_another_version_of_the_same_is_nothing_to_notice(file, tmp_path, capsys) -> None:
    assert main(["policy", "diff", "--exit-code", file, changed(tmp_path)]) == OK
    assert capsys.readouterr().out == "version: 1 -> 2\ncalls notice nothing\n"


def test_handling_and_fallbacks_are_told_too(file, tmp_path, capsys) -> None:
    new = changed(tmp_path, deadline={"total_ms": 9000}, fallback=[])

    assert main(["policy", "diff", file, new]) == OK
    said = capsys.readouterr().out
    assert "deadline.total_s" in said
    assert "fallback" in said
    assert main(["policy", "diff", "--json", file, new]) == OK
    found = json.loads(capsys.readouterr().out)
    assert found["changes_calls"] is True
    [change] = found["traffic"]
    assert change["traffic"]["model"] == "large"
    assert change["settings"] == [{"where": "deadline.total_s", "before": "none", "after": "9"}]


def test_endpoints_are_compared_without_showing_their_headers(file, tmp_path, capsys) -> None:
    tree = copy.deepcopy(TREE)
    tree["endpoints"]["last"]["headers"] = {"x-team": "new-secret"}
    tree["endpoints"]["more"] = {"base_url": "https://more.example/v1"}
    new = write(tmp_path / "new.json", tree)

    assert main(["policy", "diff", file, new]) == OK
    said = capsys.readouterr().out
    assert "+ endpoint more" in said
    assert "~ endpoint last: headers" in said
    assert "secret" not in said


def test_what_cannot_be_read_is_one_line_with_the_place(file, tmp_path, capsys) -> None:
    assert main(["policy", "diff", file, f"{tmp_path}/none.json"]) == NO
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path}/none.json: can't be read")
    assert said.count("\n") == 1


def test_tables_are_drawn_where_a_terminal_shows_them(file, capsys, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["policy", "explain", file, "--model", "large"]) == OK
    drawn = capsys.readouterr().out
    assert "┃" in drawn

    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    assert main(["policy", "explain", file, "--model", "large"]) == OK
    plain = capsys.readouterr().out
    assert "┃" not in plain
    assert "near" in plain
