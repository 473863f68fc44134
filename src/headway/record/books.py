"""What all calls of a router share in their accounting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cost import Pricer
from headway.record.busy import BusyTime
from headway.record.call import CallRecord
from headway.record.observed import ObservedCalls
from headway.task.scope import current_scope

if TYPE_CHECKING:
    from headway.core.model import CallFacts
    from headway.record.watching import CallObserver


class Books:
    """What the accounting of a router's calls needs: a price list and an observer. Thread-safe.

    `mode` is the router's: "observe" for calls whose route says nothing else."""

    def __init__(
        self,
        *,
        pricer: Pricer | None = None,
        observer: CallObserver | None = None,
        mode: str = "enforce",
    ) -> None:
        self.pricer = pricer if pricer is not None else Pricer()
        self.observer = observer
        self.mode = mode
        self.observed = ObservedCalls()
        self._busy: dict[str, BusyTime] = {}

    def open_call(
        self,
        facts: CallFacts,
        now: float,
        *,
        earlier: CallRecord | None = None,
        is_exempt: bool = False,
    ) -> CallRecord:
        """Begin the account of a call in the current task and trace context, or go on with an
        `earlier` one (see `headway.task.unanswered`).

        Fills in what the task knows (`facts.task_id`, `task_name`, `deadline_at`,
        `allowance`). Raises `TaskLimitExceeded` or `DeadlineExceeded` when a cap of the
        task forbids the call; none forbids an exempt one."""
        task = current_scope().task if earlier is None else earlier.task
        if task is not None:
            task._open_call(facts, is_exempt=is_exempt, is_open=earlier is not None)
        return CallRecord(self, facts, task, now) if earlier is None else earlier

    def after_fork(self) -> None:
        """In a forked child: attempts under way are the parent's, and shared out there."""
        self._busy = {}

    def busy(self, endpoint_id: str) -> BusyTime:
        """The concurrency meter of an endpoint that is priced by GPU-hour."""
        busy = self._busy.get(endpoint_id)
        return busy if busy is not None else self._busy.setdefault(endpoint_id, BusyTime())
