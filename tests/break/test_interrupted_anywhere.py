"""An interrupt comes at any line: the attempt ends once, and nothing stays counted.

A signal handler may raise at any point of the main thread (Ctrl-C, a Celery time limit, a notebook's
stop button), and the process goes on. Here a tracer raises instead, at one line after the other of
what this package runs for a call.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import linecache
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any

import openai
import pytest

import headway
from headway.core.model import AttemptEnded
from headway.router import Router
from tests.servers import completion
from tests.transport.callers import FAMILIES, MESSAGES
from tests.transport.hosts import Host, own, policy

URL = "http://api.example/v1"
OURS = ("/headway/core/", "/headway/transport/")
PUBLISHED: dict[str, Callable[[], Router]] = {
    "light": lambda: Router(own(URL)),
    "policy": lambda: Host(policy({"a": URL})),
}


class Interrupt(BaseException):
    """What a signal handler raises."""


class AtLine:
    """Raises when so many lines of ours have been run. `is_over`: there were not so many."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.at = ""

    @property
    def is_over(self) -> bool:
        return self.left > 0

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        path = frame.f_code.co_filename
        if self.left <= 0 or not any(part in path for part in OURS):
            return None
        # A tracer may raise between a block's end and the lock's release; a signal handler may not.
        is_with = linecache.getline(path, frame.f_lineno).lstrip().startswith("with ")
        if event == "line" and not is_with:
            self.left -= 1
            if self.left <= 0:
                self.at = f"{path.rpartition('/headway/')[2]}:{frame.f_lineno}"
                raise Interrupt
        return self

    def run(self, work: Callable[[], object]) -> object:
        sys.settrace(self)
        try:
            return work()
        except Interrupt:
            return None
        finally:
            sys.settrace(None)


def in_memory(kind: str, status: int) -> Any:
    """An http client whose replies come from memory, as from a connection."""
    module: Any = importlib.import_module(kind.partition("-")[2])
    body = json.dumps(completion()).encode()

    class Body(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield body

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield body

    class Transport(module.BaseTransport, module.AsyncBaseTransport):  # type: ignore[misc]
        def handle_request(self, _: object) -> Any:
            headers = {"content-type": "application/json"}
            return module.Response(status, headers=headers, stream=Body())

        async def handle_async_request(self, request: object) -> Any:
            return self.handle_request(request)

    cls = module.AsyncClient if kind.startswith("async") else module.Client
    return cls(transport=Transport())


def caller_of(kind: str, status: int, router: Router, loop: asyncio.Runner) -> Callable[[], object]:
    is_async = kind.startswith("async")
    cls: Any = openai.AsyncOpenAI if is_async else openai.OpenAI
    plain = cls(api_key="k", base_url=URL, http_client=in_memory(kind, status), max_retries=0)
    create = headway.wrap(plain, router=router).chat.completions.create

    def call() -> object:
        try:
            made = create(model="m", messages=MESSAGES)
            return loop.run(made) if is_async else made
        except openai.APIStatusError as problem:
            return problem

    return call


def counted(router: Router) -> tuple[int, ...]:
    """All that a call is counted in, endpoint by endpoint, and whether the lock is held."""
    status = router.status()
    rows = [row.in_flight for row in (*status.endpoints, *status.pools)]
    return (*rows, int(router.engine.lock.locked()))  # type: ignore[attr-defined]


CASES = [(p, s, c) for p in PUBLISHED for s in (200, 400) for c in ("sync", "async")]


@pytest.mark.parametrize(
    ("published", "status", "colour"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])],
)
def test_nothing_stays_counted(published: str, status: int, colour: str) -> None:
    router = PUBLISHED[published]()
    kind = f"{colour}-{FAMILIES[0]}"
    with asyncio.Runner() as loop:
        call = caller_of(kind, status, router, loop)
        call()
        for count in range(1, 5000):
            tracer = AtLine(count)
            tracer.run(call)
            held = counted(router)
            assert not any(held), f"interrupted at {tracer.at}: {held}"
            if tracer.is_over:
                break
        assert count > 50
        assert call() is not None
    if isinstance(router, Host):
        ended = [id(event.attempt) for event in router.named(AttemptEnded)]
        assert len(ended) == len(set(ended))
