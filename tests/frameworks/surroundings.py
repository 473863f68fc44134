"""What a library must leave alone, before and after: other libraries, and the process it is in."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from typing import Any

OPENAI_CLASSES = (
    *("openai.OpenAI", "openai.AsyncOpenAI", "openai.AzureOpenAI", "openai.AsyncAzureOpenAI"),
    *("openai._base_client.SyncAPIClient", "openai._base_client.AsyncAPIClient"),
    *("openai._base_client.SyncHttpxClientWrapper", "openai.Stream", "openai.AsyncStream"),
    "openai._base_client.AsyncHttpxClientWrapper",
    "openai.resources.chat.completions.Completions",
    "openai.resources.chat.completions.AsyncCompletions",
    *("openai.resources.responses.Responses", "openai.resources.responses.AsyncResponses"),
)
HTTP_CLASSES = ("Client", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport", "Request")
SETTINGS = ("api_key", "base_url", "max_retries", "timeout", "http_client", "default_headers")


def surroundings() -> dict[str, object]:
    """Name -> what is there now; compare two of these."""
    import openai
    from opentelemetry import _logs, context, metrics, propagate, trace

    seen: dict[str, object] = {f"openai.{name}": getattr(openai, name, None) for name in SETTINGS}
    names = list(OPENAI_CLASSES)
    for library in ("httpx", "httpx2"):
        if find_spec(library) is not None:
            names += [f"{library}.{cls}" for cls in HTTP_CLASSES]
    for name in names:
        module, _, cls = name.rpartition(".")
        found = getattr(import_module(module), cls)
        seen[name] = id(found)
        seen |= {f"{name}.{key}": id(value) for key, value in _methods(found).items()}
    seen |= {
        "tracer provider": id(trace.get_tracer_provider()),
        "meter provider": id(metrics.get_meter_provider()),
        "logger provider": id(_logs.get_logger_provider()),
        "propagator": id(propagate.get_global_textmap()),
        "otel context": dict(context.get_current()),
        "environment": dict(os.environ),
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "event loop policy": type(asyncio.get_event_loop_policy()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
    }
    for name in ("", "openai", "httpx", "httpx2", "httpcore", "httpcore2"):
        log = logging.getLogger(name)
        seen[f"logger {name or 'root'}"] = (log.level, tuple(log.handlers), tuple(log.filters))
    return seen


def _methods(cls: type[Any]) -> dict[str, object]:
    return {k: v for k, v in vars(cls).items() if callable(v) or isinstance(v, property)}


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """The names of what is not as it was."""
    return [
        name
        for name in sorted({*before, *after})
        if before.get(name, "absent") != after.get(name, "absent")
    ]
