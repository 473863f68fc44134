"""Tasks: what an application's calls are for, and the scope that ties them together."""

from headway.task.api import task
from headway.task.carry import continue_task
from headway.task.left_open import settle_open_tasks
from headway.task.observe import TaskObserver, add_observer, remove_observer
from headway.task.scope import CallOptions, Scope, bind, current_scope, options
from headway.task.task import OUTCOMES, Phase, Task, clock_of

__all__ = [
    "OUTCOMES",
    "CallOptions",
    "Phase",
    "Scope",
    "Task",
    "TaskObserver",
    "add_observer",
    "bind",
    "clock_of",
    "continue_task",
    "current_scope",
    "options",
    "remove_observer",
    "settle_open_tasks",
    "task",
]
