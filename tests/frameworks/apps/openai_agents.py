"""OpenAI Agents SDK: on responses and on chat completions, plain and async, whole and streamed."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    retry_policies,
)

from tests.frameworks.answers import QUESTION


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _agent(model: Any) -> Agent:
    return Agent(name="adder", instructions="Use the tool.", model=model, tools=[add])


def _chat(names: dict[str, Any]) -> Any:
    return OpenAIChatCompletionsModel(model="chat-large", openai_client=names["client"])


async def responses(names: dict[str, Any]) -> str:
    return (await Runner.run(_agent(names["model"]), QUESTION)).final_output


async def chat(names: dict[str, Any]) -> str:
    return (await Runner.run(_agent(_chat(names)), QUESTION)).final_output


def sync(names: dict[str, Any]) -> str:
    return Runner.run_sync(_agent(names["model"]), QUESTION).final_output


async def _streamed(model: Any) -> str:
    result = Runner.run_streamed(_agent(model), QUESTION)
    raw = [e.data async for e in result.stream_events() if e.type == "raw_response_event"]
    parts = [data.delta for data in raw if data.type == "response.output_text.delta"]
    assert result.final_output == "".join(parts)
    return "".join(parts)


async def with_retry_settings(names: dict[str, Any]) -> str:
    """Its runner then asks the client for a copy, `with_options(max_retries=0)`."""
    retry = ModelRetrySettings(max_retries=2, policy=retry_policies.network_error())
    agent = _agent(names["model"]).clone(model_settings=ModelSettings(retry=retry))
    return (await Runner.run(agent, QUESTION)).final_output


async def responses_stream(names: dict[str, Any]) -> str:
    return await _streamed(names["model"])


async def chat_stream(names: dict[str, Any]) -> str:
    return await _streamed(_chat(names))


WAYS = {
    "async responses": responses,
    "async chat": chat,
    "sync responses": sync,
    "async responses with retry settings": with_retry_settings,
    "async responses stream": responses_stream,
    "async chat stream": chat_stream,
}


def plain() -> dict[str, Any]:
    return {"model": "gpt-4o"}


def ask(names: dict[str, Any]) -> object:
    return Runner.run_sync(Agent(name="asker", model=names["model"]), "hello").final_output
