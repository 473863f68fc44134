"""One framework's way of working, through a failover, held against what the endpoints saw.

Endpoint A fails: a 503, then resets, for as long as it is asked. Endpoint B answers
(`tests.frameworks.answers`). One router, one price list. A way of working is run twice, each time as
one task and, where it is async, on an event loop of its own: what frameworks do to a client that is
made once. What must hold each time:

- the answer is right,
- the task has every call and attempt, and B's requests are exactly its calls,
- its cost is what B's token counts cost, to the last digit, and nothing of it was wasted,
- one span for the task, every call's span below it, every attempt's below its call, and the calls'
  costs and token counts add up to the task's;
- over both: A was asked four times at most, and no connection or attempt is left open.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.frameworks.answers import PRICE, Answers
from tests.servers import R, Rst, Server, error

Way = Callable[[dict[str, Any]], Any]
"""Runs an agent with what the page's code defined; returns the text of its answer."""
ROUNDS = 2
SETTLES_S = 5.0
ROOT = Path(__file__).resolve().parents[2]
FAILURES_MAX = 4
"""Requests a failing endpoint gets: three until its breaker opens, and one repeat of what may have been
a stale connection, because it had answered before (a 503 is an answer)."""


_kept: list[object] = []
"""Plain clients. One whose event loop is gone can't be closed, and complains when collected."""


@dataclass
class Stage:
    """Two endpoints, a router over them, and its clients."""

    failing: Server
    serving: Server
    answers: Answers
    router: Any
    sync: Any
    client: Any

    def close(self) -> None:
        self.sync.close()
        asyncio.run(self.client.close())
        self.router.close()
        self.failing.close()
        self.serving.close()


def document(urls: Mapping[str, str]) -> dict[str, Any]:
    """The first endpoint is asked while it can be had, then the others in turn."""
    first, *others = urls
    return {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {name: {"base_url": url, "price": PRICE} for name, url in urls.items()},
        "routes": [{"weights": {first: 1}, "fallback": [{"endpoint": name} for name in others]}],
    }


def stage() -> Stage:
    """Both endpoints, and clients as the page's first block makes them."""
    import openai

    import headway

    answers = Answers()
    failing = Server(R(503, error("down")), Rst()).__enter__()
    serving = Server(answers).__enter__()
    router = headway.Router(document({"a": failing.url, "b": serving.url}))
    options: dict[str, Any] = {"base_url": failing.url, "api_key": "sk-own"}
    return Stage(
        failing,
        serving,
        answers,
        router,
        sync=headway.wrap(openai.OpenAI(**options), router=router),
        client=headway.wrap(openai.AsyncOpenAI(**options), router=router),
    )


def rehearse(way: Way, names: Callable[[Any, Any], dict[str, Any]]) -> None:
    """The same with plain clients and an endpoint that works: that it answers is not our doing."""
    import openai

    with Server(Answers()) as serving:
        options: dict[str, Any] = {"base_url": serving.url, "api_key": "sk-own"}
        clients = openai.OpenAI(**options), openai.AsyncOpenAI(**options)
        _kept.append(clients)
        answer = run(way, names(*clients))
        assert "5" in answer, f"with plain clients the answer is {answer!r}"


def perform(
    way: Way, names: Callable[[Any, Any], dict[str, Any]], spans: Callable[[], list[Any]]
) -> dict[str, Any]:
    """Run it through the failover and check; returns what was counted."""
    import headway

    here = stage()
    scopes: set[str] = set()
    try:
        defined = names(here.sync, here.client)
        for _ in range(ROUNDS):
            before = [len(here.failing.hits), len(here.serving.hits), len(here.answers.counts)]
            spans()
            with headway.task("sum") as task:
                answer = run(way, defined)
                task.succeed()
            _settle(here)
            failed = len(here.failing.hits) - before[0]
            served = len(here.serving.hits) - before[1]
            counts = here.answers.counts[before[2] :]
            assert "5" in answer, answer
            assert task.calls == served >= len(counts) > 0, (task.calls, served, len(counts))
            assert task.attempts == failed + served, (task.attempts, failed, served)
            cost = sum((c.cost for c in counts), Decimal(0))
            # What failed attempts cost is an estimate: nothing. What was answered was counted.
            by_source = {source: usd for source, usd in task.cost_by_source.items() if usd}
            assert (task.cost, by_source) == (cost, {"local": cost}), (task.cost, by_source, cost)
            assert (task.cost_complete, task.wasted) == (True, Decimal(0)), task.wasted
            assert task.input_tokens == sum(c.given for c in counts)
            assert task.output_tokens == sum(c.written for c in counts)
            scopes |= _check_tree(spans(), task, failed)
        failures = len(here.failing.hits)
        assert 0 < failures <= FAILURES_MAX, f"the failing endpoint was asked {failures} times"
        return {
            "calls": len(here.serving.hits),
            "failures": failures,
            "call_spans_of": sorted(scopes),
        }
    finally:
        here.close()


def run(way: Way, names: dict[str, Any]) -> str:
    """The text of the answer, from a way of either colour."""
    if inspect.iscoroutinefunction(way):
        return str(asyncio.run(way(names)))
    return str(way(names))


def _settle(here: Stage) -> None:
    # A framework may leave a stream to the collector; its end is told once it was collected.
    gc.collect()
    until = time.monotonic() + SETTLES_S
    while any(row.in_flight for row in here.router.status().endpoints):
        assert time.monotonic() < until, f"attempts left open: {here.router.status().endpoints}"
        time.sleep(0.01)


# --------------------------------------------------------------------------- spans


def _check_tree(spans: list[Any], task: Any, failed: int) -> set[str]:
    """Returns the instrumentation scopes of the calls' spans: ours, or a framework's own."""
    by_id = {span.context.span_id: span for span in spans}
    attempts = [span for span in spans if span.name == "headway.attempt"]
    roots = [span for span in spans if "headway.task.outcome" in (span.attributes or {})]
    shown = "\n".join(f"  {s.name} < {_parent(s, by_id)}" for s in spans)
    assert len(roots) == 1, f"{len(roots)} task spans:\n{shown}"
    [root] = roots
    assert len(attempts) == task.attempts, f"{len(attempts)} attempts:\n{shown}"
    assert all(s.parent is not None for s in attempts), shown
    calls = {s.parent.span_id: by_id.get(s.parent.span_id) for s in attempts}
    assert None not in calls.values(), f"an attempt below a span that never ended:\n{shown}"
    assert len(calls) == task.calls, f"{len(calls)} call spans:\n{shown}"
    for call in calls.values():
        assert _is_below(call, root, by_id), f"{call.name} is not below the task:\n{shown}"
        assert call.status.status_code.name != "ERROR", f"{call.name}: {call.status.description}"
    failures = [s for s in attempts if s.status.status_code.name == "ERROR"]
    assert len(failures) == failed, f"{len(failures)} attempts failed, not {failed}:\n{shown}"
    assert root.attributes["headway.task.outcome"] == "success"
    assert root.attributes["headway.cost.amount"] == float(task.cost)
    figures = [call.attributes for call in calls.values()]
    cost = sum(Decimal(str(f["headway.cost.amount"])) for f in figures)
    assert cost == task.cost, f"the calls' costs add up to {cost}, the task's is {task.cost}"
    given = sum(f.get("gen_ai.usage.input_tokens", 0) for f in figures)
    written = sum(f.get("gen_ai.usage.output_tokens", 0) for f in figures)
    assert (given, written) == (task.input_tokens, task.output_tokens), (given, written)
    return {call.instrumentation_scope.name for call in calls.values()}


def _parent(span: Any, by_id: Mapping[int, Any]) -> str:
    if span.parent is None:
        return "-"
    found = by_id.get(span.parent.span_id)
    return "?" if found is None else found.name


def _is_below(span: Any, root: Any, by_id: Mapping[int, Any]) -> bool:
    while span.parent is not None:
        span = by_id.get(span.parent.span_id)
        if span is None:
            return False
        if span is root:
            return True
    return False
