"""The public API as text: `python -m tests.house.api > tests/api.txt`.

One line per public name: modules' `__all__`, the constructors and public members of the classes
among them. A change here is a change for users, and belongs in the changelog.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = (
    "headway",
    "headway.errors",
    "headway.events",
    "headway.otel",
    "headway.tenacity",
    "headway.testing",
    "headway.testing.fixtures",
)


def listing() -> str:
    """The whole listing, sorted, with a final newline."""
    lines = {line for module in MODULES for line in _module(module)}
    return "".join(f"{line}\n" for line in sorted(lines))


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    for public in public_names(module):
        value = getattr(module, public)
        if not isinstance(value, ModuleType):
            yield from _value(f"{name}.{public}", value)


def public_names(module: ModuleType) -> list[str]:
    """`__all__`; else the functions and classes that the module itself defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _value(where: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(where, value)
    elif callable(value) and not _is_typing(value):
        yield f"{where}{_signature(value)}"
    elif _is_typing(value):
        yield f"{where}: type"
    else:
        yield f"{where}: {type(value).__name__}"


def _class(where: str, cls: type[object]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {where}({bases})" if bases else f"class {where}"
    # An enum is made by its members; a pydantic model's signature is its fields, listed below.
    if not issubclass(cls, enum.Enum) and not hasattr(cls, "model_fields"):
        yield f"{where}.__init__{_signature(cls)}"
    # Own members and those of our own bases: what openai or pydantic bring is theirs to list.
    ours = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "headway"]
    members: dict[str, object] = {}
    for base in reversed(ours):
        members |= {name: f"{kind}" for name, kind in inspect.get_annotations(base).items()}
        members |= dict(vars(base))
    for name, member in members.items():
        if not name.startswith("_"):
            yield _member(f"{where}.{name}", member)


def _member(where: str, member: Any) -> str:
    member = getattr(member, "__func__", member)  # of a classmethod or staticmethod
    if inspect.isfunction(member):
        return f"{where}{_signature(member)}"
    return where


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)) if callable(value) else ""
    except (TypeError, ValueError):
        return "(...)"


def _is_typing(value: object) -> bool:
    return type(value).__module__ in {"typing", "types"} and not inspect.isroutine(value)


if __name__ == "__main__":
    print(listing(), end="")
