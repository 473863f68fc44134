"""Carrying a task into another process: two headers out, a part of the same task there.

    headway-task: v=1; id=9f0c...; name=triage; deadline-ms=41200; cost-left=0.31
    traceparent: 00-<trace>-<span>-01            (only when the task is being traced)

The values come from whoever sends the request: they are bounded and checked, they name a task and
may shorten its deadline and its budget, and they can do nothing else. What is malformed is ignored.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import NamedTuple
from urllib.parse import quote, unquote

from headway.core.model import INFINITY
from headway.cost import MONEY, ZERO, plain
from headway.task.scope import NAME_CHARS_MAX, SESSION_CHARS_MAX, CallOptions
from headway.task.spec import ID_CHARS_MAX, Judge, TaskSpec, make_spec
from headway.task.task import Task

logger = logging.getLogger("headway")

HEADER = "headway-task"
TRACEPARENT = "traceparent"
HEADER_BYTES_MAX = 2048
"""Room for a name, an id and a session in percent-encoding; servers allow 8 KiB for all headers."""
DEADLINE_MS_MAX = 30 * 24 * 3600 * 1000
PRIORITY_MAX = 1_000_000
COST_MAX = Decimal(10**9)

_FIELD = re.compile(r"([a-z][a-z-]{0,15})=([A-Za-z0-9_.~%+-]*)")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class _MalformedError(ValueError):
    pass


class _Carried(NamedTuple):
    id: str
    name: str
    deadline_s: float | None
    cost_left: Decimal | None
    options: CallOptions


def headers_of(task: Task) -> dict[str, str]:
    """Headers for a request to the process that does a part of this task."""
    fields = [("v", "1"), ("id", task.id), ("name", task.name)]
    if task.deadline_at != INFINITY:
        fields.append(("deadline-ms", str(max(0, int(task.remaining_s * 1000)))))
    cost_left = _cost_left(task)
    if cost_left is not None:
        fields.append(("cost-left", plain(cost_left)))
    options = _options_in_force(task)
    if options.priority is not None:
        fields.append(("priority", str(options.priority)))
    if options.traffic_class is not None:
        fields.append(("class", options.traffic_class))
    if options.session is not None:
        fields.append(("session", options.session))
    headers = {HEADER: "; ".join(f"{key}={quote(value, safe='')}" for key, value in fields)}
    if task.traceparent is not None:
        headers[TRACEPARENT] = task.traceparent
    return headers


def continue_task(
    headers: Mapping[str, str],
    *,
    name: str = "continued",
    max_calls: int | None = None,
    max_tokens: int | None = None,
    verdict: str | Judge = "explicit",
    attributes: Mapping[str, str | bool | int | float] | None = None,
) -> Task:
    """Go on with the task whose `headers()` came with a request: `with headway.continue_task(h) as
    t:`.

    The part has the task's id and name, its remaining deadline, priority, session and remaining
    cost cap; its cost is added to the task in reports, where the task is counted once. Without the
    header, or with one that makes no sense (logged), a new task called `name` begins instead.
    Header names are matched without regard to case."""
    found = {key.lower(): value for key, value in headers.items() if len(key) <= len(HEADER)}
    text = found.get(HEADER)
    carried = None
    if text is not None:
        try:
            carried = _parse(text)
        except _MalformedError as problem:
            # The value itself stays out of the log: anyone may have sent it.
            logger.warning("ignored a malformed %s header: %s", HEADER, problem)
    spec = make_spec(
        name if carried is None else carried.name,
        id=None if carried is None else carried.id,
        deadline=None if carried is None else carried.deadline_s,
        max_cost=None if carried is None else carried.cost_left,
        max_calls=max_calls,
        max_tokens=max_tokens,
        priority=None,
        session=None,
        verdict=verdict,
        attributes=attributes,
        clock=None,
    )
    if carried is None:
        return Task(spec)
    return Task(_with_options(spec, carried.options), part_of=_traceparent(found.get(TRACEPARENT)))


def _with_options(spec: TaskSpec, options: CallOptions) -> TaskSpec:
    return spec._replace(options=options)


def _options_in_force(task: Task) -> CallOptions:
    """The priority and the session that calls of the task have: its own, else an outer task's."""
    given = task.options
    outer = task.parent
    while outer is not None:
        if given.priority is None and given.traffic_class is None:
            given = given._replace(
                priority=outer.options.priority, traffic_class=outer.options.traffic_class
            )
        if given.session is None:
            given = given._replace(session=outer.options.session)
        outer = outer.parent
    return given


def _cost_left(task: Task) -> Decimal | None:
    left: Decimal | None = None
    ledger = task._ledger
    while True:
        if ledger.caps.cost is not None:
            here = max(ZERO, MONEY.subtract(ledger.caps.cost, ledger.cost))
            left = here if left is None else min(left, here)
        if ledger.parent is None:
            return left
        ledger = ledger.parent


def _traceparent(value: str | None) -> str:
    return value if value is not None and _TRACEPARENT.fullmatch(value) else ""


def _parse(text: str) -> _Carried:
    if len(text) > HEADER_BYTES_MAX:
        raise _MalformedError(f"longer than {HEADER_BYTES_MAX} bytes")
    fields: dict[str, str] = {}
    for part in text.split(";"):
        match = _FIELD.fullmatch(part.strip(" "))
        if match is None:
            raise _MalformedError("expected key=value pairs separated by semicolons")
        key, value = match.groups()
        if key in fields:
            raise _MalformedError(f"{key} is given twice")
        fields[key] = _decoded(value)
    if fields.get("v") != "1":
        raise _MalformedError("not of version 1")
    return _Carried(
        id=_text(fields, "id", ID_CHARS_MAX) or _missing("id"),
        name=_text(fields, "name", NAME_CHARS_MAX) or _missing("name"),
        deadline_s=_deadline_s(fields),
        cost_left=_usd(fields),
        options=CallOptions(
            priority=_integer(fields, "priority", -PRIORITY_MAX, PRIORITY_MAX),
            traffic_class=_text(fields, "class", NAME_CHARS_MAX),
            session=_text(fields, "session", SESSION_CHARS_MAX),
        ),
    )


def _missing(key: str) -> str:
    raise _MalformedError(f"{key} is missing")


def _decoded(value: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise _MalformedError("a value is not percent-encoded UTF-8") from None


def _text(fields: Mapping[str, str], key: str, chars_max: int) -> str | None:
    value = fields.get(key)
    if value is None:
        return None
    if not value or len(value) > chars_max or not value.isprintable():
        raise _MalformedError(f"{key} must be 1 to {chars_max} printable characters")
    return value


def _integer(fields: Mapping[str, str], key: str, least: int, most: int) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,12}", value, re.ASCII) or not least <= int(value) <= most:
        raise _MalformedError(f"{key} must be a whole number from {least} to {most}")
    return int(value)


def _deadline_s(fields: Mapping[str, str]) -> float | None:
    left_ms = _integer(fields, "deadline-ms", 0, DEADLINE_MS_MAX)
    # 0 is a deadline that has passed: the part begins, and its first call is refused.
    return None if left_ms is None else max(left_ms, 0.001) / 1000


def _usd(fields: Mapping[str, str]) -> Decimal | None:
    value = fields.get("cost-left")
    if value is None:
        return None
    try:
        amount = Decimal(value) if re.fullmatch(r"[0-9.]{1,40}", value, re.ASCII) else None
    except InvalidOperation:
        amount = None
    if amount is None or amount > COST_MAX:
        raise _MalformedError("cost-left must be an amount of USD")
    return amount
