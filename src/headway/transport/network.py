"""The sockets under a sync client, whose every wait is bounded by what an attempt has left.

The http library takes a timeout once for a phase and applies it to each wait in it, so a head that
drips in byte by byte, or an upload that is taken in sips, outlasts any. The timeouts that we give
it know better (`limits.Remaining`); connections made through here ask them before each wait. To any
other timeout they are transparent: the pool may be shared with clients that know nothing of us.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Self

from headway.transport.limits import Remaining

SENT_AT_ONCE_BYTES = 64 * 1024
"""Less than any socket's buffer: such a write does not wait for its reader bit by bit."""


def bound(transport: Any) -> None:
    """Make the connections that `transport` opens from now on keep their time; idempotent.

    Transports that hold no pool of httpcore's (mocks) are left as they are.
    """
    pool: Any = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if backend is not None and not isinstance(backend, Backend):
        pool._network_backend = Backend(backend)


class Backend:
    """A network backend whose streams keep their time."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, **options: Any
    ) -> Stream:
        """Connect. Each address of a host with many gets a timeout of its own, so we go through
        them here, one by one."""
        connect = self._backend.connect_tcp
        addresses = _addresses(host, port) if type(timeout) is Remaining else ()
        if len(addresses) < 2:
            return Stream(connect(host, port, timeout=timeout, **options))
        for address in addresses[:-1]:
            with suppress(Exception):  # the last one's is told
                return Stream(connect(address, port, timeout=_now(timeout), **options))
        return Stream(connect(addresses[-1], port, timeout=_now(timeout), **options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, **options: Any
    ) -> Stream:
        """Connect to a socket in the file system."""
        return Stream(self._backend.connect_unix_socket(path, timeout=timeout, **options))

    def sleep(self, seconds: float) -> None:
        """Wait between attempts to connect."""
        self._backend.sleep(seconds)


class Stream:
    """A connection, as far as the http library uses it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._read = stream.read

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what is there, or wait for it."""
        data: bytes = self._read(
            max_bytes, timeout.now() if type(timeout) is Remaining else timeout
        )
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write it all."""
        if type(timeout) is not Remaining:
            self._stream.write(buffer, timeout)
        elif len(buffer) <= SENT_AT_ONCE_BYTES:
            self._stream.write(buffer, timeout.now())
        else:
            self._write_much(buffer, timeout)

    def _write_much(self, buffer: bytes, timeout: Remaining) -> None:
        view, sock = memoryview(buffer), _plain_socket(self._stream)
        size = len(view) if sock is not None else SENT_AT_ONCE_BYTES
        while view:
            sent = 0
            if sock is not None:
                sock.settimeout(timeout.now())
                try:
                    sent = sock.send(view)
                except TimeoutError:
                    raise
                except OSError:
                    sock = None  # its own write says so in the library's words
                    continue
            else:
                self._stream.write(view[:size], timeout.now())
                sent = min(size, len(view))
            view = view[sent:]

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> Self:
        """The same connection, encrypted."""
        stream = self._stream.start_tls(ssl_context, server_hostname, _now(timeout))
        return type(self)(stream)

    def close(self) -> None:
        """Close it."""
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _now(timeout: float | None) -> float | None:
    return timeout.now() if type(timeout) is Remaining else timeout


def _addresses(host: str, port: int) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError:
        return ()  # asked again below, where it becomes the library's exception
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _plain_socket(stream: Any) -> socket.socket | None:
    """The socket that the library's own stream writes to; None where there is more between (TLS
    inside of TLS)."""
    sock = getattr(stream, "_sock", None)
    if type(stream).__name__ != "SyncStream" or not isinstance(sock, socket.socket):
        return None
    return sock
