"""A tenant's budget: what the policy gives it, what its calls cost, and when they are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import openai
import pytest

import headway
from headway.testing import FakeClock
from tests.servers import SSE, R, Server, chunk, completion, error

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
CENT = {"per_request": "0.01"}


def document(url: str, **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {"a": {"base_url": url, "price": CENT}},
        "routes": [{"match": {"model": "m"}, "weights": {"a": 1}}],
        "tenants": {"acme": {"max_cost": "0.03"}, "*": {"max_cost": "0.01", "period_s": 3600}},
        **changes,
    }


Made = tuple[headway.Router, openai.OpenAI, FakeClock]


@pytest.fixture
def make() -> Iterator[Callable[..., Made]]:
    opened: list[headway.Router | openai.OpenAI] = []

    def made(server: Server, mode: str = "enforce", **changes: Any) -> Made:
        clock = FakeClock()
        router = headway.Router(
            document(server.url, **changes), allow_unsigned=True, clock=clock, mode=mode
        )
        client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
        opened.extend([client, router])
        return router, router.wrap(client), clock

    yield made
    for one in opened:
        one.close()


def ask(client: openai.OpenAI, tenant: str | None = "acme", **more: Any) -> Any:
    with headway.options(tenant=tenant):
        return client.chat.completions.create(**{**ASK, **more})


def used(router: headway.Router) -> dict[str, Decimal]:
    return {row.tenant: row.used for row in router.status().tenants}


def test_a_tenant_spends_its_budget_and_no_more_until_it_resets(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, clock = make(server)
        for _ in range(3):
            ask(client)
        with pytest.raises(headway.TaskLimitExceeded) as caught:
            ask(client)
        assert len(server.hits) == 3
        refusal = caught.value
        assert isinstance(refusal, openai.APIStatusError)
        assert (refusal.status_code, refusal.reason) == (402, "tenant_max_cost")
        assert str(refusal) == (
            "Tenant 'acme' can't carry another call: its budget of 0.03 USD is used up; "
            "it resets at 2023-11-15T00:00:00Z, in 6400 s."
        )
        assert refusal.retry_after_s == pytest.approx(6400)
        assert refusal.response.headers["x-should-retry"] == "false"
        assert refusal.request.url.path == "/v1/chat/completions"

        clock.advance(6399.0)
        with pytest.raises(headway.TaskLimitExceeded):
            ask(client)
        clock.advance(1.0)
        ask(client)
        [row] = router.status().tenants
        assert row == ("acme", Decimal("0.03"), Decimal("0.01"), None, pytest.approx(86400))


def test_tenants_that_are_not_named_have_a_budget_each(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, _ = make(server)
        for tenant in ("b", "c"):
            ask(client, tenant)
            with pytest.raises(headway.TaskLimitExceeded, match=f"Tenant '{tenant}' .* 0.01 USD"):
                ask(client, tenant)
        ask(client, "acme")
        assert used(router) == dict.fromkeys(("b", "c", "acme"), Decimal("0.01"))


def test_calls_of_nobody_and_of_tenants_without_a_budget_just_go(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, _ = make(server, tenants={"acme": {"max_cost": "0"}})
        for tenant in (None, "b"):
            ask(client, tenant)
        client.chat.completions.create(**ASK)
        assert used(router) == {}
        with pytest.raises(headway.TaskLimitExceeded, match="budget of 0 USD"):
            ask(client)


def test_usage_that_is_reported_takes_the_place_of_the_estimate(make: Callable[..., Made]) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005}
    price = {"input_per_mtok": "1", "output_per_mtok": "10"}
    with Server(R(200, completion("hi") | {"usage": usage})) as server:
        router, client, _ = make(
            server,
            endpoints={"a": {"base_url": server.url, "price": price}},
            routes=[{"weights": {"a": 1}, "expected_tokens": {"output": 2000}}],
            tenants={"acme": {"max_cost": "0.021"}},
        )
        ask(client)
        assert used(router) == {"acme": Decimal("0.00105")}
        with pytest.raises(headway.TaskLimitExceeded):
            ask(client)  # two thousand tokens are expected again
        ask(client, max_tokens=100)
        assert used(router) == {"acme": Decimal("0.0021")}


def test_a_stream_is_counted_when_it_is_over(make: Callable[..., Made]) -> None:
    usage = {"prompt_tokens": 2000, "completion_tokens": 3, "total_tokens": 2003}
    parts = [chunk("a"), chunk("b"), chunk(None, usage=usage), b"data: [DONE]\n\n"]
    price = {"input_per_mtok": "10", "output_per_mtok": "0"}
    with Server(SSE(parts)) as server:
        router, client, _ = make(server, endpoints={"a": {"base_url": server.url, "price": price}})
        with headway.options(tenant="acme"):
            stream = client.chat.completions.create(stream=True, **ASK)
        reserved = used(router)["acme"]
        assert 0 < reserved < Decimal("0.02")
        assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "ab"
        assert used(router) == {"acme": Decimal("0.02")}


def test_what_costs_nothing_gives_back_what_was_reserved(make: Callable[..., Made]) -> None:
    price = {"input_per_mtok": "10", "output_per_mtok": "10"}
    with Server(R(503, error("down"))) as server:
        router, client, _ = make(server, endpoints={"a": {"base_url": server.url, "price": price}})
        with pytest.raises(openai.InternalServerError):
            ask(client)
        assert used(router) == {"acme": 0}

        with headway.task("t", max_calls=0), pytest.raises(headway.TaskLimitExceeded) as caught:
            ask(client)
        assert caught.value.reason == "max_calls"
        assert used(router) == {"acme": 0}


def test_what_no_route_takes_costs_nobody_knows_what(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, _ = make(server)
        ask(client, model="other")
        assert used(router) == {"acme": 0}
        assert len(server.hits) == 1


def test_without_a_store_a_process_keeps_to_its_share(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        _, client, _ = make(
            server, tenants={"acme": {"max_cost": "0.08"}}, shares={"client_count": 4}
        )
        ask(client)
        ask(client)
        with pytest.raises(headway.TaskLimitExceeded, match="as far as it is this process's share"):
            ask(client)


def test_who_only_observes_is_told_what_would_have_been(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, _ = make(server, mode="observe", tenants={"acme": {"max_cost": "0"}})
        ask(client)
        assert used(router) == {"acme": Decimal("0.01")}
        assert router.status().observed.refused == 1


def test_no_answer_is_shared_or_kept_across_tenants(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, _ = make(
            server,
            routes=[{"weights": {"a": 1}, "coalesce": True, "cache": {"enabled": True}}],
            tenants={"*": {"max_cost": "1"}},
        )
        for tenant in ("a", "b", "a", "b", None, None):
            ask(client, tenant, temperature=0)
        assert len(server.hits) == 3
        assert used(router) == {"a": Decimal("0.01"), "b": Decimal("0.01")}


def test_a_new_policy_raises_a_budget_and_keeps_what_was_used(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, clock = make(server)
        for _ in range(3):
            ask(client)
        raised = document(server.url, tenants={"acme": {"max_cost": "0.04"}}, version=2)
        router.engine.swap(headway.Policy.load(raised).compile(), clock())
        ask(client)
        with pytest.raises(headway.TaskLimitExceeded):
            ask(client)


@pytest.mark.parametrize("tenant", ["", "x" * 201])
def test_a_tenants_name_has_bounds(tenant: str) -> None:
    with pytest.raises(ValueError, match="tenant must have 1 to 200 characters"):
        headway.options(tenant=tenant)


def test_an_inner_scope_keeps_the_tenant_and_may_name_another(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, client, _ = make(server)
        with headway.options(tenant="acme"), headway.task("t"), headway.options(priority=1):
            client.chat.completions.create(**ASK)
            with headway.options(tenant="other"):
                client.chat.completions.create(**ASK)
        assert used(router) == {"acme": Decimal("0.01"), "other": Decimal("0.01")}


async def test_async_calls_are_paid_by_their_tenants(make: Callable[..., Made]) -> None:
    with Server(R(200, completion("hi"))) as server:
        router, _, _ = make(server)
        async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as plain:
            client = router.wrap(plain)
            with headway.options(tenant="b"):
                await client.chat.completions.create(**ASK)
                with pytest.raises(headway.TaskLimitExceeded):
                    await client.chat.completions.create(**ASK)
