"""The real engine's events, driven in virtual time, make the same tree."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib import import_module

from headway.core.engine import Engine
from headway.core.model import (
    CANCELLED,
    Attempt,
    CallFacts,
    FailureClass,
    Finish,
    Outcome,
    Send,
    Usage,
    Wait,
)
from headway.core.snapshot import HedgePolicy, Snapshot
from headway.record import CallRecord
from headway.telemetry import Telemetry
from tests.telemetry.otlp import Pipeline
from tests.telemetry.play import Player, endpoint, snapshot

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

OK_1000 = Outcome(FailureClass.OK, 200, input_tokens=1000, output_tokens=100)
E503 = Outcome(FailureClass.SERVER_ERROR, 503, "503")


def drive(
    engine: Engine, play: Player, script: list[tuple[float, Outcome]], now: float = 0.0
) -> CallRecord:
    """A driver without transport: attempt n takes script[n][0] seconds and ends as script[n][1]."""
    record = play.books.open_call(CallFacts("gpt-4o", prompt_tokens=900), now)
    call = engine.begin(record.facts, now, sink=record.on_event)
    assert call is not None
    record.call = call
    ends: list[tuple[float, Attempt, Outcome]] = []
    while True:
        action = call.next_action(now)
        for attempt in [a for a in call.running if a.lost]:
            call.on_outcome(attempt, CANCELLED, now)
            ends = [e for e in ends if e[1] is not attempt]
        match action:
            case Send(attempt):
                with record.sending(attempt):
                    seconds, outcome = script.pop(0)
                    ends.append((now + seconds, attempt, outcome))
            case Wait(until, _):
                soonest = min((e[0] for e in ends), default=until)
                now = min(until, soonest)
                for at, attempt, outcome in [e for e in ends if e[0] <= now]:
                    if outcome.input_tokens is not None:
                        record.attempt(attempt).usage = Usage(
                            outcome.input_tokens, outcome.output_tokens
                        )
                    call.on_outcome(attempt, outcome, at)
                    ends = [e for e in ends if e[1] is not attempt]
            case Finish():
                return record


def engine_over(policy: Snapshot, telemetry: Telemetry) -> Engine:
    return Engine(policy, rng=random.Random(1), on_event=telemetry.on_event)


def test_a_retry_through_the_engine(play: Player, telemetry: Telemetry, pipeline: Pipeline) -> None:
    engine = engine_over(snapshot(endpoint("eu-1"), endpoint("us-1")), telemetry)
    with tasks.task("t") as task:
        record = drive(engine, play, [(0.2, E503), (1.0, OK_1000)])
        task.succeed()
    seen = pipeline.flush()

    first, second = record.attempts
    assert [first.result, second.result] == ["error", "ok"]
    assert first.endpoint.id != second.endpoint.id
    assert record.winner is second
    assert (task.calls, task.attempts) == (1, 2)
    call = seen.one("chat gpt-4o")
    assert {s.parent_id for s in seen.named("headway.attempt")} == {call.span_id}
    assert call.attributes["headway.cost.amount"] == 0.0035
    assert len(seen.spans) == 4


def test_a_hedge_through_the_engine_is_settled_after_both_have_ended(
    play: Player, telemetry: Telemetry, pipeline: Pipeline
) -> None:
    policy = snapshot(endpoint("eu-1"), endpoint("us-1"))
    hedged = replace(
        policy.routes[0],
        hedge=HedgePolicy(enabled=True, delay_s=0.5, max_extra_fraction=1.0),
    )
    engine = engine_over(replace(policy, routes=(hedged,)), telemetry)
    with tasks.task("t") as task:
        record = drive(engine, play, [(9.0, OK_1000), (1.0, OK_1000)])
    seen = pipeline.flush()

    assert [a.result for a in record.attempts] == ["lost", "ok"]
    assert record.settled
    assert task.wasted == record.wasted
    assert seen.one("chat gpt-4o").attributes["headway.cost.amount"] == 0.006
    assert seen.metrics["headway.attempts"].point(kind="hedge", outcome="ok").value == 1


def test_a_total_outage_through_the_engine(
    play: Player, telemetry: Telemetry, pipeline: Pipeline
) -> None:
    engine = engine_over(snapshot(endpoint("eu-1"), endpoint("us-1")), telemetry)
    with tasks.task("t"):
        for second in range(20):
            drive(engine, play, [(0.1, E503)] * 3, now=float(second))
    seen = pipeline.flush()

    calls = seen.named("chat gpt-4o")
    assert len(calls) == 20
    assert {c.status for c in calls} == {"ERROR"}
    assert seen.metrics["headway.breaker.transitions"].points
    assert seen.events("headway.breaker.transition")
    assert sum(p.value or 0 for p in seen.metrics["headway.inflight"].points) == 0
