"""Reading compressed replies that go on to the application as they are."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

_ANY_ZLIB = zlib.MAX_WBITS | 32
"""zlib finds out by itself whether it is gzip or zlib framing."""
INFLATED_MAX = 64 * 1024 * 1024
"""Beyond this a compressed body is not looked into: it may be made to explode."""


def decoded(response: httpx2.Response, body: bytes) -> bytes:
    """`body` as text would be read from it; as it is when its encoding is unknown or broken."""
    encoding = response.headers.get("content-encoding")
    if encoding is None or encoding == "identity":
        return body
    if encoding not in ("gzip", "deflate"):
        return b""
    try:
        return zlib.decompressobj(_ANY_ZLIB).decompress(body, INFLATED_MAX)
    except zlib.error:
        return b""


class Inflater:
    """Decompresses a stream beside the application, for the observer."""

    __slots__ = ("_engine",)

    def __init__(self, *, known: bool) -> None:
        self._engine = zlib.decompressobj(_ANY_ZLIB) if known else None

    @classmethod
    def for_response(cls, response: httpx2.Response) -> Inflater | None:
        """None when the body is not compressed."""
        encoding = response.headers.get("content-encoding")
        if encoding is None or encoding == "identity":
            return None
        return cls(known=encoding in ("gzip", "deflate"))

    @property
    def is_known(self) -> bool:
        """Whether the encoding can be read here."""
        return self._engine is not None

    def feed(self, chunk: bytes) -> bytes:
        """The plain text that `chunk` completes; nothing when it can't be told."""
        if self._engine is None:
            return b""
        try:
            return self._engine.decompress(chunk, INFLATED_MAX)
        except zlib.error:
            self._engine = None
            return b""
