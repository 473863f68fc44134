"""Deadlines, queues, objects bound to an endpoint, and what is not ours to judge."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import openai
import pytest

from headway.client import wrap
from headway.core.model import AttemptEnded, CallRejected, FailureClass
from headway.core.snapshot import AdmissionPolicy, Endpoint, RetryPolicy
from headway.credentials import Credential
from headway.errors import DeadlineExceeded, HeadwayError, NoEndpointAvailable, Shed
from headway.task import options, task
from tests.servers import OK, Drip, Hang, R, completion, error
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, own, policy

LATE_S = 8.0
"""Of a busy machine: what is waited for takes longer. `tests/e2e/test_limits.py` measures."""


def within(began: float, seconds: float) -> bool:
    return time.monotonic() - began < seconds + LATE_S


@pytest.mark.parametrize("fault", ["silent", "dripping", "failing"])
def test_a_scope_deadline_covers_attempts_and_what_lies_between(
    fault: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    step = {
        "silent": Hang(30),
        "dripping": Drip(completion(), 1, 0.05),
        "failing": R(503, error("down"), {"retry-after-ms": "600"}),
    }[fault]
    deadline_s = 1.1 if fault == "failing" else 0.4
    a = serve(step)
    retry = RetryPolicy(attempts_max=9, budget_start=100, budget_capacity=100)
    host = Host(policy({"a": a.url}, retry=retry))
    client = caller(a.url, host, timeout=None)
    # What is imported at a first call takes a busy machine longer than the deadline.
    warm = serve(OK)
    caller(warm.url, Host(policy({"a": warm.url}))).chat()
    began = time.monotonic()

    with options(deadline=deadline_s), pytest.raises(openai.APIError) as caught:
        client.chat()

    assert within(began, deadline_s)
    if fault == "failing":
        assert isinstance(caught.value, openai.InternalServerError)
        assert len(a.hits) == 2
    else:
        assert isinstance(caught.value, DeadlineExceeded)
        assert isinstance(caught.value, openai.APITimeoutError)
        assert any("a (deadline)" in note for note in caught.value.__notes__)
    assert host.in_flight == 0


def test_a_task_past_its_deadline_sends_nothing(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    client = caller(a.url, Host(policy({"a": a.url})))

    with task("late", deadline=0.01):
        time.sleep(0.02)
        with pytest.raises(DeadlineExceeded) as caught:
            client.chat()

    assert "/chat/completions" in str(caught.value.request.url)
    assert not a.hits


def test_the_calls_own_timeout_stays_a_timeout_per_read(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(Drip(completion(), 60, 0.1))
    client = caller(a.url, Host(policy({"a": a.url})), timeout=0.3)
    began = time.monotonic()

    assert client.chat().choices[0].message.content == "hello"

    assert time.monotonic() - began > 0.3


def test_a_full_queue_sheds_with_a_rate_limit_error(serve: Callable[..., Any]) -> None:
    a = serve(R(200, completion(), delay=0.4))
    admission = AdmissionPolicy(max_inflight=1, max_queue=1, queue_timeout_s=2.0)
    host = Host(policy({"a": a.url}, admission=admission))
    answers: list[Any] = []
    with wrap(openai.OpenAI(api_key="k", base_url=a.url), router=host) as client:

        def ask() -> None:
            try:
                answers.append(client.chat.completions.create(model="m", messages=MESSAGES))
            except Exception as exc:
                answers.append(exc)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()

    refused = [x for x in answers if isinstance(x, Exception)]
    assert len(answers) - len(refused) == 2
    [shed] = refused
    assert isinstance(shed, Shed)
    assert isinstance(shed, openai.RateLimitError)
    assert shed.reason == "queue_full"
    assert shed.response.headers["x-should-retry"] == "false"
    assert len(a.hits) == 2
    assert len(host.named(CallRejected)) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_queued_calls_are_woken_in_turn(backend: str, serve: Callable[..., Any]) -> None:
    a = serve(R(200, completion(), delay=0.1))
    admission = AdmissionPolicy(max_inflight=1, max_queue=8, queue_timeout_s=30.0)
    host = Host(policy({"a": a.url}, admission=admission))
    began = time.monotonic()

    async def use() -> None:
        async with wrap(openai.AsyncOpenAI(api_key="k", base_url=a.url), router=host) as client:

            async def ask() -> None:
                await client.chat.completions.create(model="m", messages=MESSAGES)

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask)

    anyio.run(use, backend=backend)

    assert len(a.hits) == 3
    assert time.monotonic() - began < 20.0  # nobody stands until the time in line is up
    assert host.in_flight == 0


def test_when_every_endpoint_is_out_nothing_is_sent(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    gone = Endpoint(id="gone", base_url=b.url, state="disabled")
    client = caller(a.url, Host(policy({"gone": gone})))

    with pytest.raises(NoEndpointAvailable, match="gone") as caught:
        client.chat()

    assert isinstance(caught.value, openai.InternalServerError)
    assert isinstance(caught.value, HeadwayError)
    assert caught.value.status_code == 503
    assert not a.hits
    assert not b.hits


# --------------------------------------------------------------------------- bound objects

RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}


def test_what_names_an_object_goes_where_the_object_lives(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = (
        serve(R(503, error("down")), R(200, {**RESPONSE, "id": "resp_a"})),
        serve(R(200, RESPONSE)),
    )
    other = Endpoint(id="b", base_url=f"http://127.0.0.1:{b.port}/b/v1", credential="b")
    key = Credential(value="sk-b", hosts=["127.0.0.1"])
    host = Host(policy({"a": a.url, "b": other}), credentials={"b": key})
    client = caller(a.url, host)
    responses = client.client.responses

    client.run(responses.create(model="m", input="x"))
    client.run(responses.retrieve("resp_1"))
    client.run(responses.create(model="m", input="y", previous_response_id="resp_1"))
    client.run(responses.retrieve("resp_unknown"))

    assert [seen.line.rsplit(" ", 1)[0] for seen in b.hits] == [
        "POST /b/v1/responses",
        "GET /b/v1/responses/resp_1",
        "POST /b/v1/responses",
    ]
    assert all(seen.headers["authorization"] == "Bearer sk-b" for seen in b.hits)
    assert [seen.path for seen in a.hits] == ["/v1/responses", "/v1/responses/resp_unknown"]


def test_a_redirect_within_its_own_host_is_followed_below_a_client_without_policy(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(307, b"", {"location": "/v1/chat/completions"}), OK)
    host = Host(own(a.url))
    client = caller(a.url, host)

    assert client.chat().choices[0].message.content == "hello"
    assert len(a.hits) == 2
    assert len(host.records) == 1
    assert host.in_flight == 0


# --------------------------------------------------------------------------- not ours


class OursError(Exception):
    """An exception of the application, raised below us."""


@pytest.mark.parametrize("kind_of", [OursError, KeyboardInterrupt])
def test_other_exceptions_go_through_at_once(kind: str, kind_of: type[BaseException]) -> None:
    if kind.startswith("async"):
        pytest.skip("the judgement is shared")
    module = importlib.import_module(kind.partition("-")[2])
    seen: list[Any] = []

    def explode(request: Any) -> Any:
        seen.append(request)
        raise kind_of

    http = module.Client(transport=module.MockTransport(explode))
    url = "http://127.0.0.1:9/v1"
    host = Host(policy({"a": url, "b": "http://127.0.0.1:8/v1"}))
    client = wrap(openai.OpenAI(api_key="k", base_url=url, http_client=http), router=host)

    # openai 2 turns any Exception from a transport into its own; what matters is one request.
    with pytest.raises((kind_of, openai.APIConnectionError)):
        client.with_options(max_retries=0).chat.completions.create(model="m", messages=MESSAGES)

    assert len(seen) == 1
    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.CANCELLED
    assert host.in_flight == 0


def test_our_own_pool_running_dry_is_no_endpoints_fault(
    kind: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    from tests.servers import ROLE, SSE, chunk

    a, b = serve(SSE([ROLE, *([chunk("x"), 0.05] * 100)])), serve(OK)
    host = Host(policy({"a": a.url, "b": b.url}))
    module = importlib.import_module(kind.partition("-")[2])
    client = caller(a.url, host, limits={"max_connections": 1})
    timeout = module.Timeout(2, pool=0.1)

    held = client.chat(stream=True)
    client.take(held, 1)
    with pytest.raises(openai.APITimeoutError):
        client.chat(timeout=timeout)
    client.run(held.close())

    [row] = [r for r in host.engine.status(host.clock()) if r.endpoint_id == "a"]
    assert all(b.state == "closed" for b in row.breakers)
    assert row.badness == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("configured", [True, False], ids=["policy", "no policy"])
def test_mock_transports_answer_from_memory(kind: str, stream: bool, configured: bool) -> None:
    if kind.startswith("async"):
        pytest.skip("the judgement is shared")
    from tests.servers import DONE, FIN, ROLE, chunk

    module = importlib.import_module(kind.partition("-")[2])
    body = b"".join([ROLE, chunk("Hello"), FIN, DONE])

    def answer(request: Any) -> Any:
        if stream:
            return module.Response(200, content=body, headers={"content-type": "text/event-stream"})
        return module.Response(200, json=completion("Hello"))

    http = module.Client(transport=module.MockTransport(answer))
    url = "http://127.0.0.1:9/v1"
    host = Host(policy({"a": url}) if configured else own(url))
    client = wrap(openai.OpenAI(api_key="k", base_url=url, http_client=http), router=host)

    reply = client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
    if stream:
        text = "".join(c.choices[0].delta.content or "" for c in reply)
    else:
        text = reply.choices[0].message.content

    assert text == "Hello"
    [end] = host.named(AttemptEnded)
    assert end.outcome.kind is FailureClass.OK
    assert host.in_flight == 0
