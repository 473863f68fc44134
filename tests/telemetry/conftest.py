from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headway.cost import Pricer
from headway.record import Books
from headway.task.observe import add_observer, remove_observer
from headway.telemetry import Telemetry
from tests.telemetry.otlp import Otlp, Pipeline
from tests.telemetry.play import Player


@pytest.fixture(scope="session")
def otlp_server() -> Iterator[Otlp]:
    otlp = Otlp()
    yield otlp
    otlp.close()


@pytest.fixture
def otlp(otlp_server: Otlp) -> Otlp:
    """The receiver, empty."""
    otlp_server.clear()
    return otlp_server


@pytest.fixture
def pipeline(otlp: Otlp) -> Iterator[Pipeline]:
    """A real SDK exporting to the receiver."""
    pipeline = Pipeline(otlp)
    yield pipeline
    pipeline.close()


@pytest.fixture
def make_telemetry() -> Iterator[Callable[..., Telemetry]]:
    """Telemetry over a pipeline, told of tasks until the test is over."""
    made: list[Telemetry] = []

    def make(pipeline: Pipeline, **settings: object) -> Telemetry:
        telemetry = Telemetry(
            tracer_provider=pipeline.tracer_provider,
            meter_provider=pipeline.meter_provider,
            logger_provider=pipeline.logger_provider,
            **settings,  # type: ignore[arg-type]
        )
        add_observer(telemetry)
        made.append(telemetry)
        return telemetry

    yield make
    for telemetry in made:
        remove_observer(telemetry)


@pytest.fixture
def telemetry(pipeline: Pipeline, make_telemetry: Callable[..., Telemetry]) -> Telemetry:
    return make_telemetry(pipeline)


@pytest.fixture
def play(telemetry: Telemetry) -> Player:
    """Plays calls whose telemetry goes to the receiver."""
    return Player(Books(pricer=Pricer(telemetry.price_unknown), observer=telemetry))
