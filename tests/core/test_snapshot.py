from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import INFINITY
from headway.core.snapshot import (
    CachePolicy,
    Curve,
    Endpoint,
    Fallback,
    Match,
    Price,
    Profile,
    Route,
    Snapshot,
    TenantBudget,
    TrafficClass,
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


def test_calls_count_too_where_their_answers_are_shared() -> None:
    plain, joined = route({"a": 1}), replace(route({"a": 1}), coalesce=True)
    kept = replace(route({"a": 1}), cache=CachePolicy(enabled=True))

    assert [r.shares for r in (plain, joined, kept)] == [False, True, True]
    assert [snapshot(r).counts_calls for r in (plain, joined, kept)] == [False, True, True]


@pytest.mark.parametrize(
    ("fresh_until", "expires_at", "until"),
    [(None, None, INFINITY), (5.0, None, 5.0), (None, 6.0, 6.0), (5.0, 6.0, 5.0), (7.0, 6.0, 6.0)],
)
def test_hints_hold_until_they_are_stale_or_the_policy_has_expired(
    fresh_until: float | None, expires_at: float | None, until: float
) -> None:
    policy = replace(snapshot(route({"a": 1})), fresh_until=fresh_until, expires_at=expires_at)

    assert policy.hints_until == until


def test_a_bare_policy_is_for_every_process() -> None:
    bare = Snapshot(endpoints={}, routes=())

    assert (bare.rollout_share, bare.rollout_seed) == (1.0, "")


def test_a_policy_with_one_endpoint_more_is_the_same_in_all_else() -> None:
    policy = snapshot(route({"a": 1}, name="one", match=Match(models=frozenset({"m"}))), version=7)
    more = policy.with_endpoint(endpoint("z"))

    assert set(more.endpoints) == {"a", "z"}
    assert set(policy.endpoints) == {"a"}
    assert more.version == 7
    assert more.route_for("m") is policy.routes[0]
    assert more.route_named("one") is policy.routes[0]


def test_a_policy_shows_and_compares_what_was_written_not_what_follows_from_it() -> None:
    policy = snapshot(route({"a": 1}, name="one"))

    assert "one" in repr(policy)
    for derived in ("counts_calls", "hints_until", "_index", "_by_name", "plan"):
        assert f"{derived}=" not in repr(policy)
    assert policy == snapshot(route({"a": 1}, name="one"))
    assert policy != snapshot(route({"a": 1}, name="two"))


def test_what_follows_from_a_policy_cannot_be_given() -> None:
    for derived in ("counts_calls", "hints_until", "_by_model", "_wildcards", "_by_name"):
        with pytest.raises(TypeError):
            Snapshot(endpoints={}, routes=(), **{derived: ()})  # type: ignore[arg-type]
    for derived in ("sole", "shares"):
        with pytest.raises(TypeError):
            Route(name="r", weights=BY_ZONE, **{derived: None})  # type: ignore[arg-type]


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


NAMES = st.frozensets(st.sampled_from("abc"), max_size=2)
MATCHES = st.builds(Match, models=NAMES, tasks=NAMES, classes=NAMES, surfaces=NAMES)
BY_MODEL = st.builds(Match, models=NAMES)
ASKED = st.tuples(*[st.sampled_from([*"abcd"]), *[st.sampled_from([*"abcd", None])] * 2])


@given(
    st.lists(MATCHES, min_size=1, max_size=12) | st.lists(BY_MODEL, min_size=1, max_size=6),
    ASKED,
    st.sampled_from([*"abcd"]),
    st.integers(0, 9),
)
def test_the_index_finds_what_looking_at_one_after_the_other_finds(
    matches: list[Match], asked: tuple[str, str | None, str | None], surface: str, room: int
) -> None:
    """Also where there is room for few of the routes in it."""
    routes = [route({"a": 1}, name=str(i), match=match) for i, match in enumerate(matches)]
    model, task, traffic_class = asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.core.snapshot.INDEX_MAX", room if room < 8 else 100_000)
        policy = snapshot(routes)

    def matching(m: Match) -> bool:
        pairs = (
            (m.models, model), (m.tasks, task), (m.classes, traffic_class), (m.surfaces, surface)
        )  # fmt: skip
        return all(not names or name in names for names, name in pairs)

    first = next((r for r in routes if matching(r.match)), None)
    found = policy.route_for(model, task=task, traffic_class=traffic_class, surface=surface)
    assert found is first


class Counting(str):
    """A name that counts how often it is compared or hashed."""

    __slots__ = ()

    looks = 0

    def __hash__(self) -> int:
        Counting.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counting.looks += 1
        return super().__eq__(other)


@pytest.mark.parametrize("by", ["models", "tasks", "both"])
def test_looking_a_route_up_takes_the_same_steps_whatever_their_number(by: str) -> None:
    def steps(count: int) -> int:
        def match(i: int) -> Match:
            models = frozenset({f"m{i}"}) if by != "tasks" else frozenset[str]()
            tasks = frozenset({f"t{i}"}) if by != "models" else frozenset[str]()
            return Match(models=models, tasks=tasks)

        policy = snapshot([route({"a": 1}, name=str(i), match=match(i)) for i in range(count)])
        Counting.looks = 0
        last = count - 1
        found = policy.route_for(Counting(f"m{last}"), task=Counting(f"t{last}"))
        assert found is not None
        assert found.name == str(last)
        return Counting.looks

    assert steps(5000) <= steps(5) + 4  # a collision or two


def test_routes_are_found_by_name() -> None:
    policy = snapshot([route({"a": 1}, name="one"), route({"a": 1}, name="two")])

    found = policy.route_named("two")
    assert found is not None
    assert found.name == "two"
    assert policy.route_named("three") is None


def test_a_class_without_objectives_promises_nothing() -> None:
    assert TrafficClass().promised is None
    assert TrafficClass(total_slo_s=9.0).promised == (INFINITY, INFINITY, 9.0)
    whole = TrafficClass(ttft_slo_s=1.0, tpot_slo_s=0.1, total_slo_s=9.0)
    assert whole.promised == (1.0, 0.1, 9.0)


def test_a_call_is_a_chat_unless_it_says_otherwise() -> None:
    chats = route({"a": 1}, name="chats", match=Match(surfaces=frozenset({"chat"})))
    assert snapshot(chats).route_for("m") is chats
    assert not chats.continuation.enabled


def test_a_tenant_has_its_own_budget_else_that_of_all_who_are_not_named() -> None:
    own = TenantBudget(max_cost=Decimal(5), period_s=3600)
    others = TenantBudget(max_cost=Decimal(1), period_s=60)
    policy = replace(snapshot(route({"a": 1})), tenants={"acme": own, "*": others})

    assert policy.budget_of("acme") is own
    assert policy.budget_of("another") is others
    assert replace(policy, tenants={"acme": own}).budget_of("acme") is own
    assert replace(policy, tenants={"acme": own}).budget_of("another") is None
    assert own.share == 1.0  # unless it is said, a process may spend the whole
