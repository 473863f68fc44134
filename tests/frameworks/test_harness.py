"""What `make test-frameworks` stands on, without any framework: the SDK itself takes its place."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headway import telemetry
from headway.testing import FakeClock
from headway.testing.hurry import hurry
from tests.frameworks import checks
from tests.frameworks.answers import ANSWER, QUESTION
from tests.frameworks.checks import perform, rehearse
from tests.frameworks.page import snippet
from tests.frameworks.registry import FRAMEWORKS, Framework
from tests.frameworks.run import RESULTS
from tests.frameworks.surroundings import changes, surroundings
from tests.servers import R, Server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
GIVEN = {"sync", "client"}


def names(sync: Any, client: Any) -> dict[str, Any]:
    return {"sync": sync, "client": client}


@pytest.fixture
def spans() -> Iterator[Callable[[], list[Any]]]:
    exporter, provider, before = InMemorySpanExporter(), TracerProvider(), telemetry.telemetry()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.configure(tracer_provider=provider)

    def take() -> list[Any]:
        found = list(exporter.get_finished_spans())
        exporter.clear()
        return found

    yield take
    telemetry.install(before)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """An async client is used on loops that end, as applications do: its connections there can only
    be collected. Here and now, so that no other test is blamed for it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        checks._kept.clear()
        gc.collect()


# --------------------------------------------------------------------------- the SDK as a framework


def _after(messages: list[Any], call: Any) -> list[Any]:
    said = {"role": "assistant", "tool_calls": [call.model_dump()]}
    total = sum(json.loads(call.function.arguments).values())
    return [*messages, said, {"role": "tool", "tool_call_id": call.id, "content": str(total)}]


def sync(given: dict[str, Any]) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    completions = given["sync"].chat.completions
    reply = completions.create(model="m", messages=messages, tools=[TOOL])
    messages = _after(messages, reply.choices[0].message.tool_calls[0])
    return str(completions.create(model="m", messages=messages).choices[0].message.content)


async def in_async(given: dict[str, Any]) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    completions = given["client"].chat.completions
    reply = await completions.create(model="m", messages=messages, tools=[TOOL])
    messages = _after(messages, reply.choices[0].message.tool_calls[0])
    reply = await completions.create(model="m", messages=messages)
    return str(reply.choices[0].message.content)


def streamed(given: dict[str, Any]) -> str:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    completions = given["sync"].chat.completions
    with completions.stream(model="m", messages=messages, tools=[TOOL]) as stream:
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    chunks = completions.create(model="m", messages=_after(messages, call), stream=True)
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


async def responses_stream(given: dict[str, Any]) -> str:
    tool = {"type": "function", **TOOL["function"]}
    responses = given["client"].responses
    first = await responses.create(model="m", input=QUESTION, tools=[tool])
    given_back = [
        first.output[0].model_dump(),
        {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "5"},
    ]
    async with responses.stream(model="m", input=given_back) as stream:
        parts = [e.delta async for e in stream if e.type == "response.output_text.delta"]
    return "".join(parts)


@pytest.mark.parametrize("way", [sync, in_async, streamed, responses_stream])
def test_a_way_of_working_goes_through_the_failover(
    way: Any, spans: Callable[[], list[Any]]
) -> None:
    rehearse(way, names)
    before = surroundings()

    counted = perform(way, names, spans)

    assert counted == {"calls": 4, "failures": 4, "call_spans_of": ["headway"]}
    assert changes(before, surroundings()) == []


# --------------------------------------------------------------------------- what it must notice


def wrong_answer(given: dict[str, Any]) -> str:
    sync(given)
    return "seven"


def past_the_wrapper(given: dict[str, Any]) -> str:
    url = str(given["serving"])
    with openai.OpenAI(base_url=url, api_key="k") as plain:
        sync({"sync": plain})
    return sync(given)


def out_of_the_task(given: dict[str, Any]) -> str:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:  # which copies no context
        return pool.submit(sync, given).result()


def left_early(given: dict[str, Any]) -> str:
    chunks = given["sync"].chat.completions.create(
        model="m", messages=[{"role": "user", "content": QUESTION}], stream=True
    )
    given["kept"] = chunks
    next(iter(chunks))
    return ANSWER


@pytest.mark.parametrize("way", [wrong_answer, past_the_wrapper, out_of_the_task, left_early])
def test_what_is_wrong_is_noticed(
    way: Any, spans: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SETTLES_S", 0.1)
    stage = checks.stage()
    monkeypatch.setattr(checks, "stage", lambda: stage)

    def made(sync: Any, client: Any) -> dict[str, Any]:
        return {**names(sync, client), "serving": stage.serving.url}

    with pytest.raises(AssertionError):
        perform(way, made, spans)


def test_a_rehearsal_with_plain_clients_has_to_succeed() -> None:
    with pytest.raises(AssertionError):
        rehearse(wrong_answer, names)


def test_a_change_of_the_surroundings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = surroundings()
    monkeypatch.setattr(openai.OpenAI, "copy", lambda self: self)
    monkeypatch.setenv("HEADWAY_HARNESS", "1")

    assert changes(before, surroundings()) == ["environment", "openai.OpenAI.copy"]


# --------------------------------------------------------------------------- the page and the table


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_the_page_makes_what_a_framework_is_driven_with(framework: Framework) -> None:
    made = {
        node.id
        for node in ast.walk(ast.parse(snippet(framework)))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    app = Path(*framework.module.split(".")).with_suffix(".py")
    driven = ast.parse((checks.ROOT / app).read_text())
    used = {
        node.slice.value
        for node in ast.walk(driven)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "names"
        and isinstance(node.slice, ast.Constant)
    }

    assert used
    assert used - GIVEN <= made


def test_every_framework_was_run_and_recorded() -> None:
    results = json.loads(RESULTS.read_text())

    assert list(results) == list(FRAMEWORKS)
    for name, seen in results.items():
        assert seen["ways"].keys() == seen["spans"].keys() != set(), name
        assert "failed" not in [*seen["ways"].values(), *seen["spans"].values()]


def test_minutes_of_waiting_take_no_time_and_are_seen_by_the_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import anyio

    import headway
    from tests.frameworks import retries

    for module in (time, asyncio, anyio):
        monkeypatch.setattr(module, "sleep", module.sleep)  # to be put back
    clock = FakeClock()
    retries._quicken(clock)
    started = clock()
    with Server(R(503)) as server:
        router = headway.Router(checks.document({"a": server.url}), clock=clock)
        router.engine = hurry(router.engine, clock)
        client = headway.wrap(openai.OpenAI(base_url=server.url, api_key="k"), router=router)
        with pytest.raises(openai.InternalServerError):
            sync({"sync": client})
        time.sleep(240)
        router.close()

    assert clock() - started >= 240
    assert len(server.hits) == 3
