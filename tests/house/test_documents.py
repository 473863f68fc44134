"""What the documents show works; what they link to is there; the examples teach."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

from tests.house import tables
from tests.house.documents import Block, blocks, offline, run_document
from tests.house.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
EXAMPLE_LINES_MAX = 80


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with offline(tmp_path, monkeypatch) as world:
        run_document(page, world)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(CODE.sub("", page.read_text()))

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=page_name)
def test_an_example_is_short_says_what_it_teaches_and_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = example.read_text()
    taught = ast.get_docstring(ast.parse(text)) or ""

    assert "You learn" in taught
    assert text.count("\n") < EXAMPLE_LINES_MAX
    with offline(tmp_path, monkeypatch):
        runpy.run_path(str(example), run_name="__main__")


def test_the_readme_is_short_and_starts_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()

    assert len(lines) <= 150
    top = "\n".join(lines[:25])
    assert "make demo" in top
    assert "make test" in top


def test_blocks_are_found_with_their_directives() -> None:
    page = "<!-- file: a.json -->\n```json\n{}\n```\n\n```python\n1\n```\n"
    page += "<!-- skip: because -->\n```python\n2\n```"

    assert list(blocks(page)) == [Block("file", "{}", 3, "a.json"), Block("python", "1", 7)]


@pytest.mark.parametrize("page", tables.pages(), ids=page_name)
def test_the_generated_tables_of_a_page_are_current(page: Path) -> None:
    assert tables.filled(page.read_text()) == page.read_text(), "`make docs-tables` writes them"


def test_every_page_can_be_found_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    seen, ahead = set[Path](), [index]
    while ahead:
        page = ahead.pop().resolve()
        if page.suffix == ".md" and page not in seen:
            seen.add(page)
            ahead += [page.parent / target for target in LINK.findall(page.read_text())]

    assert [page_name(page) for page in PAGES if page not in seen and "docs" in page.parts] == []
