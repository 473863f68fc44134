"""Headway: a client-side control plane for LLM calls.

    client = headway.wrap(OpenAI(), policy="policy.json")

This module is the public API, together with `headway.errors`, `headway.events`, `headway.testing`,
`headway.otel` and `headway.tenacity`. Everything else is private by path and may change in any
release.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

# Not lazy: the function shares its name with its module, and whoever imported `headway.task` first
# would otherwise rebind the name to the module.
from headway.task import Task, bind, continue_task, options, task

# At each request openai 2 takes httpx2 out of `sys.modules`, whole or not. A thread of ours that
# imported it later, for prices or a policy, would break the calls that run meanwhile.
with suppress(ImportError):
    import_module("httpx2")

if TYPE_CHECKING:
    from headway import errors, events, otel, tenacity, testing
    from headway.client import wrap
    from headway.credentials import Credential
    from headway.errors import (
        CredentialRefused,
        DeadlineExceeded,
        FetchError,
        HeadwayError,
        NoEndpointAvailable,
        PolicyError,
        Rejected,
        Shed,
        StreamInterrupted,
        StreamStalled,
        StreamTimedOut,
        TaskLimitExceeded,
        ValidationError,
        VerifyError,
        WrapError,
    )
    from headway.policy.models import Policy
    from headway.policy.signing import PublicKeys
    from headway.router import Router

__version__: Final = "0.1.0"

__all__ = [
    "Credential",
    "CredentialRefused",
    "DeadlineExceeded",
    "FetchError",
    "HeadwayError",
    "NoEndpointAvailable",
    "Policy",
    "PolicyError",
    "PublicKeys",
    "Rejected",
    "Router",
    "Shed",
    "StreamInterrupted",
    "StreamStalled",
    "StreamTimedOut",
    "Task",
    "TaskLimitExceeded",
    "ValidationError",
    "VerifyError",
    "WrapError",
    "__version__",
    "bind",
    "continue_task",
    "errors",
    "events",
    "options",
    "otel",
    "task",
    "tenacity",
    "testing",
    "wrap",
]

_MODULES: Final = frozenset({"errors", "events", "otel", "tenacity", "testing"})
_HOMES: Final = {
    "Credential": "headway.credentials",
    "Policy": "headway.policy.models",
    "PublicKeys": "headway.policy.signing",
    "Router": "headway.router",
    "wrap": "headway.client",
}

if not TYPE_CHECKING:  # a checker would take every misspelt name for an object

    def __getattr__(name: str) -> object:
        """Import a public name at its first use, so that `import headway` stays cheap."""
        if name in _MODULES:
            return import_module(f"headway.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'headway' has no attribute {name!r}")
        value = getattr(import_module(_HOMES.get(name, "headway.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(__all__)
