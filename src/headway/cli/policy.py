"""`headway policy`: make, check, understand, sign and publish policy documents.

An action is a module with `configure(parser)` and `run(args)`, and one row in `ACTIONS`; several
actions may share a module, which then tells them apart by `args.action`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from headway.cli import MISSING_EXTRA, NO, USAGE
from headway.cli.screen import one_line, say_wrong

if TYPE_CHECKING:
    from headway.cli import Command


class _Action(NamedTuple):
    module: str
    summary: str
    needs: str | None = None
    """A package beyond the base install, which the extra brings."""
    extra: str | None = None


ACTIONS: Final = {
    "check": _Action("headway.cli.policy_check", "is it valid? exit status 1 if not"),
    "show": _Action("headway.cli.policy_show", "what it says, compiled, as one caller sees it"),
    "explain": _Action("headway.cli.policy_explain", "why a call would go to A and not to B"),
    "diff": _Action("headway.cli.policy_diff", "what changes for which traffic"),
    "keygen": _Action(
        "headway.cli.policy_keygen", "make a key to sign policies with", "cryptography", "signing"
    ),
    "sign": _Action(
        "headway.cli.policy_sign", "sign a document's exact bytes", "cryptography", "signing"
    ),
    "verify": _Action(
        "headway.cli.policy_verify", "who signed it? 1 if too few", "cryptography", "signing"
    ),
    "publish": _Action("headway.cli.policy_publish", "put it where clients fetch it"),
    "init": _Action("headway.cli.policy_init", "a first policy, from a client or the environment"),
    "import": _Action("headway.cli.policy_import", "somebody else's configuration as a policy"),
    "schema": _Action("headway.cli.policy_schema", "print the JSON Schema of documents"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(print_help=parser.print_help)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, row in ACTIONS.items():
        below = actions.add_parser(name, help=row.summary, description=row.summary)
        _module(row).configure(below)


def run(args: argparse.Namespace) -> int:
    """Do what was asked; an error is one line, and the answer no."""
    from headway.errors import HeadwayError, PolicyError

    if args.action is None:
        args.print_help(sys.stderr)
        return USAGE
    row = ACTIONS[args.action]
    if row.needs is not None and find_spec(row.needs) is None:
        print(
            f"headway policy {args.action} needs {row.needs}, which the '{row.extra}' extra "
            f"brings: pip install 'headway[{row.extra}]'",
            file=sys.stderr,
        )
        return MISSING_EXTRA
    try:
        return _module(row).run(args)
    except PolicyError as error:
        say_wrong(error)
    except (HeadwayError, ValueError) as error:
        print(one_line(f"headway policy {args.action}: {error}"), file=sys.stderr)
    except BrokenPipeError:
        raise  # the reader has gone: no error of the command's
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = error.strerror or type(error).__name__
        print(one_line(f"{where}{why}"), file=sys.stderr)
    return NO


def _module(row: _Action) -> Command:
    return cast("Command", import_module(row.module))
