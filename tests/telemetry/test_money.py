"""Cost: checks 4, 6 and 8 of the telemetry contract, and the rules of waste."""

from __future__ import annotations

import decimal
import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from importlib import import_module

import pytest

from headway.core.model import (
    CANCELLED,
    INFINITY,
    OK,
    Attempt,
    AttemptEnded,
    AttemptKind,
    AttemptStarted,
    FailureClass,
    Outcome,
    Usage,
)
from headway.core.snapshot import Endpoint, Price
from headway.cost import FREE, Cost, Pricer, add, provider_name
from headway.record import Books, BusyTime
from headway.report import cost_per_successful_task
from headway.telemetry import Telemetry
from tests.telemetry.otlp import Pipeline
from tests.telemetry.play import E503, GPT_4O, LOST, REFUSED, Player, Try, endpoint, tokens

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function

OPENAI = Endpoint(id="o", base_url="https://api.openai.com/v1")


@pytest.mark.parametrize(
    ("model", "usage", "tier", "amount"),
    [
        ("gpt-4o", tokens(1000, 100, 600), None, "0.00275"),
        ("gpt-4o", tokens(1000, 100), None, "0.0035"),
        ("gpt-4o-2024-08-06", tokens(1000, 100), "default", "0.0035"),
        ("gpt-5", tokens(1000, 100), None, "0.00225"),
        ("gpt-5", tokens(1000, 100), "flex", "0.001125"),
        ("gpt-5", tokens(1000, 100), "priority", "0.0045"),
        ("text-embedding-3-small", tokens(1000, None), None, "0.00002"),
    ],
)
def test_market_prices_are_exact(model: str, usage: Usage, tier: str | None, amount: str) -> None:
    assert Pricer().price(OPENAI, model, usage, service_tier=tier) == (Decimal(amount), "local")


@pytest.mark.parametrize(("given", "amount"), [(100_000, "0.126"), (200_001, "0.50150250")])
def test_a_price_that_depends_on_the_prompts_size_applies_to_the_whole_call(
    given: int, amount: str
) -> None:
    google = Endpoint(id="g", base_url="https://generativelanguage.googleapis.com/v1beta/openai")
    cost = Pricer().price(google, "gemini-2.5-pro", tokens(given, 100))
    assert cost.amount == Decimal(amount)


def test_a_tier_that_the_price_list_lacks_is_an_estimate() -> None:
    cost = Pricer().price(OPENAI, "gpt-4o", tokens(1000, 100), service_tier="batch")
    assert cost == (Decimal("0.0035"), "estimated")


def test_a_well_known_name_at_an_unknown_host_is_an_estimate() -> None:
    somewhere = Endpoint(id="s", base_url="https://llm.acme.example/v1")
    assert Pricer().price(somewhere, "gpt-4o", tokens(1000, 100)).source == "estimated"


def test_the_order_of_truth() -> None:
    stated = endpoint("e", Price(input_per_mtok=Decimal(1), output_per_mtok=Decimal(2)))
    usage = tokens(1000, 100)
    pricer = Pricer()

    assert pricer.price(stated, "gpt-4o", usage._replace(provider_cost_usd=Decimal("0.5"))) == (
        Decimal("0.5"),
        "provider",
    )
    assert pricer.price(stated, "gpt-4o", usage) == (Decimal("0.0012"), "local")
    assert pricer.price(OPENAI, "gpt-4o", usage) == (Decimal("0.0035"), "local")
    assert pricer.price(OPENAI, "nobody-knows", usage) == (None, "unknown")
    assert pricer.price(stated, "m", usage._replace(estimated=True)).source == "estimated"


@pytest.mark.parametrize(
    ("price", "usage", "amount"),
    [
        (GPT_4O, tokens(1000, 100, 600), "0.00275"),
        (Price(input_per_mtok=Decimal(2)), tokens(1000, 0, 600), "0.002"),
        (
            Price(input_per_mtok=Decimal(2), cache_write_per_mtok=Decimal("2.5")),
            Usage(1000, 0, 100, 200),
            "0.0021",
        ),
        (Price(per_request=Decimal("0.01")), Usage(), "0.01"),
        (Price(per_request=Decimal("0.01"), input_per_mtok=Decimal(1)), tokens(1000, 0), "0.011"),
        (Price(input_per_mtok=Decimal(1)), tokens(1000, 5), None),
        (GPT_4O, tokens(100, 5, 200), None),
        (GPT_4O, tokens(100, -5), None),
        (GPT_4O, Usage(), None),
    ],
)  # fmt: skip
def test_policy_prices(price: Price, usage: Usage, amount: str | None) -> None:
    cost = Pricer().price(endpoint("e", price), "m", usage)
    assert cost.amount == (None if amount is None else Decimal(amount))


def test_a_gpu_hour_is_shared_by_those_who_used_it() -> None:
    price = Price(per_gpu_hour=Decimal(4), gpus=Decimal(2), slots=16)
    gpu = endpoint("g", price)

    cost = Pricer().price(gpu, "m", Usage(), duration_s=3.2, inflight=8)
    assert cost == (Decimal("0.000888888889"), "local")
    capped = Pricer().price(gpu, "m", Usage(), duration_s=3.2, inflight=32)
    assert capped.amount == Decimal("0.000444444444")


def test_the_charges_of_overlapping_attempts_add_up_to_the_busy_time() -> None:
    busy = BusyTime()
    a = busy.start(0.0)
    b = busy.start(10.0)
    c = busy.start(20.0)
    charged_b = busy.stop(20.0, b)
    charged_a = busy.stop(30.0, a)
    charged_c = busy.stop(40.0, c)

    assert (charged_a, charged_b, charged_c) == (20.0, 5.0, 15.0)  # 40 s busy in all
    assert busy.stop(35.0, busy.start(39.0)) == 0.0  # instants out of order cost nothing


def test_attempts_at_a_gpu_pay_for_its_busy_time_between_them() -> None:
    play = Player(Books(), endpoint("g", Price(per_gpu_hour=Decimal(36))))
    with tasks.task("t") as task:
        first, second = play.open(), play.open()
        a, b = play.start(first, Try("g"), 1), play.start(second, Try("g"), 1)
        play.end(first, Try("g", seconds=10), a)
        play.finish(first, a, OK)
        play.now -= 10
        play.end(second, Try("g", seconds=10), b)
        play.finish(second, b, OK)
    assert first.cost == second.cost == (Decimal("0.05"), "local")
    assert task.cost == Decimal("0.1")  # 10 s at a cent per second


def test_an_end_that_is_told_before_its_beginning_is_charged_nothing_of_others() -> None:
    """Threads deliver what they caused: one may cancel a call before another has told of its send."""
    play = Player(Books(), endpoint("g", Price(per_gpu_hour=Decimal(36))))
    play(Try("g", seconds=1000))
    crossed = play.open()
    attempt = Attempt(1, AttemptKind.INITIAL, "g", "m", play.now, INFINITY, INFINITY, INFINITY)
    crossed.on_event(AttemptEnded(2, attempt, CANCELLED, "cancelled", 0.0, play.now))
    crossed.on_event(AttemptStarted(2, attempt, play.now))
    assert crossed.attempts[0].busy_s == 0.0

    with tasks.task("t") as task:
        play(Try("g", seconds=10))
    assert task.cost == Decimal("0.1")  # alone, as far as the meter knows


@pytest.mark.parametrize(
    ("step", "facts", "amount", "source"),
    [
        (Try(outcome=E503), {}, "0", "local"),
        (Try(outcome=REFUSED), {}, "0", "local"),
        (Try(outcome=CANCELLED), {"prompt_tokens": 1000}, "0.0025", "estimated"),
        (
            Try(outcome=Outcome(FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN)),
            {"prompt_tokens": 1000},
            "0.0025",
            "estimated",
        ),
        (
            Try(outcome=Outcome(FailureClass.INCOMPLETE_STREAM), chunks=10, ttft_s=0.1),
            {"prompt_tokens": 1000, "stream": True},
            "0.0026",
            "estimated",
        ),
        (Try(outcome=CANCELLED, usage=tokens(1000, 7)), {}, "0.00257", "local"),
    ],
)
def test_what_an_attempt_without_an_answer_costs(
    step: Try, facts: dict[str, object], amount: str, source: str
) -> None:
    with tasks.task("t") as task:
        record = Player(Books())(step, **facts)
    assert record.cost == (Decimal(amount), source)
    assert record.wasted == Decimal(amount)
    assert task.wasted == Decimal(amount)


def test_an_estimate_of_a_loser_is_not_taken_from_another_model() -> None:
    with tasks.task("t"):
        record = Player(Books())(
            replace(LOST, model="gpt-4o-mini"),
            Try("us-1", usage=tokens(1000, 0)),
            prompt_tokens=400,
        )
    assert record.wasted == Decimal("0.001")


def test_a_million_costs_add_up_to_the_last_digit() -> None:
    decimal.setcontext(decimal.Context(prec=6))
    try:
        total = Decimal(0)
        one = Decimal("0.00275")
        for _ in range(1_000_000):
            total = add(total, one)
    finally:
        decimal.setcontext(decimal.DefaultContext.copy())
    assert total == 2750


def test_a_task_of_many_calls_costs_their_exact_sum() -> None:
    play = Player(Books())
    with tasks.task("t") as task:
        for _ in range(1000):
            play(Try(usage=tokens(1000, 100, 600)))
    assert task.cost == Decimal("2.75")
    assert task.tokens == 1_100_000


def test_ten_tasks_have_one_cost_per_success_everywhere(play: Player, pipeline: Pipeline) -> None:
    cent = Usage(10, 1, provider_cost_usd=Decimal("0.01"))
    done = []
    for number in range(10):
        try:
            with tasks.task("t") as task:
                done.append(task)
                play(Try(usage=cent))
                if number < 4:
                    task.succeed()
                elif number < 7:
                    task.fail("no")
                elif number < 9:
                    raise RuntimeError("boom")
        except RuntimeError:
            pass
    seen = pipeline.flush()

    from_api = cost_per_successful_task(
        sum((t.cost or Decimal(0) for t in done), Decimal(0)),
        sum(t.outcome == "success" for t in done),
    )
    assert from_api == Decimal("0.025")
    spans = seen.named("invoke_workflow t")
    spent = sum((Decimal(str(s.attributes["headway.cost.amount"])) for s in spans), Decimal(0))
    won = sum(s.attributes["headway.task.outcome"] == "success" for s in spans)
    assert cost_per_successful_task(spent, won) == Decimal("0.025")
    cost, duration = seen.metrics["headway.task.cost"], seen.metrics["headway.task.duration"]
    total = sum(p.sum or 0.0 for p in cost.points)
    assert round(total / (duration.point(outcome="success").count or 0), 15) == 0.025
    counts = {p.attributes["headway.task.outcome"]: p.count for p in duration.points}
    assert counts == {"success": 4, "failure": 3, "error": 2, "unknown": 1}
    assert cost.unit == "{USD}"
    assert cost_per_successful_task(Decimal("0.1"), 0) is None


def test_an_unknown_model_is_said_to_be_unknown_once(
    pipeline: Pipeline, make_telemetry: Callable[..., Telemetry], caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = make_telemetry(pipeline)
    play = Player(
        Books(pricer=Pricer(telemetry.price_unknown), observer=telemetry), endpoint("e", None)
    )
    with caplog.at_level(logging.WARNING, "headway"), tasks.task("t") as task:
        for _ in range(100):
            record = play(Try("e", usage=tokens(1000, 100)), model="made-up-1")
    play.books.pricer.wait()
    seen = pipeline.flush()

    assert record.cost == Cost(None, "unknown")
    assert task.cost is None
    assert task.cost_complete is False
    call = seen.named("chat made-up-1")[0].attributes
    assert call["headway.cost.source"] == "unknown"
    assert call["headway.cost.complete"] is False
    assert "headway.cost.amount" not in call
    assert "headway.cost.amount" not in seen.one("invoke_workflow t").attributes
    assert "headway.task.cost" not in seen.metrics
    assert len(seen.events("headway.price.unknown")) == 1
    [told] = [r.getMessage() for r in caplog.records if "no price is known" in r.getMessage()]
    assert "model made-up-1 of openai" in told


def test_known_and_unknown_parts_make_a_lower_bound_that_says_so(play: Player) -> None:
    with tasks.task("t") as task:
        play(Try(usage=tokens(1000, 100)))
        play(Try(usage=None))  # answered, but nobody counted
    assert task.cost == Decimal("0.0035")
    assert task.cost_source == "unknown"
    assert task.cost_complete is False


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com./v1", "openai"),
        ("https://acme.openai.azure.com/", "azure.ai.openai"),
        ("https://acme.services.ai.azure.com/models", "azure.ai.inference"),
        ("https://OpenRouter.ai/api/v1", "openrouter"),
        ("https://evil-openrouter.ai/api/v1", "openai"),
        ("https://bedrock-runtime.us-east-1.amazonaws.com", "aws.bedrock"),
        ("https://us-central1-aiplatform.googleapis.com/v1", "gcp.vertex_ai"),
        ("https://evilapi.openai.com.example/v1", "openai"),
        ("http://127.0.0.1:8000/v1", "openai"),
        ("https://vpce-1.bedrock-runtime.us-east-1.vpce.amazonaws.com", "aws.bedrock"),
        ("https://bedrock-mantle.us-east-1.api.aws/v1", "aws.bedrock"),
        ("https://vllm-1.us-east-1.elb.amazonaws.com/v1", "openai"),
        ("https://ec2-3-4-5-6.compute-1.amazonaws.com/v1", "openai"),
    ],
)
def test_the_provider_is_told_by_its_host(url: str, name: str) -> None:
    assert provider_name(Endpoint(id="e", base_url=url)) == name


def test_what_costs_nothing_leaves_the_source_of_what_does(play: Player) -> None:
    with tasks.task("t") as task:
        record = play(
            Try("us-1", outcome=E503), Try("eu-1", usage=tokens(1000, 100), kind=AttemptKind.RETRY)
        )

    assert record.attempts[0].cost == FREE
    assert record.cost.source == task.cost_source == "local"
    assert set(task.cost_by_source) == {"local"}
