"""The `headway` command.

A command is a module with `configure(parser)` and `run(args) -> exit status`, and one row in
`COMMANDS`. Only the module of the chosen command is imported, and parsing needs nothing beyond the
standard library, so `headway policy check` works on the base install.

Exit status: 0 fine, 1 the answer is no (an invalid policy, a failed demo), 2 wrong usage,
3 an extra is missing, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple, Protocol, cast

__all__ = ["main"]

OK: Final = 0
NO: Final = 1
USAGE: Final = 2
MISSING_EXTRA: Final = 3
INTERRUPTED: Final = 130


class _Row(NamedTuple):
    module: str
    summary: str
    extra: str | None = None
    """The extra that brings what the command needs beyond the base install."""


COMMANDS: Final = {
    "completion": _Row("headway.cli.completion", "completion for bash, zsh or fish", "cli"),
    "demo": _Row("headway.cli.demo", "a fleet under failure: plain client against wrapped"),
    "doctor": _Row("headway.cli.doctor", "what this environment would do, and what is in its way"),
    "policy": _Row("headway.cli.policy", "make, check, understand, sign and publish policies"),
    "report": _Row("headway.cli.report", "what the tasks of a task log did and cost"),
    "simulate": _Row("headway.cli.simulate", "fleets in virtual time, with the core that ships"),
    "version": _Row("headway.cli.version", "versions of everything that matters"),
}


class Command(Protocol):
    """What a command's module offers."""

    def configure(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own when None) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        top_parser().print_help(sys.stderr)
        return USAGE
    chosen = top_parser().parse_args(arguments[:1])
    row = COMMANDS[chosen.command]
    try:
        command = cast("Command", import_module(row.module))
        parser = argparse.ArgumentParser(prog=f"headway {chosen.command}", description=row.summary)
        command.configure(parser)
        status = command.run(parser.parse_args(arguments[1:]))
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return status
    except ModuleNotFoundError as exc:
        if row.extra is None or (exc.name or "").startswith("headway"):
            raise
        print(
            f"headway {chosen.command} needs {exc.name}, which the '{row.extra}' extra brings: "
            f"pip install 'headway[{row.extra}]'",
            file=sys.stderr,
        )
        return MISSING_EXTRA
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def top_parser(*, with_command: bool = True) -> argparse.ArgumentParser:
    """What `headway` itself takes; `with_command`: and the name of a command, unread."""
    import headway

    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {row.summary}" for name, row in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="headway",
        description="Client-side control plane for LLM calls.",
        epilog=f"commands:\n{lines}\n\n'headway COMMAND --help' says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headway {headway.__version__}")
    if with_command:
        parser.add_argument("command", metavar="COMMAND", choices=sorted(COMMANDS))
    return parser
