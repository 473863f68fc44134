"""What a sound document means: the snapshot it is compiled to."""

from __future__ import annotations

from decimal import Decimal

import pytest

from headway.core.model import INFINITY
from headway.errors import ValidationError
from headway.policy.builtin import pass_through
from headway.policy.models import Policy
from tests.policy.samples import (
    Document,
    compiled,
    document,
    put,
    shares,
    weights,
)


def test_the_sound_document() -> None:
    snapshot = compiled(document(issued_at="2026-11-30T11:00:00Z"))

    assert (snapshot.policy_id, snapshot.epoch, snapshot.version) == ("prod-eu", 0, 7)
    assert snapshot.source == "test"
    assert snapshot.issued_at == 1796036400.0
    assert snapshot.endpoints["c"].upstream_model("chat-large") == "small"
    route = snapshot.route_for("chat-large")
    assert route is not None
    assert route.name == "chat-large"
    assert shares(weights(snapshot)) == {"a": 0.75, "b": 0.25}
    assert route.endpoint_ids == {"a", "b"}
    assert route.fallback[0].endpoint == "c"


def test_milliseconds_become_seconds() -> None:
    profile = compiled(document()).endpoints["a"].profile

    assert profile is not None
    assert profile.ttft_s.y == (0.075, 0.12, 0.52)
    assert profile.ttft_p99_s is not None
    assert profile.ttft_p99_s.y[-1] == 1.8
    assert profile.prefill_s_per_token == pytest.approx(55e-6)
    assert profile.ttft_ref_uncached_tokens == 1000


def test_everything_left_out_is_the_cores_default() -> None:
    bare = compiled(
        {
            "schema_version": "1.0",
            "version": 1,
            "endpoints": {"a": {"base_url": "https://a.example/v1/"}},
            "routes": [{"weights": {"a": 5}}],
        }
    )

    expected = pass_through("https://a.example/v1").routes[0]
    route = bare.routes[0]
    for block in (
        "selection", "affinity", "deadline", "retry", "hedge", "admission", "cache", "coalesce",
        "expected_input_tokens", "expected_output_tokens", "match", "name", "mode",
    ):  # fmt: skip
        assert getattr(route, block) == getattr(expected, block), block
    assert bare.endpoints["a"].base_url == "https://a.example/v1"


def test_a_route_is_laid_over_the_defaults_field_by_field() -> None:
    def change(d: Document) -> None:
        d["defaults"] = {
            "retry": {"max_attempts": 5, "budget": {"start": 1, "capacity": 9}, "on": ["connect"]},
            "deadline": {"total_ms": 60000, "idle_ms": 9000},
            "coalesce": True,
            "mode": "observe",
            "expected_tokens": {"input": 50},
        }
        d["routes"][0].update(
            retry={"budget": {"start": 2}, "backoff": {"cap_ms": 100}},
            deadline={"total_ms": 1500.5},
            mode="enforce",
            expected_tokens={"output": 7},
        )

    route = compiled(document(change)).routes[0]

    assert route.retry.attempts_max == 5
    assert (route.retry.budget_start, route.retry.budget_capacity) == (2, 9)
    assert (route.retry.backoff_base_s, route.retry.backoff_cap_s) == (0.5, 0.1)
    assert route.retry.on == {"connect"}
    assert (route.deadline.total_s, route.deadline.idle_s) == (1.5005, 9.0)
    assert route.deadline.ttft_s == INFINITY
    assert route.coalesce
    assert route.mode == "enforce"
    assert (route.expected_input_tokens, route.expected_output_tokens) == (50, 7)


def test_false_and_zero_in_a_route_beat_the_defaults() -> None:
    def change(d: Document) -> None:
        d["defaults"] = {
            "coalesce": True,
            "admission": {"max_queue": 9},
            "affinity": {"key": ["session"]},
        }
        d["routes"][0].update(coalesce=False, admission={"max_queue": 0}, affinity={"key": []})

    route = compiled(document(change)).routes[0]

    assert not route.coalesce
    assert route.admission.max_queue == 0
    assert route.affinity.key == ()


def test_weights_by_zone_and_size() -> None:
    change = put(
        "routes.0.weights",
        [
            {"max_prompt_tokens": 1000, "weights": {"a": 1}},
            {"weights": {"eu": {"b": 2, "a": 0}, "*": {"a": 1, "b": 1}}},
        ],
    )
    snapshot = compiled(document(change))

    assert shares(weights(snapshot, "eu", 1000)) == {"a": 1.0}
    assert shares(weights(snapshot, "eu", 1001)) == {"b": 1.0}
    assert shares(weights(snapshot, "us", 1001)) == {"a": 0.5, "b": 0.5}
    assert shares(weights(snapshot, None, 10)) == {"a": 1.0}
    assert all(table[-1][0] == INFINITY for table in snapshot.routes[0].weights.by_zone.values())


def test_without_weights_the_faster_and_larger_gets_more() -> None:
    def change(d: Document) -> None:
        slow = {"x": [0, 1], "mean": [1000, 1000]}
        d["profiles"] = {
            "fast": {
                "ttft_ms": {"x": [0, 1], "mean": [500, 500]},
                "tpot_ms": {"x": [0, 1], "mean": [0, 0]},
            },
            "slow": {"ttft_ms": slow, "tpot_ms": {"x": [0, 1], "mean": [5, 5]}},
        }
        d["endpoints"]["a"]["profile"] = "fast"
        d["endpoints"]["b"]["profile"] = "slow"
        d["routes"][0].pop("weights")

    # a: 0.5 s; b: 1 s + 200 x 5 ms = 2 s; c is a fallback, so no candidate
    assert shares(weights(compiled(document(change)))) == {"a": 0.8, "b": 0.2}

    def larger(d: Document) -> None:
        change(d)
        d["endpoints"]["a"]["capacity"] = {"concurrency": 1}
        d["endpoints"]["b"]["capacity"] = {"concurrency": 4}

    assert shares(weights(compiled(document(larger)))) == {"a": 0.5, "b": 0.5}


def test_without_weights_an_unknown_speed_is_taken_as_the_mean_of_the_known() -> None:
    change = put("routes.0", {"endpoints": ["a", "b"]})

    assert shares(weights(compiled(document(change)))) == {"a": 0.5, "b": 0.5}


def test_without_weights_and_profiles_the_weights_are_equal() -> None:
    def change(d: Document) -> None:
        d["routes"] = [{"match": {"model": ["m", "n"]}}, {}]
        d["endpoints"]["a"].pop("profile")
        d["endpoints"]["b"]["models"] = {"other": "x"}
        d["endpoints"]["d"] = {"base_url": "https://d.example", "state": "disabled"}

    snapshot = compiled(document(change))

    assert shares(weights(snapshot)) == {"a": 0.5, "c": 0.5}  # b serves only "other"
    assert shares(weights(snapshot, route=1)) == {"a": 0.333333, "b": 0.333333, "c": 0.333333}


def test_a_share_divides_capacity_but_leaves_room_for_one_call() -> None:
    def change(d: Document) -> None:
        d["shares"] = {"client_count": 4}
        d["endpoints"]["a"]["capacity"] = {"concurrency": 10, "rpm": 100, "output_tps": 8}
        d["endpoints"]["b"]["capacity"] = {"concurrency": 1}
        d["endpoints"]["a"]["price"] = {"per_gpu_hour": "2.50", "gpus": 4}

    endpoints = compiled(document(change)).endpoints

    assert endpoints["a"].capacity.concurrency == 2
    assert endpoints["a"].capacity.rpm == 25
    assert endpoints["a"].capacity.tpm is None
    assert endpoints["a"].capacity.output_tps == 2
    assert endpoints["b"].capacity.concurrency == 1
    price = endpoints["a"].price
    assert price is not None
    assert (price.per_gpu_hour, price.gpus, price.slots) == (Decimal("2.50"), Decimal(4), 10)


def test_tenants_have_budgets_by_name_or_that_of_any() -> None:
    budgets = {"acme": {"max_cost": "12.5"}, "*": {"max_cost": 1, "period_s": 60}}
    snapshot = compiled(document(tenants=budgets, shares={"share": 0.1}))

    acme, other = snapshot.budget_of("acme"), snapshot.budget_of("other")
    assert acme is not None
    assert other is not None
    assert (acme.max_cost, acme.period_s, acme.share) == (Decimal("12.5"), 86_400, 0.1)
    assert (other.max_cost, other.period_s) == (1, 60)
    assert compiled(document(tenants={"acme": {"max_cost": 0}})).budget_of("other") is None
    assert compiled(document()).budget_of("acme") is None


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({}, "tenants.acme.max_cost"),
        ({"max_cost": 0.5}, "decimal text"),
        ({"max_cost": "1000000.01"}, "1000000"),
        ({"max_cost": "1", "period_s": 59}, "60"),
        ({"max_cost": "1", "period_s": 2_678_401}, "2678400"),
        ({"max_cost": "1", "period_s": 60.0}, "period_s"),
        ({"max_cost": "1", "per_day": True}, "per_day"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(budget: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        compiled(document(tenants={"acme": budget}))
    assert "tenants.acme" in str(caught.value)


def test_money_is_exact() -> None:
    change = put("endpoints.a.price", {"input_per_mtok": "0.1", "output_per_mtok": 3})
    price = compiled(document(change)).endpoints["a"].price

    assert price is not None
    assert price.input_per_mtok == Decimal("0.1")
    assert price.output_per_mtok == Decimal(3)
    assert price.cached_input_per_mtok is None


@pytest.mark.parametrize(
    ("zone", "rtt_s"), [("eu", 0.004), ("us", 0.092), ("ap", 0.08), (None, 0.08), ("moon", 0.08)]
)
def test_round_trips_are_from_this_processs_zone(zone: str | None, rtt_s: float) -> None:
    def change(d: Document) -> None:
        d["network"] = {"default_rtt_ms": 80, "rtt_ms": {"eu": {"eu": 4, "us": 92}}}
        d["endpoints"]["a"]["zone"] = "eu"

    assert compiled(document(change), zone=zone).endpoints["a"].rtt_s == pytest.approx(rtt_s)


def test_the_same_zone_is_near_unless_said_otherwise() -> None:
    def change(d: Document) -> None:
        d["network"] = {"default_rtt_ms": 80}
        d["endpoints"]["a"]["zone"] = "eu"

    assert compiled(document(change), zone="eu").endpoints["a"].rtt_s == 0


def test_the_planned_load_is_what_the_publisher_plans() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["a"]["observed"] = {"utilization": 0.61, "planned_utilization": 0.66}
        d["endpoints"]["b"]["observed"] = {"utilization": 0.3}

    endpoints = compiled(document(change)).endpoints

    assert [endpoints[e].planned_load for e in "abc"] == [0.66, 0.3, 0.5]


def test_a_profile_over_calls_in_flight_plans_in_calls_in_flight() -> None:
    def change(d: Document) -> None:
        d["profiles"]["h100"]["load"] = "inflight"
        d["profiles"]["h100"]["ttft_ms"]["x"] = [0, 32, 64]
        d["profiles"]["h100"]["tpot_ms"]["x"] = [0, 32, 64]
        d["endpoints"]["b"] |= {"profile": "h100", "capacity": {"concurrency": 20}}
        d["endpoints"]["c"] |= {"profile": "h100", "observed": {"in_flight": 3}}

    endpoints = compiled(document(change)).endpoints

    assert [endpoints[e].planned_load for e in "abc"] == [32, 10, 3]


def test_classes_and_matches() -> None:
    def change(d: Document) -> None:
        d["classes"] = {
            "batch": {"priority": -1, "usd_per_second": "0.00001"},
            "chat": {"sheddable": False, "slo": {"ttft_p99_ms": 1000}},
        }
        d["routes"][0]["match"] = {
            "model": ["x", "y"],
            "class": "batch",
            "task": "t",
            "surface": "chat",
        }

    snapshot = compiled(document(change))

    assert snapshot.classes["batch"].priority == -1
    assert snapshot.classes["batch"].usd_per_second == 0.00001
    assert snapshot.classes["chat"].ttft_slo_s == 1.0
    assert snapshot.classes["chat"].tpot_slo_s == INFINITY
    assert not snapshot.classes["chat"].sheddable
    route = snapshot.routes[0]
    assert route.name == "x+y|task=t|class=batch|surface=chat"
    assert route.match.models == {"x", "y"}
    assert snapshot.route_for("x", task="t", traffic_class="batch") is route
    assert snapshot.route_for("x", task="t", traffic_class="chat") is None


def test_names_of_routes_outlive_reordering() -> None:
    one, two, three = {"match": {"model": "m"}}, {"match": {"class": "c"}}, {"name": "mine"}
    for route in (one, two, three):
        route["weights"] = {"a": 1}

    def names(*routes: Document) -> list[str]:
        return [r.name for r in compiled(document(routes=list(routes))).routes]

    assert names(one, two, three) == ["m", "class=c", "mine"]
    assert names(three, two, one) == ["mine", "class=c", "m"]
    assert names(one, one, three) == ["m", "m#2", "mine"]
    long = compiled(document(routes=[{"match": {"model": ["m" * 200, "n"]}, "weights": {"a": 1}}]))
    assert len(long.routes[0].name) == 120


def test_a_chain_of_fallbacks_that_ends_is_no_cycle() -> None:
    def change(d: Document) -> None:
        d["routes"] = [
            {"name": "x", "weights": {"a": 1}, "fallback": [{"route": "y"}, {"route": "z"}]},
            {"name": "y", "weights": {"b": 1}, "fallback": [{"route": "z"}]},
            {"name": "z", "weights": {"c": 1}, "fallback": [{"endpoint": "a", "on": ["auth"]}]},
        ]

    routes = compiled(document(change)).routes

    assert [f.route for f in routes[0].fallback] == ["y", "z"]
    assert routes[2].fallback[0].on == {"auth"}


def test_hosts_are_brought_to_one_spelling() -> None:
    change = put("endpoints.a.base_url", "HTTPS://Bücher.Example.:443/v1/")

    assert compiled(document(change)).endpoints["a"].base_url == "https://xn--bcher-kva.example/v1"


def test_params_and_headers() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["a"] |= {
            "params": {"drop": ["seed"], "rename": {"max_tokens": "max_completion_tokens"}, "set": {"store": False}},
            "headers": {"x-tenant": "blue"},
            "supports": ["tools"],
            "max_context_tokens": 1000,
            "max_body_bytes": 2000,
            "dialect": "azure",
            "api_version": "2025-04-01-preview",
            "provider": "azure.ai.openai",
            "state": "draining",
            "failure_domain": "rack-1",
            "prefix_cache": {"blocks": 10},
        }  # fmt: skip

    endpoint = compiled(document(change)).endpoints["a"]

    assert endpoint.params_drop == ("seed",)
    assert endpoint.params_rename == {"max_tokens": "max_completion_tokens"}
    assert endpoint.params_set == {"store": False}
    assert endpoint.headers == {"x-tenant": "blue"}
    assert endpoint.supports == {"tools"}
    assert (endpoint.max_context_tokens, endpoint.max_body_bytes) == (1000, 2000)
    assert (endpoint.dialect, endpoint.state, endpoint.failure_domain) == (
        "azure",
        "draining",
        "rack-1",
    )
    assert (endpoint.prefix_cache.blocks, endpoint.prefix_cache.block_tokens) == (10, 64)


def test_sharing_is_switched_on_by_route_or_by_default() -> None:
    plain = compiled(document()).routes[0]
    joins = compiled(document(put("defaults", {"coalesce": True}))).routes[0]
    change = put("routes.0.cache", {"enabled": True, "ttl_s": 5, "max_bytes": 1000})
    keeps = compiled(document(change)).routes[0]

    assert (plain.shares, plain.coalesce, plain.cache.enabled) == (False, False, False)
    assert (joins.shares, joins.coalesce, joins.cache.enabled) == (True, True, False)
    assert (keeps.shares, keeps.coalesce) == (True, False)
    assert (keeps.cache.ttl_s, keeps.cache.max_bytes) == (5, 1000)


def test_a_class_that_everybody_has_can_be_changed_field_by_field() -> None:
    snapshot = compiled(document(classes={"interactive": {"sheddable": False}}))

    assert snapshot.classes["interactive"].priority == 10
    assert not snapshot.classes["interactive"].sheddable
    assert snapshot.classes["background"].priority == -10


def test_a_policy_with_hints_is_compiled_without_them_too() -> None:
    document = {
        "schema_version": "1.0",
        "version": 1,
        "fresh_until": "2026-11-30T11:05:00Z",
        "profiles": {"p": {
            "ttft_ms": {"x": [0, 1], "mean": [100, 1100]},
            "tpot_ms": {"x": [0, 1], "mean": [10, 110]},
        }},
        "endpoints": {
            name: {"base_url": f"https://{name}.example/v1", "profile": "p", "observed": seen}
            for name, seen in (("a", {"utilization": 0.9}), ("b", {"utilization": 0.1}))
        },
        "routes": [{"endpoints": ["a", "b"]}],
    }  # fmt: skip
    snapshot = Policy.load(document).compile()

    assert [e.planned_load for e in snapshot.endpoints.values()] == [0.9, 0.1]
    hinted = dict(snapshot.routes[0].weights.pick(None, 100))
    assert hinted["b"] > hinted["a"]  # weights that the document leaves to us follow the load
    faded = snapshot.without_hints
    assert faded is not None
    assert [e.planned_load for e in faded.endpoints.values()] == [0.5, 0.5]
    assert dict(faded.routes[0].weights.pick(None, 100)) == {"a": 0.5, "b": 0.5}
    assert (faded.version, faded.fresh_until) == (snapshot.version, snapshot.fresh_until)
