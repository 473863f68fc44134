"""Reading somebody else's configuration without losing anything of it silently.

Whoever converts takes values out by their paths. What nobody took is found at the end and reported,
so a setting that nobody thought of can't be lost: it has to be taken to stay out of the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar, cast

from headway.cost import MONEY, PICO_USD, ZERO, plain
from headway.policy.fields import JsonPath
from headway.policy.parse import path_text

ENVIRON = "os.environ/"
T = TypeVar("T", str, int, float)
_UNFIT = re.compile(r"[^A-Za-z0-9._:/@+-]+")
_NUMBER = re.compile(r"[0-9]{1,15}(_[0-9]{3})*(\.[0-9]{1,15})?")
FIGURE_MAX = 1e9  # the format's, of weights and counts
NAME_CHARS_MAX = 256  # the format's
EMPTY = "says nothing"
PER_TOKEN_MAX = 100
"""USD: what costs more is no price. OpenRouter has -1 where it depends on the call."""


class Note(NamedTuple):
    """One thing that is not as it was. Holds no values: they may be keys."""

    path: JsonPath
    message: str
    lost: bool
    """Whether it has no counterpart; False: it has one that is not quite the same."""

    @property
    def place(self) -> str:
        """The path as text."""
        return path_text(self.path)


class Imported(NamedTuple):
    """What came of a configuration."""

    policy: dict[str, Any]
    """As a document's tree; without endpoints where nothing could be imported."""
    deployments: int
    notes: tuple[Note, ...]


class Reading:
    """A configuration, and what has been made of it so far."""

    def __init__(self, tree: object, environ: Mapping[str, str]) -> None:
        self._tree = tree
        self._environ = environ
        self._taken: set[JsonPath] = set()
        self._notes: dict[JsonPath, Note] = {}

    def look(self, path: JsonPath) -> object:
        """What is at a path, without taking it; None where nothing is."""
        node: Any = self._tree
        for part in path:
            if isinstance(node, dict):
                node = cast("dict[object, object]", node).get(part)
            elif isinstance(node, list) and isinstance(part, int):
                items = cast("list[object]", node)
                node = items[part] if part < len(items) else None
            else:
                return None
        return cast("object", node)

    def take(self, path: JsonPath, kind: type[T]) -> T | None:
        """What is at a path, if it is of this kind; anything else stays, to be reported."""
        value = self.look(path)
        if kind is not str:
            value = self.number(path)
            if kind is int and isinstance(value, float) and value.is_integer():
                value = int(value)
            elif kind is float and isinstance(value, int):
                value = float(value)
        if not isinstance(value, kind):
            return None
        self._taken.add(path)
        return value

    def number(self, path: JsonPath) -> int | float | None:
        """The number at a path, without taking it; as text, too: LiteLLM's reader takes 20_000."""
        value = self.look(path)
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = float(value) if "." in value else int(value)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def figure(self, path: JsonPath, *, least: float, most: float = FIGURE_MAX) -> float | None:
        """The number at a path, if it is one that a document may have."""
        found = self.number(path)
        return self.take(path, float) if found is not None and least <= found <= most else None

    def whole(self, path: JsonPath) -> object:
        """What is at a path with everything below it, taken as it is."""
        self._taken.add(path)
        return self.look(path)

    def text(self, path: JsonPath) -> str | None:
        """Text, which may be the name of an environment variable to read it from."""
        value = self.take(path, str)
        if value is None or not value.startswith(ENVIRON):
            return value
        name = value.removeprefix(ENVIRON)
        found = self._environ.get(name)
        if found is None:
            self.lost(path, f"the environment variable {name} is not set here: import where it is")
        return found

    def variable(self, *names: str) -> str | None:
        """The first of these variables that is set."""
        return next((found for name in names if (found := self._environ.get(name))), None)

    def length(self, path: JsonPath) -> int:
        """How many items the list at a path has."""
        value = self.look(path)
        return len(cast("list[object]", value)) if isinstance(value, list) else 0

    def keys(self, path: JsonPath) -> tuple[str, ...]:
        """The keys of the object at a path."""
        value = self.look(path)
        return tuple(cast("dict[str, object]", value)) if isinstance(value, dict) else ()

    def lost(self, path: JsonPath, message: str) -> None:
        """Report what has no counterpart: the path, and everything below it."""
        self._notes[path] = Note(path, message, lost=True)

    def differs(self, path: JsonPath, message: str) -> None:
        """Report a counterpart that is not quite the same."""
        self._notes.setdefault(path, Note(path, message, lost=False))

    def notes(self, reasons: Mapping[str, str]) -> list[Note]:
        """Everything to report, in document order; `reasons` by name of a key."""
        order = {path: i for i, path in enumerate(_paths((), self._tree))}
        for path in self._untaken((), self._tree):
            # A section's own reason, then that of the innermost name that has one.
            known = [reasons[str(part)] for part in (*path[:1], *path[:0:-1]) if part in reasons]
            if self.look(path) in (None, [], {}):
                self.differs(path, EMPTY)
                continue
            self._notes[path] = Note(path, known[0] if known else "has no counterpart", lost=True)
        return sorted(self._notes.values(), key=lambda note: order.get(note.path, 0))

    def _untaken(self, path: JsonPath, node: object) -> Iterator[JsonPath]:
        note = self._notes.get(path)
        if path in self._taken or (note is not None and note.lost):
            return
        if isinstance(node, dict | list) and node:
            for key, below in _members(node):
                yield from self._untaken((*path, key), below)
        else:
            yield path


def _members(node: Any) -> Iterator[tuple[str | int, object]]:
    if isinstance(node, dict):
        yield from cast("dict[str, object]", node).items()
    else:
        yield from enumerate(cast("list[object]", node))


def _paths(path: JsonPath, node: object) -> Iterator[JsonPath]:
    yield path
    if isinstance(node, dict | list):
        for key, below in _members(node):
            yield from _paths((*path, key), below)


def is_one_model(name: str | None) -> bool:
    """Whether a document may name it: one model, and not a pattern of many."""
    return bool(name) and len(name or "") <= NAME_CHARS_MAX and "*" not in (name or "")


def slug(text: str) -> str:
    """Text as an id of an endpoint may be written."""
    return _UNFIT.sub("-", text).strip("-./:@+_")[:100] or "any"


def free(wanted: str, taken: set[str]) -> str:
    """The id, or one like it that nobody has; it is taken now."""
    made, n = wanted, 2
    while made in taken:
        made, n = f"{wanted}.{n}", n + 1
    taken.add(made)
    return made


def per_mtok(cost: str | float) -> str:
    """A price per token as one per million tokens, exactly."""
    return usd(cost, times=10**6)


def usd(cost: str | float, *, times: int = 1) -> str:
    """An amount as a document may have it."""
    amount = Decimal(cost if isinstance(cost, str) else repr(cost)) * times
    return plain(amount.quantize(PICO_USD, context=MONEY) or ZERO)  # there is a zero below zero
