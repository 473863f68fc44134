"""`headway completion`: a script that completes commands, options and files in a shell.

shtab writes it from the parsers that the commands declare, so it can't be behind them, and a shell
that completes starts no Python.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from headway.cli import COMMANDS, OK

if TYPE_CHECKING:
    from headway.cli import Command

SHELLS: Final = ("bash", "zsh", "fish")
FILES: Final = ("FILE", "FILE_OR_URL", "OLD", "NEW", "TARGET")
"""What arguments are called that may be files."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    parser = whole_parser()
    for action in _actions(parser):
        if action.metavar in FILES or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # where shtab looks
    print(shtab.complete(parser, args.shell))
    return OK


def whole_parser() -> argparse.ArgumentParser:
    """Every command in one parser; a run of the command line builds only the one it needs."""
    from headway.cli import top_parser

    parser = top_parser(with_command=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, row in COMMANDS.items():
        below = commands.add_parser(name, help=row.summary, description=row.summary)
        cast("Command", import_module(row.module)).configure(below)
    return parser


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    found: list[argparse.Action] = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            parsers = cast("dict[str, argparse.ArgumentParser]", action.choices)
            found += [one for below in parsers.values() for one in _actions(below)]
    return found
