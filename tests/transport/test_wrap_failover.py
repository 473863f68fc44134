"""Until the first content token any endpoint may take over, unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.core.snapshot import DeadlinePolicy
from tests.servers import (
    DONE,
    OK,
    OK_STREAM,
    ROLE,
    SSE,
    Close,
    Hang,
    R,
    Rst,
    Step,
    completion,
    error,
    event,
)
from tests.transport.hosts import Host, policy

HTML = R(200, b"<html>login</html>", ctype="text/html")
BEFORE_AN_ANSWER: dict[str, Step] = {
    "503": R(503, error("no worker")),
    "500": R(500, error("boom")),
    "529": R(529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
    "502 html": R(502, b"<html>Bad Gateway</html>", ctype="text/html"),
    "429": R(429, error("slow", "requests", "rate_limit_exceeded"), {"retry-after": "9"}),
    "quota": R(429, error("out", "insufficient_quota", "insufficient_quota")),
    "401": R(401, error("no", "invalid_request_error", "invalid_api_key")),
    "404 model": R(404, error("no such", "invalid_request_error", "model_not_found")),
    "closed": Close(),
    "reset": Rst(),
    "silent": Hang(5),
}
HIDDEN_IN_200: dict[str, Step] = {
    "error object": R(200, error("Upstream idle timeout", "x", 502)),
    "html": HTML,
    "cut json": R(200, b'{"id": "x", "choi'),
}
NO_STREAM: dict[str, Step] = {
    "empty": SSE([]),
    "only done": SSE([DONE]),
    "error first": SSE([event(error("boom"))]),
    "role, then error": SSE([ROLE, event(error("boom"))]),
    "role, then reset": SSE([ROLE], end="rst"),
    "role, then end": SSE([ROLE], end="eof"),
    "json instead": R(200, completion()),
    "html instead": HTML,
    "broken event": SSE([b"data: {oops\n\n"]),
    "silent head": Hang(5),
    "silent after role": SSE([ROLE, 5.0]),
    "pings only": SSE([ROLE, *([b": ping\n\n", 0.1] * 30)]),
}


@pytest.mark.parametrize("fault", [*BEFORE_AN_ANSWER, *HIDDEN_IN_200, "refused"])
def test_an_answer_comes_from_the_next_endpoint(
    fault: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    steps = {**BEFORE_AN_ANSWER, **HIDDEN_IN_200}
    a, b = serve(steps.get(fault, OK)), serve(OK)
    if fault == "refused":
        a.close()
    host = Host(policy({"a": a.url, "b": b.url}))
    client = caller(a.url, host, timeout=0.8 if fault == "silent" else 20.0)

    reply = client.raw()

    assert reply.parse().choices[0].message.content == "hello"
    assert reply.headers["x-headway-endpoint"] == "b"
    assert reply.headers["x-headway-attempts"] == "2"
    assert reply.headers["x-headway-policy-version"] == "7"
    assert len(b.hits) == 1
    assert host.in_flight == 0


@pytest.mark.parametrize("fault", [*BEFORE_AN_ANSWER, *NO_STREAM])
def test_a_stream_comes_from_the_next_endpoint(
    fault: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    steps = {**BEFORE_AN_ANSWER, **NO_STREAM}
    a, b = serve(steps[fault]), serve(OK_STREAM)
    says_nothing = fault.startswith(("silent", "pings"))
    limits = DeadlinePolicy(ttft_s=0.8 if says_nothing else 20.0)
    host = Host(policy({"a": a.url, "b": b.url}, deadline=limits))
    client = caller(a.url, host, timeout=None)

    assert client.text() == "Hello"
    assert len(b.hits) == 1
    assert host.in_flight == 0


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_request_is_to_blame_for_goes_no_further(
    status: int, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(status, error("bad", "invalid_request_error"))), serve(OK)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    with pytest.raises(openai.APIStatusError) as caught:
        client.chat()

    assert caught.value.status_code == status
    assert caught.value.response.headers["x-headway-endpoint"] == "a"
    assert (len(a.hits), len(b.hits)) == (1, 0)


def test_the_last_answer_surfaces_and_the_sdk_does_not_multiply_it(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("a is down"))), serve(R(500, error("b is down")))
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})), max_retries=9)

    with pytest.raises(openai.InternalServerError, match="is down") as caught:
        client.run(
            client.client.with_options(max_retries=7).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
        )

    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(a.hits) + len(b.hits) == 3


def test_when_no_endpoint_can_be_reached_the_error_says_which_and_how(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    a.close(), b.close()
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    with pytest.raises(openai.APIConnectionError, match=r"Connection error\. ConnectError") as e:
        client.chat()

    assert any("a (" in note and "b (" in note for note in e.value.__notes__)
    assert e.value.__cause__ is not None


def test_every_managed_surface_fails_over(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(503, error("down")))
    replies = {
        "/v1/embeddings": {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
            "model": "m",
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        },
        "/v1/completions": {
            "id": "c",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}],
        },
        "/v1/responses": {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "status": "completed",
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        },
    }
    b = serve(lambda seen: R(200, replies[seen.path]))
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))
    sdk = client.client

    embedded = client.run(sdk.embeddings.create(model="m", input="x", encoding_format="float"))
    completed = client.run(sdk.completions.create(model="m", prompt="x"))
    responded = client.run(sdk.responses.create(model="m", input="x", store=False))

    assert embedded.data[0].embedding == [0.5]
    assert completed.choices[0].text == "hello"
    assert responded.id == "resp_1"


def test_a_connection_that_went_stale_costs_neither_an_error_nor_a_retry(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK, Close(), OK)
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host, max_retries=0)

    client.chat()
    balance = host.engine.pools(host.clock())[0].retry_budget
    client.chat()

    assert len(a.hits) == 3
    assert host.engine.pools(host.clock())[0].retry_budget >= balance


def test_connections_that_went_stale_together_cost_no_more(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK_STREAM, OK_STREAM, Close(), Close(), OK)
    host = Host(policy({"a": a.url}))
    client = caller(a.url, host, max_retries=0)

    streams = [client.chat(stream=True) for _ in range(2)]  # at once: two connections
    for stream in streams:
        client.drain(stream)
    balance = host.engine.pools(host.clock())[0].retry_budget
    client.chat()

    assert [hit.connection for hit in a.hits[:2]] == [1, 2]
    assert {hit.connection for hit in a.hits[2:4]} == {1, 2}
    assert len(a.hits) == 5
    assert host.engine.pools(host.clock())[0].retry_budget >= balance


@pytest.mark.parametrize("broken", [Rst(), Close()], ids=["reset", "closed"])
def test_an_endpoint_that_breaks_every_connection_is_left_alone_though_it_worked_before(
    broken: Step, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK, broken), serve(OK)
    host = Host(policy({"a": a.url, "b": b.url}))
    client = caller(a.url, host)

    for _ in range(8):
        assert client.chat().choices[0].message.content == "hello"

    # The one that answered; one that may have met a stale connection; what its breaker takes.
    assert len(a.hits) == 1 + 1 + 3
    assert len(b.hits) == 7
