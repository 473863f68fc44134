"""`headway policy check`: what is wrong, and what is only doubtful."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from headway.cli import NO, OK, main

PRICE = {"input_per_mtok": "1", "output_per_mtok": "4"}
SOUND: dict[str, Any] = {
    "schema_version": "1.0",
    "version": 1,
    "endpoints": {
        "a": {"base_url": "https://a.example/v1", "price": dict(PRICE), "capacity": {"rpm": 100}},
        "b": {"base_url": "https://b.example/v1", "price": dict(PRICE), "capacity": {"rpm": 100}},
    },
    "routes": [{"match": {"model": "m"}, "weights": {"a": 1, "b": 1}}, {"weights": {"a": 1}}],
}


def check(tree: dict[str, Any], tmp_path, capsys, *more: str) -> tuple[int, list[str]]:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(tree))
    status = main(["policy", "check", "--json", str(path), *more])
    found = json.loads(capsys.readouterr().out)
    return status, [f"{doubt['path']}: {doubt['message']}" for doubt in found["doubts"]]


def changed(**parts: Any) -> dict[str, Any]:
    tree = copy.deepcopy(SOUND)
    for name, value in parts.items():
        node, *path = tree, *name.split("__")
        *above, last = [int(part) if part.isdecimal() else part for part in path]
        for part in above:
            node = node[part]
        node[last] = value
    return tree


def test_nothing_is_doubtful_in_a_sound_one(tmp_path, capsys) -> None:
    assert check(SOUND, tmp_path, capsys, "--strict") == (OK, [])


@pytest.mark.parametrize(
    ("tree", "place", "said"),
    [
        (changed(expires_at="2020-01-01T00:00:00Z"), "expires_at", "is over"),
        (changed(rollout={"share": 0}), "rollout.share", "no process"),
        (
            changed(endpoints__c={"base_url": "https://c.example/v1"}),
            "endpoints.c",
            "no route leads here",
        ),
        (
            changed(endpoints__a__price={"input_per_mtok": "4", "output_per_mtok": "1"}),
            "endpoints.a.price.output_per_mtok",
            "swapped?",
        ),
        (
            changed(endpoints__a__price={"input_per_mtok": "1", "cached_input_per_mtok": "2"}),
            "endpoints.a.price.cached_input_per_mtok",
            "more than an uncached",
        ),
        (
            changed(
                routes=[
                    {"weights": {"a": 1, "b": 1}},
                    {"match": {"model": "m"}, "weights": {"a": 1}},
                ]
            ),
            "routes[1]",
            "routes before it",
        ),
        (
            changed(endpoints__a__state="draining"),
            "routes[1]",
            "takes new calls",
        ),
        (changed(routes__1__hedge={"enabled": True}), "routes[1].hedge.enabled", "no second"),
        (
            changed(routes__0__deadline={"ttft_ms": 5000, "total_ms": 1000}),
            "routes[0].deadline.ttft_ms",
            "later than the end",
        ),
        (changed(endpoints__a__price__input_per_mtok="0.001"), "routes[0].weights", "decimal"),
        (
            changed(endpoints__a__capacity={"rpm": 900}, routes__0__weights={"a": 1, "b": 3}),
            "routes[0].weights.b",
            "75% of the calls with 10% of the rpm",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_hardly_meant_is_pointed_out(
    tree: dict[str, Any], place: str, said: str, tmp_path, capsys
) -> None:
    status, found = check(tree, tmp_path, capsys)

    assert status == OK
    assert any(line.startswith(f"{place}: ") and said in line for line in found), found
    assert check(tree, tmp_path, capsys, "--strict")[0] == NO


def test_min_cost_wants_prices(tmp_path, capsys) -> None:
    tree = changed(routes__0__selection={"algorithm": "min_cost"})
    del tree["endpoints"]["b"]["price"]

    _, found = check(tree, tmp_path, capsys)
    assert any("no price of b" in line for line in found)


def test_a_typo_gets_its_place_and_a_suggestion(tmp_path, capsys) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(changed(routes__0__wieghts={"a": 1})))

    assert main(["policy", "check", str(path)]) == NO
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"{path}: routes[0].wieghts: unknown field")
    assert '"weights", perhaps' in said


def test_people_see_the_doubts_too(tmp_path, capsys) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(changed(rollout={"share": 0})))

    assert main(["policy", "check", str(path)]) == OK
    assert f"{path}: rollout.share: 0: no process" in capsys.readouterr().out
