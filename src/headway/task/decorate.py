"""`@headway.task(...)`: every call of the decorated function is a task of its own.

A generator's task lasts from its first step to its end, and is current only while the generator's
own body runs: between the items the consumer's code is not part of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from functools import wraps
from typing import Any, TypeVar, cast

from headway.task.spec import TaskSpec

logger = logging.getLogger("headway")

F = TypeVar("F", bound=Callable[..., Any])


def decorate(fn: F, spec: TaskSpec) -> F:
    """Wrap `fn`, whatever kind of function it is."""
    if not callable(fn):
        raise TypeError(f"task {spec.name!r} can decorate functions, got {fn!r}")
    if inspect.isasyncgenfunction(fn):
        return cast("F", _async_generator(fn, spec))
    if inspect.isgeneratorfunction(fn):
        return cast("F", _generator(fn, spec))
    if inspect.iscoroutinefunction(fn):
        return cast("F", _coroutine(fn, spec))
    return cast("F", _plain(fn, spec))


class _Run:
    """One run of a decorated function: a task, entered once per step."""

    def __init__(self, spec: TaskSpec) -> None:
        from headway.task.task import Task

        self._task = Task(spec)
        self._task._begin()

    def __enter__(self) -> None:
        self._token = self._task._enter()

    def __exit__(self, *_: object) -> None:
        self._task._leave(self._token)

    def returned(self, result: object) -> None:
        try:
            self._task._judge(result)
        except Exception as problem:  # noqa: BLE001 - a judge that fails has no verdict
            logger.warning(
                "the verdict function of task %r failed (%s): no verdict",
                self._task.name, type(problem).__name__,
            )  # fmt: skip
        self._task._finish(None)

    def raised(self, problem: BaseException) -> None:
        self._task._finish(problem)


def _plain(fn: Callable[..., Any], spec: TaskSpec) -> Callable[..., Any]:
    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        task = _Run(spec)
        try:
            with task:
                result = fn(*args, **kwargs)
        except BaseException as problem:
            task.raised(problem)
            raise
        task.returned(result)
        return result

    return run


def _coroutine(fn: Callable[..., Any], spec: TaskSpec) -> Callable[..., Any]:
    @wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        task = _Run(spec)
        try:
            with task:
                result = await fn(*args, **kwargs)
        except BaseException as problem:
            task.raised(problem)
            raise
        task.returned(result)
        return result

    return run


def _generator(
    fn: Callable[..., Generator[Any, Any, Any]], spec: TaskSpec
) -> Callable[..., Generator[Any, Any, Any]]:
    @wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        task = _Run(spec)
        body = fn(*args, **kwargs)
        step: Callable[..., Any] = body.send
        given: Any = None
        result: Any = None
        try:
            while True:
                try:
                    with task:
                        item = step(given)
                except StopIteration as stop:
                    result = stop.value
                    break
                try:
                    given = yield item
                    step = body.send
                except GeneratorExit:
                    with task:
                        body.close()
                    raise
                except BaseException as problem:  # noqa: BLE001 - thrown in: the body's to handle
                    given, step = problem, body.throw
        except BaseException as problem:
            task.raised(problem)
            raise
        task.returned(result)
        return result

    return run


def _async_generator(
    fn: Callable[..., AsyncGenerator[Any, Any]], spec: TaskSpec
) -> Callable[..., AsyncGenerator[Any, Any]]:
    @wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        task = _Run(spec)
        body = fn(*args, **kwargs)
        step: Callable[..., Any] = body.asend
        given: Any = None
        try:
            while True:
                try:
                    with task:
                        item = await step(given)
                except StopAsyncIteration:
                    break
                try:
                    given = yield item
                    step = body.asend
                except GeneratorExit:
                    with task:
                        await body.aclose()
                    raise
                except BaseException as problem:  # noqa: BLE001 - thrown in: the body's to handle
                    given, step = problem, body.athrow
        except BaseException as problem:
            task.raised(problem)
            raise
        task.returned(None)

    return run
