"""Deadlines and caps, kept while everything underneath is slow, silent or broken."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import openai
import pytest

import headway
from tests.e2e.fleet import Fleet, asay, say
from tests.e2e.replies import answer, slowly
from tests.servers import ROLE, SSE, Drip, Hang, R, chunk, completion, error

DEADLINE_S = 0.3
OVERRUN_S = 0.05
TRIES = 4
"""The machine may be busy; that the deadline can be kept, one try in a few shows."""

SLOW: dict[str, Any] = {
    "black hole": Hang(10),
    "slow head": R(200, completion("late"), delay=5.0),
    "dripping head": Drip(completion("late"), size=4, every_s=0.05),
    "dripping body": SSE([b"{", *slowly(b" ", 0.02, 400)], ctype="application/json"),
    "503 and a long wait": R(503, error("down"), {"retry-after": "5"}),
    "429 and a long wait": R(429, error("slow down"), {"retry-after": "5"}),
    "silent stream": SSE([ROLE, 10.0]),
    "pings": SSE([ROLE, *slowly(b": ping\n\n", 0.02, 400)]),
    "slow content": SSE([ROLE, *slowly(chunk("x"), 0.02, 400)]),
    "stalled content": SSE([ROLE, chunk("x"), 10.0]),
}


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", SLOW)
async def test_a_deadline_is_not_overrun(
    kind: str, colour: str, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    if kind == "dripping head" and colour == "sync":
        pytest.skip("the http libraries give each read of a head the time the first one had")
    made = fleet({"a": serve(SLOW[kind]).url, "b": serve(SLOW[kind]).url})
    stream = isinstance(SLOW[kind], SSE) and kind != "dripping body"
    took: list[float] = []
    for _ in range(TRIES):
        began = time.monotonic()
        with pytest.raises(openai.OpenAIError) as caught:
            if colour == "sync":
                client = made.client(timeout=None)
                with headway.task("t", deadline=DEADLINE_S):
                    began = time.monotonic()
                    say(client, stream=stream)
            else:
                async with made.async_client(timeout=None) as asynchronous:
                    with headway.options(deadline=DEADLINE_S):
                        began = time.monotonic()
                        await asay(asynchronous, stream=stream)
        took.append(time.monotonic() - began)
        if "long wait" in kind:  # a wait that would be too long is not begun
            assert isinstance(caught.value, openai.APIStatusError)
        else:
            assert isinstance(caught.value, openai.APITimeoutError)
            assert isinstance(caught.value, headway.DeadlineExceeded)
        if took[-1] <= DEADLINE_S + OVERRUN_S:
            break
    assert min(took) <= DEADLINE_S + OVERRUN_S, took
    made.ended()


def test_a_deadline_covers_all_attempts_and_the_waits_between(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    steps = [R(503, error("down"), delay=s) for s in (0.12, 9.0)]
    made = fleet(
        {"a": serve(*steps).url, "b": serve(*steps).url},
        route={"retry": {"max_attempts": 20, "budget": {"start": 20, "capacity": 20}}},
    )
    client = made.client()
    began = time.monotonic()

    with pytest.raises(openai.OpenAIError), headway.options(deadline=0.5):
        say(client)

    assert time.monotonic() - began < 8.0
    assert made.sends_to("a") + made.sends_to("b") >= 2


def test_what_can_not_finish_is_not_begun(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    client = fleet({"a": server.url}).client()

    with headway.task("t", deadline=0.01) as task:
        time.sleep(0.02)
        with pytest.raises(headway.DeadlineExceeded):
            say(client)
        with headway.task("inside", deadline=60), pytest.raises(headway.DeadlineExceeded):
            say(client)  # an inner task has no more time than the outer

    assert not server.hits
    assert task.calls == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("cap", "sends"),
    [({"max_calls": 2}, 2), ({"max_cost": "0.02"}, 2), ({"max_tokens": 25}, 3)],
    ids=["calls", "cost", "tokens"],
)
def test_a_cap_stops_the_next_call_before_it_is_sent(
    cap: dict[str, Any],
    sends: int,
    stream: bool,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
) -> None:
    server = serve(answer(10, 1, cost=0.01))
    client = fleet({"a": server.url}).client()

    with headway.task("runaway", **cap) as task, pytest.raises(headway.TaskLimitExceeded) as caught:
        for _ in range(100):
            say(client, stream=stream)

    assert len(server.hits) == sends
    assert caught.value.reason == next(iter(cap))
    assert caught.value.status_code == 402
    assert isinstance(caught.value, openai.APIStatusError)
    assert "runaway" in str(caught.value)
    assert task.calls == sends
    assert task.cost == sends * Decimal("0.01")


async def test_caps_count_nested_tasks_and_other_threads(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    import asyncio

    server = serve(answer(10, 1, cost=0.01))
    made = fleet({"a": server.url})
    client = made.client()

    with headway.task("outer", max_calls=5) as outer:
        with headway.task("inner"):
            say(client)
            say(client)
        await asyncio.gather(*(asyncio.to_thread(say, client) for _ in range(3)))
        with pytest.raises(headway.TaskLimitExceeded, match="outer"), headway.task("another"):
            say(client)

    assert outer.calls == len(server.hits) == 5
    assert str(outer.cost) == "0.05"


def test_a_tasks_retries_are_bounded_whatever_its_calls_do(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    down = R(503, error("down"))
    made = fleet(
        {"a": serve(down).url, "b": serve(down).url},
        route={"retry": {"max_attempts": 3, "budget": {"start": 100, "capacity": 100}}},
    )
    client = made.client()

    with headway.task("t") as task:
        for _ in range(10):
            with pytest.raises(openai.OpenAIError):
                say(client)

    assert task.calls == 10
    assert task.attempts <= 10 + 3
