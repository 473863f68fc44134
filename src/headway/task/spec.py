"""What `headway.task(...)` was asked for, checked at the call that asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeAlias

from headway.task.ledger import Caps
from headway.task.scope import (
    NAME_CHARS_MAX,
    SESSION_CHARS_MAX,
    CallOptions,
    label,
    seconds,
    with_priority,
)

Clock: TypeAlias = Callable[[], float]
Judge: TypeAlias = Callable[[Any], bool | None]

VERDICTS = ("explicit", "no_exception")
ID_CHARS_MAX = 128
ATTRIBUTES_MAX = 32
"""Attributes end up on a span; more than this is a payload, not a description."""
ATTRIBUTE_CHARS_MAX = 256


class TaskSpec(NamedTuple):
    """The arguments of one `task(...)`: a decorated function begins a task from it at every
    call."""

    name: str
    id: str | None
    deadline_s: float | None
    caps: Caps
    options: CallOptions
    verdict: str | Judge
    attributes: Mapping[str, str | bool | int | float]
    clock: Clock | None


def make_spec(
    name: str,
    *,
    id: str | None,  # noqa: A002 - the public argument's name
    deadline: float | timedelta | None,
    max_cost: Decimal | str | float | None,
    max_calls: int | None,
    max_tokens: int | None,
    priority: int | str | None,
    session: str | None,
    verdict: str | Judge,
    attributes: Mapping[str, str | bool | int | float] | None,
    clock: Clock | None,
) -> TaskSpec:
    """Check every argument; `TypeError` or `ValueError` names the one that is wrong."""
    options = with_priority(CallOptions(), priority)
    if session is not None:
        options = options._replace(session=label(session, "session", SESSION_CHARS_MAX))
    if not callable(verdict) and verdict not in VERDICTS:
        raise ValueError(
            f'verdict must be "explicit", "no_exception" or a function of the result, '
            f"got {verdict!r}"
        )
    return TaskSpec(
        name=label(name, "the task's name", NAME_CHARS_MAX),
        id=None if id is None else label(id, "id", ID_CHARS_MAX),
        deadline_s=None if deadline is None else seconds(deadline, "deadline"),
        caps=Caps(
            None if max_cost is None else usd(max_cost, "max_cost"),
            _count(max_calls, "max_calls"),
            _count(max_tokens, "max_tokens"),
        ),
        options=options,
        verdict=verdict,
        attributes=_attributes(attributes),
        clock=clock,
    )


def usd(value: Decimal | str | float, what: str) -> Decimal:
    """A non-negative amount of USD, or a clear error. A float is taken as it prints."""
    wanted = f'{what} must be an amount of USD such as "0.50", got {value!r}'
    if isinstance(value, bool) or not isinstance(value, Decimal | str | int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(wanted)
    try:
        amount = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        raise ValueError(wanted) from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(wanted)
    return amount


def _count(value: int | None, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{what} must be a whole number, got {value!r}")
    if value < 0:
        raise ValueError(f"{what} must not be negative, got {value!r}")
    return value


def _attributes(
    given: Mapping[str, str | bool | int | float] | None,
) -> Mapping[str, str | bool | int | float]:
    if not given:
        return {}
    if len(given) > ATTRIBUTES_MAX:
        raise ValueError(f"attributes may have {ATTRIBUTES_MAX} entries, got {len(given)}")
    checked: dict[str, str | bool | int | float] = {}
    for key, value in given.items():
        label(key, "an attribute's name", ATTRIBUTE_CHARS_MAX)
        if not isinstance(value, str | bool | int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"attribute {key!r} must be text, a number or a boolean, got {type(value).__name__}"
            )
        checked[key] = value[:ATTRIBUTE_CHARS_MAX] if isinstance(value, str) else value
    return checked
