"""What mutation testing of the core found, and why what survived is let live.

`tests/core/mutation.json` is written by `scripts/mutate.py --write`, `tests/core/survivors.toml` by
people: lists of survivors, each list with the argument that covers it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import NamedTuple, TypedDict, cast

from tests.house.paths import ROOT


class Figures(TypedDict):
    """What was found in one module."""

    mutants: int
    killed: int
    timed_out: list[str]
    survivors: list[str]


class Argued(TypedDict):
    """Survivors of one module, and why they are let live."""

    why: str
    mutants: list[str]


class Survivor(NamedTuple):
    """One of them: function, line, what it was and what it became."""

    function: str
    line: str
    change: str


def figures() -> dict[str, Figures]:
    """By module."""
    return cast("dict[str, Figures]", json.loads((ROOT / "tests/core/mutation.json").read_text()))


def arguments() -> dict[str, list[Argued]]:
    """By module."""
    text = (ROOT / "tests/core/survivors.toml").read_text()
    return cast("dict[str, list[Argued]]", tomllib.loads(text))


def counts() -> Iterator[list[str]]:
    """Rows: module, mutants, killed, share."""
    total = killed = 0
    for module, found in figures().items():
        total += found["mutants"]
        killed += found["killed"]
        yield [f"`{module}`", *_share(found["mutants"], found["killed"])]
    yield ["all", *_share(total, killed)]


def _share(mutants: int, killed: int) -> list[str]:
    return [str(mutants), str(killed), f"{killed / mutants:.1%}" if mutants else "-"]


def argued() -> str:
    """Every survivor with its argument, module by module."""
    known = arguments()
    parts: list[str] = []
    for module, found in figures().items():
        left = set(found["survivors"])
        if not left:
            continue
        parts.append(f"### `{module}`\n\n")
        for group in known.get(module, []):
            alive = [name for name in group["mutants"] if name in left]
            if alive:
                parts.append(f"{' '.join(group['why'].split())}\n\n")
                parts += [_line(parsed(name)) for name in alive]
                parts.append("\n")
    return "".join(parts)


def parsed(name: str) -> Survivor:
    """A survivor from the name that the runner gives it."""
    where, line, change, *_ = name.split(" ┆ ")
    return Survivor(where, line, change)


def _line(survivor: Survivor) -> str:
    was, now = survivor.change.split(" → ")
    place = f"`{survivor.function}`: " if survivor.function else ""
    if was == survivor.line:
        return f"- {place}{_code(was)} becomes {_code(now)}\n"
    return f"- {place}{_code(survivor.line)}: {_code(was)} becomes {_code(now)}\n"


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"
