"""A shared request's own side: what came of it, for all who wait, and whether to keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.core.model import AttemptKind, FailureClass
from headway.errors import DeadlineExceeded
from headway.share.answer import NOT_KEPT, Answer
from headway.share.tape import Head
from headway.transport.trial import State

if TYPE_CHECKING:
    import httpx2

    from headway.share.aside import Job
    from headway.share.board import Leg
    from headway.transport.trial import Trial

FINISHED = frozenset({"stop", "length", "tool_calls", "function_call", "completed"})
"""Reasons to end that make an answer worth keeping: not those of a filter, or of a failure."""

_TOLD = ("http_version", "reason_phrase", "headway_note")


class Gone(Exception):  # noqa: N818 - told to nobody: whoever waits makes a request of its own
    """Whoever made the request is no more."""


def is_streaming(trial: Trial, response: httpx2.Response) -> bool:
    """Whether the body is still coming."""
    return trial.state is State.OPEN and not response.is_closed


def opened(leg: Leg, trial: Trial, response: httpx2.Response) -> None:
    """The request was answered: with a whole reply, or the beginning of a stream."""
    tape, family = leg.tape, trial.flight.desk.home.family
    leg.upstream, leg.trial = response, trial
    head = Head(
        response.status_code,
        tuple((n, v) for n, v in response.headers.raw if n.lower() != b"set-cookie"),
        {name: response.extensions[name] for name in _TOLD if name in response.extensions},
        trial.endpoint.id,
        trial.outcome,
        streams=is_streaming(trial, response),
    )
    if head.streams:
        leg.source = response.stream
        trial.response = None  # it holds the caller's stream, which must be free to be forgotten
        tape.begin(head)
        return
    body: Any = response.stream
    plain = not response.is_closed and isinstance(body, family.ByteStream)
    leg.body = b"".join(body) if plain else response.content
    tape.begin(head)
    leg.keeping = keep(leg)  # before it leaves the board: see `Board.enter`
    trial.flight.host.board.close(leg)
    tape.end()


def fail(leg: Leg, error: BaseException, *, is_own: bool | None = None) -> None:
    """There is no answer, or no more of it."""
    if leg.board is not None:
        leg.board.close(leg)
    leg.tape.fail(error, is_own=_is_own(error) if is_own is None else is_own)


def _is_own(error: BaseException) -> bool:
    """Whether an end is the business of the one caller that made the request.

    Its deadline, its cancellation, and whatever isn't an error of an API: its client was closed.
    """
    if isinstance(error, DeadlineExceeded):
        return True
    return not any(base.__name__ == "OpenAIError" for base in type(error).__mro__)


def keep(leg: Leg) -> Job[None] | None:
    """Keep the complete answer, if it is worth that; a job, where it takes time."""
    key, trial = leg.kept_as, leg.trial
    if key is None or not _is_worth_keeping(trial):
        return None
    body = leg.tape.body() if leg.body is None else leg.body
    if body is None:
        return None
    record, route = trial.record, trial.flight.call.route
    head = leg.tape.head
    assert head is not None, "an answer has a head"
    answer = Answer(
        status=head.status,
        headers=tuple((n, v) for n, v in head.headers if n.lower() not in NOT_KEPT),
        body=body,
        endpoint_id=trial.endpoint.id,
        model=trial.attempt.model,
        expires_at=0.0,
        usage=record.usage,
        response_model=record.response_model,
        service_tier=record.service_tier,
        duration_s=record.duration_s,
        busy_s=record.busy_s,
    )
    job: Job[None] | None = trial.flight.host.shelf.keep(key, answer, route)
    return job


def _is_worth_keeping(trial: Trial) -> bool:
    """Complete, successful, and what the route stands for: no stand-in's answer."""
    outcome, record = trial.outcome, trial.record
    return (
        outcome is not None
        and outcome.kind is FailureClass.OK
        and record.status == 200
        and trial.attempt.kind is not AttemptKind.FALLBACK
        and all(reason in FINISHED for reason in record.finish_reasons)
    )
