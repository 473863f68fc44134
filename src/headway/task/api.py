"""`headway.task(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from headway.task.spec import Clock, Judge, make_spec
from headway.task.task import Task


def task(
    name: str,
    *,
    id: str | None = None,  # noqa: A002 - reads as it should at the call
    deadline: float | timedelta | None = None,
    max_cost: Decimal | str | float | None = None,
    max_calls: int | None = None,
    max_tokens: int | None = None,
    priority: int | str | None = None,
    session: str | None = None,
    verdict: str | Judge = "explicit",
    attributes: Mapping[str, str | bool | int | float] | None = None,
    clock: Clock | None = None,
) -> Task:
    """A unit of work: `with task("triage", deadline=120, max_cost="0.50") as t: ...; t.succeed()`.

    Also `async with`, and a decorator of functions, coroutine functions and generators (a
    generator's task lasts from the first item to the end, and is current only while its own body
    runs).

    `deadline` is seconds or a timedelta from entry, and covers everything inside; nested tasks
    inherit the earlier one. `max_cost` (USD, decimal text), `max_calls` and `max_tokens` stop the
    next call before any spend, in nested tasks too; calls still running are counted at the mean so
    far. `priority` is a number (higher goes first) or the name of a class of the policy. `session`
    keeps the calls where the prefix cache is warm. `id` defaults to 16 random hex digits. `verdict`
    is what success means: "explicit" (only `succeed()`, `fail()`), "no_exception", or, on a
    decorated function, a function of its result (True, False, or None for don't know). `attributes`
    go onto the span. `clock` (monotonic seconds) is for tests.

    Raises `TypeError` or `ValueError` at once, naming the argument that makes no sense.
    """
    return Task(
        make_spec(
            name,
            id=id,
            deadline=deadline,
            max_cost=max_cost,
            max_calls=max_calls,
            max_tokens=max_tokens,
            priority=priority,
            session=session,
            verdict=verdict,
            attributes=attributes,
            clock=clock,
        )
    )
