"""Hedges between real servers: the faster answer, the loser closed, and never too many."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx2
import pytest

import headway
from headway.core.model import AttemptKind, AttemptStarted
from tests.e2e.fleet import Fleet, asay, in_threads, say
from tests.e2e.replies import answer
from tests.servers import ROLE, SSE, Seen, Server, chunk, completion

PRICE = {"input_per_mtok": "2.50", "output_per_mtok": "10"}


def route(**hedge: Any) -> dict[str, Any]:
    return {"hedge": {"enabled": True, "delay_ms": 40, "max_extra_fraction": 1.0, **hedge}}


class FirstSlow:
    """Whichever endpoint is asked first is slow, this once."""

    def __init__(self, slow: Any) -> None:
        self._slow = slow
        self._asked = 0
        self._answer = answer(1000, 100)

    def __call__(self, seen: Seen) -> Any:
        self._asked += 1
        return self._slow(seen) if self._asked == 1 else self._answer(seen)


def late(seen: Seen) -> Any:
    if seen.json.get("stream"):
        return SSE([ROLE, 1.5, chunk("late")])
    return answer(1, 1, text="late", delay=1.5)(seen)


def closed(server: Server) -> bool:
    until = time.monotonic() + 20.0
    while server.open_sockets and time.monotonic() < until:
        time.sleep(0.01)
    return server.open_sockets == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_the_faster_answers_and_the_loser_is_closed_and_priced(
    colour: str, stream: bool, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    step = FirstSlow(late)
    servers = {"a": serve(step), "b": serve(step)}
    made = fleet(
        {name: s.url for name, s in servers.items()}, route=route(), endpoint={"price": PRICE}
    )
    began = time.monotonic()
    with headway.task("t") as task:
        if colour == "async":
            async with made.async_client() as client:
                assert await asay(client, stream=stream) == "Hello"
                took = time.monotonic() - began
                lost, won = sorted(made.ended(), key=lambda e: e.attempt.number)
        else:
            assert say(made.client(), stream=stream) == "Hello"
            took = time.monotonic() - began
            lost, won = sorted(made.ended(), key=lambda e: e.attempt.number)

    assert took < 1.4
    assert (lost.result, won.result) == ("lost", "ok")
    assert won.attempt.kind is AttemptKind.HEDGE
    assert (task.cost, task.wasted) == (Decimal("0.0060"), Decimal("0.0025"))
    assert task.cost_source == "estimated"
    assert closed(servers[lost.attempt.endpoint_id])
    assert sum(len(s.hits) for s in servers.values()) == 2


def test_hedges_are_a_small_part_of_the_calls(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    slowish = answer(delay=0.03)
    made = fleet(
        {"a": serve(slowish).url, "b": serve(slowish).url},
        route=route(delay_ms=1, max_extra_fraction=0.05),
    )
    client = made.client()

    in_threads(lambda _: say(client), 200, 8)

    hedges = sum(e.attempt.kind is AttemptKind.HEDGE for e in made.events.of(AttemptStarted))
    assert 1 <= hedges <= 0.05 * 200 + 3
    made.ended()


def test_a_scope_turns_hedging_on_and_off(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    slowish = answer(delay=0.1)
    made = fleet({"a": serve(slowish).url, "b": serve(slowish).url}, route=route())
    client = made.client()

    with headway.options(hedge=False):
        say(client)
    assert len(made.ended()) == 1

    say(client)
    assert len(made.ended()) == 3


class _SlowToClose(httpx2.SyncByteStream):
    """A body that can be read once, and whose connection takes its time to go back."""

    def __init__(self, body: bytes, iterated: list[int]) -> None:
        self._body = body
        self._iterated = iterated

    def __iter__(self) -> Iterator[bytes]:
        self._iterated.append(1)
        yield self._body

    def close(self) -> None:
        time.sleep(0.15)


class _Transport(httpx2.BaseTransport):
    def __init__(self) -> None:
        self.iterated: list[int] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.dumps(completion("Hello")).encode()
        stream = _SlowToClose(body, self.iterated)
        return httpx2.Response(200, headers={"content-type": "application/json"}, stream=stream)


def test_an_answer_is_handed_over_only_when_its_thread_is_done_with_it(
    fleet: Callable[..., Fleet],
) -> None:
    transport = _Transport()
    urls = {"a": "http://127.0.0.1:1/v1", "b": "http://127.0.0.1:2/v1"}
    # The call looks up at the hedge's instant, while the answer's thread still closes its stream.
    made = fleet(urls, route=route(delay_ms=75))
    client = made.client(http_client=httpx2.Client(transport=transport))

    assert say(client) == "Hello"
    assert len(transport.iterated) == 1
    made.ended()
