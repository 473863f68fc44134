"""Report pages: well-formed, self-contained, readable by scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from headway.lab.agents import Book, CallResult, TaskResult
from headway.lab.demo_figures import Arm, figures_of, percentile
from headway.lab.demo_page import build_page, money, percent, seconds
from headway.lab.demo_screen import Lines
from headway.lab.demo_story import make_story
from headway.lab.endpoint import LedgerRow
from headway.lab.report_page import page, section, table
from headway.lab.report_svg import (
    BLUE,
    Band,
    Bar,
    Mark,
    Series,
    bar_chart,
    line_chart,
    nice_ticks,
    share_chart,
)

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)


def svgs(html: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def check(html: str) -> None:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not parser.seen & {"script", "link", "img", "iframe"}
    assert not re.search(r"(src|href)=|url\(|@import", html)
    for svg in svgs(html):
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for element in svg.iter():
            for name, bound in (("x", width), ("y", height), ("x1", width), ("y2", height)):
                assert -1 <= float(element.attrib.get(name, 0)) <= bound + 1
        assert "nan" not in ET.tostring(svg, encoding="unicode").lower()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 100, [0, 25, 50, 75, 100]), (0, 7, [0, 2, 4, 6, 8]), (0, 0, [0, 0.25, 0.5, 0.75, 1.0])],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


def test_a_line_breaks_where_there_is_nothing_and_bands_are_drawn_in() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 4.0), (4.0, float("nan")), (5.0, 1.0)]
    html = line_chart(
        [Series("a & b", BLUE, points)],
        label="it's <fine>",
        bands=[Band(1, 3, "a is slow"), Band(1.5, 4, "b is dead")],
        marks=[Mark(2, "v2")],
    )
    check(html)
    (svg,) = svgs(html)
    assert len(svg.findall(f"{SVG}polyline")) == 3
    bands = [e for e in svg.iter() if e.attrib.get("class") == "band"]
    assert len(bands) == 2
    labels = {e.text: float(e.attrib["y"]) for e in svg.iter() if e.attrib.get("class") == "bl"}
    assert len(set(labels.values())) == 3  # overlapping labels stand in rows of their own


def test_shares_fill_the_plot_and_carry_their_names() -> None:
    html = share_chart([1, 2, 3], {"x": [1, 1, 0], "y": [3, 3, 0]}, label="share")
    check(html)
    (svg,) = svgs(html)
    assert len(svg.findall(f"{SVG}polygon")) == 2
    assert {"x", "y"} <= {e.text for e in svg.findall(f"{SVG}text")}


def test_empty_charts_are_still_charts() -> None:
    check(line_chart([], label="none"))
    check(share_chart([], {"x": []}, label="none"))
    check(bar_chart([], label="none"))
    check(bar_chart([Bar("a", [(0.0, BLUE)], "0")], label="zero"))


def test_text_is_escaped_everywhere() -> None:
    bad = '<b onclick="x">&'
    html = page(bad, bad, section(bad, table([bad], [[bad, bad]])), footer=bad)
    check(html)
    assert "<b " not in html


def demo_arm(name: str, *, good: int, bad: int) -> Arm:
    arm = Arm(name=name, book=Book(zero=0.0))
    for i in range(good + bad):
        failed = i >= good
        call = CallResult(
            started_s=i / 10,
            ttft_s=None if failed else 0.1,
            total_s=0.5,
            error="APIConnectionError" if failed else None,
        )
        arm.book.tasks.append(
            TaskResult(
                id=str(i), started_s=i / 10, ended_s=i / 10 + 1, error=call.error, calls=[call]
            )
        )
        arm.sends.append((i / 10, "alpha"))
        arm.ledger.append(LedgerRow("alpha", i / 10, "ok", 1000, 500, 100, 0.1, 0.5, str(i)))
    return arm


def test_figures_count_failures_as_never_done_and_their_cost_as_waste() -> None:
    figures = figures_of(demo_arm("plain", good=90, bad=10))
    assert (figures.tasks, figures.succeeded, figures.success_rate) == (100, 90, 0.9)
    assert figures.task_p50 == 1.0
    assert seconds(figures.task_p95) == "never"
    # 500 x 0.20 + 500 x 0.02 + 100 x 0.80 USD per million tokens
    assert money(figures.cost, per=1000) == "$19.000"
    assert figures.waste_share == pytest.approx(0.1)
    assert money(figures.cost_per_success, per=1_000_000) == "$211.111"
    assert percentile([], 0.5) != percentile([], 0.5)
    assert percent(0.99999) == "99.9 %"


@pytest.mark.parametrize("good", [0, 100])
def test_the_demo_page_is_well_formed_whatever_happened(good: int) -> None:
    story = make_story(duration_s=32, seed=1)
    html = build_page(
        story, demo_arm("plain", good=good, bad=5), demo_arm("headway", good=100, bad=0)
    )
    check(html)
    assert "bravo is dead" in html
    assert "policy v2" in html
    assert len(svgs(html)) == 7
    assert 'class="notice"' not in html


def test_the_demo_page_says_first_what_the_terminal_says_last() -> None:
    story = make_story(duration_s=32, seed=1)
    arms = demo_arm("plain", good=90, bad=10), demo_arm("headway", good=100, bad=0)
    html = build_page(story, *arms, ["This machine was busy", "NOT KEPT: <all>"])
    check(html)
    assert html.index("This machine was busy") < html.index("NOT KEPT: &lt;all&gt;")
    assert html.index("NOT KEPT") < html.index("Tasks that succeeded")


def test_a_long_list_in_the_terminals_table_goes_below_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [["Failures", "48 APIConnectionError, 42 deadline, 11 RateLimitError", "none"]]
    Lines().table(["", "plain", "headway"], rows)
    assert capsys.readouterr().out.splitlines() == [
        "                            plain  headway",
        "  Failures  48 APIConnectionError     none",
        "                      42 deadline",
        "                11 RateLimitError",
    ]
