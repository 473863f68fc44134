"""How many requests one model call makes of endpoints that only ever fail, with and without us.

Everything that waits, waits on one clock that it moves itself: the SDK's and the framework's sleeps,
and Headway's backoff. So a breaker sees the minutes pass that a framework waits between its own
attempts, and nobody has to.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import random
import time
from collections.abc import Callable
from typing import Any

import anyio

from headway.testing import FakeClock
from headway.testing.hurry import hurry
from tests.frameworks.checks import document
from tests.frameworks.page import run_snippet
from tests.frameworks.registry import Framework
from tests.servers import R, Server, error

FAILURES: dict[str, R] = {
    "500": R(500, error("boom")),
    "429": R(429, error("slow down", "requests", "rate_limit_exceeded")),
}
A_LITTLE_S = 0.001
"""Slept in place of every wait, so that a thread that polls doesn't spin."""


def measure(framework: Framework) -> dict[str, Any]:
    """Requests per failing call: {"500": {"plain": {"requests": 12, ...}, ...}, ...}."""
    clock = FakeClock()
    _quicken(clock)  # before the framework takes its own names for sleep
    app = importlib.import_module(framework.module)
    random.seed(0)  # of waits
    seen = {
        status: {
            "plain": _plain(app, step),
            "wrapped": _wrapped(framework, app, step, clock, endpoints=1),
            "two endpoints": _wrapped(framework, app, step, clock, endpoints=2),
        }
        | (
            {"its retries": _wrapped(framework, app, step, clock, endpoints=1, as_it_is=True)}
            if hasattr(app, "with_its_retries")
            else {}
        )
        for status, step in FAILURES.items()
    }
    for status, found in seen.items():
        plain = found["plain"]
        for how, counted in found.items():
            assert counted["raised"] == plain["raised"], f"{status}, {how}: {counted}, not {plain}"
            assert counted["requests"] <= plain["requests"], f"{status}, {how}: {counted}, {plain}"
    return seen


def _quicken(clock: FakeClock) -> None:
    really, areally = time.sleep, asyncio.sleep

    def sleep(seconds: float) -> None:
        clock.advance(max(0.0, seconds))
        really(min(seconds, A_LITTLE_S))

    async def asleep(seconds: float, result: Any = None) -> Any:
        clock.advance(max(0.0, seconds))
        return await areally(min(seconds, A_LITTLE_S), result)

    time.sleep = sleep
    asyncio.sleep = asleep  # type: ignore[assignment]
    anyio.sleep = asleep  # type: ignore[assignment]


def _plain(app: Any, step: R) -> dict[str, Any]:
    """A client that the framework makes itself, from the environment, as its own pages show."""
    with Server(step) as server:
        os.environ["OPENAI_BASE_URL"] = server.url
        raised = _ask(app, app.plain)
        del os.environ["OPENAI_BASE_URL"]
        requests = _calls(server)
        return {"requests": requests, "raised": raised}


def _wrapped(
    framework: Framework,
    app: Any,
    step: R,
    clock: FakeClock,
    *,
    endpoints: int,
    as_it_is: bool = False,
) -> dict[str, Any]:
    """A wrapped client, handed over as the page's section says; or with the framework's own
    retries left as they are."""
    import openai

    import headway

    servers = [Server(step).__enter__() for _ in range(endpoints)]
    router = headway.Router(
        document({f"e{n}": server.url for n, server in enumerate(servers)}),
        clock=clock,
        rng=random.Random(0),
    )
    router.engine = hurry(router.engine, clock)
    options: dict[str, Any] = {"base_url": servers[0].url, "api_key": "sk-own"}
    sync = headway.wrap(openai.OpenAI(**options), router=router)
    client = headway.wrap(openai.AsyncOpenAI(**options), router=router)

    def names() -> dict[str, Any]:
        if as_it_is:
            return app.with_its_retries(sync, client)
        return run_snippet(framework, sync=sync, client=client)

    raised = _ask(app, names)
    requests = sum(_calls(server) for server in servers)
    router.close()
    for server in servers:
        server.close()
    return {"requests": requests, "raised": raised}


def _calls(server: Server) -> int:
    """Model calls: one framework has its tokens counted, too, where it takes us for OpenAI."""
    return sum(not seen.path.endswith("/input_tokens") for seen in server.hits)


def _ask(app: Any, names: Callable[[], dict[str, Any]]) -> str:
    """One model call, which fails; the classes of what was raised, outermost first."""
    try:
        if inspect.iscoroutinefunction(app.ask):
            asyncio.run(app.ask(names()))
        else:
            app.ask(names())
    except Exception as problem:
        links: list[str] = []
        link: BaseException | None = problem
        while link is not None and len(links) < 8:
            links.append(type(link).__name__)
            link = link.__cause__ or link.__context__
        return " < ".join(dict.fromkeys(links))
    raise AssertionError("endpoints that only fail were answered")
