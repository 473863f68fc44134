"""Who is told about tasks: telemetry and the task log. Nothing they do can break a task."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.record import CallRecord
    from headway.task.task import Task

SWITCH = "HEADWAY_DISABLED"
_TRUE = frozenset({"1", "true", "yes", "on"})
logger = logging.getLogger("headway")


class TaskObserver:
    """Override what you need. A task keeps one note per observer in `task._notes[self]`."""

    def task_opened(self, task: Task) -> None:
        """The task begins, and is about to become current."""

    def task_entered(self, task: Task) -> None:
        """The task is current in the running context from here on."""

    def task_left(self, task: Task) -> None:
        """The task is no longer current here (a generator pauses, or the task is over)."""

    def call_settled(self, task: Task, record: CallRecord) -> None:
        """A call of this task (not of a nested one) is over and its cost known as well as it can
        be."""

    def task_closed(self, task: Task) -> None:
        """The task is over: outcome, duration and figures stand."""

    def task_reported(self, task: Task) -> None:
        """A verdict came after the task was over."""


_observers: tuple[TaskObserver, ...] = ()
_told: dict[str, tuple[Callable[..., None], ...]] = {}
_unloaded = ["headway.telemetry"]
"""Modules that observe every task of a process. Imported as the first task begins: an application
may open one before it wraps a client, and `import headway` is to stay cheap."""


def load_observers() -> None:
    """See to it that telemetry and the task log are told of tasks."""
    while _unloaded:
        try:
            import_module(_unloaded.pop())
        except Exception as problem:  # noqa: BLE001 - tasks work without being observed
            logger.warning("tasks are not observed: %s", type(problem).__name__)


def add_observer(observer: TaskObserver) -> None:
    """Tell `observer` about every task from now on. Adding it twice is adding it once."""
    if observer not in _observers:
        _observe((*_observers, observer))


def remove_observer(observer: TaskObserver) -> None:
    """Tell it no more."""
    _observe(tuple(o for o in _observers if o is not observer))


def _observe(observers: tuple[TaskObserver, ...]) -> None:
    global _observers, _told
    _observers = observers
    # A hook that an observer leaves as it is costs a task nothing.
    _told = {
        what: tuple(getattr(o, what) for o in observers if getattr(type(o), what) is not inherited)
        for what, inherited in vars(TaskObserver).items()
        if not what.startswith("_")
    }


def is_disabled() -> bool:
    """Whether the kill switch is on: calls pass straight through, and nothing is known of them."""
    return os.environ.get(SWITCH, "").strip().lower() in _TRUE


def tell(what: str, task: Task, *about: object) -> None:
    """Call the method `what` of every observer; a failure is logged and goes no further. Nobody is
    told of a task whose calls are not accounted for."""
    if task.is_disabled:
        return
    for hear in _told.get(what, ()):
        try:
            hear(task, *about)
        except Exception as problem:
            logger.warning(
                "%s failed and was ignored: %s",
                hear.__qualname__,
                type(problem).__name__,
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
