"""Affinity: which endpoint probably still holds a session's or a prompt's prefix in its cache.

Learned from this process's own routing, with no feedback from the engine. A session key counts
first; else the longest chain of block hashes seen before. No text is kept: hashes are 64-bit values
made by the driver. Both count for one model only: an agent asks several in turn, each with its own
endpoints or at least with a cache of its own.

Pure; single-threaded under the engine's lock. Both maps are bounded and evict the least recent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

SESSIONS_MAX = 8_192
"""About 1 MiB; more concurrent sessions than one process serves."""
PREFIXES_MAX = 65_536
"""Blocks of 256 tokens: 16 M tokens of prompts, well past what one engine caches."""
BLOCK_TOKENS = 256
"""Prompt tokens per block hash; the driver and this map must agree."""


class Warm(NamedTuple):
    """An endpoint that knows a prefix of the prompt."""

    endpoint_id: str
    tokens: int
    by: str
    """"session" or "prefix"."""


class AffinityMap:
    """Session -> endpoint, block hash -> endpoint; each for one (requested) model."""

    __slots__ = ("_prefixes", "_sessions")

    def __init__(self) -> None:
        # Ordered dicts: a plain one walks over its deleted entries to find its oldest.
        self._sessions: OrderedDict[tuple[str, str], tuple[str, int, float]] = OrderedDict()
        self._prefixes: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions) + len(self._prefixes)

    def find(
        self,
        model: str,
        session: str | None,
        prefix: tuple[int, ...],
        *,
        ttl_s: float,
        min_tokens: int,
        keys: tuple[str, ...],
        now: float,
    ) -> Warm | None:
        """The warm endpoint for this call, or None."""
        for key in keys:
            if key == "session" and session is not None:
                seen = self._sessions.get((model, session))
                if seen is not None and now - seen[2] <= ttl_s:
                    return Warm(seen[0], seen[1], "session")
            elif key == "prefix":
                salt = hash(model)
                for i in range(len(prefix) - 1, -1, -1):
                    tokens = (i + 1) * BLOCK_TOKENS
                    if tokens < min_tokens:
                        break
                    known = self._prefixes.get(prefix[i] ^ salt)
                    if known is not None and now - known[1] <= ttl_s:
                        return Warm(known[0], tokens, "prefix")
        return None

    def remember(
        self,
        model: str,
        session: str | None,
        prefix: tuple[int, ...],
        prompt_tokens: int,
        endpoint_id: str,
        now: float,
    ) -> None:
        """Note that `endpoint_id` has just served this prompt."""
        if session is not None:
            key = (model, session)
            self._sessions[key] = (endpoint_id, prompt_tokens, now)
            self._sessions.move_to_end(key)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        salt = hash(model)
        for block in prefix:
            self._prefixes[block ^ salt] = (endpoint_id, now)
            self._prefixes.move_to_end(block ^ salt)
        while len(self._prefixes) > PREFIXES_MAX:
            self._prefixes.popitem(last=False)

    def forget(self, endpoint_id: str) -> None:
        """Drop everything about an endpoint that left the policy or lost its cache."""
        for key in [k for k, v in self._sessions.items() if v[0] == endpoint_id]:
            del self._sessions[key]
        for block in [b for b, v in self._prefixes.items() if v[0] == endpoint_id]:
            del self._prefixes[block]
