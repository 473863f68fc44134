"""Fixtures for pytest. In `conftest.py`: `pytest_plugins = ["headway.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pytest

from headway.testing.clock import FakeClock
from headway.testing.endpoints import ScriptedEndpoints
from headway.testing.replies import Script

__all__ = ["Sandbox", "fake_clock", "headway_sandbox"]


class Sandbox(Protocol):
    """What the `headway_sandbox` fixture is: call it with scripts, get a fleet."""

    def __call__(self, scripts: Mapping[str, Script], **options: Any) -> ScriptedEndpoints: ...


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that moves only when told to."""
    return FakeClock()


@pytest.fixture
def headway_sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """Make scripted fleets that are closed after the test, blind to the machine's settings."""
    for name in ("HEADWAY_POLICY", "HEADWAY_DISABLED", "HEADWAY_TASK_LOG"):
        monkeypatch.delenv(name, raising=False)
    fleets: list[ScriptedEndpoints] = []

    def make(scripts: Mapping[str, Script], **options: Any) -> ScriptedEndpoints:
        fleet = ScriptedEndpoints(scripts, **options)
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()
