"""An endpoint in a process of its own that does, now and then, all that endpoints do wrong.

    python -m tests.leaks.server FAULTS SEED

FAULTS is the share of replies that go wrong. Prints its port, serves until its input closes.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import sys

from tests.servers import DONE, FIN, ROLE, USAGE, chunk, completion, error, event, whole
from tests.servers import R as Reply

TEXT = ("The", " answer", " is", ",", " as", " ever", ",", " 42")
CONTENT = [chunk(word) for word in TEXT]
STREAM = [ROLE, *CONTENT, FIN, USAGE, DONE]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
WRONG = (
    "unavailable", "busy", "quota", "overloaded page", "closed", "reset", "late", "half a head", "error in 200",
    "empty stream", "error event", "cut before", "cut after", "error after", "broken json", "page as stream",
    "no end", "pings", "packed",
)  # fmt: skip


def framed(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


class Endpoint:
    def __init__(self, faults: float, seed: int) -> None:
        self._rng = random.Random(seed)
        self._faults = faults

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        is_stream = b'"stream":true' in await reader.readexactly(length)
        wrong = ""
        if self._rng.random() < self._faults:
            wrong = self._rng.choice(WRONG)
        return await self._send(writer, wrong, is_stream=is_stream)

    async def _send(self, writer: asyncio.StreamWriter, wrong: str, *, is_stream: bool) -> bool:
        match wrong:
            case "unavailable":
                writer.write(whole(Reply(503, error("down"))))
            case "busy":
                writer.write(whole(Reply(429, error("slow"), {"retry-after-ms": "5"})))
            case "quota":
                writer.write(whole(Reply(400, error("too long", "invalid_request_error"))))
            case "overloaded page":
                writer.write(whole(Reply(529, b"<html>" + b"x" * 5000, ctype="text/html")))
            case "closed":
                return False
            case "reset":
                writer.transport.abort()
                return False
            case "late":
                await asyncio.sleep(0.3)
                return False
            case "half a head":
                writer.write(HEAD[:40])
                return False
            case "error in 200":
                writer.write(whole(Reply(200, error("hidden", code=502))))
            case _ if is_stream:
                return await self._stream(writer, wrong)
            case _:
                writer.write(whole(Reply(200, completion("The answer is, as ever, 42"))))
        return True

    async def _stream(self, writer: asyncio.StreamWriter, wrong: str) -> bool:
        end = b"0\r\n\r\n"
        match wrong:
            case "empty stream":
                writer.write(HEAD + b"\r\n" + framed(DONE) + end)
            case "error event":
                writer.write(HEAD + b"\r\n" + framed(ROLE, event(error("over", code=503))) + end)
            case "cut before":
                writer.write(HEAD + b"\r\n" + framed(ROLE))
                return False
            case "cut after":
                writer.write(HEAD + b"\r\n" + framed(ROLE, *CONTENT[:3]))
                return False
            case "error after":
                late = event(error("over", code=503))
                writer.write(HEAD + b"\r\n" + framed(ROLE, *CONTENT[:3], late) + end)
            case "broken json":
                writer.write(HEAD + b"\r\n" + framed(ROLE, CONTENT[0], b"data: {oops\n\n") + end)
            case "page as stream":
                writer.write(whole(Reply(200, b"<html></html>", ctype="text/html")))
            case "no end":
                writer.write(HEAD + b"\r\n" + framed(*STREAM))
                await writer.drain()
                await asyncio.sleep(0.2)
                return False
            case "pings":
                writer.write(
                    HEAD + b"\r\n" + framed(*(b": ping\n\n" + part for part in STREAM)) + end
                )
            case "packed":
                packed = gzip.compress(b"".join(STREAM), 1)
                writer.write(HEAD + b"content-encoding: gzip\r\n\r\n" + framed(packed) + end)
            case _:
                writer.write(HEAD + b"\r\n" + framed(*STREAM) + end)
        return True


async def main() -> None:
    endpoint = Endpoint(float(sys.argv[1]), int(sys.argv[2]))
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
