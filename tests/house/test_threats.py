"""The threat model in SECURITY.md has a test for each row, and each of its tests a row."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.paths import ROOT

PAGE = (ROOT / "SECURITY.md").read_text()
THREATS = ROOT / "tests" / "security" / "test_threats.py"
ROW = re.compile(r"^\| (.+) \| (.+) \| (.+) \| `([^`]+)` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str]]:
    """(who and what, the test's place) of every row."""
    section = PAGE.partition("## Threat model")[2].partition("\n## ")[0]
    return [(f"{who}: {cannot}", test) for who, _, cannot, test in ROW.findall(section)]


def place_of(test: str) -> tuple[str, str]:
    """(file, function): a bare name is in `tests/security/test_threats.py`."""
    file, separator, name = test.rpartition("::")
    return (file, name) if separator else (THREATS.relative_to(ROOT).as_posix(), test)


def functions_of(file: str) -> dict[str, list[str]]:
    """The test functions of a file, with the names of their decorators."""
    tree = ast.parse((ROOT / file).read_text())
    return {
        node.name: [ast.unparse(decorator) for decorator in node.decorator_list]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_the_table_is_there() -> None:
    assert len(rows()) > 15


@pytest.mark.parametrize(("row", "test"), rows())
def test_a_row_has_a_test_that_runs(row: str, test: str) -> None:
    file, name = place_of(test)
    found = functions_of(file)

    assert name in found, f"{row}: {test} is not there"
    assert not [mark for mark in found[name] if "skip" in mark or "slow" in mark]


def test_every_test_of_the_threat_model_has_a_row() -> None:
    named = {place_of(test) for _, test in rows()}
    ours = {(THREATS.relative_to(ROOT).as_posix(), name) for name in functions_of(str(THREATS))}

    assert ours - named == set()
