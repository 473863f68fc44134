"""Random damage to recorded streams: what networks, proxies and servers do, and what nobody does."""

from __future__ import annotations

import random

from tests.fuzz.corpus import RECORDED

STREAMS = tuple(RECORDED.values())
TOKENS = (
    b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"data:", b"data: ", b"data:\n\n",
    b"data: [DONE]\n\n", b": ping\n\n", b"event: error\n", b"event: ping\n\n", b"id: 3\n", b"id:\n",
    b"retry: 1\n\n", b'"', b"\\", b"\\u00", b"\\ud83d", b"\xff", b"\x00", b"{", b"}", b"null", b',"usage":null',
    b'"error":{"code":429},', b'"finish_reason":"stop"', b'"content":"x"', b"[DONE]", b":",
)  # fmt: skip


def case(rng: random.Random) -> tuple[str, bytes]:
    """A surface, and a stream for it."""
    surface, stream = rng.choice(STREAMS)
    if rng.random() < 0.1:
        stream = _replaced_ends(rng, stream)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 4))):
        stream = rng.choice(_KINDS)(rng, stream)
    return surface, stream


def cuts(rng: random.Random, size: int) -> list[int]:
    """Where to cut a stream: seldom, often, or after every byte."""
    kind = rng.random()
    if kind < 0.05:
        return list(range(size))
    count = 1 + int(rng.expovariate(0.25))
    return [rng.randrange(size + 1) for _ in range(count)]


def _place(rng: random.Random, stream: bytes) -> int:
    return rng.randrange(len(stream) + 1)


def _insert(rng: random.Random, stream: bytes) -> bytes:
    at = _place(rng, stream)
    return stream[:at] + rng.choice(TOKENS) + stream[at:]


def _overwrite(rng: random.Random, stream: bytes) -> bytes:
    at = _place(rng, stream)
    return stream[:at] + bytes((rng.randrange(256),)) + stream[at + 1 :]


def _delete(rng: random.Random, stream: bytes) -> bytes:
    at = _place(rng, stream)
    return stream[:at] + stream[at + 1 + int(rng.expovariate(0.1)) :]


def _truncate(rng: random.Random, stream: bytes) -> bytes:
    return stream[: _place(rng, stream)]


def _repeat(rng: random.Random, stream: bytes) -> bytes:
    parts = stream.split(b"\n\n")
    at = rng.randrange(len(parts))
    return b"\n\n".join([*parts[: at + 1], *parts[at:]])


def _shuffle(rng: random.Random, stream: bytes) -> bytes:
    parts = stream.split(b"\n\n")
    rng.shuffle(parts)
    return b"\n\n".join(parts)


def _splice(rng: random.Random, stream: bytes) -> bytes:
    _, other = rng.choice(STREAMS)
    return stream[: _place(rng, stream)] + other[_place(rng, other) :]


def _noise(rng: random.Random, stream: bytes) -> bytes:
    at = _place(rng, stream)
    return stream[:at] + rng.randbytes(1 + int(rng.expovariate(0.2))) + stream[at:]


def _replaced_ends(rng: random.Random, stream: bytes) -> bytes:
    ends = (b"\n", b"\r\n", b"\r")
    if rng.random() < 0.7:
        return stream.replace(b"\n", rng.choice(ends))
    lines = stream.split(b"\n")
    return b"".join(line + rng.choice(ends) for line in lines)


_KINDS = (_insert, _insert, _overwrite, _overwrite, _delete, _truncate, _repeat, _shuffle, _splice, _noise)  # fmt: skip
