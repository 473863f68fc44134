"""Failures that came as a 200, told as failures.

An SDK takes a 200 at its word: it makes an empty object of an error, text of a web page, a stream
without a single chunk of a reply that isn't one, or fails inside its JSON decoder. Once nobody else
can be asked, the application gets the status that the reply should have had.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headway import quirks
from headway.core.model import FailureClass, Outcome
from headway.transport.decode import decoded, encoding_of
from headway.transport.trial import State

if TYPE_CHECKING:
    import httpx2

    from headway.transport.trial import Trial

BAD_GATEWAY = 502
PAGE = "html_body"
_STATUS = {
    FailureClass.RATE_LIMITED: 429,
    FailureClass.QUOTA_EXHAUSTED: 429,
    FailureClass.OVERLOADED: 503,
    FailureClass.AUTH: 401,
    FailureClass.BAD_REQUEST: 400,
    FailureClass.CONTEXT_LENGTH: 400,
    FailureClass.CONTENT_FILTER: 400,
}
_FRAMING = frozenset(
    {b"content-length", b"content-encoding", b"content-type", b"transfer-encoding"}
)
_NOT_EVEN_WRONG = frozenset(
    {
        "empty_body",
        "empty_stream",
        "event_stream",
        PAGE,
        "invalid_json",
        "malformed_event",
        "not_an_object",
        "not_event_stream",
        "truncated_stream",
    }
)
"""What is no failed response of the Responses API either, which its applications read for."""


def is_disguised(trial: Trial) -> bool:
    """Whether a failed attempt's reply would pass for an answer."""
    response, outcome = trial.response, trial.outcome
    if trial.state is not State.FAILED or response is None or outcome is None:
        return False
    if trial.flight.is_delegated and outcome.error_type == "empty_body":
        return False  # no answer, but nothing that says otherwise: the plain client's to judge
    return response.status_code < 300 and (
        trial.flight.facts.surface != "responses" or outcome.error_type in _NOT_EVEN_WRONG
    )


def is_page(trial: Trial) -> bool:
    """Whether what passes for an answer is a web page: not even an API's failure."""
    return trial.outcome is not None and trial.outcome.error_type == PAGE


def page(trial: Trial) -> httpx2.Response:
    """The page, as a whole reply to the application's request."""
    response, family = trial.response, trial.flight.desk.home.family
    assert response is not None
    body = decoded(encoding_of(trial.headers), trial.body(), family) or b""
    kept = _FRAMING - {b"content-type"}
    return family.Response(
        response.status_code,
        headers=[(n, v) for n, v in response.headers.raw if n.lower() not in kept],
        content=body,
        request=trial.flight.request,
        extensions=response.extensions,
    )


def unmasked(trial: Trial) -> httpx2.Response:
    """The reply that a disguised one should have been."""
    response, outcome, family = trial.response, trial.outcome, trial.flight.desk.home.family
    assert response is not None
    assert outcome is not None
    body = trial.body()
    if trial.observer is None:
        body = decoded(encoding_of(trial.headers), body, family) or b""
    reply = quirks.load_object(body)
    error: object = None if reply is None else reply.get("error")
    if not isinstance(error, dict):
        error = {
            "message": error if isinstance(error, str) else _message(trial, outcome, body),
            "type": "headway_no_answer",
            "param": None,
            "code": outcome.error_type,
        }
    headers = [(n, v) for n, v in response.headers.raw if n.lower() not in _FRAMING]
    return family.Response(
        _STATUS.get(outcome.kind, BAD_GATEWAY),
        headers=[*headers, (b"content-type", b"application/json")],
        content=json.dumps({"error": error}).encode(),
        extensions=response.extensions,
    )


def _message(trial: Trial, outcome: Outcome, body: bytes) -> str:
    said = None if trial.observer is None else trial.observer.error_message
    said = said or body[:200].decode("utf-8", "replace") or "nothing at all"
    what = outcome.error_type or outcome.kind.value
    return f"Endpoint {trial.endpoint.id!r} sent a 200 that is no answer ({what}): {said}"
