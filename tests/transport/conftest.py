"""Scripted endpoints and wrapped clients of every kind, closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.servers import Server, Step
from tests.transport.callers import KINDS, Caller


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """sync or async, on either http library."""
    return str(request.param)


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def serve(cleanup: ExitStack) -> Callable[..., Server]:
    """Start a scripted endpoint."""

    def start(*steps: Step | Callable[..., Step]) -> Server:
        return cleanup.enter_context(Server(*steps))

    return start


@pytest.fixture
def caller(kind: str, cleanup: ExitStack) -> Callable[..., Caller]:
    """Make a wrapped client of the test's kind."""

    def make(url: str, host: Any, **options: Any) -> Caller:
        made = Caller(kind, url, host, **options)
        cleanup.callback(made.close)
        return made

    return make
