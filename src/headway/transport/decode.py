"""Reading compressed replies that go on to the application as they are."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.transport.family import Family

_ANY_ZLIB = zlib.MAX_WBITS | 32
"""zlib finds out by itself whether it is gzip or zlib framing."""
_ZLIB = frozenset({"gzip", "deflate"})
INFLATED_MAX = 64 * 1024 * 1024
"""Beyond this a compressed body is not looked into: it may be made to explode."""


def encoding_of(headers: Mapping[str, str]) -> str | None:
    """The content encoding; None when the body is plain. `headers` have lower-case names."""
    encoding = headers.get("content-encoding", "").strip().lower()
    return encoding if encoding not in ("", "identity") else None


def decoded(encoding: str | None, body: bytes, family: Family) -> bytes | None:
    """`body` as it was before encoding; nothing when it is broken, None when it can't be told.

    What isn't zlib's (`br`, `zstd`, several in a row) is left to the http library, which offers to
    the server what it was installed with, and which the application reads the reply through.
    """
    if encoding is None:
        return body
    if encoding in _ZLIB:
        try:
            return zlib.decompressobj(_ANY_ZLIB).decompress(body, INFLATED_MAX)
        except zlib.error:
            return b""
    plain = body
    with suppress(Exception):
        plain = family.Response(200, headers={"content-encoding": encoding}, content=body).content
    return None if plain == body else plain


class Inflater:
    """Decompresses a stream beside the application, for the observer."""

    __slots__ = ("_engine",)

    def __init__(self, encoding: str) -> None:
        self._engine = zlib.decompressobj(_ANY_ZLIB) if encoding in _ZLIB else None

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
