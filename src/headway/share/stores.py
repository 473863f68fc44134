"""Where answers may be kept outside Headway: any mapping of the application's, or Redis."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import MutableMapping
from typing import Any, Protocol, cast

PREFIX = "headway:answer:"
REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
SOCKET_TIMEOUT_S = 0.5
"""Unless the URL says otherwise (`?socket_timeout=`). Nobody waits that long: see `Shelf`."""


class Store(Protocol):
    """Keeps bytes by key. Called on threads of its own; may fail, and be slow."""

    def get(self, key: str) -> object:
        """What is kept; None: nothing."""
        ...

    def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """Keep it for that long, or shorter."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...

    def after_fork(self) -> None:
        """In a forked child: no lock is held by a thread that is gone."""
        ...


class MappingStore:
    """A mutable mapping: `cachetools`, a dict, a shelf on disk. Its own bounds apply."""

    def __init__(self, mapping: MutableMapping[str, bytes]) -> None:
        self._mapping = mapping
        self._lock = threading.Lock()
        """Such mappings are seldom thread-safe: cachetools' aren't."""

    def get(self, key: str) -> object:
        """See `Store`."""
        with self._lock:
            return self._mapping.get(PREFIX + key)

    def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """See `Store`. A mapping knows no time: the value says until when it holds."""
        del ttl_s
        with self._lock:
            self._mapping[PREFIX + key] = value

    def close(self) -> None:
        """The mapping is the application's."""

    def after_fork(self) -> None:
        """See `Store`."""
        self._lock = threading.Lock()


class RedisStore:
    """A Redis or Valkey server, by URL. Connects at first use; safe from any thread and process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self, key: str) -> object:
        """See `Store`."""
        return self._connected().get(PREFIX + key)

    def put(self, key: str, value: bytes, ttl_s: float) -> None:
        """See `Store`."""
        self._connected().set(PREFIX + key, value, px=max(1, int(ttl_s * 1e3)))

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def after_fork(self) -> None:
        """See `Store`. The client notices a fork by itself, and shares no socket across it."""
        self._lock = threading.Lock()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                redis: Any = importlib.import_module("redis")
                # What stands in the URL wins over these.
                self._client = redis.Redis.from_url(
                    self._url,
                    socket_timeout=SOCKET_TIMEOUT_S,
                    socket_connect_timeout=SOCKET_TIMEOUT_S,
                )
            return self._client


def store_of(wanted: object) -> Store | None:
    """The store for `Router(response_cache=...)`; None: memory of our own.

    Raises `ValueError` for what can't be one.
    """
    if wanted is None:
        return None
    if isinstance(wanted, str):
        if not wanted.startswith(REDIS_SCHEMES):
            raise ValueError(f"a URL that begins with {', '.join(REDIS_SCHEMES)} is expected")
        if importlib.util.find_spec("redis") is None:
            raise ValueError("redis is not installed: pip install 'headway[redis]'")
        return RedisStore(wanted)
    if isinstance(wanted, MutableMapping):
        return MappingStore(cast("MutableMapping[str, bytes]", wanted))
    raise ValueError(f"a mutable mapping or a Redis URL is expected, not {type(wanted).__name__}")
