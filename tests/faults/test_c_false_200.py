"""200s that are no success: errors, pages, fragments, the other kind of body."""

from __future__ import annotations

import gzip
import json
from typing import Any

import openai
import pytest

from tests.faults.bench import Bench, Fault, fault, play, plays_of
from tests.faults.streams import ALL, HELLO, script
from tests.servers import OK, OK_STREAM, RAW, R, Step, completion, error

SECTION = "C. A 200 that is no success"
PAGE = R(200, b"<html><body>Please sign in</body></html>", ctype="text/html")


def replaced(name: str, title: str, step: Step) -> None:
    """Another endpoint's answer is the caller's."""

    @fault(name, title)
    def answered(bench: Bench) -> None:
        a, b = bench.serve(step), bench.serve(OK)
        seen = bench.call(bench.client(a, b).chat)
        bench.observed()
        assert (seen.text, bench.hits) == ("hello", (1, 1))


def told(name: str, title: str, step: Step, kind: type[openai.APIError]) -> None:
    """Where nobody else can be asked, it is an error that an application catches."""

    @fault(name, title)
    def failed(bench: Bench) -> None:
        a = bench.serve(step)
        seen = bench.call(bench.client(a).chat)
        bench.observed()
        assert isinstance(seen.error, kind)


IDLE = error("Upstream idle timeout", "upstream", 502)
replaced("C19", "an error object", R(200, IDLE))
replaced("C19a", "an error as text", R(200, {"error": "overloaded"}))
replaced("C19b", "an error beside empty choices", R(200, {**IDLE, "choices": []}))
replaced("C19c", "a bare error object", R(200, {"object": "error", "message": "x", "code": 500}))
told("C19d", "an error object, no other endpoint", R(200, IDLE), openai.InternalServerError)
told(
    "C19e",
    "a rate limit as an error object, no other endpoint",
    R(200, error("slow down", "x", 429)),
    openai.RateLimitError,
)

replaced("C20", "a web page", PAGE)
told("C20a", "a web page, no other endpoint", PAGE, openai.APIResponseValidationError)


@fault("C20b", "a web page in answer to a stream", ways=ALL)
def page_for_a_stream(bench: Bench) -> None:
    a, b = bench.serve(PAGE), bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))


@fault("C20c", "the same, and no other endpoint", ways=ALL)
def page_for_a_stream_alone(bench: Bench) -> None:
    a = bench.serve(PAGE)
    seen = bench.stream(bench.client(a))
    bench.observed()
    is_page(seen.error)


def is_page(error: BaseException | None) -> None:
    assert isinstance(error, openai.APIResponseValidationError)
    assert (error.status_code, error.response.headers["content-type"]) == (200, "text/html")
    assert "Please sign in" in error.response.text
    assert "'a'" in str(error) or "'default'" in str(error)


@fault("C20e", "a web page, and no policy")
def page_without_a_policy(bench: Bench) -> None:
    a = bench.serve(PAGE, OK)
    client = bench.unwatched(a)
    seen = bench.call(client.chat)
    bench.observed()
    is_page(seen.error)
    assert bench.hits == (1,)
    assert bench.call(client.chat).text == "hello"


@fault("C20f", "a web page in answer to every call")
def pages(bench: Bench) -> None:
    a, b = bench.serve(PAGE), bench.serve(OK)
    client = bench.client(a, b)
    texts = [bench.call(client.chat).text for _ in range(4)]
    bench.observed()
    assert (texts, bench.hits) == (["hello"] * 4, (1, 4))


replaced("C20d", "plain text", R(200, b"OK", ctype="text/plain"))


def cut(body: bytes, length: int) -> RAW:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    return RAW(head.encode() + body)


WHOLE = json.dumps(completion()).encode()
LARGE = json.dumps(completion("x" * 100_000)).encode()
SHORT = R(200, WHOLE[: len(WHOLE) // 2])
replaced("C22", "a body shorter than announced", cut(WHOLE[:40], len(WHOLE)))
replaced("C22a", "JSON that is cut", SHORT)
told("C22b", "JSON that is cut, no other endpoint", SHORT, openai.APIError)
told("C22c", "large JSON that is cut", R(200, LARGE[:90_000]), openai.APIError)
told("C22d", "large JSON cut after a bracket", R(200, LARGE[:90_000] + b"}"), openai.APIError)
told("C22e", "a body shorter than announced, alone", cut(WHOLE[:40], 400), openai.APIError)
told("C22f", "nothing at all", R(200, b""), openai.APIError)
told("C22g", "JSON, but no object", R(200, b"null"), openai.APIError)
told("C22h", "two JSON objects", R(200, WHOLE + WHOLE), openai.APIError)
told(
    "C22i",
    "a compressed body that is cut",
    R(200, gzip.compress(WHOLE)[:60], {"content-encoding": "gzip"}),
    openai.APIError,
)


@fault("C22j", "JSON that is cut, and no policy")
def cut_without_a_policy(bench: Bench) -> None:
    a = bench.serve(SHORT, OK)
    seen = bench.call(bench.unwatched(a).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (2,))


@fault("C23", "JSON in answer to a stream", ways=ALL)
def json_for_a_stream(bench: Bench) -> None:
    a, b = bench.serve(OK), bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))


@fault("C23a", "the same, and no other endpoint", ways=ALL)
def json_for_a_stream_alone(bench: Bench) -> None:
    a = bench.serve(OK)
    seen = bench.stream(bench.client(a))
    bench.observed()
    assert isinstance(seen.error, openai.APIError)


replaced("C23b", "a stream in answer to a plain call", OK_STREAM)


@fault("C23c", "an error object in answer to a stream", ways=ALL)
def error_for_a_stream(bench: Bench) -> None:
    a, b = bench.serve(R(200, IDLE)), bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))


def response(status: str = "completed", **more: Any) -> R:
    part = {"type": "output_text", "text": "hello", "annotations": []}
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "output": [] if status == "failed" else [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }
    return R(200, {**body, **more})


BROKEN = response("failed", error={"code": "server_error", "message": "boom"})


@fault("C25", "a response whose status is failed")
def failed_response(bench: Bench) -> None:
    a, b = bench.serve(BROKEN), bench.serve(response())
    seen = bench.respond(bench.client(a, b))
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))
    assert bench.kinds() == ["server_error", "ok"]


@fault("C25a", "the same, and no other endpoint")
def failed_response_alone(bench: Bench) -> None:
    a = bench.serve(BROKEN)
    seen = bench.respond(bench.client(a))
    bench.observed()
    assert seen.value.status == "failed"
    assert "ok" not in bench.kinds()


@fault("C25b", "a response that is incomplete")
def incomplete(bench: Bench) -> None:
    details = {"incomplete_details": {"reason": "max_output_tokens"}}
    a, b = bench.serve(response("incomplete", **details)), bench.serve(response())
    seen = bench.respond(bench.client(a, b))
    bench.observed()
    assert (seen.value.status, bench.hits) == ("incomplete", (1, 0))
    assert bench.host.records[-1].attempts[0].finish_reasons == ["max_output_tokens"]


@fault("C25c", "a response that the filter stopped")
def filtered(bench: Bench) -> None:
    stopped = response("failed", error={"code": "content_filter", "message": "no"})
    a, b = bench.serve(stopped), bench.serve(response())
    seen = bench.respond(bench.client(a, b))
    bench.observed()
    assert (seen.value.status, bench.hits) == ("failed", (1, 0))


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
