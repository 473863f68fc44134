"""Keys, cookies and whatever names the user go to the origin they were meant for only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.core.snapshot import Endpoint
from headway.credentials import Credential
from headway.errors import CredentialRefused
from tests.servers import OK, R, Server, error
from tests.transport.hosts import Host, policy

CANARY = "sk-canary-0001"
PERSONAL = {
    "OpenAI-Organization": CANARY,
    "OpenAI-Project": CANARY,
    "Cookie": f"session={CANARY}",
    "X-Api-Key": CANARY,
    "X-Tenant": CANARY,
    "Proxy-Authorization": f"Bearer {CANARY}",
    "X-Custom": f"Bearer {CANARY}",
    "X-Plain-Looking": CANARY,
}


def seen_everywhere(server: Server) -> bytes:
    return b"".join(seen.raw_head + seen.body for seen in server.hits)


def test_nothing_personal_crosses_to_another_origin(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("down"))), serve(OK)
    host = Host(policy({"a": a.url, "b": b.url}))
    client = caller(
        a.url,
        host,
        api_key=CANARY,
        organization=CANARY,
        project=CANARY,
        default_headers={**PERSONAL, "X-Trace": "t1", "Idempotency-Key": "once"},
    )

    client.chat(extra_headers={"X-Session-Token": "shh"})

    assert a.hits[0].headers["authorization"] == f"Bearer {CANARY}"
    assert a.hits[0].headers["x-session-token"] == "shh"
    assert CANARY.encode() not in seen_everywhere(b)
    assert b"shh" not in seen_everywhere(b)
    assert "authorization" not in b.hits[0].headers
    assert b.hits[0].headers["host"] == f"127.0.0.1:{b.port}"
    assert b.hits[0].headers["x-trace"] == "t1"
    assert b.hits[0].headers["idempotency-key"] == "once"


def test_the_clients_own_key_serves_another_path_of_its_own_host(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    client = caller(a.url, Host(policy({"a": f"http://127.0.0.1:{a.port}/other/v1"})))

    client.chat()

    assert a.hits[0].path == "/other/v1/chat/completions"
    assert a.hits[0].headers["authorization"] == "Bearer sk-own"


@pytest.mark.parametrize(
    ("dialect", "header", "expected"),
    [
        ("openai", None, ("authorization", "Bearer sk-b")),
        ("azure", None, ("api-key", "sk-b")),
        ("azure", "Authorization", ("authorization", "Bearer sk-b")),
        ("openai", "X-Goog-Api-Key", ("x-goog-api-key", "sk-b")),
    ],
)
def test_a_declared_credential_replaces_the_clients_own(
    dialect: str,
    header: str | None,
    expected: tuple[str, str],
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    a, b = serve(OK), serve(OK)
    endpoint = Endpoint(
        id="b",
        base_url=b.url if dialect == "openai" else f"http://127.0.0.1:{b.port}",
        dialect=dialect,
        api_version="2025-04-01-preview" if dialect == "azure" else None,
        credential="b",
        model="deployed",
    )
    key = Credential(value="sk-b", hosts=["127.0.0.1"], header=header)
    client = caller(a.url, Host(policy({"b": endpoint}), credentials={"b": key}))

    client.chat(model="asked")

    [hit] = b.hits
    carried = [h for h in ("authorization", "api-key", "x-goog-api-key") if h in hit.headers]
    assert carried == [expected[0]]
    assert hit.headers[expected[0]] == expected[1]
    assert b"sk-own" not in hit.raw_head
    assert hit.json["model"] == "deployed"
    if dialect == "azure":
        assert hit.path == (
            "/openai/deployments/deployed/chat/completions?api-version=2025-04-01-preview"
        )
    else:
        assert hit.path == "/v1/chat/completions"


@pytest.mark.parametrize("why", ["undeclared", "other host", "unset"])
def test_an_endpoint_whose_key_can_not_go_there_is_not_asked(
    why: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    endpoint = Endpoint(id="b", base_url=b.url, credential="b")
    keys = {
        "undeclared": {},
        "other host": {"b": Credential(value="sk-b", hosts=["api.example.com"])},
        "unset": {"b": Credential(env="HEADWAY_TEST_UNSET", hosts=["127.0.0.1"])},
    }[why]
    client = caller(a.url, Host(policy({"b": endpoint, "a": a.url}), credentials=keys))

    client.chat()

    assert not b.hits
    assert len(a.hits) == 1


def test_without_another_endpoint_the_refused_key_is_the_error(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    endpoint = Endpoint(id="b", base_url=b.url, credential="b")
    client = caller(a.url, Host(policy({"b": endpoint})))

    with pytest.raises(CredentialRefused, match=r"'b' was not asked.*not declared") as caught:
        client.chat()

    assert isinstance(caught.value, openai.APIConnectionError)
    assert not b.hits


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_error_that_names_the_base_url(
    status: int, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    thief = serve(OK)
    a = serve(R(status, b"", {"location": f"{thief.url}/chat/completions"}))
    client = caller(a.url, Host(policy({"a": a.url})), api_key=CANARY)

    with pytest.raises(openai.APIStatusError, match="correct the endpoint's base_url") as caught:
        client.chat()

    assert caught.value.status_code == status
    assert not thief.hits


def test_endpoint_headers_and_params_apply_to_that_endpoint_only(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("down"))), serve(OK)
    endpoint = Endpoint(
        id="b",
        base_url=b.url,
        model="llama",
        headers={"X-Title": "headway"},
        params_drop=("logprobs",),
        params_rename={"max_tokens": "max_completion_tokens"},
        params_set={"seed": 7},
    )
    client = caller(a.url, Host(policy({"a": a.url, "b": endpoint})))

    client.chat(max_tokens=5, logprobs=True)

    assert a.hits[0].json["max_tokens"] == 5
    assert "x-title" not in a.hits[0].headers
    sent = b.hits[0].json
    assert sent["model"] == "llama"
    assert sent["max_completion_tokens"] == 5
    assert sent["seed"] == 7
    assert "max_tokens" not in sent
    assert "logprobs" not in sent
    assert b.hits[0].headers["x-title"] == "headway"
