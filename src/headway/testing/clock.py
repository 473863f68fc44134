"""Time that moves only when told to."""

from __future__ import annotations


class FakeClock:
    """A monotonic clock for tests: call it to read it, `advance` it to let time pass.

    Hand it to `Router(clock=...)`. Not thread-safe: a test that shares it between threads has to
    decide itself who moves the time.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """The current instant, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> float:
        """Let `seconds` pass and return the new instant."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds})")
        self._now_s += seconds
        return self._now_s
