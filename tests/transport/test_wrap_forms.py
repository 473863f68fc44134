"""Multipart calls (audio, images) fail over like chat: any endpoint, another model, no byte lost."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.core.model import AttemptEnded
from headway.core.snapshot import Endpoint, HedgePolicy
from tests.servers import DONE, SSE, R, Rst, Seen, error, event
from tests.transport.hosts import Host, own, policy

TEXT = R(200, {"text": "hello"})
IMAGE = R(200, {"created": 1, "data": [{"b64_json": "aGk="}]})
DOWN = R(503, error("down"))
CALLS: dict[str, tuple[R, Callable[[Any, Any], Any]]] = {
    "transcriptions": (
        TEXT,
        lambda c, f: c.audio.transcriptions.create(file=f, model="whisper-1", prompt="names"),
    ),
    "translations": (TEXT, lambda c, f: c.audio.translations.create(file=f, model="whisper-1")),
    "edits": (
        IMAGE,
        lambda c, f: c.images.edit(image=[f, f], prompt="x", model="gpt-image-1", n=2),
    ),
    "variations": (IMAGE, lambda c, f: c.images.create_variation(image=f, model="dall-e-2")),
}
SOUND = bytes(range(256)) * 600
"""More than the http libraries read at once."""


def form_of(seen: Seen) -> list[tuple[str, bytes]]:
    """(field name, content) of a form as a server reads it."""
    boundary = seen.headers["content-type"].partition("boundary=")[2].encode()
    first, *parts, last = (b"\r\n" + seen.body).split(b"\r\n--" + boundary)
    assert (first, last) == (b"", b"--\r\n")
    fields: list[tuple[str, bytes]] = []
    for part in parts:
        head, _, content = part.partition(b"\r\n\r\n")
        fields.append((head.decode().partition('name="')[2].partition('"')[0], content))
    return fields


def field(seen: Seen, name: str) -> bytes | None:
    return dict(form_of(seen)).get(name)


class Pipe(io.RawIOBase):
    """A file that can be read once."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seekable(self) -> bool:
        return False


def files(kind: str, tmp_path: Path) -> Any:
    if kind == "bytes":
        return ("a.wav", SOUND)
    if kind == "buffer":
        return ("a.wav", io.BytesIO(SOUND))
    path = tmp_path / "a.wav"
    path.write_bytes(SOUND)
    return path if kind == "path" else path.open("rb")


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the SDK, of two of these
@pytest.mark.parametrize("name", CALLS)
def test_a_form_is_answered_by_the_next_endpoint(
    name: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    answer, call = CALLS[name]
    a, b = serve(DOWN), serve(answer)
    host = Host(policy({"a": a.url, "b": b.url}))
    client = caller(a.url, host)

    reply = client.run(call(client.client, ("a.wav", SOUND)))

    assert getattr(reply, "text", None) == "hello" or reply.data[0].b64_json == "aGk="
    [first], [second] = a.hits, b.hits
    assert first.path == second.path
    assert form_of(first) == form_of(second)
    assert SOUND in [content for _, content in form_of(second)]
    assert "authorization" in first.headers
    assert "authorization" not in second.headers
    assert [e.attempt.endpoint_id for e in host.named(AttemptEnded)] == ["a", "b"]
    assert host.records[0].facts.surface == ("images" if answer is IMAGE else "audio")
    assert host.in_flight == 0


@pytest.mark.parametrize("source", ["bytes", "buffer", "path", "open file"])
def test_every_file_that_can_be_read_again_is(
    source: str, tmp_path: Path, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(Rst()), serve(TEXT)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))
    file = files(source, tmp_path)

    client.run(client.client.audio.transcriptions.create(file=file, model="whisper-1"))

    assert field(b.hits[0], "file") == SOUND
    assert field(b.hits[0], "model") == b"whisper-1"
    if source == "open file":
        file.close()


def test_the_model_is_the_endpoints_and_nothing_else_changes(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(TEXT)
    other = Endpoint(id="b", base_url=b.url, model="whisper-große")
    client = caller(a.url, Host(policy({"a": a.url, "b": other})))

    client.run(
        client.client.audio.transcriptions.create(
            file=("a.wav", SOUND), model="whisper-1", timestamp_granularities=["word", "segment"]
        )
    )

    first, second = form_of(a.hits[0]), form_of(b.hits[0])
    assert [n for n, _ in first] == [n for n, _ in second]
    changed = [(x, y) for x, y in zip(first, second, strict=True) if x != y]
    assert changed == [(("model", b"whisper-1"), ("model", "whisper-große".encode()))]
    assert int(b.hits[0].headers["content-length"]) == len(b.hits[0].body)


def test_an_endpoints_parameters_apply_to_fields(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(TEXT)
    endpoint = Endpoint(
        id="a",
        base_url=a.url,
        params_drop=("timestamp_granularities",),
        params_rename={"prompt": "hint", "language": "model"},
        params_set={"response_format": "json", "chunking_strategy": {"type": "server_vad"}},
    )
    client = caller(a.url, Host(policy({"a": endpoint})))

    client.run(
        client.client.audio.transcriptions.create(
            file=("a.wav", SOUND),
            model="whisper-1",
            language="de",
            prompt="names",
            response_format="text",
            timestamp_granularities=["word", "segment"],
        )
    )

    assert dict(form_of(a.hits[0])) == {
        "file": SOUND,
        "model": b"whisper-1",
        "hint": b"names",
        "response_format": b"json",
        "chunking_strategy[type]": b"server_vad",
    }


def test_azure_finds_the_deployment_of_a_form_in_its_path(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(TEXT)
    azure = Endpoint(
        id="b",
        base_url=b.url.removesuffix("/v1"),
        dialect="azure",
        api_version="2025-04-01-preview",
        model="whisper-east",
    )
    client = caller(a.url, Host(policy({"a": a.url, "b": azure})))

    client.run(client.client.audio.transcriptions.create(file=("a.wav", SOUND), model="whisper-1"))

    [seen] = b.hits
    assert seen.path == (
        "/openai/deployments/whisper-east/audio/transcriptions?api-version=2025-04-01-preview"
    )


def test_what_can_be_read_once_goes_elsewhere_only_until_it_is_read(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(TEXT)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    with pytest.raises(openai.InternalServerError, match="down"):
        client.run(
            client.client.audio.transcriptions.create(file=("a.wav", Pipe(SOUND)), model="m")
        )
    assert (len(a.hits), len(b.hits)) == (1, 0)
    assert field(a.hits[0], "file") == SOUND

    a.close()  # nothing is read for a connection that is refused
    client.run(client.client.audio.transcriptions.create(file=("a.wav", Pipe(SOUND)), model="m"))
    assert field(b.hits[0], "file") == SOUND


@pytest.mark.parametrize("source", ["bytes", "buffer"])
def test_a_file_is_never_read_by_two_attempts_at_once(
    source: str, tmp_path: Path, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(200, {"text": "slow"}, delay=0.3)), serve(TEXT)
    hedging = HedgePolicy(enabled=True, delay_s=0.05, max_extra_fraction=1.0)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url}, hedge=hedging)))
    file = files(source, tmp_path)

    reply = client.run(client.client.audio.transcriptions.create(file=file, model="m"))

    assert reply.text == ("hello" if source == "bytes" else "slow")
    assert len(b.hits) == (source == "bytes")


def test_a_streamed_transcription_fails_over_until_its_first_words(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    words = [
        event({"type": "transcript.text.delta", "delta": "hel"}),
        event({"type": "transcript.text.delta", "delta": "lo"}),
        event({"type": "transcript.text.done", "text": "hello"}),
        DONE,
    ]
    a, b = serve(SSE([event({"error": {"message": "no"}})])), serve(SSE(words))
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    stream = client.run(
        client.client.audio.transcriptions.create(
            file=("a.wav", SOUND), model="gpt-4o-transcribe", stream=True
        )
    )

    assert [e.type.rpartition(".")[2] for e in client.drain(stream)] == ["delta", "delta", "done"]
    assert (len(a.hits), len(b.hits)) == (1, 1)


@pytest.mark.parametrize("mode", ["own", "observe"])
def test_without_enforcement_the_wire_sees_the_plain_clients_form(
    mode: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("down"), {"retry-after-ms": "1"}), TEXT), serve(TEXT)
    host = Host(own(a.url)) if mode == "own" else Host(policy({"b": b.url}), mode="observe")
    client = caller(a.url, host)

    reply = client.run(
        client.client.audio.transcriptions.create(file=("a.wav", io.BytesIO(SOUND)), model="m")
    )

    assert reply.text == "hello"
    assert [s.headers["x-stainless-retry-count"] for s in a.hits] == ["0", "1"]
    assert [field(s, "file") for s in a.hits] == [SOUND, SOUND]
    assert not b.hits
    [record] = host.records
    assert len(record.attempts) == 2
    assert host.in_flight == 0
