"""What agent frameworks came to when they were last run: `tests/frameworks/results.json`, written by
`make test-frameworks ARGS=--record`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, TypedDict, cast

from tests.frameworks.registry import FRAMEWORKS
from tests.house.paths import ROOT

RAN_HEAD: Final = ("framework", "versions", "openai", "run", "own call spans")
_HOWS: Final = {
    "plain": "plain",
    "wrapped": "wrapped",
    "two endpoints": "two endpoints",
    "its retries": "its retries left on",
}
_STATUSES: Final = ("500", "429")
RETRIES_HEAD: Final = (
    "framework",
    *(f"{status} {how}" for status in _STATUSES for how in _HOWS.values()),
    "raised",
)


class Way(TypedDict):
    """One way of working."""

    calls: int
    failures: int
    call_spans_of: list[str]


class Counted(TypedDict):
    """One call that fails."""

    requests: int
    raised: str


class Seen(TypedDict):
    """One framework."""

    versions: dict[str, str]
    ways: dict[str, Way]
    spans: dict[str, Way]
    retries: dict[str, dict[str, Counted]]


def results() -> dict[str, Seen]:
    """What was recorded, by the framework's name."""
    text = (ROOT / "tests" / "frameworks" / "results.json").read_text()
    return cast("dict[str, Seen]", json.loads(text))


def ran() -> Iterator[list[str]]:
    """Versions, and the ways of working that were run."""
    for name, seen in results().items():
        versions = seen["versions"]
        openai = versions["openai"]
        stack = "httpx" if openai.startswith("2.") else "httpx2"
        own = [package.partition("[")[0] for package in FRAMEWORKS[name].packages]
        scopes = {scope for way in seen["spans"].values() for scope in way["call_spans_of"]}
        yield [
            FRAMEWORKS[name].title,
            ", ".join(f"{package} {versions[package]}" for package in own),
            f"{openai} on {stack} {versions[stack]}",
            ", ".join(seen["ways"]),
            "yes" if scopes - {"headway"} else "-",
        ]


def retried() -> Iterator[list[str]]:
    """Requests of one model call at an endpoint that only fails."""
    for name, seen in results().items():
        found = seen["retries"]
        yield [
            FRAMEWORKS[name].title,
            *(
                str(found[status][how]["requests"]) if how in found[status] else "-"
                for status in _STATUSES
                for how in _HOWS
            ),
            f"`{found['500']['wrapped']['raised'].partition(' <')[0]}`",
        ]
