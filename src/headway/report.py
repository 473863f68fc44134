"""What tasks cost and how many of them succeeded, from the task log.

    cost per successful task = cost of ALL tasks (failed ones too) / tasks that succeeded

Undefined (None) when none succeeded. It is never an average of averages: totals are added up first.
Beside it stand what it can't say: the share of tasks without a verdict, and the share of the cost
that is estimated or unknown. Pure functions over lines; the `headway report` command prints them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeAlias, cast

from headway.cost import MONEY, ZERO

Line: TypeAlias = dict[str, Any]

NAMES_MAX = 10_000
"""Rows per table; a log with more names has ids for names, and the rest share one row."""
OTHER = "_other"


@dataclass(slots=True)
class Totals:
    """Figures of a set of tasks. Money is exact USD, times are seconds."""

    tasks: int = 0
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    cost: Decimal = ZERO
    estimated: Decimal = ZERO
    wasted: Decimal = ZERO
    incomplete: int = 0
    """Tasks part of whose cost is unknown."""
    unknown_calls: int = 0
    """Calls of unknown cost, as far as the log has the calls written out."""
    calls: int = 0
    attempts: int = 0
    durations_s: list[float] = field(default_factory=list[float], repr=False)

    @property
    def succeeded(self) -> int:
        """Tasks with the verdict "success"."""
        return self.outcomes.get("success", 0)

    @property
    def success_rate(self) -> float | None:
        """Succeeded / all tasks; None without tasks."""
        return self.succeeded / self.tasks if self.tasks else None

    @property
    def unknown_share(self) -> float | None:
        """Tasks that nobody gave a verdict on / all tasks."""
        return self.outcomes.get("unknown", 0) / self.tasks if self.tasks else None

    @property
    def estimated_share(self) -> float | None:
        """Estimated cost / known cost; None when nothing was spent."""
        return float(MONEY.divide(self.estimated, self.cost)) if self.cost else None

    @property
    def cost_per_success(self) -> Decimal | None:
        """USD per successful task; None when none succeeded, or when no cost is known."""
        cost = self.known_cost
        return None if cost is None else cost_per_successful_task(cost, self.succeeded)

    @property
    def known_cost(self) -> Decimal | None:
        """What is known of the cost; None where that is nothing: unknown is not zero."""
        return None if self.incomplete and not self.cost else self.cost

    @property
    def p50_s(self) -> float | None:
        """Median task time."""
        return percentile(self.durations_s, 0.50)

    @property
    def p95_s(self) -> float | None:
        """95th percentile of task time."""
        return percentile(self.durations_s, 0.95)

    @property
    def attempts_per_call(self) -> float | None:
        """Amplification."""
        return self.attempts / self.calls if self.calls else None


@dataclass(slots=True)
class EndpointTotals:
    """Figures of the attempts sent to one endpoint."""

    attempts: int = 0
    results: dict[str, int] = field(default_factory=dict[str, int])
    cost: Decimal = ZERO
    wasted: Decimal = ZERO
    unknown_cost: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    durations_s: list[float] = field(default_factory=list[float], repr=False)

    @property
    def known_cost(self) -> Decimal | None:
        """What is known of the cost; None where that is nothing."""
        return None if self.unknown_cost and not self.cost else self.cost

    @property
    def ok(self) -> int:
        """Attempts that were answered."""
        return self.results.get("ok", 0)

    @property
    def p50_s(self) -> float | None:
        """Median time of answered attempts."""
        return percentile(self.durations_s, 0.50)

    @property
    def p95_s(self) -> float | None:
        """95th percentile of it."""
        return percentile(self.durations_s, 0.95)


@dataclass(slots=True)
class Report:
    """Everything `headway report` shows."""

    total: Totals
    by_task: dict[str, Totals]
    """Outermost tasks by name, most expensive first."""
    by_endpoint: dict[str, EndpointTotals]
    """Most expensive first."""
    skipped: int = 0
    """Lines that were not task lines (cut off, or something else)."""


def cost_per_successful_task(cost: Decimal, succeeded: int) -> Decimal | None:
    """`cost` of all tasks / tasks that succeeded; None for 0 successes."""
    return MONEY.divide(cost, Decimal(succeeded)).normalize(MONEY) if succeeded else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value with at least `share` of all values at or below it (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


# --------------------------------------------------------------------------- reading


def read_lines(paths: Iterable[str | Path]) -> Iterator[Line | None]:
    """The lines of task logs, oldest file first as given; None for one that isn't a task line."""
    for path in paths:
        with Path(path).open("rb") as lines:
            for raw in lines:
                if raw.strip():
                    yield _parsed(raw)


def rotated(path: str | Path) -> list[Path]:
    """A task log with its rotated predecessors, oldest first."""
    path = Path(path)
    older = sorted(
        (p for p in path.parent.glob(path.name + ".*") if p.suffix[1:].isdigit()),
        key=lambda p: int(p.suffix[1:]),
        reverse=True,
    )
    return [*older, path] if path.exists() or not older else older


def _parsed(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    found: Line = line  # pyright: ignore[reportUnknownVariableType]
    named = isinstance(found.get("id"), str) and isinstance(found.get("name"), str)
    return found if named and isinstance(found.get("outcome"), str) else None


def summarize(lines: Iterable[Line | None]) -> Report:
    """Add up task lines. Late verdicts replace the outcome of their task, wherever they stand;
    parts done in other processes add their money and calls to the task, which is counted once."""
    tasks: list[Line] = []
    parents: dict[str, str] = {}
    unknown: dict[str, int] = {}
    late: dict[str, str] = {}
    skipped = 0
    report = Report(Totals(), {}, {})
    for line in lines:
        if line is None:
            skipped += 1
        elif line.get("late") is True:
            late[line["id"]] = line["outcome"]
        else:
            for call in _list(line.get("calls")):
                attempts = _list(call.get("attempts"))
                for attempt in attempts:
                    _add_attempt(report.by_endpoint, attempt)
                if any(attempt.get("cost_usd") is None for attempt in attempts):
                    unknown[line["id"]] = unknown.get(line["id"], 0) + 1
            if isinstance(line.get("parent"), str):
                parents[line["id"]] = line["parent"]
            if "parent" not in line:
                line = {k: v for k, v in line.items() if k != "calls"}
                tasks.append(line)
    report.skipped = skipped
    report.total.unknown_calls = sum(unknown.values())
    of_root = _of_roots(unknown, parents)
    for line in tasks:
        outcome: str = late.get(line["id"]) or line["outcome"]
        row = _row(report.by_task, line["name"])
        row.unknown_calls += of_root.pop(line["id"], 0)  # once, however many lines it has
        for totals in (report.total, row):
            _add_task(totals, line, outcome)
    report.by_task = dict(sorted(report.by_task.items(), key=lambda item: -item[1].cost))
    report.by_endpoint = dict(sorted(report.by_endpoint.items(), key=lambda item: -item[1].cost))
    return report


def _of_roots(counts: dict[str, int], parents: dict[str, str]) -> dict[str, int]:
    """What was counted for tasks, added up for the outermost ones that they are in."""
    found: dict[str, int] = {}
    for task, count in counts.items():
        seen = {task}
        while (parent := parents.get(task)) is not None and parent not in seen:
            seen.add(parent)  # a log may have been put together from anything
            task = parent
        found[task] = found.get(task, 0) + count
    return found


def _row(rows: dict[str, Totals], name: str) -> Totals:
    if name not in rows and len(rows) >= NAMES_MAX:
        name = OTHER
    return rows.setdefault(name, Totals())


def _add_task(totals: Totals, line: Line, outcome: str) -> None:
    cost = _amount(line.get("cost_usd"))
    totals.cost = MONEY.add(totals.cost, cost)
    by_source: object = line.get("cost_by_source_usd")
    if isinstance(by_source, dict):
        amounts = cast("dict[str, object]", by_source)
        totals.estimated = MONEY.add(totals.estimated, _amount(amounts.get("estimated")))
    totals.wasted = MONEY.add(totals.wasted, _amount(line.get("wasted_usd")))
    totals.incomplete += line.get("complete") is not True
    totals.calls += _count(line.get("n_calls"))
    totals.attempts += _count(line.get("n_attempts"))
    if line.get("part") is True:
        return
    totals.tasks += 1
    totals.outcomes[outcome] = totals.outcomes.get(outcome, 0) + 1
    duration = line.get("duration_s")
    if isinstance(duration, int | float):
        totals.durations_s.append(float(duration))


def _add_attempt(rows: dict[str, EndpointTotals], attempt: Line) -> None:
    endpoint = attempt.get("endpoint")
    if not isinstance(endpoint, str):
        return
    if endpoint not in rows and len(rows) >= NAMES_MAX:
        endpoint = OTHER
    row = rows.setdefault(endpoint, EndpointTotals())
    row.attempts += 1
    result = str(attempt.get("result"))
    row.results[result] = row.results.get(result, 0) + 1
    cost = _amount(attempt.get("cost_usd"))
    row.cost = MONEY.add(row.cost, cost)
    if attempt.get("wasted") is True:
        row.wasted = MONEY.add(row.wasted, cost)
    row.unknown_cost += attempt.get("cost_usd") is None
    row.input_tokens += _count(attempt.get("input_tokens"))
    row.cached_tokens += _count(attempt.get("cached_tokens"))
    row.output_tokens += _count(attempt.get("output_tokens"))
    duration = attempt.get("duration_s")
    if result == "ok" and isinstance(duration, int | float):
        row.durations_s.append(float(duration))


def _amount(value: object) -> Decimal:
    if isinstance(value, str):
        try:
            amount = Decimal(value)
        except InvalidOperation:
            return ZERO
        return amount if amount.is_finite() else ZERO
    return ZERO


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _list(value: object) -> list[Line]:
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]  # pyright: ignore[reportUnknownVariableType]


# --------------------------------------------------------------------------- showing


def tables(report: Report) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, column heads, rows of text): what any kind of table shows."""
    heads = ["task", "tasks", "success", "no verdict", "p50", "p95", "cost", "wasted",
             "estimated", "per success"]  # fmt: skip
    rows = [_task_row(name, totals) for name, totals in report.by_task.items()]
    rows.append(_task_row("all", report.total))
    endpoint_heads = ["endpoint", "attempts", "answered", "p50", "p95", "cost", "wasted",
                      "unknown cost", "tokens in", "cached", "out"]  # fmt: skip
    endpoint_rows = [
        [
            name, str(e.attempts), _percent(e.ok / e.attempts if e.attempts else None),
            _time(e.p50_s), _time(e.p95_s), _money(e.known_cost, part=bool(e.unknown_cost)),
            _money(e.wasted), str(e.unknown_cost),
            str(e.input_tokens), str(e.cached_tokens), str(e.output_tokens),
        ]
        for name, e in report.by_endpoint.items()
    ]  # fmt: skip
    return [("Tasks", heads, rows), ("Endpoints", endpoint_heads, endpoint_rows)]


def as_text(report: Report) -> str:
    """Plain text tables."""
    parts: list[str] = []
    for title, heads, rows in tables(report):
        widths = [max(len(r[i]) for r in (heads, *rows)) for i in range(len(heads))]
        parts.append(title)
        for row in (heads, *rows):
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            parts.append("  ".join(cells).rstrip())
        parts.append("")
    total = report.total
    if total.incomplete or total.unknown_calls:
        calls = f"{_counted(total.unknown_calls, 'call')} at unknown cost, " * bool(
            total.unknown_calls
        )
        tasks = _counted(total.incomplete, "task")
        parts.append(f"{calls}{tasks} of cost not wholly known: sums with a + are what is known.")
    if report.skipped:
        parts.append(f"skipped: {_counted(report.skipped, 'line')}, of no task.")
    return "\n".join(parts).rstrip() + "\n"


def _task_row(name: str, t: Totals) -> list[str]:
    return [
        name, str(t.tasks), _percent(t.success_rate), _percent(t.unknown_share), _time(t.p50_s),
        _time(t.p95_s), _money(t.known_cost, part=bool(t.incomplete)), _money(t.wasted),
        _percent(t.estimated_share), _per_success(t),
    ]  # fmt: skip


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _money(amount: Decimal | None, *, part: bool = False) -> str:
    """An amount; `part`: what is known of it."""
    if amount is None:
        return "unknown"
    return f"${amount:.6f}{' +' if part else ''}"


def _per_success(t: Totals) -> str:
    if not t.succeeded:
        return "-"
    return _money(t.cost_per_success, part=bool(t.incomplete))


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
