"""A very small HTTP/1.1 server on asyncio: just enough for loopback, and able to misbehave.

Content-Length requests, keep-alive, chunked responses; one exchange at a time per connection.
A framework would be slower, and would refuse to do what faults need: cut a response in the middle,
reset a connection, or refuse connections on a port that stays reserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple, cast

HEAD_BYTES_MAX = 64 * 1024
"""openai clients send about 1 KiB of headers; beyond this it is not one of them."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""An agent prompt of 10^7 tokens."""

_REASONS = {
    200: "OK",
    304: "Not Modified",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


class Exchange:
    """One request and the answer to it. Everything after `closed` is ignored."""

    __slots__ = ("_connection", "closed", "on_close", "request", "started")

    def __init__(self, connection: _Connection, request: HttpRequest) -> None:
        self.request = request
        self.closed = False
        self.started = False
        self.on_close: Callable[[], None] | None = None
        """Called once if the peer goes away before the answer is complete."""
        self._connection = connection

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a complete answer."""
        if self.closed:
            return
        length = "" if status == 304 else f"content-length: {len(body)}\r\n"
        self._connection.write(_head(status, content_type, headers, length) + body)
        self._done()

    def start(self, content_type: str = "text/event-stream") -> None:
        """Begin a chunked answer."""
        if not self.closed:
            self.started = True
            head = _head(200, content_type, None, "transfer-encoding: chunked\r\n")
            self._connection.write(head)

    def chunk(self, content: bytes) -> None:
        """Send one chunk of a started answer."""
        if content and not self.closed:  # an empty chunk would be the terminator
            self._connection.write(b"%x\r\n%b\r\n" % (len(content), content))

    def finish(self) -> None:
        """End a started answer; the connection stays usable."""
        if not self.closed:
            self._connection.write(b"0\r\n\r\n")
            self._done()

    def cut(self, *, reset: bool = True) -> None:
        """Break the connection here, by RST or by an early close."""
        if not self.closed:
            self.closed = True
            self._connection.kill(reset=reset)

    def lost(self) -> None:
        """The peer is gone."""
        if not self.closed:
            self.closed = True
            if self.on_close is not None:
                self.on_close()

    def _done(self) -> None:
        self.closed = True
        self._connection.next_exchange()


Handler = Callable[[Exchange], None]


def _head(status: int, content_type: str, headers: dict[str, str] | None, framing: str) -> bytes:
    extra = "".join(f"{k}: {v}\r\n" for k, v in headers.items()) if headers else ""
    reason = _REASONS.get(status, "Unknown")
    return (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{framing}{extra}\r\n"
    ).encode("latin-1")


class _Connection(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        sock = cast("socket.socket", transport.get_extra_info("socket"))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # gone is gone
        self._listener.connections.discard(self)
        self._transport = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost()

    def eof_received(self) -> bool:
        return False  # a client that half-closes has given up: close, and tell the exchange

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._exchange is None:
            self._parse()

    def write(self, content: bytes) -> None:
        if self._transport is not None:
            self._transport.write(content)

    def kill(self, *, reset: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        if reset:
            sock = cast("socket.socket", transport.get_extra_info("socket"))
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()

    def next_exchange(self) -> None:
        self._exchange = None
        if self._buffer:
            self._parse()

    def _parse(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                self.kill(reset=False)
            return
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        method, path, *_ = [*lines[0].split(" "), "", ""]
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length_text = headers.get("content-length", "0")
        length = int(length_text) if length_text.isdecimal() else -1
        if not 0 <= length <= BODY_BYTES_MAX or "transfer-encoding" in headers:
            self.write(_head(411, "text/plain", {"connection": "close"}, "content-length: 0\r\n"))
            self.kill(reset=False)
            return
        if len(self._buffer) < end + 4 + length:
            if headers.pop("expect", "").lower() == "100-continue":
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        exchange = Exchange(self, HttpRequest(method, path, headers, body))
        self._exchange = exchange
        self._listener.handler(exchange)


class Listener:
    """A loopback port that serves, or refuses, and keeps its number either way."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections: set[_Connection] = set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None

    async def open(self) -> None:
        """Listen on 127.0.0.1; the first time on a free port, later on the same one."""
        if self._server is not None:
            return
        sock, self._reserved = self._reserved or self._bind(), None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=sock, backlog=1024)

    def refuse(self) -> None:
        """Stop serving at once: open connections are reset, new ones are refused."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        # Bound but not listening: connections are refused, and nobody else can take the port.
        self._reserved = self._bind()
        self.reset_connections()

    def reset_connections(self) -> None:
        """Reset every open connection."""
        for connection in list(self.connections):
            connection.kill(reset=True)

    def close(self) -> None:
        """Release the port."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        for connection in list(self.connections):
            connection.kill(reset=False)

    def _bind(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", self.port))
        self.port = cast("int", sock.getsockname()[1])
        return sock
