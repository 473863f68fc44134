"""What a comparison looks like: text for the terminal, one self-contained page for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from headway.lab.report_page import bullets, figure, page, paragraphs, row, section, table
from headway.lab.report_svg import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SERIES,
    SKY,
    VERMILION,
    Band,
    Bar,
    Mark,
    Series,
    bar_chart,
    line_chart,
    share_chart,
)
from headway.lab.sim.compare import Comparison, Interval, Verdict
from headway.lab.sim.figures import Figures, Lines
from headway.lab.sim.scenario import Scenario

COLORS: Mapping[str, str] = {
    "headway": BLUE,
    "gateway": GREEN,
    "gateway_marginal": SKY,
    "weighted_random": GREY,
    "plain": VERMILION,
    "litellm_shuffle": ORANGE,
    "litellm_latency": PINK,
}
LINES_MAX = 5
"""Contenders drawn in one chart; more cannot be told apart."""
SHARES_MAX = 8
"""Endpoints drawn in one chart of shares."""

Column = tuple[str, Callable[[Comparison, str], str]]


def number(value: float, digits: int = 3) -> str:
    """A figure for people."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def spread(value: Interval) -> str:
    """A mean with its interval."""
    if math.isnan(value.half) or value.half == 0:
        return number(value.mean)
    return f"{number(value.mean)} ± {number(value.half, 2)}"


def _figure(name: str, factor: float = 1.0) -> Callable[[Comparison, str], str]:
    def cell(comparison: Comparison, contender: str) -> str:
        value = comparison.of(contender, name)
        return spread(Interval(value.mean * factor, value.half * factor))

    return cell


COLUMNS: tuple[Column, ...] = (
    ("mean s", _figure("mean_s")),
    ("p99 s", _figure("p99_s")),
    ("first token s", _figure("ttft_s")),
    ("p99", _figure("ttft_p99_s")),
    ("failed %", _figure("failed", 100.0)),
    ("attempts", _figure("amplification")),
    ("tasks/s", _figure("tasks_per_s")),
    ("USD/1000 tasks", _figure("cost_per_task", 1000.0)),
    ("wasted %", _figure("wasted", 100.0)),
    ("prefix hits", _figure("hit_rate")),
)


def _columns(comparison: Comparison) -> list[Column]:
    """Columns that say something here."""
    kept: list[Column] = []
    for name, cell in COLUMNS:
        if {cell(comparison, c) for c in comparison.runs} - {"–"}:
            kept.append((name, cell))
    return kept


def rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of contenders."""
    columns = _columns(comparison)
    head = ["", *(name for name, _ in columns)]
    body = [[c, *(cell(comparison, c) for _, cell in columns)] for c in comparison.runs]
    return head, body


def as_text(comparison: Comparison) -> str:
    """A comparison in a terminal."""
    head, body = rows(comparison)
    widths = [max(len(r[i]) for r in [head, *body]) for i in range(len(head))]
    scenario = comparison.scenario
    out = [f"{scenario.name}: {scenario.about}"]
    for line in [head, *body]:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        out.append("  " + "  ".join(cells))
    for verdict in comparison.verdicts():
        mark = "holds" if verdict.holds else "FAILS"
        out.append(f"  {mark}: {verdict.check}: {spread(verdict.value)}")
    return "\n".join(out) + "\n"


# --------------------------------------------------------------------------- the page


def as_page(compared: Sequence[Comparison]) -> str:
    """All comparisons on one page."""
    verdicts = [(c, v) for c in compared for v in c.verdicts()]
    missed = [(c, v) for c, v in verdicts if not v.holds]
    seeds = len(compared[0].seeds) if compared else 0
    lead = (
        f"Scenarios: {len(compared)}, seeds of each: {seeds}. Of {len(verdicts)} expectations "
        f"{len(verdicts) - len(missed)} hold. Every contender sees the same arrivals; Headway is "
        "the core that ships, driven in virtual time. ± is a 95 % interval over seeds."
    )
    blocks = [_missed(missed), _losses(compared), _grid(compared)]
    blocks += [_scenario(c) for c in compared]
    return page("Headway in simulation", lead, *blocks, footer="headway simulate")


def _missed(missed: Sequence[tuple[Comparison, Verdict]]) -> str:
    if not missed:
        return section("Expectations that do not hold", paragraphs("None."))
    body = [[c.scenario.name, str(v.check), spread(v.value), v.check.why] for c, v in missed]
    return section(
        "Expectations that do not hold", table(["scenario", "expected", "found", ""], body)
    )


FAILED_ALIKE = 0.005
"""Part of the calls by which two clients may differ in failures and be compared in latency."""
SEEING_ONLY = frozenset({"gateway", "gateway_marginal", "prequal", "bound"})


def _losses(compared: Sequence[Comparison]) -> str:
    """Where another rule that a client can run is better, beyond what is noise."""
    body: list[list[str]] = []
    for comparison in compared:
        if "headway" not in comparison.runs:
            continue
        for name, slack in (("mean_s", 1.02), ("ttft_p99_s", 1.10)):
            rivals = [c for c in comparison.runs if _is_rival(comparison, c)]
            ratios = {c: comparison.ratio("headway", c, name) for c in rivals}
            worst = max(ratios, key=lambda c: ratios[c].mean, default=None)
            if worst is not None and ratios[worst].mean > slack:
                what = "mean" if name == "mean_s" else "p99 of first tokens"
                body.append([comparison.scenario.name, what, worst, spread(ratios[worst])])
    if not body:
        text = "In no scenario is another client's rule better by 2 % of the mean or 10 % of p99."
        return section("Where Headway loses", paragraphs(text))
    lead = "More than 2 % of the mean, or 10 % of the p99 of first tokens, behind another client."
    return section("Where Headway loses", table(["scenario", "of", "to", "ratio"], body), lead=lead)


def _is_rival(comparison: Comparison, contender: str) -> bool:
    """Another rule of a client, which answers about as many calls: those that it fails are not
    slow ones of its own."""
    if contender == "headway" or contender in SEEING_ONLY:
        return False
    failed = comparison.of(contender, "failed").mean
    return failed <= comparison.of("headway", "failed").mean + FAILED_ALIKE


def _grid(compared: Sequence[Comparison]) -> str:
    """Mean latency over that of the gateway, cell by cell."""
    cells = [c for c in compared if "grid" in c.scenario.tags and "gateway" in c.runs]
    if not cells:
        return ""
    names: list[str] = []
    for comparison in cells:
        names += [c for c in comparison.runs if c != "gateway" and c not in names]
    body = [
        [
            c.scenario.name,
            *(spread(c.ratio(n, "gateway", "mean_s")) if n in c.runs else "–" for n in names),
        ]
        for c in cells
    ]
    lead = (
        "The gateway sees every engine as it is and takes the smallest expected completion. "
        "1.00 is as good; below it, better for all than what is best for each."
    )
    return section("Mean latency over the gateway's", table(["", *names], body), lead=lead)


def _scenario(comparison: Comparison) -> str:
    scenario = comparison.scenario
    head, body = rows(comparison)
    blocks = [table(head, body)]
    verdicts = comparison.verdicts()
    if verdicts:
        blocks.append(
            bullets(
                *(
                    f"{'holds' if v.holds else 'FAILS'}: {v.check}: {spread(v.value)}"
                    + (f" ({v.check.why})" if v.check.why else "")
                    for v in verdicts
                )
            )
        )
    first = {c: runs[0] for c, runs in comparison.runs.items() if runs[0].lines is not None}
    if first:
        blocks += _charts(scenario, first)
    return section(f"{scenario.name}: {scenario.about}", *blocks)


def _bands(scenario: Scenario) -> tuple[list[Band], list[Mark]]:
    spans: dict[tuple[float, float, str], list[str]] = {}
    for fault in scenario.faults:
        end = min(fault.end_s, scenario.duration_s)
        spans.setdefault((fault.start_s, end, str(fault.kind.value)), []).append(fault.endpoint)
    bands = [
        Band(start, end, f"{kind}: {', '.join(ids) if len(ids) < 4 else 'all'}")
        for (start, end, kind), ids in list(spans.items())[:3]
    ]
    if scenario.freeze is not None:
        bands.append(Band(*scenario.freeze, "no policy"))
    marks = [Mark(p.at_s, f"{p.endpoint} x{p.factor:g}") for p in scenario.prices]
    if scenario.restart_at is not None:
        marks.append(Mark(scenario.restart_at, "restart"))
    return bands, marks


def _chosen(first: Mapping[str, Figures]) -> list[str]:
    """Who is drawn: us, the best that is possible, and a few others."""
    order = ["headway", "gateway", "plain", "weighted_random", "litellm_shuffle", "litellm_latency"]
    ranked = [c for c in order if c in first] + [c for c in first if c not in order]
    return ranked[:LINES_MAX]


def _charts(scenario: Scenario, first: Mapping[str, Figures]) -> list[str]:
    bands, marks = _bands(scenario)
    names = _chosen(first)
    spare = iter([c for c in SERIES if c not in {COLORS.get(n) for n in names}])
    colors = {n: COLORS.get(n) or next(spare) for n in names}

    def lines(of: Callable[[Lines], Sequence[float]], label: str, factor: float = 1.0) -> str:
        series: list[Series] = []
        for name in names:
            known = first[name].lines
            assert known is not None
            points = [
                (known.step_s * (i + 0.5), None if math.isnan(v) else factor * v)
                for i, v in enumerate(of(known))
            ]
            series.append(Series(name, colors[name], points, dashed=name.startswith("gateway")))
        return line_chart(series, label=label, bands=bands, marks=marks)

    blocks = [
        row(
            figure("Mean latency, s, by when the call began", lines(_latency, "mean latency")),
            figure("First token, s", lines(_ttft, "time to first token")),
        ),
        row(
            figure("Answered, %", lines(_answered, "answered", 100.0)),
            figure("Cost per 1000 calls, USD", lines(_cost, "cost per call", 1000.0)),
        ),
    ]
    ours = first.get("headway")
    if ours is not None and ours.lines is not None and len(ours.lines.sends) <= SHARES_MAX:
        blocks += _endpoint_charts(ours.lines, bands, marks)
    elif len(first) > 1:
        blocks.append(_bars(first))
    return blocks


def _latency(known: Lines) -> Sequence[float]:
    return known.latency_s


def _ttft(known: Lines) -> Sequence[float]:
    return known.ttft_s


def _answered(known: Lines) -> Sequence[float]:
    return known.answered


def _cost(known: Lines) -> Sequence[float]:
    return known.cost_per_call


def _endpoint_charts(known: Lines, bands: Sequence[Band], marks: Sequence[Mark]) -> list[str]:
    xs = [known.step_s * (i + 0.5) for i in range(len(known.answered))]

    def per(rows_: Mapping[str, Sequence[float]]) -> list[Series]:
        return [
            Series(name, color, list(zip(xs, values, strict=True)))
            for (name, values), color in zip(rows_.items(), SERIES, strict=False)
        ]

    shares = share_chart(xs, known.sends, label="share of attempts", bands=bands, marks=marks)
    inflight = line_chart(per(known.inflight), label="in flight", bands=bands, marks=marks)
    out = [
        row(
            figure("Headway: share of attempts", shares),
            figure("Headway: in flight at each endpoint", inflight),
        )
    ]
    opened = {e: [100.0 * v for v in row_] for e, row_ in known.open_breakers.items()}
    if any(any(values) for values in opened.values()):
        chart = line_chart(
            per(opened), label="open breakers", y_max=100.0, bands=bands, marks=marks
        )
        out.append(row(figure("Headway: processes whose breaker is not closed, %", chart)))
    return out


def _bars(first: Mapping[str, Figures]) -> str:
    bars = [
        Bar(name[:12], [(f.mean_s, COLORS.get(name, GREY))], f"{number(f.mean_s)} s")
        for name, f in first.items()
        if math.isfinite(f.mean_s)
    ]
    return figure("Mean latency", bar_chart(bars, label="mean latency by contender"))
