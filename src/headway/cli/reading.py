"""What policy commands read: a document from wherever `Router(policy=...)` would take one."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.snapshot import Snapshot
    from headway.policy.models import Policy
    from headway.policy.sources import Fetched


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Declare `--allow-host`."""
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="PATTERN",
        help='hosts that plain http may go to, such as "http://10.0.0.0/8"; may be repeated',
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="for programs")


def fetch(place: str, *, signed: bool = False) -> Fetched:
    """The bytes at a path or URL. Raises PolicyError."""
    from headway.policy.first import first_fetch
    from headway.policy.sources import source_for

    return first_fetch(source_for(place), signed=signed)


def load(place: str) -> Policy:
    """The document at a path or URL, read strictly. Raises PolicyError."""
    from headway.policy.document import read_local

    fetched = fetch(place)
    return read_local(fetched.content, format=fetched.format, source=place)


def compiled(place: str, zone: str | None, hosts: list[str]) -> Snapshot:
    """The same, checked as a whole and compiled for a caller in `zone`. Raises PolicyError."""
    return load(place).compile(source=place, zone=zone, allowed_hosts=hosts or None)


def password_from(variable: str | None) -> bytes | None:
    """The password in an environment variable: an argument could be seen in the process list.

    Raises ValueError.
    """
    if variable is None:
        return None
    password = os.environ.get(variable)
    if not password:
        raise ValueError(f"--password-env: the environment variable {variable} is not set")
    return password.encode()
