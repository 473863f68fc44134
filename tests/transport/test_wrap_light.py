"""A client without a policy, and nobody looking: calls cost less, and come to the same."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

import anyio
import openai
import pytest

from headway import task
from headway.core.light import LightCall
from headway.router import Router
from headway.task.unanswered import settle_unanswered
from headway.transport import light
from headway.transport.desk import Desk
from tests.servers import RAW, Close, Drip, Hang, R, Rst, completion, error
from tests.transport.hosts import Host, own, policy

OK = R(200, completion())
EMBEDDING = R(200, {"object": "list", "model": "m", "data": [{"embedding": [0.5], "index": 0}]})
LAST = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60s"}
SQUEEZED = gzip.compress(json.dumps(completion("squeezed")).encode())
LARGE = "x" * (light.HELD_BYTES_MAX + 10)

REPLIES: dict[str, tuple[Any, ...]] = {
    "ok": (OK,),
    "compressed": (R(200, SQUEEZED, {"content-encoding": "gzip"}, "application/json"),),
    "large": (R(200, completion(LARGE)),),
    "last for now": (R(200, completion(), LAST),),
    "500": (R(500, error("boom")),),
    "500, then ok": (R(500, error("boom"), {"retry-after-ms": "5"}), OK),
    "429": (R(429, error("slow", "requests"), {"retry-after-ms": "20"}),),
    "quota": (R(429, error("used up", "insufficient_quota", "insufficient_quota")),),
    "400": (R(400, error("bad", "invalid_request_error")),),
    "401": (R(401, error("key", "invalid_request_error", "invalid_api_key")),),
    "404": (R(404, error("no such model", "invalid_request_error", "model_not_found")),),
    "reset": (Rst(),),
    "closed, then ok": (Close(), OK),
    "error in a 200": (R(200, {"error": {"message": "idle", "code": 502}}),),
    "no choices": (R(200, {"object": "chat.completion", "choices": []}),),
    "cut": (R(200, b'{"id": "c", "choices": [', {}, "application/json"),),
    "short": (RAW(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n"
                  b"content-type: application/json\r\n\r\n{\"id\""),),
    "page": (R(200, b"<html>hi</html>", {}, "text/html"),),
    "redirect": (R(302, b"", {"location": "/elsewhere"}),),
    "led on, then reset": (R(307, b"", {"location": "/v1/elsewhere"}), Rst()),
    "led on, then ok": (R(308, b"", {"location": "/v1/elsewhere"}), OK),
    "led in circles": (R(307, b"", {"location": "/v1/again"}),),
    "events": (R(200, b"data: [DONE]\n\n", {}, "text/event-stream"),),
    "201": (R(201, completion()),),
    "204": (R(204, b""),),
    "odd names": (R(200, {**completion(), "object": ["chat.completion"]}),),
    "odd error": (R(200, {**completion(), "error": [], "object": {}}),),
    "a list": (R(200, [completion()]),),
    "marked": (R(200, b"\xef\xbb\xbf" + json.dumps(completion()).encode(), {},
                 "application/json"),),
    "nan": (R(200, {**completion(), "x": float("nan")}),),
    "deep": (R(200, b'{"choices":' + b"[" * 5000 + b"]" * 5000 + b"}", {}, "application/json"),),
    "cut gzip": (R(200, SQUEEZED[:-20], {"content-encoding": "gzip"}, "application/json"),),
    "twice gzip": (R(200, gzip.compress(SQUEEZED), {"content-encoding": "gzip, gzip"},
                     "application/json"),),
    "unknown encoding": (R(200, completion(), {"content-encoding": "rot13"}),),
    "not utf-8": (R(200, b'{"choices":[{"message":{"content":"\xff"}}]}', {},
                    "application/json"),),
    "no body": (R(200, b"", {}, "application/json"),),
    "two replies": (R(200, json.dumps(completion()).encode() * 2, {}, "application/json"),),
    "same member twice": (R(200, b'{"choices":[],"choices":[{"index":0,"message":{"content":"a"}}]}',
                            {}, "application/json"),),
    "data": (R(200, {"data": [1], "choices": None}),),
    "response": (R(200, {**completion(), "object": "response", "status": "failed"}),),
}  # fmt: skip


def outcome_of(call: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        answer = call()
    except openai.APIStatusError as exc:
        return type(exc), exc.status_code, exc.code, str(exc).partition(" (http")[0]
    except openai.APIError as exc:
        return type(exc), str(exc).partition(":")[0]
    except ValueError as exc:  # what the plain client makes of no JSON
        return type(exc), str(exc)
    if isinstance(answer, str):
        return (answer,)
    return tuple(choice.message.content for choice in answer.choices or ())


def learned(router: Router) -> tuple[Any, ...]:
    """What the process knows afterwards, instants left out."""
    [row] = router.status().endpoints
    [pool] = router.status().pools
    return (
        row.in_flight,
        row.limit,
        [(b.model, b.state, b.reason, b.trips) for b in row.breakers],
        [(model, reason) for model, reason, _ in row.out],
        round(row.badness, 1),
        pool.in_flight,
        round(pool.retry_budget, 2),
    )


@pytest.fixture
def settled() -> None:
    """No failed request of a test before may still be waiting to be sent again."""
    gc.collect()
    settle_unanswered()


@pytest.mark.parametrize("name", REPLIES)
def test_it_comes_to_the_same_as_a_call_that_is_looked_at(
    name: str, kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    if kind.endswith("-httpx"):
        pytest.skip("the library is nothing to do with it")
    seen: list[Any] = []
    for watched in (True, False):
        a = serve(OK, *REPLIES[name])
        router: Router = Host(own(a.url))
        if not watched:
            router = Router(own(a.url), rng=random.Random(0))
        client = caller(a.url, router, max_retries=len(REPLIES[name]) - 1)
        client.chat()
        came = outcome_of(client.chat)
        sent = [(s.path, s.body, s.headers.get("authorization")) for s in a.hits]
        seen.append((came, sent, learned(router)))

    assert seen[0] == seen[1]


@pytest.mark.usefixtures("settled")
def test_the_way_is_taken(
    serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[LightCall] = []
    succeed = LightCall.succeed

    def noted(call: LightCall, *args: Any) -> None:
        taken.append(call)
        succeed(call, *args)

    monkeypatch.setattr(LightCall, "succeed", noted)
    a = serve(lambda hit: EMBEDDING if hit.path.endswith("/embeddings") else OK)
    client = caller(a.url, Router(own(a.url)))
    client.chat()
    assert not taken  # nothing is known of the endpoint yet
    client.chat()
    assert len(taken) == 1
    client.run(client.client.embeddings.create(model="m", input="x", encoding_format="float"))
    assert len(taken) == 2
    with task("t") as one:
        client.chat()
    assert len(taken) == 2
    assert one.calls == 1


def test_what_is_sent_is_what_the_plain_client_sends(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    client = caller(a.url, Router(own(a.url)))
    for _ in range(2):
        client.chat(temperature=0.5)
    client.run(client.plain.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], temperature=0.5
    ))  # fmt: skip
    _, wrapped, plain = a.hits

    assert (wrapped.line, wrapped.body) == (plain.line, plain.body)
    assert wrapped.headers == plain.headers
    assert a.connections == 1


def test_a_cancelled_one_is_forgotten(serve: Callable[..., Any], kind: str) -> None:
    if not kind.startswith("async"):
        pytest.skip("nothing to cancel without a loop")
    a = serve(OK, Hang(5), OK)
    router = Router(own(a.url))

    async def run() -> None:
        module = __import__(kind.partition("-")[2])
        http = module.AsyncClient()
        plain = openai.AsyncOpenAI(base_url=a.url, api_key="k", http_client=http)
        client = router.wrap(plain)
        ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        await client.chat.completions.create(**ask)  # type: ignore[call-overload]
        pending = asyncio.ensure_future(
            client.chat.completions.create(**ask)  # type: ignore[call-overload]
        )
        while len(a.hits) < 2:
            await anyio.sleep(0.005)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        await client.chat.completions.create(**ask)  # type: ignore[call-overload]
        await client.close()

    asyncio.run(run())
    state = learned(router)
    assert (state[0], state[5]) == (0, 0)
    assert state[2] == [("m", "closed", "", 0)]


@pytest.mark.usefixtures("settled")
def test_an_interrupt_goes_up_and_leaves_nothing_behind(
    serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = serve(OK, Drip(json.dumps(completion()).encode(), 40, 0.01), OK)
    router = Router(own(a.url))
    client = caller(a.url, router)
    client.chat()

    def interrupt(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(light.Light, "is_answered", interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.chat()
    assert learned(router)[0] == 0
    assert client.chat().choices[0].message.content == "hello"


@pytest.mark.parametrize("where", ["grown", "_intake"])
@pytest.mark.usefixtures("settled")
def test_an_interrupt_while_a_flight_is_made_of_it_leaves_nothing_behind(
    where: str,
    serve: Callable[..., Any],
    caller: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = serve(OK, R(500, error("boom")), OK)
    router = Router(own(a.url))
    client = caller(a.url, router, max_retries=0)
    client.chat()

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Desk, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.chat()
    state = learned(router)
    assert (state[0], state[5]) == (0, 0)
    assert client.chat().choices[0].message.content == "hello"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_body_that_is_left_early_ends_what_it_reads_from(backend: str) -> None:
    ended: list[str] = []

    async def chunks() -> Any:
        try:
            yield b"b"
            yield b"c"
        finally:
            ended.append("rest")

    async def run() -> None:
        body = light.areplay([b"a"], chunks(), None)
        assert [await anext(body), await anext(body)] == [b"a", b"b"]
        await body.aclose()

    anyio.run(run, backend=backend)
    assert ended == ["rest"]


def failing(*_: object, **__: object) -> None:
    raise RuntimeError("out of order")


@pytest.mark.skipif(
    openai.__version__.startswith("2."), reason="its bodies don't begin with the model"
)
@pytest.mark.parametrize(
    "what",
    ["headway.core.light.settle", "headway.core.budget.RetryBudget.deposit"],
)
def test_whatever_becomes_of_the_books_the_answer_is_the_callers(
    what: str, kind: str, serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: Any
) -> None:
    a = serve(OK)
    router = Router(own(a.url))
    client = caller(a.url, router)
    client.chat()
    monkeypatch.setattr(what, failing)

    assert client.chat().choices[0].message.content == "hello"

    assert len(a.hits) == 2
    status = router.status()
    assert [row.in_flight for row in (*status.endpoints, *status.pools)] == [0, 0]


def test_telemetry_that_fails_fails_no_call(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any], monkeypatch: Any
) -> None:
    a, b = serve(R(503, b"")), serve(OK)
    router = Router(policy({"a": a.url, "b": b.url}))
    monkeypatch.setattr(router._telemetry, "on_event", failing)
    client = caller(a.url, router)

    answers = [client.chat().choices[0].message.content for _ in range(4)]  # a's breaker opens

    assert answers == ["hello"] * 4
