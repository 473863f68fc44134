"""How much background work a process begins while its pool is overloaded.

A concurrency limit can't go below one attempt per process, and where many small processes share a
pool, that alone is more than it carries: priorities within each of them then keep nobody whole. So
a process that meets overload begins fewer *tasks* of the lowest rank, the same ones every time,
until what is left fits.

The level moves by calls and not by time, down by `CUT` and up by `GAIN`: it settles where 3 % of
the calls meet overload, few enough for retries to hide, whatever the number of processes and
however busy each is. Overload is a refusal, silence before the first token, or a missed objective
of a class that isn't background.

Source: WeChat's DAGOR (admission by a rank of the task, moved by signs of overload). Pure;
single-threaded under the engine's lock.
"""

from __future__ import annotations

import math
from hashlib import blake2b

from headway.core.model import OVERLOAD, Attempt, CallFacts, FailureClass, Outcome
from headway.core.snapshot import TrafficClass

CUT = 0.5
GAIN = 0.02
LEVEL_MIN = 0.02
QUIET_S = 60.0
"""After so long without a sign of overload the level also grows with time: a process that makes few
calls would take hours by them."""
RECOVERY_S = 300.0
"""To grow e-fold. As slow as that, since every return too early costs somebody else a call."""
COUNTED_MAX = 64.0
"""Attempts of an endpoint that are counted; beyond it all of its weigh half."""
MET_BEFORE, SEEN_BEFORE = 0.2, 5.0
"""What is believed of an endpoint that is not known yet: 4 % of five attempts met overload."""
_RANKS = 2.0**32


def rank_of(task_id: str) -> float:
    """A task's place among all tasks, in [0, 1): the same in every process."""
    digest = blake2b(task_id.encode(), digest_size=4).digest()
    return int.from_bytes(digest) / _RANKS


class Yielding:
    """The share of background tasks that one pool lets begin, in this process."""

    __slots__ = ("_counts", "_cut_at", "_grown_at", "_level")

    def __init__(self) -> None:
        self._level = 1.0
        self._cut_at = float("-inf")
        self._grown_at = float("-inf")
        """Up to when growth by time is in the level."""
        self._counts: dict[str, list[float]] = {}
        """[met overload, seen] by endpoint."""

    def level(self, now: float) -> float:
        """In [0.02, 1]; a task whose rank is below it may begin."""
        if self._level < 1.0 and now > self._grown_at:
            grown = math.exp((now - self._grown_at) / RECOVERY_S)
            self._level = min(1.0, self._level * grown)
            self._grown_at = now
        return self._level

    def due_s(self, rank: float, now: float) -> float:
        """Seconds until a task of this rank may begin, if nothing more is heard of overload; 0: it
        may begin now."""
        level = self.level(now)
        if rank < level:
            return 0.0
        return max(0.0, self._grown_at - now) + RECOVERY_S * math.log(rank / level)

    def learn(self, attempt: Attempt, *, met_overload: bool, now: float) -> None:
        """An attempt's end said something about the pool's load."""
        counts = self._counts.setdefault(attempt.endpoint_id, [0.0, 0.0])
        counts[0] += met_overload
        counts[1] += 1.0
        if counts[1] > COUNTED_MAX:
            counts[0] /= 2.0
            counts[1] /= 2.0
        if not met_overload:
            self._level = min(1.0, self._level * (1.0 + GAIN))
        elif attempt.started_at >= self._cut_at:  # before that: the same news once more
            self._level = max(LEVEL_MIN, self.level(now) * (1.0 - CUT * self._shared(counts)))
            self._cut_at = now
            self._grown_at = now + QUIET_S

    def retain(self, endpoint_ids: frozenset[str]) -> None:
        """Forget endpoints that left the pool."""
        for endpoint_id in self._counts.keys() - endpoint_ids:
            del self._counts[endpoint_id]

    def _shared(self, here: list[float]) -> float:
        """How much of an endpoint's overload the others have, too: at most 1. One that is broken
        alone is nobody's reason to yield."""
        others = [counts for counts in self._counts.values() if counts is not here]
        if not others:
            return 1.0
        met = MET_BEFORE + sum(counts[0] for counts in others)
        seen = SEEN_BEFORE + sum(counts[1] for counts in others)
        return min(1.0, met / seen * (SEEN_BEFORE + here[1]) / (MET_BEFORE + here[0]))


def met_overload(
    facts: CallFacts, traffic: TrafficClass, attempt: Attempt, outcome: Outcome, now: float
) -> bool | None:
    """Whether an attempt's end is a sign of overload; None: it says nothing either way.

    Objectives of background classes are no reason to hold background back.
    """
    if attempt.lost or outcome.free_retry:
        return None
    kind = outcome.kind
    if kind in OVERLOAD:
        return None if outcome.soft else True
    promised = traffic.promised if facts.priority >= 0 else None
    if kind is FailureClass.OK:
        return promised is not None and _missed(promised, attempt, outcome, now)
    is_late = kind is FailureClass.CANCELLED and outcome.error_type == "deadline"
    return True if is_late and promised is not None else None


def _missed(
    promised: tuple[float, float, float], attempt: Attempt, outcome: Outcome, now: float
) -> bool:
    ttft_slo_s, tpot_slo_s, total_slo_s = promised
    total = now - attempt.started_at
    if total > total_slo_s:
        return True
    if attempt.first_token_at is None:
        return False
    first = attempt.first_token_at - attempt.started_at
    steps = (outcome.output_tokens or 0) - 1
    return first > ttft_slo_s or (steps > 0 and (total - first) / steps > tpot_slo_s)
