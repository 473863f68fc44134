"""The questions of `headway policy init`, on a terminal. Every answer has a default: Enter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.cli.init_finding import Found
from headway.credentials import ENV_PREFIX


class Answers(NamedTuple):
    """What is asked for on the command line otherwise."""

    names: dict[str, str]
    """The model to ask a provider for."""
    left_out: frozenset[str]
    models: list[str]
    spread: bool
    deadline_s: float | None
    out: str | None


def is_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked(found: Found, names: Mapping[str, str], *, models: list[str], out: str | None) -> Answers:
    """Ask about what was found, and what to make of it."""
    chosen = dict(names)
    left_out: set[str] = set()
    for name, endpoint in found.endpoints.items():
        if not _agreed(f"{name} at {endpoint['base_url']}: use it?"):
            left_out.add(name)
    for name, variable in found.unused.items():
        model = _said(f"{name}: {variable} is set. Which model of its own? (none: leave it out)")
        if model:
            chosen[name] = model
    several = len(found.endpoints) - len(left_out) + len(chosen.keys() & found.unused.keys()) > 1
    spread = several and _agreed(
        "share calls between them, instead of falling back?", default=False
    )
    if not models:
        listed = _said("for calls that ask for which models? (all; or names, with commas between)")
        models = [name.strip() for name in listed.split(",") if name.strip()]
    deadline = _seconds("longest time for a call, in seconds? (none)")
    if out is None:
        out = _said("write it to which file? (policy.json; - for here)") or "policy.json"
    out = None if out == "-" else out
    return Answers(chosen, frozenset(left_out), models, spread, deadline, out)


def endpoint_asked() -> dict[str, dict[str, Any]]:
    """An endpoint where nothing was found; empty where nobody has one."""
    url = _said("nothing was found in the environment. The base URL of an endpoint? (none: stop)")
    if not url:
        return {}
    variable = _said("which environment variable will hold its key? (none: the client's own key)")
    credential = {"credential": f"{ENV_PREFIX}{variable}"} if variable else {}
    return {"own": {"base_url": url.rstrip("/"), **credential}}


def _said(question: str) -> str:
    try:
        return input(f"{question} ").strip()
    except EOFError:
        print()  # Ctrl-D: as if Enter had been pressed
        return ""


def _agreed(question: str, *, default: bool = True) -> bool:
    while True:
        answer = _said(f"{question} [{'Y/n' if default else 'y/N'}]").lower()
        if answer in {"", "y", "yes", "n", "no"}:
            return default if not answer else answer.startswith("y")
        print("yes or no?")


def _seconds(question: str) -> float | None:
    while True:
        answer = _said(question)
        if not answer:
            return None
        try:
            seconds = float(answer)
        except ValueError:
            seconds = 0.0
        if 0 < seconds <= 86_400:
            return seconds
        print("a number of seconds, up to a day")
