"""Streams that come compressed, in every way that clients ask for, and damaged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headway.core.model import AttemptEnded, FailureClass
from headway.core.snapshot import ContinuationPolicy
from headway.errors import StreamInterrupted
from tests.servers import DONE, FIN, OK_STREAM, ROLE, SSE, USAGE, R, chunk, completion
from tests.transport.hosts import Host, own, policy

ZLIB = {"gzip": ("gzip", 31), "zlib": ("deflate", 15), "raw deflate": ("deflate", -15)}
ENCODINGS = (*ZLIB, "br", "zstd", "zstd in frames", "two in a row")
SOME = ("raw deflate", "br", "zstd")
"""Each library's once."""


def packed(how: str, *parts: bytes) -> tuple[dict[str, str], list[bytes]]:
    """Headers, and each part as soon as it can be read."""
    if how in ZLIB:
        name, wbits = ZLIB[how]
        engine = zlib.compressobj(wbits=wbits)
        out = [engine.compress(part) + engine.flush(zlib.Z_SYNC_FLUSH) for part in parts]
        return {"content-encoding": name}, [*out, engine.flush()]
    if how == "br":
        brotli = pytest.importorskip("brotli").Compressor()
        out = [brotli.process(part) + brotli.flush() for part in parts]
        return {"content-encoding": "br"}, [*out, brotli.finish()]
    zstd = pytest.importorskip("zstandard")
    if how == "zstd in frames":
        frames = [zstd.ZstdCompressor().compress(part) for part in parts]
        return {"content-encoding": "zstd"}, [*frames, zstd.ZstdCompressor().compress(b"")]
    if how == "zstd":
        packer = zstd.ZstdCompressor().compressobj()
        flush = zstd.COMPRESSOBJ_FLUSH_BLOCK
        out = [packer.compress(part) + packer.flush(flush) for part in parts]
        return {"content-encoding": "zstd"}, [*out, packer.flush()]
    _, inner = packed("gzip", *parts)
    _, outer = packed("br", *inner)
    return {"content-encoding": "gzip, br"}, [*outer[:-2], outer[-2] + outer[-1]]


DAMAGE = b"\xff" * 40


@pytest.mark.parametrize("how", ENCODINGS)
def test_a_stream_is_read_as_it_comes(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"), FIN, DONE)
    a = serve(SSE(parts, headers=headers))

    assert caller(a.url, Host(policy({"a": a.url}))).text() == "Hello"


@pytest.mark.parametrize("how", [how for how in ENCODINGS if "frames" not in how])
def test_without_a_policy_the_compressed_bytes_go_through(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"), FIN, USAGE, DONE)
    a = serve(SSE(parts, headers=headers))
    host = Host(own(a.url))

    assert caller(a.url, host).text() == "Hello"

    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.OK
    assert end.attempt.first_token_at is not None
    assert end.outcome.output_tokens == 2


@pytest.mark.parametrize("how", SOME)
def test_a_whole_reply_is_read_too(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, json.dumps(completion("packed")).encode())
    a = serve(R(200, b"".join(parts), headers=headers))

    reply = caller(a.url, Host(policy({"a": a.url}))).chat()

    assert reply.choices[0].message.content == "packed"
    assert len(a.hits) == 1


@pytest.mark.parametrize("how", SOME)
def test_damage_before_the_first_token_is_another_endpoints_chance(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"))
    a = serve(SSE([parts[0], DAMAGE, *parts[1:]], headers=headers))
    b = serve(OK_STREAM)
    host = Host(policy({"a": a.url, "b": b.url}))

    assert caller(a.url, host).text() == "Hello"

    assert [end.outcome.kind for end in host.named(AttemptEnded)] == [
        FailureClass.INCOMPLETE_STREAM,
        FailureClass.OK,
    ]


@pytest.mark.parametrize("how", SOME)
def test_damage_after_it_is_an_interruption(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"))
    a = serve(SSE([*parts[:2], 0.02, DAMAGE], headers=headers))
    client = caller(a.url, Host(policy({"a": a.url})))

    with pytest.raises(StreamInterrupted, match="decompressed") as caught:
        client.text()

    assert caught.value.partial.text == "Hel"


@pytest.mark.parametrize("how", SOME)
def test_a_stream_that_ends_in_the_middle_is_an_interruption(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"))
    a = serve(SSE(parts, headers=headers))
    host = Host(policy({"a": a.url}))

    with pytest.raises(StreamInterrupted) as caught:
        caller(a.url, host).text()

    assert caught.value.partial.text == "Hello"
    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.INCOMPLETE_STREAM


@pytest.mark.parametrize("how", SOME)
def test_a_whole_reply_that_is_damaged_is_another_endpoints_chance(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, json.dumps(completion("packed")).encode())
    a = serve(R(200, DAMAGE + b"".join(parts), headers=headers))
    b = serve(R(200, completion("whole")))

    reply = caller(a.url, Host(policy({"a": a.url, "b": b.url}))).chat()

    assert reply.choices[0].message.content == "whole"


@pytest.mark.parametrize("how", SOME)
def test_a_whole_reply_too_large_to_look_into_is_believed(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("headway.transport.decode.INFLATED_MAX", 1000)
    headers, parts = packed(how, json.dumps(completion("x" * 2000)).encode())
    a = serve(R(200, b"".join(parts), headers=headers))

    reply = caller(a.url, Host(policy({"a": a.url}))).chat()

    assert reply.choices[0].message.content == "x" * 2000
    assert len(a.hits) == 1


@pytest.mark.parametrize("how", ["br", "zstd"])
def test_a_stream_that_explodes_is_an_interruption(
    how: str, serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("headway.transport.decode.INFLATED_MAX", 1000)
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("x" * 2000))
    a = serve(SSE([*parts[:2], 0.02, *parts[2:]], headers=headers))

    with pytest.raises(StreamInterrupted, match="inflates"):
        caller(a.url, Host(policy({"a": a.url}))).text()


# ------------------------------------------------ what is not installed


@pytest.fixture
def no_decoders(monkeypatch: Any) -> None:
    """The http libraries read brotli and zstandard, and we don't."""
    monkeypatch.setattr("headway.transport.decode._library", lambda *_: None)


@pytest.mark.parametrize("how", ["br"])
@pytest.mark.parametrize("publish", [own, lambda url: policy({"a": url})], ids=["own", "policy"])
@pytest.mark.usefixtures("no_decoders")
def test_a_stream_that_only_the_http_library_reads_goes_through(
    how: str, publish: Any, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed(how, ROLE, chunk("Hel"), chunk("lo"), FIN, DONE)
    a = serve(SSE(parts, headers=headers))
    host = Host(publish(a.url))

    assert caller(a.url, host).text() == "Hello"

    assert not [e for e in host.named(AttemptEnded) if e.result not in ("ok", "cancelled")]
    assert host.in_flight == 0


@pytest.mark.usefixtures("no_decoders")
def test_what_cannot_be_read_is_not_joined_to_an_answer(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    headers, parts = packed("br", ROLE, chunk("lo"), FIN, DONE)
    a = serve(SSE([ROLE, chunk("Hel")], end="eof"))
    b = serve(SSE(parts, headers=headers))
    c = serve(SSE([ROLE, chunk("lo"), FIN, DONE]))
    endpoints = {"a": a.url, "b": b.url, "c": c.url}
    client = caller(a.url, Host(policy(endpoints, continuation=ContinuationPolicy(enabled=True))))

    assert client.text() == "Hello"
    assert len(b.hits) == len(c.hits) == 1


def test_a_name_that_the_http_library_takes_for_nothing_is_none(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, DONE], headers={"content-encoding": "utf-8"}))
    b = serve(OK_STREAM)

    assert caller(a.url, Host(policy({"a": a.url, "b": b.url}))).text() == "Hello"
    assert len(b.hits) == 1


def test_what_the_application_cannot_read_is_another_endpoints_chance(
    serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr("headway.transport.decode._is_read", lambda *_: False)
    headers, parts = packed("br", ROLE, chunk("Hel"), chunk("lo"), FIN, DONE)
    a = serve(SSE(parts, headers=headers))
    b = serve(OK_STREAM)

    assert caller(a.url, Host(policy({"a": a.url, "b": b.url}))).text() == "Hello"
    assert len(b.hits) == 1
