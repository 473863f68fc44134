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
            return Inflater(encoding).feed(body)
        except UndecodableError:
            return b""
    plain = body
    with suppress(Exception):
        plain = family.Response(200, headers={"content-encoding": encoding}, content=body).content
    return None if plain == body else plain


class UndecodableError(Exception):
    """A compressed body is broken, or made to explode."""


class Inflater:
    """Decompresses a body as it comes."""

    __slots__ = ("_begun", "_engine")

    def __init__(self, encoding: str) -> None:
        self._engine = zlib.decompressobj(_ANY_ZLIB) if encoding in _ZLIB else None
        self._begun: bytes | None = b"" if encoding == "deflate" else None
        """Bytes that may yet turn out to be deflate without zlib's header, as some servers send."""

    @property
    def is_known(self) -> bool:
        """Whether the encoding can be read here."""
        return self._engine is not None

    def feed(self, chunk: bytes) -> bytes:
        """The plain text that `chunk` completes. UndecodableError: there is none."""
        engine = self._engine
        if engine is None:
            return b""
        try:
            plain = engine.decompress(chunk, INFLATED_MAX)
        except zlib.error as exc:
            if self._begun is None:
                raise UndecodableError(str(exc)) from exc
            begun, self._begun = self._begun + chunk, None
            self._engine = zlib.decompressobj(-zlib.MAX_WBITS)
            return self.feed(begun)
        if engine.unconsumed_tail:
            raise UndecodableError("a piece of it inflates beyond any answer's size")
        if self._begun is not None:
            self._begun += chunk
            if len(self._begun) > 1:  # zlib's header is two bytes with a check sum
                self._begun = None
        return plain
