"""A kept answer, and its form in a store outside this process: a line of JSON, then the body.

What a store returns is read strictly, and anything else is a miss: it may come from another version
of Headway, or from anybody who can write there. Never pickled.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import NamedTuple, cast

from headway.core.model import Usage

FORM = 1
"""Goes up when the form changes; other forms are misses."""
ENTRY_BYTES = 512
"""What an entry counts as beside its headers and body: the objects around them."""
NOT_KEPT = frozenset({b"set-cookie", b"connection", b"transfer-encoding", b"keep-alive", b"date"})
"""Headers of the one exchange that was, not of the answer."""


class Answer(NamedTuple):
    """A complete, successful reply, and what it had taken."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    endpoint_id: str
    model: str
    """The upstream model that was asked."""
    expires_at: float
    """Unix seconds, or the clock's where it never leaves the process."""
    usage: Usage | None = None
    response_model: str | None = None
    service_tier: str | None = None
    duration_s: float | None = None
    busy_s: float = 0.0

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return ENTRY_BYTES + len(self.body) + sum(len(n) + len(v) for n, v in self.headers)


def encode(answer: Answer) -> bytes:
    """The answer as a store keeps it."""
    usage = answer.usage
    head = {
        "v": FORM,
        "status": answer.status,
        "headers": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in answer.headers],
        "endpoint": answer.endpoint_id,
        "model": answer.model,
        "expires_at": answer.expires_at,
        "usage": None if usage is None else [None if f is None else str(f) for f in usage[:6]],
        "estimated": usage is not None and usage.estimated,
        "response_model": answer.response_model,
        "service_tier": answer.service_tier,
        "duration_s": answer.duration_s,
        "busy_s": answer.busy_s,
        "bytes": len(answer.body),
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + answer.body


def decode(stored: object) -> Answer | None:
    """The answer again; None for whatever isn't one."""
    if not isinstance(stored, bytes):
        return None
    line, newline, body = stored.partition(b"\n")
    try:
        head = cast("dict[str, object]", json.loads(line))
        if not newline or head["v"] != FORM or head["bytes"] != len(body):
            return None
        pairs = cast("list[list[str]]", head["headers"])
        counts = cast("list[str | None] | None", head["usage"])
        return Answer(
            status=int(_number(head["status"])),
            headers=tuple((_header(name), _header(value)) for name, value in pairs),
            body=body,
            endpoint_id=_text(head["endpoint"]),
            model=_text(head["model"]),
            expires_at=_number(head["expires_at"]),
            usage=None if counts is None else _usage(counts, estimated=head["estimated"] is True),
            response_model=_text_or_none(head["response_model"]),
            service_tier=_text_or_none(head["service_tier"]),
            duration_s=None if head["duration_s"] is None else _number(head["duration_s"]),
            busy_s=_number(head["busy_s"]),
        )
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def _usage(counts: list[str | None], *, estimated: bool) -> Usage:
    whole = [None if count is None else int(count) for count in counts[:5]]
    given, written, cached, cache_written, reasoning = whole
    cost = None if counts[5] is None else Decimal(counts[5])
    if cost is not None and not (cost.is_finite() and cost >= 0):
        raise ValueError("an amount was expected")
    return Usage(
        given,
        written,
        cached,
        cache_written,
        reasoning,
        cost,
        estimated,
    )


def _header(text: str) -> bytes:
    encoded = text.encode("latin-1")
    if b"\r" in encoded or b"\n" in encoded or b"\0" in encoded:
        raise ValueError("a line break in a header")
    return encoded


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("a number was expected")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text was expected")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)
