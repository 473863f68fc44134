from __future__ import annotations

import pytest

from headway.record import Books
from tests.telemetry.play import Player


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def play() -> Player:
    """Plays calls without telemetry."""
    return Player(Books())
