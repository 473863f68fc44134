"""From bytes to a plain tree: everything that can be wrong before fields have names.

Both formats end in the same tree of dicts, lists, text, numbers, booleans and None, checked for
duplicate keys, numbers that aren't numbers, and depth. YAML is read as its JSON-like core: no
aliases (a few hundred bytes of them expand to gigabytes), no timestamps, no sexagesimal numbers,
and `on`, `yes` and `no` are words.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, cast

from headway.errors import PolicyError, ValidationError
from headway.policy.fields import JsonPath, Said

DOCUMENT_BYTES_MAX = 1024 * 1024  # the contract; thousands of endpoints fit
DEPTH_MAX = 32  # the schema needs 8, extensions and params may bring their own
INTEGER_MAX = 2**53 - 1  # what every JSON reader can hold exactly
SHOWN_CHARS_MAX = 60
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$@+-]{1,64}")


def path_text(path: JsonPath) -> str:
    """`routes[0].weights.vllm-1`; keys with other characters are quoted, the root is `$`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{_quoted(part)}]"
    return text or "$"


def _quoted(text: str) -> str:
    shown = text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."
    return json.dumps(shown)


def show(value: object) -> str:
    """A value for an error message: short, on one line, its content only if it is a scalar."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Said():
            return value
        case str():
            return _quoted(value)
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)[:SHOWN_CHARS_MAX]
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return _quoted(str(value))


def refuse(
    path: JsonPath, message: str, *, expected: str | None = None, source: str | None = None
) -> NoReturn:
    """Raise the one error of this package that documents are refused with."""
    raise ValidationError(message, path=path_text(path), expected=expected, source=source)


class _Repeated(dict[str, Any]):  # any JSON value
    """A JSON object that gave a key twice. Found by the walk, which knows the path."""

    key: str = ""


class _NotANumber:
    def __init__(self, text: str) -> None:
        self.text = text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    repeated = _Repeated(made)
    for key, _ in pairs:
        if key in seen:
            repeated.key = key
            break
        seen.add(key)
    return repeated


def parse(content: bytes, *, format: str = "json", source: str | None = None) -> object:  # noqa: A002
    """Parse a document. Raises ValidationError naming the place, or the line of a syntax error."""
    if len(content) > DOCUMENT_BYTES_MAX:
        refuse(
            (),
            f"{len(content)} bytes",
            expected=f"at most {DOCUMENT_BYTES_MAX} bytes",
            source=source,
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        refuse((), f"byte {exc.start} is not UTF-8", expected="UTF-8 text", source=source)
    tree = _parse_yaml(text, source) if format == "yaml" else _parse_json(text, source)
    check_tree(tree, source=source)
    return tree


def _parse_json(text: str, source: str | None) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_NotANumber)
    except json.JSONDecodeError as exc:
        refuse(
            (),
            f"line {exc.lineno}, column {exc.colno}: {exc.msg}",
            expected="JSON",
            source=source,
        )
    except RecursionError:
        _refuse_depth((), source)
    except ValueError:  # int() refuses more than 4300 digits
        refuse((), "a number of thousands of digits", expected="numbers", source=source)


def check_tree(tree: object, *, source: str | None = None) -> None:
    """Refuse what JSON's grammar lets through, or what a Python mapping may hold beyond JSON."""
    stack: list[tuple[JsonPath, Any]] = [((), tree)]
    while stack:
        path, node = stack.pop()
        if len(path) > DEPTH_MAX:
            _refuse_depth(path, source)
        # Pushed in reverse so that the first fault in document order is the one reported.
        if isinstance(node, dict):
            members = cast("dict[str, Any]", node)
            _check_object(path, members, source)
            stack.extend(((*path, key), members[key]) for key in reversed(members))
        elif isinstance(node, list | tuple):
            items = cast("list[Any]", node)
            stack.extend(((*path, i), items[i]) for i in reversed(range(len(items))))
        else:
            _check_scalar(path, node, source)


def _check_object(path: JsonPath, node: dict[str, Any], source: str | None) -> None:
    if isinstance(node, _Repeated):
        refuse((*path, node.key), "the key occurs twice", expected="each key once", source=source)
    for key in cast("dict[object, Any]", node):  # a mapping from code may have any keys
        if not isinstance(key, str):
            refuse(path, f"the key {show(key)}", expected="keys that are text", source=source)
        if not _is_unicode(key):
            refuse(path, "a key with a lone surrogate", expected="Unicode text", source=source)


def _check_scalar(path: JsonPath, node: object, source: str | None) -> None:
    match node:
        case _NotANumber():
            refuse(path, f"got {node.text}", expected="a finite number", source=source)
        case float() if not math.isfinite(node):
            refuse(path, f"got {node}", expected="a finite number", source=source)
        case bool():
            pass
        case int() if abs(node) > INTEGER_MAX:
            refuse(path, "too large a number", expected=f"at most {INTEGER_MAX}", source=source)
        case str() if not _is_unicode(node):
            refuse(path, "text with a lone surrogate", expected="Unicode text", source=source)
        case _:
            pass


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_depth(path: JsonPath, source: str | None) -> NoReturn:
    refuse(path[:4], "nested too deeply", expected=f"at most {DEPTH_MAX} levels", source=source)


def _parse_yaml(text: str, source: str | None) -> object:
    from headway.policy.yaml_core import YamlError, read_yaml

    try:
        return read_yaml(text, _object, depth_max=DEPTH_MAX)
    except ImportError:
        raise PolicyError(
            "YAML needs PyYAML: pip install 'headway[yaml]', or publish JSON", source=source
        ) from None
    except YamlError as exc:
        refuse((), str(exc), expected="YAML that has a JSON form", source=source)
    except ValueError:  # int() refuses more than 4300 digits
        refuse((), "a number of thousands of digits", expected="numbers", source=source)
