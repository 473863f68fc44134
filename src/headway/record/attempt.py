"""One attempt's account, and which token counts it is to be priced by."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from headway.core.model import CallFacts, FailureClass, Usage
from headway.cost import FREE, UNKNOWN, Cost, Pricer

if TYPE_CHECKING:
    from headway.core.model import Attempt, Outcome
    from headway.core.snapshot import Endpoint

NOT_BILLED = Usage(input_tokens=0, output_tokens=0, estimated=True)
"""No model ran: a connection that failed, a refusal, an error status without usage."""

WITHOUT_MODEL = frozenset({"input_tokens"})
"""Surfaces on which no model runs, so that nothing is charged: tokens are counted, that's all."""

_MAY_HAVE_RUN = frozenset({
    FailureClass.CANCELLED,
    FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN,
    FailureClass.STALLED,
    FailureClass.INCOMPLETE_STREAM,
})  # fmt: skip
"""Ended without an answer, but perhaps with the prompt processed: charged for the prompt."""


class AttemptRecord:
    """One attempt. The transport fills in the second group before it reports the outcome."""

    __slots__ = (
        "attempt", "busy_s", "content_chunks", "continued", "cost", "duration_s", "ended_wall_ns",
        "endpoint", "finish_reasons", "outcome", "response_id", "response_model", "result",
        "server_address", "server_port", "service_tier", "settled_usage", "span", "started",
        "status", "system_fingerprint", "ttft_s", "upper_bound", "usage", "usage_injected",
        "wasted",
    )  # fmt: skip

    def __init__(self, attempt: Attempt, endpoint: Endpoint) -> None:
        self.attempt = attempt
        self.endpoint = endpoint

        self.usage: Usage | None = None
        self.response_model: str | None = None
        self.response_id: str | None = None
        self.finish_reasons: list[str] = []
        self.service_tier: str | None = None
        """The tier on the response: it decides the price."""
        self.system_fingerprint: str | None = None
        self.content_chunks = 0
        self.server_address: str | None = None
        self.server_port: int | None = None
        self.status: int | None = None
        self.usage_injected = False
        self.continued = False
        """It broke off, and another attempt went on from there: what it brought was used."""

        self.started = False
        self.outcome: Outcome | None = None
        self.result: str | None = None
        """ok | error | timeout | cancelled | lost; None while it runs."""
        self.duration_s: float | None = None
        self.ttft_s: float | None = None
        self.busy_s = 0.0
        """Until the end the meter's mark, then the seconds charged (GPU-hour prices only)."""
        self.settled_usage: Usage | None = None
        """What it is priced by: `usage`, or what was estimated in its place."""
        self.cost: Cost | None = None
        """Set when the call is settled, as are the next two."""
        self.wasted = False
        self.upper_bound: Decimal | None = None
        """USD at most, where only the beginning of the output was counted."""
        self.span: object | None = None
        self.ended_wall_ns: int | None = None
        """These two are telemetry's own."""


def usage_to_price(
    record: AttemptRecord, winner: AttemptRecord | None, facts: CallFacts
) -> Usage | None:
    """The counts to price an attempt by; None when nothing is known about them.

    What the server counted wins. Otherwise: input is the winner's count when it ran the same model
    (the prompt was the same), else the estimate from the body's size; output is the number of
    content chunks, a lower bound at about one token each. An attempt that never reached a model, or
    was refused by status, is `NOT_BILLED`."""
    usage = record.usage
    if usage is not None and not usage.estimated:
        return usage
    if facts.surface in WITHOUT_MODEL:
        return NOT_BILLED
    if usage is None and not record.content_chunks:
        if record.result == "ok":
            return None
        outcome = record.outcome
        if outcome is None or not outcome.reached_model or outcome.kind not in _MAY_HAVE_RUN:
            return NOT_BILLED
    input_tokens = facts.prompt_tokens
    if (
        winner is not None
        and winner.usage is not None
        and not winner.usage.estimated
        and winner.usage.input_tokens is not None
        and winner.attempt.model == record.attempt.model
    ):
        input_tokens = winner.usage.input_tokens
    output_tokens = record.content_chunks
    if usage is not None and usage.output_tokens is not None:
        output_tokens = usage.output_tokens
    return Usage(input_tokens, output_tokens, estimated=True)


def price_attempt(record: AttemptRecord, pricer: Pricer, facts: CallFacts) -> Cost:
    """USD of an attempt whose `settled_usage` stands; also finds its upper bound."""
    usage = record.settled_usage
    if usage is NOT_BILLED:
        return FREE
    if usage is None:
        usage = Usage()  # a price per request or per GPU-hour needs no counts
    cost = _price(record, pricer, usage)
    most = facts.max_output_tokens
    if usage.estimated and record.result != "ok" and record.content_chunks and most is not None:
        record.upper_bound = _price(record, pricer, usage._replace(output_tokens=most)).amount
    return cost


def _price(record: AttemptRecord, pricer: Pricer, usage: Usage) -> Cost:
    duration_s = record.duration_s
    inflight = 1.0
    if duration_s is not None and record.busy_s > 0:
        inflight = max(1.0, duration_s / record.busy_s)
    cost = UNKNOWN
    # The answer names the model that ran ("gpt-4o-2024-11-20"); a deployment's own name says
    # little.
    asked = record.attempt.model
    named = record.response_model or asked
    for model in (named,) if named == asked else (named, asked):
        cost = pricer.price(
            record.endpoint,
            model,
            usage,
            service_tier=record.service_tier,
            duration_s=duration_s,
            inflight=inflight,
            is_last_name=model == asked,
        )
        if cost.amount is not None:
            break
    return cost
