"""Replies to requests that are not managed, listened to for the objects that they name.

Nothing about them is decided here: they go on as they come. But what is made at an endpoint lives
there, and later requests that name it have to find it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from headway.transport.decode import decoded, encoding_of
from headway.transport.pins import SCAN_BYTES

if TYPE_CHECKING:
    import httpx2

    from headway.transport.family import Family


class Ear:
    """Keeps a JSON reply until it is whole, and tells what it was. Longer ones are let go."""

    __slots__ = ("_chunks", "_encoding", "_family", "_left", "_tell")

    def __init__(
        self, response: httpx2.Response, family: Family, tell: Callable[[bytes], None]
    ) -> None:
        self._encoding = encoding_of(
            {"content-encoding": response.headers.get("content-encoding", "")}
        )
        self._family = family
        self._tell: Callable[[bytes], None] | None = tell
        self._chunks: list[bytes] = []
        self._left = SCAN_BYTES

    def hear(self, chunk: bytes) -> None:
        """A piece of the body goes by."""
        self._left -= len(chunk)
        if self._left >= 0:
            self._chunks.append(chunk)
        else:
            self._chunks.clear()

    def end(self) -> None:
        """The body is whole."""
        tell, self._tell = self._tell, None
        if tell is not None and self._left >= 0:
            body = decoded(self._encoding, b"".join(self._chunks), self._family)
            if body:
                tell(body)
        self._chunks.clear()


def is_told(response: httpx2.Response) -> bool:
    """Whether a reply may name objects: a JSON document that answers the request."""
    ctype: str = response.headers.get("content-type", "")
    return response.status_code < 300 and ctype.startswith("application/json")


class OverheardStream:
    """A sync body that is listened to. Joined with the http family's stream class."""

    def __init__(self, source: Any, ear: Ear) -> None:
        self._source = source
        self._ear = ear

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._source:
            self._ear.hear(chunk)
            yield chunk
        self._ear.end()

    def close(self) -> None:
        """Close the body itself."""
        self._source.close()


class AsyncOverheardStream:
    """The same, awaited."""

    def __init__(self, source: Any, ear: Ear) -> None:
        self._source = source
        self._ear = ear

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._source:
            self._ear.hear(chunk)
            yield chunk
        self._ear.end()

    async def aclose(self) -> None:
        """Close the body itself."""
        await self._source.aclose()
