"""What has to hold for any stream, however it is cut, compressed or damaged."""

from __future__ import annotations

import importlib
import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headway.transport.decode import Inflater
from headway.transport.sse import StreamObserver

BOM = b"\xef\xbb\xbf"
SURFACES = ("chat", "completions", "responses", "audio")
ENCODINGS = ("gzip", "deflate", "raw deflate", "br", "zstd")

Seen = tuple[object, ...]


def seen(observer: StreamObserver) -> Seen:
    """All that an observer tells of a stream."""
    return (
        observer.content_events,
        observer.events,
        observer.outcome(),
        observer.error_message,
        observer.error_event.rstrip(b"\r\n"),  # the LF of a split CR LF comes too late for it
        observer.done,
        observer.terminal,
        observer.usage,
        observer.response_id,
        observer.model,
        observer.service_tier,
        observer.finish_reasons,
        observer.partial_text,
        observer.partial_tool_calls,
    )


def pieces(stream: bytes, cuts: Iterable[int]) -> Iterator[bytes]:
    """The stream, cut there."""
    size = len(stream)
    points = sorted({0, size, *(cut % (size + 1) for cut in cuts)})
    for start, end in itertools.pairwise(points):
        yield stream[start:end]


def observed(chunks: Iterable[bytes], surface: str, *, hide: bool) -> tuple[Seen, bytes]:
    """What an observer tells of a stream, and what of it is handed on."""
    observer = StreamObserver(surface, hide_usage=hide)
    out = [observer.feed(chunk) for chunk in chunks]
    out.append(observer.finish())
    return seen(observer), b"".join(out)


def check(stream: bytes, surface: str, splits: Sequence[Sequence[int]], *, hide: bool) -> Seen:
    """The verdict on a stream. AssertionError: it depends on the cuts, or bytes were changed."""
    whole, out = observed([stream], surface, hide=hide)
    for cuts in splits:
        verdict, cut_out = observed(pieces(stream, cuts), surface, hide=hide)
        assert verdict == whole, f"cut at {sorted(cuts)[:20]}: {verdict} is not {whole}"
        assert cut_out == out, f"cut at {sorted(cuts)[:20]}: other bytes were handed on"
    if not hide:
        failed = whole[3] is not None
        assert is_less_only(stream, out, failed=failed), "handed on what never came"
    return whole


def compressed(encoding: str, parts: Sequence[bytes]) -> bytes:
    """The parts one after the other, each so that it can be read as soon as it has come."""
    engine: Any
    if encoding == "br":
        engine = importlib.import_module("brotli").Compressor()
        packed = [engine.process(part) + engine.flush() for part in parts]
        return b"".join([*packed, engine.finish()])
    if encoding == "zstd":
        zstd = importlib.import_module("zstandard")
        engine, flush = zstd.ZstdCompressor().compressobj(), zstd.COMPRESSOBJ_FLUSH_BLOCK
    else:
        wbits = {"gzip": 31, "deflate": 15, "raw deflate": -15}[encoding]
        engine, flush = zlib.compressobj(wbits=wbits), zlib.Z_SYNC_FLUSH
    packed = [engine.compress(part) + engine.flush(flush) for part in parts]
    return b"".join([*packed, engine.flush()])


def check_compressed(stream: bytes, surface: str, cuts: Sequence[int], encoding: str) -> None:
    """A compressed stream is the same stream."""
    inflater = Inflater([encoding.removeprefix("raw ")])
    if not inflater.is_known:
        return
    packed = compressed(encoding, list(pieces(stream, cuts)))
    plain = (inflater.feed(part) for part in pieces(packed, cuts))
    assert observed(plain, surface, hide=False) == observed([stream], surface, hide=False)


def is_less_only(stream: bytes, out: bytes, *, failed: bool) -> bool:
    """Whether `out` is `stream` less a byte order mark and events without data, up to an error.

    Knows nothing of the observer: events are told apart line by line.
    """
    pos = 0
    for index, event in enumerate(events(stream)):
        if out.startswith(event, pos):
            pos += len(event)
        elif index == 0 and event.startswith(BOM) and out.startswith(event[3:], pos):
            pos += len(event) - 3
        elif failed and pos == len(out):
            return True
        elif has_data(event) and not (index == 0 and event.startswith(BOM)):
            return False
    return pos == len(out)


def events(stream: bytes) -> Iterator[bytes]:
    """The stream, cut after each empty line."""
    start = at = 0
    line_start = 0
    size = len(stream)
    while at < size:
        byte = stream[at]
        if byte not in (10, 13):
            at += 1
            continue
        end = at + 2 if byte == 13 and stream[at + 1 : at + 2] == b"\n" else at + 1
        if at == line_start:
            yield stream[start:end]
            start = end
        line_start = at = end
    if start < size:
        yield stream[start:]


def has_data(event: bytes) -> bool:
    """Whether any line of the event brings data that isn't blank."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return any(line.startswith(b"data:") and line[5:].strip(b" \t") for line in lines)
