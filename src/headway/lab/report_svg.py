"""Charts as SVG text: lines, stacked shares, bars, with fault bands and event marks drawn in.

Colours are Okabe and Ito's, told apart with any colour vision, and areas carry their names so that
grey print reads too. Every function is pure; text is escaped here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#7A828C"
SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW, GREY)
INK, FAINT, RULE = "#1c2430", "#5b6572", "#d9dee5"

WIDTH, LEFT, RIGHT, BOTTOM = 560, 52, 14, 34
BAND_ROW = 15
"""Height of one row of band labels above a plot."""


class Band(NamedTuple):
    """A stretch of time in which something was so: a fault."""

    start: float
    end: float
    label: str


class Mark(NamedTuple):
    """An instant at which something happened: a new policy."""

    at: float
    label: str


class Series(NamedTuple):
    """One line. None: nothing to show there, the line breaks."""

    name: str
    color: str
    points: Sequence[tuple[float, float | None]]
    dashed: bool = False


class Bar(NamedTuple):
    """One horizontal bar, made of parts."""

    label: str
    parts: Sequence[tuple[float, str]]
    """(value, colour)"""
    note: str
    """What stands at its end."""


# --------------------------------------------------------------------------- scales


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that cover [low, high], about `count` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        high = low + 1.0
    raw = (high - low) / max(count - 1, 1)
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.floor(low / step)
    ticks: list[float] = []
    for i in range(100):
        tick = (first + i) * step
        ticks.append(round(tick, 10))
        if tick >= high - 1e-9:
            break
    return ticks


def short(value: float) -> str:
    """A number as a person writes it on an axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class _Plot:
    """Maps values to pixels and draws what every chart shares."""

    def __init__(
        self,
        x: tuple[float, float],
        y_ticks: Sequence[float],
        *,
        height: int,
        bands: Sequence[Band],
        marks: Sequence[Mark],
    ) -> None:
        self.rows = _band_rows(bands, marks, x[1] - x[0])
        self.top = 8 + BAND_ROW * (max(self.rows, default=-1) + 1)
        self.height = height + self.top + BOTTOM
        self.plot_height = height
        self.x0, self.x1 = x
        self.y0, self.y1 = y_ticks[0], y_ticks[-1]
        self.y_ticks = y_ticks
        self.bands, self.marks = bands, marks

    def px(self, x: float) -> float:
        x = min(max(x, self.x0), self.x1)
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x0) / (self.x1 - self.x0)

    def py(self, y: float) -> float:
        y = min(max(y, self.y0), self.y1)
        return self.top + self.plot_height * (1 - (y - self.y0) / (self.y1 - self.y0))

    def under(self, x_label: str, y_format: str) -> list[str]:
        bottom = self.top + self.plot_height
        out: list[str] = []
        for band, row in zip(self.bands, self.rows, strict=False):
            x, width = self.px(band.start), self.px(band.end) - self.px(band.start)
            top = 4 + BAND_ROW * row
            out.append(
                f'<rect class="band" x="{x:.1f}" y="{top}" width="{width:.1f}" '
                f'height="{bottom - top:.1f}"/>'
                f'<text class="bl" x="{x + 3:.1f}" y="{top + 11}">{escape(band.label)}</text>'
            )
        for tick in self.y_ticks:
            y = self.py(tick)
            out.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 3.5:.1f}">'
                f"{escape(y_format.format(short(tick)))}</text>"
            )
        out.extend(
            f'<text class="tick" text-anchor="middle" x="{self.px(tick):.1f}" '
            f'y="{bottom + 14:.1f}">{short(tick)}</text>'
            for tick in nice_ticks(self.x0, self.x1, 7)
            if self.x0 <= tick <= self.x1
        )
        out.append(
            f'<text class="tick" text-anchor="end" x="{WIDTH - RIGHT}" y="{bottom + 28:.1f}">'
            f"{escape(x_label)}</text>"
        )
        return out

    def over(self) -> list[str]:
        bottom = self.top + self.plot_height
        line = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom:.1f}" y2="{bottom:.1f}"'
        out = [f'<line class="axis" {line}/>']
        for mark, row in zip(self.marks, self.rows[len(self.bands) :], strict=True):
            x, y = self.px(mark.at), 4 + BAND_ROW * row
            out.append(
                f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{bottom:.1f}"/>'
                f'<text class="bl" x="{x + 4:.1f}" y="{y + 11}">{escape(mark.label)}</text>'
            )
        return out

    def svg(self, body: Iterable[str], label: str) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'
        )


def _band_rows(bands: Sequence[Band], marks: Sequence[Mark], span: float) -> list[int]:
    """A label row for each band, then each mark, such that no two labels overlap."""
    ends: list[float] = []
    rows: list[int] = []
    spans = [(b.start, b.end, b.label) for b in bands] + [(m.at, m.at, m.label) for m in marks]
    for start, end, label in spans:
        # A label is about 6 units per character; the plot is 494 wide.
        needed = max(end, start + span * (6 * len(label) + 12) / 494)
        row = next((i for i, taken in enumerate(ends) if taken <= start), len(ends))
        if row == len(ends):
            ends.append(needed)
        else:
            ends[row] = needed
        rows.append(row)
    return rows


# --------------------------------------------------------------------------- charts


def line_chart(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str = "seconds",
    y_format: str = "{}",
    y_max: float | None = None,
    height: int = 170,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """Lines over a common x, with fault bands and event marks drawn in."""
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points if y is not None]
    high = y_max if y_max is not None else max(ys, default=1.0)
    x_range = (min(xs, default=0.0), max(xs, default=1.0))
    if x_range[0] == x_range[1]:
        x_range = (x_range[0], x_range[0] + 1.0)
    plot = _Plot(x_range, nice_ticks(0.0, high), height=height, bands=bands, marks=marks)
    body = plot.under(x_label, y_format)
    for one in series:
        dash = ' stroke-dasharray="5 3"' if one.dashed else ""
        for run in _runs(one.points):
            path = " ".join(f"{plot.px(x):.1f},{plot.py(y):.1f}" for x, y in run)
            body.append(
                f'<polyline class="line" stroke="{one.color}"{dash} points="{path}">'
                f"<title>{escape(one.name)}</title></polyline>"
            )
    return plot.svg(body + plot.over(), label) + legend([(s.name, s.color) for s in series])


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None and math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def share_chart(
    xs: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    *,
    label: str,
    x_label: str = "seconds",
    height: int = 150,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """Each name's share of the total over time, stacked to 100 %, named in its area."""
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    x_range = (min(xs, default=0.0), max(max(xs, default=1.0), min(xs, default=0.0) + 1e-9))
    plot = _Plot(x_range, [0, 25, 50, 75, 100], height=height, bands=bands, marks=marks)
    body = plot.under(x_label, "{}%")
    below = [0.0] * len(xs)
    colors = dict(zip(counts, SERIES, strict=False))
    for name, values in counts.items():
        share = [100 * v / t if t else 0.0 for v, t in zip(values, totals, strict=True)]
        above = [b + s for b, s in zip(below, share, strict=True)]
        upper = [f"{plot.px(x):.1f},{plot.py(y):.1f}" for x, y in zip(xs, above, strict=True)]
        lower = [f"{plot.px(x):.1f},{plot.py(y):.1f}" for x, y in zip(xs, below, strict=True)]
        body.append(
            f'<polygon class="area" fill="{colors[name]}" '
            f'points="{" ".join(upper + lower[::-1])}"><title>{escape(name)}</title></polygon>'
        )
        if share:
            widest = max(range(len(xs)), key=lambda i: (share[i], -abs(i - len(xs) // 3)))
            if share[widest] >= 12:
                y = plot.py((above[widest] + below[widest]) / 2) + 4
                half = 3.6 * len(name)  # of the label's width
                x = min(max(plot.px(xs[widest]), LEFT + half), WIDTH - RIGHT - half)
                body.append(
                    f'<text class="in" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">'
                    f"{escape(name)}</text>"
                )
        below = above
    return plot.svg(body + plot.over(), label)


def bar_chart(bars: Sequence[Bar], *, label: str) -> str:
    """Horizontal bars on one scale, each of coloured parts, with a note at the end."""
    name_width = 74
    high = max((sum(v for v, _ in bar.parts) for bar in bars), default=0.0) or 1.0
    room = WIDTH - name_width - 170
    body: list[str] = []
    for i, bar in enumerate(bars):
        y, x = 6 + 30 * i, float(name_width)
        body.append(
            f'<text class="name" text-anchor="end" x="{name_width - 8}" y="{y + 15}">'
            f"{escape(bar.label)}</text>"
        )
        for value, color in bar.parts:
            width = room * max(value, 0.0) / high
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" fill="{color}"/>'
            )
            x += width
        body.append(f'<text class="name" x="{x + 8:.1f}" y="{y + 15}">{escape(bar.note)}</text>')
    height = 12 + 30 * len(bars)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(body)}</svg>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names beside their colours."""
    items = "".join(
        f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in entries
    )
    return f'<p class="legend">{items}</p>'
