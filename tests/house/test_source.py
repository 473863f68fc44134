"""Rules about the text of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.paths import SRC, sources

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

LONG = re.compile(r"#\s*long: \S+")
"""`# long: reason`, in the first ten lines of a file or on the line of a `def`."""

RATCHET: dict[str, int] = {
    "core/machine.py": 499,
    "core/model.py": 444,
}
"""Files and functions that are longer than the rule, and how long: they may shrink, never grow."""

VAGUE = re.compile(r"(data|info|manager|handler|utils?|helpers?)", re.IGNORECASE)
"""Words that say nothing of what a thing is."""

BANNED_IN_CORE = {
    "time.time", "time.monotonic", "time.sleep", "random.random", "datetime.now",
    "datetime.utcnow", "print", "open", "input", "eval", "exec",
}  # fmt: skip


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def measured() -> Iterator[tuple[str, int, int, bool]]:
    """(what, lines, the rule's bound, whether a reason is given) of every file and function."""
    for path in sources():
        text = path.read_text()
        lines = text.splitlines()
        yield name_of(path), len(lines), FILE_LINES_MAX, any(map(LONG.search, lines[:10]))
        for function in functions(ast.parse(text)):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            said_why = LONG.search(lines[function.lineno - 1]) is not None
            yield f"{name_of(path)}:{function.name}", length, FUNCTION_LINES_MAX, said_why


def test_files_and_functions_are_short_or_say_why_not() -> None:
    too_long = {
        what: lines
        for what, lines, bound, said_why in measured()
        if not said_why and lines > RATCHET.get(what, bound)
    }
    assert too_long == {}


def test_the_ratchet_lists_only_what_still_needs_it() -> None:
    needed = {what for what, lines, bound, _ in measured() if lines > bound}

    assert sorted(RATCHET.keys() - needed) == []


@pytest.mark.parametrize("path", sorted((SRC / "core").glob("*.py")), ids=name_of)
def test_the_core_reads_no_clock_draws_no_chance_and_prints_nothing(path: Path) -> None:
    calls = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }

    assert calls & BANNED_IN_CORE == set()


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_modules_and_classes_are_named_for_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text())
    words = [path.stem, *(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    # CamelCase and snake_case into words, so that "metadata" is not "data".
    parts = [part for word in words for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", word)]

    assert [part for part in parts if VAGUE.fullmatch(part)] == []


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_nothing_is_left_to_do(path: Path) -> None:
    text = path.read_text()

    assert re.findall(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError", text) == []
