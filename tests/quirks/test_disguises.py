"""Success by status, failure by content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import FailureClass, Usage
from headway.quirks import classify, classify_body, classify_error, error_message, read_reply

C = FailureClass
JSON = {"content-type": "application/json"}
OK_CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@pytest.mark.parametrize(
    ("surface", "ctype", "body", "kind", "error_type"),
    [
        (
            "chat",
            "application/json",
            {"error": {"message": "Upstream idle timeout", "code": 502}},
            C.SERVER_ERROR,
            "502",
        ),
        (
            "chat",
            "application/json",
            {"error": {"message": "slow", "code": 429}},
            C.RATE_LIMITED,
            "429",
        ),
        ("chat", "application/json", {"error": {"code": "429"}}, C.RATE_LIMITED, "429"),
        ("chat", "application/json", {"error": "boom"}, C.SERVER_ERROR, "upstream_error"),
        (
            "chat",
            "application/json",
            {"choices": [], "error": {"code": "insufficient_quota"}},
            C.QUOTA_EXHAUSTED,
            "insufficient_quota",
        ),
        (
            "chat",
            "application/json",
            {"object": "error", "message": "bad", "code": 400, "type": "BadRequestError"},
            C.BAD_REQUEST,
            "400",
        ),
        (
            "chat",
            "application/json",
            {"type": "error", "error": {"type": "overloaded_error"}},
            C.OVERLOADED,
            "overloaded",
        ),
        (
            "chat",
            "application/json",
            [{"error": {"code": 503, "status": "UNAVAILABLE"}}],
            C.OVERLOADED,
            "overloaded",
        ),
        ("chat", "text/html", "<!DOCTYPE html><html>login</html>", C.NOT_FOUND, "html_body"),
        ("chat", "application/json", "<html>", C.NOT_FOUND, "html_body"),
        ("files", "text/html", "<html>portal</html>", C.NOT_FOUND, "html_body"),
        ("chat", "application/json", '{"choices": [{"mess', C.INCOMPLETE_STREAM, "invalid_json"),
        ("chat", "application/json", "", C.INCOMPLETE_STREAM, "empty_body"),
        ("chat", "application/json", "[]", C.INCOMPLETE_STREAM, "not_an_object"),
        ("chat", "text/event-stream", 'data: {"choices":[]}\n\n', C.SERVER_ERROR, "event_stream"),
        ("chat", "", ": ping\n\ndata: {}\n\n", C.SERVER_ERROR, "event_stream"),
        (
            "responses",
            "application/json",
            {
                "object": "response",
                "status": "failed",
                "error": {"code": "server_error", "message": "x"},
            },
            C.SERVER_ERROR,
            "upstream_error",
        ),
        (
            "responses",
            "application/json",
            {
                "object": "response",
                "status": "failed",
                "error": {"code": "rate_limit_exceeded", "message": "x"},
            },
            C.RATE_LIMITED,
            "rate_limit_exceeded",
        ),
        (
            "responses",
            "application/json",
            {
                "object": "response",
                "status": "failed",
                "error": {"code": "invalid_prompt", "message": "x"},
            },
            C.BAD_REQUEST,
            "upstream_error",
        ),
    ],
)
def test_a_200_that_is_a_failure(
    surface: str, ctype: str, body: object, kind: FailureClass, error_type: str
) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    outcome = classify_body({"content-type": ctype}, raw, surface=surface)
    assert outcome is not None
    assert (outcome.kind, outcome.error_type) == (kind, error_type)


@pytest.mark.parametrize(
    ("surface", "ctype", "body"),
    [
        ("chat", "application/json", OK_CHAT),
        ("chat", "application/json", {**OK_CHAT, "error": None}),
        (
            "responses",
            "application/json",
            {"object": "response", "status": "completed", "error": None, "output": [1]},
        ),
        (
            "responses",
            "application/json",
            {"object": "response", "status": "incomplete", "output": []},
        ),
        ("embeddings", "application/json", {"data": [{"embedding": [0.1]}]}),
        ("audio", "audio/mpeg", "ID3\x00<html>"),
        ("audio", "text/plain", "data: hello, said the subtitle"),
        ("files", "application/octet-stream", '{"error": {"code": 500}}'),
        ("other", "application/json", '{"error": {"code": 500}}'),
    ],
)
def test_a_200_that_is_what_it_says(surface: str, ctype: str, body: object) -> None:
    raw = body.encode("latin-1") if isinstance(body, str) else json.dumps(body).encode()
    assert classify_body({"content-type": ctype}, raw, surface=surface) is None


def test_json_where_a_stream_was_asked_for() -> None:
    ignored = classify_body(JSON, json.dumps(OK_CHAT).encode(), surface="chat", stream=True)
    assert ignored is not None
    assert (ignored.kind, ignored.error_type) == (C.SERVER_ERROR, "not_event_stream")
    limited = classify_body(JSON, b'{"error":{"code":429}}', surface="chat", stream=True)
    assert limited is not None
    assert limited.kind is C.RATE_LIMITED


def test_classify_looks_into_a_200() -> None:
    assert classify(200, JSON, b'{"error":{"code":502}}', wall_now=0).kind is C.SERVER_ERROR
    assert classify(200, JSON, json.dumps(OK_CHAT).encode(), wall_now=0).kind is C.OK


def test_read_reply_judges_and_reads_in_one_parse() -> None:
    headers = {**JSON, "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2s"}
    outcome, facts = read_reply(headers, json.dumps(OK_CHAT).encode(), surface="chat", wall_now=0)
    assert outcome.kind is C.OK
    assert (outcome.input_tokens, outcome.output_tokens, outcome.retry_after_s) == (1, 1, 2.0)
    assert (facts.id, facts.model, facts.finish_reasons) == ("chatcmpl-1", "m", ("stop",))


def test_a_failed_response_still_says_what_it_used() -> None:
    body = b"""{"id":"resp_1","object":"response","model":"m","status":"failed",
        "error":{"code":"server_error","message":"x"},"usage":{"input_tokens":3,"output_tokens":4}}"""
    outcome, facts = read_reply(JSON, body, surface="responses", wall_now=0)
    assert (outcome.kind, outcome.input_tokens, outcome.output_tokens) == (C.SERVER_ERROR, 3, 4)
    assert facts.usage == Usage(3, 4)


def test_a_large_reply_is_read_at_its_ends() -> None:
    vectors = [{"object": "embedding", "index": i, "embedding": [0.25] * 512} for i in range(40)]
    reply = {
        "object": "list",
        "data": vectors,
        "model": "e",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }
    body = json.dumps(reply).encode()
    assert len(body) > 64 * 1024
    outcome, facts = read_reply(JSON, body, surface="embeddings", wall_now=0)
    assert (outcome.kind, facts.model, facts.usage) == (C.OK, "e", Usage(9, 0))
    cut, _ = read_reply(JSON, body[:-100], surface="embeddings", wall_now=0)
    assert cut.error_type == "invalid_json"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("boom", C.SERVER_ERROR),
        ({"message": "x", "code": "429"}, C.RATE_LIMITED),
        ({"message": "x", "code": 503}, C.OVERLOADED),
        ({"message": "overloaded", "type": "overloaded_error"}, C.OVERLOADED),
        ({"message": "You exceeded your current quota"}, C.QUOTA_EXHAUSTED),
        ({"type": "error", "code": "server_error", "message": "boom"}, C.SERVER_ERROR),
        ({"code": "context_length_exceeded"}, C.CONTEXT_LENGTH),
        ({"type": "invalid_request_error", "message": "bad"}, C.BAD_REQUEST),
        ({}, C.SERVER_ERROR),
        (None, C.SERVER_ERROR),
        ([], C.SERVER_ERROR),
    ],
)
def test_an_in_band_error(error: object, kind: FailureClass) -> None:
    outcome = classify_error(error)
    assert outcome.kind is kind
    assert outcome.reached_model


def test_the_message_of_an_error_page_is_its_beginning() -> None:
    assert error_message(b'{"error":{"message":"too fast"}}') == "too fast"
    assert error_message(b"<html>502 Bad Gateway</html>" + b"x" * 10**6).startswith("<html>502")
    assert len(error_message(b"x" * 10**6)) == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "code",
                    "type",
                    "message",
                    "status",
                    "object",
                    "choices",
                    "usage",
                    "response",
                    "details",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from(["chat", "responses", "embeddings", ""]), st.booleans())
def test_no_json_makes_it_raise(value: object, surface: str, stream: bool) -> None:
    body = json.dumps(value).encode()
    classify_body(JSON, body, surface=surface, stream=stream)
    read_reply(JSON, body, surface=surface, wall_now=0)
    classify(429, {}, body, wall_now=0)
    classify_error(value)
