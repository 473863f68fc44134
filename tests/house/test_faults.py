"""docs/reference/faults.md tells of every fault that is tested, and of no other."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from tests.house.paths import ROOT

ROW = re.compile(r"^\| ([A-Z][\w-]*) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
PLAYED = "def test_fault("
page: Any = import_module("tests.faults.page")  # tests are not type-checked, this directory is


def test_the_page_lists_every_fault_that_has_a_test() -> None:
    text = (ROOT / "docs" / "reference" / "faults.md").read_text()
    listed = {found[1]: found[2] for found in ROW.finditer(text)}
    tested = {name: found.title for name, found in page.load().items()}

    assert listed == tested, "run `make faults`"


def test_every_file_of_faults_plays_them() -> None:
    files = sorted((ROOT / "tests" / "faults").glob("test_*.py"))

    assert len(files) == len({found.section for found in page.load().values()})
    assert [path.name for path in files if PLAYED not in path.read_text()] == []
