"""Test your own agents against failures, offline.

`ScriptedEndpoints` answers from a script instead of a network; the openai SDK and the router above
it are the real ones. For pytest, put `pytest_plugins = ["headway.testing.fixtures"]` into your
`conftest.py` and use the `headway_sandbox` fixture.
"""

from __future__ import annotations

from headway.testing.clock import FakeClock
from headway.testing.endpoints import API_KEY, DOMAIN, ScriptedEndpoints, SentRequest, document
from headway.testing.events import RecordedEvents
from headway.testing.replies import (
    Reply,
    Script,
    Step,
    ToolCall,
    error,
    ok,
    refuse,
    stream,
    timeout,
    tool_call,
)

__all__ = [
    "API_KEY",
    "DOMAIN",
    "FakeClock",
    "RecordedEvents",
    "Reply",
    "Script",
    "ScriptedEndpoints",
    "SentRequest",
    "Step",
    "ToolCall",
    "document",
    "error",
    "ok",
    "refuse",
    "stream",
    "timeout",
    "tool_call",
]
