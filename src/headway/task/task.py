# long: one public class, and what each of its attributes is
"""The task: a unit of user-visible work whose calls, time and money are accounted for together.

    task(...) -> entered -> calls open and settle -> verdict -> left -> late settlements, late
    verdict

A tree of nested tasks shares one lock, and every figure rolls up to the root as it is settled, so a
parent's figures include its children's at any moment. A verdict is what the application says, not
what can be guessed: leaving without one is "unknown".
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable
from contextvars import Token
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headway.collecting import is_collecting
from headway.core.model import INFINITY, CallFacts
from headway.errors import DeadlineExceeded, TaskLimitExceeded
from headway.task.figures import Figures
from headway.task.left_open import abandon, settle_abandoned, track, untrack
from headway.task.observe import is_disabled, load_observers, tell
from headway.task.scope import CallOptions, Scope, current_scope, enter_scope, leave_scope
from headway.task.spec import Clock, TaskSpec
from headway.task.unanswered import settle_unanswered

if TYPE_CHECKING:
    from types import TracebackType

    from headway.record import CallRecord

F = TypeVar("F", bound=Callable[..., Any])

OUTCOMES = ("success", "failure", "error", "cancelled", "shed", "deadline", "unknown")
FAILED = frozenset(OUTCOMES) - {"success", "unknown"}
REASON_CHARS_MAX = 200

_EXCEPTION_OUTCOMES = {
    # By name, up the class hierarchy: asyncio's, concurrent.futures', trio's and anyio's
    # cancellations share no base class.
    "CancelledError": "cancelled",
    "Cancelled": "cancelled",
    "GeneratorExit": "cancelled",
    "KeyboardInterrupt": "cancelled",
    "DeadlineExceeded": "deadline",
    "Shed": "shed",
}


class Phase(enum.Enum):
    """Where in its life a task is."""

    NEW = "new"
    OPEN = "open"
    ENDED = "ended"


class Task(Figures):
    """One unit of work: a context manager (plain and async) and a decorator. Made by
    `headway.task`.

    `outcome` is one of success, failure, error, cancelled, shed, deadline, unknown;
    `outcome_source` says where it comes from (app, judge, exception, late). Once a task is over and
    did not succeed, everything it cost counts as `wasted`."""

    __slots__ = (
        "__weakref__", "_closing", "_notes", "_pid", "_spec", "_token", "attributes", "clock",
        "deadline_at", "depth", "ended_at", "error_type", "id", "is_disabled", "name", "outcome",
        "outcome_source", "parent", "part_of", "phase", "reason", "score", "started_at",
        "started_wall", "traceparent",
    )  # fmt: skip

    def __init__(self, spec: TaskSpec, *, part_of: str | None = None) -> None:
        super().__init__(spec.name, spec.caps)
        self._spec = spec
        self.name = spec.name
        """As given; of metrics and reports."""
        self.id = spec.id or ""
        """As given, else 16 random hex digits; "" before it begins."""
        self.part_of = part_of
        """traceparent ("" without one) of the task in another process that this is a part of."""
        self.attributes = spec.attributes
        """As given; of its span."""
        self.phase = Phase.NEW
        """new, open or ended."""
        self.outcome = "unknown"
        """One of `OUTCOMES`: success, failure, error, cancelled, shed, deadline, unknown."""
        self.outcome_source: str | None = None
        """Whose word that is: app, judge, exception or late; None: nobody's."""
        self.score: float | None = None
        """Given with the verdict."""
        self.reason: str | None = None
        """Given with the verdict."""
        self.error_type: str | None = None
        """The class of the exception that ended it."""
        self.parent: Task | None = None
        """The task that it is nested in."""
        self.depth = 0
        """Tasks around it."""
        self.clock: Clock = spec.clock or time.monotonic
        """Monotonic seconds: what the instants here are of."""
        self.deadline_at = INFINITY
        """The instant at which it is to be over, its own or an outer one; infinite without one."""
        self.started_at = 0.0
        """The instant at which it began."""
        self.started_wall = 0.0
        """The same in Unix seconds."""
        self.ended_at: float | None = None
        """The instant at which it ended."""
        self._notes: dict[object, Any] = {}
        """One note per observer."""
        self.traceparent: str | None = None
        """W3C trace context of the task's span, while it is being traced; set by telemetry."""
        self.is_disabled = False
        """HEADWAY_DISABLED was set as it (or the task around it) began: its calls are not accounted
        for, so its cost is unknown, its caps hold nothing, and neither the task log nor telemetry
        hears of it."""
        self._pid = 0
        self._token: Token[Scope] | None = None
        self._closing = False

    def __repr__(self) -> str:
        cost = "cost unknown" if self.cost is None else f"{self.cost:f} USD"
        return (
            f"<Task {self.name!r} {self.phase.value} {self.outcome}"
            f"{', not accounted for (HEADWAY_DISABLED)' if self.is_disabled else ''}: "
            f"{self.calls} call{'s' * (self.calls != 1)}, "
            f"{self.attempts} attempt{'s' * (self.attempts != 1)}, {cost}>"
        )

    @staticmethod
    def current() -> Task | None:
        """The innermost task around the running code, or None."""
        return current_scope().task

    @property
    def duration_s(self) -> float | None:
        """Seconds from begin to end (so far, while it runs); None before it began."""
        if self.phase is Phase.NEW:
            return None
        return (self.clock() if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; infinite without one, negative past it."""
        return self.deadline_at - self.clock()

    @property
    def options(self) -> CallOptions:
        """The priority and session this task was given."""
        return self._spec.options

    def headers(self) -> dict[str, str]:
        """HTTP headers that let another process continue this task: see `headway.continue_task`."""
        from headway.task.carry import headers_of

        return headers_of(self)

    # ----------------------------------------------------------------- verdicts

    def succeed(self, *, score: float | None = None) -> None:
        """Say that the task did what it was for. Once, inside its block; `RuntimeError`
        otherwise."""
        self._decide("success", "", score)

    def fail(self, reason: str = "", *, score: float | None = None) -> None:
        """Say that it did not. `reason` is recorded (200 characters): no prompt text, please."""
        self._decide("failure", reason, score)

    def report(self, outcome: str, *, reason: str = "", score: float | None = None) -> None:
        """Give the verdict, "success" or "failure", after the task is over, when it becomes known.

        Changes the outcome and tells telemetry of a late verdict; cost and duration were reported
        when the task ended and are not reported again.
        """
        if outcome not in ("success", "failure"):
            raise ValueError(f'outcome must be "success" or "failure", got {outcome!r}')
        if self.phase is not Phase.ENDED:
            self._decide(outcome, reason, score)
            return
        self._set_verdict(outcome, "late", reason, score)
        if outcome == "failure":
            self._ledger.forfeit_all()
        tell("task_reported", self)

    def _decide(self, outcome: str, reason: str, score: float | None) -> None:
        verb = "succeed()" if outcome == "success" else "fail()"
        if self.phase is Phase.NEW:
            raise RuntimeError(f"task {self.name!r} has not begun: {verb} belongs inside its block")
        if self.phase is Phase.ENDED:
            raise RuntimeError(
                f"task {self.name!r} is over ({self.outcome}): use report({outcome!r}) for a "
                "verdict that comes late"
            )
        if self.outcome_source is not None:
            raise RuntimeError(
                f"task {self.name!r} already has a verdict ({self.outcome}): {verb} came second"
            )
        self._set_verdict(outcome, "app", reason, score)

    def _set_verdict(self, outcome: str, source: str, reason: str, score: float | None) -> None:
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"score must be a number, got {score!r}")
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"reason must be text, got {type(reason).__name__}")
        self.outcome = outcome
        self.outcome_source = source
        self.reason = reason[:REASON_CHARS_MAX] or None
        self.score = None if score is None else float(score)

    # ----------------------------------------------------------------- the account

    def _open_call(
        self, facts: CallFacts, *, is_exempt: bool = False, is_open: bool = False
    ) -> None:
        """Count a call in, and tell `facts` what the task knows. Raises before anything is spent.

        `TaskLimitExceeded` (`reason` "max_cost", "max_calls" or "max_tokens") or
        `DeadlineExceeded`; an exempt call is only counted. A request that the SDK sends again is
        no new call; `is_open` says that its call was never settled."""
        settle_abandoned()
        if self.deadline_at != INFINITY:
            late_s = self.clock() - self.deadline_at
            if late_s >= 0 and not is_exempt:
                raise DeadlineExceeded(
                    f"The deadline of task {self.name!r} passed {late_s:.3g} s ago."
                )
            facts.deadline_at = min(facts.deadline_at, self.deadline_at)
        ledger = self._ledger
        if facts.resend:
            if not is_open:
                ledger.reopen_call()
        else:
            if ledger.limits_spending:
                self._settled()
            reached = ledger.open_call(is_exempt=is_exempt)
            if reached is not None:
                cap, limited = reached
                raise TaskLimitExceeded(limited.explain(cap), reason=cap)
        if facts.task_id is None:
            facts.task_id = self.id
        if facts.task_name is None:
            facts.task_name = self.name
        facts.allowance = self._ledger

    def _defer(self, wait: Callable[[], None]) -> None:
        """A finished call waits for the price list; `wait` returns once it has been settled."""
        task: Task | None = self
        while task is not None:
            with task._ledger.lock:
                task._deferred += 1
                task._wait = wait
            task = task.parent

    def _settle(self, record: CallRecord) -> None:
        """Add a finished call's figures here and in every ancestor."""
        self._ledger.settle(record.settlement)
        tell("call_settled", self, record)
        task: Task | None = self if record.deferred else None
        while task is not None:
            with task._ledger.lock:
                task._deferred -= 1
                due = task._closing and not task._deferred
            if due:
                tell("task_closed", task)
            task = task.parent

    # ----------------------------------------------------------------- begin and end

    def _begin(self) -> None:
        """Start the clock. `_enter` makes the task current."""
        settle_abandoned()
        load_observers()
        if self.phase is not Phase.NEW:
            raise RuntimeError(
                f"task {self.name!r} was begun before: make a new one with headway.task(...) "
                "each time"
            )
        spec = self._spec
        outer = current_scope()
        parent = outer.task if outer.task is None or outer.task.phase is Phase.OPEN else None
        if parent is not None:
            self.parent = parent
            self.depth = parent.depth + 1
            self._ledger.nest(parent._ledger)
            self.is_disabled = parent.is_disabled
            if spec.clock is None:
                self.clock = parent.clock
        else:
            self.is_disabled = is_disabled()
            self.depth = 0 if self.part_of is None else 1
        if self.is_disabled:
            self._ledger.unknown_attempts += 1  # for all there may be
        now = self.clock()
        self.started_at = now
        self.started_wall = time.time()
        self.deadline_at = outer.options.deadline_at
        if spec.deadline_s is not None:
            self.deadline_at = min(self.deadline_at, now + spec.deadline_s)
        if not self.id:
            self.id = os.urandom(8).hex()
        self._pid = os.getpid()
        self.phase = Phase.OPEN
        track(self)
        tell("task_opened", self)

    def _enter(self) -> Token[Scope]:
        """Make the task current in the running context; hand the token to `_leave`."""
        outer = current_scope().options
        own = self._spec.options
        options = outer
        if own.priority is not None or own.traffic_class is not None:
            options = options._replace(priority=own.priority, traffic_class=own.traffic_class)
        if own.session is not None:
            options = options._replace(session=own.session)
        if options.deadline_at != self.deadline_at:
            options = options._replace(deadline_at=self.deadline_at)
        token = enter_scope(Scope(self, options))
        tell("task_entered", self)
        return token

    def _leave(self, token: Token[Scope]) -> None:
        """Make what was current before `_enter` current again."""
        tell("task_left", self)
        leave_scope(token)

    def _finish(self, problem: BaseException | None) -> None:
        """End the task: `problem` is the exception that escaped its block, if one did."""
        if self.phase is not Phase.OPEN:
            return
        if problem is not None and is_collecting():
            abandon(self, problem)
            return
        settle_unanswered(self)
        if problem is not None:
            self.error_type = type(problem).__qualname__
            # What went wrong after the application said "success" outweighs it; its "failure"
            # stands.
            if self.outcome_source is None or self.outcome == "success":
                self.outcome = _outcome_of(problem)
                self.outcome_source = "exception"
        elif self.outcome_source is None and self._spec.verdict == "no_exception":
            self.outcome = "success"
            self.outcome_source = "judge"
        self.ended_at = self.clock()
        self.phase = Phase.ENDED
        if self.outcome in FAILED:
            self._ledger.forfeit_all()
        untrack(self)
        with self._ledger.lock:
            self._closing = True
            due = not self._deferred
        if due:
            tell("task_closed", self)

    def _judge(self, result: object) -> None:
        """Let the decorator's `verdict` function say whether `result` is a success."""
        verdict = self._spec.verdict
        if isinstance(verdict, str) or self.outcome_source is not None:
            return
        passed = verdict(result)
        if passed is not None:
            self._set_verdict("success" if passed else "failure", "judge", "", None)

    def __enter__(self) -> Self:
        if not isinstance(self._spec.verdict, str):
            raise ValueError(
                f"task {self.name!r}: a verdict function judges what a decorated function returns; "
                "in a block, call succeed() or fail()"
            )
        self._begin()
        self._token = self._enter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        token, self._token = self._token, None
        try:
            if token is not None:
                self._leave(token)
        finally:
            self._finish(problem)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, problem, trace)

    def __call__(self, fn: F) -> F:
        """Decorate a function: every call of it is a task of its own."""
        from headway.task.decorate import decorate

        return decorate(fn, self._spec)

    def __del__(self) -> None:
        # Runs at any point of any thread: no locks, no logging here. See `left_open`.
        if getattr(self, "phase", None) is Phase.OPEN:
            abandon(self, None)


def _outcome_of(problem: BaseException) -> str:
    for cls in type(problem).__mro__:
        outcome = _EXCEPTION_OUTCOMES.get(cls.__name__)
        if outcome is not None:
            return outcome
    return "error"


def clock_of(task: Task | None) -> Clock:
    """The clock that deadlines under `task` are measured by."""
    return time.monotonic if task is None else task.clock
