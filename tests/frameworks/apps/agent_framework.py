"""Microsoft Agent Framework: an agent with a tool, whole and streamed; on chat and responses."""

from __future__ import annotations

from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

from tests.frameworks.answers import QUESTION


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _run(client: Any) -> str:
    return (await Agent(client, "Use the tool.", tools=[add]).run(QUESTION)).text


async def _stream(client: Any) -> str:
    updates = Agent(client, "Use the tool.", tools=[add]).run(QUESTION, stream=True)
    return "".join([update.text async for update in updates])


def _responses(names: dict[str, Any]) -> Any:
    return OpenAIChatClient(model="chat-large", async_client=names["client"])


async def chat(names: dict[str, Any]) -> str:
    return await _run(names["chat_client"])


async def chat_stream(names: dict[str, Any]) -> str:
    return await _stream(names["chat_client"])


async def responses(names: dict[str, Any]) -> str:
    return await _run(_responses(names))


async def responses_stream(names: dict[str, Any]) -> str:
    return await _stream(_responses(names))


WAYS = {
    "async chat": chat,
    "async chat stream": chat_stream,
    "async responses": responses,
    "async responses stream": responses_stream,
}


def plain() -> dict[str, Any]:
    return {"chat_client": OpenAIChatCompletionClient(model="chat-large")}


async def ask(names: dict[str, Any]) -> object:
    return (await Agent(names["chat_client"]).run("hello")).text
