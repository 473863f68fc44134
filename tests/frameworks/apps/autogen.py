"""AutoGen: an assistant with a tool, run and streamed."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core.models import ModelFamily, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

from tests.frameworks.answers import QUESTION


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _agent(names: dict[str, Any], **options: Any) -> AssistantAgent:
    return AssistantAgent("adder", names["model"], tools=[add], reflect_on_tool_use=True, **options)


async def in_async(names: dict[str, Any]) -> str:
    return (await _agent(names).run(task=QUESTION)).messages[-1].to_text()


async def streamed(names: dict[str, Any]) -> str:
    messages = _agent(names, model_client_stream=True).run_stream(task=QUESTION)
    chunks = [m async for m in messages if isinstance(m, ModelClientStreamingChunkEvent)]
    return "".join(chunk.content for chunk in chunks)


WAYS = {"async": in_async, "async stream": streamed}


def plain() -> dict[str, Any]:
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": ModelFamily.UNKNOWN,
    }
    return {"model": OpenAIChatCompletionClient(model="chat-large", model_info=info)}


async def ask(names: dict[str, Any]) -> object:
    return await names["model"].create([UserMessage(content="hello", source="user")])
