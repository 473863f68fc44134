from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.backoff import (
    HINT_MAX_S,
    THROTTLE_CAP_S,
    backoff_s,
    throttle_s,
    usable_hint,
    widen_hint,
)
from headway.core.snapshot import RetryPolicy
from tests.core.build import Even

ALMOST_ONE = math.nextafter(1.0, 0.0)
POLICY = RetryPolicy()  # 0.5 s doubling up to 8 s


@pytest.mark.parametrize(("retry", "step"), [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0)])
def test_backoff_is_drawn_between_zero_and_a_doubling_step(retry: int, step: float) -> None:
    assert backoff_s(POLICY, retry, Even(0.0)) == 0.0
    assert backoff_s(POLICY, retry, Even(0.5)) == step / 2
    assert backoff_s(POLICY, retry, Even(ALMOST_ONE)) == pytest.approx(step)


@pytest.mark.parametrize("retry", [5, 16, 17, 1000, 10**9])
def test_backoff_stops_growing_at_the_cap(retry: int) -> None:
    assert backoff_s(POLICY, retry, Even(0.5)) == 4.0


def test_an_uncapped_policy_stays_finite_whatever_was_counted() -> None:
    policy = RetryPolicy(backoff_base_s=1.0, backoff_cap_s=math.inf)

    assert backoff_s(policy, 10**9, Even(0.5)) == 2.0**16 / 2


@pytest.mark.parametrize(
    ("row", "low", "high"),
    [(0, 0.5, 1), (1, 1, 2), (2, 2, 4), (4, 8, 16), (5, 10, 20), (99, 10, 20)],
)
def test_a_throttled_endpoint_is_left_alone_for_half_to_all_of_a_doubling_step(
    row: int, low: float, high: float
) -> None:
    assert throttle_s(row, Even(0.0)) == low
    assert throttle_s(row, Even(ALMOST_ONE)) == pytest.approx(high)


@pytest.mark.parametrize(
    ("hint", "taken"),
    [
        (None, None),
        (0.0, None),
        (-1.0, None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (0.001, 0.001),
        (5.0, 5.0),
        (86_400.0, HINT_MAX_S),
        (1e12, HINT_MAX_S),
    ],
)
def test_only_finite_positive_hints_mean_something(hint: float | None, taken: float | None) -> None:
    assert usable_hint(hint) == taken


@pytest.mark.parametrize(("hint", "latest"), [(1.0, 1.3), (5.0, 6.5), (10.0, 12.0), (100.0, 111.0)])
def test_a_hint_is_never_undercut_and_widened_by_up_to_a_tenth_and_a_second(
    hint: float, latest: float
) -> None:
    assert widen_hint(hint, Even(0.0)) == hint
    assert widen_hint(hint, Even(ALMOST_ONE)) == pytest.approx(latest)


@given(st.integers(0, 10**6), st.floats(0, 100), st.floats(0, 1000), st.integers(0, 2**32))
def test_backoff_stays_within_its_step(retry: int, base: float, cap: float, seed: int) -> None:
    policy = RetryPolicy(backoff_base_s=base, backoff_cap_s=cap)

    wait = backoff_s(policy, retry, random.Random(seed))

    assert 0.0 <= wait <= min(cap, base * 2.0 ** min(retry, 16))


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none(), st.integers(0, 2**32))
def test_whatever_a_server_says_the_wait_is_finite_and_no_less(
    hint: float | None, seed: int
) -> None:
    usable = usable_hint(hint)
    if usable is None:
        return
    wait = widen_hint(usable, random.Random(seed))

    assert usable <= wait <= 1.1 * usable + 1.0
    assert math.isfinite(wait)


@given(st.integers(0, 10**9), st.integers(0, 2**32))
def test_throttle_waits_stay_within_half_a_second_and_twenty(row: int, seed: int) -> None:
    assert 0.5 <= throttle_s(row, random.Random(seed)) <= THROTTLE_CAP_S
