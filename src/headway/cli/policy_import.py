"""`headway policy import`: somebody else's configuration as a policy."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from headway.cli import MISSING_EXTRA, NO, OK
from headway.cli.reading import add_json
from headway.cli.screen import numbered, one_line, say_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.cli.foreign import Imported, Note

FORMATS: Final = {
    "litellm": ("headway.cli.litellm_config", "from_litellm"),
    "switchboard": ("headway.cli.switchboard_list", "from_switchboard"),
    "openrouter": ("headway.cli.openrouter_list", "from_openrouter"),
}
ALIKE_MAX = 8
"""Lines that say the same of places like each other; `--json` has all of them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("format", choices=[*FORMATS], help="whose configuration it is")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a file of YAML or JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write it here, not to stdout")
    parser.add_argument("--policy-id", default="default", metavar="ID", help="of the policy")
    parser.add_argument(
        "--strict", action="store_true", help="exit status 1 if anything has no counterpart"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the policy, and on stderr what is not in it."""
    from headway.errors import ValidationError
    from headway.policy.models import Policy
    from headway.policy.parse import parse

    config: Path = args.config
    written = "json" if config.suffix == ".json" else "yaml"
    if written == "yaml" and find_spec("yaml") is None:
        print("reading YAML needs PyYAML: pip install 'headway[yaml]'", file=sys.stderr)
        return MISSING_EXTRA
    tree = parse(config.read_bytes(), format=written, source=str(config))
    if not isinstance(tree, dict | list):
        raise ValidationError("expected an object or a list", source=str(config))
    found = _converter(args.format)(tree, os.environ, policy_id=cast("str", args.policy_id))
    if not found.policy["endpoints"]:
        _report(found, config)
        raise ValidationError("nothing in it can be imported", source=str(config))
    policy = Policy.load(found.policy)
    if args.out is not None:
        cast("Path", args.out).write_bytes(policy.dump())
    if args.json:
        notes = [
            {"path": note.place, "message": note.message, "lost": note.lost} for note in found.notes
        ]
        say_json({"policy": json.loads(policy.dump()), "notes": notes})
    else:
        if args.out is None:
            print(policy.dump().decode(), end="")
        _report(found, config)
    return NO if args.strict and any(note.lost for note in found.notes) else OK


def _converter(name: str) -> Callable[..., Imported]:
    module, function = FORMATS[name]
    return cast("Callable[..., Imported]", getattr(import_module(module), function))


def _report(found: Imported, config: Path) -> None:
    alike: dict[tuple[object, ...], list[Note]] = {}
    for note in found.notes:
        place = tuple("*" if isinstance(part, int) else part for part in note.path)
        alike.setdefault((place, note.message, note.lost), []).append(note)
    for notes in alike.values():
        how = "left out" if notes[0].lost else "differs"
        message = notes[0].message.removeprefix("left out: ")
        for note in notes[:ALIKE_MAX]:
            print(one_line(f"{config}: {note.place}: {how}: {message}"), file=sys.stderr)
        if len(notes) > ALIKE_MAX:
            more = f"... and at {len(notes) - ALIKE_MAX} more places like it"
            print(one_line(f"{config}: {notes[0].place} {more}: {how}"), file=sys.stderr)
    lost = sum(note.lost for note in found.notes)
    print(
        f"{config}: {numbered(found.deployments, 'deployment')}, "
        f"{numbered(len(found.policy['endpoints']), 'endpoint')} made of them; "
        f"{lost} without a counterpart, {len(found.notes) - lost} not quite the same",
        file=sys.stderr,
    )
