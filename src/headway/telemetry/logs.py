"""Log events: OpenTelemetry log records where they are collected, and the stdlib logger
`headway`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headway.telemetry.metrics import Attributes
from headway.telemetry.names import LogEvent
from headway.telemetry.otel_api import Providers, quietly
from headway.telemetry.sentences import sentence

if TYPE_CHECKING:
    from opentelemetry.context import Context

log = logging.getLogger("headway")


def _one_line(value: object) -> object:
    """Names come from documents and applications: none may begin a line of its own."""
    if isinstance(value, str):
        return value.replace("\n", " ").replace("\r", " ")
    return value


class EventLog:
    """Writes log events."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    def emit(self, event: LogEvent, attributes: Attributes, context: Context | None = None) -> None:
        """Write one event; `context` ties it to a span."""
        warn = event.severity == "WARN"
        level = logging.WARNING if warn else logging.INFO
        words = sentence(event.name, attributes) if log.isEnabledFor(level) else None
        if words is not None:
            told = {key: _one_line(value) for key, value in attributes.items()}
            values = (told,) if told else ()  # logging takes one mapping, but no empty one
            log.log(level, words, *values, extra={"headway_event": event.name, **told})
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
