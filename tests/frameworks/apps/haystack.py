"""Haystack: an agent with a tool, plain and async, whole and streamed."""

from __future__ import annotations

from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool

from tests.frameworks.answers import QUESTION


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def sync(names: dict[str, Any]) -> str:
    agent = Agent(chat_generator=names["generator"], tools=[add])
    return agent.run(messages=[ChatMessage.from_user(QUESTION)])["last_message"].text


async def in_async(names: dict[str, Any]) -> str:
    agent = Agent(chat_generator=names["generator"], tools=[add])
    result = await agent.run_async(messages=[ChatMessage.from_user(QUESTION)])
    return result["last_message"].text


def streamed(names: dict[str, Any]) -> str:
    parts: list[str] = []
    agent = Agent(
        chat_generator=names["generator"],
        tools=[add],
        streaming_callback=lambda chunk: parts.append(chunk.content),
    )
    agent.run(messages=[ChatMessage.from_user(QUESTION)])
    return "".join(parts)


async def streamed_async(names: dict[str, Any]) -> str:
    parts: list[str] = []

    async def callback(chunk: Any) -> None:
        parts.append(chunk.content)

    agent = Agent(chat_generator=names["generator"], tools=[add], streaming_callback=callback)
    await agent.run_async(messages=[ChatMessage.from_user(QUESTION)])
    return "".join(parts)


WAYS = {"sync": sync, "async": in_async, "sync stream": streamed, "async stream": streamed_async}


def plain() -> dict[str, Any]:
    return {"generator": OpenAIChatGenerator(model="chat-large")}


def ask(names: dict[str, Any]) -> object:
    return names["generator"].run([ChatMessage.from_user("hello")])
