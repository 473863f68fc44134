"""A token that doesn't come holds no call beyond its deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import anyio
import openai
import pytest

from headway.core.snapshot import DeadlinePolicy, Endpoint
from headway.credentials import Credential
from headway.errors import DeadlineExceeded
from tests.servers import OK, R, error
from tests.transport.hosts import Host, policy
from tests.transport.test_wrap_clients import made

__all__ = ["made"]
SOON = DeadlinePolicy(total_s=0.2)


@pytest.fixture
def token(kind: str, cleanup: ExitStack) -> Callable[[], Any]:
    """What gives a token once the test is over."""
    over = threading.Event()
    cleanup.callback(over.set)

    def wait() -> str:
        over.wait(30)
        return "late"

    async def await_() -> str:
        await anyio.sleep(30)
        return "late"

    return await_ if kind.startswith("async") else wait


def test_a_client_that_waits_for_its_token(
    token: Callable[[], Any],
    made: Callable[..., Any],
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    a, b = serve(R(503, error("down"))), serve(OK)
    origin = f"http://127.0.0.1:{b.port}"
    azure = made("AzureOpenAI", base_url=origin, api_version="v1", azure_ad_token_provider=token)
    endpoint = Endpoint(id="b", base_url=origin, dialect="azure", credential="entra")
    host = Host(policy({"a": a.url, "b": endpoint}, deadline=SOON), clients={"entra": azure})

    with pytest.raises(DeadlineExceeded):
        caller(a.url, host).chat()

    assert (len(a.hits), len(b.hits), host.in_flight) == (1, 0, 0)


def test_a_callable_that_is_awaited(
    token: Callable[[], Any], kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    if not kind.startswith("async"):
        pytest.skip("a plain callable can't be left alone")
    a = serve(OK)
    credential = Credential(acall=token, hosts=["127.0.0.1"])
    endpoint = Endpoint(id="a", base_url=a.url, credential="slow")
    host = Host(policy({"a": endpoint}, deadline=SOON), credentials={"slow": credential})

    with pytest.raises(DeadlineExceeded):
        caller(a.url, host).chat()

    assert (len(a.hits), host.in_flight) == (0, 0)


def test_a_client_signs_in_time_and_its_errors_are_told(
    made: Callable[..., Any],
    kind: str,
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    def none() -> str:
        raise RuntimeError("no token to be had")

    async def anone() -> str:
        return none()

    for given, answer in ((lambda: "t", "hello"), (none, None)):
        provider: Any = given
        if kind.startswith("async") and given is none:
            provider = anone
        a, b = serve(R(503, error("down"))), serve(OK)
        origin = f"http://127.0.0.1:{b.port}"
        azure = made(
            "AzureOpenAI", base_url=origin, api_version="v1", azure_ad_token_provider=provider
        )
        endpoint = Endpoint(id="b", base_url=origin, dialect="azure", credential="entra")
        late = DeadlinePolicy(total_s=30)
        host = Host(policy({"a": a.url, "b": endpoint}, deadline=late), clients={"entra": azure})
        client = caller(a.url, host)
        if answer is not None:
            assert client.chat().choices[0].message.content == answer
            assert b.hits[0].headers["authorization"] == "Bearer t"
        else:
            with pytest.raises(openai.APIError):
                client.chat()
            assert not b.hits
        client.run(azure.close())
