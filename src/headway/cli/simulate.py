"""`headway simulate`: fleets in virtual time, with the core that ships."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headway.cli import MISSING_EXTRA, NO, OK, USAGE

REPORT = Path("out/headway-simulate.html")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help="by name, or `all` (see --list)"
    )
    parser.add_argument("--list", action="store_true", help="what there is, and stop")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument(
        "--contenders", default="", metavar="A,B", help="instead of the scenario's own"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="processes (default: one per core; 1: this one)"
    )
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="on a Ray cluster (`auto`, ray://...; default: RAY_ADDRESS, or one of its own)",
    )
    parser.add_argument(
        "--trace",
        default="",
        metavar="KIND:FILE",
        help="a public trace as the workload: azure, burstgpt, mooncake, sharegpt, llmservingsim, "
        "vidur, weka, servegen, tracelab",
    )
    parser.add_argument("--load", type=float, help="of the fleet's capacity; 0.7 is 70 %%")
    parser.add_argument("--processes", type=int, help="client processes")
    parser.add_argument("--seconds", type=float, help="of arrivals, in virtual time")
    parser.add_argument(
        "--report", type=Path, default=REPORT, metavar="FILE", help=f"page (default: {REPORT})"
    )
    parser.add_argument("--verbose", action="store_true", help="a line per run on stderr")


def run(args: argparse.Namespace) -> int:
    """Run scenarios; exit status 1 if an expectation does not hold."""
    from headway.lab.sim import page
    from headway.lab.sim.compare import compare
    from headway.lab.sim.on_ray import RayUnavailableError
    from headway.lab.sim.run import contenders
    from headway.lab.sim.scenarios import SCENARIOS, altered, named

    if args.list or not args.scenarios:
        for name in SCENARIOS:
            print(f"{name:18} {named(name).about}")
        print(f"\ncontenders: {', '.join(contenders())}")
        return OK if args.list else USAGE
    names = list(SCENARIOS) if args.scenarios == ["all"] else args.scenarios
    chosen = [c for c in args.contenders.split(",") if c]
    try:
        scenarios = [
            altered(
                named(name),
                workload=args.trace or None,
                load=args.load,
                processes=args.processes,
                duration_s=args.seconds,
            )
            for name in names
        ]
        unknown = [c for c in chosen if c not in contenders()]
        if unknown:
            raise ValueError(f"no contender {unknown[0]!r}; there are {', '.join(contenders())}")
        seeds = range(1, max(1, args.seeds) + 1)
        told = _tell if args.verbose else None
        compared = compare(
            scenarios,
            seeds=seeds,
            contenders=chosen,
            workers=args.workers,
            told=told,
            ray=args.ray,
        )
    except RayUnavailableError as exc:
        print(f"headway simulate: {exc}", file=sys.stderr)
        return MISSING_EXTRA
    except (ValueError, OSError) as exc:
        print(f"headway simulate: {exc}", file=sys.stderr)
        return USAGE
    for comparison in compared:
        print(page.as_text(comparison))
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(page.as_page(compared), encoding="utf-8")
    print(f"report: {args.report}")
    return OK if all(v.holds for c in compared for v in c.verdicts()) else NO


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
