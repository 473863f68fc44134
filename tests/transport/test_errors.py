"""Errors: caught as openai's, made without a request, pickled without a secret."""

from __future__ import annotations

import pickle
from typing import Any

import openai
import pytest

from headway import errors
from headway.core.model import Rejection, Usage
from headway.errors import PartialAnswer, ToolCall, rejection_error, upstream_error

REQUEST_OF = openai.OpenAI(api_key="sk-canary", base_url="http://127.0.0.1:9/v1")._client


def request() -> Any:
    return REQUEST_OF.build_request(
        "POST", "http://127.0.0.1:9/v1/x", headers={"authorization": "Bearer sk-canary"}
    )


CASES = [
    (errors.Shed("m", reason="queue_full", retry_after_s=1.5), openai.RateLimitError, 429),
    (errors.NoEndpointAvailable("m", reason="no_endpoint"), openai.InternalServerError, 503),
    (errors.TaskLimitExceeded("m", reason="max_cost"), openai.APIStatusError, 402),
    (errors.Rejected("m", reason="x"), openai.APIStatusError, 429),
    (errors.DeadlineExceeded("m"), openai.APITimeoutError, None),
    (errors.CredentialRefused("m", endpoint="a"), openai.APIConnectionError, None),
    (errors.StreamInterrupted("m", endpoint="a"), openai.APIConnectionError, None),
    (errors.StreamStalled("m", endpoint="a"), openai.APITimeoutError, None),
    (errors.StreamTimedOut("m", endpoint="a"), errors.DeadlineExceeded, None),
]


@pytest.mark.parametrize(("error", "kind", "status"), CASES, ids=lambda x: getattr(x, "reason", ""))
def test_each_is_what_an_application_catches_already(
    error: Any, kind: type[Exception], status: int | None
) -> None:
    assert isinstance(error, kind)
    assert isinstance(error, openai.APIError)
    assert isinstance(error, errors.HeadwayError)
    assert str(error) == error.message == "m"
    assert error.request.method == "POST"
    if status is not None:
        assert error.status_code == error.response.status_code == status
        assert error.response.headers["x-should-retry"] == "false"
        assert error.code.startswith("headway_")


@pytest.mark.parametrize(("error", "kind", "status"), CASES, ids=lambda x: getattr(x, "reason", ""))
def test_each_survives_pickling(error: Any, kind: type[Exception], status: int | None) -> None:
    back = pickle.loads(pickle.dumps(error))

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert isinstance(back, kind)
    for name in ("reason", "retry_after_s", "endpoint", "usage", "partial", "code"):
        assert getattr(back, name, None) == getattr(error, name, None)
    if status is not None:
        assert back.response.status_code == status


def test_a_pickled_error_carries_no_key_and_no_socket() -> None:
    error = errors.StreamInterrupted(
        "m",
        partial=PartialAnswer("Hel", [ToolCall("call_1", "look", "{")]),
        usage=Usage(3, 1, estimated=True),
        endpoint="a",
        cause=OSError("boom"),
        request=request(),
    )

    packed = pickle.dumps(error)
    back = pickle.loads(packed)

    assert b"sk-canary" not in packed
    assert back.partial.text == "Hel"
    assert back.partial.tool_calls[0].name == "look"
    assert back.usage == Usage(3, 1, estimated=True)
    assert "boom" in str(back.cause)
    assert str(back.request.url) == "http://127.0.0.1:9/v1/x"
    assert "sk-canary" not in repr(error) + str(error)


@pytest.mark.parametrize(
    ("reason", "detail", "kind", "words"),
    [
        ("queue_full", (), errors.Shed, "queue is full"),
        ("queue_wait", (), errors.Shed, "too long"),
        ("no_endpoint", (("a", "breaker", 3.0),), errors.NoEndpointAvailable, "a: breaker for 3 s"),
        ("no_endpoint", (("a", "throttled", 3.0),), errors.Shed, "asked for quiet"),
        ("policy_expired", (), errors.NoEndpointAvailable, "on_expiry"),
        ("deadline", (), errors.DeadlineExceeded, "longer deadline"),
    ],
)
def test_a_refusal_says_what_happened_and_what_helps(
    reason: str, detail: Any, kind: type[Exception], words: str
) -> None:
    asked = request()

    error: Any = rejection_error(Rejection(reason, 2.0, detail), asked, model="m")

    assert type(error) is kind
    assert words in str(error)
    assert "'m'" in str(error)
    assert error.request is asked


def test_what_the_transport_raised_is_wrapped_as_the_sdk_would() -> None:
    cause = OSError(111, "Connection refused")

    error = upstream_error(cause, request(), "Headway: 1 attempt: a (CONNECT)", timed_out=False)

    assert type(error) is openai.APIConnectionError
    assert str(error).startswith("Connection error.")
    assert "Connection refused" in str(error)
    assert error.__cause__ is cause
    assert error.__notes__ == ["Headway: 1 attempt: a (CONNECT)"]
    assert type(upstream_error(cause, request(), "", timed_out=True)) is openai.APITimeoutError


def test_a_policy_error_names_the_place() -> None:
    error = errors.ValidationError(
        "is no number", path="routes[0]", source="p.json", expected="int"
    )

    back = pickle.loads(pickle.dumps(error))

    assert str(error) == str(back) == "routes[0]: is no number (expected int) [p.json]"
    assert (back.path, back.source, back.expected) == ("routes[0]", "p.json", "int")
    assert isinstance(back, errors.PolicyError)
    assert not isinstance(back, openai.OpenAIError)
