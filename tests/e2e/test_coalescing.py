"""Identical calls in flight: one request, an answer for each, and the cost counted once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import openai
import pytest

import headway
from headway.core.model import CallEnded, CallShared, FailureClass
from headway.credentials import Credential
from headway.errors import DeadlineExceeded, StreamInterrupted
from tests.e2e.fleet import MESSAGES, Fleet, asay, say
from tests.e2e.replies import answer
from tests.e2e.sharing import Crowd, Gate, callers, wait_until
from tests.servers import DONE, FIN, ROLE, SSE, Hang, R, Server, chunk, error

PRICE = {"input_per_mtok": "2.50", "output_per_mtok": "10"}
WHOLE = Decimal("0.0035")
COUNT = 50


@pytest.fixture
def sharing(fleet: Callable[..., Fleet]) -> Callable[..., Fleet]:
    """A fleet of one priced endpoint whose route joins calls."""

    def make(server: Server, **options: Any) -> Fleet:
        route = {"coalesce": True, **options.pop("route", {})}
        return fleet({"a": server.url}, route=route, endpoint={"price": PRICE}, **options)

    return make


def idle(made: Fleet) -> bool:
    """Nothing is under way, anywhere."""
    pools = made.router.status().pools
    return not made.in_flight and not len(made.router.board) and not any(p.in_flight for p in pools)


# --------------------------------------------------------------------------- the promise


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_fifty_threads_make_one_request(
    stream: bool, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(1000, 100, text="Hel|lo"))
    server = serve(gate)
    made = sharing(server)
    client = made.client()

    def call(_: int) -> tuple[str, headway.Task]:
        with headway.task("t") as task:
            return say(client, stream=stream), task

    crowd = Crowd(COUNT, call)
    wait_until(lambda: callers(made.router) == COUNT)
    gate.open()
    results = crowd.join()

    assert len(server.hits) == 1
    assert {text for text, _ in results} == {"Hello" if stream else "Hel|lo"}
    the_cost_stands_once([task for _, task in results])
    assert len(made.events.of(CallShared)) == COUNT - 1
    assert idle(made)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_fifty_tasks_make_one_request(
    stream: bool, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(1000, 100, text="Hel|lo"))
    server = serve(gate)
    made = sharing(server)

    async with made.async_client() as client:

        async def call() -> tuple[str, headway.Task]:
            async with headway.task("t") as task:
                return await asay(client, stream=stream), task

        calls = [asyncio.create_task(call()) for _ in range(COUNT)]
        while callers(made.router) < COUNT:
            await asyncio.sleep(0.002)
        gate.open()
        results = await asyncio.gather(*calls)

    assert len(server.hits) == 1
    assert {text for text, _ in results} == {"Hello" if stream else "Hel|lo"}
    the_cost_stands_once([task for _, task in results])
    assert len(made.events.of(CallShared)) == COUNT - 1
    assert idle(made)


def the_cost_stands_once(tasks: list[headway.Task]) -> None:
    costs = [task.cost or Decimal(0) for task in tasks]
    assert all(task.cost_complete for task in tasks)
    assert sum(costs) == WHOLE
    assert sum(task.attempts for task in tasks) == 1
    assert sum(task.tokens for task in tasks) == 1100
    assert max(costs) - min(costs) < Decimal("1e-9")
    # What each pays and what each saves come to what it would have paid alone.
    assert {cost + task.saved for cost, task in zip(costs, tasks, strict=True)} == {WHOLE}


def test_three_share_what_cannot_be_divided_by_three(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(1000, 100))
    made = sharing(serve(gate))
    client = made.client()

    def call(_: int) -> headway.Task:
        with headway.task("t") as task:
            say(client)
        return task

    crowd = Crowd(3, call)
    wait_until(lambda: callers(made.router) == 3)
    gate.open()
    costs = sorted(task.cost or Decimal(0) for task in crowd.join())

    assert costs == [
        Decimal("0.001166666666"),
        Decimal("0.001166666666"),
        Decimal("0.001166666668"),
    ]
    assert sum(costs) == WHOLE


def test_each_caller_has_a_response_of_its_own_and_is_told_what_it_is(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(R(200, answer()(_seen()).body, headers={"set-cookie": "a=1", "x-kept": "y"}))
    made = sharing(serve(gate))
    client = made.client()

    def call(_: int) -> Any:
        return client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)

    crowd = Crowd(2, call)
    wait_until(lambda: callers(made.router) == 2)
    gate.open()
    one, other = sorted(crowd.join(), key=lambda raw: raw.headers["x-headway-decision"])

    assert one.headers["x-headway-decision"].startswith("initial")
    assert other.headers["x-headway-decision"] == "share"
    assert (one.headers["x-headway-attempts"], other.headers["x-headway-attempts"]) == ("1", "0")
    assert {r.headers["x-headway-endpoint"] for r in (one, other)} == {"a"}
    assert {r.headers["x-kept"] for r in (one, other)} == {"y"}
    assert "set-cookie" not in other.headers
    assert one.parse() is not other.parse()
    assert one.parse() == other.parse()
    assert one.http_response.request is not other.http_response.request


def _seen() -> Any:
    return SimpleNamespace(path="/v1/chat/completions", json={})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_larger_than_what_is_kept_of_streams_is_everybodys(
    stream: bool, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(text="|".join(["x" * 1_000_000] * 9)))
    server = serve(gate)
    made = sharing(server)
    client = made.client(timeout=60)

    crowd = Crowd(3, lambda _: len(say(client, stream=stream)))
    wait_until(lambda: callers(made.router) == 3)
    gate.open()

    assert crowd.join() == [9_000_000 + 8 * (not stream)] * 3
    assert len(server.hits) == 1
    assert idle(made)


# --------------------------------------------------------------------------- what is not the same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"messages": [{"role": "user", "content": "something else"}]}),
        ({}, {"stream": True}),
        ({}, {"user": "tenant-2"}),
        ({}, {"timeout": 3.0}),
        ({}, {"extra_headers": {"x-tenant": "2"}}),
        ({}, {"extra_headers": {"Authorization": "Bearer other"}}),
        ({}, {"extra_headers": {"Cache-Control": "no-store"}}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"n": 2}, {"n": 2}),
        ({"store": True}, {"store": True}),
        ({"tools": [{"type": "web_search"}]}, {"tools": [{"type": "web_search"}]}),
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_calls_that_differ_in_anything_that_matters_are_made_each(
    one: dict[str, Any],
    other: dict[str, Any],
    serve: Callable[..., Server],
    sharing: Callable[..., Fleet],
) -> None:
    gate = Gate(answer())
    server = serve(gate)
    made = sharing(server)
    client = made.client()
    both = [one, other]

    crowd = Crowd(2, lambda i: say(client, **both[i]))
    wait_until(lambda: len(server.hits) == 2)
    gate.open()
    crowd.join()

    assert crowd.errors == [None, None]
    assert not made.events.of(CallShared)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"extra_headers": {"traceparent": "00-1-2-01", "x-request-id": "7"}}),
        ({"temperature": 0, "n": 3}, {"temperature": 0, "n": 3}),
        ({"temperature": 1, "seed": 4}, {"temperature": 1, "seed": 4}),
        (
            {"extra_body": {"top_k": 1, "min_p": 0}},
            {"extra_body": {"min_p": 0, "top_k": 1}},
        ),
    ],
    ids=["trace", "cold", "seeded", "order"],
)
def test_calls_that_differ_in_form_are_the_same(
    one: dict[str, Any],
    other: dict[str, Any],
    serve: Callable[..., Server],
    sharing: Callable[..., Fleet],
) -> None:
    gate = Gate(answer())
    server = serve(gate)
    made = sharing(server)
    client = made.client()
    both = [one, other]

    crowd = Crowd(2, lambda i: say(client, **both[i]))
    wait_until(lambda: callers(made.router) == 2)
    gate.open()
    crowd.join()

    assert len(server.hits) == 1


def test_responses_are_joined_only_where_nothing_is_stored(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    reply = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    gate = Gate(R(200, reply))
    server = serve(gate)
    made = sharing(server)
    client = made.client()

    stored = Crowd(2, lambda _: client.responses.create(model="m", input="hi").id)
    wait_until(lambda: len(server.hits) == 2)
    unstored = Crowd(2, lambda _: client.responses.create(model="m", input="hi", store=False).id)
    wait_until(lambda: callers(made.router) == 2)
    gate.open()

    assert [*stored.join(), *unstored.join()] == ["resp_1"] * 4
    assert len(server.hits) == 3


def test_what_a_credential_stands_for_keeps_tenants_apart(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    gate = Gate(answer())
    server = serve(gate)
    made = sharing(
        server,
        policy={
            "schema_version": "1.0",
            "version": 1,
            "endpoints": {"a": {"base_url": server.url, "credential": "by-tenant"}},
            "routes": [{"weights": {"a": 1}, "coalesce": True}],
        },
        credentials={"by-tenant": Credential(call=tenant.get, hosts=["127.0.0.1"])},
    )
    client = made.client()

    def call(index: int) -> str:
        tenant.set(f"key-{index % 2}")
        return say(client)

    crowd = Crowd(4, call)
    wait_until(lambda: callers(made.router) == 4)
    gate.open()
    crowd.join()

    sent = sorted(hit.headers["authorization"] for hit in server.hits)
    assert sent == ["Bearer key-0", "Bearer key-1"]


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_error_is_everybodys_as_an_instance_of_its_own(
    colour: str, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(R(400, error("no such thing", "invalid_request_error")))
    server = serve(gate)
    made = sharing(server)

    found = errors_of(colour, made, 3, gate)

    assert len(server.hits) == 1
    assert {type(exc) for exc in found} == {openai.BadRequestError}
    assert len({id(exc) for exc in found}) == 3
    assert len({id(exc.response) for exc in found}) == 3
    assert idle(made)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_connection_that_fails_fails_for_all_once(
    colour: str, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(Hang(0))  # closed without an answer
    server = serve(gate)
    made = sharing(server, route={"retry": {"max_attempts": 1}})

    found = errors_of(colour, made, 3, gate)

    assert {type(exc) for exc in found} == {openai.APIConnectionError}
    assert len({id(exc) for exc in found}) == len({id(exc.request) for exc in found}) == 3
    assert all("1 attempt" in exc.__notes__[0] for exc in found)
    assert len(server.hits) == 1


def errors_of(colour: str, made: Fleet, count: int, gate: Gate) -> list[Any]:
    if colour == "sync":
        client = made.client()
        crowd = Crowd(count, lambda _: say(client))
        wait_until(lambda: callers(made.router) == count)
        gate.open()
        crowd.join()
        return list(crowd.errors)

    async def gather() -> list[Any]:
        async with made.async_client() as client:
            calls = [asyncio.create_task(asay(client)) for _ in range(count)]
            while callers(made.router) < count:
                await asyncio.sleep(0.002)
            gate.open()
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(gather())


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_stream_that_breaks_breaks_for_all_with_what_had_come(
    colour: str, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(SSE([ROLE, chunk("Hel"), chunk("lo")], end="rst"))
    made = sharing(serve(gate))

    if colour == "sync":
        client = made.client()
        crowd = Crowd(3, lambda _: say(client, stream=True))
        wait_until(lambda: callers(made.router) == 3)
        gate.open()
        crowd.join()
        found: list[Any] = list(crowd.errors)
    else:

        async def gather() -> list[Any]:
            async with made.async_client() as client:
                calls = [asyncio.create_task(asay(client, stream=True)) for _ in range(3)]
                while callers(made.router) < 3:
                    await asyncio.sleep(0.002)
                gate.open()
                return await asyncio.gather(*calls, return_exceptions=True)

        found = asyncio.run(gather())

    assert {type(exc) for exc in found} == {StreamInterrupted}
    assert {exc.partial.text for exc in found} == {"Hello"}
    assert len({id(exc) for exc in found}) == len({id(exc.partial) for exc in found}) == 3
    ended = made.events.of(CallEnded)
    assert {event.outcome.kind for event in ended} == {FailureClass.INCOMPLETE_STREAM}
    wait_until(lambda: idle(made))


# --------------------------------------------------------------------------- leaving


async def test_whoever_made_the_request_may_leave(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(1000, 100))
    server = serve(gate)
    made = sharing(server)

    async with made.async_client() as client:

        async def call() -> tuple[str, headway.Task]:
            async with headway.task("t") as task:
                return await asay(client), task

        first = asyncio.create_task(call())
        while callers(made.router) < 1:
            await asyncio.sleep(0.002)
        others = [asyncio.create_task(call()) for _ in range(3)]
        while callers(made.router) < 4:
            await asyncio.sleep(0.002)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        results = await asyncio.gather(*others)

    assert [text for text, _ in results] == ["Hello"] * 3
    assert len(server.hits) == 1
    # Whoever asked, pays: the one that left, too.
    assert {task.cost for _, task in results} == {WHOLE / 4}
    assert idle(made)


async def test_when_all_have_left_the_request_ends(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    server = serve(Hang(20))
    made = sharing(server)

    async with made.async_client() as client:
        calls = [asyncio.create_task(asay(client)) for _ in range(3)]
        while callers(made.router) < 3 or not server.hits:
            await asyncio.sleep(0.002)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await anyio.to_thread.run_sync(wait_until, lambda: idle(made))

    assert [event.result for event in made.ended()] == ["cancelled"]
    assert {event.outcome.kind for event in made.events.of(CallEnded)} == {FailureClass.CANCELLED}


async def test_a_callers_own_deadline_is_its_own(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer())
    server = serve(gate)
    made = sharing(server)

    async with made.async_client() as client:
        patient = asyncio.create_task(asay(client))
        while callers(made.router) < 1:
            await asyncio.sleep(0.002)
        with headway.options(deadline=0.1), pytest.raises(DeadlineExceeded):
            await asay(client)
        gate.open()
        assert await patient == "Hello"

    assert len(server.hits) == 1
    assert idle(made)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_request_that_ends_with_its_callers_deadline_is_made_again_for_the_others(
    colour: str, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer())  # whoever is slow to hear of the end finds the new request under way
    server = serve(Hang(20), gate)
    made = sharing(server, route={"retry": {"max_attempts": 1}})

    def hasty(call: Callable[[], Any]) -> Any:
        with headway.options(deadline=2.0 if colour == "sync" else 0.4):  # threads have to start
            return call()

    if colour == "sync":
        client = made.client()
        first = Crowd(1, lambda _: hasty(lambda: say(client)))
        wait_until(lambda: callers(made.router) == 1)
        others = Crowd(2, lambda _: say(client))
        wait_until(lambda: callers(made.router) == 3)
        first.join()
        wait_until(lambda: callers(made.router) == 2)
        gate.open()
        found: list[Any] = [first.errors[0], *others.join()]
    else:

        async def gather() -> list[Any]:
            async with made.async_client() as client:
                first = hasty(lambda: asyncio.create_task(asay(client)))
                while callers(made.router) < 1:
                    await asyncio.sleep(0.002)
                others = [asyncio.create_task(asay(client)) for _ in range(2)]
                ended = await asyncio.gather(first, return_exceptions=True)
                while callers(made.router) != 2:
                    await asyncio.sleep(0.002)
                gate.open()
                return ended + await asyncio.gather(*others)

        found = asyncio.run(gather())

    assert isinstance(found[0], DeadlineExceeded)
    assert found[1:] == ["Hello"] * 2
    assert len(server.hits) == 2
    wait_until(lambda: idle(made))


class _Dies(httpx2.BaseTransport):
    """The first request takes its thread with it."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate
        self.requests = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        if self.requests == 1:
            self._gate.wait(20)
            raise SystemExit
        return httpx2.Response(200, json=answer()(_seen()).body)


def test_a_thread_that_dies_leaves_nobody_waiting(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = threading.Event()
    transport = _Dies(gate)
    made = sharing(serve(answer()))
    client = made.client(http_client=httpx2.Client(transport=transport))

    first = Crowd(1, lambda _: say(client))
    wait_until(lambda: callers(made.router) == 1)
    others = Crowd(3, lambda _: say(client))
    wait_until(lambda: callers(made.router) == 4)
    gate.set()
    first.join()

    assert isinstance(first.errors[0], SystemExit)
    assert others.join() == ["Hello"] * 3
    assert 2 <= transport.requests <= 4  # as many as came when no other was under way
    assert idle(made)


# --------------------------------------------------------------------------- streams


def stream_of(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES, stream=True)


def text_of(chunks: Any) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


class Slow:
    """A stream whose middle waits for the test."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, _: Any) -> SSE:
        return SSE(_Parts(self.go_on))


class _Parts(list[Any]):
    def __init__(self, go_on: threading.Event) -> None:
        super().__init__([ROLE, chunk("Hel"), chunk("lo"), FIN, DONE])
        self._go_on = go_on

    def __iter__(self) -> Any:
        yield from self[:2]
        self._go_on.wait(20)
        yield from self[2:]


def test_a_late_reader_begins_at_the_beginning(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    slow = Slow()
    server = serve(slow)
    made = sharing(server)
    client = made.client()

    early = iter(stream_of(client))
    first = next(early)
    late = stream_of(client)
    slow.go_on.set()

    assert text_of(late) == "Hello"
    assert text_of([first, *early]) == "Hello"
    assert len(server.hits) == 1
    assert idle(made)


def test_a_thread_may_leave_a_stream_that_others_read(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    slow = Slow()
    server = serve(slow)
    made = sharing(server)
    client = made.client()

    leaver = stream_of(client)
    next(iter(leaver))
    reader = stream_of(client)
    leaver.close()
    slow.go_on.set()

    assert text_of(reader) == "Hello"
    assert len(server.hits) == 1
    assert [event.result for event in made.ended()] == ["ok"]
    assert idle(made)


async def test_a_task_may_leave_a_stream_that_others_read(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    slow = Slow()
    server = serve(slow)
    made = sharing(server)

    async with made.async_client() as client:

        async def begin() -> Any:
            return await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)

        leaver, reader = await begin(), await begin()
        await anext(aiter(leaver))
        waiting = asyncio.create_task(leaver.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await leaver.close()
        slow.go_on.set()
        found = [c async for c in reader]

    assert text_of(found) == "Hello"
    assert len(server.hits) == 1
    assert idle(made)


def test_the_last_to_leave_ends_the_request(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    slow = Slow()
    server = serve(slow)
    made = sharing(server)
    client = made.client()

    one, other = stream_of(client), stream_of(client)
    next(iter(one))
    one.close()
    assert made.in_flight == 1
    other.close()

    assert [event.result for event in made.ended()] == ["cancelled"]
    assert idle(made)
    slow.go_on.set()


def test_a_stream_that_is_forgotten_ends_by_itself(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    slow = Slow()
    made = sharing(serve(slow))
    client = made.client()

    stream = stream_of(client)
    next(iter(stream))
    del stream
    gc.collect()

    wait_until(lambda: idle(made))
    slow.go_on.set()


async def test_an_async_stream_that_is_forgotten_ends_by_itself(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    slow = Slow()
    made = sharing(serve(slow))

    async with made.async_client() as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        del stream
        for _ in range(1000):
            gc.collect()  # the SDK's generators go one after the other, by way of the loop
            await asyncio.sleep(0.005)
            if idle(made):
                break
        assert idle(made)
    slow.go_on.set()


async def test_a_consumer_that_reads_nothing_holds_the_request_back(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    made = sharing(serve(answer(text="|".join(["x" * 10_000] * 400))))

    async with made.async_client() as client:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        (leg,) = made.router.board._legs.values()
        before = -1
        while before != leg.tape.written_bytes:
            before = leg.tape.written_bytes
            await asyncio.sleep(0.05)
        assert 0 < before < 1_000_000
        found = [c async for c in stream]

    assert len(text_of(found)) == 4_000_000
    assert idle(made)


# --------------------------------------------------------------------------- wherever it runs


def test_event_loops_in_several_threads_share(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(text="Hel|lo"))
    server = serve(gate)
    made = sharing(server)

    async def use() -> str:
        async with made.async_client() as client:
            return await asay(client, stream=True)

    crowd = Crowd(4, lambda _: asyncio.run(use()))
    wait_until(lambda: callers(made.router) == 4)
    gate.open()

    assert crowd.join() == ["Hello"] * 4
    assert len(server.hits) == 1
    assert idle(made)


def test_a_loop_that_ends_leaves_nobody_waiting(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    server = serve(Hang(20), answer())
    made = sharing(server)

    async def leave() -> None:
        client = made.async_client()
        task = asyncio.create_task(asay(client))
        while callers(made.router) < 2:
            await asyncio.sleep(0.002)
        del task  # the loop ends under it, and under the request

    async def use() -> str:
        async with made.async_client() as client:
            return await asay(client)

    first = Crowd(1, lambda _: asyncio.run(leave()))
    wait_until(lambda: callers(made.router) == 1)
    other = Crowd(1, lambda _: asyncio.run(use()))

    assert other.join() == ["Hello"]
    first.join()
    wait_until(lambda: idle(made))


# The SDK leaves its generators behind at the end of a stream: trio says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_on_trio_too(
    stream: bool, serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer(text="Hel|lo"))
    server = serve(gate)
    made = sharing(server)
    found: list[str] = []

    async def use() -> None:
        async with made.async_client() as client:

            async def call(scope: anyio.CancelScope | None = None) -> None:
                with scope or anyio.CancelScope():
                    found.append(await asay(client, stream=stream))

            async with anyio.create_task_group() as group:
                left = anyio.CancelScope()
                group.start_soon(call, left)
                while callers(made.router) < 1:
                    await anyio.sleep(0.002)
                for _ in range(3):
                    group.start_soon(call)
                while callers(made.router) < 4:
                    await anyio.sleep(0.002)
                left.cancel()
                gate.open()

    anyio.run(use, backend="trio")

    assert found == ["Hello" if stream else "Hel|lo"] * 3
    assert len(server.hits) == 1
    assert idle(made)


def test_a_call_made_while_its_like_is_made_in_the_same_thread_waits_for_nothing(
    serve: Callable[..., Server], fleet: Callable[..., Fleet], cleanup: ExitStack
) -> None:
    server = serve(answer())
    inner: list[str] = []
    urls = {"a": server.url}
    made = fleet(urls, route={"coalesce": True})

    def again(_: httpx2.Request) -> None:
        if not inner:
            inner.append("")
            inner[0] = say(client)

    class Meddling(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            again(request)
            return super().handle_request(request)

    client = made.client(http_client=httpx2.Client(transport=Meddling()))

    assert say(client) == "Hello"
    assert inner == ["Hello"]
    assert len(server.hits) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_waits_for_none_of_its_parents_requests(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer())
    server = serve(gate)
    made = sharing(server)
    client = made.client()

    crowd = Crowd(1, lambda _: say(client))
    wait_until(lambda: len(server.hits) == 1)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if say(client) == "Hello" else 1)
        finally:
            os._exit(2)
    wait_until(lambda: len(server.hits) == 2)
    gate.open()

    assert crowd.join() == ["Hello"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_shared_while_the_route_is_only_observed(
    serve: Callable[..., Server], sharing: Callable[..., Fleet]
) -> None:
    gate = Gate(answer())
    server = serve(gate)
    client = sharing(server, route={"mode": "observe"}).client()

    crowd = Crowd(2, lambda _: say(client))
    wait_until(lambda: len(server.hits) == 2)
    gate.open()

    assert crowd.join() == ["Hello"] * 2
