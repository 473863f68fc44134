"""From what a run's agents and endpoints saw to the figures of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from headway.lab.agents import Book, TaskResult
from headway.lab.demo_story import cost_of
from headway.lab.endpoint import LedgerRow


@dataclass(slots=True, kw_only=True)
class Arm:
    """One client's run."""

    name: str
    book: Book
    ledger: list[LedgerRow] = field(default_factory=list[LedgerRow])
    sends: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """(seconds since start, endpoint) of every request the client sent, refused ones included."""
    own_cost: Decimal | None = None
    """What the client's own books say it spent; None: it keeps none."""
    own_wasted: Decimal | None = None
    policy_version: int | None = None
    """In force at the end."""
    policy_seen_s: float | None = None
    """When version 2 was first in force."""
    elapsed_s: float = 0.0
    lag_s: float = 0.0
    """How late the client's event loop was, p99: above 0.1 the machine was too busy."""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the tables show. Costs in USD, times in seconds."""

    tasks: int
    succeeded: int
    errors: tuple[tuple[str, int], ...]
    task_p50: float
    task_p95: float
    ttft_p50: float
    ttft_p95: float
    calls: int
    sends: int
    cost: Decimal
    waste: Decimal
    """Billed for failed tasks, and for requests that brought nothing in successful ones."""
    cached_share: float
    """Part of the prompt tokens that came from a prefix cache."""

    @property
    def success_rate(self) -> float:
        """Tasks succeeded of tasks begun."""
        return self.succeeded / self.tasks if self.tasks else 0.0

    @property
    def waste_share(self) -> float:
        """Part of the cost that is waste."""
        return float(self.waste / self.cost) if self.cost else 0.0

    @property
    def attempts_per_call(self) -> float:
        """Requests sent per call."""
        return self.sends / self.calls if self.calls else 0.0

    @property
    def cost_per_success(self) -> Decimal | None:
        """Cost of all tasks over tasks succeeded."""
        return self.cost / self.succeeded if self.succeeded else None


def percentile(values: Iterable[float], q: float) -> float:
    """Nearest-rank percentile; NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _time_of(task: TaskResult) -> float:
    # A failed task never gets done. Leaving it out would flatter whoever fails the long ones.
    return task.duration_s if task.ok else float("inf")


def figures_of(arm: Arm) -> Figures:
    """Everything the tables show."""
    tasks = arm.book.tasks
    good = [t for t in tasks if t.ok]
    good_ids = {t.id for t in good}
    calls = [c for t in tasks for c in t.calls]
    ttfts = [c.ttft_s for c in calls if c.ttft_s is not None]
    cost = sum((cost_of(row) for row in arm.ledger), Decimal(0))
    useful = sum(
        (cost_of(row) for row in arm.ledger if row.outcome == "ok" and row.user in good_ids),
        Decimal(0),
    )
    prompt = sum(row.prompt_tokens for row in arm.ledger)
    return Figures(
        tasks=len(tasks),
        succeeded=len(good),
        errors=tuple(Counter(t.error for t in tasks if t.error is not None).most_common()),
        task_p50=percentile(map(_time_of, tasks), 0.50),
        task_p95=percentile(map(_time_of, tasks), 0.95),
        ttft_p50=percentile(ttfts, 0.50),
        ttft_p95=percentile(ttfts, 0.95),
        calls=len(calls),
        sends=len(arm.sends),
        cost=cost,
        waste=cost - useful,
        cached_share=sum(row.cached_tokens for row in arm.ledger) / prompt if prompt else 0.0,
    )


# --------------------------------------------------------------------------- over time


def grid(duration_s: float, step_s: float) -> list[float]:
    """Instants at which windows end."""
    return [step_s * i for i in range(1, round(duration_s / step_s) + 1)]


def success_over_time(
    tasks: Sequence[TaskResult], at: Sequence[float], window_s: float
) -> list[tuple[float, float | None]]:
    """Per cent of the tasks begun in the window before each instant that succeeded."""
    points: list[tuple[float, float | None]] = []
    for t in at:
        recent = [task.ok for task in tasks if t - window_s <= task.started_s < t]
        points.append((t, 100 * sum(recent) / len(recent) if len(recent) >= 5 else None))
    return points


def ttft_over_time(
    tasks: Sequence[TaskResult], at: Sequence[float], window_s: float, q: float
) -> list[tuple[float, float | None]]:
    """Percentile of the TTFT of calls begun in the window; a call without one counts its
    whole duration, or the worst would be left out."""
    calls = [c for task in tasks for c in task.calls]
    points: list[tuple[float, float | None]] = []
    for t in at:
        recent = [
            c.ttft_s if c.ttft_s is not None else c.total_s
            for c in calls
            if t - window_s <= c.started_s < t
        ]
        points.append((t, percentile(recent, q) if len(recent) >= 5 else None))
    return points


def sends_over_time(
    sends: Sequence[tuple[float, str]], names: Sequence[str], at: Sequence[float], window_s: float
) -> dict[str, list[float]]:
    """Requests per endpoint in the window before each instant."""
    counts = {name: [0.0] * len(at) for name in names}
    for sent_s, name in sends:
        for i, t in enumerate(at):
            if t - window_s <= sent_s < t:
                counts[name][i] += 1
    return counts
