"""`headway policy`: check a document before it is published, show it, print the JSON Schema."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headway.cli import NO, OK

if TYPE_CHECKING:
    from headway.core.snapshot import Fallback, Route, Snapshot
    from headway.errors import PolicyError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    check = actions.add_parser("check", help="is it valid? exit status 1 if not")
    check.add_argument("files", nargs="+", metavar="FILE")
    check.add_argument("--json", action="store_true", help="for programs: one object a line")

    show = actions.add_parser("show", help="what it says, compiled, as one caller sees it")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--zone", help="the caller's zone")
    show.add_argument("--json", action="store_true", help="for programs")

    for action in (check, show):
        action.add_argument(
            "--allow-host",
            action="append",
            default=[],
            metavar="PATTERN",
            help='hosts that plain http may go to, such as "http://10.0.0.0/8"; may be repeated',
        )

    actions.add_parser("schema", help="print the JSON Schema of documents")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    match args.action:
        case "check":
            return _check(args.files, args.allow_host, as_json=args.json)
        case "show":
            return _show(args.file, args.zone, args.allow_host, as_json=args.json)
        case _:
            from headway.policy.schema import schema_text

            print(schema_text(), end="")
            return OK


def _check(files: Iterable[str], hosts: list[str], *, as_json: bool) -> int:
    from headway.errors import PolicyError

    status = OK
    for file in files:
        try:
            snapshot = _compiled(file, None, hosts)
        except PolicyError as error:
            status = NO
            _say_wrong(file, error, as_json=as_json)
            continue
        if as_json:
            print(json.dumps({"file": file, "valid": True, "version": snapshot.version}))
        else:
            counts = f"{_count(snapshot.endpoints, 'endpoint')}, {_count(snapshot.routes, 'route')}"
            print(f"{file}: valid, version {snapshot.version}: {counts}")
    return status


def _say_wrong(file: str, error: PolicyError, *, as_json: bool) -> None:
    if as_json:
        found = {
            "file": file,
            "valid": False,
            "path": error.path,
            "message": error.message,
            "expected": error.expected,
        }
        print(json.dumps(found))
        return
    place = f" {error.path}:" if error.path else ""
    expected = f" (expected {error.expected})" if error.expected else ""
    print(f"{file}:{place} {error.message}{expected}", file=sys.stderr)


def _show(file: str, zone: str | None, hosts: list[str], *, as_json: bool) -> int:
    from headway.errors import PolicyError

    try:
        snapshot = _compiled(file, zone, hosts)
    except PolicyError as error:
        _say_wrong(file, error, as_json=as_json)
        return NO
    if as_json:
        print(json.dumps(_as_tree(snapshot, zone), indent=2))
        return OK
    print(f"policy {snapshot.policy_id}, epoch {snapshot.epoch}, version {snapshot.version}")
    print("\nendpoints")
    for endpoint in snapshot.endpoints.values():
        model = f" as {endpoint.model}" if endpoint.model else ""
        credential = f", credential {endpoint.credential}" if endpoint.credential else ""
        state = "" if endpoint.state == "active" else f", {endpoint.state}"
        print(
            f"  {endpoint.id}: {endpoint.base_url}{model} ({endpoint.dialect}{credential}{state})"
        )
    print(f"\nroutes{f' from {zone}' if zone else ''}")
    for route in snapshot.routes:
        print(f"  {route.name}")
        for bound, weights in _buckets(route, zone):
            size = "" if math.isinf(bound) else f"  (prompts up to {bound:g} tokens)"
            shares = ", ".join(f"{endpoint} {share:.1%}" for endpoint, share in weights)
            print(f"    {shares}{size}")
        for fallback in route.fallback:
            print(f"    else {_fallback_text(fallback)}")
    return OK


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


def _compiled(file: str, zone: str | None, hosts: list[str]) -> Snapshot:
    from headway.policy.models import Policy

    policy = Policy.load(file)
    return policy.compile(source=file, zone=zone, allowed_hosts=hosts or None)


def _count(things: Iterable[object], name: str) -> str:
    number = sum(1 for _ in things)
    return f"{number} {name}{'' if number == 1 else 's'}"
