"""`headway policy init`: a first policy, from what the environment has keys for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from headway.cli import OK
from headway.cli.providers import PROVIDERS
from headway.cli.reading import add_hosts, add_json
from headway.cli.screen import say_json
from headway.credentials import ENV_PREFIX


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="a new file, instead of stdout")
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
        help="the model to ask an endpoint for; another provider's is a fallback only with it",
    )
    add_json(parser)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Write it; say what was found, and never a key."""
    from headway.errors import PolicyError
    from headway.policy.models import Policy

    names = _names(args.names)
    endpoints, unused = found_endpoints(os.environ, names)
    unknown = names.keys() - endpoints.keys()
    if unknown:
        listed = ", ".join(endpoints) or "nothing"
        raise ValueError(f"--as {min(unknown)}: the environment has keys for {listed}")
    if not endpoints:
        raise PolicyError(
            "the environment names no endpoint",
            expected="OPENAI_API_KEY, OPENAI_BASE_URL, AZURE_OPENAI_ENDPOINT or another "
            "provider's key",
        )
    first, *others = endpoints
    route: dict[str, Any] = {"weights": {first: 1}}
    if args.model:
        route["match"] = {"model": args.model}
    if others:
        route["fallback"] = [{"endpoint": other} for other in others]
    tree = {"schema_version": "1.0", "version": 1, "endpoints": endpoints, "routes": [route]}
    policy = Policy.load(tree)
    policy.compile(allowed_hosts=args.allow_host or None)
    if args.out is not None:
        with cast("Path", args.out).open("xb") as file:  # a policy in use is not overwritten
            file.write(policy.dump())
    if args.json:
        said: dict[str, object] = {"policy": policy.model_dump(mode="json", exclude_unset=True)}
        say_json({**said, "not_used": unused})
        return OK
    if args.out is None:
        print(policy.dump().decode(), end="")
        return OK
    print(f"{args.out}: first {first}" + "".join(f", then {other}" for other in others))
    for name, variable in unused.items():
        print(f"{name}: {variable} is set; to fall back to it, say --as {name}=MODEL")
    return OK


def found_endpoints(
    environ: Mapping[str, str], names: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What the environment has keys for, as in a document; and what it has that lacks a model."""
    found: dict[str, dict[str, Any]] = {}
    base, key = environ.get("OPENAI_BASE_URL"), environ.get("OPENAI_API_KEY")
    if base or key:
        found["openai"] = {"base_url": (base or "https://api.openai.com/v1").rstrip("/")}
        if key:
            found["openai"]["credential"] = f"{ENV_PREFIX}OPENAI_API_KEY"
    azure = environ.get("AZURE_OPENAI_ENDPOINT")
    if azure:
        found["azure"] = {"base_url": azure.rstrip("/"), "dialect": "azure"}
        if environ.get("OPENAI_API_VERSION"):
            found["azure"]["api_version"] = environ["OPENAI_API_VERSION"]
        if environ.get("AZURE_OPENAI_API_KEY"):
            found["azure"]["credential"] = f"{ENV_PREFIX}AZURE_OPENAI_API_KEY"
    unused: dict[str, str] = {}
    for name, row in PROVIDERS.items():
        if name == "azure" or not row.base_url or row.key in (None, "", "OPENAI_API_KEY"):
            continue  # no key of its own, or what was looked at above
        if environ.get(row.key):
            if name in names:
                found[name] = {"base_url": row.base_url, "credential": f"{ENV_PREFIX}{row.key}"}
            else:
                unused[name] = row.key
    for name, model in names.items():
        if name in found:
            found[name]["model"] = model
    return found, unused


def _names(listed: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for entry in listed:
        name, separator, model = entry.partition("=")
        if not (name and separator and model):
            raise ValueError(f"--as {entry}: expected ENDPOINT=MODEL")
        names[name] = model
    return names
