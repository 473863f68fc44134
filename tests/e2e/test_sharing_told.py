"""What shared calls leave on spans, in metrics and in the task log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headway
from tests.e2e.fleet import Fleet, say
from tests.e2e.replies import answer
from tests.e2e.sharing import Crowd, Gate, callers, wait_until
from tests.servers import Server
from tests.telemetry.otlp import Pipeline

PRICE = {"input_per_mtok": "2.50", "output_per_mtok": "10"}
BOTH = {"coalesce": True, "cache": {"enabled": True}}


def three_at_once_and_one_later(serve: Callable[..., Server], made: Fleet, gate: Gate) -> None:
    client = made.client()

    def call(index: int) -> None:
        with headway.task("t", id=f"task-{index}"):
            assert say(client, temperature=0) == "Hello"

    crowd = Crowd(3, call)
    wait_until(lambda: callers(made.router) == 3)
    gate.open()
    crowd.join()
    assert crowd.errors == [None] * 3
    call(3)


@pytest.fixture
def gate() -> Gate:
    return Gate(answer(1000, 100))


def test_spans_and_metrics_say_who_shared_and_what_it_saved(
    otel: Pipeline, gate: Gate, serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    server = serve(gate)
    made = fleet({"a": server.url}, route=BOTH, endpoint={"price": PRICE})

    three_at_once_and_one_later(serve, made, gate)
    seen = otel.flush()

    calls = seen.named("chat m")
    by_decision: dict[str | None, list[dict[str, Any]]] = {}
    for span in calls:
        by_decision.setdefault(span.attributes.get("headway.decision"), []).append(span.attributes)
    (led,), shared, (kept,) = by_decision[None], by_decision["share"], by_decision["avoid"]

    assert len(shared) == 2
    assert {a["headway.call.callers"] for a in (led, *shared)} == {3}
    assert sum(a["headway.cost.amount"] for a in (led, *shared, kept)) == pytest.approx(0.0035)
    assert kept["headway.cost.amount"] == 0.0
    assert kept["headway.cost.saved"] == pytest.approx(0.0035)
    assert "headway.call.callers" not in kept
    assert [a["headway.call.attempts"] for a in (led, *shared, kept)] == [1, 0, 0, 0]
    assert len(seen.named("headway.attempt")) == 1
    # Tokens were used once: only the call that made the request tells of them.
    assert [a.get("gen_ai.usage.input_tokens") for a in (led, *shared, kept)] == [
        1000, None, None, None,
    ]  # fmt: skip
    counted = seen.metrics["headway.calls.shared"]
    assert counted.point(**{"headway.decision": "share"}).value == 2
    assert counted.point(**{"headway.decision": "avoid"}).value == 1
    spent = sum(p.value for p in seen.metrics["headway.cost"].points)
    assert spent == pytest.approx(0.0035)
    saved = sum(p.value for p in seen.metrics["headway.cost.saved"].points)
    assert saved == pytest.approx(3 * 0.0035)


def test_the_task_log_says_it_too(
    gate: Gate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[..., Server],
    fleet: Callable[..., Fleet],
) -> None:
    path = tmp_path / "tasks.jsonl"
    monkeypatch.setenv("HEADWAY_TASK_LOG", str(path))
    made = fleet({"a": serve(gate).url}, route=BOTH, endpoint={"price": PRICE})

    three_at_once_and_one_later(serve, made, gate)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    calls = [line["calls"][0] for line in lines]

    assert sorted(call.get("decision", "") for call in calls) == ["", "avoid", "share", "share"]
    assert [call.get("callers") for call in calls].count(3) == 3
    kept = next(call for call in calls if call.get("decision") == "avoid")
    assert (kept["cost_usd"], kept["saved_usd"], kept["attempts"]) == ("0", "0.0035", [])
    assert sum(float(line["cost_usd"]) for line in lines) == pytest.approx(0.0035)
    assert sum(float(line["saved_usd"]) for line in lines) == pytest.approx(3 * 0.0035)
