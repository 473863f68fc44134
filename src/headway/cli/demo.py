"""`headway demo`: a fleet of endpoints under failure; plain clients, then a wrapped one."""

from __future__ import annotations

import argparse
from pathlib import Path

REPORT = Path("out/headway-demo.html")
SECONDS = 32.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--report",
        type=Path,
        default=REPORT,
        metavar="FILE",
        help=f"where the page with the charts goes (default: {REPORT})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"how long each of the two runs takes (default: {SECONDS:g})",
    )
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and faults (default: 1)")
    parser.add_argument(
        "--real",
        action="store_true",
        help="real llama.cpp servers and a small model instead of simulated endpoints",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; exit status 1 if the wrapped client did not keep what it promises."""
    if args.real:
        from headway.lab.demo_real import run_demo_real

        return run_demo_real(seed=args.seed)
    from headway.lab.demo import run_demo

    try:
        return run_demo(args.report, duration_s=args.seconds, seed=args.seed)
    except ValueError as exc:
        print(f"headway demo: {exc}")
        return 2
