"""Clients of the SDK as endpoints: Azure, Bedrock and Vertex bring their own keys and signatures."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import openai
import openai.providers
import pytest

from headway.client import wrap
from headway.core.snapshot import Endpoint
from headway.errors import CredentialRefused, HeadwayError
from headway.router import Router
from headway.task import task
from tests.servers import DONE, FIN, OK, SSE, USAGE, R, Seen, Server, chunk, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, own, policy

DOWN = R(503, error("down"))
ANSWER = R(
    200,
    {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    },
)
WITH_VERTEX = hasattr(openai.providers, "vertex")


@pytest.fixture
def made(kind: str, cleanup: ExitStack) -> Callable[..., Any]:
    """Make a client of the test's colour and http library, to be an endpoint."""
    is_async = kind.startswith("async")

    def make(name: str = "OpenAI", **options: Any) -> Any:
        module = importlib.import_module(kind.partition("-")[2])
        http = (module.AsyncClient if is_async else module.Client)(timeout=10)
        client: Any = getattr(openai, f"Async{name}" if is_async else name)(
            http_client=http, **options
        )
        return client

    return make


def bedrock(server: Server, **auth: Any) -> Any:
    auth = auth or {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "secret"}
    return openai.providers.bedrock(
        region="us-east-1",
        base_url=f"http://127.0.0.1:{server.port}/openai/v1",
        **auth,
    )


def vertex(server: Server, token: Any) -> Any:
    return openai.providers.vertex(
        base_url=f"http://127.0.0.1:{server.port}/v1/publishers/openai/v1", token_provider=token
    )


def is_signed(seen: Seen) -> bool:
    """Whether a request carries a signature over this very body, made for this host."""
    signed = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/\d+/us-east-1/bedrock-mantle/aws4_request, "
        r"SignedHeaders=([a-z0-9;-]+), Signature=[0-9a-f]{64}",
        seen.headers["authorization"],
    )
    assert signed is not None
    assert "host" in signed[1].split(";")
    return seen.headers["x-amz-content-sha256"] == hashlib.sha256(seen.body).hexdigest()


def at(server: Server, path: str, **options: Any) -> Endpoint:
    return Endpoint(id="b", base_url=f"http://127.0.0.1:{server.port}{path}", **options)


# --------------------------------------------------------------------------- bedrock


@pytest.mark.parametrize("surface", ["chat", "responses"])
def test_bedrock_signs_the_request_that_is_sent_there(
    surface: str, made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    pytest.importorskip("botocore")
    a, b = serve(DOWN), serve(OK if surface == "chat" else ANSWER)
    client = made(provider=bedrock(b))
    endpoint = at(b, "/openai/v1", model="openai.gpt-oss-120b", credential="aws")
    host = Host(policy({"a": a.url, "b": endpoint}), clients={"aws": client})
    user = caller(
        a.url, host, organization="org-1", project="proj-1", default_headers={"cookie": "c=1"}
    )

    if surface == "chat":
        user.chat()
    else:
        user.run(user.client.responses.create(model="m", input="hi"))

    [seen] = b.hits
    assert seen.path.startswith("/openai/v1/")
    assert seen.json["model"] == "openai.gpt-oss-120b"
    assert is_signed(seen)
    assert not {"openai-organization", "openai-project", "cookie"} & set(seen.headers)
    assert "sk-own" not in str(seen.headers)
    assert a.hits[0].headers["openai-organization"] == "org-1"
    user.run(client.close())


def test_a_signed_request_never_takes_its_signature_elsewhere(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    pytest.importorskip("botocore")
    a, b = serve(DOWN), serve(OK)
    provider = bedrock(
        a, access_key_id="AKIDEXAMPLE", secret_access_key="s", session_token="SESSION"
    )
    user = caller("", Host(policy({"a": at_a(a), "b": b.url})), provider=provider)

    assert user.chat().choices[0].message.content == "hello"

    [first], [second] = a.hits, b.hits
    assert first.headers["x-amz-security-token"] == "SESSION"
    assert is_signed(first)
    assert not {n for n in second.headers if n.startswith(("x-amz", "auth"))}


def at_a(server: Server) -> Endpoint:
    return Endpoint(id="a", base_url=f"http://127.0.0.1:{server.port}/openai/v1")


def test_the_wrapped_clients_own_signature_is_renewed_where_something_changes(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    pytest.importorskip("botocore")
    a = serve(DOWN, OK)
    endpoint = Endpoint(
        id="a",
        base_url=f"http://127.0.0.1:{a.port}/openai/v1",
        model="other",
        headers={"x-guard": "on"},
        params_rename={"max_tokens": "max_completion_tokens"},
    )
    user = caller("", Host(policy({"a": endpoint})), provider=bedrock(a))

    user.chat(max_tokens=5)

    assert len(a.hits) == 2
    for seen in a.hits:
        assert is_signed(seen)
        assert (seen.json["model"], seen.json["max_completion_tokens"]) == ("other", 5)
        assert "x-guard" in seen.headers["authorization"]


def test_without_a_policy_a_signed_client_sends_what_it_signed(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    pytest.importorskip("botocore")
    a = serve(R(503, error("down"), {"retry-after-ms": "1"}), OK)
    base_url = f"http://127.0.0.1:{a.port}/openai/v1"
    host = Host(own(base_url))
    user = caller("", host, provider=bedrock(a))

    with task("count") as counted:
        user.chat()

    assert all(is_signed(seen) for seen in a.hits)
    assert counted.attempts == 2
    assert host.in_flight == 0


def test_asking_for_usage_renews_the_signature(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    pytest.importorskip("botocore")
    a = serve(SSE([chunk("hi"), FIN, USAGE, DONE]))
    host = Host(own(f"http://127.0.0.1:{a.port}/openai/v1"))
    user = caller("", host, provider=bedrock(a))

    with task("count"):
        assert user.text() == "hi"

    assert a.hits[0].json["stream_options"] == {"include_usage": True}
    assert is_signed(a.hits[0])


# --------------------------------------------------------------------------- vertex


@pytest.mark.skipif(not WITH_VERTEX, reason="this SDK has no Vertex client")
def test_vertex_asks_for_a_token_for_each_attempt(
    kind: str, made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    b = serve(DOWN, ANSWER)
    tokens = iter(["first", "second"])

    async def later() -> str:
        return next(tokens)

    provider = vertex(b, later if kind.startswith("async") else lambda: next(tokens))
    client = made(provider=provider)
    endpoint = at(b, "/v1/publishers/openai/v1", model="gpt-oss")
    host = Host(policy({"b": endpoint}), clients={"b": client})
    user = caller("http://127.0.0.1:9/v1", host, organization="org-1")

    user.run(user.client.responses.create(model="m", input="hi"))

    assert [seen.headers["authorization"] for seen in b.hits] == ["Bearer first", "Bearer second"]
    assert {seen.path for seen in b.hits} == {"/v1/publishers/openai/v1/responses"}
    assert "openai-organization" not in b.hits[0].headers
    user.run(client.close())


@pytest.mark.skipif(not WITH_VERTEX, reason="this SDK has no Vertex client")
def test_a_client_that_cannot_sign_leaves_the_call_to_others(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)

    def fail() -> str:
        raise RuntimeError("the secret is 12345")

    client = made(provider=vertex(b, fail))
    endpoint = at(b, "/v1/publishers/openai/v1", credential="gcp")
    host = Host(policy({"b": endpoint, "a": a.url}), clients={"gcp": client})
    user = caller(a.url, host)

    assert user.raw().headers["x-headway-endpoint"] == "a"
    alone = caller(a.url, Host(policy({"b": endpoint}), clients={"gcp": client}))
    with pytest.raises(CredentialRefused) as caught:
        alone.chat()

    assert "client 'gcp' could not sign the request" in str(caught.value)
    assert "12345" not in str(caught.value)
    assert not b.hits
    user.run(client.close())


# --------------------------------------------------------------------------- azure, openai


def test_an_azure_client_is_an_endpoint_with_its_own_token_and_version(
    kind: str, made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(OK)
    tokens = iter(["entra-1", "entra-2"])

    async def later() -> str:
        return next(tokens)

    azure = made(
        "AzureOpenAI",
        azure_endpoint=f"http://127.0.0.1:{b.port}",
        api_version="2025-04-01-preview",
        azure_ad_token_provider=later if kind.startswith("async") else lambda: next(tokens),
        default_headers={"x-team": "blue"},
    )
    endpoint = at(b, "", dialect="azure", model="gpt east", credential="east")
    user = caller(a.url, Host(policy({"a": a.url, "b": endpoint}), clients={"east": azure}))

    user.chat(extra_headers={"x-trace": "t"}, extra_query={"q": "1"})
    user.run(user.client.embeddings.create(model="m", input="x", encoding_format="float"))

    first, second = b.hits
    assert first.path == (
        "/openai/deployments/gpt%20east/chat/completions?q=1&api-version=2025-04-01-preview"
    )
    assert first.headers["authorization"] == "Bearer entra-1"
    assert second.headers["authorization"] == "Bearer entra-2"
    assert (first.headers["x-team"], first.headers["x-trace"]) == ("blue", "t")
    assert "api-key" not in first.headers
    user.run(azure.close())


def test_an_openai_client_is_an_endpoint_with_its_own_organisation(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(OK)
    other = made(base_url=b.url, api_key="sk-b", organization="org-b")
    host = Host(policy({"a": a.url, "b": b.url}), clients={"b": other})
    user = caller(a.url, host, organization="org-a", project="proj-a")

    user.chat()

    [seen] = b.hits
    assert seen.headers["authorization"] == "Bearer sk-b"
    assert seen.headers["openai-organization"] == "org-b"
    assert "openai-project" not in seen.headers
    assert seen.headers["x-stainless-retry-count"] == "0"
    user.run(other.close())


def test_an_endpoints_own_http_client_carries_its_requests(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    module = importlib.import_module(kind.partition("-")[2])
    a = serve(DOWN)
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        seen.append(request)
        return module.Response(200, json=OK.body)

    is_async = kind.startswith("async")
    http = (module.AsyncClient if is_async else module.Client)(
        transport=module.MockTransport(answer)
    )
    cls = openai.AsyncOpenAI if is_async else openai.OpenAI
    other: Any = cls(base_url="https://b.example/v1", api_key="sk-b", http_client=http)
    endpoint = Endpoint(id="b", base_url="https://b.example/v1")
    user = caller(a.url, Host(policy({"a": a.url, "b": endpoint}), clients={"b": other}))

    assert user.chat().choices[0].message.content == "hello"
    assert str(seen[0].url) == "https://b.example/v1/chat/completions"
    user.run(user.client.close())
    assert not other.is_closed(), "closing the user's client leaves the endpoints' alone"
    user.run(other.close())


def test_objects_are_asked_for_with_the_clients_signature(
    made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(ANSWER)
    other = made(base_url=b.url, api_key="sk-b")
    user = caller(a.url, Host(policy({"a": a.url, "b": b.url}), clients={"b": other}))

    user.run(user.client.responses.create(model="m", input="x"))
    user.run(user.client.responses.retrieve("resp_1"))

    assert [seen.headers["authorization"] for seen in b.hits] == ["Bearer sk-b"] * 2
    user.run(other.close())


# --------------------------------------------------------------------------- refusals


def test_a_client_signs_for_its_own_host_and_colour_alone(
    kind: str, made: Callable[..., Any], serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    astray = made(base_url="http://127.0.0.1:9/v1", api_key="sk-b")
    cls: Any = openai.OpenAI if kind.startswith("async") else openai.AsyncOpenAI
    module = importlib.import_module(kind.partition("-")[2])
    http = (module.Client if kind.startswith("async") else module.AsyncClient)()
    other_colour = cls(base_url=b.url, api_key="sk-b", http_client=http)

    for client, why in ((astray, "is for http://127.0.0.1:9/v1"), (other_colour, "beside it")):
        user = caller(a.url, Host(policy({"b": b.url}), clients={"b": client}))
        with pytest.raises(CredentialRefused, match=why):
            user.chat()
    assert not b.hits


def test_a_policy_may_name_clients_and_send_them_to_their_own_hosts_only() -> None:
    document = {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {"b": {"base_url": "https://b.example/v1", "credential": "east"}},
        "routes": [{"weights": {"b": 1}}],
    }
    east = openai.OpenAI(base_url="https://b.example/v1", api_key="k")
    Router(document, clients={"east": east}).close()
    elsewhere = openai.OpenAI(base_url="https://c.example/v1", api_key="k")
    with pytest.raises(HeadwayError, match="credential"):
        Router(document, clients={"east": elsewhere})


def test_what_is_no_client_is_refused_when_it_is_declared() -> None:
    client = openai.OpenAI(api_key="k")
    for clients, why in (
        ({"x": "sk-key"}, "takes a client"),
        ({"x": []}, "is empty"),
        ({"x": [client, client]}, "two of one colour"),
    ):
        with pytest.raises(HeadwayError, match=why) as caught:
            Router(own("https://x.example/v1"), clients=clients)
        assert "sk-key" not in str(caught.value)


def test_sync_and_async_clients_of_one_endpoint_share_a_router(serve: Callable[..., Any]) -> None:
    import asyncio

    b = serve(OK)
    both = [
        openai.OpenAI(base_url=b.url, api_key="sync"),
        openai.AsyncOpenAI(base_url=b.url, api_key="async"),
    ]
    router = Host(policy({"b": b.url}), clients={"b": both})
    user = wrap(openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="u"), router=router)

    async def call() -> None:
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="u") as plain:
            await wrap(plain, router=router).chat.completions.create(model="m", messages=MESSAGES)
        await both[1].close()

    user.chat.completions.create(model="m", messages=MESSAGES)
    asyncio.run(call())

    assert [s.headers["authorization"] for s in b.hits] == ["Bearer sync", "Bearer async"]
    user.close()
    both[0].close()
