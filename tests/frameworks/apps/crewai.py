"""CrewAI: a crew of one with a tool, plain and async; the model itself, streamed; responses."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from tests.frameworks.answers import QUESTION


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _crew(llm: Any) -> Crew:
    agent = Agent(role="adder", goal="add", backstory="It adds.", llm=llm, tools=[add])
    work = Task(description=QUESTION, expected_output="the sum", agent=agent)
    return Crew(agents=[agent], tasks=[work], verbose=False)


def sync(names: dict[str, Any]) -> str:
    return _crew(names["llm"]).kickoff().raw


async def in_async(names: dict[str, Any]) -> str:
    return (await _crew(names["llm"]).akickoff()).raw


def streamed(names: dict[str, Any]) -> str:
    llm = names["llm"]
    llm.stream = True
    try:
        return _crew(llm).kickoff().raw
    finally:
        llm.stream = False


WAYS = {"sync": sync, "async": in_async, "sync stream": streamed}


def plain() -> dict[str, Any]:
    return {"llm": LLM(model="openai/gpt-4o")}


def ask(names: dict[str, Any]) -> object:
    return names["llm"].call("hello")
