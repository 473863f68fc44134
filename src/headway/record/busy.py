"""Who pays for a GPU while several attempts share it."""

from __future__ import annotations

import threading


class BusyTime:
    """Shares out the time an endpoint was busy: of n attempts at once each is charged 1/n.

    The charges of all attempts add up to the busy time, so every GPU-second is attributed exactly
    once. An attempt's mean in-flight is then the harmonic one: its seconds over its charge.
    """

    __slots__ = ("_at", "_inflight", "_lock", "_share_s")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._inflight = 0
        self._share_s = 0.0

    def start(self, at: float) -> float:
        """Count an attempt in at instant `at`; keep the mark for `stop`."""
        with self._lock:
            self._advance(at)
            self._inflight += 1
            return self._share_s

    def stop(self, at: float, mark: float) -> float:
        """Count it out; the seconds it is charged."""
        with self._lock:
            self._advance(at)
            if self._inflight:  # zero in a forked child, which ends what only its parent counted
                self._inflight -= 1
            return max(0.0, self._share_s - mark)

    def _advance(self, at: float) -> None:
        # Two threads may bring their instants in the wrong order: time never runs backwards here.
        if at > self._at:
            if self._inflight > 0:
                self._share_s += (at - self._at) / self._inflight
            self._at = at
