"""Azure's URLs, versions and keys; what an endpoint wants changed; what never leaves home."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.client import wrap
from headway.core.snapshot import Endpoint
from headway.credentials import Credential
from tests.servers import OK, R, Server, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, own, policy

DOWN = R(503, error("down"))
EMBEDDED = R(200, {"object": "list", "model": "m", "data": [{"embedding": [0.5], "index": 0}]})
VERSION = "2025-04-01-preview"


class Azure:
    """A wrapped Azure client of the test's colour and http library."""

    def __init__(self, kind: str, host: Any, **options: Any) -> None:
        module = importlib.import_module(kind.partition("-")[2])
        self.is_async = kind.startswith("async")
        self._host, self._options, self._module = host, options, module

    def calls(self, *calls: Callable[[Any], Any]) -> list[Any]:
        """Make the calls with one client, and close it."""
        if not self.is_async:
            with wrap(self._client("AzureOpenAI", "Client"), router=self._host) as client:
                return [call(client) for call in calls]

        async def make() -> list[Any]:
            plain = self._client("AsyncAzureOpenAI", "AsyncClient")
            async with wrap(plain, router=self._host) as client:
                return [await call(client) for call in calls]

        import asyncio

        return asyncio.run(make())

    def _client(self, name: str, http: str) -> Any:
        options = {"api_version": VERSION, "http_client": getattr(self._module, http)(timeout=10)}
        return getattr(openai, name)(**{**options, **self._options})


def root(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def azure_at(server: Server, name: str = "b", path: str = "", **options: Any) -> Endpoint:
    options = {"dialect": "azure", **options}
    return Endpoint(id=name, base_url=root(server) + path, **options)


def key(server: Server, value: str = "az-b", **options: Any) -> Credential:
    return Credential(value=value, hosts=[root(server)], **options)


def chat(client: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES)


def embed(client: Any) -> Any:
    return client.embeddings.create(model="m", input="x", encoding_format="float")


def respond(client: Any) -> Any:
    return client.responses.with_raw_response.create(model="m", input="x")


# --------------------------------------------------------------------------- to azure


@pytest.mark.parametrize(
    ("path", "version", "chats", "responds"),
    [
        (
            "",
            VERSION,
            f"/openai/deployments/m/chat/completions?api-version={VERSION}",
            f"/openai/responses?api-version={VERSION}",
        ),
        ("/openai/v1", None, "/openai/v1/chat/completions", "/openai/v1/responses"),
        (
            "/openai/v1/",
            "preview",
            "/openai/v1/chat/completions?api-version=preview",
            "/openai/v1/responses?api-version=preview",
        ),
        (
            "/openai/deployments/gpt",
            VERSION,
            f"/openai/deployments/gpt/chat/completions?api-version={VERSION}",
            None,
        ),
        (
            "/proxy/openai",
            VERSION,
            f"/proxy/openai/deployments/m/chat/completions?api-version={VERSION}",
            f"/proxy/openai/responses?api-version={VERSION}",
        ),
    ],
)
def test_each_of_azures_paths_is_found(
    path: str,
    version: str | None,
    chats: str,
    responds: str | None,
    serve: Callable[..., Any],
    caller: Callable[..., Any],
) -> None:
    b = serve(OK)
    endpoint = azure_at(b, path=path, api_version=version, credential="az")
    host = Host(policy({"b": endpoint}), credentials={"az": key(b)})
    user = caller("http://127.0.0.1:9/v1", host)

    user.chat()
    if responds is not None:
        user.run(respond(user.client))

    assert [seen.path for seen in b.hits] == [chats, *([responds] if responds else [])]
    assert {seen.headers["api-key"] for seen in b.hits} == {"az-b"}
    assert not any("authorization" in seen.headers for seen in b.hits)
    assert b.hits[0].json["model"] == "m"


def test_an_entra_token_is_asked_for_anew_and_sent_as_a_bearer(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    b = serve(DOWN, OK)
    tokens = iter(["t1", "t2"])

    async def later() -> str:
        return next(tokens)

    given: Any = {"acall": later} if kind.startswith("async") else {"call": lambda: next(tokens)}
    entra = Credential(hosts=[root(b)], header="Authorization", **given)
    endpoint = azure_at(b, api_version=VERSION, credential="entra")
    user = caller(
        "http://127.0.0.1:9/v1", Host(policy({"b": endpoint}), credentials={"entra": entra})
    )

    user.chat()

    assert [seen.headers["authorization"] for seen in b.hits] == ["Bearer t1", "Bearer t2"]
    assert not any("api-key" in seen.headers for seen in b.hits)


# --------------------------------------------------------------------------- from azure


@pytest.mark.parametrize("auth", ["key", "token"])
@pytest.mark.parametrize("deployment", [None, "gpt"])
def test_an_azure_client_sends_what_it_would_send_and_fails_over(
    deployment: str | None, auth: str, kind: str, serve: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(OK)
    openai_like = Endpoint(id="b", base_url=b.url, model="gpt-5", credential="b")
    host = Host(
        policy({"a": azure_at(a, "a"), "b": openai_like}), credentials={"b": key(b, "sk-b")}
    )
    options: dict[str, Any] = {"azure_endpoint": root(a), "azure_deployment": deployment}
    if auth == "key":
        options["api_key"] = "az-a"
    else:
        options["azure_ad_token_provider"] = lambda: "entra-a"

    Azure(kind, host, **options).calls(chat, respond)

    assert [seen.path for seen in a.hits] == [
        f"/openai/deployments/{deployment or 'm'}/chat/completions?api-version={VERSION}",
        f"/openai/responses?api-version={VERSION}",
    ]
    assert [seen.path for seen in b.hits] == ["/v1/chat/completions", "/v1/responses"]
    assert {seen.json["model"] for seen in b.hits} == {"gpt-5"}
    for first, second in zip(a.hits, b.hits, strict=True):
        sent = {"api-key": "az-a"} if auth == "key" else {"authorization": "Bearer entra-a"}
        assert {n: first.headers[n] for n in sent} == sent
        assert second.headers["authorization"] == "Bearer sk-b"
        assert "api-key" not in second.headers
    assert host.in_flight == 0


def test_an_azure_client_reaches_its_other_deployments_with_its_own_key(
    kind: str, serve: Callable[..., Any]
) -> None:
    a = serve(OK, EMBEDDED)
    host = Host(policy({"a": azure_at(a, "a", model="gpt-east", api_version="2026-01-01")}))

    Azure(kind, host, azure_endpoint=root(a), api_key="az-a").calls(chat, embed)

    assert [seen.path for seen in a.hits] == [
        "/openai/deployments/gpt-east/chat/completions?api-version=2026-01-01",
        "/openai/deployments/gpt-east/embeddings?api-version=2026-01-01",
    ]
    assert {seen.headers["api-key"] for seen in a.hits} == {"az-a"}


def test_an_azure_client_fails_over_to_the_newer_api_of_another_resource(
    kind: str, serve: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(OK)
    v1 = azure_at(b, path="/openai/v1", credential="b")
    host = Host(policy({"a": azure_at(a, "a"), "b": v1}), credentials={"b": key(b)})

    Azure(kind, host, azure_endpoint=root(a), api_key="az-a").calls(chat)

    [seen] = b.hits
    assert seen.path == "/openai/v1/chat/completions"
    assert seen.headers["api-key"] == "az-b"


@pytest.mark.parametrize("deployment", [None, "gpt"])
def test_without_a_policy_an_azure_client_keeps_its_requests(
    deployment: str | None, kind: str, serve: Callable[..., Any]
) -> None:
    a = serve(OK)
    path = "/openai/" if deployment is None else f"/openai/deployments/{deployment}/"
    host = Host(own(root(a) + path))
    options = {"azure_endpoint": root(a), "azure_deployment": deployment, "api_key": "az-a"}

    Azure(kind, host, **options).calls(chat, respond)

    assert [record.facts.surface for record in host.records] == ["chat", "responses"]
    assert [seen.path for seen in a.hits] == [
        f"/openai/deployments/{deployment or 'm'}/chat/completions?api-version={VERSION}",
        f"/openai/responses?api-version={VERSION}",
    ]


# --------------------------------------------------------------------------- params, headers


def test_an_endpoint_gets_its_own_parameters_and_headers(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(DOWN), serve(OK)
    endpoint = Endpoint(
        id="b",
        base_url=b.url,
        headers={"x-tenant": "blue", "x-mine": "theirs"},
        params_drop=("logit_bias", "unheard_of"),
        params_rename={"max_tokens": "max_completion_tokens", "user": "safety_identifier"},
        params_set={"service_tier": "flex", "metadata": {"via": "headway"}},
    )
    user = caller(a.url, Host(policy({"a": a.url, "b": endpoint})))

    user.chat(
        max_tokens=5,
        user="u-1",
        logit_bias={"1": 2},
        temperature=0.25,
        service_tier="auto",
        extra_headers={"x-mine": "ours"},
    )

    plain, changed = a.hits[0].json, b.hits[0].json
    assert (plain["max_tokens"], plain["user"], plain["logit_bias"]) == (5, "u-1", {"1": 2})
    assert changed == {
        "model": "m",
        "messages": MESSAGES,
        "max_completion_tokens": 5,
        "safety_identifier": "u-1",
        "temperature": 0.25,
        "service_tier": "flex",
        "metadata": {"via": "headway"},
    }
    assert (b.hits[0].headers["x-tenant"], b.hits[0].headers["x-mine"]) == ("blue", "theirs")
    assert a.hits[0].headers["x-mine"] == "ours"
    assert "x-tenant" not in a.hits[0].headers


def test_a_parameter_that_stands_there_already_is_not_overwritten_by_a_rename(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    endpoint = Endpoint(
        id="a", base_url=a.url, params_rename={"max_tokens": "max_completion_tokens"}
    )
    user = caller(a.url, Host(policy({"a": endpoint})))

    user.chat(max_tokens=5, max_completion_tokens=7)

    assert a.hits[0].json["max_completion_tokens"] == 7
    assert "max_tokens" not in a.hits[0].json


@pytest.mark.parametrize("surface", ["chat", "embeddings", "responses", "speech", "images"])
def test_organisation_and_project_stay_with_the_host_they_are_for(
    surface: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "chat": chat,
        "embeddings": embed,
        "responses": respond,
        "speech": lambda c: c.audio.speech.create(model="m", input="x", voice="alloy"),
        "images": lambda c: c.images.edit(model="m", image=b"x", prompt="x"),
    }
    answers = {"embeddings": EMBEDDED, "images": R(200, {"created": 1, "data": []})}
    a, b = serve(DOWN), serve(answers.get(surface, OK))
    host = Host(policy({"a": a.url, "b": b.url}))
    user = caller(a.url, host, organization="org-1", project="proj-1")

    user.run(calls[surface](user.client))

    personal = {"openai-organization", "openai-project", "authorization"}
    assert personal <= set(a.hits[0].headers)
    assert not personal & set(b.hits[0].headers)
