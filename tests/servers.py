"""Scripted endpoints on loopback: a raw socket server that can be as wrong as real ones are.

A script is a list of steps, one per request, the last repeating:

    R(status, body, headers)          a whole reply
    SSE([part, 0.2, part], end=...)   a chunked event stream; a number sleeps that many seconds;
                                      end: "clean" | "noterm" (stays open) | "eof" | "rst"
    Drip(body, size, every_s)         a whole reply, trickling
    Close() / Rst() / Hang(seconds)   no reply at all
    RAW(bytes)                        these bytes, then close

Every request is recorded with its time, headers, body and connection number.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 503: "Unavailable"}


@dataclass
class R:
    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    ctype: str = "application/json"
    delay: float = 0.0


@dataclass
class SSE:
    parts: Sequence[bytes | float]
    end: str = "clean"
    headers: Mapping[str, str] = field(default_factory=dict)
    ctype: str = "text/event-stream"
    delay: float = 0.0


@dataclass
class Drip:
    body: Any
    size: int = 20
    every_s: float = 0.2


@dataclass
class RAW:
    data: bytes


@dataclass
class Hang:
    seconds: float = 30.0


class Close: ...


class Rst: ...


Step = R | SSE | Drip | RAW | Hang | Close | Rst


@dataclass
class Seen:
    """One request as the server received it."""

    at: float
    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    raw_head: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


class Server:
    """A scripted endpoint; use as a context manager. `hits` are the requests seen so far."""

    def __init__(self, *steps: Step | Callable[[Seen], Step]) -> None:
        self.steps = list(steps)
        self.hits: list[Seen] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    @property
    def open_sockets(self) -> int:
        with self._lock:
            return len(self._open)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(sock)
                number = self.connections
            threading.Thread(target=self._serve, args=(sock, number), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with sock.makefile("rb") as reader:
                while (seen := self._read(reader, number)) is not None:
                    with self._lock:
                        index = min(len(self.hits), len(self.steps) - 1)
                        self.hits.append(seen)
                        step = self.steps[index]
                    if callable(step) and not isinstance(step, type):
                        step = step(seen)
                    if not self._answer(sock, step):
                        break
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _read(self, reader: Any, number: int) -> Seen | None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = reader.readline()
            if not line:
                return None
            head += line
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, v in (h.split(": ", 1) for h in lines if ": " in h)}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(reader.readline(), 16):
                body += reader.read(size)
                reader.readline()
            reader.readline()
        else:
            length = int(headers.get("content-length", 0))
            body = reader.read(length)
            if len(body) < length:
                return None  # the client left while it was sending
        return Seen(time.monotonic(), first, headers, body, number, head)

    def _answer(self, sock: socket.socket, step: Step) -> bool:
        """Send the step's bytes; False when the connection is over."""
        match step:
            case R():
                self._stop.wait(step.delay)
                sock.sendall(whole(step))
                return True
            case SSE():
                return self._stream(sock, step)
            case Drip():
                data = whole(R(200, step.body))
                for start in range(0, len(data), step.size):
                    sock.sendall(data[start : start + step.size])
                    self._stop.wait(step.every_s)
                return True
            case RAW():
                sock.sendall(step.data)
                return False
            case Hang():
                self._stop.wait(step.seconds)
                return False
            case Rst():
                _reset(sock)
                return False
            case _:
                return False

    def _stream(self, sock: socket.socket, step: SSE) -> bool:
        self._stop.wait(step.delay)
        extra = "".join(f"{k}: {v}\r\n" for k, v in step.headers.items())
        sock.sendall(
            f"HTTP/1.1 200 OK\r\ncontent-type: {step.ctype}\r\n{extra}"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        for part in step.parts:
            if isinstance(part, bytes):
                sock.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            else:
                self._stop.wait(part)
        match step.end:
            case "clean":
                sock.sendall(b"0\r\n\r\n")
                return True
            case "noterm":
                self._stop.wait(30)
            case "rst":
                self._stop.wait(0.02)
                _reset(sock)
        return False


def _reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # makefile() holds the descriptor open: closing alone would not reset.
    socket.socket(fileno=sock.detach()).close()


def whole(step: R) -> bytes:
    body = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
    headers = {"content-type": step.ctype, "content-length": str(len(body)), **step.headers}
    lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    return f"HTTP/1.1 {step.status} {REASONS.get(step.status, 'X')}\r\n{lines}\r\n".encode() + body


# --------------------------------------------------------------------------- bodies


def completion(text: str = "hello", model: str = "m") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def error(message: str, kind: str = "server_error", code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(text: str | None, finish: str | None = None, **extra: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return event(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
            **extra,
        }
    )


ROLE = event(
    {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        ],
    }
)
FIN = chunk(None, "stop")
USAGE = event(
    {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }
)
DONE = b"data: [DONE]\n\n"
OK = R(200, completion())
OK_STREAM = SSE([ROLE, chunk("Hel"), chunk("lo"), FIN, DONE])
