"""What real calls cost, to the last digit: in the API, on spans and in metrics over OTLP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import headway
from headway.report import cost_per_successful_task
from tests.e2e.fleet import MESSAGES, Fleet, document, say
from tests.e2e.replies import answer, wants_usage
from tests.servers import OK_STREAM, ROLE, SSE, R, Seen, chunk, error
from tests.telemetry.otlp import Otlp, Pipeline

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

GPT_4O = {"input_per_mtok": "2.50", "cached_input_per_mtok": "1.25", "output_per_mtok": "10"}


def any_model(urls: dict[str, str], **endpoint: Any) -> dict[str, Any]:
    made = document(urls, endpoint=endpoint)
    made["routes"][0]["match"] = {}
    return made


# --------------------------------------------------------------------------- prices


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("from_policy", [True, False], ids=["policy", "genai-prices"])
@pytest.mark.parametrize(
    ("model", "counts", "tier", "amount"),
    [
        ("gpt-4o", (1000, 100, 600), None, "0.00275"),
        ("gpt-4o", (1000, 100, 0), None, "0.0035"),
        ("gpt-5", (1000, 100, 0), "flex", "0.001125"),
        ("gpt-5", (1000, 100, 0), "priority", "0.0045"),
    ],
)
def test_a_call_costs_what_its_tokens_cost(
    model: str,
    counts: tuple[int, int, int],
    tier: str | None,
    amount: str,
    from_policy: bool,
    stream: bool,
    otel: Pipeline,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
) -> None:
    if tier is not None and (from_policy or stream):
        pytest.skip("tiers are the market's, and told by whole replies here")
    server = serve(answer(*counts, model=model, tier=tier))
    how = {"price": GPT_4O} if from_policy else {"provider": "openai"}
    client = fleet({"a": server.url}, policy=any_model({"a": server.url}, **how)).client()

    with headway.task("t") as task:
        say(client, stream=stream, model=model)
        task.succeed()
    assert (task.cost, task.cost_source) == (Decimal(amount), "local")
    seen = otel.flush()

    call = seen.one(f"chat {model}").attributes
    assert call["headway.cost.amount"] == float(amount)
    assert call["headway.cost.source"] == "local"
    assert call["headway.cost.complete"] is True
    assert call.get("headway.usage.injected", False) is stream
    assert seen.one("invoke_workflow t").attributes["headway.cost.amount"] == float(amount)
    assert seen.metrics["headway.cost"].points[0].value == float(amount)


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_hedges_loser_is_priced_by_the_winners_prompt(
    colour: str, otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    asked: list[Seen] = []
    winner, loser = answer(1000, 100), answer(1, 1, text="late", delay=1.0)

    def step(seen: Seen) -> Any:
        asked.append(seen)
        return loser(seen) if len(asked) == 1 else winner(seen)

    route = {"hedge": {"enabled": True, "delay_ms": 30, "max_extra_fraction": 1.0}}
    made = fleet(
        {"a": serve(step).url, "b": serve(step).url}, route=route, endpoint={"price": GPT_4O}
    )
    with headway.task("t") as task:
        if colour == "async":
            async with made.async_client() as client:
                await client.chat.completions.create(model="m", messages=MESSAGES)
        else:
            say(made.client())
    made.ended()

    assert (task.cost, task.wasted) == (Decimal("0.0060"), Decimal("0.0025"))
    call = otel.flush().one("chat m").attributes
    assert call["headway.cost.amount"] == 0.006
    assert call["headway.cost.wasted"] == 0.0025
    assert call["headway.cost.source"] == "estimated"
    assert call["gen_ai.usage.input_tokens"] == 1000
    assert call["gen_ai.usage.output_tokens"] == 100


def test_cost_per_successful_task_is_the_same_everywhere(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    client = fleet({"a": serve(answer(10, 1, cost=0.01)).url}).client()
    done = []
    for number in range(10):
        try:
            with headway.task("t") as task:
                done.append(task)
                say(client)
                if number < 4:
                    task.succeed()
                elif number < 7:
                    task.fail("no")
                elif number < 9:
                    raise LookupError
        except LookupError:
            pass
    seen = otel.flush()

    successes = sum(t.outcome == "success" for t in done)
    spent = sum((t.cost or Decimal(0) for t in done), Decimal(0))
    assert cost_per_successful_task(spent, successes) == Decimal("0.025")
    spans = [s.attributes for s in seen.named("invoke_workflow t")]
    on_spans = sum((Decimal(str(s["headway.cost.amount"])) for s in spans), Decimal(0))
    won = sum(s["headway.task.outcome"] == "success" for s in spans)
    assert cost_per_successful_task(on_spans, won) == Decimal("0.025")
    cost, duration = seen.metrics["headway.task.cost"], seen.metrics["headway.task.duration"]
    total = sum(p.sum or 0.0 for p in cost.points)
    assert round(total / (duration.point(outcome="success").count or 0), 15) == 0.025
    counts = {p.attributes["headway.task.outcome"]: p.count for p in duration.points}
    assert counts == {"success": 4, "failure": 3, "error": 2, "unknown": 1}
    assert {s["headway.cost.source"] for s in spans} == {"provider"}
    assert cost_per_successful_task(Decimal("0.1"), 0) is None


def test_an_unknown_price_is_said_once_and_is_not_zero(
    otel: Pipeline,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = serve(answer(model="nobody-knows-1")).url
    client = fleet({"a": url}).client()

    with caplog.at_level(logging.WARNING, "headway"), headway.task("t") as task:
        for _ in range(100):
            assert say(client) == "Hello"
        task.succeed()
    assert (task.cost, task.cost_source, task.cost_complete) == (None, "unknown", False)
    seen = otel.flush()

    call = seen.named("chat m")[-1].attributes
    assert call["headway.cost.source"] == "unknown"
    assert call["headway.cost.complete"] is False
    assert "headway.cost.amount" not in call
    assert len(seen.events("headway.price.unknown")) == 1
    assert sum("no price is known" in r.getMessage() for r in caplog.records) == 1


def test_having_tokens_counted_costs_nothing(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    counted = R(200, {"object": "response.input_tokens", "input_tokens": 42})
    serving = answer(1000, 100)
    server = serve(lambda seen: counted if "input_tokens" in seen.path else serving(seen))
    client = fleet({"a": server.url}, endpoint={"price": GPT_4O}).client()

    with headway.task("t") as task:
        assert client.responses.input_tokens.count(model="m", input="hi").input_tokens == 42
        say(client)
    otel.flush()

    assert (task.calls, task.cost, task.cost_complete) == (2, Decimal("0.0035"), True)
    assert {s: usd for s, usd in task.cost_by_source.items() if usd} == {"local": Decimal("0.0035")}


# --------------------------------------------------------------------------- streamed usage


def raw_stream(client: openai.OpenAI, **options: Any) -> bytes:
    with client.chat.completions.with_streaming_response.create(
        model="m", messages=MESSAGES, stream=True, **options
    ) as reply:
        return b"".join(reply.iter_bytes())


def test_a_stream_is_counted_without_the_caller_seeing_how(
    otel: Pipeline,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    plain: Callable[..., openai.OpenAI],
) -> None:
    server = serve(answer(1000, 100, text="Hel|lo"))
    made = fleet({"a": server.url}, endpoint={"price": GPT_4O})

    with headway.task("t") as task:
        wrapped = raw_stream(made.client())
    assert wrapped == raw_stream(plain(server.url))
    assert [wants_usage(seen) for seen in server.hits] == [True, False]
    assert task.cost == Decimal("0.0035")

    with headway.task("t"):
        chunks = list(
            made.client().chat.completions.create(model="m", messages=MESSAGES, stream=True)
        )
    assert all(c.choices and c.usage is None for c in chunks)
    call = otel.flush().named("chat m")[0].attributes
    assert call["headway.usage.injected"] is True
    assert call["gen_ai.usage.output_tokens"] == 100


def test_a_caller_who_declined_usage_is_obeyed(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer(1000, 100, text="a|b|c"))
    made = fleet({"a": server.url}, endpoint={"price": GPT_4O})

    with headway.task("t") as task:
        say(made.client(), stream=True, stream_options={"include_usage": False})

    assert server.hits[0].json["stream_options"] == {"include_usage": False}
    assert task.cost_source == "estimated"
    call = otel.flush().one("chat m").attributes
    assert call["headway.cost.source"] == "estimated"
    assert "gen_ai.usage.output_tokens" not in call


def test_an_endpoint_that_refuses_stream_options_costs_one_request_once(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    refusal = R(400, error("Unrecognized request argument supplied: stream_options"))
    server = serve(lambda seen: refusal if wants_usage(seen) else OK_STREAM)
    made = fleet({"a": server.url})
    client = made.client(max_retries=0)

    with headway.task("t"):
        for _ in range(5):
            assert say(client, stream=True) == "Hello"

    assert [wants_usage(seen) for seen in server.hits] == [True] + [False] * 5
    [pool] = made.router.status().pools
    assert pool.retry_budget >= 3.0
    otel.flush()


def test_running_totals_in_a_cut_stream_are_what_it_cost(
    otel: Pipeline, serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    def running(number: int) -> bytes:
        usage = {"prompt_tokens": 1000, "completion_tokens": number, "total_tokens": 1000 + number}
        return chunk("x", usage=usage)

    cut = SSE([ROLE, running(1), running(2), running(3)], end="rst")
    made = fleet({"a": serve(cut).url}, endpoint={"price": GPT_4O})

    with pytest.raises(headway.StreamInterrupted) as caught, headway.task("t") as task:
        say(made.client(), stream=True)
    made.ended()

    assert caught.value.partial.text == "xxx"
    assert caught.value.usage is not None
    assert caught.value.usage.output_tokens == 3
    assert task.cost == task.wasted == Decimal("0.00253")
    call = otel.flush().one("chat m")
    assert call.status == "ERROR"
    assert call.attributes["gen_ai.response.finish_reasons"] == ["error"]


# --------------------------------------------------------------------------- sampling


def test_what_is_not_sampled_is_counted_all_the_same(
    otel_with: Callable[..., Pipeline],
    otlp: Otlp,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
) -> None:
    found: list[dict[str, Any]] = []
    spans: list[int] = []
    for sampler in (ALWAYS_ON, ALWAYS_OFF):
        otlp.clear()
        pipeline = otel_with(sampler=sampler)
        failing = iter([R(503, error("down"))])
        serving = answer(1000, 100, 600)

        def step(seen: Seen, failing: Any = failing, serving: Any = serving) -> Any:
            return next(failing, None) or serving(seen)

        made = fleet(
            {"a": serve(step).url, "b": serve(step).url},
            endpoint={"price": GPT_4O},
            route={"weights": {"a": 1}, "fallback": [{"endpoint": "b"}]},
        )
        client = made.client()
        for number in range(20):
            with headway.task(f"t{number % 3}") as task:
                say(client, stream=bool(number % 2))
                task.succeed() if number % 5 else task.fail("no")
        seen = pipeline.flush()
        spans.append(len(seen.spans))
        found.append(_money_of(seen))

    assert spans == [61, 0]
    assert found[0] == found[1]
    assert found[0]["headway.task.cost"]


def _money_of(seen: Otlp) -> dict[str, Any]:
    """Counts and amounts, but for the ports of this run."""
    names = ["headway.task.cost", "headway.task.outcomes", "headway.cost", "headway.attempts"]
    names += [n for n in seen.metrics if n.startswith("gen_ai.") and "usage" in n]
    return {
        name: {
            tuple(sorted((k, str(v)) for k, v in p.attributes.items() if k != "server.port")): (
                p.value,
                p.count,
                p.sum,
            )
            for p in seen.metrics[name].points
        }
        for name in names
    }
