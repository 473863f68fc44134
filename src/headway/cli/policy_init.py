"""`headway policy init`: a first policy, from a client or what the environment has."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.cli import OK
from headway.cli.reading import add_hosts, add_json
from headway.cli.screen import say_json

if TYPE_CHECKING:
    from headway.cli.init_finding import Found
    from headway.policy.models import Policy


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="a new file, instead of stdout")
    parser.add_argument(
        "--from",
        dest="client",
        metavar="MODULE:CLIENT",
        help="a client of yours, or a function that makes one: it comes first",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="calls for this model alone; may be repeated (default: all calls)",
    )
    parser.add_argument(
        "--as",
        dest="names",
        action="append",
        default=[],
        metavar="ENDPOINT=MODEL",
        help="the model to ask an endpoint for; another provider's is used only with it",
    )
    parser.add_argument(
        "--spread", action="store_true", help="share calls between them, instead of falling back"
    )
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="longest time for a call (default: none)"
    )
    parser.add_argument(
        "--yes", action="store_true", help="ask nothing, on a terminal either: take the defaults"
    )
    add_json(parser)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Write it; say what was found, and never a key."""
    from headway.cli.init_asking import asked, endpoint_asked, is_terminal

    names = _names(args.names)
    out = cast("Path | None", args.out)
    found = _found(args.client, names)
    models, spread, deadline = list[str](args.model), bool(args.spread), args.deadline
    if is_terminal() and not (args.yes or args.json):
        own = {} if found.endpoints or found.unused else endpoint_asked()
        found.endpoints.update(own)
        said = asked(found, names, models=models, out=None if out is None else str(out))
        models, spread = said.models, said.spread or spread
        deadline = said.deadline_s if deadline is None else deadline
        out = None if said.out is None else Path(said.out)
        found = _found(args.client, said.names)
        found.endpoints.update(own)
        for name in said.left_out:
            del found.endpoints[name]
        names = {name: model for name, model in names.items() if name not in said.left_out}
    tree = _document(found, names, models, deadline_s=deadline, spread=spread)
    return _written(tree, found, args, out)


def _found(client: str | None, names: dict[str, str]) -> Found:
    from headway.cli.init_finding import beside, in_environment, loaded, of_client

    there = in_environment(os.environ, names)
    return there if client is None else beside(of_client(loaded(client), client), there)


def _document(
    found: Found,
    names: dict[str, str],
    models: list[str],
    *,
    deadline_s: float | None,
    spread: bool,
) -> dict[str, Any]:
    from headway.cli.init_finding import LOOKED_FOR
    from headway.errors import PolicyError

    unknown = names.keys() - found.endpoints.keys()
    if unknown:
        listed = ", ".join(found.endpoints) or "nothing"
        raise ValueError(f"--as {min(unknown)}: the environment has keys for {listed}")
    if not found.endpoints:
        raise PolicyError("the environment names no endpoint", expected=LOOKED_FOR)
    first, *others = found.endpoints
    route: dict[str, Any] = {"weights": {first: 1}}
    if models:
        route["match"] = {"model": models}
    if spread:
        route["weights"] = dict.fromkeys(found.endpoints, 1)
    elif others:
        route["fallback"] = [{"endpoint": other} for other in others]
    tree: dict[str, Any] = {"schema_version": "1.0", "version": 1}
    tree |= {"endpoints": found.endpoints, "routes": [route]}
    if deadline_s is not None:
        tree["defaults"] = {"deadline": {"total_ms": deadline_s * 1000}}
    return tree


def _written(tree: dict[str, Any], found: Found, args: argparse.Namespace, out: Path | None) -> int:
    from headway.policy.models import Policy

    policy: Policy = Policy.load(tree)
    policy.compile(allowed_hosts=args.allow_host or None)
    if out is not None:
        with out.open("xb") as file:  # a policy in use is not overwritten
            file.write(policy.dump())
    if args.json:
        said: dict[str, object] = {"policy": policy.model_dump(mode="json", exclude_unset=True)}
        say_json({**said, "not_used": found.unused, "hints": list(found.hints)})
        return OK
    if out is None:
        print(policy.dump().decode(), end="")
    else:
        shared = len(policy.routes[0].weights or ()) > 1
        said_of = " and ".join(found.endpoints) if shared else ", then ".join(found.endpoints)
        print(f"{out}: {'shared by' if shared else 'first'} {said_of}")
    # Where stdout is the document, the rest goes elsewhere.
    beside = sys.stderr if out is None else sys.stdout
    for name, variable in found.unused.items():
        print(f"{name}: {variable} is set; to use it, say --as {name}=MODEL", file=beside)
    for hint in found.hints:
        print(hint, file=beside)
    return OK


def _names(listed: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for entry in listed:
        name, separator, model = entry.partition("=")
        if not (name and separator and model):
            raise ValueError(f"--as {entry}: expected ENDPOINT=MODEL")
        names[name] = model
    return names
