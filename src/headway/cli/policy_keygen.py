"""`headway policy keygen`: a key to sign policies with."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from headway.cli import OK
from headway.cli.reading import add_json, password_from
from headway.cli.screen import say_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="where the private key goes; must not exist"
    )
    parser.add_argument("--id", metavar="NAME", help="the key's name (default: its fingerprint)")
    parser.add_argument(
        "--password-env", metavar="VARIABLE", help="encrypt it with the password in this variable"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Make it; print the public half alone."""
    from headway.policy.signing import keygen

    pair = keygen(args.id, password=password_from(args.password_env))
    file: Path = args.file
    # Exclusive: a key that is overwritten is lost. Readable by its owner from the first byte.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(pair.private)
    if args.json:
        say_json({"key_id": pair.key_id, "public_key": pair.public, "private_key_file": str(file)})
        return OK
    print(f"private key: {file} (keep it away from the server that gives out policies)")
    print(f"public key:  {pair.key_id}={pair.public}")
    return OK
