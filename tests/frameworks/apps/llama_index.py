"""LlamaIndex: a function agent, whole and streamed; the model itself, plain; responses."""

from __future__ import annotations

import os
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI, OpenAIResponses

from tests.frameworks.answers import QUESTION


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _agent(llm: Any, *, streaming: bool) -> str:
    agent = FunctionAgent(tools=[add], llm=llm, streaming=streaming)
    handler = agent.run(QUESTION)
    events = handler.stream_events()
    parts = [event.delta async for event in events if isinstance(event, AgentStream)]
    answer = str(await handler)
    assert not streaming or "".join(parts) == answer, parts
    return answer


async def in_async(names: dict[str, Any]) -> str:
    return await _agent(names["llm"], streaming=False)


async def streamed_async(names: dict[str, Any]) -> str:
    return await _agent(names["llm"], streaming=True)


def sync(names: dict[str, Any]) -> str:
    return str(names["llm"].chat([ChatMessage(role="user", content=QUESTION)]).message.content)


def streamed(names: dict[str, Any]) -> str:
    chunks = names["llm"].stream_chat([ChatMessage(role="user", content=QUESTION)])
    return "".join(chunk.delta for chunk in chunks)


def _responses(names: dict[str, Any]) -> Any:
    return OpenAIResponses(
        model="gpt-4o",
        openai_client=names["sync"],
        async_openai_client=names["client"],
        max_retries=0,
    )


async def responses(names: dict[str, Any]) -> str:
    return await _agent(_responses(names), streaming=False)


async def responses_stream(names: dict[str, Any]) -> str:
    return await _agent(_responses(names), streaming=True)


WAYS = {
    "async": in_async,
    "async stream": streamed_async,
    "sync": sync,
    "sync stream": streamed,
    "async responses": responses,
    "async responses stream": responses_stream,
}


def plain() -> dict[str, Any]:
    return {"llm": OpenAI(model="gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])}


def with_its_retries(sync: Any, client: Any) -> dict[str, Any]:
    return {"llm": OpenAI(model="gpt-4o", openai_client=sync, async_openai_client=client)}


def ask(names: dict[str, Any]) -> object:
    return names["llm"].chat([ChatMessage(role="user", content="hello")])
