"""The frameworks: what to install, and what their own telemetry needs to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework, installed into an environment of its own."""

    name: str
    """Of its environment and, with underscores, of its module in `apps`."""
    title: str
    """The heading of its section in docs/how-to/frameworks.md."""
    packages: tuple[str, ...]
    """The first one's version stands for the framework's."""
    quiet: Mapping[str, str] = field(default_factory=dict)
    """Environment without which it would call home."""
    spans: Mapping[str, str] = field(default_factory=dict)
    """Environment that switches its own OpenTelemetry spans on."""

    @property
    def module(self) -> str:
        """The module that drives it."""
        return f"tests.frameworks.apps.{self.name.replace('-', '_')}"


_ALL: Final = (
    Framework(
        "openai-agents",
        "OpenAI Agents SDK",
        ("openai-agents",),
        quiet={"OPENAI_AGENTS_DISABLE_TRACING": "1"},
    ),
    Framework(
        "langgraph",
        "LangChain and LangGraph",
        ("langchain-openai", "langgraph", "langchain"),
        quiet={"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"},
    ),
    Framework("pydantic-ai", "Pydantic AI", ("pydantic-ai-slim[openai]",)),
    Framework("instructor", "Instructor", ("instructor",)),
    Framework("llama-index", "LlamaIndex", ("llama-index-llms-openai", "llama-index-core")),
    Framework("strands", "Strands Agents", ("strands-agents[openai]",)),
    Framework(
        "haystack", "Haystack", ("haystack-ai",), quiet={"HAYSTACK_TELEMETRY_ENABLED": "False"}
    ),
    Framework("autogen", "AutoGen", ("autogen-ext[openai]", "autogen-agentchat")),
    Framework(
        "semantic-kernel",
        "Semantic Kernel",
        ("semantic-kernel",),
        spans={"SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS": "true"},
    ),
    Framework(
        "agent-framework",
        "Microsoft Agent Framework",
        ("agent-framework-openai", "agent-framework-core"),
        spans={"ENABLE_INSTRUMENTATION": "true"},
    ),
    Framework("smolagents", "smolagents", ("smolagents[openai]",)),
    Framework(
        "crewai",
        "CrewAI",
        ("crewai",),
        quiet={
            "CREWAI_DISABLE_TELEMETRY": "true",
            "CREWAI_DISABLE_TRACKING": "true",
            "CREWAI_TRACING_ENABLED": "false",
            "CREWAI_TESTING": "true",
        },
    ),
)

FRAMEWORKS: Final[Mapping[str, Framework]] = {framework.name: framework for framework in _ALL}
