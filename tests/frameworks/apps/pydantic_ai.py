"""Pydantic AI: an agent with a tool, run plain, async, streamed, typed; on chat and responses."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.frameworks.answers import QUESTION


class Sum(BaseModel):
    total: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def switch_spans_on() -> None:
    Agent.instrument_all()


def sync(names: dict[str, Any]) -> str:
    return Agent(names["model"], tools=[add]).run_sync(QUESTION).output


async def in_async(names: dict[str, Any]) -> str:
    return (await Agent(names["model"], tools=[add]).run(QUESTION)).output


async def streamed(names: dict[str, Any]) -> str:
    async with Agent(names["model"], tools=[add]).run_stream(QUESTION) as result:
        return [text async for text in result.stream_text()][-1]


async def typed(names: dict[str, Any]) -> str:
    agent = Agent(names["model"], tools=[add], output_type=Sum)
    return str((await agent.run(QUESTION)).output.total)


def _responses(names: dict[str, Any]) -> dict[str, Any]:
    provider = OpenAIProvider(openai_client=names["client"])
    return {"model": OpenAIResponsesModel("chat-large", provider=provider)}


async def responses(names: dict[str, Any]) -> str:
    return await in_async(_responses(names))


async def responses_stream(names: dict[str, Any]) -> str:
    return await streamed(_responses(names))


WAYS = {
    "sync": sync,
    "async": in_async,
    "async stream": streamed,
    "async typed output": typed,
    "async responses": responses,
    "async responses stream": responses_stream,
}


def plain() -> dict[str, Any]:
    return {"model": OpenAIChatModel("chat-large", provider="openai")}


def ask(names: dict[str, Any]) -> object:
    return Agent(names["model"]).run_sync("hello").output
