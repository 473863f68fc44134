"""Streams that come compressed, in every way that clients ask for, and damaged."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headway.core.model import AttemptEnded, FailureClass
from headway.errors import StreamInterrupted
from tests.servers import DONE, FIN, OK_STREAM, ROLE, SSE, R, chunk, completion
from tests.transport.hosts import Host, own, policy

ENCODINGS = {"gzip": ("gzip", 31), "zlib": ("deflate", 15), "raw deflate": ("deflate", -15)}


def packed(how: str, *parts: bytes) -> tuple[dict[str, str], list[bytes]]:
    """Headers, and each part as soon as it can be read."""
    name, wbits = ENCODINGS[how]
    engine = zlib.compressobj(wbits=wbits)
    out = [engine.compress(part) + engine.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return {"content-encoding": name}, [*out, engine.flush()]


@pytest.mark.parametrize("how", ENCODINGS)
def test_a_stream_is_read_as_it_comes(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"), FIN, DONE)
    a = serve(SSE(parts, headers=headers))

    assert caller(a.url, Host(policy({"a": a.url}))).text() == "Hello"


@pytest.mark.parametrize("how", ENCODINGS)
def test_without_a_policy_the_compressed_bytes_go_through(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"), FIN, DONE)
    a = serve(SSE(parts, headers=headers))
    host = Host(own(a.url))

    assert caller(a.url, host).text() == "Hello"

    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.OK


@pytest.mark.parametrize("how", ENCODINGS)
def test_a_whole_reply_is_read_too(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    import json

    headers, parts = packed(how, json.dumps(completion("packed")).encode())
    a = serve(R(200, b"".join(parts), headers=headers))

    reply = caller(a.url, Host(policy({"a": a.url}))).chat()

    assert reply.choices[0].message.content == "packed"
    assert len(a.hits) == 1


@pytest.mark.parametrize("how", ENCODINGS)
def test_damage_before_the_first_token_is_another_endpoints_chance(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"))
    a = serve(SSE([parts[0], b"\xff" * 40, *parts[1:]], headers=headers))
    b = serve(OK_STREAM)
    host = Host(policy({"a": a.url, "b": b.url}))

    assert caller(a.url, host).text() == "Hello"

    assert [end.outcome.kind for end in host.named(AttemptEnded)] == [
        FailureClass.INCOMPLETE_STREAM,
        FailureClass.OK,
    ]


@pytest.mark.parametrize("how", ENCODINGS)
def test_damage_after_it_is_an_interruption(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"))
    a = serve(SSE([*parts[:2], 0.02, b"\xff" * 40], headers=headers))
    client = caller(a.url, Host(policy({"a": a.url})))

    with pytest.raises(StreamInterrupted, match="decompressed") as caught:
        client.text()

    assert caught.value.partial.text == "Hel"
