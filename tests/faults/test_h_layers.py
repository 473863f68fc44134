"""Retries upon retries, storms, what is hidden, and what is counted twice or not at all."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import openai
import pytest
import tenacity
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import headway
import headway.tenacity
from headway.core.snapshot import HedgePolicy, Price, RetryPolicy
from headway.telemetry import configure, install, telemetry
from tests.faults.bench import Bench, Fault, fault, play, plays_of
from tests.faults.streams import ALL, HELLO, script
from tests.servers import OK, R, Seen, Step, completion, error

SECTION = "H. Layers and accounts"
DEFAULT = RetryPolicy()
BUDGET = int(DEFAULT.budget_start)

# A price of its own: that of the market is looked up beside the first call, and ends its span later.
PRICE = Price(input_per_mtok=Decimal(1_000_000), output_per_mtok=Decimal(2_000_000))
PRICED = {name: {"price": PRICE} for name in "ab"}

# --------------------------------------------------------------------------- stacked retries


def outage(name: str, title: str, step: Step, calls: int = 100) -> None:
    """Calls one after another: in an outage they cost what they are, and the budget's start."""

    @fault(name, f"{title}, and {calls} calls")
    def budgeted(bench: Bench) -> None:
        a = bench.serve(step)
        client = bench.client(a, retry=DEFAULT)
        made = 5 if bench.is_plain else calls
        for _ in range(made):
            bench.call(client.chat)
        bench.observed(f"{len(a.hits) / made:.2f} requests per call")
        assert all(isinstance(seen.error, openai.APIError) for seen in bench.calls)
        # One token comes back per 300 s, and a probe of the only endpoint is a call's own attempt.
        assert len(a.hits) <= calls + BUDGET


outage("C76", "429 for ever", R(429, error("slow down", "requests", None)))
outage("C76a", "500 for ever", R(500, error("boom")))


@fault("C76b", "429 for ever, and 60 calls at once")
def outage_at_once(bench: Bench) -> None:
    a = bench.serve(R(429, error("slow down", "requests", None)))
    client = bench.client(a, retry=DEFAULT)
    calls = bench.crowd(client, 60)
    bench.observed(f"{len(a.hits) / 60:.2f} requests per call")
    assert all(isinstance(seen.error, openai.RateLimitError) for seen in calls)
    assert len(a.hits) <= 60 + BUDGET


@fault("C76e", "429 for ever, and 60 calls at once, and no policy")
def outage_at_once_without_a_policy(bench: Bench) -> None:
    a = bench.serve(R(429, error("slow down", "requests", None)))
    calls = bench.crowd(bench.unwatched(a), 60)
    bench.observed(f"{len(a.hits) / 60:.2f} requests per call")
    assert all(isinstance(seen.error, openai.RateLimitError) for seen in calls)
    assert len(a.hits) <= 60 + BUDGET


@fault("C76c", "429 for ever, under a retry loop of the application's")
def outer_loop(bench: Bench) -> None:
    a = bench.serve(R(429, error("slow down", "requests", None)))
    client = bench.client(a, retry=DEFAULT)
    tries = tenacity.stop_after_attempt(3)
    calls = 3 if bench.is_plain else 20
    for _ in range(calls):
        bench.call(tenacity.Retrying(stop=tries, reraise=True), client.chat)
    bench.observed(f"{len(a.hits) / calls:.2f} requests per call")
    assert len(a.hits) <= 3 * calls + BUDGET


@fault("C76d", "the same, where the loop asks Headway's predicates")
def outer_loop_that_asks(bench: Bench) -> None:
    a = bench.serve(R(429, error("slow down", "requests", None)))
    client = bench.client(a, retry=DEFAULT)
    if bench.is_plain:
        bench.observed("no predicates")
    loop = tenacity.Retrying(
        retry=headway.tenacity.retry(on=openai.APIError), stop=tenacity.stop_after_attempt(3)
    )
    for _ in range(20):
        bench.call(loop, client.chat)
    bench.observed(f"{len(a.hits) / 20:.2f} requests per call")
    assert len(a.hits) <= 20 + BUDGET


# --------------------------------------------------------------------------- storms


class Outage:
    """503 for a second from the first request, then answers. Remembers when it recovered."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.over_at: float | None = None

    def __call__(self, seen: Seen) -> Step:
        if self.over_at is None:
            self.over_at = seen.at + self._seconds
        return OK if seen.at >= self.over_at else R(503, b"")


@fault("C77", "200 calls at once, in an outage of a second")
@pytest.mark.slow
def storm(bench: Bench) -> None:
    outage = Outage(1.0)
    a = bench.serve(outage)
    generous = RetryPolicy(attempts_max=8, budget_start=1000, budget_capacity=1000)
    client = bench.client(a, retry=generous)
    calls = bench.crowd(client, 200)
    assert outage.over_at is not None
    after = [seen.at - outage.over_at for seen in a.hits if seen.at >= outage.over_at]
    windows = Counter(int(at / 0.05) for at in after)
    most = max(windows.values())
    answered = sum(seen.text == "hello" for seen in calls)
    bench.observed(
        f"{answered} of 200 answered; at most {most} requests in 50 ms after the recovery"
    )
    assert most <= 50
    assert answered >= 150  # on a starved machine some wait longer than their place is kept


# --------------------------------------------------------------------------- what is hidden


@fault("C79", "an endpoint that is left alone")
def ejected(bench: Bench) -> None:
    a, b = bench.serve(R(503, b"")), bench.serve(OK)
    client = bench.client(a, b)
    for _ in range(1 if bench.is_plain else 5):
        bench.call(client.chat)
    if bench.is_plain:
        bench.observed("nothing to look at")
    status = bench.host.status().endpoints[0]
    breaker = status.breakers[0]
    bench.observed(f"status: {status.endpoint_id} {breaker.state}, because of {breaker.reason}")
    assert (status.endpoint_id, breaker.state, breaker.reason) == ("a", "open", "consecutive")
    assert 0 < breaker.opens_in_s <= 30
    assert status.badness > 1
    explained = bench.host.explain(model="m", prompt="hi")
    assert "open" in repr(explained)


@fault("C79a", "an endpoint that asked for quiet")
def quiet(bench: Bench) -> None:
    a, b = bench.serve(R(429, error("x"), {"retry-after": "30"})), bench.serve(OK)
    client = bench.client(a, b)
    bench.call(client.chat)
    if bench.is_plain:
        bench.observed("nothing to look at")
    ((model, reason, left_s),) = bench.host.status().endpoints[0].out
    bench.observed(f"status: a {reason}, for {left_s / 10:.0f}0 s")
    assert (model, reason) == ("m", "throttled")
    assert 29 < left_s <= 34


# --------------------------------------------------------------------------- spans


@contextmanager
def traced() -> Iterator[InMemorySpanExporter]:
    """Spans of what is made in here, as an exporter gets them: when they end."""
    before = telemetry()
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    configure(tracer_provider=provider)
    try:
        yield exporter
    finally:
        install(before)


def read_all(bench: Bench, client: Any) -> None:
    bench.stream(client)


def leave(bench: Bench, client: Any) -> None:
    stream = opened(bench, client)
    client.take(stream, 1)
    client.run(stream.close())


def fail(bench: Bench, client: Any) -> None:
    stream = opened(bench, client)
    client.take(stream, 1)
    try:
        raise ValueError("the application's own")
    except ValueError:
        client.run(stream.close())


def forget(bench: Bench, client: Any) -> None:
    client.take(opened(bench, client), 1)
    for _ in range(200):
        gc.collect()
        if bench.host.in_flight == 0:
            return
        client.run(_moment())


async def _moment() -> None:
    time.sleep(0.005)  # whoever closes it is another thread


def twice(bench: Bench, client: Any) -> None:
    stream = opened(bench, client)
    client.drain(stream)
    for _ in range(2):
        client.run(stream.close())


def opened(bench: Bench, client: Any) -> Any:
    return client.run(bench.way.open(client.client, {}))


ENDINGS = {
    "C80": ("read to the end", read_all, ALL, "ok"),
    "C80a": ("left in the middle", leave, ("create", "responses"), "cancelled"),
    "C80b": ("left by an exception", fail, ("create", "responses"), "cancelled"),
    "C80c": ("forgotten", forget, ("create", "responses"), "cancelled"),
    "C80d": ("closed twice", twice, ("create", "responses"), "ok"),
}


def ending(name: str, title: str, end: Any, ways: tuple[str, ...], result: str) -> None:
    @fault(name, f"the span of a stream that is {title}", ways=ways)
    def spans(bench: Bench) -> None:
        if bench.is_plain:
            bench.observed("no spans")
        a = bench.serve(script(bench.way, *HELLO))
        with traced() as exporter:
            client = bench.client(a, endpoints=PRICED)
            end(bench, client)
            ended = Counter(span.name.partition(" ")[0] for span in exporter.get_finished_spans())
        bench.observed("ended, once")
        assert ended == {"chat": 1, "headway.attempt": 1} or ended == {
            "responses": 1,
            "headway.attempt": 1,
        }
        assert bench.kinds() == [result]


for name, (title, end, ways, result) in ENDINGS.items():
    ending(name, title, end, ways, result)


@fault("C80e", "the span of a stream that breaks", ways=ALL)
def broken_span(bench: Bench) -> None:
    if bench.is_plain:
        bench.observed("no spans")
    a = bench.serve(script(bench.way, *HELLO[:2], end="eof"))
    with traced() as exporter:
        bench.stream(bench.client(a, endpoints=PRICED))
        spans = exporter.get_finished_spans()
    bench.observed("ended, once, as an error")
    assert len([span for span in spans if span.name == "headway.attempt"]) == 1
    assert {span.status.status_code.name for span in spans} == {"ERROR"}


# --------------------------------------------------------------------------- money


@fault("C82", "a span and a cost of another instrumentation around the call")
def twice_counted(bench: Bench) -> None:
    a = bench.serve(OK)
    if bench.is_plain:
        bench.observed("no cost")
    other = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(other))
    tracer = provider.get_tracer("another.instrumentation")
    with traced() as exporter:
        client = bench.client(a, endpoints=PRICED)
        with (
            headway.task("work") as task,
            tracer.start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat"}),
        ):
            bench.call(client.chat)
        ours = exporter.get_finished_spans()
    spans = [*ours, *other.get_finished_spans()]
    usages = [s for s in spans if "gen_ai.usage.input_tokens" in (s.attributes or {})]
    bench.observed(f"cost {task.cost:.0f}, and {len(usages) or 'no'} usage on a span of ours")
    assert task.cost == Decimal(3)
    assert not usages
    assert [s.name for s in ours if s.name.startswith("chat")] == []


@fault("C83", "a stream that broke after some tokens")
def wasted_stream(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO[:3], end="eof"))
    if bench.is_plain:
        bench.observed("no cost")
    client = bench.client(a, endpoints=PRICED)
    with headway.task("work") as task:
        bench.stream(client)
        task.fail("broken")
    bench.observed(f"cost {task.cost:.0f}, wasted {task.wasted:.0f}")
    assert task.cost is not None
    assert task.cost > 0
    assert task.wasted == task.cost


@fault("C83a", "a hedge's loser")
def wasted_hedge(bench: Bench) -> None:
    a, b = bench.serve(R(200, completion(), delay=1.0)), bench.serve(OK)
    if bench.is_plain:
        bench.observed("no hedges")
    hedge = HedgePolicy(enabled=True, delay_s=0.02, max_extra_fraction=1.0)
    client = bench.client(a, b, endpoints=PRICED, hedge=hedge)
    with headway.task("work") as task:
        seen = bench.call(client.chat)
        task.succeed()
    bench.observed(f"answer for 3, and {'something' if task.wasted else 'nothing'} for the loser")
    assert (seen.text, bench.hits) == ("hello", (1, 1))
    assert task.cost is not None
    assert task.wasted is not None
    assert task.wasted > 0
    assert task.cost == 3 + task.wasted


@fault("C83b", "an attempt that failed after it had run")
def wasted_attempt(bench: Bench) -> None:
    spoilt = {**completion(), "choices": None, "error": {"message": "x", "code": 500}}
    a, b = bench.serve(R(200, spoilt)), bench.serve(OK)
    if bench.is_plain:
        bench.observed("no cost")
    client = bench.client(a, b, endpoints=PRICED)
    with headway.task("work") as task:
        seen = bench.call(client.chat)
        task.succeed()
    bench.observed(f"cost {task.cost:.0f}, wasted {task.wasted:.0f}")
    assert seen.text == "hello"
    assert (task.cost, task.wasted) == (Decimal(6), Decimal(3))


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
