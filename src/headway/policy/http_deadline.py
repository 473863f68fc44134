"""One time limit for everything that an HTTP client does on the wire.

The timeouts of httpx are per read: a server that sends a byte of its headers every second is never
late. This wraps the client's sockets, so that no read or write waits past one instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2


def hurry(client: httpx2.Client, give_up_at: float, clock: Callable[[], float]) -> None:
    """Let nothing that `client` does take longer than until `give_up_at`."""

    def left_s(asked: float | None) -> float:
        left = max(give_up_at - clock(), 0.001)  # 0 would mean non-blocking
        return left if asked is None else min(asked, left)

    # httpx takes no network backend, its pool does; a test watches that it is still there.
    transport: Any = client._transport
    pool = transport._pool
    pool._network_backend = _Backend(pool._network_backend, left_s)


class _Backend:
    """A network backend of httpcore whose streams know when to give up."""

    def __init__(self, inner: Any, left_s: Callable[[float | None], float]) -> None:
        self._inner = inner
        self._left_s = left_s

    def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        made = self._inner.connect_tcp(*args, timeout=self._left_s(timeout), **options)
        return _Stream(made, self._left_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Stream:
    """A network stream that waits no longer than there is time left."""

    def __init__(self, inner: Any, left_s: Callable[[float | None], float]) -> None:
        self._inner = inner
        self._left_s = left_s

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._inner.read(max_bytes, timeout=self._left_s(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout=self._left_s(timeout))

    def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        made = self._inner.start_tls(*args, timeout=self._left_s(timeout), **options)
        return _Stream(made, self._left_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
