"""A client wrapped without a policy: the SDK retries as ever, and the budget has a veto."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

import headway
from tests.e2e.fleet import MESSAGES, asay, at_once, say
from tests.e2e.replies import answer
from tests.servers import Close, R, Seen, Server, Step, error

SOON = {"retry-after-ms": "1"}
DOWN = R(503, error("down"), SOON)


@pytest.fixture
def wrapped(plain: Callable[..., openai.OpenAI]) -> Callable[..., openai.OpenAI]:
    def make(server: Server, **options: Any) -> openai.OpenAI:
        return headway.wrap(plain(server.url, **options))

    return make


def test_one_request_per_attempt_of_the_sdk(
    serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(DOWN, R(429, error("slow down"), SOON), answer())

    raw = wrapped(server).chat.completions.with_raw_response.create(model="m", messages=MESSAGES)

    assert raw.retries_taken == 2
    assert [seen.headers["x-stainless-retry-count"] for seen in server.hits] == ["0", "1", "2"]
    assert len({seen.body for seen in server.hits}) == 1
    assert raw.parse().choices[0].message.content == "Hello"


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_the_clients_own_setting_is_the_bound(
    retries: int, serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(DOWN)
    client = wrapped(server, max_retries=7).with_options(max_retries=retries)

    with pytest.raises(openai.InternalServerError):
        say(client)

    assert len(server.hits) == 1 + min(retries, 3)  # the budget begins with three


def test_the_budget_stops_a_retry_storm(
    serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(DOWN)
    client = wrapped(server, max_retries=5)

    for _ in range(100):
        with pytest.raises(openai.InternalServerError):
            say(client)

    plain_client_sends = 600
    assert len(server.hits) <= 104 < plain_client_sends


async def test_the_budget_stops_a_storm_of_many_at_once(serve: Callable[..., Any]) -> None:
    server = serve(DOWN)

    async def fail() -> str:
        with pytest.raises(openai.InternalServerError):
            await asay(client)
        return ""

    async with openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=5) as plain:
        client = headway.wrap(plain)
        await at_once(fail, 100, 32)

    assert len(server.hits) <= 104


def test_successes_fill_the_budget_again(
    serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    serving = answer()
    failing = {"now": True}
    server = serve(lambda seen: DOWN if failing["now"] else serving(seen))
    client = wrapped(server, max_retries=1)
    for _ in range(5):
        with pytest.raises(openai.InternalServerError):
            say(client)
    # The SDK does not say which attempt is its last: a grant for that one is lost.
    assert 6 <= len(server.hits) <= 8

    failing["now"] = False
    for _ in range(20):
        say(client)
    failing["now"] = True
    before = len(server.hits)
    with pytest.raises(openai.InternalServerError):
        say(client)
    assert len(server.hits) - before == 2


def test_a_connection_refused_is_retried_by_the_sdk_within_the_budget(
    refused_url: str, plain: Callable[..., openai.OpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "openai._base_client.BaseClient._calculate_retry_timeout", lambda *_, **__: 0.001
    )
    client = headway.wrap(plain(refused_url, max_retries=1))

    with headway.task("t") as task:
        for _ in range(10):
            with pytest.raises(openai.APIConnectionError):
                say(client)

    assert task.calls == 10
    assert 11 <= task.attempts <= 13  # three tokens at the start, and nothing earned


@pytest.fixture
def at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "openai._base_client.BaseClient._calculate_retry_timeout", lambda *_, **__: 0.001
    )


def once_a_connection(seen: Seen) -> Step:
    """Answers the first request of each connection, and breaks it at the second."""
    met = once_a_connection.__dict__.setdefault("met", set())
    key = (seen.headers["host"], seen.connection)
    if key in met:
        return Close()
    met.add(key)
    return answer()(seen)


@pytest.mark.usefixtures("at_once_again")
@pytest.mark.parametrize("in_task", [False, True], ids=["light", "in a task"])
def test_old_connections_that_break_cost_nothing(
    in_task: bool, serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(once_a_connection)
    client = wrapped(server)

    with headway.task("t") if in_task else contextlib.nullcontext() as task:
        for _ in range(40):  # as the plain client: many more than the budget holds
            assert say(client) == "Hello"

    assert len(server.hits) == 79
    if task is not None:
        assert (task.calls, task.attempts) == (40, 79)


@pytest.mark.usefixtures("at_once_again")
def test_an_endpoint_that_breaks_every_connection_is_excused_once_per_call(
    serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(answer(), Close())
    client = wrapped(server, max_retries=5)
    assert say(client) == "Hello"

    for _ in range(10):
        with pytest.raises(openai.APIConnectionError):
            say(client)

    # One old connection, then what the budget and the breaker let through: no storm.
    assert len(server.hits) <= 1 + 10 + 4


def test_a_hint_of_the_server_is_waited_for_once(
    serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(R(429, error("slow down"), {"retry-after-ms": "1000"}), answer())
    client = wrapped(server, max_retries=2)
    began = time.monotonic()

    assert say(client) == "Hello"

    assert 1.0 <= time.monotonic() - began < 2.0
    assert len(server.hits) == 2


def test_tasks_deadlines_and_caps_hold_without_a_policy(
    serve: Callable[..., Any], wrapped: Callable[..., openai.OpenAI]
) -> None:
    server = serve(answer(10, 1, cost=0.01))
    client = wrapped(server)

    with headway.task("t", max_cost="0.02") as task:
        say(client)
        say(client)
        with pytest.raises(headway.TaskLimitExceeded) as caught:
            say(client)

    assert caught.value.reason == "max_cost"
    assert isinstance(caught.value, openai.APIStatusError)
    assert str(task.cost) == "0.02"
    assert len(server.hits) == 2


def test_a_scripts_environment_names_the_policy(
    serve: Callable[..., Any],
    plain: Callable[..., openai.OpenAI],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import json

    from tests.e2e.fleet import document

    own, other = serve(answer()), serve(answer())
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(document({"other": other.url})))
    monkeypatch.setenv("HEADWAY_POLICY", str(file))

    client = headway.wrap(plain(own.url))
    assert say(client) == "Hello"

    assert (len(own.hits), len(other.hits)) == (0, 1)
