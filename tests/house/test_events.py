"""Every event is reported, and nothing is reported that is not an event."""

from __future__ import annotations

from headway import events
from headway.core.model import EVENTS
from headway.telemetry import EVENT_ROWS


def test_every_event_has_a_telemetry_row_and_every_row_an_event() -> None:
    assert set(EVENT_ROWS) == set(EVENTS)


def test_every_event_has_a_public_name() -> None:
    assert {kind.__name__ for kind in EVENTS} <= set(events.__all__)
