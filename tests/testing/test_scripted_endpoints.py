"""The scripted endpoints speak the API well enough for the unmodified SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

import headway
from headway.testing import (
    FakeClock,
    RecordedEvents,
    ScriptedEndpoints,
    error,
    ok,
    refuse,
    stream,
    timeout,
    tool_call,
)

MESSAGES = [{"role": "user", "content": "hello"}]


def ask(client: openai.OpenAI, **options: object):
    return client.chat.completions.create(model="m", messages=MESSAGES, **options)


def test_answers_a_chat_completion_with_text_and_usage() -> None:
    with ScriptedEndpoints({"a": ok("good day to you", input_tokens=7, cached_tokens=3)}) as fleet:
        reply = ask(fleet.client())

    assert reply.choices[0].message.content == "good day to you"
    assert reply.model == "m"
    assert reply.usage.prompt_tokens == 7
    assert reply.usage.completion_tokens == 4
    assert reply.usage.prompt_tokens_details.cached_tokens == 3


def test_a_stream_brings_the_chunks_as_scripted_and_usage_when_asked() -> None:
    with ScriptedEndpoints({"a": stream("go", "od", " day")}) as fleet:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(ask(fleet.client(), **options))

    texts = [c.choices[0].delta.content for c in chunks if c.choices]
    assert texts == ["", "go", "od", " day", None]
    assert chunks[-1].usage.completion_tokens == 3


async def test_async_clients_are_served_by_the_same_script() -> None:
    fleet = ScriptedEndpoints({"a": ["one", "two"]})
    client = fleet.async_client()

    first = await client.chat.completions.create(model="m", messages=MESSAGES)
    second = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)

    assert first.choices[0].message.content == "one"
    assert [c.choices[0].delta.content async for c in second] == ["", "two", None]


def test_steps_play_in_turn_and_the_last_one_repeats() -> None:
    with ScriptedEndpoints({"a": [503, "then", ok("for ever")]}) as fleet:
        client = fleet.client(max_retries=0)
        with pytest.raises(openai.InternalServerError):
            ask(client)
        texts = [ask(client).choices[0].message.content for _ in range(3)]

    assert texts == ["then", "for ever", "for ever"]
    assert fleet.sends == ["a"] * 4


def test_a_step_may_be_a_function_of_the_request() -> None:
    with ScriptedEndpoints({"a": lambda sent: f"{sent.model} call {sent.number}"}) as fleet:
        client = fleet.client()
        texts = [ask(client).choices[0].message.content for _ in range(2)]

    assert texts == ["m call 1", "m call 2"]


def test_asks_for_tools_and_answers_the_other_surfaces() -> None:
    with ScriptedEndpoints({"a": [tool_call("add", x=1), "r", "s", "c", "e"]}) as fleet:
        client = fleet.client()
        call = ask(client).choices[0]
        response = client.responses.create(model="m", input="hello")
        events = list(client.responses.create(model="m", input="hello", stream=True))
        completion = client.completions.create(model="m", prompt="hello")
        embedding = client.embeddings.create(model="m", input="hello", encoding_format="float")

    assert call.finish_reason == "tool_calls"
    assert call.message.tool_calls[0].function.arguments == '{"x": 1}'
    assert response.output_text == "r"
    assert [e.delta for e in events if e.type == "response.output_text.delta"] == ["s"]
    assert events[-1].response.output_text == "s"
    assert completion.choices[0].text == "c"
    assert embedding.data[0].embedding == [0.0, 0.6, 0.8]


@pytest.mark.parametrize(
    ("step", "raised"),
    [
        (401, openai.AuthenticationError),
        (error(429, code="rate_limit_exceeded", retry_after_s=2), openai.RateLimitError),
        (529, openai.InternalServerError),
        (timeout(), openai.APITimeoutError),
        (refuse(), openai.APIConnectionError),
    ],
)
def test_failures_reach_the_caller_as_the_sdk_knows_them(step: object, raised: type) -> None:
    with ScriptedEndpoints({"a": step}) as fleet, pytest.raises(raised) as caught:
        ask(fleet.client(max_retries=0))

    if raised is openai.RateLimitError:
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.response.headers["retry-after"] == "2"


def test_a_cut_stream_breaks_after_the_chunks_it_was_given() -> None:
    seen = []
    with ScriptedEndpoints({"a": stream("a", "b", "c", cut_after=2)}) as fleet:
        with pytest.raises(openai.APIConnectionError):
            seen.extend(c.choices[0].delta.content for c in ask(fleet.client(), stream=True))

    assert seen == ["", "a", "b"]


def test_time_passes_on_the_fake_clock_only() -> None:
    clock = FakeClock(start_s=0.0)
    with ScriptedEndpoints({"a": [ok().after(3.5), timeout()]}, clock=clock) as fleet:
        client = fleet.client(max_retries=0)
        ask(client)
        assert clock() == 3.5
        with pytest.raises(openai.APITimeoutError):
            ask(client, timeout=20)
        assert clock() == 23.5


def test_legacy_httpx_is_served_too() -> None:
    httpx = pytest.importorskip("httpx")
    with ScriptedEndpoints({"a": stream("hi", cut_after=1)}) as fleet:
        http = httpx.Client(transport=fleet.transport())
        with pytest.raises(httpx.RemoteProtocolError):
            http.post("https://a.headway.test/v1/chat/completions", json={"stream": True})
        http.close()


def test_a_mistaken_script_says_so() -> None:
    with pytest.raises(ValueError, match="at least one endpoint"):
        ScriptedEndpoints({})
    with pytest.raises(ValueError, match="at least one step"):
        ScriptedEndpoints({"a": []})
    with pytest.raises(KeyError, match="no endpoint 'b': there are a"):
        ScriptedEndpoints({"a": 200}).script("b", 200)
    with pytest.raises(ValueError, match="run backwards"):
        FakeClock().advance(-1)


def test_recorded_events_can_be_asked_by_type() -> None:
    from headway.core.model import BudgetExhausted, EndpointReadmitted

    events = RecordedEvents()
    events(BudgetExhausted("pool", 1.0))
    events(EndpointReadmitted("a", 2.0))

    assert len(events) == 2
    assert events.of(EndpointReadmitted) == [EndpointReadmitted("a", 2.0)]
    events.clear()
    assert list(events) == []


def test_a_reply_that_takes_too_long_is_not_waited_for() -> None:
    clock = FakeClock()
    with ScriptedEndpoints({"a": ok("late").after(30)}, model="m", clock=clock) as fleet:
        with pytest.raises(openai.APITimeoutError):
            ask(fleet.client(max_retries=0, timeout=5.0))
        assert clock() == 1005.0

        with (
            pytest.raises(headway.DeadlineExceeded),
            headway.task("t", deadline=10, clock=clock) as task,
        ):
            ask(fleet.wrap())
        assert clock() == 1015.0
        assert task.outcome == "deadline"

        assert ask(fleet.wrap()).choices[0].message.content == "late"
        assert clock() == 1045.0


UNASKED = (LookupError, openai.APIConnectionError)
"""What the script says to a stranger's host; openai 2 wraps it."""


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_client_of_ones_own_never_meets_the_network(colour: str) -> None:
    """Neither what is routed, nor what isn't: there is no such host, and it would be asked for."""
    heard: list[str] = []
    hooks: dict[str, Any] = {"request": [lambda request: heard.append(request.url.host)]}

    async def hear(request: Any) -> None:
        heard.append(request.url.host)

    with ScriptedEndpoints({"a": "hi"}) as fleet:
        if colour == "sync":
            http = openai.DefaultHttpxClient(event_hooks=hooks)
            own = openai.OpenAI(
                api_key="sk-own", base_url="https://api.invalid/v1", http_client=http, max_retries=0
            )
            client = fleet.wrap(own)
            reply = client.chat.completions.create(model="scripted-model", messages=MESSAGES)
            with pytest.raises(UNASKED):
                client.models.list()
            own.close()
        else:

            async def run() -> Any:
                http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [hear]})
                own = openai.AsyncOpenAI(
                    api_key="sk-own",
                    base_url="https://api.invalid/v1",
                    http_client=http,
                    max_retries=0,
                )
                client = fleet.wrap_async(own)
                reply = await client.chat.completions.create(
                    model="scripted-model", messages=MESSAGES
                )
                with pytest.raises(UNASKED):
                    await client.models.list()
                await own.close()
                return reply

            reply = asyncio.run(run())

    assert reply.choices[0].message.content == "hi"
    assert fleet.sends == ["a"]
    assert heard
