"""Reading compressed replies that go on to the application as they are."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headway.transport.family import Family

_ANY_ZLIB = zlib.MAX_WBITS | 32
"""zlib finds out by itself whether it is gzip or zlib framing."""
INFLATED_MAX = 64 * 1024 * 1024
"""Beyond this a compressed body is not looked into: it may be made to explode."""
SLICE_BYTES = 64
"""How much goes at once to a decoder that takes no limit. Of brotli this may become 16 MiB a dozen
bytes, of zstandard 128 KiB every four."""


def encoding_of(headers: Mapping[str, str]) -> str | None:
    """The content encoding; None when the body is plain. `headers` have lower-case names."""
    encoding = headers.get("content-encoding", "").strip().lower()
    return encoding if encoding not in ("", "identity") else None


def decoded(encoding: str | None, body: bytes, family: Family) -> bytes | None:
    """`body` as the application reads it; nothing when it is broken, None when it can't be told."""
    if encoding is None:
        return body
    inflater = inflater_of(encoding, family)
    if inflater is None:
        return body
    if not inflater.is_known:
        return None
    try:
        return inflater.feed(body)
    except InflatedTooFarError:
        return None
    except UndecodableError:
        return b""


class UndecodableError(Exception):
    """A compressed body is broken, or made to explode."""


class InflatedTooFarError(UndecodableError):
    """A piece of a compressed body becomes larger than we look into."""

    def __init__(self) -> None:
        super().__init__("a piece of it inflates beyond any answer's size")


def inflater_of(encoding: str | None, family: Family) -> Inflater | None:
    """What reads a body as the application's http library does; None: it takes nothing off."""
    if encoding is None:
        return None
    names = [name.strip() for name in encoding.split(",")]
    read = [name for name in names if name in _STAGES and _is_read(name, family)]
    return Inflater(read) if read else None


class _Stage(Protocol):
    """One encoding taken off."""

    def feed(self, chunk: bytes) -> bytes:
        """What `chunk` completes. Raises what its library raises."""
        ...


class Inflater:
    """Decompresses a body as it comes."""

    __slots__ = ("_stages", "is_known")

    def __init__(self, encodings: Sequence[str]) -> None:
        made = [_STAGES[name]() for name in reversed(encodings)]
        self._stages = [stage for stage in made if stage is not None]
        self.is_known = len(self._stages) == len(made)
        """Whether the body can be read here."""

    def feed(self, chunk: bytes) -> bytes:
        """The plain text that `chunk` completes. UndecodableError: there is none."""
        for stage in self._stages:
            try:
                chunk = stage.feed(chunk)
            except UndecodableError:
                raise
            except Exception as exc:  # each library has an error of its own
                raise UndecodableError(str(exc)) from exc
        return chunk


class _Zlib:
    """gzip, and deflate with zlib's header or without."""

    __slots__ = ("_begun", "_engine")

    def __init__(self, *, is_deflate: bool) -> None:
        self._engine = zlib.decompressobj(_ANY_ZLIB)
        self._begun: bytes | None = b"" if is_deflate else None
        """Bytes that may yet turn out to be deflate without zlib's header, as some servers send."""

    def feed(self, chunk: bytes) -> bytes:
        engine = self._engine
        try:
            plain = engine.decompress(chunk, INFLATED_MAX)
        except zlib.error:
            if self._begun is None:
                raise
            begun, self._begun = self._begun + chunk, None
            self._engine = zlib.decompressobj(-zlib.MAX_WBITS)
            return self.feed(begun)
        if engine.unconsumed_tail:
            raise InflatedTooFarError
        if self._begun is not None:
            self._begun += chunk
            if len(self._begun) > 1:  # zlib's header is two bytes with a check sum
                self._begun = None
        return plain


class _Sliced:
    """A decoder that unpacks whatever it is given: it is given little at once."""

    __slots__ = ("_decompress",)

    def __init__(self, decompress: Callable[[bytes], bytes]) -> None:
        self._decompress = decompress

    def feed(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        size = 0
        for start in range(0, len(chunk), SLICE_BYTES):
            plain = self._decompress(chunk[start : start + SLICE_BYTES])
            size += len(plain)
            if size > INFLATED_MAX:
                raise InflatedTooFarError
            out.append(plain)
        return b"".join(out)


class _Frames:
    """zstandard's frames, one after the other, by either library's decoder."""

    __slots__ = ("_engine", "_is_limited", "_make")

    def __init__(self, make: Callable[[], Any], *, is_limited: bool) -> None:
        self._make = make
        self._engine = make()
        self._is_limited = is_limited

    def feed(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        left = INFLATED_MAX
        while chunk:
            if self._engine.eof:
                self._engine = self._make()
            engine = self._engine
            plain = engine.decompress(chunk, left) if self._is_limited else engine.decompress(chunk)
            left -= len(plain)
            if left <= 0:
                raise InflatedTooFarError
            out.append(plain)
            chunk = engine.unused_data if engine.eof else b""
        return b"".join(out)


def _brotli() -> _Stage | None:
    module = _library("brotli", "brotlicffi")
    if module is None:
        return None
    engine = module.Decompressor()
    return _Sliced(engine.process if hasattr(engine, "process") else engine.decompress)


def _zstd() -> _Stage | None:
    module = _library("compression.zstd", "backports.zstd")
    if module is not None:
        return _Frames(module.ZstdDecompressor, is_limited=True)
    module = _library("zstandard")
    if module is None:
        return None
    frames = _Frames(module.ZstdDecompressor().decompressobj, is_limited=False)
    return _Sliced(frames.feed)


@functools.cache
def _library(*names: str) -> Any:
    """The first of these modules that is installed; None: none is."""
    for name in names:
        with suppress(ImportError):
            return importlib.import_module(name)
    return None


_STAGES: Mapping[str, Callable[[], _Stage | None]] = {
    "gzip": lambda: _Zlib(is_deflate=False),
    "deflate": lambda: _Zlib(is_deflate=True),
    "br": _brotli,
    "zstd": _zstd,
}
_SAMPLES = {
    "br": b"\x0b\x00\x80x\x03",
    "zstd": b"\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x",
}
"""The letter x, in encodings that an http library reads if what it takes for that is installed."""


@functools.cache
def _is_read(name: str, family: Family) -> bool:
    """Whether an http library takes an encoding off."""
    sample = _SAMPLES.get(name)
    if sample is None:
        return True
    with suppress(Exception):
        reply = family.Response(200, headers={"content-encoding": name}, content=sample)
        return reply.content == b"x"
    return False
