"""One way to use four kinds of client: sync or async, on httpx2 or on legacy httpx."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.util
import ssl
from collections.abc import Coroutine
from typing import Any

import openai

from headway.client import wrap

FAMILIES = [name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)]
KINDS = [f"{colour}-{family}" for family in FAMILIES for colour in ("sync", "async")]
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@functools.cache
def _no_certificates() -> ssl.SSLContext:
    """What plain http needs. Each client loading the system's certificates anew took most of the
    time of a test."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Caller:
    """A wrapped client, used from plain code whatever its colour."""

    def __init__(self, kind: str, url: str, host: Any, **options: Any) -> None:
        self.is_async = kind.startswith("async")
        self._runner = asyncio.Runner() if self.is_async else None
        self.http = self.run(self._http(kind, options.pop("limits", None)))
        cls = options.pop("cls", None) or (openai.AsyncOpenAI if self.is_async else openai.OpenAI)
        if "provider" not in options:  # which brings both
            options = {"api_key": "sk-own", "base_url": url, **options}
        self.plain = cls(http_client=self.http, **options)
        self.client = wrap(self.plain, router=host)

    async def _http(self, kind: str, limits: Any) -> Any:
        module = importlib.import_module(kind.partition("-")[2])
        cls = module.AsyncClient if self.is_async else module.Client
        more: dict[str, Any] = {} if limits is None else {"limits": module.Limits(**limits)}
        more.setdefault("verify", _no_certificates())
        return cls(timeout=module.Timeout(10, connect=5), follow_redirects=True, **more)

    def run(self, value: Any) -> Any:
        """The value, awaited where it has to be."""
        if isinstance(value, Coroutine):
            if self._runner is None:  # a coroutine that awaits nothing
                try:
                    value.send(None)
                except StopIteration as stop:
                    return stop.value
                raise AssertionError("a sync client awaited")
            return self._runner.run(value, context=contextvars.copy_context())
        return value

    def chat(self, **options: Any) -> Any:
        options = {"model": "m", "messages": MESSAGES, **options}
        return self.run(self.client.chat.completions.create(**options))

    def raw(self, **options: Any) -> Any:
        options = {"model": "m", "messages": MESSAGES, **options}
        return self.run(self.client.chat.completions.with_raw_response.create(**options))

    def drain(self, stream: Any) -> list[Any]:
        """All items of a stream."""
        if not self.is_async:
            return list(stream)

        async def collect() -> list[Any]:
            return [item async for item in stream]

        result: list[Any] = self.run(collect())
        return result

    def take(self, stream: Any, count: int) -> list[Any]:
        """The first items of a stream; it is left open."""
        taken: list[Any] = []
        if not self.is_async:
            for item in stream:
                taken.append(item)
                if len(taken) == count:
                    break
            return taken

        async def some() -> None:
            async for item in stream:
                taken.append(item)
                if len(taken) == count:
                    return

        self.run(some())
        return taken

    def text(self, **options: Any) -> str:
        """The text of a streamed chat."""
        chunks = self.drain(self.chat(stream=True, **options))
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    def close(self) -> None:
        self.run(self.client.close())
        if self._runner is not None:
            self._runner.close()
