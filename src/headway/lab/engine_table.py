"""The engine model against the figures it was calibrated for: a table, row by row.

    python -m headway.lab.engine_table [--write docs/reference/engines.md]

The published column is a single run per row of another implementation, over the whole of Azure's
2023 conversation trace; the run's length is not known. Ours is the mean over seeds, with the
lowest and the highest single run beside it. Poisson arrivals at the published rate.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from headway.lab.engine_model import EngineModel, EngineRequest
from headway.lab.engine_profile import PROFILES, EngineProfile
from headway.lab.traces import Lengths, load_vidur

SATURATION = {"8b-h100": 22.8, "8b-a100": 8.4, "70b-h100x4": 11.0, "70b-a100x4": 4.1}
"""Calls per second, published."""
COLUMNS = ("TTFT mean, ms", "TTFT p99, ms", "TPOT, ms")


class Row(NamedTuple):
    """One engine at one load, as published."""

    engine: str
    utilization: float
    figures: tuple[float, float, float]
    """As `COLUMNS`."""


def _rows(utilization: float, *figures: tuple[float, float, float]) -> list[Row]:
    return [Row(e, utilization, f) for e, f in zip(SATURATION, figures, strict=True)]


STEADY: tuple[Row, ...] = (
    *_rows(0.05, (45, 124, 7.8), (109, 346, 11.8), (90, 285, 16.3), (208, 735, 27)),
    *_rows(0.3, (53, 157, 9.5), (125, 452, 14.4), (110, 373, 19.5), (298, 1111, 34)),
    *_rows(0.5, (67, 214, 12.3), (162, 635, 18.8), (135, 513, 23.6), (329, 1178, 40)),
    *_rows(0.7, (76, 261, 15.5), (208, 732, 25.5), (179, 692, 29.2), (547, 1971, 62)),
    *_rows(0.8, (88, 282, 18.2), (257, 888, 32.7), (204, 771, 32.8), (537, 2150, 64)),
    *_rows(0.9, (124, 440, 26.1), (320, 1564, 40.8), (297, 1090, 45.9), (1167, 5109, 127)),
)
GROWING: tuple[Row, ...] = tuple(
    _rows(1.05, (1202, 4429, 42), (5672, 14154, 130), (535, 1826, 74), (1762, 4396, 187))
)
"""Beyond saturation the queue grows for as long as the run lasts: nothing to compare."""

SEEDS, CALLS = 10, 2500
WARMUP = 10
"""One call in so many, the first ones, is not counted."""


class Reproduced(NamedTuple):
    """What the model makes of a row; each as `COLUMNS`."""

    row: Row
    mean: tuple[float, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]

    def error(self, column: int) -> float:
        """Relative to the published figure."""
        return self.mean[column] / self.row.figures[column] - 1.0

    def spans(self, column: int) -> bool:
        """Whether the published run lies between our lowest and our highest."""
        return self.lowest[column] <= self.row.figures[column] <= self.highest[column]


def lengths() -> list[Lengths]:
    """A thousand calls drawn evenly from the whole trace."""
    file = resources.files("headway.lab").joinpath("excerpt", "azure2023_conv_even.csv")
    with resources.as_file(file) as path:
        return load_vidur(path)


def single_run(
    profile: EngineProfile, rate: float, drawn: Sequence[Lengths], seed: int, calls: int = CALLS
) -> tuple[float, float, float]:
    """One engine under Poisson arrivals; as `COLUMNS`."""
    rng, engine, now = random.Random(seed), EngineModel(profile), 0.0
    requests: list[EngineRequest] = []
    for _ in range(calls):
        now += rng.expovariate(rate)
        engine.advance(now)
        one = drawn[int(rng.random() * len(drawn))]
        requests.append(engine.submit(now, one.input_tokens, one.output_tokens))
    engine.advance(sys.float_info.max)
    settled = requests[calls // WARMUP :]
    firsts = sorted((r.first_token_at or 0.0) - r.submitted_at for r in settled)
    steps = [
        ((r.finished_at or 0.0) - (r.first_token_at or 0.0)) / (r.output_tokens - 1)
        for r in settled
        if r.output_tokens > 1
    ]
    return (
        1e3 * sum(firsts) / len(firsts),
        1e3 * firsts[int(0.99 * len(firsts))],
        1e3 * sum(steps) / len(steps),
    )


def reproduce(row: Row, *, seeds: int = SEEDS, calls: int = CALLS) -> Reproduced:
    """The row by the model."""
    rate, drawn = row.utilization * SATURATION[row.engine], lengths()
    runs = [single_run(PROFILES[row.engine], rate, drawn, seed, calls) for seed in range(seeds)]
    columns = list(zip(*runs, strict=True))
    return Reproduced(
        row,
        tuple(sum(c) / len(c) for c in columns),
        tuple(min(c) for c in columns),
        tuple(max(c) for c in columns),
    )


def as_line(made: Reproduced) -> str:
    """One line of the page: published, ours, error; and the range of single runs."""
    cells = [made.row.engine, f"{made.row.utilization:g}"]
    for i, published in enumerate(made.row.figures):
        digits = 1 if published < 50 else 0
        low, high = made.lowest[i], made.highest[i]
        cells.append(
            f"{published:g} / {made.mean[i]:.{digits}f} ({made.error(i):+.0%}; "
            f"{low:.{digits}f} to {high:.{digits}f})"
        )
    return f"| {' | '.join(cells)} |"


def as_table() -> str:
    """All rows, sorted by engine."""
    rows = sorted(STEADY, key=lambda r: list(SATURATION).index(r.engine))
    head = f"| engine | u | {' | '.join(COLUMNS)} |\n|---|---|---|---|---|\n"
    return head + "".join(f"{as_line(reproduce(row))}\n" for row in rows)


BEGIN, END = "<!-- made by headway.lab.engine_table -->\n", "<!-- end -->\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description="the engine model against its calibration")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="between the marks of this page")
    args = parser.parse_args(arguments)
    table = as_table()
    print(table)
    if args.write is not None:
        text = args.write.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2]
        args.write.write_text(before + BEGIN + table + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
