"""What Headway must not change where nothing was configured: bytes, objects, retries."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.client import wrap
from headway.core.model import AttemptEnded, FailureClass
from headway.errors import HeadwayError
from headway.task import task
from tests.servers import DONE, FIN, OK, OK_STREAM, ROLE, SSE, USAGE, R, Seen, chunk, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, own, policy


def wire(seen: Seen) -> tuple[bytes, bytes]:
    """A request as it was sent, but for its port."""
    host = seen.headers["host"].encode()
    return seen.raw_head.replace(host, b"HOST"), seen.body


def plain_hits(client: Any, **options: Any) -> None:
    """The same calls through the client underneath."""
    try:
        stream = client.run(
            client.plain.chat.completions.create(model="m", messages=MESSAGES, **options)
        )
        if options.get("stream"):
            client.drain(stream)
    except openai.OpenAIError:
        pass


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["own", "observe", "disabled"])
def test_the_wire_sees_what_the_plain_client_sends(
    mode: str, stream: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK_STREAM if stream else OK), serve(OK)
    host = {
        "own": lambda: Host(own(a.url)),
        "observe": lambda: Host(policy({"b": b.url, "a": a.url}), mode="observe"),
        "disabled": lambda: Host(policy({"b": b.url}), disabled=True),
    }[mode]()
    client = caller(a.url, host)

    plain_hits(client, stream=stream)
    if stream:
        client.drain(client.chat(stream=True))
    else:
        assert client.chat(stream=False).choices[0].message.content == "hello"

    plain, wrapped = a.hits
    assert wire(plain) == wire(wrapped)
    assert not b.hits


@pytest.mark.parametrize("mode", ["own", "observe"])
def test_retries_and_refusals_stay_the_sdks(
    mode: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    down = R(503, error("down"), {"retry-after-ms": "1"})
    a, b = serve(down), serve(OK)
    host = Host(own(a.url)) if mode == "own" else Host(policy({"b": b.url}), mode="observe")
    client = caller(a.url, host, max_retries=2)

    plain_hits(client)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat()

    plain, wrapped = a.hits[:3], a.hits[3:]
    assert [wire(p) for p in plain] == [wire(w) for w in wrapped]
    assert [w.headers["x-stainless-retry-count"] for w in wrapped] == ["0", "1", "2"]
    assert "x-headway-endpoint" not in caught.value.response.headers
    assert "x-should-retry" not in caught.value.response.headers
    assert not b.hits
    assert host.in_flight == 0


def test_without_a_policy_the_retry_budget_still_binds(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(503, error("down"), {"retry-after-ms": "1"}))
    client = caller(a.url, Host(own(a.url)), max_retries=4)

    for _ in range(10):
        with pytest.raises(openai.InternalServerError):
            client.chat()

    assert len(a.hits) <= 10 + 4


def test_the_same_request_object_goes_down_when_nothing_changes(kind: str) -> None:
    module = importlib.import_module(kind.partition("-")[2])
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        seen.append(request)
        return module.Response(503, json=error("down"))

    transport = module.MockTransport(answer)
    if kind.startswith("async"):
        pytest.skip("the sync twin says it all; the drivers share what is asserted")
    http = module.Client(transport=transport)
    url = "http://127.0.0.1:1/v1"
    plain = openai.OpenAI(api_key="k", base_url=url, http_client=http, max_retries=0)
    for host in (Host(own(url)), Host(policy({"a": url}))):
        with pytest.raises(openai.InternalServerError) as caught:
            wrap(plain, router=host).chat.completions.create(model="m", messages=MESSAGES)
        assert caught.value.request is seen[-1]


def test_requests_of_other_kinds_pass_through(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(200, {"object": "list", "data": []}))
    b, elsewhere = serve(OK), serve(OK)
    host = Host(policy({"b": b.url}))
    client = caller(a.url, host)

    client.run(client.client.get("/models", cast_to=object))
    client.run(client.client.post("/nobody/knows", body={"model": "m"}, cast_to=object))
    client.run(
        client.client.with_options(base_url=elsewhere.url).chat.completions.create(
            model="m", messages=MESSAGES
        )
    )

    assert [seen.path for seen in a.hits] == ["/v1/models", "/v1/nobody/knows"]
    assert len(elsewhere.hits) == 1
    assert not b.hits
    assert not host.records


@pytest.mark.parametrize("configured", [True, False], ids=["policy", "no policy"])
def test_an_answer_that_was_to_be_a_stream_is_an_error_only_under_a_policy(
    configured: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    host = Host(policy({"a": a.url}) if configured else own(a.url))
    client = caller(a.url, host, max_retries=0)

    if configured:
        with pytest.raises(openai.APIStatusError, match="not_event_stream"):
            client.chat(stream=True)
    else:
        assert client.drain(client.chat(stream=True)) == []  # as the plain client has it
        [end] = host.named(AttemptEnded)
        assert end.outcome.kind is FailureClass.OK


def test_without_a_policy_a_reply_of_nothing_stays_one(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(200, b""))
    client = caller(a.url, Host(own(a.url)))

    assert client.raw().status_code == 200
    assert len(a.hits) == 1


def test_a_model_without_a_route_passes_through(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    from headway.core.snapshot import Match, Snapshot

    a, b = serve(OK), serve(OK)
    made = policy({"b": b.url})
    route = made.routes[0]
    named = Snapshot(
        endpoints=made.endpoints,
        routes=(
            type(route)(
                name="x",
                match=Match(models=frozenset({"big"})),
                weights=route.weights,
                endpoint_ids=route.endpoint_ids,
            ),
        ),
    )
    client = caller(a.url, Host(named))

    client.chat(model="small")
    client.chat(model="big")

    assert (len(a.hits), len(b.hits)) == (1, 1)


# --------------------------------------------------------------------------- usage


def asked_for_usage(seen: Seen) -> bool:
    return bool((seen.json.get("stream_options") or {}).get("include_usage"))


def with_usage(seen: Seen) -> SSE:
    parts = [ROLE, chunk("Hel"), chunk("lo"), FIN]
    return SSE([*parts, USAGE, DONE] if asked_for_usage(seen) else [*parts, DONE])


@pytest.mark.parametrize("configured", [True, False], ids=["policy", "no policy"])
def test_a_task_learns_its_tokens_without_the_caller_seeing_them(
    configured: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(with_usage)
    host = Host(policy({"a": a.url}) if configured else own(a.url))
    client = caller(a.url, host)

    with task("count"):
        chunks = client.drain(client.chat(stream=True))

    assert asked_for_usage(a.hits[0])
    assert all(c.choices and c.usage is None for c in chunks)
    [record] = host.records
    assert record.attempts[0].usage.input_tokens == 7
    assert record.attempts[0].usage_injected


def test_a_caller_who_asked_sees_the_usage(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(with_usage)
    client = caller(a.url, Host(policy({"a": a.url})))

    with task("count"):
        chunks = client.drain(client.chat(stream=True, stream_options={"include_usage": True}))

    assert chunks[-1].usage.total_tokens == 9


@pytest.mark.parametrize("configured", [True, False], ids=["policy", "no policy"])
def test_an_endpoint_that_refuses_stream_options_is_asked_without_and_remembered(
    configured: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    refusal = R(400, error("Unrecognized request argument: stream_options"))
    a = serve(lambda seen: refusal if asked_for_usage(seen) else OK_STREAM)
    host = Host(policy({"a": a.url}) if configured else own(a.url))
    client = caller(a.url, host, max_retries=0)

    with task("count"):
        assert client.text() == "Hello"
        assert client.text() == "Hello"

    assert [asked_for_usage(seen) for seen in a.hits] == [True, False, False]
    assert host.in_flight == 0


def test_observing_takes_the_accounts_and_says_where_it_would_have_gone(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    host = Host(policy({"b": b.url, "a": a.url}), mode="observe")
    client = caller(a.url, host)

    with task("look") as looked:
        reply = client.raw()

    assert not any(name.startswith("x-headway") for name in reply.headers)
    [record] = host.records
    assert record.attempts[0].attempt.endpoint_id == "b"
    assert record.attempts[0].endpoint.id == "a"
    assert record.attempts[0].usage.input_tokens == 1
    assert looked.calls == 1
    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.OK
    assert host.in_flight == 0


def test_a_task_cap_refuses_before_anything_is_sent(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    from headway.errors import TaskLimitExceeded

    a = serve(OK)
    client = caller(a.url, Host(policy({"a": a.url})))

    with task("loop", max_calls=1):
        client.chat()
        with pytest.raises(TaskLimitExceeded) as caught:
            client.chat()

    assert isinstance(caught.value, openai.APIStatusError)
    assert isinstance(caught.value, HeadwayError)
    assert caught.value.status_code == 402
    assert len(a.hits) == 1
