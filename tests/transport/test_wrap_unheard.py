"""Calls that nobody listens to: no hook, no task, no telemetry. The same decisions, less work."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.record import CallRecord
from headway.router import Router
from tests.servers import OK, R, error
from tests.transport.hosts import own, policy


def test_the_engine_still_learns_what_became_of_them(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    down = R(503, error("down"))
    a, b = serve(down, down, OK), serve(OK)
    host = Router(policy({"a": a.url, "b": b.url}))
    client = caller(a.url, host)

    assert client.raw().headers["x-headway-endpoint"] == "b"
    (pool,) = host.status().pools
    assert pool.retry_budget < 100
    assert [row.in_flight for row in host.status().endpoints] == [0, 0]


def test_a_failure_hidden_in_a_good_status_is_found(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(200, error("boom", "x", 502))), serve(OK)
    client = caller(a.url, Router(policy({"a": a.url, "b": b.url})))

    assert client.raw().headers["x-headway-endpoint"] == "b"


def test_alone_a_failing_endpoint_is_left_to_the_retries_of_the_sdk(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(503, error("down"), {"retry-after-ms": "1"}), OK)
    client = caller(a.url, Router(own(a.url)))

    assert client.chat().choices[0].message.content == "hello"
    assert len(a.hits) == 2


def test_calls_that_are_only_observed_are_counted(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    host = Router(policy({"b": b.url, "a": a.url}), mode="observe")

    caller(a.url, host).chat()

    assert host.status().observed.calls == 1


def test_nothing_is_left_to_the_garbage_collector(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK, OK)
    client = caller(a.url, Router(own(a.url)))
    client.chat()
    gc.collect()
    gc.disable()
    try:
        client.chat()
        left = [o for o in gc.get_objects() if isinstance(o, CallRecord)]
    finally:
        gc.enable()
    assert not left


def test_an_error_is_the_plain_clients_own(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(400, error("no", "bad")))

    with pytest.raises(openai.BadRequestError):
        caller(a.url, Router(own(a.url))).chat()
