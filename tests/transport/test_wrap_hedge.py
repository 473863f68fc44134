"""A second attempt beside a slow first: one wins, the other is cancelled, closed and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from headway.core.model import AttemptEnded, AttemptKind
from headway.core.snapshot import HedgePolicy
from headway.task import options
from tests.servers import OK, ROLE, SSE, Hang, R, chunk, completion, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, policy

SOON = HedgePolicy(enabled=True, delay_s=0.1, max_extra_fraction=1.0)


def hedging(*urls: str, hedge: HedgePolicy = SOON) -> Host:
    return Host(policy(dict(zip("ab", urls, strict=False)), hedge=hedge))


def both_ended(host: Host, within_s: float = 2.0) -> list[Any]:
    until = time.monotonic() + within_s
    while host.in_flight and time.monotonic() < until:
        time.sleep(0.01)
    return host.named(AttemptEnded)


@pytest.mark.parametrize("stream", [False, True])
def test_the_faster_of_two_is_the_answer(
    stream: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    slow = SSE([ROLE, 3.0, chunk("late")]) if stream else R(200, completion("late"), delay=3.0)
    a, b = serve(slow), serve(SSE([ROLE, chunk("Hello"), chunk(None, "stop")]) if stream else OK)
    host = hedging(a.url, b.url)
    client = caller(a.url, host)
    began = time.monotonic()

    text = client.text() if stream else client.chat().choices[0].message.content

    assert text.lower() == "hello"
    assert time.monotonic() - began < 1.0
    ends = both_ended(host)
    assert sorted(end.result for end in ends) == ["lost", "ok"]
    assert next(e for e in ends if e.result == "ok").attempt.kind is AttemptKind.HEDGE
    assert host.in_flight == 0


def test_a_fast_first_attempt_is_not_doubled(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    client = caller(a.url, hedging(a.url, b.url))

    client.chat()

    assert (len(a.hits), len(b.hits)) == (1, 0)


def test_a_hedge_that_fails_leaves_the_first_to_answer(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(200, completion("first"), delay=0.4)), serve(R(503, error("down")))
    host = hedging(a.url, b.url)

    assert caller(a.url, host).chat().choices[0].message.content == "first"
    assert len(b.hits) == 1
    both_ended(host)
    assert host.in_flight == 0


def test_a_first_attempt_that_fails_leaves_the_hedge_to_answer(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("down"), delay=0.2)), serve(R(200, completion("second"), delay=0.3))
    host = hedging(a.url, b.url)

    assert caller(a.url, host).chat().choices[0].message.content == "second"


def test_a_scope_forbids_hedging(serve: Callable[..., Any], caller: Callable[..., Any]) -> None:
    a, b = serve(R(200, completion("first"), delay=0.3)), serve(OK)
    client = caller(a.url, hedging(a.url, b.url))

    with options(hedge=False):
        assert client.chat().choices[0].message.content == "first"

    assert not b.hits


def test_cancelling_ends_both(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    if kind.startswith("sync"):
        pytest.skip("nothing to cancel without a loop")
    a, b = serve(Hang(5)), serve(Hang(5))
    host = hedging(a.url, b.url)
    client = caller(a.url, host)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.client.chat.completions.create(model="m", messages=MESSAGES)

    client.run(leave())

    assert [end.result for end in both_ended(host)] == ["cancelled", "cancelled"]
    assert (len(a.hits), len(b.hits)) == (1, 1)


def test_on_trio_too(serve: Callable[..., Any]) -> None:
    import openai

    from headway.client import wrap

    a, b = serve(Hang(5)), serve(OK)
    host = hedging(a.url, b.url)

    async def use() -> str:
        async with wrap(openai.AsyncOpenAI(api_key="k", base_url=a.url), router=host) as client:
            reply = await client.chat.completions.create(model="m", messages=MESSAGES)
            return str(reply.choices[0].message.content)

    assert anyio.run(use, backend="trio") == "hello"
    assert sorted(end.result for end in both_ended(host)) == ["lost", "ok"]
