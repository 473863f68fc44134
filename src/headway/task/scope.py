"""Where a call finds out which task it belongs to and how it is to be treated.

One context variable holds both. It follows `asyncio.gather`, `create_task` and `asyncio.to_thread`;
threads and executors start empty, so hand them `bind(fn)`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token, copy_context
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, cast

from headway.core.model import INFINITY

if TYPE_CHECKING:
    from types import TracebackType

    from headway.task.task import Task

P = ParamSpec("P")
R = TypeVar("R")

SESSION_CHARS_MAX = 256
NAME_CHARS_MAX = 200


class CallOptions(NamedTuple):
    """What the surrounding scopes say about a call. None: nothing."""

    deadline_at: float = INFINITY
    """Absolute, on the task's clock (`time.monotonic`)."""
    priority: int | None = None
    traffic_class: str | None = None
    """A class of the policy, when `priority` was given by name."""
    session: str | None = None
    hedge: bool | None = None
    idempotent: bool | None = None
    route: str | None = None
    tenant: str | None = None


class Scope(NamedTuple):
    """The task a call belongs to, and its options."""

    task: Task | None
    options: CallOptions


_EMPTY = Scope(None, CallOptions())
_SCOPE: ContextVar[Scope] = ContextVar("headway_scope", default=_EMPTY)


def current_scope() -> Scope:
    """The scope of the running code: `(task, options)`."""
    return _SCOPE.get()


def nothing_in_scope() -> bool:
    """Whether the running code is in no task and has set no options."""
    return _SCOPE.get() is _EMPTY


def enter_scope(scope: Scope) -> Token[Scope]:
    """Make `scope` current; hand the token to `leave_scope`."""
    return _SCOPE.set(scope)


def leave_scope(token: Token[Scope]) -> bool:
    """Make the scope before it current again; False: it was entered in another context."""
    try:
        _SCOPE.reset(token)
    except ValueError:
        # Closed from another context (an async generator finalised by the loop): that context never
        # had our scope, so there is nothing to restore.
        return False
    return True


# --------------------------------------------------------------------------- checked arguments


def seconds(value: float | timedelta, what: str) -> float:
    """A relative duration in seconds, or a clear error."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{what} must be seconds or a timedelta, got {value!r}")
    if not value > 0 or value == INFINITY:
        raise ValueError(f"{what} must be a positive number of seconds, got {value!r}")
    return float(value)


def label(value: str, what: str, chars_max: int) -> str:
    """A short non-empty text, or a clear error."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{what} must be text, got {value!r}")
    if not value or len(value) > chars_max:
        raise ValueError(f"{what} must have 1 to {chars_max} characters, got {len(value)}")
    return value


def with_priority(options: CallOptions, priority: int | str | None) -> CallOptions:
    """`options` with a priority by number, or by the name of a traffic class."""
    if priority is None:
        return options
    if isinstance(priority, str):
        return options._replace(traffic_class=label(priority, "priority", NAME_CHARS_MAX))
    if isinstance(priority, bool) or not isinstance(priority, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"priority must be a whole number or the name of a class, got {priority!r}")
    return options._replace(priority=priority)


class options:  # noqa: N801 - reads as a statement: `with headway.options(...)`
    """A scope for one or more calls: `with headway.options(deadline=5, hedge=True): ...`.

    `deadline` (seconds or timedelta) covers queueing, retries and the stream, starts when the scope
    is entered, and can only shorten an outer one. `priority` is a whole number (higher goes first)
    or the name of a class in the policy. `session` keeps calls on the endpoint with the warm prefix
    cache. `hedge` allows or forbids a second attempt beside a slow one. `idempotent=True` says a
    call that may have run is safe to repeat. `route` names a route of the policy, `tenant` whose
    budget of the policy the calls are paid from.

    Raises `TypeError` or `ValueError` at once when an argument makes no sense.
    """

    def __init__(
        self,
        *,
        deadline: float | timedelta | None = None,
        priority: int | str | None = None,
        session: str | None = None,
        hedge: bool | None = None,
        idempotent: bool | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> None:
        self._deadline_s = None if deadline is None else seconds(deadline, "deadline")
        changes = with_priority(CallOptions(), priority)
        if session is not None:
            changes = changes._replace(session=label(session, "session", SESSION_CHARS_MAX))
        if route is not None:
            changes = changes._replace(route=label(route, "route", NAME_CHARS_MAX))
        if tenant is not None:
            changes = changes._replace(tenant=label(tenant, "tenant", NAME_CHARS_MAX))
        for value, what in ((hedge, "hedge"), (idempotent, "idempotent")):
            if value is not None and not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"{what} must be True or False, got {value!r}")
        self._changes = changes._replace(hedge=hedge, idempotent=idempotent)
        self._tokens: list[Token[Scope]] = []
        """Of all who are inside: one object may be entered by many tasks and threads at once."""

    def __enter__(self) -> CallOptions:
        task, outer = current_scope()
        given = {k: v for k, v in self._changes._asdict().items() if v is not None}
        if "priority" in given or "traffic_class" in given:
            outer = outer._replace(priority=None, traffic_class=None)  # one replaces the other
        inner = outer._replace(**given)
        deadline_at = outer.deadline_at
        if self._deadline_s is not None:
            from headway.task.task import clock_of

            deadline_at = min(deadline_at, clock_of(task)() + self._deadline_s)
        inner = inner._replace(deadline_at=deadline_at)
        self._tokens.append(enter_scope(Scope(task, inner)))
        return inner

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for token in reversed(self._tokens):
            if leave_scope(token):  # else it is somebody else's, in another context
                self._tokens.remove(token)
                return

    async def __aenter__(self) -> CallOptions:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, problem, trace)


# --------------------------------------------------------------------------- threads and executors


def bind(fn: Callable[P, R]) -> Callable[P, R]:
    """Carry the current task (and the trace context) into whatever thread calls `fn`.

    `executor.submit(headway.bind(work), item)`. Works for coroutine functions too. The context is
    taken now, once; every call gets its own copy, so one bound function may run in many threads.
    """
    captured = copy_context()
    if inspect.iscoroutinefunction(fn):

        @wraps(fn)
        async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            coroutine = cast("Any", fn(*args, **kwargs))
            return await asyncio.get_running_loop().create_task(coroutine, context=captured.copy())

        return cast("Callable[P, R]", run_async)

    @wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # A context can be entered by one thread at a time: hence a copy for each call.
        return captured.copy().run(fn, *args, **kwargs)

    return run
