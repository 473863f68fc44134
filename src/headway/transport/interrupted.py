"""What to raise when a stream breaks after its first content token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.model import FailureClass, Outcome, Usage
from headway.errors import (
    PartialAnswer,
    StreamInterrupted,
    StreamStalled,
    StreamTimedOut,
    ToolCall,
)

if TYPE_CHECKING:
    from headway.transport.trial import Trial


def interruption(trial: Trial, exc: BaseException | None, outcome: Outcome) -> StreamInterrupted:
    """The typed error, with all that had come by then."""
    observer = trial.observer
    partial = PartialAnswer()
    said: str | None = None
    if observer is not None:
        partial.text = trial.flight.said + observer.partial_text
        partial.tool_calls = [
            ToolCall(call.get("id"), call.get("name"), call.get("arguments", ""))
            for call in observer.partial_tool_calls
        ]
        said = observer.error_message
    kind, what = StreamInterrupted, "the stream broke"
    if outcome.error_type == "deadline":
        kind, what = StreamTimedOut, "the call's deadline passed"
    elif outcome.kind is FailureClass.STALLED:
        kind, what = StreamStalled, "the stream fell silent"
    elif said is not None:
        what = f"the server reported an error: {said}"
    elif exc is not None:
        what = f"the stream broke ({type(exc).__name__}: {exc})"
    elif outcome.kind is FailureClass.INCOMPLETE_STREAM:
        what = "the stream ended without finishing its answer"
    error = kind(
        f"{what[0].upper()}{what[1:]} (endpoint {trial.endpoint.id!r}, attempt "
        f"{trial.attempt.number}, after {len(partial.text)} characters). What had come is in "
        "`partial`: an answer that the caller has begun to see is not repeated.",
        partial=partial,
        usage=trial.record.usage or _estimate(trial),
        endpoint=trial.endpoint.id,
        cause=exc,
        request=trial.flight.request,
    )
    if outcome.error_type is not None:
        error.type = outcome.error_type
        error.code = str(outcome.status) if outcome.status is not None else outcome.error_type
    return error


def _estimate(trial: Trial) -> Usage | None:
    """A cut stream was paid for all the same: an estimate that says so beats nothing."""
    observer = trial.observer
    if observer is None or not observer.content_events:
        return None
    return Usage(
        input_tokens=trial.flight.facts.prompt_tokens,
        output_tokens=observer.content_events,
        estimated=True,
    )
