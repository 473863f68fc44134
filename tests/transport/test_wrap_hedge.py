"""A second attempt beside a slow first: one wins, the other is cancelled, closed and counted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from headway.core.model import Attempt, AttemptEnded, AttemptKind
from headway.core.snapshot import HedgePolicy
from headway.task import options
from headway.transport import hedged
from headway.transport.hedged import Workers
from headway.transport.limits import FOREVER_S, Leash, Timeouts
from tests.servers import OK, ROLE, SSE, Drip, Hang, R, chunk, completion, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import INF, Host, policy

SOON = HedgePolicy(enabled=True, delay_s=0.1, max_extra_fraction=1.0)


def hedging(*urls: str, hedge: HedgePolicy = SOON) -> Host:
    return Host(policy(dict(zip("ab", urls, strict=False)), hedge=hedge))


def both_ended(host: Host, within_s: float = 20.0) -> list[Any]:
    until = time.monotonic() + within_s
    while host.in_flight and time.monotonic() < until:
        time.sleep(0.01)
    return host.named(AttemptEnded)


@pytest.mark.parametrize("stream", [False, True])
def test_the_faster_of_two_is_the_answer(
    stream: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    slow = SSE([ROLE, 9.0, chunk("late")]) if stream else R(200, completion("late"), delay=9.0)
    a, b = serve(slow), serve(SSE([ROLE, chunk("Hello"), chunk(None, "stop")]) if stream else OK)
    host = hedging(a.url, b.url)
    client = caller(a.url, host)
    began = time.monotonic()

    text = client.text() if stream else client.chat().choices[0].message.content

    assert text.lower() == "hello"
    assert time.monotonic() - began < 8.0
    ends = both_ended(host)
    assert sorted(end.result for end in ends) == ["lost", "ok"]
    assert next(e for e in ends if e.result == "ok").attempt.kind is AttemptKind.HEDGE
    assert host.in_flight == 0


def test_a_fast_first_attempt_is_not_doubled(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    later = HedgePolicy(
        enabled=True, delay_s=30, max_extra_fraction=1.0
    )  # however busy this box is
    client = caller(a.url, hedging(a.url, b.url, hedge=later))

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


@pytest.mark.parametrize(
    ("stored", "requests"), [({}, 1), ({"store": True}, 1), ({"store": False}, 2)], ids=str
)
def test_what_is_stored_is_never_doubled(
    stored: dict[str, bool],
    requests: int,
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    reply = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    a, b = serve(R(200, reply, delay=0.4)), serve(R(200, reply))
    host = hedging(a.url, b.url)
    client = caller(a.url, host)

    with options(idempotent=True, hedge=True):
        assert client.run(client.client.responses.create(model="m", input="x", **stored)).id

    both_ended(host)
    assert len(a.hits) + len(b.hits) == requests


def test_tools_that_run_at_the_providers_are_never_run_twice(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(200, completion("first"), delay=0.4)), serve(OK)
    client = caller(a.url, hedging(a.url, b.url))

    with options(idempotent=True, hedge=True):
        reply = client.chat(extra_body={"web_search_options": {}})

    assert reply.choices[0].message.content == "first"
    assert not b.hits


def attempt_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "headway-attempt"]


def no_threads_left(within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while attempt_threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not attempt_threads()


def test_a_loser_that_waits_for_the_head_of_its_reply_is_cut_short(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK, Hang(20)), serve(OK)
    host = hedging(a.url, b.url)
    client = caller(a.url, host)
    with options(hedge=False):
        client.chat()  # so that the loser's connection is a used one

    assert client.chat().choices[0].message.content == "hello"

    assert sorted(end.result for end in both_ended(host)) == ["lost", "ok", "ok"]
    assert (len(a.hits), len(b.hits)) == (2, 1)
    assert no_threads_left()
    with options(hedge=False):
        a.steps[:] = [OK]
        assert client.chat().choices[0].message.content == "hello"  # on a sound connection


def test_a_loser_in_the_middle_of_its_reply_is_cut_short(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(Drip(completion("late"), size=10, every_s=0.5)), serve(OK)
    host = hedging(a.url, b.url)

    assert caller(a.url, host).chat().choices[0].message.content == "hello"

    both_ended(host)
    assert no_threads_left()


def test_winners_and_losers_leave_sound_connections_behind(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    """Both answer at about the same time, again and again: whichever way each race goes."""
    a, b = serve(R(200, completion("a"), delay=0.02)), serve(R(200, completion("b")))
    soon = HedgePolicy(enabled=True, delay_s=0.018, max_extra_fraction=1.0)
    host = hedging(a.url, b.url, hedge=soon)
    client = caller(a.url, host)

    for _ in range(20):
        assert client.chat().choices[0].message.content in ("a", "b")

    ends = both_ended(host)
    assert {end.result for end in ends} <= {"ok", "lost"}
    assert sum(end.result == "ok" for end in ends) == 20


def test_a_lost_attempt_begins_no_further_wait() -> None:
    leash = Leash(Attempt(1, AttemptKind.INITIAL, "a", "m", 0.0, INF, INF, INF), lambda: 5.0)
    timeouts = Timeouts({"read": 600.0, "connect": None}, leash)
    cuts: list[int] = []

    assert timeouts.get("read") == 600.0
    assert timeouts.get("connect") == FOREVER_S
    leash.give_up(lambda: cuts.append(1))

    for phase in ("pool", "connect", "write", "read"):
        with pytest.raises(TimeoutError):
            timeouts.get(phase)
    assert cuts == [1]


def test_a_connection_that_went_back_is_not_cut() -> None:
    leash = Leash(Attempt(1, AttemptKind.INITIAL, "a", "m", 0.0, INF, INF, INF), lambda: 5.0)
    cuts: list[int] = []

    leash.let_go(SimpleNamespace())
    leash.give_up(lambda: cuts.append(1))

    assert cuts == []


def test_there_are_never_more_threads_than_are_allowed() -> None:
    workers = Workers(5)
    first, second = workers.room(), workers.room()
    assert first is not None
    assert second is not None
    assert workers.room() is None

    first.take()
    first.take()
    first.give_back()
    first.take()  # a retry takes the place of an attempt that has ended
    first.close()
    second.close()
    assert workers.left == 3

    first.give_back()  # losers end after their call
    first.give_back()
    assert workers.left == 5


def test_without_room_a_call_is_made_without_a_hedge(
    kind: str,
    serve: Callable[..., Any],
    caller: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind.startswith("async"):
        pytest.skip("tasks need no threads")
    monkeypatch.setattr(hedged, "workers", Workers(1))
    a, b = serve(R(200, completion("first"), delay=0.3)), serve(OK)

    assert caller(a.url, hedging(a.url, b.url)).chat().choices[0].message.content == "first"
    assert not b.hits


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
