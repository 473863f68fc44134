"""What the measured clients talk to: a transport that costs nothing, and a loopback server.

Run as a module (`python -m benchmarks.wire`) it is the server: it prints its port and serves until
its standard input closes. A process of its own, so that its CPU time is not the client's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Final

import httpx2

CHAT: Final = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "bench",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello " * 50, "refusal": None},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ],
    "usage": {
        "prompt_tokens": 250,
        "completion_tokens": 50,
        "total_tokens": 300,
        "prompt_tokens_details": {"cached_tokens": 128},
    },
}
WHOLE: Final = json.dumps(CHAT).encode()


def stream_chunks(count: int) -> list[bytes]:
    """The pieces of a streamed answer with `count` content chunks."""
    head = {k: CHAT[k] for k in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def piece(delta: object, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

    return [
        piece({"role": "assistant", "content": ""}),
        *(piece({"content": " hello"}) for _ in range(count)),
        piece({}, "stop"),
        b"data: [DONE]\n\n",
    ]


class _Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class NullTransport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers at once from memory: what is left to measure is the client."""

    def __init__(self, chunks: int | None = None) -> None:
        self._pieces = [WHOLE] if chunks is None else stream_chunks(chunks)
        kind = "application/json" if chunks is None else "text/event-stream"
        self._headers = [("content-type", kind)]
        if chunks is None:
            self._headers.append(("content-length", str(len(WHOLE))))

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer."""
        return httpx2.Response(200, headers=self._headers, stream=_Pieces(self._pieces))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer."""
        return httpx2.Response(200, headers=self._headers, stream=_Pieces(self._pieces))


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = await reader.readexactly(length)
            if b'"stream":true' in body.replace(b" ", b""):
                # The chunk count travels in max_tokens, so that one server serves every case.
                count = int(json.loads(body).get("max_tokens") or 10)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                    b"transfer-encoding: chunked\r\n\r\n"
                )
                for piece in stream_chunks(count):
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%s" % (len(WHOLE), WHOLE)
                )
            await writer.drain()
    except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
        writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main())
