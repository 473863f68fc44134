"""What a demo shows while it runs: a live panel with rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol

from headway.lab.demo_figures import Arm
from headway.lab.demo_story import FLEET, Story

if TYPE_CHECKING:
    from rich.live import Live

LINE_EVERY_S = 4.0
RECENT_S = 2.0
BAR_WIDTH = 24
CELL_MAX = 24


class Screen(Protocol):
    """Where progress goes."""

    def show(self, arm: Arm, story: Story) -> None:
        """The state of the run, several times a second."""
        ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """The figures, side by side."""
        ...


def happening(story: Story, now_s: float) -> str:
    """What is wrong right now, in words."""
    words = [b.label for b in story.bands() if b.start <= now_s < b.end]
    if now_s >= story.publish_at_s:
        words.append("policy version 2 is out")
    return ", ".join(words) or "all is well"


def recent_share(arm: Arm) -> dict[str, int]:
    """Attempts per endpoint in the last seconds."""
    since = arm.book.now_s() - RECENT_S
    counts = Counter(name for at, name in arm.sends[-2000:] if at >= since)
    return {name: counts.get(name, 0) for name in FLEET}


@dataclass(slots=True)
class Lines:
    """Progress as a line every few seconds, for logs."""

    _next_s: float = 0.0
    _arm: str = ""

    def show(self, arm: Arm, story: Story) -> None:
        """Print a line when one is due."""
        now_s = arm.book.now_s()
        if arm.name != self._arm:
            self._arm, self._next_s = arm.name, 0.0
        if now_s < self._next_s:
            return
        self._next_s = now_s + LINE_EVERY_S
        good = sum(task.ok for task in arm.book.tasks)
        share = " ".join(f"{name}:{n}" for name, n in recent_share(arm).items())
        print(
            f"  {arm.name:<8}{now_s:5.0f} s  tasks {good}/{len(arm.book.tasks)} ok"
            f"  attempts {share}  {happening(story, now_s)}",
            flush=True,
        )

    def say(self, text: str) -> None:
        """Print it."""
        print(text, flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print it in columns."""
        table = [line for cells in (head, *rows) for line in _folded(cells)]
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        for row in table:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            print("  " + "  ".join(cells).rstrip(), flush=True)


def _folded(cells: Sequence[str]) -> list[list[str]]:
    """One row as lines: a list in a long cell goes below itself, not beyond the screen's edge."""
    folded = [cell.split(", ") if len(cell) > CELL_MAX else [cell] for cell in cells]
    return [list(line) for line in zip_longest(*folded, fillvalue="")]


@dataclass(slots=True)
class Panel:
    """Progress as a panel that redraws itself."""

    live: Live
    _done: list[Arm] = field(default_factory=list[Arm])

    def show(self, arm: Arm, story: Story) -> None:
        """Redraw."""
        from rich.console import Group
        from rich.panel import Panel as Box
        from rich.table import Table
        from rich.text import Text

        if not self._done or self._done[-1] is not arm:
            self._done.append(arm)
        now_s = arm.book.now_s()
        figures = Table.grid(padding=(0, 3))
        for seen in self._done:
            good = sum(task.ok for task in seen.book.tasks)
            ended = len(seen.book.tasks)
            rate = f"{100 * good / ended:.1f} %" if ended else ""
            style = "bold" if seen is arm else ""
            figures.add_row(
                Text(seen.name, style),
                f"{good} of {ended} tasks succeeded",
                Text(rate, "green" if ended and good / ended > 0.98 else "yellow"),
                f"{len(seen.sends)} attempts",
            )
        share = Table.grid(padding=(0, 1))
        counts = recent_share(arm)
        most = max([*counts.values(), 1])
        ill = {f.endpoint for f in story.faults if f.active(now_s)}
        for name, n in counts.items():
            width = round(BAR_WIDTH * n / most)
            colour = "red" if name in ill else "blue"
            share.add_row(f"{name:<8}", Text("█" * width, colour), Text(f"{n}", "dim"))
        at = min(1.0, now_s / story.workload.duration_s)
        filled = round(40 * at)
        clock = Text.assemble(("━" * filled, "blue"), ("━" * (40 - filled), "dim"))
        title = (
            f"{arm.name}: {min(now_s, story.workload.duration_s):.0f} s, {happening(story, now_s)}"
        )
        self.live.update(
            Box(Group(clock, "", figures, "", share), title=title, title_align="left", width=78)
        )

    def say(self, text: str) -> None:
        """Print it above the panel."""
        self.live.console.print(text, highlight=False)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print it as a table."""
        from rich.table import Table

        self.live.update("", refresh=True)  # the panel has done its work
        table = Table(box=None, pad_edge=False)
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        self.live.console.print(table)


@contextmanager
def open_screen() -> Generator[Screen]:
    """A live panel if this is a terminal and rich is installed; otherwise lines."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    try:
        from rich.live import Live
    except ImportError:
        yield Lines()
        return
    with Live(refresh_per_second=5, transient=True) as live:
        yield Panel(live)
