"""Real clients, real HTTP on loopback, real policy documents; all closed after the test."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.sampling import Sampler

from headway.router import Router
from headway.telemetry import configure, install, telemetry
from headway.testing import RecordedEvents
from tests.e2e.fleet import Fleet, document
from tests.servers import Server, Step
from tests.telemetry import conftest as telemetry_fixtures
from tests.telemetry.otlp import Otlp, Pipeline

otlp_server = telemetry_fixtures.otlp_server
otlp = telemetry_fixtures.otlp
pipeline = telemetry_fixtures.pipeline


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWAY_POLICY", "HEADWAY_DISABLED", "HEADWAY_TASK_LOG", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


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
def refused_url() -> str:
    """A loopback URL where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


@pytest.fixture
def fleet(cleanup: ExitStack) -> Callable[..., Fleet]:
    """A router over these URLs, by a policy document; and clients of it."""

    def make(
        urls: dict[str, str],
        *,
        route: dict[str, Any] | None = None,
        endpoint: dict[str, Any] | None = None,
        policy: Any = None,
        **options: Any,
    ) -> Fleet:
        events = RecordedEvents()
        made = policy or document(urls, route=route, endpoint=endpoint)
        router = Router(made, on_event=events, **options)
        cleanup.callback(router.close)
        return Fleet(router, events, next(iter(urls.values())), cleanup)

    return make


@pytest.fixture
def plain(cleanup: ExitStack) -> Callable[..., openai.OpenAI]:
    """A plain sync client of one URL."""

    def make(url: str, **options: Any) -> openai.OpenAI:
        options = {"api_key": "sk-own", "base_url": url, **options}
        return cleanup.enter_context(openai.OpenAI(**options))

    return make


# --------------------------------------------------------------------------- telemetry


@pytest.fixture
def otel(pipeline: Pipeline) -> Iterator[Pipeline]:
    """This process's telemetry, exported to the receiver. Make it before the router."""
    before = telemetry()
    _configure(pipeline)
    yield pipeline
    install(before)


@pytest.fixture
def otel_with(otlp: Otlp, cleanup: ExitStack) -> Callable[..., Pipeline]:
    """The same with a sampler, or other settings; may be called again."""
    before = telemetry()
    cleanup.callback(install, before)

    def make(*, sampler: Sampler | None = None, **settings: Any) -> Pipeline:
        made = Pipeline(otlp, sampler=sampler)
        cleanup.callback(made.close)
        _configure(made, **settings)
        return made

    return make


def _configure(pipeline: Pipeline, **settings: Any) -> None:
    configure(
        tracer_provider=pipeline.tracer_provider,
        meter_provider=pipeline.meter_provider,
        logger_provider=pipeline.logger_provider,
        **settings,
    )
