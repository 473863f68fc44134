"""`headway policy sign`: add a signature to the file beside a document."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import OK
from headway.cli.reading import add_json, password_from
from headway.cli.screen import say_json

if TYPE_CHECKING:
    from headway.policy.signing import Signature


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE")
    add_key(parser, required=True)
    add_json(parser)


def add_key(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Declare what a signature is made with."""
    parser.add_argument(
        "--key", type=Path, required=required, metavar="PEM", help="the private key's file"
    )
    parser.add_argument("--id", metavar="NAME", help="the key's name (default: its fingerprint)")
    parser.add_argument(
        "--password-env", metavar="VARIABLE", help="the key's password is in this variable"
    )


def signature_of(content: bytes, args: argparse.Namespace) -> Signature:
    """Sign with the key that the arguments name. Raises ValueError, OSError."""
    from headway.policy.signing import sign

    key: Path = args.key
    password = password_from(args.password_env)
    return sign(content, key.read_bytes(), key_id=args.id, password=password)


def run(args: argparse.Namespace) -> int:
    """Sign, and keep the signatures that others have made of the same bytes."""
    from headway.policy.document import format_of, read_local
    from headway.policy.publish import publish
    from headway.policy.signing import SUFFIX

    file: Path = args.file
    content = file.read_bytes()
    # Nobody should vouch for what no client would take.
    read_local(content, format=format_of(file), source=str(file))
    made = signature_of(content, args)
    done = publish(content, file, signatures=[made])
    beside = f"{file}{SUFFIX}"
    if args.json:
        say_json({"signature_file": beside, "key_id": made.key, "signed_by": done.signed_by})
        return OK
    print(f"{beside}: signed by {', '.join(done.signed_by)}")
    return OK
