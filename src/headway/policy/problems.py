"""What pydantic found wrong, said as one error: the path, the value, what was expected."""

from __future__ import annotations

import difflib
import itertools
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import Tag
from pydantic_core import ErrorDetails

from headway.errors import ValidationError
from headway.policy.fields import Block, JsonPath, Said
from headway.policy.models import Policy
from headway.policy.parse import path_text, show

_NO_VALUE = object()

# Below these a value may be, or hold, a secret: somebody pasted the key where its name belongs.
_SECRETIVE = frozenset({"credential", "headers", "set", "extensions", "base_url"})
OTHERS_NAMED_MAX = 3
NAMES_LISTED_MAX = 8


class Problem(NamedTuple):
    """One thing wrong with a document. Cheap to make: a hostile one has a hundred thousand."""

    path: JsonPath
    expected: str
    shown: object = _NO_VALUE
    """The value, where it may be shown."""
    unknown_field: bool = False
    known: Collection[str] | None = None
    """The names it should have been one of."""

    def error(self, source: str | None, *, note: str = "") -> ValidationError:
        """The exception for it."""
        expected = self.expected
        if self.unknown_field:
            message = "unknown field"
            expected = _suggestion(self.path)
        elif self.shown is _NO_VALUE:
            message = "refused"
        else:
            message = f"got {show(self.shown)}"
        if self.known is not None:
            expected = _name_expected(expected, str(self.shown), self.known)
        return ValidationError(
            message + note, path=path_text(self.path), expected=expected, source=source
        )


def first_error(problems: Sequence[Problem], source: str | None) -> ValidationError:
    """One error for all of them: the first, and where the others are."""
    # A misspelled field often makes a required one missing: the spelling is what to mend.
    ranked = sorted(problems, key=lambda p: not p.unknown_field)
    others = [path_text(p.path) for p in ranked[1:]]
    note = ""
    if others:
        listed = ", ".join(others[:OTHERS_NAMED_MAX])
        more = len(others) - OTHERS_NAMED_MAX
        note = f"; also wrong: {listed}" + (f" and {more} more" if more > 0 else "")
    return ranked[0].error(source, note=note)


def problems_from(errors: Iterable[ErrorDetails]) -> list[Problem]:
    """Translate pydantic's errors, dropping the ones that only follow from others."""
    found = list(errors)
    places = [_place(e["loc"]) for e in found]
    above = {path[:length] for path in places for length in range(len(path))}
    problems: list[Problem] = []
    for error, path in zip(found, places, strict=True):
        # "At least one item, not 0" only counts the items that failed on their own.
        if error["type"] == "too_short" and path in above:
            continue
        problems.append(_problem(error, path))
    return problems


def _problem(error: ErrorDetails, path: JsonPath) -> Problem:
    context: Mapping[str, Any] = error.get("ctx") or {}
    if error["type"] == "extra_forbidden":
        return Problem(path, "a field of the format", unknown_field=True)
    if error["type"] == "headway":
        at: JsonPath = context["at"]
        shown = context["shown"]
        place = path + at
        value = error["input"] if shown is None and not at else shown
        return Problem(place, context["expected"], _hidden(place, value))
    if error["type"] == "missing":
        return Problem(path, "a value: the field is required", Said("nothing"))
    if error["type"] == "too_short":
        return Problem(path, f"at least {context['min_length']} of them", context["actual_length"])
    if error["type"] == "too_long":
        return Problem(
            path, f"at most {context['max_length']} of them", _hidden(path, error["input"])
        )
    expected = error["msg"]
    for start in ("Input should be ", "Value should ", "String should ", "Input should "):
        expected = expected.removeprefix(start)
    for pydantic_word, json_word in (
        ("a valid dictionary or instance of", "an object, or a"),
        ("a valid dictionary", "an object"),
        ("a valid tuple", "a list"),
        ("a valid list", "a list"),
        ("a valid string", "text"),
        ("a valid boolean", "true or false"),
    ):
        expected = expected.replace(pydantic_word, json_word)
    return Problem(path, expected, _hidden(path, error["input"]))


def _place(loc: tuple[int | str, ...]) -> JsonPath:
    """Pydantic's location without the tags of unions and the marks of keys."""
    path: list[int | str] = []
    for part in loc:
        if part == "[key]":
            continue
        if isinstance(part, str) and part.startswith("<") and path and path[-1] == "weights":
            continue
        path.append(part)
    return tuple(path)


def _hidden(path: JsonPath, value: object) -> object:
    if isinstance(value, Said) or not isinstance(value, str):
        return value
    if not _SECRETIVE.isdisjoint(path):
        return _NO_VALUE
    # Text where a whole block belongs is at a place nobody planned for.
    if len(path) <= 2 and path[:1] == ("endpoints",):
        return _NO_VALUE
    return value


def _suggestion(path: JsonPath) -> str:
    name = str(path[-1])
    known = _fields_at(path[:-1])
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f'"{close[0]}", perhaps'
    return "one of " + ", ".join(sorted(known)) if known else "a field of the format"


def _fields_at(path: JsonPath) -> list[str]:
    """The fields that the block at `path` may have."""
    kinds: list[Any] = [Policy]
    for part in path:
        kinds = [step for kind in kinds for step in _step(kind, part)]
    return sorted(
        {
            field.alias or name
            for kind in kinds
            if isinstance(kind, type) and issubclass(kind, Block)
            for name, field in kind.model_fields.items()
        }
    )


def _step(kind: Any, part: int | str) -> list[Any]:  # type expressions have no common type
    """The types that `part` of a value of type `kind` may have."""
    if isinstance(kind, type) and issubclass(kind, Block):
        for name, field in kind.model_fields.items():
            if (field.alias or name) == part:
                return _members(field.annotation)
        return []
    args = get_args(kind)
    if get_origin(kind) is dict and isinstance(part, str):
        return _members(args[1])
    if get_origin(kind) is tuple and isinstance(part, int):
        return _members(args[0])
    return []


def _members(kind: Any) -> list[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        return _members(get_args(kind)[0])
    if origin in {Union, types.UnionType}:
        return [m for arg in get_args(kind) for m in _members(arg)]
    return [] if kind is type(None) or isinstance(kind, Tag) else [kind]


def _name_expected(what: str, name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f'{what} of the document ("{close[0]}", perhaps)'
    listed = ", ".join(itertools.islice(known, NAMES_LISTED_MAX)) or "none"
    more = len(known) - NAMES_LISTED_MAX
    more_text = f" and {more} more" if more > 0 else ""
    return f"{what} of the document; there {'is' if len(known) < 2 else 'are'}: {listed}{more_text}"
