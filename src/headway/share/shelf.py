"""Answers kept for identical calls, in memory or in a store of the application's.

Nothing here fails a call or holds it up: a store that raises, or takes longer than `WAIT_S`, is
left alone for a while, and what it returns is believed only if it reads as an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from headway.share.answer import Answer, decode, encode
from headway.share.aside import Job, Slots
from headway.share.memory import Memory
from headway.share.stores import Store, store_of

if TYPE_CHECKING:
    from headway.core.snapshot import Route

_T = TypeVar("_T")

logger = logging.getLogger("headway")

WAIT_S = 0.25
"""What a call waits for a store at most: little beside the seconds that an answer takes."""
REST_S = 5.0
"""How long a store that failed, or was late, is not asked."""
COMPLAIN_EVERY_S = 60.0
ROUTES_MAX = 256
"""Routes with answers in memory; with more, those of the others are forgotten."""
VALUE_BYTES_MAX = 4 * 1024 * 1024
"""The largest answer that is handed to a store."""


class Shelf:
    """The answers of one router's routes. Thread-safe.

    `wanted` is what the application gave: None (memory), a mutable mapping, or a Redis URL.
    """

    def __init__(
        self, wanted: object, *, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._store: Store | None = store_of(wanted)
        self._clock = clock
        self._wall_clock = wall_clock
        self._memories: dict[str, Memory] = {}
        self._slots = Slots()
        self._rests_until = float("-inf")
        self._complained_at = float("-inf")

    def bytes_max(self, route: Route) -> int:
        """The largest body worth keeping for this route."""
        return min(route.cache.max_bytes, VALUE_BYTES_MAX)

    def find(self, key: str, route: Route) -> Answer | Job[Answer | None] | None:
        """The kept answer, None, or a job that may bring it: see `found`."""
        store = self._store
        if store is None:
            return self._memory(route).get(key, self._clock())

        def load() -> Answer | None:
            return decode(store.get(key))

        return self._begun(load)

    def at_hand(self, key: str, route: Route) -> Answer | None:
        """The kept answer, where that takes no time: in memory."""
        return self._memory(route).get(key, self._clock()) if self._store is None else None

    def found(self, job: Job[Answer | None]) -> Answer | None:
        """What a job brought, after the wait for it."""
        self.heard(job)
        answer = job.result if job.is_done and job.error is None else None
        if answer is None or self._wall_clock() >= answer.expires_at:
            return None
        return answer

    def keep(self, key: str, answer: Answer, route: Route) -> Job[None] | None:
        """Keep an answer for as long as the route says; a job, where that takes time.

        The answer's `expires_at` is set here.
        """
        store, ttl_s = self._store, route.cache.ttl_s
        if store is None:
            answer = answer._replace(expires_at=self._clock() + ttl_s)
            self._memory(route).put(key, answer, route.cache.max_bytes)
            return None
        if answer.size_bytes > self.bytes_max(route):
            return None
        value = encode(answer._replace(expires_at=self._wall_clock() + ttl_s))

        def save() -> None:
            store.put(key, value, ttl_s)

        return self._begun(save)

    def heard(self, job: Job[Answer | None] | Job[None]) -> None:
        """The wait for a job is over: was it in time, and did it go well?"""
        if job.is_done and job.error is None:
            return
        now = self._clock()
        self._rests_until = now + REST_S
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            what = "took too long" if not job.is_done else f"failed ({type(job.error).__name__})"
            logger.warning("the response cache %s: calls go on without it for %g s", what, REST_S)

    def after_fork(self) -> None:
        """In a forked child: begin anew. Locks may have been held, threads are gone."""
        self._memories = {}
        self._slots = Slots()
        if self._store is not None:
            self._store.after_fork()

    def close(self) -> None:
        """Let go of the store's connections."""
        if self._store is not None:
            try:
                self._store.close()
            except Exception as problem:  # noqa: BLE001 - whatever a store raises
                logger.debug("the response cache could not be closed: %r", problem)

    def _begun(self, work: Callable[[], _T]) -> Job[_T] | None:
        if self._clock() < self._rests_until:
            return None
        job = Job(work, self._slots)
        return job if job.start() else None

    def _memory(self, route: Route) -> Memory:
        memory = self._memories.get(route.name)
        if memory is None:
            if len(self._memories) >= ROUTES_MAX:
                self._memories.clear()
            memory = self._memories.setdefault(route.name, Memory())
        return memory
