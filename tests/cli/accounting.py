"""Whether a converted configuration lost anything: asked of the outside, value by value.

A value is *carried* if the policy is another one when the value is changed or taken away, and
*reported* if a note names its place or one above it. What is neither has been lost silently.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

Place = tuple[str | int, ...]


class Note(Protocol):
    @property
    def path(self) -> Place: ...
    @property
    def lost(self) -> bool: ...


class Made(Protocol):
    @property
    def policy(self) -> Mapping[str, Any]: ...
    @property
    def notes(self) -> tuple[Note, ...]: ...


class Account(NamedTuple):
    """What became of a configuration's values, by their places."""

    carried: list[Place]
    reported: list[Place]
    lost: list[Place]


def leaves(node: Any, path: Place = ()) -> Iterator[Place]:
    """The places of values that hold no others; what is empty is a value, too."""
    if isinstance(node, dict | list) and node:
        for key, below in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(below, (*path, key))
    else:
        yield path


def objects(node: Any, path: Place = ()) -> Iterator[Place]:
    """The places of objects: where a setting could stand that nobody thought of."""
    if isinstance(node, dict):
        yield path
    if isinstance(node, dict | list):
        for key, below in node.items() if isinstance(node, dict) else enumerate(node):
            yield from objects(below, (*path, key))


def at(tree: Any, path: Place) -> Any:
    """What is at a place."""
    for part in path:
        tree = tree[part]
    return tree


def changed(tree: Any, path: Place) -> Iterator[Any]:
    """The tree with another value at the place, and without the key."""
    match at(tree, path):
        case bool() as value:
            others: tuple[Any, ...] = (not value,)
        case int() | float() as value:
            others = (value * 2 + 1, 0)  # an order of 5 instead of 2 may say the same
        case str() as value:
            others = (f"{value}x", "1" if value != "1" else "2")
        case _:
            others = ("x", 7)
    for other in others:
        made = copy.deepcopy(tree)
        at(made, path[:-1])[path[-1]] = other
        yield made
    if isinstance(path[-1], str):
        made = copy.deepcopy(tree)
        del at(made, path[:-1])[path[-1]]
        yield made


def is_left_out(made: Made, path: Place) -> bool:
    """Whether a note says so of the place, or of one above it."""
    return any(note.lost and path[: len(note.path)] == note.path for note in made.notes)


def is_reported(made: Made, path: Place) -> bool:
    """Whether that, or a note says of the very place how it differs."""
    return is_left_out(made, path) or any(path == note.path for note in made.notes)


def account(tree: Any, convert: Callable[[Any], Made], *, below: Place = ()) -> Account:
    """Look at every value of a configuration, or of a part of it."""
    made = convert(tree)
    found = Account([], [], [])
    for path in leaves(at(tree, below), below):
        if is_left_out(made, path):
            found.reported.append(path)
        elif path and any(convert(other).policy != made.policy for other in changed(tree, path)):
            found.carried.append(path)
        elif is_reported(made, path):
            found.reported.append(path)
        else:
            found.lost.append(path)
    return found
