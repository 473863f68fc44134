"""What Headway raises (the part that tasks need)."""

from __future__ import annotations

from typing import ClassVar


class HeadwayError(Exception):
    """Base of everything Headway raises."""


class Rejected(HeadwayError):
    """A call was refused before anything was spent on it."""

    status: ClassVar[int] = 429

    def __init__(
        self, message: str, *, reason: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Shed(Rejected):
    """Admission refused the call."""


class TaskLimitExceeded(Rejected):
    """A cap of the task can't carry another call. `reason` names it: "max_cost", "max_calls",
    ..."""

    status: ClassVar[int] = 402


class DeadlineExceeded(HeadwayError):
    """The total deadline of the call or its task has passed."""
