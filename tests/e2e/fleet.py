"""What the end-to-end tests share: a policy document of servers, and ways to call through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import openai

import headway
from headway.core.model import AttemptEnded, AttemptStarted
from headway.router import Router
from headway.testing import RecordedEvents

MESSAGES: list[Any] = [{"role": "user", "content": "say hello"}]
MODEL = "m"


def document(
    urls: dict[str, str],
    *,
    route: dict[str, Any] | None = None,
    endpoint: dict[str, Any] | None = None,
    version: int = 7,
    **top: Any,
) -> dict[str, Any]:
    """All endpoints, equal shares, one route for model "m"."""
    return {
        "schema_version": "1.0",
        "version": version,
        "endpoints": {name: {"base_url": url, **(endpoint or {})} for name, url in urls.items()},
        "routes": [{"match": {"model": MODEL}, "weights": dict.fromkeys(urls, 1), **(route or {})}],
        **top,
    }


@dataclass
class Fleet:
    """A router, the events it told of, and clients that go through it."""

    router: Router
    events: RecordedEvents
    url: str
    """Where the plain client points: the first endpoint."""
    stack: ExitStack

    def client(self, **options: Any) -> openai.OpenAI:
        options = {"api_key": "sk-own", "base_url": self.url, **options}
        return headway.wrap(self.stack.enter_context(openai.OpenAI(**options)), router=self.router)

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        """To be closed by the test, on its loop."""
        options = {"api_key": "sk-own", "base_url": self.url, **options}
        return headway.wrap(openai.AsyncOpenAI(**options), router=self.router)

    def sends_to(self, endpoint: str) -> int:
        started = self.events.of(AttemptStarted)
        return sum(event.attempt.endpoint_id == endpoint for event in started)

    @property
    def in_flight(self) -> int:
        return sum(row.in_flight for row in self.router.status().endpoints)

    def ended(self, within_s: float = 20.0) -> list[AttemptEnded]:
        """How attempts ended, once none is under way."""
        until = time.monotonic() + within_s
        while self.in_flight and time.monotonic() < until:
            time.sleep(0.005)
        assert not self.in_flight
        return self.events.of(AttemptEnded)


def say(client: openai.OpenAI, *, stream: bool = False, **options: Any) -> str:
    """One chat call; the text of the answer."""
    options = {"model": MODEL, "messages": MESSAGES, **options}
    reply: Any = client.chat.completions.create(stream=stream, **options)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join(c.choices[0].delta.content or "" for c in reply if c.choices)


async def asay(client: openai.AsyncOpenAI, *, stream: bool = False, **options: Any) -> str:
    """One chat call; the text of the answer."""
    options = {"model": MODEL, "messages": MESSAGES, **options}
    reply: Any = await client.chat.completions.create(stream=stream, **options)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join([c.choices[0].delta.content or "" async for c in reply if c.choices])


def in_threads(work: Callable[[int], str], count: int, at_once: int) -> list[str]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(work, range(count)))


async def at_once(work: Callable[[], Awaitable[str]], count: int, limit: int) -> list[str]:
    room = asyncio.Semaphore(limit)

    async def one() -> str:
        async with room:
            return await work()

    return await asyncio.gather(*(one() for _ in range(count)))


def texts(found: Iterable[str]) -> set[str]:
    return {text.lower() for text in found}
