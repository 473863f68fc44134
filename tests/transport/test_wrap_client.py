"""`wrap`: the same class, the same client underneath, and clear words for what can't be wrapped."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.client import wrap
from headway.errors import HeadwayError, WrapError
from tests.servers import OK, R, completion, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, own, policy

URL = "http://127.0.0.1:9/v1"
LIBRARYS_ERROR = (RuntimeError, openai.APIConnectionError)
"""What using a closed client raises; openai 2 turns the first into the second."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: openai.OpenAI(api_key="k", base_url=URL),
        lambda: openai.AsyncOpenAI(api_key="k", base_url=URL),
        lambda: openai.AzureOpenAI(api_key="k", azure_endpoint="http://x", api_version="v"),
        lambda: openai.AsyncAzureOpenAI(api_key="k", azure_endpoint="http://x", api_version="v"),
    ],
)
def test_the_class_and_the_settings_stay(make: Callable[[], Any]) -> None:
    client = make()
    wrapped = wrap(client, router=Host(own(URL)))

    assert type(wrapped) is type(client)
    assert repr(wrapped.__class__) == repr(client.__class__)
    assert isinstance(wrapped._client, type(client._client))
    assert wrapped.max_retries == client.max_retries
    assert wrapped.timeout == client.timeout
    assert wrapped.base_url == client.base_url
    assert wrapped.auth_headers == client.auth_headers
    assert wrapped._strict_response_validation == client._strict_response_validation
    assert wrapped._client is not client._client


def test_what_can_not_be_wrapped_is_said_at_once() -> None:
    client = openai.OpenAI(api_key="k", base_url=URL)
    wrapped = wrap(client, router=Host(own(URL)))
    for wrong, words in (
        (object(), "not object"),
        ("https://api.openai.com", "not str"),
        (wrapped, "wrapped already"),
        (wrapped.with_options(timeout=3), "wrapped already"),
    ):
        with pytest.raises(WrapError, match=words) as caught:
            wrap(wrong)  # type: ignore[type-var]
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, HeadwayError)

    client.close()
    with pytest.raises(WrapError, match="closed"):
        wrap(client, router=Host(own(URL)))


def test_closing_either_closes_both_and_use_after_it_is_the_librarys_error(
    serve: Callable[..., Any],
) -> None:
    a = serve(OK)
    client = openai.OpenAI(api_key="k", base_url=a.url)
    wrapped = wrap(client, router=Host(policy({"a": a.url})))
    wrapped.chat.completions.create(model="m", messages=MESSAGES)

    wrapped.close()

    assert client.is_closed()
    assert wrapped.is_closed()
    with pytest.raises(LIBRARYS_ERROR):
        wrapped.chat.completions.create(model="m", messages=MESSAGES)

    client = openai.OpenAI(api_key="k", base_url=a.url)
    wrapped = wrap(client, router=Host(policy({"a": a.url})))
    client.close()
    assert wrapped.is_closed()
    with pytest.raises(LIBRARYS_ERROR):
        wrapped.chat.completions.create(model="m", messages=MESSAGES)
    assert len(a.hits) == 1


def test_collecting_the_wrapped_client_leaves_the_original_usable(
    serve: Callable[..., Any],
) -> None:
    a = serve(OK)
    client = openai.OpenAI(api_key="k", base_url=a.url)
    wrap(client, router=Host(policy({"a": a.url})))
    gc.collect()

    assert client.chat.completions.create(model="m", messages=MESSAGES).id
    client.close()


def test_what_the_user_set_up_below_is_still_there(kind: str, serve: Callable[..., Any]) -> None:
    if kind.startswith("async"):
        pytest.skip("the clone is made the same way")
    module = importlib.import_module(kind.partition("-")[2])
    a = serve(OK)
    seen: list[str] = []
    mounted: list[str] = []

    class Mounted(module.HTTPTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            mounted.append(str(request.url))
            return super().handle_request(request)

    http = module.Client(
        mounts={"http://127.0.0.1": Mounted()},
        event_hooks={"request": [lambda r: seen.append("request")], "response": []},
        cookies={"c": "1"},
        headers={"x-mine": "yes"},
        auth=("user", "pass"),
    )
    client = openai.OpenAI(api_key="k", base_url=a.url, http_client=http)
    with wrap(client, router=Host(own(a.url))) as wrapped:
        wrapped.chat.completions.create(model="m", messages=MESSAGES)

    assert seen == ["request"]
    assert len(mounted) == 1
    assert a.hits[0].headers["cookie"] == "c=1"
    assert a.hits[0].headers["x-mine"] == "yes"


def test_copies_share_the_routing(serve: Callable[..., Any], caller: Callable[..., Any]) -> None:
    a, b = serve(R(503, error("down"))), serve(OK)
    host = Host(policy({"a": a.url, "b": b.url}))
    client = caller(a.url, host)

    copy = client.client.with_options(timeout=3, default_headers={"x-copy": "1"})
    client.run(copy.chat.completions.create(model="m", messages=MESSAGES))

    assert b.hits[0].headers["x-copy"] == "1"
    assert len(host.records) == 1


def test_threads_share_one_client(serve: Callable[..., Any]) -> None:
    a, b = serve(R(503, error("down"))), serve(OK)
    host = Host(policy({"a": a.url, "b": b.url}))
    failures: list[BaseException] = []
    with wrap(openai.OpenAI(api_key="k", base_url=a.url), router=host) as client:

        def work() -> None:
            try:
                for _ in range(5):
                    client.chat.completions.create(model="m", messages=MESSAGES)
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert not failures
    assert len(b.hits) == 40
    assert host.in_flight == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a loop that ended left its keep-alives
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_serves_one_loop_after_another(serve: Callable[..., Any]) -> None:
    a = serve(OK)

    def life() -> None:
        host = Host(policy({"a": a.url}))
        client = wrap(openai.AsyncOpenAI(api_key="k", base_url=a.url), router=host)

        async def use() -> str:
            reply = await client.chat.completions.create(model="m", messages=MESSAGES)
            return str(reply.choices[0].message.content)

        for _ in range(4):
            assert asyncio.run(use()) == "hello"
        asyncio.run(client.close())
        assert client.is_closed()

    life()
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_serves_several_loops_at_once(serve: Callable[..., Any]) -> None:
    a = serve(R(200, completion(), delay=0.1))
    failures: list[BaseException] = []

    def life() -> None:
        host = Host(policy({"a": a.url}))
        client = wrap(openai.AsyncOpenAI(api_key="k", base_url=a.url), router=host)

        async def use() -> None:
            for _ in range(3):
                await client.chat.completions.create(model="m", messages=MESSAGES)

        def work() -> None:
            try:
                asyncio.run(use())
            except BaseException as exc:
                failures.append(exc)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    life()
    gc.collect()
    assert not failures
    assert len(a.hits) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_its_own_connection(serve: Callable[..., Any]) -> None:
    a = serve(OK)
    host = Host(policy({"a": a.url}))
    client = wrap(openai.OpenAI(api_key="k", base_url=a.url), router=host)
    client.chat.completions.create(model="m", messages=MESSAGES)
    assert a.connections == 1

    pid = os.fork()
    if pid == 0:
        try:
            client.chat.completions.create(model="m", messages=MESSAGES)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    client.chat.completions.create(model="m", messages=MESSAGES)

    assert status == 0
    assert [seen.connection for seen in a.hits] == [1, 2, 1]
    client.close()


def test_the_module_client_is_wrapped_in_place(serve: Callable[..., Any]) -> None:
    a = serve(OK)
    host = Host(policy({"a": a.url}))
    openai.api_key, openai.base_url = "k", f"{a.url}/"
    try:
        assert wrap(openai, router=host) is openai
        openai.chat.completions.create(model="m", messages=MESSAGES)
        assert len(host.records) == 1
    finally:
        openai._client.close()  # type: ignore[attr-defined]
        openai._client = None  # type: ignore[attr-defined]
        openai.api_key = openai.base_url = openai.http_client = None


# --------------------------------------------------------------------------- azure


def test_an_azure_client_keeps_its_urls_and_its_key(serve: Callable[..., Any]) -> None:
    a = serve(OK)
    with wrap(
        openai.AzureOpenAI(
            api_key="az-key", azure_endpoint=f"http://127.0.0.1:{a.port}", api_version="2025-01-01"
        ),
        router=Host(own(f"http://127.0.0.1:{a.port}/openai/")),
    ) as client:
        client.chat.completions.create(model="gpt", messages=MESSAGES)

    [hit] = a.hits
    assert hit.path == "/openai/deployments/gpt/chat/completions?api-version=2025-01-01"
    assert hit.headers["api-key"] == "az-key"


def test_an_azure_client_fails_over_to_another_vendor_and_back(
    serve: Callable[..., Any],
) -> None:
    from headway.core.snapshot import Endpoint

    a, b, c = serve(R(503, error("down"))), serve(R(503, error("down"))), serve(OK)
    root = f"http://127.0.0.1:{a.port}"
    snapshot = policy(
        {
            "east": Endpoint(id="east", base_url=root, dialect="azure", model="dep-east"),
            "vllm": Endpoint(id="vllm", base_url=b.url, model="llama"),
            "west": Endpoint(
                id="west",
                base_url=f"http://127.0.0.1:{c.port}/openai",
                dialect="azure",
                api_version="2025-02-02",
                model="dep west",
            ),
        }
    )
    with wrap(
        openai.AzureOpenAI(api_key="az-key", azure_endpoint=root, api_version="2025-01-01"),
        router=Host(snapshot),
    ) as client:
        client.chat.completions.create(model="gpt", messages=MESSAGES)

    assert a.hits[0].path == "/openai/deployments/dep-east/chat/completions?api-version=2025-01-01"
    assert a.hits[0].json["model"] == "dep-east"
    assert b.hits[0].path == "/v1/chat/completions"
    assert b.hits[0].json["model"] == "llama"
    assert "api-key" not in b.hits[0].headers
    assert c.hits[0].path == (
        "/openai/deployments/dep%20west/chat/completions?api-version=2025-02-02"
    )
    assert "api-key" not in c.hits[0].headers


# --------------------------------------------------------------------------- sharing


def test_clients_with_the_same_policy_share_a_router(
    tmp_path: Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("headway.router")
    a = serve(OK)
    path = tmp_path / "policy.json"
    document = {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {"a": {"base_url": a.url}},
        "routes": [{"weights": {"a": 1}}],
    }
    path.write_text(json.dumps(document))

    def client(base_url: str = URL) -> Any:
        return openai.OpenAI(api_key="k", base_url=base_url)

    def router(wrapped: Any) -> Any:
        return wrapped._client._transport.host

    one, two = wrap(client(), str(path)), wrap(client(), str(path))
    assert router(one) is router(two)
    assert router(wrap(client(), str(path), mode="observe")) is not router(one)
    assert router(wrap(client())) is router(wrap(client()))
    assert router(wrap(client())) is not router(wrap(client("http://127.0.0.1:8/v1")))
    monkeypatch.setenv("HEADWAY_POLICY", str(path))
    assert router(wrap(client())) is router(one)
    monkeypatch.delenv("HEADWAY_POLICY")
    monkeypatch.chdir(tmp_path)
    assert router(wrap(client(), "policy.json")) is router(wrap(client(), path)) is router(one)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "policy.json").write_text(json.dumps({**document, "version": 2}))
    monkeypatch.chdir(tmp_path / "other")
    other = wrap(client(), "policy.json")
    assert router(other) is not router(one)
    assert router(other).engine.snapshot.version == 2
    monkeypatch.setenv("HEADWAY_POLICY", str(path))
    with pytest.raises(WrapError, match="zone"):
        wrap(client(), router(one), zone="x")
    one.chat.completions.create(model="m", messages=MESSAGES)
    one.close()
    assert len(a.hits) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [("polcy", "did you mean 'policy'"), ("credential", "'credentials'"), ("xyz", "it takes")],
)
def test_a_typo_in_a_keyword_is_told_with_what_was_meant(name: str, hint: str) -> None:
    options: Any = {name: "policy.json"}
    with pytest.raises(TypeError, match=f"'{name}': .*{hint}") as caught:
        wrap(openai.OpenAI(api_key="k", base_url=URL), **options)
    assert "Router" not in str(caught.value)


def test_a_router_and_what_would_make_another_are_not_given_together() -> None:
    client, router = openai.OpenAI(api_key="k", base_url=URL), Host(own(URL))

    with pytest.raises(WrapError, match="policy, mode can only be set where it is made"):
        wrap(client, "policy.json", router=router, mode="observe")


@pytest.mark.skipif(openai.__version__ < "3", reason="needs another package on openai 2")
def test_aiohttp_carries_an_async_client_s_calls_when_asked(serve: Callable[..., Any]) -> None:
    a = serve(OK)
    plain = openai.AsyncOpenAI(api_key="k", base_url=a.url)
    wrapped = wrap(plain, router=Host(own(a.url)), transport="aiohttp")

    async def run() -> None:
        reply = await wrapped.chat.completions.create(model="m", messages=MESSAGES)
        assert reply.choices[0].message.content
        await wrapped.close()

    asyncio.run(run())
    assert "aiohttp" in type(wrapped._client._headway_original._transport).__module__  # type: ignore[attr-defined]
    assert len(a.hits) == 1
    assert not plain.is_closed()


def test_where_aiohttp_can_not_stand_in_is_said_at_once() -> None:
    own_http = openai.DefaultAsyncHttpxClient()
    mine = openai.AsyncOpenAI(api_key="k", base_url=URL, http_client=own_http)
    for client, transport, words in (
        (openai.OpenAI(api_key="k", base_url=URL), "aiohttp", "for async clients"),
        (mine, "aiohttp", "the http client you made"),
        (openai.AsyncOpenAI(api_key="k", base_url=URL), "requests", 'knows only "aiohttp"'),
    ):
        with pytest.raises(WrapError, match=words):
            wrap(client, router=Host(own(URL)), transport=transport)  # type: ignore[arg-type]
