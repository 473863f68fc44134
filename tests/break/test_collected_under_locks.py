"""The collector comes at any allocation of any thread, whatever lock is held there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headway
from headway.core.model import AttemptEnded, FailureClass
from tests.servers import ROLE, SSE, chunk
from tests.transport.callers import MESSAGES, Caller
from tests.transport.hosts import Host, policy

LOCKS = (type(threading.Lock()), type(threading.RLock()))
LONG = SSE([ROLE, *([chunk("x"), 0.02] * 50)])
SLOW_S = 5.0


def members(holder: object) -> Iterator[object]:
    yield from getattr(holder, "__dict__", {}).values()
    for cls in type(holder).__mro__:
        for name in getattr(cls, "__slots__", ()):
            yield getattr(holder, name, None)


def locks_of(*packages: str) -> list[Any]:
    """Every lock that modules of these packages, and what they have made, hold now."""

    def is_theirs(name: object) -> bool:
        return isinstance(name, str) and name.partition(".")[0] in packages

    holders: list[object] = [module for name, module in sys.modules.items() if is_theirs(name)]
    holders += [thing for thing in gc.get_objects() if is_theirs(type(thing).__module__)]
    found = {id(m): m for holder in holders for m in members(holder) if isinstance(m, LOCKS)}
    return [lock for lock in found.values() if lock.acquire(blocking=False) and not lock.release()]


@contextlib.contextmanager
def all_held(*packages: str) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for lock in locks_of(*packages):
            held.enter_context(lock)
        yield


def collected_under_locks(make: Callable[[], object]) -> None:
    """Forget what `make` returns; the collector comes while this thread holds every lock."""
    gc.collect()
    gc.disable()
    try:
        cycle = [make()]
        cycle.append(cycle)
        del cycle
        stuck = threading.Timer(SLOW_S, os.kill, (os.getpid(), signal.SIGABRT))
        stuck.start()
        with all_held("headway", "httpcore", "httpcore2"):
            gc.collect()
        stuck.cancel()
    finally:
        gc.enable()


def wait_until(true: Callable[[], object]) -> None:
    until = time.monotonic() + SLOW_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize("shares", [False, True])
def test_a_stream_is_collected_whatever_is_held(
    shares: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(LONG)
    host = Host(policy({"a": a.url}, coalesce=shares))
    client: Caller = caller(a.url, host)

    def make() -> object:
        stream = client.chat(stream=True, temperature=0)
        client.take(stream, 2)
        if client.is_async:  # the loop first ends the iteration that was left
            client.run(asyncio.sleep(0.01))
        return stream

    collected_under_locks(make)

    def is_told() -> bool:
        if client.is_async:
            client.run(asyncio.sleep(0.01))
        return bool(host.named(AttemptEnded))

    wait_until(is_told)
    assert host.named(AttemptEnded)[0].outcome.kind is FailureClass.CANCELLED
    assert host.in_flight == 0


def test_a_forgotten_generator_ends_its_task(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(LONG)
    host = Host(policy({"a": a.url}))
    client: Caller = caller(a.url, host)
    if client.is_async:
        pytest.skip("generators are for sync code")
    tasks: list[Any] = []

    def answer() -> Iterator[object]:
        with headway.task("answer") as task:
            tasks.append(task)
            yield from client.chat(stream=True)

    def make() -> object:
        pieces = answer()
        next(pieces)
        return pieces

    collected_under_locks(make)

    assert headway.Task.current() is None
    with headway.task("next"):
        pass
    wait_until(lambda: not host.in_flight)
    assert tasks[0].outcome == "cancelled"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the loop's own connection
def test_a_coroutine_of_a_loop_that_has_ended(serve: Callable[..., Any], kind: str) -> None:
    if not kind.startswith("async"):
        pytest.skip("coroutines are for async code")
    a = serve(LONG)
    host = Host(policy({"a": a.url}))

    def make() -> object:
        loop = asyncio.new_event_loop()
        begun = loop.create_future()

        async def read(client: Any) -> None:
            with headway.task("read"):
                async with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
                    async for _ in stream:
                        begun.set_result(None)
                        await loop.create_future()

        async def begin() -> object:
            made = Caller.__new__(Caller)
            made.is_async, made._runner = True, None
            http = await made._http(kind, None)
            import openai

            client = headway.wrap(
                openai.AsyncOpenAI(api_key="sk-own", base_url=a.url, http_client=http), router=host
            )
            task = asyncio.create_task(read(client))
            await begun
            return task

        task = loop.run_until_complete(begin())
        task._log_destroy_pending = False
        loop.close()
        return task

    collected_under_locks(make)

    with headway.task("next"):
        pass
    wait_until(lambda: not host.in_flight)
    gc.collect()
    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.CANCELLED
