"""Reading compressed replies that go on to the application as they are."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

_ANY_ZLIB = zlib.MAX_WBITS | 32
"""zlib finds out by itself whether it is gzip or zlib framing."""
INFLATED_MAX = 64 * 1024 * 1024
"""Beyond this a compressed body is not looked into: it may be made to explode."""


def encoding_of(headers: Mapping[str, str]) -> str | None:
    """The content encoding; None when the body is plain. `headers` have lower-case names."""
    encoding = headers.get("content-encoding")
    return None if encoding is None or encoding == "identity" else encoding


def decoded(encoding: str | None, body: bytes) -> bytes:
    """`body` as it was before encoding; nothing when the encoding is unknown or broken."""
    if encoding is None:
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

    def __init__(self, encoding: str) -> None:
        is_known = encoding in ("gzip", "deflate")
        self._engine = zlib.decompressobj(_ANY_ZLIB) if is_known else None

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
