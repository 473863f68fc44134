"""How commands speak: JSON for programs, tables for people, one line for an error.

Tables are drawn by rich where it is installed (`headway[cli]`) and stdout is a terminal, and are
plain aligned text otherwise: what is piped somewhere has no frames and no colours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.errors import PolicyError

GAP = "  "


def say_json(tree: Mapping[str, object]) -> None:
    """Print an object for programs."""
    print(json.dumps(tree, indent=2, default=str))


def say_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None
) -> None:
    """Print rows of text under a header, for people."""
    listed = [tuple(row) for row in rows]
    if title:
        print(title)
    if not _with_rich(header, listed):
        for line in _plain([tuple(header), *listed]):
            print(line)


def _plain(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + GAP.join(cells)).rstrip()


def _with_rich(header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> bool:
    """Draw it, if that can be done and seen."""
    if not (sys.stdout.isatty() or os.environ.get("FORCE_COLOR")):
        return False
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as text: names may hold what rich reads as markup
    Console().print(table)
    return True


def say_wrong(error: PolicyError, *, source: str | None = None) -> None:
    """Print what is wrong with a document, in one line that begins with the place."""
    where = source if source is not None else error.source
    place = f"{where}: " if where else ""
    path = f"{error.path}: " if error.path else ""
    expected = f" (expected {error.expected})" if error.expected else ""
    print(one_line(f"{place}{path}{error.message}{expected}"), file=sys.stderr)


def wrong_as_tree(error: PolicyError) -> dict[str, object]:
    """The same for programs."""
    return {"path": error.path, "message": error.message, "expected": error.expected}


def one_line(text: str) -> str:
    """Text without what would break the line."""
    return " ".join(text.split())


def count(things: Iterable[object], name: str) -> str:
    """How many of them there are, in words."""
    return numbered(sum(1 for _ in things), name)


def numbered(number: int, name: str) -> str:
    """A number of them: 1 call, 2 calls."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"
