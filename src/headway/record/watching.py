"""Telemetry, as the accounting of calls sees it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headway.core.model import Event
    from headway.record.attempt import AttemptRecord
    from headway.record.call import CallRecord


class CallWatch(Protocol):
    """Telemetry's view of one call."""

    def on_event(self, record: CallRecord, event: Event) -> None:
        """Something happened; the record has taken it in already (but is not yet settled)."""
        ...

    def settled(self, record: CallRecord) -> None:
        """Costs stand; nothing more will happen."""
        ...

    def sending(self, record: CallRecord, attempt: AttemptRecord) -> AbstractContextManager[None]:
        """The attempt's span is current inside."""
        ...

    def propagation_headers(self, record: CallRecord, attempt: AttemptRecord) -> dict[str, str]:
        """Trace headers to send along, if so configured."""
        ...


class CallObserver(Protocol):
    """Telemetry, as far as calls are concerned."""

    def watch(self, record: CallRecord, /) -> CallWatch | None:
        """Watch this call. None when nobody looks (no provider is set up): then it costs
        nothing."""
        ...
