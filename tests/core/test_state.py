from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import state as state_module
from headway.core import world as world_module
from headway.core.affinity import Warm
from headway.core.breaker import Breaker
from headway.core.expect import excess, expect, expected_output, planned_latency_s
from headway.core.model import INFINITY, Health
from headway.core.select import Candidate
from headway.core.snapshot import Capacity, Curve, Price
from headway.core.state import EndpointState, Pool, Tally, size_bucket, slow_start
from headway.core.world import World, credential_key
from tests.core.build import Even, endpoint, facts, profile, route


def state_of(**known: object) -> EndpointState:
    return EndpointState(endpoint("a", **known), None)  # type: ignore[arg-type]


# ---------------------------------------------------------------- latency evidence


def test_nothing_is_known_of_an_endpoint_before_its_first_answer() -> None:
    assert state_of().residual(0.0) is None


def test_the_first_ratio_counts_for_half_and_later_ones_for_a_fifth() -> None:
    state = state_of()
    known = 1.0
    for gain in (1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 5, 1 / 5):
        state.observe_latency(2.0, 1.0, 0.0)
        known += gain * (2.0 - known)
        assert state.residual(0.0) == pytest.approx(known)


def test_after_a_pause_a_ratio_counts_for_more_again() -> None:
    """Two minutes apart, samples are first ones; one minute, and half of their number is gone."""
    state = state_of()
    for _ in range(8):
        state.observe_latency(1.0, 1.0, 0.0)
    state.observe_latency(2.0, 1.0, 60.0)
    assert state.residual(60.0) == pytest.approx(1.2)  # 1 / (1 + 5)
    state.observe_latency(1.0, 1.0, 60.0)

    state.observe_latency(4.0, 1.0, 180.0)
    before = 1.0 + 0.16 * (1 - 1 / 50)  # no pause fades what few calls were made in
    assert state.residual(180.0) == pytest.approx(before + 0.5 * (4.0 - before), rel=0.02)


@pytest.mark.parametrize(("seen", "first"), [(100.0, 2.5), (0.01, 0.75), (1.0, 1.0)])
def test_one_ratio_is_clipped_between_a_half_and_four(seen: float, first: float) -> None:
    state = state_of()
    state.observe_latency(seen, 1.0, 0.0)

    assert state.residual(0.0) == pytest.approx(first)


def test_a_call_without_a_plan_says_nothing() -> None:
    state = state_of()
    state.observe_latency(5.0, 0.0, 0.0)

    assert state.residual(0.0) == 1.0


def busy(tally: Tally, calls: int = 1000) -> None:
    """Calls that other endpoints have answered."""
    tally.answered += calls


def test_evidence_fades_to_neutral_over_three_minutes_and_is_then_gone() -> None:
    tally = Tally()
    state = EndpointState(endpoint("a"), None, tally)
    state.observe_latency(4.0, 1.0, 100.0)  # 2.5
    busy(tally)

    assert state.residual(100.0) == pytest.approx(2.5)
    assert state.residual(190.0) == pytest.approx(1.75)
    assert state.residual(279.0) == pytest.approx(1.0, abs=0.01)
    assert state.residual(280.0) is None


def test_evidence_of_a_quiet_process_fades_over_fifty_calls_or_a_quarter_of_an_hour() -> None:
    tally = Tally()
    state = EndpointState(endpoint("a"), None, tally)
    state.observe_latency(4.0, 1.0, 100.0)  # 2.5

    busy(tally, 10)
    assert state.residual(280.0) == pytest.approx(1.0 + 1.5 * 0.8)
    assert state.residual(136.0) == pytest.approx(1.0 + 1.5 * 0.8)  # as much by time as by calls
    assert state.residual(1000.0 - 0.01) == pytest.approx(1.0, abs=0.01)
    assert state.residual(1000.0) is None
    busy(tally, 40)
    assert state.residual(279.0) == pytest.approx(1.0, abs=0.01)
    assert state.residual(280.0) is None


def test_endpoints_of_one_process_count_calls_together() -> None:
    world = World(zone=None, rng=Even())
    slow, other = world.state(endpoint("a")), world.state(endpoint("b"))
    slow.observe_latency(4.0, 1.0, 0.0)
    for _ in range(20):
        other.observe_latency(1.0, 1.0, 179.0)
    assert slow.residual(200.0) == pytest.approx(1.0 + 1.5 * 0.6)
    for _ in range(30):
        other.observe_latency(1.0, 1.0, 179.0)

    assert slow.residual(179.0) == pytest.approx(1.0, abs=0.02)
    assert slow.residual(180.0) is None


def test_new_evidence_builds_on_what_is_left_of_the_old() -> None:
    tally = Tally()
    state = EndpointState(endpoint("a"), None, tally)
    state.observe_latency(4.0, 1.0, 0.0)  # 2.5
    busy(tally)

    state.observe_latency(1.0, 1.0, 90.0)  # from 1.75 back towards 1; the first a quarter forgotten

    gain = 1.0 / (1.0 + 0.25 + 1.0)
    assert state.residual(90.0) == pytest.approx(1.75 - gain * 0.75)


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 1e6), st.floats(0, 1e3)), max_size=40))
def test_the_residual_stays_in_its_range(script: list[tuple[float, float, float]]) -> None:
    state, now = state_of(), 0.0
    for dt, seen, planned in script:
        now += dt
        state.observe_latency(seen, planned, now)
        residual = state.residual(now)
        assert residual is not None
        assert 0.5 <= residual <= 4.0


# ---------------------------------------------------------------- failure evidence


def test_badness_halves_every_thirty_seconds() -> None:
    state = state_of()
    assert state.badness(0.0) == 0.0
    state.blame(1.0, 0.0)

    assert state.badness(0.0) == 1.0
    assert state.badness(30.0) == pytest.approx(0.5)
    assert state.badness(90.0) == pytest.approx(0.125)


def test_badness_adds_up_to_three_at_most() -> None:
    state = state_of()
    state.blame(1.0, 0.0)
    state.blame(1.0, 30.0)
    assert state.badness(30.0) == pytest.approx(1.5)

    for _ in range(9):
        state.blame(1.0, 30.0)

    assert state.badness(30.0) == 3.0


def test_a_cool_down_stands_until_its_time_and_a_longer_one_is_not_shortened() -> None:
    state = state_of()
    assert state.out_until("m")[0] == float("-inf")

    state.put_out("m", 10.0, "throttled", 0.0)
    state.put_out("m", 5.0, "not_found", 0.0)
    assert state.out_until("m") == (10.0, "throttled")
    state.put_out("m", 20.0, "not_found", 0.0)

    assert state.out_until("m") == (20.0, "not_found")
    assert state.out_until("other")[0] == float("-inf")


def test_of_two_cool_downs_that_end_together_the_first_names_the_reason() -> None:
    state = state_of()
    state.put_out("m", 10.0, "throttled", 0.0)
    state.put_out("m", 10.0, "not_found", 0.0)

    assert state.out_until("m") == (10.0, "throttled")


def test_what_was_known_stands_before_a_guess_until_its_own_time_and_no_longer() -> None:
    state = state_of()
    state.put_out("m", 10.0, "throttled", 0.0)
    state.put_out("m", 99.0, "cooling", 9.9)
    assert state.out_until("m") == (10.0, "throttled")

    state.put_out("m", 12.0, "cooling", 10.0)

    assert state.out_until("m") == (12.0, "cooling")


def test_a_success_clears_what_has_passed_or_was_guessed() -> None:
    state = state_of()
    state.put_out("asked", 10.0, "throttled", 0.0)
    state.put_out("guessed", 10.0, "cooling", 0.0)
    for model in ("asked", "guessed"):
        state.served(model, 9.0)
    assert list(state.outs) == ["asked"]

    state.served("asked", 10.0)

    assert state.outs == {}


def test_cool_downs_and_breakers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "BREAKERS_MAX", 3)
    state = state_of()
    for i in range(5):
        state.put_out(f"m{i}", 10.0, "throttled", 0.0)
        state.breaker(f"m{i}", Even())
    state.put_out("m4", 20.0, "throttled", 0.0)

    assert list(state.outs) == ["m2", "m3", "m4"]
    assert list(state.breakers) == ["m2", "m3", "m4"]


def test_each_model_has_its_own_breaker() -> None:
    state = state_of()

    assert state.breaker("m", Even()) is state.breaker("m", Even())
    assert state.breaker("m", Even()) is not state.breaker("n", Even())


@pytest.mark.parametrize(
    ("concurrency", "ceiling", "limit"),
    [(None, None, None), (4, None, 4.0), (None, 6, 6.0), (4, 6, 4.0), (8, 6, 6.0)],
)
def test_the_tighter_of_capacity_and_ceiling_limits_it(
    concurrency: int | None, ceiling: int | None, limit: float | None
) -> None:
    described = endpoint("a", capacity=Capacity(concurrency=concurrency))

    assert EndpointState(described, ceiling).limit.limit == limit
    fresh = EndpointState(endpoint("a"), None)
    fresh.reconfigure(described, ceiling)
    assert fresh.limit.limit == limit
    assert fresh.endpoint is described


def test_a_new_document_sets_new_rates() -> None:
    assert not state_of().is_paced
    state = state_of()
    state.reconfigure(endpoint("a", capacity=Capacity(rpm=60.0, tpm=600.0)), None)
    assert state.is_paced
    state.rpm.charge(30.0, 0.0)
    state.tpm.charge(400.0, 0.0)

    assert state.rpm.wait_s(0.0) == 20.0
    assert state.tpm.wait_s(0.0) == 30.0
    assert EndpointState(endpoint("a", capacity=Capacity(tpm=1.0)), None).is_paced
    assert EndpointState(endpoint("a", capacity=Capacity(rpm=1.0)), None).is_paced


# ---------------------------------------------------------------- slow start


def test_an_endpoint_that_never_tripped_has_its_whole_share() -> None:
    assert slow_start(Breaker(Even()), 0.0) == 1.0


def test_after_closing_the_share_grows_from_a_tenth_to_all_over_thirty_seconds() -> None:
    breaker = Breaker(Even())
    for _ in range(3):
        permit = breaker.acquire(0.0, lease_s=30.0)
        assert permit is not None
        breaker.record(permit, Health.HARD, 0.0, 0.0)
    probe = breaker.acquire(100.0, lease_s=30.0)
    assert probe is not None
    breaker.record(probe, Health.GOOD, 100.0, 100.0)

    shares = [slow_start(breaker, 100.0 + s) for s in (0, 1.5, 3, 15, 29.9, 30, 99)]

    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.5, 0.9967, 1.0, 1.0], abs=1e-3)


# ---------------------------------------------------------------- the pool


def test_a_pools_mean_is_per_call_size() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    assert pool.planned_s(100) is None

    pool.observe_call(3.28, 100)  # 0.02 s per unit of 64 + 100
    assert pool.planned_s(100) == pytest.approx(3.28)
    assert pool.planned_s(0) == pytest.approx(1.28)
    pool.observe_call(6.56, 100)  # a twentieth of the way to 0.04

    assert pool.planned_s(100) == pytest.approx(3.28 * 1.05)


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, 0), (1000, 0), (1001, 1), (8000, 1), (8001, 2), (64_001, 3)]
)
def test_prompts_are_compared_within_their_size(tokens: int, bucket: int) -> None:
    assert size_bucket(tokens) == bucket


def test_the_hedge_delay_needs_fifty_samples_of_the_prompts_size() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    for _ in range(49):
        pool.observe_ttft(1.0, 500)
    assert pool.hedge_delay_s(500) is None
    pool.observe_ttft(1.0, 500)

    assert pool.hedge_delay_s(500) == pytest.approx(1.2)  # 1.2 x the median
    assert pool.hedge_delay_s(5000) is None


def test_the_hedge_delay_is_the_p95_when_that_is_later_than_the_median_by_a_fifth() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    for i in range(100):
        pool.observe_ttft(float(i), 500)

    assert pool.hedge_delay_s(500) == 95.0


def test_the_hedge_delay_is_never_sooner_than_a_fifth_past_the_median() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    for ttft_s in [1.0] * 20 + [2.0] * 30:
        pool.observe_ttft(ttft_s, 500)

    assert pool.hedge_delay_s(500) == pytest.approx(2.4)


def test_the_hedge_delay_is_refreshed_every_twenty_samples() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    for _ in range(50):
        pool.observe_ttft(1.0, 500)
    assert pool.hedge_delay_s(500) == pytest.approx(1.2)

    for _ in range(19):
        pool.observe_ttft(10.0, 500)
    assert pool.hedge_delay_s(500) == pytest.approx(1.2)
    pool.observe_ttft(10.0, 500)

    assert pool.hedge_delay_s(500) == 10.0


def test_only_the_last_two_hundred_ttfts_count() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    for _ in range(300):
        pool.observe_ttft(100.0, 500)
    for _ in range(200):
        pool.observe_ttft(1.0, 500)
    assert pool.hedge_delay_s(500) == pytest.approx(1.2)

    for ttft_s in [100.0] * 10 + [1.0] * 190:  # a twentieth of two hundred, and not of one more
        pool.observe_ttft(ttft_s, 500)
    assert pool.hedge_delay_s(500) == 100.0


def test_the_pools_lateness_moves_by_a_twentieth_towards_each_sample_within_its_range() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    assert pool.ttft_ratio == 1.0

    pool.observe_ttft_ratio(1.5)
    assert pool.ttft_ratio == pytest.approx(1.05)
    pool.observe_ttft_ratio(pool.ttft_ratio)  # not later than usual
    assert pool.ttft_ratio == pytest.approx(1.0)
    for _ in range(100):
        pool.observe_ttft_ratio(1e9)
    assert pool.ttft_ratio == 64.0
    for _ in range(200):
        pool.observe_ttft_ratio(0.0)
    assert pool.ttft_ratio == 0.25


def test_hedge_delays_of_two_prompt_sizes_are_kept_apart() -> None:
    pool = Pool(route({"a": 1}), 0.0)
    for _ in range(50):
        pool.observe_ttft(1.0, 500)
        pool.observe_ttft(5.0, 5000)

    assert pool.hedge_delay_s(500) == pytest.approx(1.2)
    assert pool.hedge_delay_s(5000) == pytest.approx(6.0)


# ---------------------------------------------------------------- the world


def test_pools_are_bounded_and_busy_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "POOLS_MAX", 2)
    world = World(zone=None, rng=Even())
    busy = world.pool(route({"a": 1}, name="busy"), 0.0)
    busy.inflight = 1
    world.pool(route({"a": 1}, name="idle"), 0.0)

    world.pool(route({"a": 1}, name="new"), 0.0)

    assert list(world.pools) == ["busy", "new"]
    assert world.pool(route({"a": 1}, name="busy"), 0.0) is busy


def test_a_credential_is_blocked_by_name_and_an_endpoint_without_one_by_itself() -> None:
    assert credential_key(endpoint("a", credential="k")) == "k"
    assert credential_key(endpoint("a")) == "endpoint:a"


# ---------------------------------------------------------------- expectations


def candidate(**known: object) -> Candidate:
    described = endpoint("a", **known)  # type: ignore[arg-type]
    state = EndpointState(described, None)
    return Candidate(described, state, state.breaker("m", Even()), "m", 1.0)


def test_a_profiled_endpoint_is_expected_to_take_rtt_ttft_and_tpot_per_token() -> None:
    chosen = candidate(
        profile=profile(1.0, 0.01, prefill_s_per_token=0.001, ref_tokens=1000), rtt_s=0.1
    )
    r = route({"a": 1}, output_tokens=200)
    pool = Pool(r, 0.0)

    expect(chosen, facts(prompt_tokens=2000), r, pool, None, 0.0)

    assert chosen.expected_s == pytest.approx(0.1 + 2.0 + 2.0)
    assert chosen.usd is None


def test_a_warm_prefix_need_not_be_prefilled_again() -> None:
    r = route({"a": 1}, output_tokens=0)
    plan = profile(1.0, 0.01, prefill_s_per_token=0.001)
    here, elsewhere = candidate(profile=plan), candidate(profile=plan)

    expect(here, facts(prompt_tokens=2000), r, Pool(r, 0.0), Warm("a", 1500, "prefix"), 0.0)
    expect(elsewhere, facts(prompt_tokens=2000), r, Pool(r, 0.0), Warm("b", 1500, "prefix"), 0.0)

    assert here.expected_s == pytest.approx(1.5)
    assert elsewhere.expected_s == pytest.approx(3.0)


def test_own_evidence_scales_the_expectation() -> None:
    chosen = candidate(profile=profile(1.0, 0.0))
    chosen.state.observe_latency(2.0, 1.0, 0.0)  # residual 1.5
    r = route({"a": 1})

    expect(chosen, facts(), r, Pool(r, 0.0), None, 0.0)

    assert chosen.expected_s == pytest.approx(1.5)


def test_without_a_profile_the_pools_own_mean_is_expected() -> None:
    r = route({"a": 1}, output_tokens=100)
    pool = Pool(r, 0.0)
    unknown = candidate()
    expect(unknown, facts(), r, pool, None, 0.0)
    assert unknown.expected_s is None

    pool.observe_call(3.28, 100)
    known = candidate()
    expect(known, facts(), r, pool, None, 0.0)

    assert known.expected_s == pytest.approx(3.28)
    assert planned_latency_s(known.endpoint, pool, 0, 0) == pytest.approx(1.28)


PRICE = Price(
    input_per_mtok=Decimal(2), cached_input_per_mtok=Decimal("0.5"), output_per_mtok=Decimal(8)
)


def test_the_price_counts_cached_input_apart() -> None:
    r = route({"a": 1}, output_tokens=1000)
    chosen = candidate(price=PRICE)

    expect(chosen, facts(prompt_tokens=3000), r, Pool(r, 0.0), Warm("a", 1000, "session"), 0.0)

    assert chosen.usd == 0.0125  # 2000 x 2 + 1000 x 0.5 + 1000 x 8 dollars per million


def test_a_prompt_shorter_than_the_sessions_last_one_is_not_charged_for_more_than_itself() -> None:
    r = route({"a": 1}, output_tokens=0)
    chosen = candidate(price=PRICE)

    expect(chosen, facts(prompt_tokens=1000), r, Pool(r, 0.0), Warm("a", 9000, "session"), 0.0)

    assert chosen.usd == pytest.approx(1000 * 0.5 / 1e6)


def test_without_a_price_for_cached_input_it_costs_what_input_costs() -> None:
    r = route({"a": 1}, output_tokens=0)
    chosen = candidate(price=Price(input_per_mtok=Decimal(2), output_per_mtok=Decimal(8)))

    expect(chosen, facts(prompt_tokens=3000), r, Pool(r, 0.0), Warm("a", 1000, "session"), 0.0)

    assert chosen.usd == pytest.approx(0.006)


@pytest.mark.parametrize(
    "price", [Price(input_per_mtok=Decimal(2)), Price(output_per_mtok=Decimal(2)), Price()]
)
def test_half_a_price_is_no_price(price: Price) -> None:
    r = route({"a": 1})
    chosen = candidate(price=price)

    expect(chosen, facts(prompt_tokens=3000), r, Pool(r, 0.0), None, 0.0)

    assert chosen.usd is None


@pytest.mark.parametrize(
    ("surface", "bound", "tokens"),
    [
        ("chat", None, 200),
        ("chat", 50, 50),
        ("chat", 900, 200),
        ("embeddings", None, 0),
        ("moderations", None, 0),
    ],
)
def test_planned_output_is_the_routes_or_the_calls_own_bound(
    surface: str, bound: int | None, tokens: int
) -> None:
    asked = facts(surface=surface, max_output_tokens=bound)

    assert expected_output(asked, route({"a": 1}, output_tokens=200)) == tokens


# ---------------------------------------------------------------- promises


def excess_of(
    chosen: Candidate,
    promised: tuple[float, float, float],
    warm: Warm | None = None,
    tokens: int = 0,
) -> float:
    return excess(chosen, facts(prompt_tokens=tokens), route({"a": 1}), warm, promised, 0.0)


def test_of_an_endpoint_without_a_profile_nothing_is_held_against_a_promise() -> None:
    assert excess_of(candidate(), (0.001, 0.001, 0.001)) == 0.0


def test_a_first_token_is_held_against_its_promise_with_what_is_left_to_prefill() -> None:
    chosen = candidate(profile=profile(1.0, 0.0, prefill_s_per_token=0.001))
    promised = (2.0, INFINITY, INFINITY)

    assert excess_of(chosen, promised, None, 1000) == pytest.approx(1.0)
    assert excess_of(chosen, promised, Warm("b", 1000, "session"), 1000) == pytest.approx(1.0)
    assert excess_of(chosen, promised, Warm("a", 600, "session"), 1000) == pytest.approx(0.7)
    assert excess_of(chosen, promised, Warm("a", 9000, "session"), 1000) == 0.5


def test_the_time_per_token_is_held_against_its_promise_by_the_profiles_own_p99() -> None:
    mean = profile(1.0, 0.01)
    spread = replace(mean, tpot_p99_s=Curve(x=(0.0, 1.0), y=(0.04, 0.04)))
    promised = (INFINITY, 0.02, INFINITY)

    assert excess_of(candidate(profile=mean), promised) == pytest.approx(0.5)
    assert excess_of(candidate(profile=spread), promised) == pytest.approx(2.0)
