"""The engine model against the published figures that it was calibrated for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headway.lab import engine_table
from headway.lab.engine_profile import PROFILES
from headway.lab.engine_table import COLUMNS, SATURATION, STEADY, Row, as_line, reproduce
from headway.lab.sim.sites import saturation
from headway.lab.sim.workload import Turn

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "engines.md"
TTFT, P99, TPOT = range(3)

NOT_REPRODUCED = {
    ("8b-h100", 0.9),
    ("70b-h100x4", 0.9),
    ("70b-a100x4", 0.5),
    ("70b-a100x4", 0.8),
    ("70b-a100x4", 0.9),
}
TAIL_NOT_REPRODUCED = ("8b-a100", 0.9)
"""The page says why."""


def name(row: Row) -> str:
    return f"{row.engine}-{row.utilization:g}"


@pytest.mark.parametrize(
    "row",
    [r for r in STEADY if r.engine.startswith("8b") and r.utilization in (0.5, 0.7)],
    ids=name,
)
def test_typical_rows_are_reproduced(row: Row) -> None:
    made = reproduce(row, seeds=3)
    print(as_line(made))
    assert abs(made.error(TTFT)) <= 0.10
    assert abs(made.error(TPOT)) <= 0.10
    assert abs(made.error(P99)) <= 0.15  # of three runs


@pytest.mark.slow
@pytest.mark.parametrize("row", STEADY, ids=name)
def test_every_row_is_reproduced_within_a_tenth_or_named(row: Row) -> None:
    made = reproduce(row)
    print("\n" + as_line(made))
    within = [abs(made.error(c)) <= 0.10 for c in range(len(COLUMNS))]
    # A tail is one in a hundred calls of a single run: its range is the measure, too.
    assert (within[TTFT] and within[TPOT]) == ((row.engine, row.utilization) not in NOT_REPRODUCED)
    if (row.engine, row.utilization) not in {*NOT_REPRODUCED, TAIL_NOT_REPRODUCED}:
        assert within[P99] or made.spans(P99)


@pytest.mark.parametrize("engine", SATURATION)
def test_saturation_is_within_a_tenth_of_the_published(engine: str) -> None:
    drawn = [Turn(*one) for one in engine_table.lengths() * 2]
    random.Random(0).shuffle(drawn)
    measured = saturation(PROFILES[engine], drawn)
    print(f"{engine}: {SATURATION[engine]} / {measured:.1f}")
    assert measured == pytest.approx(SATURATION[engine], rel=0.10)


@pytest.mark.slow
def test_the_page_shows_what_the_model_makes(tmp_path: Path) -> None:
    copy = tmp_path / PAGE.name
    copy.write_text(PAGE.read_text("utf-8"), encoding="utf-8")
    engine_table.main(["--write", str(copy)])
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8")
