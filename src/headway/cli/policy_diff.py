"""`headway policy diff`: what changes for which traffic, not only which lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headway.cli import NO, OK
from headway.cli.reading import add_hosts, add_json, compiled
from headway.cli.screen import numbered, say_json, say_table

if TYPE_CHECKING:
    from headway.policy.traffic import PolicyDiff, Setting, TrafficChange

MOVED_MIN = 0.0005
"""Less of the calls than this is said to stay where it was."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("old", metavar="OLD", help="a file or URL: what is in force, for example")
    parser.add_argument("new", metavar="NEW", help="a file or URL")
    parser.add_argument("--zone", help="the caller's zone")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit status 1 if calls notice anything"
    )
    add_json(parser)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Compare them."""
    from headway.policy.traffic import diff

    zone: str | None = args.zone
    old, new = (compiled(place, zone, args.allow_host) for place in (args.old, args.new))
    found = diff(old, new, zone=zone)
    if args.json:
        say_json(_as_tree(found))
    else:
        _print(found)
    return NO if args.exit_code and not found.is_empty else OK


def _print(found: PolicyDiff) -> None:
    for line in _head(found):
        print(line)
    if found.is_empty:
        print("calls notice nothing")
        return
    if found.traffic:
        say_table(
            ("traffic", "moves", "before", "after"),
            (row for change in found.traffic for row in _rows(change)),
            title="\ntraffic",
        )
    if found.kinds_left_out:
        print(f"\nnot compared: {numbered(found.kinds_left_out, 'more kind')} of traffic")


def _head(found: PolicyDiff) -> Iterator[str]:
    for setting in found.head:
        yield f"{setting.where}: {setting.before} -> {setting.after}"
    for sign, names in (("+", found.endpoints_added), ("-", found.endpoints_removed)):
        for name in names:
            yield f"{sign} endpoint {name}"
    for name, settings in found.endpoints_changed.items():
        for setting in settings:
            yield f"~ endpoint {name}: {setting.where}: {setting.before} -> {setting.after}"


def _rows(change: TrafficChange) -> Iterator[tuple[str, str, str, str]]:
    said = str(change.traffic)
    if change.route_before != change.route_after or change.moved >= MOVED_MIN:
        size = "" if change.moved < MOVED_MIN else f" (at {change.prompt_tokens} tokens)"
        yield (
            said,
            f"{change.moved:.1%}{size}",
            _goes(change.route_before, change.before),
            _goes(change.route_after, change.after),
        )
        said = ""
    if change.fallback_before != change.fallback_after:
        yield said, "fallback", _listed(change.fallback_before), _listed(change.fallback_after)
        said = ""
    for setting in change.settings:
        yield said, setting.where, setting.before, setting.after
        said = ""


def _goes(route: str | None, shares: Mapping[str, float]) -> str:
    if route is None:
        return "not routed"
    listed = ", ".join(f"{endpoint} {share:.1%}" for endpoint, share in shares.items())
    return f"{route}: {listed}"


def _listed(names: Iterable[str]) -> str:
    return ", then ".join(names) or "none"


def _as_tree(found: PolicyDiff) -> dict[str, object]:
    return {
        "changes_calls": not found.is_empty,
        "head": _settings(found.head),
        "endpoints_added": found.endpoints_added,
        "endpoints_removed": found.endpoints_removed,
        "endpoints_changed": {
            name: _settings(settings) for name, settings in found.endpoints_changed.items()
        },
        "traffic": [
            {
                **change._asdict(),
                "traffic": change.traffic._asdict(),
                "settings": _settings(change.settings),
            }
            for change in found.traffic
        ],
        "kinds_left_out": found.kinds_left_out,
    }


def _settings(settings: Iterable[Setting]) -> list[dict[str, str]]:
    return [setting._asdict() for setting in settings]
