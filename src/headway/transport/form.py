"""Multipart bodies: read field by field, never whole, and sent as often as their files allow.

The http libraries keep a form as a list of fields and render it anew for each send; files are
rewound first. So a form can be sent again, to another endpoint under another model name, without a
byte of it in memory. What can't be rewound (a pipe, a socket) is sent once: until its first byte
has been taken the call may still go elsewhere, and after that it may not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headway.transport.body import BYTES_PER_TOKEN, IMAGE_TOKENS, BodyFacts

if TYPE_CHECKING:
    import httpx2


class FormBody(NamedTuple):
    """A form as it is to be sent."""

    stream: Any
    """The http library's own multipart stream."""
    headers: tuple[tuple[bytes, bytes], ...]
    """How long it is, or that this isn't known."""


class Form:
    """The multipart body of one request."""

    __slots__ = ("_once", "_stream", "facts", "is_shareable", "size")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._once: list[_Once] = []
        self.size: int = stream.get_content_length() or 0
        """In bytes; 0 where that isn't known."""
        self.is_shareable = True
        """Two attempts may send it at the same time: no file is being read."""
        files = 0
        for field in stream.fields:
            if _is_value(field):
                continue
            files += 1
            if isinstance(field.file, str | bytes):
                continue
            self.is_shareable = False
            if not _can_rewind(field.file):
                field.file = _Once(field.file)
                self._once.append(field.file)
        self.facts = _facts(stream.fields, files)

    @classmethod
    def of(cls, request: httpx2.Request) -> Self | None:
        """The form that a request carries; None: its body is something else."""
        stream: Any = request.stream
        fields = getattr(stream, "fields", None)
        if not isinstance(fields, list) or not hasattr(stream, "boundary"):
            return None
        return cls(stream)

    @property
    def is_spent(self) -> bool:
        """A file that can be read only once has been."""
        return any(file.begun for file in self._once)

    def rewritten(
        self,
        *,
        model: str | None,
        drop: Sequence[str],
        rename: Mapping[str, str],
        set_: Mapping[str, object],
    ) -> FormBody | None:
        """The form with the named changes and no others; None when there are none.

        The rules are those of `body.rewrite`: `model` replaces the model, `drop`, `rename` and
        `set_` work on whole members (`image` is also `image[]` and `image[0]`), in that order.
        """
        if model == self.facts.model:
            model = None
        if model is None and not (drop or rename or set_):
            return None
        value_class = _value_class(self._stream)
        fields = self._stream.fields
        if model is not None:
            fields = _with_model(fields, value_class, model)
        fields = list(_kept(fields, frozenset(drop), rename, frozenset(set_)))
        for name, value in set_.items():
            fields += [value_class(name=key, value=text) for key, text in _flat(name, value)]
        stream = copy.copy(self._stream)
        stream.fields = fields
        length = stream.get_content_length()
        framing = (
            (b"Transfer-Encoding", b"chunked")
            if length is None
            else (b"Content-Length", b"%d" % length)
        )
        return FormBody(stream, (framing,))


class _Once:
    """A file that can't be rewound: it remembers that its reading has begun.

    It has no `seek`, so that nobody tries.
    """

    __slots__ = ("_file", "begun")

    def __init__(self, file: Any) -> None:
        self._file = file
        self.begun = False

    def read(self, size: int) -> bytes:
        """The next bytes, and the first only once."""
        self.begun = True
        taken: bytes = self._file.read(size)
        return taken


def _can_rewind(file: Any) -> bool:
    seekable = getattr(file, "seekable", None)
    if not callable(seekable):
        return hasattr(file, "seek")
    try:
        return bool(seekable())
    except (OSError, ValueError):
        return False


def _is_value(field: Any) -> bool:
    return not hasattr(field, "file")


def _value_class(stream: Any) -> Any:
    """The http library's class for plain fields."""
    example: Any = type(stream)(data={"any": ""}, files={}, boundary=stream.boundary)
    found: Any = example.fields[0].__class__
    return found


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _facts(fields: Iterable[Any], files: int) -> BodyFacts:
    facts = BodyFacts()
    prompt = 0
    for field in fields:
        if not _is_value(field):
            continue
        match field.name:
            case "model":
                facts.model = _text(field.value)
            case "stream":
                facts.stream = _text(field.value) == "true"
            case "n" if (count := _text(field.value)).isdecimal():
                facts.choices = max(1, int(count[:6]))
            case "prompt":
                prompt = len(field.value)
            case _:
                pass
    facts.prompt_tokens_estimate = prompt // BYTES_PER_TOKEN + files * IMAGE_TOKENS
    return facts


def _with_model(fields: Iterable[Any], value_class: Any, model: str) -> list[Any]:
    """The fields with another model, in the place of the old one."""
    new = value_class(name="model", value=model)
    found = [new if field.name == "model" else field for field in fields]
    return found if new in found else [new, *found]


def _kept(
    fields: Iterable[Any], drop: frozenset[str], rename: Mapping[str, str], replaced: frozenset[str]
) -> Iterable[Any]:
    """The fields that stay, under the names they are to have."""
    fields = [field for field in fields if _member(field.name) not in drop]
    present = {_member(field.name) for field in fields}
    for field in fields:
        member = _member(field.name)
        new = rename.get(member, member)
        if (new != member and new in present) or new in replaced:
            continue  # what it would be called stands there already, or will
        yield field if new == member else _named(field, new + field.name[len(member) :])


def _member(name: str) -> str:
    return name.partition("[")[0]


def _named(field: Any, name: str) -> Any:
    renamed = copy.copy(field)
    renamed.name = name
    renamed.__dict__.pop("_headers", None)  # rendered once, under the old name
    return renamed


def _flat(name: str, value: object) -> Iterable[tuple[str, str]]:
    """A JSON value as form fields, in the SDK's own notation (brackets)."""
    match value:
        case dict():
            for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
                yield from _flat(f"{name}[{key}]", inner)  # pyright: ignore[reportUnknownArgumentType]
        case list() | tuple():
            for inner in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _flat(f"{name}[]", inner)  # pyright: ignore[reportUnknownArgumentType]
        case str():
            yield name, value
        case _:
            yield name, json.dumps(value)
