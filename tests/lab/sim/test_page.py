"""The page: what fails and where we lose stands first, and is not what a rival's failures hide."""

from __future__ import annotations

import math

import pytest

from headway.lab.sim import page
from headway.lab.sim.compare import Comparison
from headway.lab.sim.figures import Figures
from headway.lab.sim.scenario import Check, Scenario
from headway.lab.sim.sites import sites


def compared(**of: dict[str, float]) -> Comparison:
    scenario = Scenario(
        name="some-cell",
        about="two engines",
        fleet=sites(2),
        checks=(
            Check("mean_s", over="gateway", at_most=1.05, why="the reason"),
            Check("failed", at_most=0.5),
        ),
        tags=frozenset({"grid"}),
    )
    runs = {
        name: tuple(
            Figures(contender=name, seed=seed, calls=100, **{"ttft_p99_s": 1.0, **figures})
            for seed in (1, 2)
        )
        for name, figures in of.items()
    }
    return Comparison(scenario, (1, 2), runs)


BETTER = {"mean_s": 1.0}
CASE = compared(headway={"mean_s": 1.1}, round_robin=BETTER, gateway=BETTER)


def between(text: str, start: str, end: str) -> str:
    return text[text.index(start) :].partition(end)[0]


def test_the_page_begins_with_what_does_not_hold() -> None:
    text = page.as_page([CASE])
    missed = between(text, "Expectations that do not hold", "Where Headway loses")
    assert "mean_s of headway / gateway &lt;= 1.05" in missed
    assert "1.1" in missed
    assert "the reason" in missed
    assert "failed of headway" not in missed
    assert "Of 2 expectations 1 hold" in text


def test_it_says_to_whom_we_lose_and_gateways_are_nobody() -> None:
    lost = between(page.as_page([CASE]), "Where Headway loses", "Mean latency over")
    assert "round_robin" in lost
    assert "gateway" not in lost


def test_a_rival_that_fails_its_slow_calls_has_not_won() -> None:
    case = compared(headway={"mean_s": 1.1}, plain={"mean_s": 1.0, "failed": 0.2})
    lost = between(page.as_page([case]), "Where Headway loses", "some-cell")
    assert "In no scenario" in lost


def test_the_grid_holds_ratios_to_the_gateway() -> None:
    grid = between(page.as_page([CASE]), "Mean latency over", "some-cell: two engines")
    assert "<td>1.1</td><td>1</td>" in grid


def test_text_for_the_terminal_has_a_row_per_contender_and_a_verdict_per_check() -> None:
    text = page.as_text(CASE)
    assert [line.split()[0] for line in text.splitlines()[2:5]] == [
        "headway",
        "round_robin",
        "gateway",
    ]
    assert "FAILS: mean_s of headway / gateway <= 1.05: 1.1" in text
    assert "holds: failed of headway <= 0.5: 0" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, "–"), (math.inf, "never"), (1234.5, "1,234"), (0.12345, "0.123")],
)
def test_figures_for_people(value: float, text: str) -> None:
    assert page.number(value) == text
