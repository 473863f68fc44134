"""`headway policy show`: what a document says, compiled, as one caller sees it."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from headway.cli import OK
from headway.cli.reading import add_hosts, add_json, compiled
from headway.cli.screen import say_json, say_table

if TYPE_CHECKING:
    from headway.core.snapshot import Fallback, Route, Snapshot


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("place", metavar="FILE_OR_URL")
    parser.add_argument("--zone", help="the caller's zone")
    add_json(parser)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Show it."""
    zone: str | None = args.zone
    snapshot = compiled(args.place, zone, args.allow_host)
    if args.json:
        say_json(_as_tree(snapshot, zone))
        return OK
    print(f"policy {snapshot.policy_id}, epoch {snapshot.epoch}, version {snapshot.version}")
    say_table(
        ("endpoint", "base_url", "model", "dialect", "credential", "state"),
        (
            (e.id, e.base_url, e.model or "as asked", e.dialect, e.credential or "-", e.state)
            for e in snapshot.endpoints.values()
        ),
        title="\nendpoints",
    )
    say_table(
        ("route", "prompts up to", "goes to"),
        (row for route in snapshot.routes for row in _rows(route, zone)),
        title=f"\nroutes{f' from {zone}' if zone else ''}",
    )
    return OK


def _rows(route: Route, zone: str | None) -> list[tuple[str, str, str]]:
    rows = [
        (
            route.name,
            "any size" if math.isinf(bound) else f"{bound:g} tokens",
            ", ".join(f"{endpoint} {share:.1%}" for endpoint, share in weights),
        )
        for bound, weights in _buckets(route, zone)
    ]
    rows += [(route.name, "", f"else {_fallback_text(f)}") for f in route.fallback]
    return rows


def _as_tree(snapshot: Snapshot, zone: str | None) -> dict[str, object]:
    return {
        "policy_id": snapshot.policy_id,
        "epoch": snapshot.epoch,
        "version": snapshot.version,
        "endpoints": {
            endpoint.id: {
                "base_url": endpoint.base_url,
                "dialect": endpoint.dialect,
                "model": endpoint.model,
                "credential": endpoint.credential,
                "zone": endpoint.zone,
                "state": endpoint.state,
            }
            for endpoint in snapshot.endpoints.values()
        },
        "routes": [
            {
                "name": route.name,
                "models": sorted(route.match.models),
                "weights": [
                    {
                        "max_prompt_tokens": None if math.isinf(bound) else bound,
                        "shares": dict(weights),
                    }
                    for bound, weights in _buckets(route, zone)
                ],
                "fallback": [_fallback_text(fallback) for fallback in route.fallback],
            }
            for route in snapshot.routes
        ],
    }


def _buckets(
    route: Route, zone: str | None
) -> tuple[tuple[float, tuple[tuple[str, float], ...]], ...]:
    tables = route.weights.by_zone
    return tables.get(zone or "*") or tables.get("*") or next(iter(tables.values()))


def _fallback_text(fallback: Fallback) -> str:
    where = f"endpoint {fallback.endpoint}" if fallback.endpoint else f"route {fallback.route}"
    model = f" as {fallback.model}" if fallback.model else ""
    on = f" on {', '.join(sorted(fallback.on))}" if fallback.on else ""
    return f"{where}{model}{on}"
