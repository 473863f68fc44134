"""Calls that no route of the policy matches: they go their way, and nobody claims to know them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest

from headway import Router, TaskLimitExceeded, task
from tests.servers import OK, R, Server, error

ASK: Any = {"model": "gpt-typo", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def client_of() -> Iterator[Callable[..., tuple[openai.OpenAI, Server]]]:
    with ExitStack() as stack:

        def make(*steps: Any, mode: str = "enforce") -> tuple[openai.OpenAI, Server]:
            server = stack.enter_context(Server(*steps))
            policy = {
                "schema_version": "1.0",
                "version": 1,
                "endpoints": {"a": {"base_url": server.url}},
                "routes": [{"match": {"model": "chat"}, "weights": {"a": 1}}],
            }
            router = stack.enter_context(Router(policy, mode=mode))
            client = router.wrap(openai.OpenAI(base_url=server.url, api_key="k"))
            stack.callback(client.close)
            return client, server

        yield make


def test_they_are_counted_and_their_cost_is_unknown(
    client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client, server = client_of(OK)
    with caplog.at_level(logging.WARNING, "headway"), task("t") as t:
        for _ in range(2):
            client.chat.completions.create(**ASK)
    assert len(server.hits) == 2
    assert (t.calls, t.cost_complete) == (2, False)
    [told] = [r.getMessage() for r in caplog.records if "gpt-typo" in r.getMessage()]
    assert told.startswith("no route of the policy matches model 'gpt-typo' (chat)")


def test_a_cap_on_calls_holds_for_them(client_of: Any) -> None:
    client, server = client_of(OK)
    with task("t", max_calls=1):
        client.chat.completions.create(**ASK)
        with pytest.raises(TaskLimitExceeded):
            client.chat.completions.create(**ASK)
    assert len(server.hits) == 1


def test_what_the_sdk_sends_again_is_one_call(client_of: Any) -> None:
    client, server = client_of(R(500, error("boom"), {"retry-after-ms": "2"}), OK)
    with task("t", max_calls=1) as t:
        client.chat.completions.create(**ASK)
    assert len(server.hits) == 2
    assert t.calls == 1


def test_observed_no_cap_stops_them(client_of: Any) -> None:
    client, server = client_of(OK, mode="observe")
    with task("t", max_calls=1):
        for _ in range(2):
            client.chat.completions.create(**ASK)
    assert len(server.hits) == 2
