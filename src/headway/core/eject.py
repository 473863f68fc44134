"""Peer ejection: leave out, for a while, the endpoint that is clearly worse than its peers.

Success rates are compared every 10 s over a 120 s window; an endpoint more than 1.9 standard
deviations below the mean of at least five peers is ejected for min(300, 30 * times) s; one clean
interval lowers `times` by one, so flapping is remembered. Below five peers the statistic cannot
fire (a dead host among n has z = sqrt(n - 1)) and nothing is attempted: the breaker is the tool
there. Never more than a third of the pool, and never the last endpoint, is out on this evidence.

After Envoy's outlier detection and gRFC A50. Pure; single-threaded under the engine's lock.
"""

from __future__ import annotations

import math
from collections import deque

INTERVAL_S = 10.0
PEERS_MIN = 5
RESULTS_MIN = 10
STDEV_FACTOR = 1.9
RATE_GAP_MIN = 0.1
"""Without it, peers at 100 % make 99.9 % an outlier."""
BASE_S = 30.0
MAX_S = 300.0
FRACTION_MAX = 1 / 3
WINDOW_INTERVALS = 12


class _Peer:
    __slots__ = ("history", "ok", "seen", "seen_ok", "times", "total", "until")

    def __init__(self) -> None:
        self.ok = 0
        self.total = 0
        self.history: deque[tuple[int, int]] = deque()
        self.seen = 0
        """Sum of the history, as is the next: so that nobody adds it up at each interval."""
        self.seen_ok = 0
        self.times = 0
        self.until = float("-inf")

    def roll(self) -> None:
        history = self.history
        history.append((self.ok, self.total))
        self.seen += self.total
        self.seen_ok += self.ok
        self.ok = self.total = 0
        if len(history) > WINDOW_INTERVALS:
            ok, total = history.popleft()
            self.seen -= total
            self.seen_ok -= ok

    def forget(self) -> None:
        self.history.clear()
        self.seen = self.seen_ok = 0

    def rate(self) -> float | None:
        return self.seen_ok / self.seen if self.seen >= RESULTS_MIN else None


class PeerEjector:
    """Ejection state of one pool's endpoints."""

    __slots__ = ("_peers", "_swept_at", "ejects_until")

    def __init__(self, now: float) -> None:
        self._peers: dict[str, _Peer] = {}
        self._swept_at = now
        self.ejects_until = float("-inf")
        """From then on none is out, until one is ejected again."""

    def record(self, endpoint_id: str, *, ok: bool) -> None:
        """Count one result that says something about the endpoint."""
        peer = self._peers.get(endpoint_id)
        if peer is None:
            peer = self._peers[endpoint_id] = _Peer()
        peer.total += 1
        peer.ok += ok

    def retain(self, endpoint_ids: frozenset[str]) -> None:
        """Forget endpoints that left the pool."""
        for gone in self._peers.keys() - endpoint_ids:
            del self._peers[gone]

    def ejected_until(self, endpoint_id: str) -> float:
        """When the endpoint's ejection ends; -inf if it was never ejected."""
        peer = self._peers.get(endpoint_id)
        return peer.until if peer is not None else float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether an interval has passed since the last `sweep`."""
        return now - self._swept_at >= INTERVAL_S

    def sweep(self, pool_size: int, now: float) -> tuple[list[tuple[str, float]], list[str]]:
        """Once per interval: returns ([(newly ejected, until)], [newly readmitted])."""
        if not self.is_due(now):
            return [], []
        since, self._swept_at = self._swept_at, now
        back: list[str] = []
        if self.ejects_until > since:
            back = [e for e, p in self._peers.items() if since < p.until <= now]
        has_failures = False
        for peer in self._peers.values():
            peer.roll()
            has_failures = has_failures or peer.seen_ok < peer.seen
            # An interval spent outside, even in part, is no proof of health: it would wipe out the
            # memory of flapping at each return.
            if peer.times and peer.until <= since and peer.history[-1][0] == peer.history[-1][1]:
                peer.times -= 1
        for endpoint_id in back:
            self._peers[endpoint_id].forget()  # old failures must not eject it again
        # Of peers that are all without failure none is worse than the others.
        return (self._eject(pool_size, now) if has_failures else []), back

    def _eject(self, pool_size: int, now: float) -> list[tuple[str, float]]:
        rates = {
            e: r for e, p in self._peers.items() if p.until <= now and (r := p.rate()) is not None
        }
        if len(rates) < PEERS_MIN:
            return []
        mean = sum(rates.values()) / len(rates)
        stdev = math.sqrt(sum((r - mean) ** 2 for r in rates.values()) / len(rates))
        out = sum(p.until > now for p in self._peers.values())
        room = max(0, int(pool_size * FRACTION_MAX) - out)  # a third never includes the last
        ejected: list[tuple[str, float]] = []
        for endpoint_id, rate in sorted(rates.items(), key=lambda item: item[1])[:room]:
            if rate < mean - STDEV_FACTOR * stdev and mean - rate >= RATE_GAP_MIN:
                peer = self._peers[endpoint_id]
                peer.times += 1
                peer.until = now + min(MAX_S, BASE_S * peer.times)
                ejected.append((endpoint_id, peer.until))
                self.ejects_until = max(self.ejects_until, peer.until)
        return ejected
