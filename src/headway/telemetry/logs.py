"""Log events: OpenTelemetry log records where they are collected, and the stdlib logger
`headway`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headway.telemetry.metrics import Attributes
from headway.telemetry.names import LogEvent
from headway.telemetry.otel_api import Providers, quietly

if TYPE_CHECKING:
    from opentelemetry.context import Context

log = logging.getLogger("headway")


def _one_line(value: object) -> str:
    return str(value).replace("\n", " ").replace("\r", " ")


class EventLog:
    """Writes log events."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    def emit(self, event: LogEvent, attributes: Attributes, context: Context | None = None) -> None:
        """Write one event; `context` ties it to a span."""
        warn = event.severity == "WARN"
        level = logging.WARNING if warn else logging.INFO
        if log.isEnabledFor(level):
            shown = " ".join(f"{key}={_one_line(value)}" for key, value in attributes.items())
            log.log(level, "%s %s", event.name, shown, extra={"headway_event": event.name})
        logger = self._providers.logger()
        if logger is None:
            return
        from opentelemetry._logs import SeverityNumber

        quietly(
            logger.emit,
            event_name=event.name,
            severity_number=SeverityNumber.WARN if warn else SeverityNumber.INFO,
            severity_text=event.severity,
            attributes=attributes,
            context=context,
        )
