from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import Health, Rng
from headway.core.select import (
    STRATEGIES,
    Candidate,
    Choice,
    choose,
    draw,
    may_stay_warm,
    weigh,
)
from headway.core.snapshot import AffinityPolicy, SelectionPolicy
from headway.core.state import EndpointState, Pool
from tests.core.build import Dice, Even, endpoint, facts, route

DRAWS = 20_000
ALGORITHMS = sorted(STRATEGIES)


def candidates(weights: dict[str, float]) -> list[Candidate]:
    made = []
    for name, weight in weights.items():
        described = endpoint(name)
        state = EndpointState(described, None)
        made.append(Candidate(described, state, state.breaker("m", Even()), "m", weight))
    return made


def choice(
    algorithm: str = "steady",
    *,
    choices: int = 1,
    explore: float = 0.0,
    rng: Rng | None = None,
    usd_per_second: float = 0.0,
    max_load_factor: float | None = None,
) -> Choice:
    r = route(
        {"a": 1},
        selection=SelectionPolicy(algorithm=algorithm, choices=choices, explore=explore),
        affinity=AffinityPolicy(max_load_factor=max_load_factor),
    )
    return Choice(r, Pool(r, 0.0), facts(), usd_per_second, rng or random.Random(7))


def shares(
    made: list[Candidate], ask: Choice, *, now: float = 0.0, draws: int = DRAWS
) -> dict[str, float]:
    count = Counter(choose(made, ask, now).endpoint.id for _ in range(draws))
    return {c.endpoint.id: count[c.endpoint.id] / draws for c in made}


def slow(candidate: Candidate, residual: float, now: float = 0.0) -> None:
    """Give an endpoint a residual."""
    for _ in range(60):
        candidate.state.observe_latency(residual, 1.0, now)


def close_after_a_trip(candidate: Candidate, at: float) -> None:
    breaker = candidate.breaker
    for _ in range(3):
        permit = breaker.acquire(at - 100.0, lease_s=30.0)
        assert permit is not None
        breaker.record(permit, Health.HARD, at - 100.0, at - 100.0)
    probe = breaker.acquire(at, lease_s=30.0)
    assert probe is not None
    breaker.record(probe, Health.GOOD, at, at)


# ---------------------------------------------------------------- what all strategies share


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_strategy_chooses_one_of_the_candidates(algorithm: str) -> None:
    made = candidates({"a": 5, "b": 3, "c": 1})

    for _ in range(200):
        assert choose(made, choice(algorithm), 0.0) in made


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_strategy_repeats_itself_under_a_seed(algorithm: str) -> None:
    def run() -> list[str]:
        made, ask = candidates({"a": 5, "b": 3, "c": 1}), choice(algorithm, rng=random.Random(3))
        chosen = []
        for i in range(200):
            one = choose(made, ask, float(i))
            one.state.inflight += i % 3
            chosen.append(one.endpoint.id)
        return chosen

    assert run() == run()


@pytest.mark.parametrize("algorithm", ["steady", "weighted_random", "round_robin"])
def test_without_evidence_shares_follow_the_published_weights(algorithm: str) -> None:
    got = shares(candidates({"a": 6, "b": 3, "c": 1}), choice(algorithm))

    assert got == pytest.approx({"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.01)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_single_candidate_needs_no_dice(algorithm: str) -> None:
    class NoDice:
        def random(self) -> float:
            raise AssertionError

    made = candidates({"a": 0.25})

    assert choose(made, choice(algorithm, rng=NoDice()), 0.0) is made[0]
    assert made[0].weight == 1.0


def test_weights_are_normalised_among_the_candidates() -> None:
    made = candidates({"a": 0.3, "b": 0.1})
    weigh(made, choice(), 0.0)

    assert [c.weight for c in made] == pytest.approx([0.75, 0.25])
    assert [c.p for c in made] == pytest.approx([0.75, 0.25])


def test_candidates_without_any_weight_share_alike() -> None:
    made = candidates({"a": 0.0, "b": 0.0})
    weigh(made, choice(), 0.0)

    assert [c.weight for c in made] == [0.5, 0.5]


# ---------------------------------------------------------------- one draw


def test_a_draw_walks_the_weights_in_order() -> None:
    made = candidates({"a": 1, "b": 1, "c": 2})

    picked = [draw(made, [1, 1, 2], Even(x)).endpoint.id for x in (0.0, 0.24, 0.25, 0.5, 0.99)]

    assert picked == ["a", "a", "b", "c", "c"]


def test_a_draw_without_weight_is_uniform() -> None:
    made = candidates({"a": 1, "b": 1})

    assert [draw(made, [0, 0], Even(x)).endpoint.id for x in (0.0, 0.49, 0.5, 0.999)] == [
        "a", "a", "b", "b",
    ]  # fmt: skip
    assert draw(made, [math.nan, 1.0], Even(0.0)).endpoint.id == "a"


def test_what_has_no_weight_is_never_drawn_while_another_has() -> None:
    made = candidates({"a": 1, "b": 1, "c": 1})

    assert {draw(made, [0, 1, 0], Even(x / 100)).endpoint.id for x in range(100)} == {"b"}


def test_rounding_at_the_upper_end_falls_to_the_heaviest() -> None:
    made = candidates({"a": 1, "b": 1})

    assert draw(made, [2, 1], Even(1.0)).endpoint.id == "a"


@given(
    st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=8),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_always_lands_on_something_with_weight(weights: list[float], x: float) -> None:
    made = candidates({f"e{i}": 1.0 for i in range(len(weights))})

    drawn = made.index(draw(made, weights, Even(x)))

    assert weights[drawn] > 0 or not sum(weights) > 0


# ---------------------------------------------------------------- steady


def test_own_evidence_of_slowness_shifts_the_share() -> None:
    made = candidates({"a": 1, "b": 1})
    slow(made[0], 2.0)
    slow(made[1], 1.0)
    weigh(made, choice(), 0.0)

    assert made[0].q / made[1].q == pytest.approx(2.0)
    assert made[0].p / made[1].p == pytest.approx(math.exp(-1 / 0.3), rel=1e-4)
    assert shares(made, choice())["a"] == pytest.approx(0.0345, abs=0.005)


def test_q_is_the_residual_over_the_mean_of_the_known_ones() -> None:
    made = candidates({"a": 1, "b": 1, "c": 1})
    slow(made[0], 3.0)
    slow(made[1], 1.0)
    weigh(made, choice(), 0.0)

    assert [c.q for c in made] == pytest.approx([1.5, 0.5, 1.0])


def test_evidence_that_has_faded_moves_nothing() -> None:
    made = candidates({"a": 1, "b": 1})
    slow(made[0], 4.0)
    weigh(made, choice(), 180.0)

    assert [c.p for c in made] == [0.5, 0.5]


def test_one_fresh_hard_failure_divides_the_share_by_e_squared() -> None:
    made = candidates({"a": 1, "b": 1})
    made[0].state.blame(1.0, 0.0)
    weigh(made, choice(), 0.0)

    assert made[0].penalty == pytest.approx(math.exp(-2))
    assert made[0].p == pytest.approx(0.5 * math.exp(-2))
    weigh(made, choice(), 30.0)
    assert made[0].penalty == pytest.approx(math.exp(-1))


def test_an_endpoint_that_just_came_back_starts_with_a_tenth() -> None:
    made = candidates({"a": 1, "b": 1})
    close_after_a_trip(made[0], at=1000.0)
    weigh(made, choice(), 1000.0)
    assert (made[0].slow_start, made[0].p) == pytest.approx((0.1, 0.05))

    weigh(made, choice(), 1015.0)
    assert made[0].p == pytest.approx(0.25)


def test_own_outstanding_attempts_push_the_next_one_elsewhere() -> None:
    made = candidates({"a": 1, "b": 1})
    made[0].state.inflight = 1

    assert shares(made, choice())["a"] == pytest.approx(0.05 / 1.05, abs=0.01)


def test_outstanding_counts_against_the_weight() -> None:
    """One at a light endpoint weighs as much as three at one of three times its weight."""
    made = candidates({"a": 3, "b": 1})
    made[0].state.inflight, made[1].state.inflight = 3, 1

    assert shares(made, choice())["a"] == pytest.approx(0.75, abs=0.01)


def test_outstanding_does_not_draw_calls_back_to_what_is_known_to_be_slow() -> None:
    made = candidates({"a": 1, "b": 1})
    slow(made[0], 3.0)
    slow(made[1], 1.0)
    made[1].state.inflight = 2  # twice what each of two equals would carry
    assert shares(made, choice())["a"] < 0.2
    # in figures: cost 6.67 of which 3 may be chance, so that b has 1 / (1 + e^-3.67) of the room
    share = 1 / (1 + math.exp(20 / 3) * 0.05 ** (1 + math.exp(3 - 20 / 3)))
    assert share == pytest.approx(0.0267, abs=0.0001)
    assert choose(made, choice(rng=Even(share - 0.0005)), 0.0) is made[0]
    assert choose(made, choice(rng=Even(share + 0.0005)), 0.0) is made[1]
    made[1].state.inflight = 20
    assert shares(made, choice())["a"] > 0.99


def test_outstanding_evens_out_what_a_few_calls_happen_to_say() -> None:
    made = candidates({"a": 1, "b": 1})
    slow(made[0], 1.2)
    slow(made[1], 0.8)
    assert shares(made, choice())["a"] == pytest.approx(0.159, abs=0.01)
    made[1].state.inflight = 1
    assert shares(made, choice())["a"] == pytest.approx(0.79, abs=0.01)


def test_many_outstanding_do_not_underflow() -> None:
    made = candidates({"a": 1, "b": 1})
    made[0].state.inflight, made[1].state.inflight = 100_000, 100_001

    assert shares(made, choice(), draws=2000)["a"] == pytest.approx(1 / 1.05, abs=0.02)


def test_an_endpoint_of_weight_zero_gets_nothing() -> None:
    made = candidates({"a": 1, "b": 0, "c": 1})
    made[0].state.inflight = made[2].state.inflight = 50

    assert shares(made, choice(), draws=2000)["b"] == 0.0


# ---------------------------------------------------------------- two draws


def test_with_two_choices_the_less_loaded_of_two_draws_is_kept() -> None:
    made = candidates({"a": 1, "b": 1})
    made[0].state.inflight = 1

    assert shares(made, choice(choices=2), draws=500) == {"a": 0.0, "b": 1.0}


def test_with_two_choices_equals_keep_the_first_draw() -> None:
    made = candidates({"a": 3, "b": 1})

    assert shares(made, choice(choices=2)) == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.01)


def test_two_draws_within_two_per_cent_are_equal() -> None:
    made = candidates({"a": 1, "b": 1})
    made[0].state.inflight, made[1].state.inflight = 51, 50  # 102 and 100 per weight

    assert choose(made, choice(choices=2, rng=Dice(0.0, 0.0)), 0.0) is made[0]
    made[0].state.inflight = 52
    assert choose(made, choice(choices=2, rng=Dice(0.0, 0.0)), 0.0) is made[1]


def test_two_draws_are_of_two_different_endpoints() -> None:
    made = candidates({"a": 1, "b": 1, "c": 1})
    made[0].state.inflight = 9

    assert shares(made, choice(choices=2), draws=2000)["a"] == 0.0


def test_of_more_draws_the_least_loaded_is_kept() -> None:
    made = candidates({"a": 1, "b": 1, "c": 1, "d": 1})
    for i, c in enumerate(made):
        c.state.inflight = i

    three = shares(made, choice(choices=3))
    assert three["a"] == pytest.approx(0.75, abs=0.02)  # it is among three of four
    assert three["c"] == three["d"] == 0.0
    assert shares(made, choice(choices=8), draws=500)["a"] == 1.0


# ---------------------------------------------------------------- objectives


def test_what_is_predicted_past_its_objective_is_drawn_less_and_what_keeps_it_as_before() -> None:
    made = candidates({"a": 1, "b": 1, "c": 1})
    made[0].excess, made[1].excess = 1.3, 0.9
    promised = choice()._replace(is_promised=True)

    found = shares(made, promised)
    assert found["a"] == pytest.approx(0.367879 / 2.367879, abs=0.01)
    assert found["b"] == pytest.approx(found["c"], abs=0.02)
    assert shares(made, choice())["a"] == pytest.approx(1 / 3, abs=0.02)


def test_an_objective_nobody_keeps_changes_nothing() -> None:
    made = candidates({"a": 3, "b": 1})
    made[0].excess = made[1].excess = 9.0

    assert shares(made, choice()._replace(is_promised=True))["a"] == pytest.approx(0.75, abs=0.01)


# ---------------------------------------------------------------- exploration


def test_exploration_ignores_the_evidence_in_its_share_of_calls() -> None:
    made = candidates({"a": 1, "b": 1})
    slow(made[0], 4.0)
    slow(made[1], 1.0)

    assert shares(made, choice(explore=0.2))["a"] == pytest.approx(0.1, abs=0.01)
    assert shares(made, choice())["a"] < 0.001


def test_without_exploration_no_dice_are_thrown_for_it_and_with_it_below_its_share() -> None:
    made = candidates({"a": 1, "b": 1})
    assert choose(made, choice(rng=Dice(0.9, 0.1)), 0.0) is made[1]

    slow(made[0], 4.0)
    slow(made[1], 1.0)
    assert choose(made, choice(explore=0.2, rng=Even(0.19)), 0.0) is made[0]
    assert choose(made, choice(explore=0.2, rng=Even(0.2)), 0.0) is made[1]


# ---------------------------------------------------------------- price


def priced(usd: dict[str, float], seconds: dict[str, float]) -> list[Candidate]:
    made = candidates(dict.fromkeys(usd, 1.0))
    for c in made:
        c.usd, c.expected_s = usd[c.endpoint.id], seconds[c.endpoint.id]
    return made


def test_price_is_traded_against_time_at_the_classs_rate() -> None:
    made = priced({"a": 0.02, "b": 0.0}, {"a": 1.0, "b": 2.0})

    weigh(made, choice(usd_per_second=0.01), 0.0)  # a: 1 + 2 = 3 s, b: 2 s
    assert made[0].p / made[1].p == pytest.approx(math.exp(-(0.5) / 0.3))
    weigh(made, choice(usd_per_second=0.04), 0.0)  # a: 1 + 0.5 = 1.5 s, b: 2 s

    assert made[1].p / made[0].p == pytest.approx(math.exp(-(2 / 1.5 - 1) / 0.3))
    assert made[0].p == 0.5  # the best of them loses nothing


def test_what_takes_less_than_a_second_is_priced_too() -> None:
    made = priced({"a": 0.0, "b": 0.0}, {"a": 0.1, "b": 0.2})
    weigh(made, choice(usd_per_second=0.01), 0.0)
    assert made[1].p / made[0].p == pytest.approx(math.exp(-1 / 0.3))

    free = priced({"a": 0.0, "b": 0.01}, {"a": 1.0, "b": 0.0})  # a second each
    weigh(free, choice(usd_per_second=0.01), 0.0)
    assert free[0].p == free[1].p


def test_without_a_rate_price_counts_nothing() -> None:
    made = priced({"a": 99.0, "b": 0.0}, {"a": 9.0, "b": 1.0})
    weigh(made, choice(), 0.0)

    assert made[0].p == made[1].p


def test_an_unknown_price_is_not_a_low_one() -> None:
    made = priced({"a": 0.02, "b": 0.0}, {"a": 1.0, "b": 1.0})
    made[1].usd = None
    weigh(made, choice(usd_per_second=0.01), 0.0)
    assert made[0].p == made[1].p

    made[1].usd, made[1].expected_s = 0.0, None
    weigh(made, choice(usd_per_second=0.01), 0.0)
    assert made[0].p == made[1].p


def test_expectations_of_nothing_leave_the_weights_alone() -> None:
    made = priced({"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0})
    weigh(made, choice(usd_per_second=0.01), 0.0)

    assert [c.p for c in made] == [0.5, 0.5]


# ---------------------------------------------------------------- the baselines


def test_weighted_random_ignores_evidence_and_load_but_not_slow_start() -> None:
    made = candidates({"a": 1, "b": 1})
    slow(made[0], 4.0)
    made[0].state.blame(3.0, 0.0)
    made[0].state.inflight = 9
    assert shares(made, choice("weighted_random"))["a"] == pytest.approx(0.5, abs=0.015)

    close_after_a_trip(made[0], at=1000.0)
    got = shares(made, choice("weighted_random"), now=1000.0)
    assert got["a"] == pytest.approx(0.1 / 1.1, abs=0.01)


def test_round_robin_spreads_evenly_in_every_short_stretch() -> None:
    made, ask = candidates({"a": 3, "b": 1}), choice("round_robin")

    turns = [choose(made, ask, 0.0).endpoint.id for _ in range(8)]

    assert turns == ["a", "a", "b", "a"] * 2


def test_round_robin_credits_stay_bounded() -> None:
    made, ask = candidates({"a": 5, "b": 3, "c": 2}), choice("round_robin")
    for _ in range(10_000):
        choose(made, ask, 0.0)

    assert all(abs(credit) <= 3.0 for credit in ask.pool.turn.values())
    assert sum(ask.pool.turn.values()) == pytest.approx(0.0, abs=1e-6)


def test_least_inflight_takes_the_least_loaded_per_weight_and_breaks_ties_by_weight() -> None:
    made, ask = candidates({"a": 1, "b": 2, "c": 1}), choice("least_inflight")
    made[0].state.inflight, made[1].state.inflight, made[2].state.inflight = 2, 2, 2
    assert shares(made, ask, draws=200)["b"] == 1.0

    for c in made:
        c.state.inflight = 0
    assert shares(made, ask)["b"] == pytest.approx(0.5, abs=0.015)


def test_least_inflight_leaves_out_what_has_no_weight() -> None:
    made = candidates({"a": 1, "b": 0})
    made[0].state.inflight = 9

    assert choose(made, choice("least_inflight"), 0.0) is made[0]


def test_two_choices_keeps_the_first_of_equals() -> None:
    made = candidates({"a": 1, "b": 1})

    assert choose(made, choice("two_choices", rng=Dice(0.0, 0.0)), 0.0) is made[0]


def test_two_choices_keeps_the_less_loaded_of_two_different_draws() -> None:
    made, ask = candidates({"a": 1, "b": 1, "c": 1}), choice("two_choices")
    made[0].state.inflight = 1
    got = shares(made, ask)
    assert got["a"] == 0.0
    assert got["b"] == pytest.approx(0.5, abs=0.015)

    made[0].state.inflight = 0
    assert shares(made, ask)["a"] == pytest.approx(1 / 3, abs=0.015)


def test_min_cost_takes_the_fastest_expected_by_own_evidence() -> None:
    made, ask = candidates({"a": 1, "b": 1}), choice("min_cost")
    made[0].expected_s, made[1].expected_s = 1.0, 1.1
    assert shares(made, ask, draws=100)["a"] == 1.0

    slow(made[0], 2.0)
    slow(made[1], 1.0)
    assert shares(made, ask, draws=100)["b"] == 1.0


def test_min_cost_counts_a_dollar_as_its_seconds_and_an_unknown_latency_as_one() -> None:
    made = priced({"a": 0.05, "b": 0.0}, {"a": 1.0, "b": 3.0})
    assert choose(made, choice("min_cost", usd_per_second=0.01), 0.0) is made[1]
    assert choose(made, choice("min_cost", usd_per_second=0.1), 0.0) is made[0]

    made[0].usd = None
    assert choose(made, choice("min_cost", usd_per_second=0.01), 0.0) is made[0]
    made[1].expected_s = None  # 1 s
    made[0].expected_s = 1.1
    assert choose(made, choice("min_cost"), 0.0) is made[1]


def test_min_cost_breaks_ties_by_weight() -> None:
    got = shares(candidates({"a": 3, "b": 1}), choice("min_cost"))

    assert got["a"] == pytest.approx(0.75, abs=0.015)


# ---------------------------------------------------------------- staying warm


def test_a_warm_endpoint_is_left_when_it_is_twice_as_slow_as_the_mean() -> None:
    made = candidates({"a": 1, "b": 1})
    weigh(made, choice(), 0.0)
    assert may_stay_warm(made[0], made, choice())
    made[0].q = 2.0
    assert may_stay_warm(made[0], made, choice())
    made[0].q = 2.01

    assert may_stay_warm(made[0], made, choice()) is False


def test_own_outstanding_does_not_throw_the_cache_away_by_default() -> None:
    made = candidates({"a": 1, "b": 1})
    weigh(made, choice(), 0.0)
    made[0].state.inflight = 500

    assert may_stay_warm(made[0], made, choice())


@pytest.mark.parametrize(
    ("here", "there", "stays"),
    [
        (0, 0, True),
        (1, 0, False),
        (1, 2, True),
        (2, 0, False),
        (2, 1, False),
        (4, 3, True),
        (4, 5, True),
        (0, 9, True),
    ],
)
def test_a_stated_bound_on_own_outstanding_is_kept(here: int, there: int, stays: bool) -> None:
    """Bound 1.25: of `here` + `there` + this one over two endpoints."""
    made, ask = candidates({"a": 1, "b": 1}), choice(max_load_factor=1.25)
    weigh(made, ask, 0.0)
    made[0].state.inflight, made[1].state.inflight = here, there

    mean = max(1.0, (here + there + 1) / 2)
    assert (here == 0 or here + 1 <= 1.25 * mean) == stays
    assert may_stay_warm(made[0], made, ask) == stays


def test_an_idle_warm_endpoint_is_kept_however_tight_the_bound() -> None:
    made, ask = candidates({"a": 1, "b": 1}), choice(max_load_factor=0.5)
    weigh(made, ask, 0.0)

    assert may_stay_warm(made[0], made, ask)
