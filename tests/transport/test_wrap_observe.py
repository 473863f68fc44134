"""Observing, a call is never refused or changed: what it comes to is on its account all the same, and
so is what would have been done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import openai
import pytest

from headway.core.model import AttemptEnded
from headway.core.snapshot import Endpoint, Price, Snapshot
from headway.errors import DeadlineExceeded, TaskLimitExceeded
from headway.task import options, task
from tests.servers import DONE, FIN, OK, ROLE, SSE, USAGE, R, chunk, error
from tests.transport.hosts import Host, policy

PRICE = Price(input_per_mtok=Decimal(1_000_000), output_per_mtok=Decimal(0))
"""A dollar per input token."""


def priced(url: str, **more: Any) -> Endpoint:
    return Endpoint(id="a", base_url=url, price=PRICE, **more)


def in_mode(snapshot: Snapshot, mode: str | None) -> Snapshot:
    [route] = snapshot.routes
    return replace(snapshot, routes=(replace(route, mode=mode),))


# --------------------------------------------------------------------------- caps


@pytest.mark.parametrize("where", ["router", "route"])
def test_an_observed_call_is_not_capped_but_known_to_have_been_over_the_cap(
    where: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    made = policy({"a": priced(a.url)})
    host = Host(made, mode="observe") if where == "router" else Host(in_mode(made, "observe"))
    client = caller(a.url, host)

    with task("t", max_calls=1) as over:
        client.chat()
        client.chat()

    assert (over.calls, over.attempts, over.cost) == (2, 2, Decimal(2))
    first, second = host.records
    assert first.rejection is None
    assert second.rejection is not None
    assert second.rejection.reason == "max_calls"
    assert host.status().observed == (2, 0, 1, 0)


@pytest.mark.parametrize("where", ["router", "route"])
def test_an_observed_call_runs_past_its_tasks_deadline(
    where: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    made = policy({"a": priced(a.url)})
    host = Host(made, mode="observe") if where == "router" else Host(in_mode(made, "observe"))
    client = caller(a.url, host)

    with task("t", deadline=1e-9) as late:
        assert client.chat().choices[0].message.content == "hello"

    assert (late.calls, late.cost) == (1, Decimal(1))
    assert host.records[0].rejection is not None
    assert host.records[0].rejection.reason == "deadline"
    assert host.status().observed.refused == 1


def test_an_enforced_route_of_an_observing_router_is_capped(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    host = Host(in_mode(policy({"a": priced(a.url)}), "enforce"), mode="observe")
    client = caller(a.url, host)

    with task("t", max_calls=1):
        client.chat()
        with pytest.raises(TaskLimitExceeded):
            client.chat()
    with task("late", deadline=1e-9), pytest.raises(DeadlineExceeded):
        client.chat()

    assert len(a.hits) == 1
    assert host.status().observed.calls == 0


def test_observed_a_cap_does_not_bind_what_no_route_matches(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK)
    client = caller(a.url, Host(policy({"a": a.url}), mode="observe"))

    with task("t", max_calls=1) as one:
        client.chat()
        with options(route="nowhere"):
            client.chat()

    assert (len(a.hits), one.calls) == (2, 2)


# --------------------------------------------------------------------------- refusals


def refusing(url: str, reason: str) -> Snapshot:
    if reason == "no_endpoint":
        return policy({"a": priced(url, state="disabled")})
    return policy({"a": priced(url)})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("reason", ["no_endpoint", "deadline"])
def test_a_call_that_would_have_been_refused_is_watched(
    reason: str, stream: bool, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, chunk("Hel"), chunk("lo"), FIN, USAGE, DONE]) if stream else OK)
    host = Host(refusing(a.url, reason), mode="observe")
    client = caller(a.url, host)

    with task("t") as one, options(deadline=1e-9 if reason == "deadline" else None):
        if stream:
            assert client.text() == "Hello"
        else:
            assert client.chat().choices[0].message.content == "hello"

    [record] = host.records
    assert record.rejection is not None
    assert record.rejection.reason == reason
    [attempt] = record.attempts
    assert (attempt.endpoint.id, attempt.result, attempt.status) == ("a", "ok", 200)
    assert attempt.usage is not None
    assert (one.calls, one.attempts, one.cost) == (1, 1, Decimal(7 if stream else 1))
    assert one.cost_complete
    assert host.status().observed == (1, 0, 1, 0)
    assert host.in_flight == 0
    assert not host.named(AttemptEnded)  # the engine had no part in it


def test_what_would_have_been_refused_is_priced_where_it_ran(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(OK), serve(OK)
    made = policy({"b": Endpoint(id="b", base_url=b.url, state="disabled", price=PRICE)})
    host = Host(made, mode="observe")
    client = caller(a.url, host)

    with task("t") as one:
        client.chat()

    assert not b.hits
    [attempt] = host.records[0].attempts
    assert attempt.endpoint.id == "default"
    assert attempt.usage is not None
    assert one.cost is None  # nobody knows the price of a loopback server


def test_a_failure_that_would_have_been_refused_is_the_plain_clients(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    down = R(503, error("down"), {"retry-after-ms": "1"})
    a = serve(down, down, OK)
    host = Host(refusing(a.url, "no_endpoint"), mode="observe")
    client = caller(a.url, host, max_retries=1)

    with task("t") as failed, pytest.raises(openai.InternalServerError):
        client.chat()
    client.chat()

    assert (failed.calls, failed.attempts) == (1, 2)
    assert [r.attempt.number for r in host.records[0].attempts] == [1, 2]
    assert host.status().observed == (2, 0, 2, 0)


def test_a_call_that_would_have_waited_is_watched(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(429, error("slow"), {"retry-after": "30"}), OK)
    host = Host(policy({"a": priced(a.url)}), mode="observe")
    client = caller(a.url, host, max_retries=0)

    with pytest.raises(openai.RateLimitError):
        client.chat()
    with task("t") as one:
        client.chat()

    assert (one.calls, one.attempts, one.cost) == (1, 1, Decimal(1))
    assert host.in_flight == 0
