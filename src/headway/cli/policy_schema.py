"""`headway policy schema`: the JSON Schema, for editors."""

from __future__ import annotations

import argparse

from headway.cli import OK


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: there are none."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from headway.policy.schema import schema_text

    del args
    print(schema_text(), end="")
    return OK
