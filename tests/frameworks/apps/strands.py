"""Strands Agents: called plain (it makes an event loop for each call), async, and streamed."""

from __future__ import annotations

from typing import Any

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from tests.frameworks.answers import QUESTION


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _agent(names: dict[str, Any]) -> Agent:
    return Agent(model=names["model"], tools=[add], callback_handler=None)


def sync(names: dict[str, Any]) -> str:
    return str(_agent(names)(QUESTION))


async def in_async(names: dict[str, Any]) -> str:
    return str(await _agent(names).invoke_async(QUESTION))


async def streamed(names: dict[str, Any]) -> str:
    events = _agent(names).stream_async(QUESTION)
    return "".join([event["data"] async for event in events if "data" in event])


WAYS = {"sync": sync, "async": in_async, "async stream": streamed}


def plain() -> dict[str, Any]:
    return {"agent": Agent(model=OpenAIModel(model_id="chat-large"))}


def with_its_retries(sync: Any, client: Any) -> dict[str, Any]:
    return {"agent": Agent(model=OpenAIModel(client=client, model_id="chat-large"))}


def ask(names: dict[str, Any]) -> object:
    return names["agent"]("hello")
