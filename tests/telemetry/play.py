"""Plays calls: the events that the engine emits, in its order, into a real `CallRecord`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from headway.core.model import (
    CANCELLED,
    INFINITY,
    OK,
    Attempt,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    CallEnded,
    CallFacts,
    CallRejected,
    CallShared,
    FailureClass,
    FirstToken,
    Outcome,
    Rejection,
    RetryDenied,
    Usage,
)
from headway.core.snapshot import Endpoint, Price, Route, Snapshot, WeightTable
from headway.record import Books, CallRecord, share_of

GPT_4O = Price(
    input_per_mtok=Decimal("2.5"),
    cached_input_per_mtok=Decimal("1.25"),
    output_per_mtok=Decimal(10),
)
E503 = Outcome(FailureClass.SERVER_ERROR, 503, "503", reached_model=False)
REFUSED = Outcome(FailureClass.CONNECT, None, "ConnectError", reached_model=False)


def endpoint(
    name: str, price: Price | None = GPT_4O, *, base_url: str = "", provider: str | None = "openai"
) -> Endpoint:
    return Endpoint(
        id=name,
        base_url=base_url or f"https://{name}.example:8443/v1",
        price=price,
        provider=provider,
    )


def snapshot(*endpoints: Endpoint, version: int = 7) -> Snapshot:
    share = 1 / len(endpoints)
    weights = tuple((e.id, share) for e in endpoints)
    route = Route(
        name="all",
        weights=WeightTable(by_zone={"*": ((INFINITY, weights),)}),
        endpoint_ids=frozenset(e.id for e in endpoints),
    )
    return Snapshot(version=version, endpoints={e.id: e for e in endpoints}, routes=(route,))


@dataclass
class Begun:
    """Stands in for `core.call.Call`: a record needs its snapshot and route only."""

    snapshot: Snapshot

    @property
    def route(self) -> Route:
        return self.snapshot.routes[0]


@dataclass
class Try:
    """One attempt: where it goes and how it ends."""

    to: str = "eu-1"
    outcome: Outcome = OK
    usage: Usage | None = None
    kind: AttemptKind = AttemptKind.INITIAL
    model: str = ""
    response_model: str | None = None
    service_tier: str | None = None
    chunks: int = 0
    ttft_s: float | None = None
    seconds: float = 1.0
    result: str = ""
    finish: list[str] = field(default_factory=list)
    beside: bool = False
    """Overlaps the next one: it ends after the next has ended (a hedge's loser)."""
    injected: bool = False

    @property
    def ends_as(self) -> str:
        if self.result:
            return self.result
        kind = self.outcome.kind
        if kind is FailureClass.OK:
            return "ok"
        if kind is FailureClass.CANCELLED:
            return "cancelled"
        if kind in (FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN, FailureClass.STALLED):
            return "timeout"
        return "error"


class Player:
    """Plays calls against endpoints under a clock of its own."""

    def __init__(self, books: Books, *endpoints: Endpoint) -> None:
        self.books = books
        self.policy = snapshot(*(endpoints or (endpoint("eu-1"), endpoint("us-1"))))
        self.now = 100.0
        self.calls = 0
        self.while_sending: Callable[[CallRecord, Attempt], None] | None = None

    def open(
        self,
        *,
        model: str = "gpt-4o",
        stream: bool = False,
        surface: str = "chat",
        prompt_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> CallRecord:
        facts = CallFacts(
            model,
            surface,
            stream,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
        )
        record = self.books.open_call(facts, self.now)
        record.call = Begun(self.policy)  # type: ignore[assignment]
        self.calls += 1
        return record

    def start(self, record: CallRecord, step: Try, number: int) -> Attempt:
        attempt = Attempt(
            number,
            step.kind,
            step.to,
            step.model or record.facts.model,
            self.now,
            INFINITY,
            INFINITY,
            INFINITY,
        )
        record.on_event(AttemptStarted(self.calls, attempt, self.now))
        with record.sending(attempt):
            if self.while_sending is not None:
                self.while_sending(record, attempt)
        return attempt

    def end(self, record: CallRecord, step: Try, attempt: Attempt) -> None:
        seen = record.attempt(attempt)
        seen.usage = step.usage
        seen.response_model = step.response_model
        seen.service_tier = step.service_tier
        seen.content_chunks = step.chunks
        seen.finish_reasons = step.finish
        seen.usage_injected = step.injected
        if step.ttft_s is not None:
            record.on_event(FirstToken(self.calls, attempt, step.ttft_s, self.now + step.ttft_s))
        self.now += step.seconds
        record.on_event(
            AttemptEnded(self.calls, attempt, step.outcome, step.ends_as, step.seconds, self.now)
        )

    def finish(
        self, record: CallRecord, winner: Attempt | None, outcome: Outcome, denied: str = ""
    ) -> None:
        if denied:
            record.on_event(RetryDenied(self.calls, denied, self.now))
        record.on_event(CallEnded(self.calls, winner, outcome, len(record.attempts), self.now))

    def __call__(self, *steps: Try, denied: str = "", **facts: object) -> CallRecord:
        """One whole call; the last attempt that isn't a hedge's loser is surfaced."""
        record = self.open(**facts)  # type: ignore[arg-type]
        losers: list[tuple[Try, Attempt]] = []
        surfaced, outcome = None, OK
        for number, step in enumerate(steps, 1):
            attempt = self.start(record, step, number)
            if step.beside:
                attempt.lost = True
                losers.append((step, attempt))
                continue
            self.end(record, step, attempt)
            surfaced, outcome = attempt, step.outcome
        self.finish(record, surfaced, outcome, denied)
        for step, attempt in losers:
            self.end(record, step, attempt)
        return record

    def reuse(self, saved: Decimal) -> CallRecord:
        """A call that was answered from the cache."""
        record = self.open()
        share_of(record).decision = "avoid"
        share_of(record).add_saved(saved)
        record.on_event(CallShared(self.calls, "avoid", "eu-1", self.now))
        self.finish(record, None, OK)
        return record

    def refuse(self, reason: str, **facts: object) -> CallRecord:
        record = self.open(**facts)  # type: ignore[arg-type]
        record.on_event(CallRejected(self.calls, Rejection(reason), 0, self.now))
        self.finish(record, None, Outcome(FailureClass.CANCELLED, error_type=reason))
        return record


def tokens(
    given: int, made: int | None, cached: int | None = None, reasoning: int | None = None
) -> Usage:
    return Usage(given, made, cached, reasoning_tokens=reasoning)


LOST = Try(outcome=CANCELLED, result="lost", beside=True, seconds=0.1)
