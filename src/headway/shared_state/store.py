"""Where a fleet's rates and spending are counted: any store that can, or Redis (Valkey).

A rate is one instant per key: the time up to which it has been lent out (GCRA, ITU-T I.371). It is
moved by one script on the server, by the server's own clock, so that neither the number nor the
clocks of the clients matter. What is lent is at most what has accrued; a part of what was wanted is
lent rather than nothing.

Spending is one hash per tenant: what each process says that it used in the period that runs, with
what it was granted beside, and the sum of these. A process states its total, so a claim may arrive
twice, and a server that has lost its memory is told again.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from headway.core.fleet import Loan, Want
from headway.core.purse import Claim, Grant
from headway.errors import HeadwayError

REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
SOCKET_TIMEOUT_S = 0.5
"""Unless the URL says otherwise (`?socket_timeout=`). No call waits for it."""
BURST_S = 0.4
"""At most this much of a rate accrues while nobody borrows."""
JITTER_S = 0.3
"""What is sent this much later than it was lent still meets no full minute."""
LENT_PART = 1.0 - (BURST_S + JITTER_S) / 60.0
"""Of a published rate. Limits per minute are counted by the minute, whenever that begins: one that
begins with what has accrued must not have more than the others."""
NANO_MAX = 10**15
"""A million USD: what no budget comes to, and sums of a few are still exact."""
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

# Numbers are doubles there: whole ones are exact up to 9e15, which is 9 million USD in nano-USD.
_CLAIM = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local answers = {}
for i, key in ipairs(KEYS) do
  local part = ARGV[6 * i - 5]
  local period = tonumber(ARGV[6 * i - 4])
  local limit = tonumber(ARGV[6 * i - 3])
  local claimed = tonumber(ARGV[6 * i - 2])
  local used = tonumber(ARGV[6 * i - 1])
  local ahead = tonumber(ARGV[6 * i])
  local window = math.floor(now / period)
  local kept = tonumber(redis.call('HGET', key, '#window') or '-1')
  -- Some client counted to the end of the period a moment before this server does.
  if claimed == window + 1 or kept == window + 1 then window = window + 1 end
  if kept ~= window then
    redis.call('DEL', key)
    redis.call('HSET', key, '#window', string.format('%.0f', window))
  end
  if claimed >= 0 and claimed < window then used = 0 end
  local before = tonumber(redis.call('HGET', key, part) or '0')
  local others = tonumber(redis.call('HGET', key, '#total') or '0') - before
  local free = limit - others - used
  local granted = math.max(0, math.min(ahead, free))
  redis.call('HSET', key, part, string.format('%.0f', used + granted))
  redis.call('HSET', key, '#total', string.format('%.0f', others + used + granted))
  local ends_in = (window + 1) * period - now
  redis.call('EXPIRE', key, math.ceil(ends_in) + 60)
  answers[i] = {
    string.format('%.0f', window), string.format('%.6f', ends_in),
    string.format('%.0f', granted), string.format('%.0f', free - granted)
  }
end
return answers
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


@runtime_checkable
class SpendStore(Protocol):
    """What a `RateStore` does more, where tenants have budgets. Without it `shares` divide them."""

    def claim(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Note what each claim says was used, and grant what is left of what it asks for beside.

        For a period and tenant: the claims' `used`, each with what was granted last, add up to what
        is taken; a later claim of the same `part` replaces the one before.
        """
        ...


class RedisRateStore:
    """A Redis or Valkey server, by URL. Connects at first use.

    Args:
        url: as redis-py reads it; socket timeouts are 0.5 s unless it names others.
        namespace: processes that name the same one share their rates and budgets. The keys of one
            namespace live in one slot of a cluster.
    """

    def __init__(self, url: str, *, namespace: str = "headway") -> None:
        if importlib.util.find_spec("redis") is None:
            raise HeadwayError("shared_state: redis is not installed: pip install 'headway[redis]'")
        self._url = url
        self._namespace = namespace
        self._lock = threading.Lock()
        self._lend: Any = None
        self._claim: Any = None
        self._client: Any = None

    def __repr__(self) -> str:
        return f"RedisRateStore(namespace={self._namespace!r})"  # the URL may hold a password

    def lend(self, wants: Sequence[Want]) -> Sequence[Loan]:
        """See `RateStore`. One round trip."""
        self._connect()
        keys = [f"{{{self._namespace}}}:rate:{w.endpoint_id}:{w.kind}" for w in wants]
        amounts: list[float] = []
        for want in wants:
            amounts += (want.per_s * LENT_PART, want.amount)
        lent = self._lend(keys=keys, args=[BURST_S, KEEP_S, *amounts])
        loans: list[Loan] = []
        for want, amount in zip(wants, lent, strict=True):
            value = float(amount)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"the store lent {value!r}")
            loans.append(Loan(want.endpoint_id, want.kind, value))
        return loans

    def claim(self, claims: Sequence[Claim]) -> Sequence[Grant]:
        """See `SpendStore`. One round trip."""
        self._connect()
        keys = [f"{{{self._namespace}}}:spend:{c.period_s}:{c.tenant}" for c in claims]
        figures: list[str | int] = []
        for claim in claims:
            figures += (
                *(claim.part, claim.period_s, claim.limit),
                *(claim.window, min(claim.used, NANO_MAX), min(claim.ahead, NANO_MAX)),
            )
        answers = self._claim(keys=keys, args=figures)
        return [
            Grant(claim.tenant, claim.part, int(window), float(ends_in), int(ahead), int(left))
            for claim, (window, ends_in, ahead, left) in zip(claims, answers, strict=True)
        ]

    def close(self) -> None:
        """See `RateStore`."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def after_fork(self) -> None:
        """See `RateStore`. redis-py's own pool leaves a parent's connections alone."""
        self._lock = threading.Lock()

    def _connect(self) -> None:
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
                self._lend = self._client.register_script(_LEND)
                self._claim = self._client.register_script(_CLAIM)


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
