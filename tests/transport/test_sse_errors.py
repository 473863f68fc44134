"""Streams that fail, in band or by ending too soon."""

from __future__ import annotations

import pytest

from headway.core.model import FailureClass
from tests.transport.streams import (
    DONE,
    ROLE,
    STOP,
    chunk,
    event,
    responses_delta,
    watch,
)

C = FailureClass


@pytest.mark.parametrize(
    ("stream", "error_type"),
    [
        (b"", "empty_stream"),
        (DONE, "empty_stream"),
        (ROLE, "empty_stream"),
        (ROLE + DONE, "empty_stream"),
        (b": ping\n\n" * 3, "empty_stream"),
        (ROLE + chunk("He"), "truncated_stream"),
        (ROLE + chunk("He") + STOP[:40], "truncated_stream"),
    ],
)
def test_a_stream_that_only_seems_to_end(stream: bytes, error_type: str) -> None:
    observer, out = watch(stream)
    outcome = observer.outcome()
    assert (outcome.kind, outcome.error_type) == (C.INCOMPLETE_STREAM, error_type)
    assert out == stream


def test_responses_without_the_completed_event_were_cut() -> None:
    observer, _ = watch(responses_delta(1, "x"), "responses")
    assert observer.outcome().error_type == "truncated_stream"


def test_done_without_its_blank_line_still_ends_the_stream() -> None:
    observer, out = watch(chunk("x") + b"data: [DONE]")
    assert observer.outcome().kind is C.OK
    assert out == chunk("x") + b"data: [DONE]"


def test_speech_streams_have_no_end_to_miss() -> None:
    observer, _ = watch(event({"type": "speech.audio.delta", "audio": "AA=="}), "audio")
    assert (observer.content_events, observer.outcome().kind) == (1, C.OK)


@pytest.mark.parametrize(
    ("raw", "kind", "message"),
    [
        (
            event({"error": {"message": "overloaded", "type": "server_error", "code": 503}}),
            C.OVERLOADED,
            "overloaded",
        ),
        (event({"error": "boom"}), C.SERVER_ERROR, "boom"),
        (event({"error": {"code": "429"}}), C.RATE_LIMITED, "upstream error"),
        (
            event(
                {"type": "error", "code": "server_error", "message": "boom", "param": None}, "error"
            ),
            C.SERVER_ERROR,
            "boom",
        ),
        (
            event(
                {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
                "error",
            ),
            C.OVERLOADED,
            "Overloaded",
        ),
        (event({"object": "error", "message": "bad", "code": 400}), C.BAD_REQUEST, "bad"),
        (event({"message": "boom"}, "error"), C.SERVER_ERROR, "boom"),
        (
            chunk("", "error", error={"code": 502, "message": "upstream"}),
            C.SERVER_ERROR,
            "upstream",
        ),
        (
            event(
                {"choices": [{"index": 0, "delta": {}, "error": {"code": 429, "message": "slow"}}]}
            ),
            C.RATE_LIMITED,
            "slow",
        ),
        (
            event(
                {
                    "type": "response.failed",
                    "response": {
                        "id": "r",
                        "status": "failed",
                        "error": {"code": "server_error", "message": "x"},
                    },
                }
            ),
            C.SERVER_ERROR,
            "x",
        ),
        (
            event(
                {
                    "type": "response.failed",
                    "response": {"error": {"code": "rate_limit_exceeded", "message": "x"}},
                }
            ),
            C.RATE_LIMITED,
            "x",
        ),
        (b"data: {oops\n\n", C.INCOMPLETE_STREAM, "malformed event in the stream"),
        (b"data: ping\n\n", C.INCOMPLETE_STREAM, "malformed event in the stream"),
        (b"data: [1]\n\n", C.INCOMPLETE_STREAM, "malformed event in the stream"),
        (b'data: {"a":"\xff"}\n\n', C.INCOMPLETE_STREAM, "malformed event in the stream"),
    ],
)
@pytest.mark.parametrize("before", [b"", ROLE + chunk("He")], ids=["first", "after-content"])
def test_an_error_in_band(before: bytes, raw: bytes, kind: FailureClass, message: str) -> None:
    observer, out = watch(before + raw + chunk("never seen"))

    assert observer.error is not None
    assert (observer.error.kind, observer.error_message) == (kind, message)
    assert observer.outcome().kind is kind
    assert observer.error_event == raw
    assert out == before
    assert observer.feed(chunk("nor this")) == b""
    assert observer.saw_content == bool(before)
    assert observer.partial_text == ("He" if before else "")


@pytest.mark.parametrize("error", [None, {}, "", False])
def test_an_empty_error_member_is_no_error(error: object) -> None:
    assert watch(chunk("x", error=error))[0].error is None


def test_a_wait_named_in_an_in_band_error_is_kept() -> None:
    observer, _ = watch(event({"error": {"code": 429, "message": "Please try again in 1.5s"}}))
    assert observer.outcome().retry_after_s == 1.5


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error":{"message":"no","code":503}}', C.OVERLOADED),
        (b'data: {"error":{"message":"no","code":503}}', C.OVERLOADED),
        (b"<html><body>portal</body></html>", C.NOT_FOUND),
    ],
)
def test_an_error_that_never_got_its_blank_line(body: bytes, kind: FailureClass) -> None:
    observer, _ = watch(body)
    assert observer.outcome().kind is kind
