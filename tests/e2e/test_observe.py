"""Observing, and the kill switch: byte for byte what the plain client does, refusals included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

import headway
from headway.core.model import AttemptEnded, AttemptStarted
from tests.e2e.fleet import MESSAGES, Fleet, document, say
from tests.e2e.replies import answer
from tests.servers import Close, R, Rst, Seen, Server, error

NOW = {"retry-after-ms": "1"}
STEPS: dict[str, Any] = {
    "answered": [answer()],
    "503": [R(503, error("down"), NOW)],
    "429": [R(429, error("slow down", "rate_limit_error"), NOW)],
    "429 then answered": [R(429, error("slow down"), NOW), answer()],
    "400": [R(400, error("bad", "invalid_request_error"))],
    "401": [R(401, error("no", "invalid_request_error", "invalid_api_key"))],
    "404": [R(404, error("none", "invalid_request_error", "model_not_found"))],
    "500 with x-should-retry": [R(500, error("no"), {"x-should-retry": "false"})],
    "closed": [Close()],
    "reset": [Rst()],
    "error in a 200": [R(200, error("hidden", "server_error", 502))],
    "page": [R(200, b"<html>hello</html>", ctype="text/html")],
    "redirect": [R(307, b"", {"location": "/v1/elsewhere"}), R(200, {"moved": True})],
    "refused": None,
}


@dataclass
class Told:
    """What a client sent, and what its application got."""

    sent: list[tuple[bytes, bytes]] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)


def _plainly(seen: Seen) -> tuple[bytes, bytes]:
    host = seen.headers["host"].encode()
    return seen.raw_head.replace(host, b"HOST"), seen.body


def _of_error(problem: BaseException) -> tuple[Any, ...]:
    response = getattr(problem, "response", None)
    status = None if response is None else response.status_code
    headers = None if response is None else sorted(response.headers.raw)
    return type(problem), str(problem), status, headers, getattr(problem, "body", None)


async def use(client: Any, *, stream: bool) -> Any:
    """One call with its raw response; whatever comes of it, to be compared."""
    create = client.chat.completions.with_raw_response.create
    try:
        raw = create(model="m", messages=MESSAGES, stream=stream)
        raw = await raw if isinstance(client, openai.AsyncOpenAI) else raw
        read = raw.http_response
        body = await read.aread() if isinstance(client, openai.AsyncOpenAI) else read.read()
        return raw.retries_taken, raw.status_code, sorted(raw.headers.raw), body
    except openai.OpenAIError as problem:
        return _of_error(problem)


OPTIONS: dict[str, Any] = {"api_key": "sk-own", "max_retries": 2, "timeout": 5}


@pytest.fixture(autouse=True)
def _no_pauses_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "openai._base_client.BaseClient._calculate_retry_timeout", lambda *_, **__: 0.001
    )


@pytest.fixture(params=["sync", "async"])
def cls(request: pytest.FixtureRequest) -> type[Any]:
    return openai.OpenAI if request.param == "sync" else openai.AsyncOpenAI


async def compare(
    wrap: Callable[[Any], Any], cls: type[Any], steps: Any, url: str, *, stream: bool
) -> list[Told]:
    """The plain client and the wrapped one, each against a server of its own."""
    told: list[Told] = []
    for wrapped in (False, True):
        found = Told()
        server = None if steps is None else Server(*steps).__enter__()
        base_url = url if server is None else server.url
        client = cls(base_url=base_url, **OPTIONS)
        used = wrap(client) if wrapped else client
        for _ in range(2):
            found.got.append(await use(used, stream=stream))
        if isinstance(used, openai.AsyncOpenAI):
            await used.close()
        else:
            used.close()
        if server is not None:
            found.sent = [_plainly(seen) for seen in server.hits]
            server.close()
        told.append(found)
    return told


STREAMED = ("answered", "503", "429 then answered", "400", "closed", "page")


@pytest.mark.parametrize(
    ("kind", "stream"),
    [*((kind, False) for kind in STEPS), *((kind, True) for kind in STREAMED)],
)
async def test_an_observed_client_is_the_plain_one(
    kind: str,
    stream: bool,
    cls: type[Any],
    refused_url: str,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
) -> None:
    elsewhere = serve(answer())
    made = fleet({"elsewhere": elsewhere.url}, mode="observe")

    with headway.task("looked at") as task:
        plain, told = await compare(made.router.wrap, cls, STEPS[kind], refused_url, stream=stream)

    assert told == plain
    assert not elsewhere.hits
    assert task.calls >= 2
    if told.sent and kind != "redirect":  # the hop that follows is no call of the application
        assert len(made.events.of(AttemptStarted)) == len(told.sent)
        assert len(made.events.of(AttemptEnded)) == len(told.sent)
    assert made.in_flight == 0


@pytest.mark.parametrize("kind", ["answered", "503", "429", "400", "closed", "refused"])
async def test_the_kill_switch_leaves_the_plain_client(
    kind: str,
    cls: type[Any],
    refused_url: str,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAY_DISABLED", "1")
    elsewhere = serve(answer())
    made = fleet({"elsewhere": elsewhere.url})

    with headway.task("by itself") as task:
        plain, told = await compare(made.router.wrap, cls, STEPS[kind], refused_url, stream=False)

    assert told == plain
    assert not elsewhere.hits
    assert made.router.status().disabled
    assert not made.events.of(AttemptStarted)
    assert task.calls == 0


@pytest.mark.parametrize("kind", ["answered", "400", "401", "404", "page", "redirect"])
async def test_without_a_policy_the_wire_is_the_plain_ones(
    kind: str, cls: type[Any], refused_url: str
) -> None:
    plain, told = await compare(headway.wrap, cls, STEPS[kind], refused_url, stream=False)

    assert told.sent == plain.sent


def test_what_would_have_been_done_is_told(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    own, other = serve(answer()), serve(answer())
    made = fleet(
        {"own": own.url, "other": other.url}, route={"weights": {"other": 1}}, mode="observe"
    )

    for _ in range(3):
        assert say(made.client()) == "Hello"

    assert (len(own.hits), len(other.hits)) == (3, 0)
    assert made.sends_to("other") == 3
    assert made.router.status().mode == "observe"


def test_one_route_is_observed_while_another_is_enforced(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    own, other = serve(answer()), serve(answer())
    made = document({"own": own.url, "other": other.url}, route={"weights": {"other": 1}})
    made["routes"].insert(
        0, {"match": {"model": "trial"}, "weights": {"other": 1}, "mode": "observe"}
    )
    client = fleet({"own": own.url}, policy=made).client()

    say(client, model="trial")
    say(client, model="m")

    assert [json.loads(seen.body)["model"] for seen in own.hits] == ["trial"]
    assert [json.loads(seen.body)["model"] for seen in other.hits] == ["m"]


async def test_a_stream_observed_is_the_plain_ones_chunk_by_chunk(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="a|b|c"))
    made = fleet({"elsewhere": "http://127.0.0.1:9/v1"}, mode="observe")
    async with openai.AsyncOpenAI(base_url=server.url, **OPTIONS) as plain:
        both = []
        for client in (plain, made.router.wrap(plain)):
            chunks: Any = await client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            both.append([c.to_dict() async for c in chunks])
    assert both[0] == both[1]
    assert both[0][-1]["usage"]["prompt_tokens"] == 1000
    await asyncio.sleep(0)
