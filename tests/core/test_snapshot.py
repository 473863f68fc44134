from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import INFINITY
from headway.core.snapshot import (
    Curve,
    Endpoint,
    Fallback,
    Match,
    Price,
    Profile,
    Route,
    Snapshot,
    WeightTable,
)
from tests.core.build import endpoint, profile, route, share, snapshot

# ---------------------------------------------------------------- curves and profiles

CURVE = Curve(x=(0.2, 0.6, 1.0), y=(1.0, 2.0, 6.0))


@pytest.mark.parametrize(
    ("x", "y"),
    [(-1.0, 1.0), (0.2, 1.0), (0.4, 1.5), (0.6, 2.0), (0.8, 4.0), (1.0, 6.0), (9.0, 6.0)],
)
def test_a_curve_is_linear_between_its_points_and_flat_outside(x: float, y: float) -> None:
    assert CURVE.at(x) == pytest.approx(y)


@given(st.floats(-2, 3), st.floats(-2, 3))
def test_a_curve_never_falls(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert CURVE.at(low) <= CURVE.at(high)


def test_ttft_grows_with_the_tokens_to_prefill_and_that_growth_with_the_load() -> None:
    known = Profile(
        ttft_s=Curve(x=(0.0, 1.0), y=(1.0, 3.0)),
        tpot_s=Curve(x=(0.0, 1.0), y=(0.01, 0.02)),
        prefill_s_per_token=0.001,
        ttft_ref_uncached_tokens=1000,
    )

    assert known.predict_ttft_s(0.0, 1000) == 1.0
    assert known.predict_ttft_s(0.0, 2000) == pytest.approx(2.0)
    assert known.predict_ttft_s(0.0, 500) == pytest.approx(0.5)
    assert known.predict_ttft_s(1.0, 2000) == pytest.approx(3.0 + 1.0 * 3.0)
    assert known.predict_ttft_s(0.5, 1500) == pytest.approx(2.0 + 0.5 * 2.0)
    assert known.predict_tpot_s(0.5) == pytest.approx(0.015)


def test_ttft_is_never_zero_or_less() -> None:
    known = profile(0.1, prefill_s_per_token=0.001, ref_tokens=1000)

    assert known.predict_ttft_s(0.5, 0) == 0.001


def test_a_curve_that_starts_at_zero_scales_nothing() -> None:
    known = Profile(
        ttft_s=Curve(x=(0.0, 1.0), y=(0.0, 2.0)),
        tpot_s=Curve(x=(0.0, 1.0), y=(0.0, 0.0)),
        prefill_s_per_token=0.001,
    )

    assert known.predict_ttft_s(1.0, 1000) == pytest.approx(3.0)


def test_a_bare_profile_knows_utilization_and_no_cost_of_prefill() -> None:
    bare = Profile(
        ttft_s=Curve(x=(0.0, 1.0), y=(1.0, 3.0)), tpot_s=Curve(x=(0.0, 1.0), y=(0.01, 0.02))
    )

    assert bare.load == "utilization"
    assert bare.predict_ttft_s(0.5, 0) == bare.predict_ttft_s(0.5, 100_000) == 2.0


# ---------------------------------------------------------------- endpoints and weights


def test_the_upstream_model_is_the_mapped_the_fixed_or_the_requested_one() -> None:
    assert endpoint("a").upstream_model("m") == "m"
    assert endpoint("a", model="llama").upstream_model("m") == "llama"
    mapped = type(endpoint("a"))(id="a", base_url="https://a", model="llama", models={"m": "x"})
    assert mapped.upstream_model("m") == "x"
    assert mapped.upstream_model("other") == "llama"


BY_ZONE = WeightTable(
    by_zone={
        "east": ((1000, share({"a": 1})), (INFINITY, share({"b": 1}))),
        "*": ((INFINITY, share({"c": 3, "d": 1})),),
    }
)


@pytest.mark.parametrize(
    ("zone", "tokens", "ids"),
    [
        ("east", 0, ["a"]),
        ("east", 1000, ["a"]),
        ("east", 1001, ["b"]),
        ("west", 1, ["c", "d"]),
        (None, 1, ["c", "d"]),
    ],
)
def test_weights_are_those_of_the_zone_and_the_prompt_size(
    zone: str | None, tokens: int, ids: list[str]
) -> None:
    assert [e for e, _ in BY_ZONE.pick(zone, tokens)] == ids


def test_a_table_without_a_default_zone_serves_everyone_with_its_first() -> None:
    only_east = WeightTable(by_zone={"east": ((INFINITY, share({"a": 1})),)})

    assert only_east.pick("west", 5) == (("a", 1.0),)


def test_a_prompt_past_the_last_bound_takes_the_last_bucket() -> None:
    bounded = WeightTable(by_zone={"*": ((10, share({"a": 1})), (20, share({"b": 1})))})

    assert bounded.pick(None, 99) == (("b", 1.0),)


# ---------------------------------------------------------------- routes


def test_a_route_has_a_sole_endpoint_where_there_is_no_choice_at_all() -> None:
    everywhere = WeightTable(
        by_zone={
            "east": ((1000, share({"a": 1})), (INFINITY, share({"a": 1}))),
            "*": ((INFINITY, share({"a": 1})),),
        }
    )
    by_size = WeightTable(by_zone={"*": ((9, share({"a": 1})), (INFINITY, share({"b": 1})))})

    assert route({"a": 1}).sole == "a"
    assert route(everywhere).sole == "a"
    assert route(by_size).sole is None
    assert route({"a": 1, "b": 1}).sole is None
    assert route({"a": 1}, fallback=[Fallback(endpoint="b")]).sole is None


def test_a_bare_route_shares_no_answers_and_plans_an_ordinary_call() -> None:
    bare = Route(name="r", weights=BY_ZONE)

    assert (bare.expected_input_tokens, bare.expected_output_tokens) == (1000, 200)
    assert not bare.coalesce
    assert bare.mode is None


# ---------------------------------------------------------------- the whole policy


def hourly(name: str) -> Endpoint:
    return endpoint(name, price=Price(per_gpu_hour=Decimal(2)))


def test_every_call_counts_where_an_endpoint_is_paid_by_the_hour_or_a_route_is_observed() -> None:
    by_token = endpoint("b", price=Price(input_per_mtok=Decimal(2)))
    observed = replace(route({"a": 1}), mode="observe")
    enforced = replace(route({"a": 1}), mode="enforce")

    assert snapshot(route({"a": 1}), [hourly("a")]).counts_calls
    assert snapshot(route({"a": 1, "b": 1}), [hourly("a"), by_token]).counts_calls
    assert snapshot([enforced, observed], [by_token]).counts_calls
    assert not snapshot(enforced, [endpoint("a"), by_token]).counts_calls


def test_a_policy_shows_and_compares_what_was_written_not_what_follows_from_it() -> None:
    policy = snapshot(route({"a": 1}, name="one"))

    assert "one" in repr(policy)
    for derived in ("counts_calls", "_by_model", "_wildcards", "_by_name"):
        assert f"{derived}=" not in repr(policy)
    assert policy == snapshot(route({"a": 1}, name="one"))
    assert policy != snapshot(route({"a": 1}, name="two"))


def test_what_follows_from_a_policy_cannot_be_given() -> None:
    for derived in ("counts_calls", "_by_model", "_wildcards", "_by_name"):
        with pytest.raises(TypeError):
            Snapshot(endpoints={}, routes=(), **{derived: ()})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Route(name="r", weights=BY_ZONE, sole="a")  # type: ignore[call-arg]


# ---------------------------------------------------------------- matching


def test_the_first_route_that_matches_wins_and_wildcards_keep_their_place() -> None:
    policy = snapshot(
        [
            route({"a": 1}, name="task", match=Match(tasks=frozenset({"t"}))),
            route({"a": 1}, name="m", match=Match(models=frozenset({"m", "n"}))),
            route({"a": 1}, name="emb", match=Match(surfaces=frozenset({"embeddings"}))),
            route({"a": 1}, name="m2", match=Match(models=frozenset({"m"}))),
            route({"a": 1}, name="cls", match=Match(classes=frozenset({"gold"}))),
        ]
    )

    def name(model: str, **known: str) -> str | None:
        found = policy.route_for(model, **known)
        return found.name if found else None

    assert name("m") == "m"
    assert name("n") == "m"
    assert name("m", task="t") == "task"
    assert name("x", task="t") == "task"
    assert name("x") is None
    assert name("x", surface="embeddings") == "emb"
    assert name("m", surface="embeddings") == "m"
    assert name("x", traffic_class="gold") == "cls"
    assert name("x", traffic_class="silver") is None


def test_every_condition_of_a_match_must_hold() -> None:
    strict = Match(models=frozenset({"m"}), tasks=frozenset({"t"}), surfaces=frozenset({"chat"}))
    policy = snapshot([route({"a": 1}, name="strict", match=strict), route({"a": 1}, name="rest")])

    found = policy.route_for("m", task="t", surface="chat")
    assert found is not None
    assert found.name == "strict"
    for wrong in (
        policy.route_for("m", task="u", surface="chat"),
        policy.route_for("m", task="t", surface="responses"),
        policy.route_for("n", task="t", surface="chat"),
    ):
        assert wrong is not None
        assert wrong.name == "rest"


def test_routes_are_found_by_name() -> None:
    policy = snapshot([route({"a": 1}, name="one"), route({"a": 1}, name="two")])

    found = policy.route_named("two")
    assert found is not None
    assert found.name == "two"
    assert policy.route_named("three") is None
