"""docs/reference/faults.md tells of every fault that is tested, and of no other."""

from __future__ import annotations

import re

from tests.faults.page import PAGE, load
from tests.house.paths import ROOT

ROW = re.compile(r"^\| ([A-Z][\w-]*) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
PLAYED = "test_fault"


def test_the_page_lists_every_fault_that_has_a_test() -> None:
    listed = {name: title for name, title, _, _ in ROW.findall(PAGE.read_text())}
    tested = {name: found.title for name, found in load().items()}

    assert listed == tested, "run `make faults`"


def test_every_file_of_faults_plays_them() -> None:
    files = sorted((ROOT / "tests" / "faults").glob("test_*.py"))

    assert len(files) == len({found.section for found in load().values()})
    assert [path.name for path in files if f"def {PLAYED}(" not in path.read_text()] == []
