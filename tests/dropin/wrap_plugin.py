"""pytest plugin for openai-python's own tests: every client that they build is a wrapped one.

Loaded by `run.py` with `-p wrap_plugin`. A client is wrapped when its outermost `__init__` returns,
each under a router of its own: one endpoint, its own base URL, and a retry budget that never ends
(the tests retry far more than any sane process). HEADWAY_DROPIN=policy makes that a policy, which
owns the retries and is enforced; without it, it is what a client wrapped without a policy gets.
"""

from __future__ import annotations

import contextvars
import functools
import os
from typing import Any

import openai
from openai.lib import azure

import headway.client
from headway.core.model import INFINITY
from headway.core.snapshot import (
    DeadlinePolicy,
    Endpoint,
    RetryPolicy,
    Route,
    Snapshot,
    WeightTable,
)
from headway.router import Router
from headway.transport.async_ import AsyncTransport
from headway.transport.sync import Transport

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)


def pass_through(base_url: str) -> Snapshot:
    """The built-in policy of a client, with a budget that is never spent."""
    return Snapshot(
        endpoints={"default": Endpoint(id="default", base_url=base_url)},
        routes=(
            Route(
                name="default",
                weights=WeightTable(by_zone={"*": ((INFINITY, (("default", 1.0),)),)}),
                endpoint_ids=frozenset({"default"}),
                deadline=DeadlinePolicy(idle_s=INFINITY),
                retry=RetryPolicy(budget_start=1e9, budget_capacity=1e9),
            ),
        ),
        pass_through=os.environ.get("HEADWAY_DROPIN") != "policy",
    )


def _adopt(client: Any) -> None:
    if isinstance(client._client._transport, Transport | AsyncTransport):
        return  # a copy: it stands on a wrapped http client already
    router = Router(pass_through(str(client.base_url)))
    client.__dict__ = headway.client.wrap(client, router=router).__dict__


def _patch(cls: type) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        token = _depth.set(_depth.get() + 1)
        try:
            original(self, *args, **kwargs)
            if _depth.get() == 1:
                _adopt(self)
        finally:
            _depth.reset(token)

    cls.__init__ = init  # type: ignore[misc]


def pytest_configure(config: Any) -> None:
    seen: set[type] = set()
    stack: list[type] = [openai.OpenAI, openai.AsyncOpenAI]
    _ = azure  # its classes are among the subclasses
    while stack:
        cls = stack.pop()
        if cls in seen:
            continue
        seen.add(cls)
        if "__init__" in cls.__dict__:
            _patch(cls)
        stack.extend(cls.__subclasses__())
