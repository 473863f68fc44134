"""The kinds of value a policy document is made of, each with its bounds.

Numbers are strict (no text, no booleans), durations carry their unit in the field's name, money is
decimal text, instants are RFC 3339 with an offset. Upper bounds keep a slip of the keyboard from
becoming a timeout of years.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

JsonPath: TypeAlias = tuple[str | int, ...]


class Said(str):
    """Words about a value, for an error message: shown as they are, unlike text from a document."""

    __slots__ = ()


class Block(BaseModel):
    """Base of every part of the document: closed, immutable, spelled as in JSON."""

    # Misspelled fields are refused; `document` alone may forgive them, in newer minor versions.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        hide_input_in_errors=True,
        defer_build=True,
    )


def problem(expected: str, *, at: JsonPath = (), shown: object = None) -> PydanticCustomError:
    """A validation error that says what was expected, `at` a place below the validated one."""
    # The template stays constant: text from a document must not be read as a template.
    return PydanticCustomError(
        "headway", "expected {expected}", {"expected": expected, "at": at, "shown": shown}
    )


_MONEY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,12})?")
_INSTANT = re.compile(
    r"2[01][0-9]{2}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
MONEY_EXPECTED = 'decimal text such as "0.15" (in quotes: a JSON number would be rounded)'
INSTANT_EXPECTED = 'an instant such as "2026-11-30T11:00:00Z"'


def _money(value: object) -> Decimal:
    if isinstance(value, Decimal):
        value = f"{value:f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # whole dollars lose nothing
    if not isinstance(value, str) or not _MONEY.fullmatch(value):
        raise problem(MONEY_EXPECTED)
    return Decimal(value)


def _instant(value: object) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if not isinstance(value, str) or not _INSTANT.fullmatch(value):
        raise problem(INSTANT_EXPECTED)
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError:
        raise problem(INSTANT_EXPECTED) from None


def _instant_text(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def check_rising(values: Sequence[float], *, strictly: bool) -> None:
    """Raise at the first value that falls (or, when `strictly`, fails to rise)."""
    for i in range(1, len(values)):
        if values[i] < values[i - 1] or (strictly and values[i] == values[i - 1]):
            how = "more than" if strictly else "at least"
            raise problem(f"{how} {values[i - 1]:g}, the value before", at=(i,), shown=values[i])


Text: TypeAlias = Annotated[
    str,
    StringConstraints(strict=True, min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
"""One line: a model name, a task name, a label."""

Id: TypeAlias = Annotated[
    str,
    StringConstraints(
        strict=True, min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$"
    ),
]
"""What other parts of the document refer to: an endpoint, a route, a zone, a profile."""

ZoneKey: TypeAlias = Annotated[
    str,
    StringConstraints(
        strict=True,
        min_length=1,
        max_length=128,
        pattern=r"^([*]|[A-Za-z0-9][A-Za-z0-9._:/@+-]*)$",
    ),
]
OneOrMany: TypeAlias = Annotated[
    tuple[Text, ...],
    BeforeValidator(_one_or_many),
    Field(max_length=1000),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]

Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
Tokens: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]
Serial: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
Amount: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e12)]
Rate: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1e12)]
Fraction: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1)]
Share: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=1)]
Weight: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=1e9)]
DAY_MS = 86_400_000
Millis: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=DAY_MS)]
Delay: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0, le=DAY_MS)]
"""Milliseconds, of which there may be none."""
Seconds: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=31_536_000)]
Usd: TypeAlias = Annotated[
    Decimal,
    BeforeValidator(_money),
    PlainSerializer(lambda value: f"{value:f}", return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "pattern": f"^{_MONEY.pattern}$"}),
]
TenantUsd: TypeAlias = Annotated[Usd, Field(ge=0, le=1_000_000)]
"""A store counts nano-USD, exactly up to 9 million USD."""
PeriodSeconds: TypeAlias = Annotated[int, Field(strict=True, ge=60, le=2_678_400)]
"""A minute to 31 days: what is kept for a period is kept until it ends."""
Instant: TypeAlias = Annotated[
    datetime,
    BeforeValidator(_instant),
    PlainSerializer(_instant_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
FailureName: TypeAlias = Literal[
    "rate_limited",
    "quota_exhausted",
    "overloaded",
    "server_error",
    "connect",
    "timeout_before_first_token",
    "stalled",
    "bad_request",
    "context_length",
    "content_filter",
    "auth",
    "not_found",
    "incomplete_stream",
]
"""The failure classes of the core, less those that are no failure."""
