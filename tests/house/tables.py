"""Tables that are generated into the documents: `python -m tests.house.tables --write`.

A page has `<!-- table: name -->` and `<!-- end -->`; what stands between them is written from the
code, and a test fails when it is out of date. So do entries of the API: see `reference`.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.house import frameworks, mutation, reference
from tests.house.paths import ROOT

PLACE: Final = re.compile(r"(<!-- (table|api): ([\w.]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """The pages that have tables."""
    return [
        page for page in sorted((ROOT / "docs").rglob("*.md")) if PLACE.search(page.read_text())
    ]


def filled(text: str) -> str:
    """The text of a page with its tables written anew."""
    return PLACE.sub(lambda found: f"{found[1]}{_made(found[2], found[3])}{found[5]}", text)


def _made(kind: str, name: str) -> str:
    return TABLES[name]() if kind == "table" else reference.entry(name)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _first_sentence(text: str | None) -> str:
    flat = " ".join((text or "").split())
    return flat.partition(". ")[0].rstrip(".")


def errors() -> str:
    """What Headway raises."""
    from headway import errors as module

    def rows() -> Iterable[list[str]]:
        for name in module.__all__:
            cls = getattr(module, name)
            if inspect.isclass(cls) and issubclass(cls, module.HeadwayError):
                also = [b.__name__ for b in cls.__mro__ if b.__module__.startswith("openai")][:1]
                openai_class = f"`openai.{also[0]}`" if also else "-"
                yield [f"`{name}`", openai_class, _first_sentence(cls.__doc__)]

    return _table(("class", "also", "when"), rows())


def outcomes() -> str:
    """How an attempt can end."""
    from headway.core.model import TRAITS

    yes_no = {True: "yes", False: "no"}
    return _table(
        ("outcome", "whose fault", "health", "retry here", "move elsewhere"),
        (
            [
                f"`{kind}`",
                traits.blame.value,
                traits.health.value,
                yes_no[traits.retry_here],
                yes_no[traits.move_elsewhere],
            ]
            for kind, traits in TRAITS.items()
        ),
    )


def defaults() -> str:
    """What a policy leaves out."""
    from headway.core import snapshot

    parts = {
        "selection": snapshot.SelectionPolicy,
        "affinity": snapshot.AffinityPolicy,
        "deadline": snapshot.DeadlinePolicy,
        "retry": snapshot.RetryPolicy,
        "hedge": snapshot.HedgePolicy,
        "admission": snapshot.AdmissionPolicy,
        "class": snapshot.TrafficClass,
    }
    return _table(
        ("block", "field", "default"),
        (
            [part, f"`{field.name}`", _shown(field.default)]
            for part, cls in parts.items()
            for field in dataclasses.fields(cls)
            if field.init
        ),
    )


def _shown(value: object) -> str:
    if value is None:
        return "decided from what is known"
    if value == float("inf"):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)  # pyright: ignore[reportUnknownVariableType]
    return f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`"


def events() -> str:
    """What becomes of each event."""
    from headway.telemetry import EVENT_ROWS

    return _table(
        ("event", "span", "metrics", "log events"),
        (
            [
                f"`{event.__name__}`",
                row.spans or "-",
                _names(row.metrics),
                _names(log.name for log in row.logs),
            ]
            for event, row in EVENT_ROWS.items()
        ),
    )


def metrics() -> str:
    """Every metric."""
    from headway.telemetry import METRICS

    return _table(
        ("metric", "kind", "unit", "attributes", "is"),
        (
            [f"`{m.name}`", m.kind, f"`{m.unit}`", _names(m.dims), m.text.rstrip(".")]
            for m in METRICS
            if m.profile != "1.41"
        ),
    )


def logs() -> str:
    """Every log event."""
    from headway.telemetry import LOG_EVENTS

    return _table(
        ("log event", "severity"), ([f"`{log.name}`", log.severity] for log in LOG_EVENTS)
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def command() -> str:
    """The commands of the command line."""
    from headway.cli import COMMANDS

    return _table(
        ("command", "does", "extra"),
        (
            [f"`headway {name}`", row.summary, f"`{row.extra}`" if row.extra else "-"]
            for name, row in COMMANDS.items()
        ),
    )


def policy_actions() -> str:
    """What `headway policy` can do."""
    from headway.cli.policy import ACTIONS

    return _table(
        ("action", "does", "extra"),
        (
            [f"`headway policy {name}`", row.summary, f"`{row.extra}`" if row.extra else "-"]
            for name, row in ACTIONS.items()
        ),
    )


def framework_retries() -> str:
    """Requests that a failing call makes through each agent framework."""
    return _table(frameworks.RETRIES_HEAD, frameworks.retried())


def framework_versions() -> str:
    """Agent frameworks: versions, and the ways of working that were run."""
    return _table(frameworks.RAN_HEAD, frameworks.ran())


def mutants() -> str:
    """How many changes to each module of the core a test notices."""
    return _table(("module", "mutants", "killed", "share"), mutation.counts())


def surfaces() -> str:
    """What becomes of each request of the SDK."""
    from headway.transport.surfaces import rows

    groups: dict[tuple[str, ...], list[str]] = {}
    for request, surface in rows():
        body = "-" if not surface.managed else "form" if surface.form else "JSON"
        key = (f"`{surface.name}`", surface.treatment, body)
        groups.setdefault(key, []).append(f"`{request}`")
    return _table(
        ("surface", "requests", "what becomes of them", "body"),
        (
            [name, ", ".join(requests), what, body]
            for (name, what, body), requests in groups.items()
        ),
    )


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "command": command,
    "defaults": defaults,
    "errors": errors,
    "events": events,
    "framework_retries": framework_retries,
    "framework_versions": framework_versions,
    "logs": logs,
    "metrics": metrics,
    "mutants": mutants,
    "outcomes": outcomes,
    "policy_actions": policy_actions,
    "surfaces": surfaces,
    "survivors": mutation.argued,
}


def main(argv: list[str] | None = None) -> int:
    """Write the tables, or say which pages are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what is out of date")
    write = parser.parse_args(argv).write
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    for page in stale:
        if write:
            page.write_text(filled(page.read_text()))
        print(page.relative_to(ROOT), "written" if write else "is out of date")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
