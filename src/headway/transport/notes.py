"""What an attempt's reply tells for the books: written to its record before its end is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.model import Outcome, Usage
from headway.transport.pins import ids_in_response

if TYPE_CHECKING:
    from headway.quirks import ReplyFacts
    from headway.transport.sse import StreamObserver
    from headway.transport.trial import Trial


def server(trial: Trial) -> None:
    """Where the attempt went; and that there is a connection there which may be used again."""
    scheme, host, port = trial.origin
    trial.flight.desk.answered(trial.origin, trial.flight.clock())
    trial.record.server_address = host
    trial.record.server_port = port or (443 if scheme == "https" else 80)


def reply(trial: Trial, facts: ReplyFacts, body: bytes) -> None:
    """A whole reply."""
    record = trial.record
    record.usage = facts.usage
    record.response_model = facts.model
    record.response_id = facts.id
    record.service_tier = facts.service_tier
    record.finish_reasons = list(facts.finish_reasons)
    if trial.flight.surface.creates:
        _pin(trial, ids_in_response(trial.flight.facts.surface, body))


def stream(trial: Trial, observer: StreamObserver) -> None:
    """A stream, as far as it was seen."""
    record = trial.record
    record.usage = observer.usage
    record.response_model = observer.model
    record.response_id = observer.response_id
    record.service_tier = observer.service_tier
    record.finish_reasons = list(observer.finish_reasons)
    record.content_chunks = observer.content_events
    if observer.response_id is not None and trial.flight.surface.creates:
        _pin(trial, (observer.response_id, *observer.objects))


def _pin(trial: Trial, ids: tuple[str, ...]) -> None:
    if ids and not trial.flight.is_observed:
        trial.flight.desk.remember(ids, trial.endpoint.id)


def with_tokens(outcome: Outcome, usage: Usage | None, status: int | None) -> Outcome:
    """The outcome with what it was counted at."""
    if usage is None:
        return outcome if outcome.status is not None else outcome._replace(status=status)
    return outcome._replace(
        status=status,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
    )
