"""Connections: reused by streams, never shared with another loop or a forked child."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import headway
from tests.e2e.fleet import Fleet, asay, at_once, say, texts
from tests.e2e.replies import answer


def test_streams_one_after_another_share_a_connection(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="Hel|lo"))
    client = fleet({"a": server.url}).client()

    for _ in range(20):
        assert say(client, stream=True) == "Hello"

    assert server.connections == 1


async def test_streams_at_once_share_as_many_connections_as_they_are(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="Hel|lo"))
    async with fleet({"a": server.url}).async_client() as client:
        answers = await at_once(lambda: asay(client, stream=True), 100, 8)

    assert texts(answers) == {"hello"}
    assert server.connections <= 8


def test_a_failover_keeps_the_connections_of_both(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    from tests.servers import R, error

    down, up = serve(R(400, error("bad", "invalid_request_error"))), serve(answer())
    route = {"weights": {"up": 1}}
    client = fleet({"up": up.url, "down": down.url}, route=route).client()

    for _ in range(10):
        say(client)

    assert (up.connections, down.connections) == (1, 0)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_async_client_on_two_loops(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    made = fleet({"a": server.url})
    clients = [made.async_client()]
    found: list[str] = []
    ready = threading.Barrier(2)

    async def use() -> None:
        ready.wait()
        found.extend(await at_once(lambda: asay(clients[0]), 20, 4))
        found.extend(await at_once(lambda: asay(clients[0], stream=True), 20, 4))

    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert len(found) == 80
    assert texts(found) == {"hello"}
    made.ended()

    async def afterwards() -> str:  # a third loop, after those are gone
        return await asay(clients[0])

    assert asyncio.run(afterwards()) == "Hello"
    clients.clear()  # connections to loops that are gone can't be closed any more, only dropped
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_calls_on_connections_of_its_own(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    made = fleet({"a": server.url, "b": server.url})
    client = made.client()
    with headway.task("before"):
        say(client)
    before = {seen.connection for seen in server.hits}
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        found: dict[str, Any] = {}
        try:
            with headway.task("child") as task:
                found["texts"] = sorted({say(client, stream=s) for s in (False, True)})
            found |= {"calls": task.calls, "in_flight": made.in_flight}
        except BaseException as problem:
            found["problem"] = repr(problem)
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = json.loads(pipe.read())
    os.waitpid(child, 0)
    used = {seen.connection for seen in server.hits} - before

    assert told == {"texts": ["Hello"], "calls": 2, "in_flight": 0}
    assert used
    assert say(client) == "Hello"
    assert server.hits[-1].connection in before


def test_a_wrapped_client_closed_leaves_no_connection(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    import time

    server = serve(answer())
    client = fleet({"a": server.url}).client()
    say(client, stream=True)
    client.close()

    until = time.monotonic() + 20.0
    while server.open_sockets and time.monotonic() < until:
        time.sleep(0.01)
    assert server.open_sockets == 0
