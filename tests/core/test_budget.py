from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.budget import HEDGE_CAPACITY, TRICKLE_CEILING, HedgeBudget, RetryBudget
from headway.core.snapshot import HedgePolicy, RetryPolicy

POLICY = RetryPolicy()  # starts with 3, +0.1 per success, +1 per 300 s up to 2, capacity 5


def drain(budget: RetryBudget, now: float = 0.0) -> int:
    taken = 0
    while budget.withdraw(now):
        taken += 1
    return taken


# ---------------------------------------------------------------- retries


def test_starts_with_three_tokens_the_breakers_trip_and_no_more() -> None:
    budget = RetryBudget(POLICY, 0.0)

    assert budget.balance(0.0) == 3.0
    assert drain(budget) == 3
    assert not budget.can_withdraw(0.0)
    assert not budget.withdraw(0.0)
    assert budget.balance(0.0) == 0.0


def test_never_starts_above_its_capacity() -> None:
    assert RetryBudget(RetryPolicy(budget_start=9.0), 0.0).balance(0.0) == 5.0


def test_ten_successes_pay_for_one_retry() -> None:
    budget = RetryBudget(POLICY, 0.0)
    drain(budget)

    for _ in range(9):
        budget.deposit(0.0)
    assert not budget.can_withdraw(0.0)
    budget.deposit(0.0)

    assert budget.can_withdraw(0.0)  # 10 x 0.1 in floats is not quite 1
    assert drain(budget) == 1
    assert budget.balance(0.0) == pytest.approx(0.0)


def test_time_alone_gives_one_token_per_300_s_and_never_lifts_it_above_two() -> None:
    budget = RetryBudget(POLICY, 0.0)
    drain(budget)

    assert budget.balance(150.0) == pytest.approx(0.5)
    assert budget.balance(300.0) == pytest.approx(1.0)
    assert budget.balance(600.0) == TRICKLE_CEILING
    assert budget.balance(1e6) == TRICKLE_CEILING


def test_a_balance_of_two_or_more_does_not_grow_with_time() -> None:
    budget = RetryBudget(POLICY, 0.0)
    assert budget.balance(1e6) == 3.0
    budget.withdraw(0.0)
    assert budget.balance(1e6) == 2.0


def test_the_trickle_goes_on_from_where_it_was_after_a_change() -> None:
    budget = RetryBudget(POLICY, 0.0)
    drain(budget)

    budget.deposit(150.0)  # 0.5 trickled, 0.1 credited

    assert budget.balance(150.0) == pytest.approx(0.6)
    assert budget.balance(300.0) == pytest.approx(1.1)


def test_without_a_trickle_only_successes_refill_it() -> None:
    budget = RetryBudget(RetryPolicy(budget_trickle_s=0.0), 0.0)
    drain(budget)

    assert budget.balance(1e9) == 0.0


def test_a_fast_trickle_is_as_fast_as_configured() -> None:
    budget = RetryBudget(RetryPolicy(budget_trickle_s=1.0), 0.0)
    drain(budget)

    assert budget.balance(0.5) == 0.5
    assert budget.balance(1.5) == 1.5


def test_it_never_holds_more_than_its_capacity() -> None:
    budget = RetryBudget(POLICY, 0.0)

    for _ in range(100):
        budget.deposit(0.0)

    assert budget.balance(0.0) == 5.0
    assert drain(budget) == 5


def test_capacity_is_half_the_recent_peak_in_flight_and_fades() -> None:
    budget = RetryBudget(POLICY, 0.0)
    assert budget.capacity(0.0) == 5.0

    budget.note_inflight(64, 0.0)

    assert budget.capacity(0.0) == 32.0
    assert budget.capacity(120.0) == pytest.approx(16.0)
    assert budget.capacity(240.0) == pytest.approx(8.0)
    assert budget.capacity(1e4) == 5.0


def test_from_twice_the_floor_on_the_capacity_follows_the_concurrency() -> None:
    budget = RetryBudget(POLICY, 0.0)
    budget.note_inflight(10, 0.0)
    assert budget.capacity(0.0) == 5.0

    budget.note_inflight(12, 0.0)

    assert budget.capacity(0.0) == 6.0


def test_with_a_floor_of_nothing_it_is_still_half_the_peak() -> None:
    budget = RetryBudget(replace(POLICY, budget_capacity=0.0), 0.0)
    assert budget.capacity(0.0) == budget.balance(9.0) == 0.0
    budget.note_inflight(1, 10.0)
    assert budget.capacity(10.0) == 0.5
    assert budget.capacity(130.0) == pytest.approx(0.25)


def test_a_full_budget_of_a_busy_pool_stays_full() -> None:
    budget = RetryBudget(POLICY, 0.0)
    budget.note_inflight(12, 0.0)
    for _ in range(100):
        budget.deposit(0.0)

    assert budget.balance(0.0) == 6.0


def test_a_lower_concurrency_does_not_hide_the_recent_peak_but_a_higher_one_replaces_it() -> None:
    budget = RetryBudget(POLICY, 0.0)
    budget.note_inflight(40, 0.0)
    budget.note_inflight(4, 120.0)
    budget.note_inflight(11, 120.0)
    assert budget.capacity(120.0) == pytest.approx(10.0)

    budget.note_inflight(22, 120.0)
    assert budget.capacity(120.0) == 11.0
    budget.note_inflight(22, 240.0)
    assert budget.capacity(240.0) == 11.0


def test_the_balance_shrinks_with_the_capacity_and_is_there_again_in_the_next_burst() -> None:
    budget = RetryBudget(POLICY, 0.0)
    budget.note_inflight(40, 0.0)
    for _ in range(200):
        budget.deposit(0.0)
    assert budget.balance(0.0) == 20.0

    assert budget.balance(120.0) == pytest.approx(10.0)
    assert budget.balance(1e4) == 5.0
    budget.note_inflight(30, 1e4)
    assert budget.balance(1e4) == 15.0


def test_a_retry_that_was_never_sent_gives_its_token_back() -> None:
    budget = RetryBudget(POLICY, 0.0)
    budget.withdraw(0.0)

    budget.refund(0.0)
    assert budget.balance(0.0) == 3.0
    for _ in range(10):
        budget.refund(0.0)

    assert budget.balance(0.0) == 5.0


def test_a_new_policy_changes_the_rates_and_keeps_the_balance() -> None:
    budget = RetryBudget(POLICY, 0.0)
    budget.withdraw(0.0)

    budget.reconfigure(RetryPolicy(budget_per_success=0.5, budget_capacity=2.5))

    assert budget.balance(0.0) == 2.0
    budget.deposit(0.0)
    assert budget.balance(0.0) == 2.5
    budget.deposit(0.0)
    assert budget.balance(0.0) == 2.5


def test_time_that_runs_backwards_takes_nothing_away() -> None:
    budget = RetryBudget(POLICY, 100.0)
    drain(budget, 100.0)

    assert budget.balance(0.0) == 0.0
    budget.note_inflight(30, 50.0)
    assert budget.capacity(0.0) == 15.0


operations = st.lists(
    st.tuples(
        st.floats(0, 500),
        st.sampled_from(["deposit", "withdraw", "refund", "read"]),
        st.integers(0, 200),
    ),
    max_size=60,
)


@given(operations)
def test_the_balance_stays_between_zero_and_the_capacity(
    script: list[tuple[float, str, int]],
) -> None:
    budget, now = RetryBudget(POLICY, 0.0), 0.0
    for dt, what, inflight in script:
        now += dt
        before = budget.balance(now)
        if what == "deposit":
            budget.note_inflight(inflight, now)
            budget.deposit(now)
        elif what == "withdraw":
            assert budget.withdraw(now) == (before >= 1.0 - 1e-9)
        elif what == "refund":
            budget.refund(now)
        assert 0.0 <= budget.balance(now) <= budget.capacity(now)
        assert budget.capacity(now) >= POLICY.budget_capacity


@given(st.integers(1, 400), st.floats(0.0, 1.0))
def test_extra_attempts_never_exceed_stock_plus_a_tenth_of_successes_plus_the_trickle(
    calls: int, failing: float
) -> None:
    budget, now, extra, successes = RetryBudget(POLICY, 0.0), 0.0, 0, 0
    for i in range(calls):
        now += 1.0
        if (i * 0.618) % 1.0 < failing:
            extra += budget.withdraw(now)
        else:
            successes += 1
            budget.deposit(now)

    assert extra <= 3.0 + 0.1 * successes + now / 300.0 + 1e-6


# ---------------------------------------------------------------- hedges


def test_hedges_start_at_nothing_and_cost_twenty_eligible_calls_each() -> None:
    hedges = HedgeBudget(HedgePolicy())
    assert hedges.balance == 0.0
    assert not hedges.withdraw()

    for _ in range(19):
        hedges.deposit()
    assert not hedges.can_withdraw()
    hedges.deposit()

    assert hedges.can_withdraw()
    assert hedges.withdraw()
    assert hedges.balance == pytest.approx(0.0)
    assert not hedges.withdraw()


def test_a_quiet_hour_saves_up_three_hedges_at_most() -> None:
    hedges = HedgeBudget(HedgePolicy())
    for _ in range(1000):
        hedges.deposit()

    assert hedges.balance == 3.0
    assert [hedges.withdraw() for _ in range(4)] == [True, True, True, False]


def test_a_new_fraction_keeps_the_balance() -> None:
    hedges = HedgeBudget(HedgePolicy())
    for _ in range(10):
        hedges.deposit()

    hedges.reconfigure(HedgePolicy(max_extra_fraction=0.5))
    hedges.deposit()

    assert hedges.balance == pytest.approx(1.0)


@given(st.lists(st.sampled_from(["deposit", "withdraw"]), max_size=200))
def test_hedges_never_exceed_their_fraction_of_eligible_calls(script: list[str]) -> None:
    hedges, eligible, hedged = HedgeBudget(HedgePolicy()), 0, 0
    for what in script:
        if what == "deposit":
            eligible += 1
            hedges.deposit()
        else:
            hedged += hedges.withdraw()
        assert 0.0 <= hedges.balance <= HEDGE_CAPACITY
        assert hedged <= math.floor(0.05 * eligible + 1e-6)
