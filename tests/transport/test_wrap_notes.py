"""A status error says which endpoints were tried, and stays the SDK's own."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.core.snapshot import Endpoint
from headway.credentials import Credential
from tests.servers import OK, R, error
from tests.transport.callers import Caller
from tests.transport.hosts import Host, own, policy

CANARY = "sk-canary"


def failing(client: Caller, **options: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat(**options)
    return caught.value


def test_a_status_error_after_a_failover_names_what_was_tried(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("busy"))), serve(R(400, error("no such tool", code="bad_tool")))
    second = Endpoint(id="b", base_url=b.url, credential="other")
    credential = Credential(value=CANARY, hosts=["127.0.0.1"])
    host = Host(policy({"a": a.url, "b": second}), credentials={"other": credential})

    problem = failing(caller(a.url, host))

    assert type(problem) is openai.BadRequestError
    assert problem.__notes__ == ["Headway: 2 attempts: a (503), b (400)"]
    assert "no such tool" in str(problem)
    assert "Headway: 2 attempts" not in str(problem)
    shown = "".join(traceback.format_exception(problem))
    assert "Headway: 2 attempts: a (503), b (400)" in shown
    assert CANARY not in shown
    assert problem.response.headers["x-headway-attempts"] == "2"


@pytest.mark.parametrize("stream", [False, True])
def test_copies_of_the_client_do_too(
    stream: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(429, error("slow down")))
    client = caller(a.url, Host(policy({"a": a.url})))
    whole = client.client

    for made in (
        whole.with_options(timeout=5),
        whole.copy(max_retries=1).with_options(timeout=5),
        copy.copy(whole),
    ):
        assert type(made) is type(whole)
        client.client = made
        assert failing(client, stream=stream).__notes__[0].startswith("Headway: ")
    client.client = whole


def test_a_client_without_a_policy_says_what_the_plain_one_says(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(400, error("no")))

    problem = failing(caller(a.url, Host(own(a.url)), max_retries=0))

    assert not hasattr(problem, "__notes__")


def test_the_client_looks_like_the_plain_one(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    client = caller(a.url, Host(policy({"a": a.url})))
    cls = type(client.plain)

    assert type(client.client) is cls
    assert inspect.signature(client.client.copy) == inspect.signature(client.plain.copy)
    assert inspect.signature(client.client.with_options) == inspect.signature(
        client.plain.with_options
    )
    assert client.client.with_options(timeout=3).timeout == 3
    other = client.client.with_options(http_client=client.http)
    assert other._client is client.http
