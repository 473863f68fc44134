"""The reference page is what the tables say."""

from __future__ import annotations

from pathlib import Path

from headway.quirks.render import render_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "quirks.md"


def test_the_reference_page_is_current() -> None:
    assert PAGE.read_text() == render_reference(), (
        "run: python -m headway.quirks.render > docs/reference/quirks.md"
    )
