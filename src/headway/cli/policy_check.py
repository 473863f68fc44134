"""`headway policy check`: would clients take it, and does it say what was meant?"""

from __future__ import annotations

import argparse
import json

from headway.cli import NO, OK
from headway.cli.reading import add_hosts, load
from headway.cli.screen import count, say_wrong, wrong_as_tree


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("places", nargs="+", metavar="FILE_OR_URL")
    parser.add_argument("--json", action="store_true", help="for programs: one object a line")
    parser.add_argument(
        "--strict", action="store_true", help="exit status 1 for what is only doubtful, too"
    )
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Check each; all are checked, whatever the first ones are."""
    results = [_check(place, args) for place in args.places]
    return OK if all(results) else NO


def _check(place: str, args: argparse.Namespace) -> bool:
    from headway.cli.doubts import doubts
    from headway.errors import PolicyError

    try:
        policy = load(place)
        snapshot = policy.compile(source=place, allowed_hosts=args.allow_host or None)
    except PolicyError as error:
        if args.json:
            print(json.dumps({"file": place, "valid": False, **wrong_as_tree(error)}))
        else:
            say_wrong(error, source=place)
        return False
    doubtful = doubts(policy, snapshot)
    if args.json:
        found = {"file": place, "valid": True, "version": snapshot.version}
        listed = [{"path": doubt.path, "message": doubt.message} for doubt in doubtful]
        print(json.dumps({**found, "doubts": listed}))
    else:
        counts = f"{count(snapshot.endpoints, 'endpoint')}, {count(snapshot.routes, 'route')}"
        print(f"{place}: valid, version {snapshot.version}: {counts}")
        for doubt in doubtful:
            print(f"{place}: {doubt.path}: {doubt.message}")
    return not (args.strict and doubtful)
