"""The facts a router reported, kept for a test to look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from headway.core.model import AttemptEnded, Event

E = TypeVar("E")


class RecordedEvents:
    """A list of events to hand to `Router(on_event=...)`.

    Grows with every event: meant for the length of a test. Appending is atomic, so calls from any
    thread may share it.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one type, in order."""
        return [event for event in self._events if isinstance(event, kind)]

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """What became of each attempt: (endpoint id, failure class), in the order they ended."""
        return [
            (ended.attempt.endpoint_id, ended.outcome.kind.value) for ended in self.of(AttemptEnded)
        ]

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self._events.clear()
