"""A 200 that is no answer, from the only endpoint there is, is an error and not silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.core.snapshot import RetryPolicy
from tests.servers import DONE, OK, OK_STREAM, SSE, R, Step, error
from tests.transport.hosts import Host, policy

ONCE = RetryPolicy(attempts_max=1)
HTML = R(200, b"<html>login</html>", ctype="text/html")
WHOLE: dict[str, tuple[Step, type[openai.APIError]]] = {
    "error object": (R(200, error("Upstream idle timeout", "x", 502)), openai.InternalServerError),
    "throttled": (R(200, error("slow down", "x", 429)), openai.RateLimitError),
    "web page": (HTML, openai.APIResponseValidationError),
    "cut json": (R(200, b'{"id": "x", "choi'), openai.InternalServerError),
    "events": (OK_STREAM, openai.InternalServerError),
}
STREAMED: dict[str, Step] = {
    "nothing": SSE([]),
    "only the end": SSE([DONE]),
    "web page": HTML,
    "json": OK,
    "broken event": SSE([b"data: {oops\n\n"]),
    "error event": SSE([b'event: error\ndata: {"type":"error","message":"boom"}\n\n']),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_call(name: str, serve: Callable[..., Any], caller: Callable[..., Any]) -> None:
    step, expected = WHOLE[name]
    a = serve(step)
    client = caller(a.url, Host(policy({"a": a.url}, retry=ONCE)))

    with pytest.raises(expected) as caught:
        client.chat()

    assert caught.value.response.headers["x-headway-endpoint"] == "a"


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream(name: str, serve: Callable[..., Any], caller: Callable[..., Any]) -> None:
    a = serve(STREAMED[name])
    client = caller(a.url, Host(policy({"a": a.url}, retry=ONCE)))

    with pytest.raises(openai.APIError):
        client.text()


def test_a_failed_response_object_is_the_applications_to_read(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    failed = {"id": "resp_1", "object": "response", "status": "failed", "output": []}
    a = serve(R(200, {**failed, "error": {"code": "server_error", "message": "x"}}))
    client = caller(a.url, Host(policy({"a": a.url}, retry=ONCE)))

    reply = client.run(client.client.responses.create(model="m", input="hi"))

    assert reply.status == "failed"
