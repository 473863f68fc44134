"""The task log: one JSON line per finished task, for people without a telemetry backend.

    HEADWAY_TASK_LOG=/var/log/app/tasks.jsonl

A line holds the task's verdict, time and money, its calls and their attempts: never a prompt, an
answer, an exception's message or a key. Processes may share the file: each line is one `write` to a
descriptor opened for appending, and opened anew each time, so a rotation by another process is
seen. The file is made 0600. Past `size_max` it becomes `tasks.jsonl.1`, the older ones move up, the
oldest goes. Whatever fails here is logged, once a minute at most, and goes no further.

Money is decimal text. A nested task has a line of its own with its own calls; its figures are part
of its parent's. A late verdict is a short line with the same id."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cost import plain
from headway.task.observe import TaskObserver, add_observer, remove_observer

if TYPE_CHECKING:
    from decimal import Decimal

    from headway.record import AttemptRecord, CallRecord
    from headway.task import Task

logger = logging.getLogger("headway")

VARIABLE = "HEADWAY_TASK_LOG"
SIZE_MAX_BYTES = 16 * 1024 * 1024
KEPT_MAX = 3
"""Rotated files kept: 64 MiB in all."""
CALLS_MAX = 200
"""Calls written out per task; the figures count them all."""
LINE_BYTES_MAX = 256 * 1024
"""A longer line leaves its calls out: appends must stay small to stay whole."""
COMPLAIN_EVERY_S = 60.0
LOCK_STALE_S = 10.0


class TaskLog(TaskObserver):
    """Appends finished tasks to `path`; None: wherever HEADWAY_TASK_LOG points, at that moment."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        size_max: int = SIZE_MAX_BYTES,
        kept_max: int = KEPT_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._size_max = size_max
        self._kept_max = kept_max
        self._clock = clock
        self._complained_at: float | None = None

    @property
    def path(self) -> Path | None:
        """Where lines go now; None: nowhere."""
        if self._path is not None:
            return self._path
        named = os.environ.get(VARIABLE)
        return Path(named) if named else None

    def call_settled(self, task: Task, record: CallRecord) -> None:
        """Note a call until its task ends."""
        if self.path is None:
            return
        noted: list[dict[str, object]] = task._notes.setdefault(self, [])
        if len(noted) < CALLS_MAX:
            noted.append(call_line(record))

    def task_closed(self, task: Task) -> None:
        """Write the task's line."""
        path = self.path
        if path is not None:
            self._append(path, task_line(task, task._notes.pop(self, [])))

    def task_reported(self, task: Task) -> None:
        """Write the late verdict's line."""
        path = self.path
        if path is not None:
            late = {"v": 1, "late": True, "id": task.id, "name": task.name, "outcome": task.outcome}
            self._append(path, late | _given(score=task.score, reason=task.reason))

    # ----------------------------------------------------------------- the file

    def _append(self, path: Path, line: dict[str, Any]) -> None:
        try:
            written = _encoded(line)
            if len(written) > LINE_BYTES_MAX:
                written = _encoded(line | {"calls": [], "calls_left_out": len(line["calls"])})
            descriptor = os.open(path, _flags(path), 0o600)
            if os.fstat(descriptor).st_size >= self._size_max:
                os.close(descriptor)
                self._rotate(path)
                descriptor = os.open(path, _flags(path), 0o600)
            try:
                if os.write(descriptor, written) < len(written):  # a full disk
                    os.write(descriptor, b"\n")  # at least the next line starts on its own
            finally:
                os.close(descriptor)
        except (OSError, ValueError, TypeError) as problem:
            self._complain(path, problem)

    def _rotate(self, path: Path) -> None:
        """Move the files up by one, unless another process is at it: then it does the same."""
        lock = path.with_name(path.name + ".lock")
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            with suppress(OSError):  # left behind by a process that died here
                if time.time() - lock.stat().st_mtime > LOCK_STALE_S:
                    lock.unlink()
            return
        try:
            if path.stat().st_size < self._size_max:
                return
            for number in range(self._kept_max - 1, 0, -1):
                with suppress(FileNotFoundError):
                    _numbered(path, number).replace(_numbered(path, number + 1))
            if self._kept_max > 0:
                path.replace(_numbered(path, 1))
            else:
                path.unlink()
        finally:
            lock.unlink(missing_ok=True)

    def _complain(self, path: Path, problem: Exception) -> None:
        now = self._clock()
        if self._complained_at is None or now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            logger.warning("the task log %s can't be written: %s", path, problem)


def _flags(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe without a reader must not stop the application
    if path.parts[:2] != ("/", "dev"):  # /dev/stdout is a link, and meant
        flags |= getattr(os, "O_NOFOLLOW", 0)  # elsewhere it may be somebody else's
    return flags


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


# --------------------------------------------------------------------------- lines


def task_line(task: Task, calls: list[dict[str, object]]) -> dict[str, Any]:
    """One finished task. Optional keys are left out, not null."""
    cost = task.cost
    line: dict[str, Any] = {
        "v": 1,
        "id": task.id,
        "name": task.name,
        "at": round(task.started_wall, 3),
        "duration_s": _seconds(task.duration_s),
        "outcome": task.outcome,
        "cost_usd": _usd(cost),
        "cost_source": task.cost_source,
        "complete": task.cost_complete,
        "wasted_usd": _usd(task.wasted),
        "cost_by_source_usd": {s: _usd(amount) for s, amount in task.cost_by_source.items()},
        "n_calls": task.calls,
        "n_attempts": task.attempts,
        "input_tokens": task.input_tokens,
        "output_tokens": task.output_tokens,
    }
    line |= _given(
        outcome_source=task.outcome_source,
        score=task.score,
        reason=task.reason,
        error=task.error_type,
        parent=None if task.parent is None else task.parent.id,
        part=True if task.part_of is not None else None,
        attributes=dict(task.attributes) or None,
        saved_usd=_usd(task.saved or None),
    )
    return line | {"calls": calls}


def call_line(record: CallRecord) -> dict[str, object]:
    """One call of a task."""
    facts = record.facts
    lasted = None if record.ended_at is None else record.ended_at - record.started_at
    winner = record.winner
    refused = None if record.rejection is None else record.rejection.reason
    line: dict[str, object] = {
        "model": facts.model,
        "surface": facts.surface,
        "stream": facts.stream,
        "outcome": None if record.outcome is None else record.outcome.kind.value,
        "duration_s": _seconds(lasted),
        "cost_usd": _usd(record.cost.amount),
        "cost_source": record.cost.source,
        "wasted_usd": _usd(record.wasted),
    }
    line |= _given(
        endpoint=None if winner is None else winner.endpoint.id,
        **{"observed_rejected" if record.is_observed else "rejected": refused},
        policy_version=None if record.call is None else record.call.snapshot.version,
        retry_denied=record.denied_by,
        queue_s=_seconds(record.queue_wait_s or None),
    )
    shared = record.shared
    if shared is not None:
        line |= _given(
            decision=shared.decision,
            callers=shared.callers if shared.callers > 1 else None,
            saved_usd=_usd(shared.saved or None),
        )
    return line | {"attempts": [attempt_line(a) for a in record.attempts]}


def attempt_line(attempt: AttemptRecord) -> dict[str, object]:
    """One attempt of a call."""
    cost = attempt.cost
    usage = attempt.settled_usage
    line: dict[str, object] = {
        "n": attempt.attempt.number,
        "kind": attempt.attempt.kind.value,
        "endpoint": attempt.endpoint.id,
        "model": attempt.attempt.model,
        "result": attempt.result,
        "duration_s": _seconds(attempt.duration_s),
        "cost_usd": None if cost is None else _usd(cost.amount),
        "cost_source": None if cost is None else cost.source,
        "wasted": attempt.wasted,
    }
    outcome = attempt.outcome
    return line | _given(
        status=attempt.status,
        failure=outcome.kind.value if outcome is not None and attempt.result != "ok" else None,
        ttft_s=_seconds(attempt.ttft_s),
        input_tokens=None if usage is None else usage.input_tokens,
        cached_tokens=None if usage is None else usage.cached_input_tokens,
        output_tokens=None if usage is None else usage.output_tokens,
    )


def _given(**values: object) -> dict[str, object]:
    return {key: value for key, value in values.items() if value is not None}


def _usd(amount: Decimal | None) -> str | None:
    return None if amount is None else plain(amount)


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


# --------------------------------------------------------------------------- installing

_installed = TaskLog()
add_observer(_installed)


def install(log: TaskLog | None = None) -> TaskLog:
    """Write finished tasks of this process to `log`; None: as HEADWAY_TASK_LOG says, the
    default."""
    global _installed
    remove_observer(_installed)
    _installed = log if log is not None else TaskLog()
    add_observer(_installed)
    return _installed


def ensure_installed() -> TaskLog:
    """The log in force. Without the variable it costs one look-up per finished task."""
    return _installed
