"""Semantic Kernel: an agent with a plug-in, whole and streamed."""

from __future__ import annotations

from typing import Any

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

from tests.frameworks.answers import QUESTION


class Calculator:
    @kernel_function(name="add", description="Add two numbers.")
    def add(self, a: int, b: int) -> int:
        return a + b


def _agent(names: dict[str, Any]) -> ChatCompletionAgent:
    return ChatCompletionAgent(service=names["service"], name="adder", plugins=[Calculator()])


async def in_async(names: dict[str, Any]) -> str:
    return str(await _agent(names).get_response(messages=QUESTION))


async def streamed(names: dict[str, Any]) -> str:
    chunks = _agent(names).invoke_stream(messages=QUESTION)
    return "".join([str(chunk) async for chunk in chunks])


WAYS = {"async": in_async, "async stream": streamed}


def plain() -> dict[str, Any]:
    return {"service": OpenAIChatCompletion("chat-large")}


async def ask(names: dict[str, Any]) -> object:
    return await ChatCompletionAgent(service=names["service"], name="a").get_response("hello")
