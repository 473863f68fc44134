"""LangChain's chat model in a LangGraph agent: invoked and streamed, plain and async; responses."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.frameworks.answers import QUESTION

ASKED: Any = {"messages": [{"role": "user", "content": QUESTION}]}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sum(BaseModel):
    total: int


def sync(names: dict[str, Any]) -> str:
    return create_agent(names["model"], [add]).invoke(ASKED)["messages"][-1].text


async def in_async(names: dict[str, Any]) -> str:
    return (await create_agent(names["model"], [add]).ainvoke(ASKED))["messages"][-1].text


def streamed(names: dict[str, Any]) -> str:
    agent = create_agent(names["model"], [add])
    chunks = agent.stream(ASKED, stream_mode="messages")
    return "".join(message.text for message, _ in chunks if message.type == "AIMessageChunk")


async def streamed_async(names: dict[str, Any]) -> str:
    parts: list[str] = []
    agent = create_agent(names["model"], [add])
    async for message, _ in agent.astream(ASKED, stream_mode="messages"):
        if message.type == "AIMessageChunk":
            parts.append(message.text)
    return "".join(parts)


def structured(names: dict[str, Any]) -> str:
    return str(names["model"].with_structured_output(Sum).invoke(QUESTION).total)


def _responses(names: dict[str, Any]) -> Any:
    return names["model"].model_copy(update={"use_responses_api": True})


def responses(names: dict[str, Any]) -> str:
    return create_agent(_responses(names), [add]).invoke(ASKED)["messages"][-1].text


async def responses_stream(names: dict[str, Any]) -> str:
    return await streamed_async({"model": _responses(names)})


WAYS = {
    "sync": sync,
    "async": in_async,
    "sync stream": streamed,
    "async stream": streamed_async,
    "sync structured output": structured,
    "sync responses": responses,
    "async responses stream": responses_stream,
}


def plain() -> dict[str, Any]:
    return {"model": ChatOpenAI(model="chat-large")}


def ask(names: dict[str, Any]) -> object:
    return names["model"].invoke("hello").text
