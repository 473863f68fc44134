"""For code that already retries with tenacity: the same budget, and no retry of what Headway gave
up on.

    @tenacity.retry(
        retry=headway.tenacity.retry(on=OutputParserError),
        stop=headway.tenacity.stop() | tenacity.stop_after_attempt(4),
        wait=tenacity.wait_random_exponential(max=5),
    )
    def step(): ...

Headway has retried a call before its error surfaces, so retrying the error again would multiply the
attempts: `retry` never does. What is left to retry is the application's own trouble with an answer
(it would not parse, it failed a check): each such retry takes one of the task's extra attempts, and
one from the budget of the router, if given, so a loop outside can't spend what the loops inside may
not.

tenacity itself is imported when a predicate is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headway.errors import HeadwayError
from headway.task.task import Phase, Task

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.retry import retry_base
    from tenacity.stop import stop_base

ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


class RetryBudget(Protocol):
    """Where retries are drawn from: a router."""

    def take_retry(self) -> bool:
        """Take one extra attempt from the budget; False when there is none."""
        ...


def given_up(problem: BaseException) -> bool:
    """Whether `problem`, or what it was raised from, is the final answer of a managed call.

    Headway's own errors are, and so is an upstream's answer once attempts have ended: it carries
    `x-should-retry: false`, or the note that Headway puts on it.
    """
    seen: set[int] = set()
    cause: BaseException | None = problem
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, HeadwayError):
            return True
        headers = getattr(getattr(cause, "response", None), "headers", None)
        if headers is not None and headers.get("x-should-retry") == "false":
            return True
        if any(note.startswith("Headway: ") for note in getattr(cause, "__notes__", ())):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def retry(
    *,
    on: ExceptionTypes = Exception,
    unless_result: Callable[[object], bool] | None = None,
    budget: RetryBudget | None = None,
) -> retry_base:
    """A tenacity `retry=` predicate.

    Retries exceptions of the types `on`, and results that `unless_result` says False to, while the
    current task has extra attempts left (max(3, 20 % of its calls)) and `budget` grants one. Never
    retries what Headway gave up on, a task that is over, or a cancellation.
    """
    from tenacity.retry import retry_base

    class _Retry(retry_base):
        def __call__(self, retry_state: RetryCallState) -> bool:
            outcome = retry_state.outcome
            if outcome is None:
                return False
            if outcome.failed:
                problem = outcome.exception()
                if problem is None or not isinstance(problem, on) or given_up(problem):
                    return False
                if not isinstance(problem, Exception):
                    return False  # cancellation and exit are not failures
            elif unless_result is None or unless_result(outcome.result()):
                return False
            return _take(budget)

    return _Retry()


def stop() -> stop_base:
    """A tenacity `stop=` predicate: no attempt that the current task couldn't carry.

    Stops when the task's deadline would pass during the coming wait, or when it is over.
    """
    from tenacity.stop import stop_base

    class _Stop(stop_base):
        def __call__(self, retry_state: RetryCallState) -> bool:
            task = Task.current()
            if task is None:
                return False
            waits_s = getattr(retry_state, "upcoming_sleep", 0.0) or 0.0
            return task.phase is not Phase.OPEN or task.remaining_s <= waits_s

    return _Stop()


def _take(budget: RetryBudget | None) -> bool:
    task = Task.current()
    if task is not None:
        if task.phase is not Phase.OPEN or task.remaining_s <= 0:
            return False
        if task.extra_attempts_left <= 0:
            return False
    if budget is not None and not budget.take_retry():
        return False
    return task is None or task._take_extra_attempt()
