"""`headway report`: what the tasks of a task log did and cost."""

from __future__ import annotations

import argparse
import json
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import NO, OK
from headway.cost import MONEY, PICO_USD, plain

if TYPE_CHECKING:
    from headway.report import EndpointTotals, Report, Totals

VARIABLE = "HEADWAY_TASK_LOG"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help=f"task logs; a log's rotated predecessors are read, too (default: ${VARIABLE})",
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    from headway.report import as_text, read_lines, rotated, summarize

    files: list[str] = args.files or [file for file in (os.environ.get(VARIABLE),) if file]
    if not files:
        print(f"headway report: name a task log, or set {VARIABLE}", file=sys.stderr)
        return NO
    paths = [path for file in files for path in rotated(file)]
    missing = [str(path) for path in map(Path, files) if not path.is_file()]
    if missing:
        print(f"headway report: there is no {', '.join(missing)}", file=sys.stderr)
        return NO
    report = summarize(read_lines(paths))
    print(json.dumps(_as_tree(report), indent=2) if args.json else as_text(report), end="\n")
    return OK


def _as_tree(report: Report) -> dict[str, object]:
    return {
        "total": _totals(report.total),
        "by_task": {name: _totals(totals) for name, totals in report.by_task.items()},
        "by_endpoint": {name: _endpoint(totals) for name, totals in report.by_endpoint.items()},
        "skipped_lines": report.skipped,
    }


def _totals(totals: Totals) -> dict[str, object]:
    return {
        "tasks": totals.tasks,
        "outcomes": totals.outcomes,
        "cost_usd": _usd(totals.known_cost),
        "wasted_usd": _usd(totals.wasted),
        "estimated_usd": _usd(totals.estimated),
        "tasks_of_unknown_cost": totals.incomplete,
        "calls_of_unknown_cost": totals.unknown_calls,
        "cost_per_successful_task_usd": _usd(totals.cost_per_success),
        "success_rate": totals.success_rate,
        "no_verdict_share": totals.unknown_share,
        "calls": totals.calls,
        "attempts": totals.attempts,
        "attempts_per_call": totals.attempts_per_call,
        "p50_s": totals.p50_s,
        "p95_s": totals.p95_s,
    }


def _endpoint(totals: EndpointTotals) -> dict[str, object]:
    return {
        "attempts": totals.attempts,
        "results": totals.results,
        "cost_usd": _usd(totals.known_cost),
        "wasted_usd": _usd(totals.wasted),
        "attempts_of_unknown_cost": totals.unknown_cost,
        "input_tokens": totals.input_tokens,
        "cached_tokens": totals.cached_tokens,
        "output_tokens": totals.output_tokens,
        "p50_s": totals.p50_s,
        "p95_s": totals.p95_s,
    }


def _usd(amount: Decimal | None) -> str | None:
    # Text: a float would lose what the log kept. A cost per success is a division, which need not
    # end: no amount is finer than those that calls are charged.
    return None if amount is None else plain(amount.quantize(PICO_USD, context=MONEY))
