"""Event stream framing: where events end, and what their lines say."""

from __future__ import annotations

import json
import re
from typing import cast

BOM = b"\xef\xbb\xbf"

BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n?|\n)")
"""The end of a line followed by an empty one: the end of an event."""

EOL = re.compile(rb"\r\n?|\n")


def fields(raw: bytes) -> tuple[str | None, str, bool | None, bool]:
    """(event name, data, whether an id was set (None: no id field), any field that dispatches)."""
    name: str | None = None
    data: list[bytes] = []
    has_id: bool | None = None
    dispatches = False
    for line in EOL.split(raw):
        if not line or line[0] == 58:  # a comment
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
            dispatches = True
        elif field == b"event":
            name = value.decode("utf-8", "replace") or None
            dispatches = dispatches or bool(name)
        elif field == b"id":
            if b"\x00" not in value:
                has_id = bool(value)
        elif field == b"retry":
            dispatches = dispatches or value.strip().isdigit()
    try:
        text = b"\n".join(data).decode()
    except UnicodeDecodeError:
        text = "\x00"  # no JSON: malformed
    return name, text, has_id, dispatches


def decoded(text: bytearray) -> str:
    """JSON string text as the text it means; what is cut or damaged is replaced."""
    raw = bytes(text).decode("utf-8", "replace")
    try:
        return cast("str", json.loads(f'"{raw}"'))
    except ValueError:
        return raw
