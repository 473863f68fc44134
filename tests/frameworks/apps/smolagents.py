"""smolagents: a tool-calling agent, whole and streamed."""

from __future__ import annotations

from typing import Any

from smolagents import OpenAIModel, ToolCallingAgent, tool

from tests.frameworks.answers import QUESTION


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def sync(names: dict[str, Any]) -> str:
    agent = ToolCallingAgent(tools=[add], model=names["model"], max_steps=3, verbosity_level=0)
    return str(agent.run(QUESTION))


def streamed(names: dict[str, Any]) -> str:
    agent = ToolCallingAgent(
        tools=[add], model=names["model"], max_steps=3, verbosity_level=0, stream_outputs=True
    )
    return str(list(agent.run(QUESTION, stream=True))[-1].output)


WAYS = {"sync": sync, "sync stream": streamed}


def plain() -> dict[str, Any]:
    return {"model": OpenAIModel("chat-large")}


def with_its_retries(sync: Any, client: Any) -> dict[str, Any]:
    return {"model": OpenAIModel("chat-large", client=sync)}


def ask(names: dict[str, Any]) -> object:
    return names["model"].generate([{"role": "user", "content": "hello"}]).content
