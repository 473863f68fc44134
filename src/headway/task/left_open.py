"""Tasks that nobody ended: settled as "unknown", with a warning.

A finalizer may run at any bytecode of any thread, under any lock, so `Task.__del__` only queues the
task; the next task or call, or the end of the process, settles it. So it is with a task whose block
the collector leaves, in a generator or a coroutine that was forgotten.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections import deque
from typing import TYPE_CHECKING

from headway import collecting
from headway.forks import renew

if TYPE_CHECKING:
    from headway.task.task import Task

logger = logging.getLogger("headway")

_open: weakref.WeakSet[Task] = weakref.WeakSet()
_abandoned: deque[tuple[Task, BaseException | None]] = deque()
_at_exit_registered = False


def track(task: Task) -> None:
    """Remember an open task until it ends."""
    global _at_exit_registered
    if not _at_exit_registered:
        _at_exit_registered = True
        collecting.watch()
        atexit.register(settle_open_tasks)
    _open.add(task)


def untrack(task: Task) -> None:
    """It has ended."""
    _open.discard(task)


def abandon(task: Task, problem: BaseException | None) -> None:
    """Queue a task that was collected while open, or whose block the collector left: `problem` is
    its way of leaving. `deque.append` needs no lock."""
    _abandoned.append((task, problem))


def settle_abandoned() -> None:
    """Settle what has been collected while open."""
    while _abandoned:
        try:
            task, problem = _abandoned.popleft()
        except IndexError:  # another thread was faster
            return
        if problem is None:
            _settle(task, "was never ended (its block was not left)")
        else:
            task._finish(problem)


def settle_open_tasks() -> None:
    """Settle every task of this process that is still open: at exit, or at shutdown."""
    settle_abandoned()
    for task in list(_open):
        if task._pid == os.getpid():  # a forked child leaves its parent's tasks alone
            _settle(task, "was still open when the process ended")


def _after_fork_in_child() -> None:
    for task in list(_open):  # the child may go on in the task that it was forked in
        renew(task._ledger.lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _settle(task: Task, why: str) -> None:
    logger.warning(
        "task %r (%s) %s: its outcome is %s",
        task.name,
        task.id,
        why,
        task.outcome,
        extra={"headway_event": "headway.task.left_open"},
    )
    task._finish(None)
