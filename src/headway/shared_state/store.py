"""Where a fleet's rates are counted: any store that can lend, or Redis (Valkey).

A rate is one instant per key: the time up to which it has been lent out (GCRA, ITU-T I.371). It is
moved by one script on the server, by the server's own clock, so that neither the number nor the
clocks of the clients matter. What is lent is at most what has accrued; a part of what was wanted is
lent rather than nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from headway.core.fleet import Loan, Want
from headway.errors import HeadwayError

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
SOCKET_TIMEOUT_S = 0.25
"""Unless the URL says otherwise (`?socket_timeout=`). No call waits for it."""
BURST_S = 1.0
"""At most this much of a rate accrues while nobody borrows."""
KEEP_S = 120
"""A rate that nobody borrows from is forgotten after this long."""

_LEND = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local burst = tonumber(ARGV[1])
local keep = ARGV[2]
local lent = {}
for i, key in ipairs(KEYS) do
  local rate = tonumber(ARGV[2 * i + 1])
  local want = tonumber(ARGV[2 * i + 2])
  local upto = tonumber(redis.call('GET', key) or now - burst)
  if upto < now - burst then upto = now - burst end
  if upto > now then upto = now end
  local amount = math.min(want, (now - upto) * rate)
  if amount < 0 then amount = 0 end
  redis.call('SET', key, string.format('%.9f', upto + amount / rate), 'EX', keep)
  lent[i] = string.format('%.6f', amount)
end
return lent
"""


@runtime_checkable
class RateStore(Protocol):
    """Counts for a fleet. Called by one thread, off every call's way; may fail, and be slow."""

    def lend(self, wants: Sequence[Want]) -> Sequence[Loan]:
        """Lend what has accrued of each rate, up to what is wanted. Raises what it likes."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...

    def after_fork(self) -> None:
        """In a forked child: share nothing with the parent."""
        ...


class RedisRateStore:
    """A Redis or Valkey server, by URL. Connects at first use.

    Args:
        url: as redis-py reads it; socket timeouts are 0.25 s unless it names others.
        namespace: processes that name the same one share their rates. The keys of one namespace
            live in one slot of a cluster.
    """

    def __init__(self, url: str, *, namespace: str = "headway") -> None:
        if importlib.util.find_spec("redis") is None:
            raise HeadwayError("shared_state: redis is not installed: pip install 'headway[redis]'")
        self._url = url
        self._namespace = namespace
        self._lock = threading.Lock()
        self._script: Any = None
        self._client: Any = None

    def __repr__(self) -> str:
        return f"RedisRateStore(namespace={self._namespace!r})"  # the URL may hold a password

    def lend(self, wants: Sequence[Want]) -> Sequence[Loan]:
        """See `RateStore`. One round trip."""
        script = self._connected()
        keys = [f"{{{self._namespace}}}:rate:{w.endpoint_id}:{w.kind}" for w in wants]
        amounts: list[float] = []
        for want in wants:
            amounts += (want.per_s, want.amount)
        lent = script(keys=keys, args=[BURST_S, KEEP_S, *amounts])
        loans: list[Loan] = []
        for want, amount in zip(wants, lent, strict=True):
            value = float(amount)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"the store lent {value!r}")
            loans.append(Loan(want.endpoint_id, want.kind, value))
        return loans

    def close(self) -> None:
        """See `RateStore`."""
        with self._lock:
            client, self._client, self._script = self._client, None, None
        if client is not None:
            client.close()

    def after_fork(self) -> None:
        """See `RateStore`. redis-py's own pool leaves a parent's connections alone."""
        self._lock = threading.Lock()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                redis: Any = importlib.import_module("redis")
                retry: Any = importlib.import_module("redis.retry")
                backoff: Any = importlib.import_module("redis.backoff")
                self._client = redis.Redis.from_url(
                    self._url,
                    socket_timeout=SOCKET_TIMEOUT_S,
                    socket_connect_timeout=SOCKET_TIMEOUT_S,
                    # The next turn is the retry: this one must be over by then.
                    retry=retry.Retry(backoff.NoBackoff(), 0),
                )
                self._script = self._client.register_script(_LEND)
            return self._script


def store_for(given: object) -> RateStore:
    """The store that an application names. Raises `HeadwayError` for what can't be one."""
    if isinstance(given, str):
        if not given.startswith(REDIS_SCHEMES):
            raise HeadwayError(
                f"shared_state: expected a URL that begins with {', '.join(REDIS_SCHEMES)}, "
                "or an object with lend(), close() and after_fork()"
            )
        return RedisRateStore(given)
    if isinstance(given, RateStore):
        return given
    raise HeadwayError(
        "shared_state: expected a Redis URL or an object with lend(), close() and after_fork(), "
        f"got {type(given).__name__}"
    )
