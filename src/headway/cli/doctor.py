"""`headway doctor`: what this environment would do, and what stands in its way."""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import headway
from headway.cli import NO, OK
from headway.cli.findings import NOTE, OK_, WRONG, Finding
from headway.cli.reading import add_hosts, add_json
from headway.cli.screen import count, say_json, say_table

BUILT_AT: Final = 1_760_000_000.0
"""No clock is right that shows a time before this version was made (2025-10-09)."""
EXTRAS: Final = {
    "cli": "rich",
    "fsspec": "fsspec",
    "redis": "redis",
    "signing": "cryptography",
    "yaml": "yaml",
}
YES: Final = ("1", "true", "yes", "on")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "policy", nargs="?", metavar="FILE_OR_URL", help="the policy (default: $HEADWAY_POLICY)"
    )
    parser.add_argument(
        "--send",
        action="store_true",
        help="fetch a policy from where it is, and ask every endpoint for /models, without a key",
    )
    add_json(parser)
    add_hosts(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was found; exit status 1 if something is wrong."""
    from headway.cli.doctor_policy import policy_findings

    place: str | None = args.policy or os.environ.get("HEADWAY_POLICY") or None
    found = [*_versions(), *_environment(), *_clock()]
    named_by = "" if args.policy else "HEADWAY_POLICY: "
    found += policy_findings(place, args.allow_host, send=args.send, named_by=named_by)
    wrong = [finding for finding in found if finding.state == WRONG]
    if args.json:
        say_json({"healthy": not wrong, "findings": [finding._asdict() for finding in found]})
    else:
        say_table(("what", "state", "found"), found)
        print(f"{count(wrong, 'thing')} wrong" if wrong else "nothing is wrong")
    return NO if wrong else OK


def _versions() -> Iterator[Finding]:
    yield Finding("python", OK_, platform.python_version())
    yield Finding("headway", OK_, headway.__version__)
    version = _version("openai")
    if version is None:
        yield Finding("openai", WRONG, "not installed: pip install openai")
    else:
        wanted = _supported(version)
        yield Finding("openai", OK_ if wanted else WRONG, version + ("" if wanted else _WANTED))
    stacks = [
        f"{name} {found}" for name in ("httpx2", "httpx", "aiohttp") if (found := _version(name))
    ]
    yield Finding("http stack", OK_ if stacks else WRONG, ", ".join(stacks) or "none is installed")
    extras = [name for name, module in EXTRAS.items() if find_spec(module) is not None]
    yield Finding("extras", OK_, ", ".join(extras) or "none")


_WANTED = " (expected 2.54 or newer, below 4)"


def _supported(version: str) -> bool:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        return True  # somebody's own build: they know
    return (2, 54) <= (int(major), int(minor)) < (4, 0)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _environment() -> Iterator[Finding]:
    if os.environ.get("HEADWAY_DISABLED", "").strip().lower() in YES:
        yield Finding("HEADWAY_DISABLED", NOTE, "set: everything passes straight through")
    log = os.environ.get("HEADWAY_TASK_LOG")
    if log:
        directory = Path(log).absolute().parent
        if os.access(directory, os.W_OK):
            yield Finding("HEADWAY_TASK_LOG", OK_, log)
        else:
            yield Finding("HEADWAY_TASK_LOG", WRONG, f"{directory} can't be written to")


def _clock() -> Iterator[Finding]:
    now = time.time()
    said = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    if now < BUILT_AT:
        yield Finding("clock", WRONG, f"{said}: before this version was made")
    else:
        yield Finding("clock", OK_, said)
