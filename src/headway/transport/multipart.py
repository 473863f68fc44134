"""The model in a multipart form (audio, image edits)."""

from __future__ import annotations

import re

_FIELD = re.compile(
    rb'content-disposition: *form-data; *name="model"[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)\r\n--',
    re.IGNORECASE,
)
_SEARCHED_MAX = 64 * 1024
"""The SDK writes plain fields before files; a model named after megabytes of audio is not found."""


def model_span(body: bytes, content_type: str) -> tuple[int, int] | None:
    """Where the value of the form's `model` field stands; None if there is none."""
    if not content_type.lower().startswith("multipart/form-data"):
        return None
    found = _FIELD.search(body, 0, _SEARCHED_MAX)
    return found.span(1) if found is not None else None


def model_of(body: bytes, content_type: str) -> str | None:
    """The form's model."""
    span = model_span(body, content_type)
    if span is None:
        return None
    return body[span[0] : span[1]].decode("utf-8", "replace") or None


def with_model(body: bytes, content_type: str, model: str) -> bytes:
    """The same form asking for another model; the same object when it names none."""
    span = model_span(body, content_type)
    if span is None:
        return body
    return body[: span[0]] + model.encode("utf-8") + body[span[1] :]
