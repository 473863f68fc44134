"""The JSON-like core of YAML, from PyYAML's events. PyYAML is imported when first needed.

PyYAML's own loaders read YAML 1.1, where `on` is a boolean, `1:30` is ninety and a date is an
object; here a plain scalar is null, true, false, a decimal number, or text. Aliases and tags are
refused.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)?\.?[0-9]*([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)


class YamlError(Exception):
    """The text is not YAML, or more than its JSON-like core. The message says where."""


def read_yaml(
    text: str, make_object: Callable[[list[tuple[str, Any]]], dict[str, Any]], *, depth_max: int
) -> object:
    """Read one YAML document. Raises ImportError without PyYAML, and YamlError."""
    # PyYAML is an extra without types: everything of it stays inside this function.
    yaml: Any = importlib.import_module("yaml")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    # One list of items per open collection; a mapping's list alternates keys and values.
    open_items: list[list[Any]] = [[]]
    try:
        for event in yaml.parse(text, Loader=loader):
            match type(event).__name__:
                case "ScalarEvent":
                    open_items[-1].append(_scalar(event))
                case "SequenceStartEvent" | "MappingStartEvent":
                    if event.tag not in {None, "!"} or len(open_items) > depth_max:
                        raise YamlError(_at(event, f"a tag, or more than {depth_max} levels"))
                    open_items.append([])
                case "SequenceEndEvent":
                    items = open_items.pop()
                    open_items[-1].append([_value(item) for item in items])
                case "MappingEndEvent":
                    items = open_items.pop()
                    open_items[-1].append(make_object(_pairs(items, event)))
                case "AliasEvent":
                    raise YamlError(_at(event, "an alias, which is not supported"))
                case "DocumentStartEvent" if open_items[0]:
                    raise YamlError(_at(event, "a second document"))
                case _:  # stream and document marks
                    pass
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise YamlError(_where(mark) + str(exc.problem or exc.context)) from None
    except yaml.YAMLError as exc:  # a character that YAML doesn't allow
        raise YamlError(" ".join(str(exc).split())) from None
    return _value(open_items[0][0]) if open_items[0] else None


def _where(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _at(event: Any, what: str) -> str:
    return _where(event.start_mark) + what


def _pairs(items: list[Any], event: Any) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, list | dict):
            raise YamlError(_at(event, "a key that is not plain text, in the mapping ending here"))
        # JSON has only text for keys: `7: x` and `true: x` are the keys "7" and "true".
        pairs.append((key.text if isinstance(key, _Plain) else str(key), _value(value)))
    return pairs


class _Plain:
    """An unquoted scalar, not yet read: what it is depends on whether it is a key."""

    def __init__(self, text: str) -> None:
        self.text = text


def _scalar(event: Any) -> object:
    if event.tag not in {None, "!"}:
        raise YamlError(_at(event, f"the tag {event.tag}, which is not supported"))
    plain = event.style in {None, ""} and event.tag is None
    return _Plain(event.value) if plain else event.value


def _value(item: object) -> object:
    if not isinstance(item, _Plain):
        return item
    text = item.text
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    if _FLOAT.fullmatch(text) and any(c.isdigit() for c in text):
        return float(text)
    return text
