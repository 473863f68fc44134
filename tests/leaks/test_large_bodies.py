"""A body of 60 MB goes to one endpoint after the other as the same bytes, and is not copied for it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import io
import tracemalloc
from collections.abc import Callable
from typing import Any

import openai
import pytest

import headway
from tests.servers import completion
from tests.transport.callers import FAMILIES
from tests.transport.hosts import Host, policy

pytestmark = pytest.mark.slow
MB = 1024 * 1024
BODY_BYTES = 60 * MB
ENDPOINTS = ("a", "b", "c")
SPARE_BYTES = 8 * MB
"""What an attempt may hold beside the body: far less than a copy of it."""


class Plays:
    """Endpoints in memory: all but the last are down. Keeps what was sent only as digests."""

    def __init__(self, family: str, down: int) -> None:
        self.seen: list[tuple[int, str]] = []
        self._family: Any = importlib.import_module(family)
        self._down = down

    def _answer(self, digest: Any, size: int) -> Any:
        self.seen.append((size, digest.hexdigest()))
        if len(self.seen) <= self._down:
            return self._family.Response(503, json={"error": {"message": "busy"}})
        return self._family.Response(200, json={**completion(), "text": "hello"})

    def sync(self, request: Any) -> Any:
        digest, size = hashlib.sha256(), 0
        for piece in request.stream:
            digest.update(piece)
            size += len(piece)
        return self._answer(digest, size)

    async def asynchronous(self, request: Any) -> Any:
        digest, size = hashlib.sha256(), 0
        async for piece in request.stream:
            digest.update(piece)
            size += len(piece)
        return self._answer(digest, size)


def client_of(colour: str, plays: Plays) -> Any:
    module: Any = plays._family
    if colour == "async":

        class Awaited(module.AsyncBaseTransport):  # type: ignore[misc,name-defined]
            async def handle_async_request(self, request: Any) -> Any:
                return await plays.asynchronous(request)

        http = module.AsyncClient(transport=Awaited())
        cls: Any = openai.AsyncOpenAI
    else:

        class Plain(module.BaseTransport):  # type: ignore[misc,name-defined]
            def handle_request(self, request: Any) -> Any:
                return plays.sync(request)

        http, cls = module.Client(transport=Plain()), openai.OpenAI
    host = Host(policy({name: f"http://{name}.example/v1" for name in ENDPOINTS}))
    plain = cls(api_key="k", base_url="http://a.example/v1", http_client=http)
    return headway.wrap(plain, router=host)


def peak_of(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def chat(client: Any) -> Any:
    text = "x" * BODY_BYTES
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])


def transcribe(client: Any) -> Any:
    sound = ("sound.wav", io.BytesIO(b"x" * BODY_BYTES))
    return client.audio.transcriptions.create(model="m", file=sound)


@pytest.mark.parametrize("call", [chat, transcribe])
@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("family", FAMILIES[:1])
def test_a_large_body_is_sent_again_and_not_copied(
    family: str, colour: str, call: Callable[[Any], Any]
) -> None:
    peaks = []
    for down in (0, len(ENDPOINTS) - 1):
        plays = Plays(family, down)
        client = client_of(colour, plays)

        def work(client: Any = client) -> None:
            made = call(client)
            if colour == "async":
                asyncio.run(made)

        peaks.append(peak_of(work))
        assert len(plays.seen) == down + 1
        assert {size >= BODY_BYTES for size, _ in plays.seen} == {True}
        assert len({digest for _, digest in plays.seen}) == 1
    once, thrice = peaks

    assert thrice - once < SPARE_BYTES
