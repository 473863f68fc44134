"""A bad policy document: one error that names the place, the value and what was expected; and a
router that runs keeps the last good one, and says so."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.core.model import PolicyLoaded, PolicyRejected
from tests.e2e.fleet import Fleet, document, say
from tests.e2e.replies import answer

GOOD: dict[str, Any] = document(
    {"a": "http://127.0.0.1:1/v1", "b": "http://127.0.0.1:2/v1"},
    profiles={
        "h100": {
            "ttft_ms": {"x": [0, 0.5, 1], "mean": [75, 120, 520]},
            "tpot_ms": {"x": [0, 0.5, 1], "mean": [16, 24, 74]},
        }
    },
)
TWO_ROUTES = [
    {"name": "x", "match": {"model": "m"}, "weights": {"a": 1}, "fallback": [{"route": "y"}]},
    {"name": "y", "match": {"model": "n"}, "weights": {"b": 1}, "fallback": [{"route": "x"}]},
]


def put(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        node: Any = made
        for part in parents:
            node = node[part]
        node[last] = value

    return change


# (what is done to the good one, or the whole text; the place named; what the message holds)
BAD: dict[str, tuple[Any, str | None, list[str]]] = {
    "a typo": (put("routes.0.wieghts", {"a": 1}), "routes[0].wieghts", ['"weights"']),
    "a wrong type": (put("version", "seven"), "version", ['"seven"', "integer"]),
    "a cycle of fallbacks": (
        put("routes", TWO_ROUTES),
        "routes[1].fallback[0].route",
        ['"x"', "x -> y -> x", "cycle"],
    ),
    "an unknown endpoint": (
        put("routes.0.weights", {"a": 1, "c": 1}),
        "routes[0].weights.c",
        ['"c"', "an endpoint of the document"],
    ),
    "weights of zero": (put("routes.0.weights", {"a": 0, "b": 0}), "routes[0].weights", ["0"]),
    "a profile that falls": (
        put("profiles.h100.ttft_ms.mean", [75, 60, 520]),
        "profiles.h100.ttft_ms.mean[1]",
        ["60", "75"],
    ),
    "two mebibytes": (json.dumps(GOOD) + " " * (2 << 20), None, ["1048576 bytes"]),
    "not a number": (
        json.dumps(GOOD).replace('"version": 7', '"version": NaN'),
        "version",
        ["NaN"],
    ),
    "infinity": (put("routes.0.weights.a", float("inf")), "routes[0].weights.a", ["Infinity"]),
    "a key twice": (
        json.dumps(GOOD).replace('"version": 7', '"version": 7, "version": 8'),
        "version",
        ["twice"],
    ),
    "plain http off loopback": (
        put("endpoints.a.base_url", "http://llm.example/v1"),
        "endpoints.a.base_url",
        ["http://llm.example", "https"],
    ),
    "not JSON": ("{oops", "$", ["line 1", "JSON"]),
    "nothing": ("", "$", ["JSON"]),
}


def text_of(case: str) -> str:
    change = BAD[case][0]
    if isinstance(change, str):
        return change
    made = copy.deepcopy(GOOD)
    change(made)
    return json.dumps(made)


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("how", ["wrap", "Router", "check"])
def test_one_error_names_place_value_and_expectation(
    case: str,
    how: str,
    tmp_path: Path,
    plain: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, path, words = BAD[case]
    file = tmp_path / "policy.json"
    file.write_text(text_of(case))

    if how == "check":
        from headway.cli import main

        assert main(["policy", "check", str(file)]) == 1
        captured = capsys.readouterr()
        said = captured.out + captured.err
    else:
        with pytest.raises(headway.PolicyError) as caught:
            if how == "wrap":
                headway.wrap(plain("http://127.0.0.1:1/v1"), str(file))
            else:
                headway.Router(file)
        said = str(caught.value)
        assert "\n" not in said
        assert caught.value.path == path
        assert str(file) in said
    if path is not None:
        assert f"{path}: " in said
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("case", BAD)
def test_a_running_router_keeps_its_last_good_policy_and_says_so(
    case: str,
    tmp_path: Path,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = serve(answer())
    good = document({"a": server.url})
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(good))
    running = fleet({"a": server.url}, policy=file)
    client = running.client()

    file.write_text(text_of(case))
    assert running.router._supply.refresh_once() is False
    assert running.router._supply.refresh_once() is False

    assert say(client) == "Hello"
    status = running.router.status().policy
    assert status.version == 7
    assert status.last_error
    [rejected] = running.events.of(PolicyRejected)
    assert status.last_error == rejected.message
    for word in BAD[case][2]:
        assert word in rejected.message
    assert sum("the last good one stays" in r.getMessage() for r in caplog.records) == 1

    file.write_text(json.dumps(good | {"version": 8}))
    assert running.router._supply.refresh_once() is False  # it may still be growing
    assert running.router._supply.refresh_once() is True
    assert running.router.status().policy.version == 8
    assert running.router.status().policy.last_error is None
    assert [event.version for event in running.events.of(PolicyLoaded)] == [7, 8]
    assert (
        client.chat.completions.with_raw_response.create(model="m", messages=[]).headers[
            "x-headway-policy-version"
        ]
        == "8"
    )


def test_an_older_version_does_not_come_back(
    tmp_path: Path, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document({"a": server.url}, version=9)))
    running = fleet({"a": server.url}, policy=file)

    file.write_text(json.dumps(document({"b": server.url}, version=8)))
    running.router._supply.refresh_once()
    running.router._supply.refresh_once()

    [rejected] = running.events.of(PolicyRejected)
    assert rejected.reason == "rollback"
    assert [row.endpoint_id for row in running.router.status().endpoints] == ["a"]
