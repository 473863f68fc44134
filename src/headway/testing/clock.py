"""Time that moves only when told to."""

from __future__ import annotations

from typing import Final

WALL_START_S: Final = 1_700_000_000.0
"""Unix seconds at the start of every fake clock: a day in November 2023."""


class FakeClock:
    """A monotonic clock for tests: call it to read it, `advance` it to let time pass.

    Hand it to `Router(clock=...)`. Not thread-safe: a test that shares it between threads has to
    decide itself who moves the time.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._start_s = start_s
        self._now_s = start_s

    def wall(self) -> float:
        """The same instant as Unix seconds."""
        return WALL_START_S + self._now_s - self._start_s

    def __call__(self) -> float:
        """The current instant, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass and return the new instant."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds})")
        self._now_s += seconds
        return self._now_s
