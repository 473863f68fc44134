"""A tenant's budget in one process: what may be spent by what is known here, and what is told."""

from __future__ import annotations

import pytest

from headway.core.purse import IDLE_S, PICO_PER_NANO, Claim, Grant, Purse, Terms, nano

DAY = 86_400
DOLLAR = 10**12
NANO = PICO_PER_NANO
WALL = 20_000.25 * DAY  # six hours into a day


def purse(limit: int = DOLLAR, share: float = 0.25, period_s: int = DAY) -> Purse:
    return Purse(Terms(limit, period_s, share), "p-1", 100.0, WALL)


def claimed(of: Purse, now: float = 100.0, *, closing: bool = False) -> Claim:
    claim = of.claim("acme", now, closing=closing)
    assert claim is not None
    return claim


def answer(
    of: Purse,
    now: float = 100.0,
    *,
    ahead: int = 0,
    left: int,
    window: int = 20_000,
    ends_in_s: float = 64_800.0,
) -> None:
    of.grant(Grant("acme", "p-1", window, ends_in_s, ahead, left), now)


def answered() -> Purse:
    """One that has used 1,000 nano-USD and was told that 500 are left for all."""
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, left=500)
    return mine


# ------------------------------------------------------------------------- without a store


def test_a_process_may_use_its_share_to_the_last_and_no_more() -> None:
    mine = purse()
    assert mine.reserve(DOLLAR // 8, 100.0)
    assert not mine.reserve(DOLLAR // 8 + 1, 100.0)
    assert mine.reserve(DOLLAR // 8, 100.0)
    assert mine.used == DOLLAR // 4
    assert not mine.reserve(1, 100.0)
    assert mine.used == DOLLAR // 4


def test_the_first_call_goes_though_it_needs_more_than_the_share() -> None:
    mine = purse()
    assert mine.reserve(DOLLAR, 100.0)
    assert not mine.reserve(1, 100.0)


def test_no_call_goes_that_needs_more_than_the_whole_budget() -> None:
    mine = purse()
    assert not mine.reserve(DOLLAR + 1, 100.0)
    assert mine.used == 0


def test_only_the_first_call_goes_beyond_the_share() -> None:
    mine = purse()
    assert mine.reserve(1, 100.0)
    assert not mine.reserve(DOLLAR // 4, 100.0)
    assert mine.reserve(DOLLAR // 4 - 1, 100.0)


def test_who_has_the_whole_budget_keeps_to_it_exactly() -> None:
    mine = purse(share=1.0)
    assert mine.reserve(DOLLAR - 1, 100.0)
    assert not mine.reserve(2, 100.0)
    assert mine.reserve(1, 100.0)
    assert not mine.reserve(1, 100.0)


def test_what_is_not_refused_is_counted_all_the_same() -> None:
    mine = purse()
    assert mine.reserve(3 * DOLLAR, 100.0, anyway=True)
    assert mine.used == 3 * DOLLAR
    assert not mine.reserve(1, 100.0)


def test_a_share_is_rounded_down() -> None:
    mine = purse(limit=7, share=0.5)
    assert mine.reserve(1, 100.0)
    assert not mine.reserve(3, 100.0)
    assert mine.reserve(2, 100.0)


# ------------------------------------------------------------------------- corrections


def test_what_a_call_cost_takes_the_place_of_what_was_reserved() -> None:
    mine = purse()
    mine.reserve(DOLLAR // 4, 100.0)
    mine.correct(DOLLAR // 4, 1000, mine.period)
    assert mine.used == 1000
    assert mine.reserve(DOLLAR // 4 - 1000, 100.0)
    mine.correct(DOLLAR // 4 - 1000, DOLLAR, mine.period)
    assert mine.used == DOLLAR + 1000
    assert not mine.reserve(1, 100.0)


def test_the_mean_is_of_the_calls_that_are_over() -> None:
    mine = purse()
    assert mine.mean() == 0
    mine.reserve(10, 100.0)
    mine.reserve(10, 100.0)
    mine.correct(10, 5, mine.period)
    assert mine.mean() == 5
    mine.correct(10, 8, mine.period)
    assert mine.mean() == 6


def test_a_call_counts_in_the_period_in_which_it_began() -> None:
    mine = purse()
    mine.reserve(100, 100.0)
    began = mine.period
    mine.turn(100.0 + 64_800.0)
    mine.reserve(7, 100.0 + 64_800.0)
    mine.correct(100, 300, began)
    assert mine.used == 7
    assert mine.mean() == 300


# ------------------------------------------------------------------------- periods


def test_a_period_ends_by_the_wall_clock_and_the_next_one_is_whole() -> None:
    mine = purse()
    assert mine.window == 20_000
    assert mine.ends_at == pytest.approx(100.0 + 0.75 * DAY)
    mine.reserve(DOLLAR // 4, 100.0)
    assert not mine.reserve(1, mine.ends_at - 0.001)
    assert mine.period == 0
    assert mine.reserve(DOLLAR // 4, mine.ends_at)
    assert (mine.window, mine.period) == (20_001, 1)
    assert mine.ends_at == pytest.approx(100.0 + 1.75 * DAY)


def test_several_periods_may_have_passed() -> None:
    mine = purse()
    ends_at = mine.ends_at
    mine.turn(ends_at + 2 * DAY)
    assert (mine.window, mine.ends_at) == (20_003, ends_at + 3 * DAY)
    mine.turn(ends_at + 3 * DAY - 1.0)
    assert mine.window == 20_003


def test_a_period_begins_with_nothing_used_granted_or_owed() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=7)
    mine.reserve(400 * NANO, 100.0)
    assert not mine.reserve(DOLLAR, 100.0)
    end = mine.ends_at
    mine.turn(end)
    assert (mine.used, mine.granted, mine.left) == (0, 0, DOLLAR)
    assert mine.claim("acme", end) is None
    mine.reserve(NANO, end)
    assert claimed(mine, end) == ("acme", "p-1", DAY, 10**9, 20_001, 1, 2)


# ------------------------------------------------------------------------- terms


def test_a_raised_budget_raises_what_is_left() -> None:
    mine = purse(share=1.0)
    mine.reserve(DOLLAR, 100.0)
    mine.adopt(Terms(2 * DOLLAR, DAY, 1.0))
    assert mine.left == 2 * DOLLAR
    assert mine.reserve(DOLLAR, 100.0)
    assert not mine.reserve(1, 100.0)


def test_a_lowered_budget_lowers_it_and_may_leave_nothing() -> None:
    mine = purse(share=1.0)
    mine.adopt(Terms(10 * NANO, DAY, 1.0))
    assert not mine.reserve(10 * NANO + 1, 100.0)
    mine.reserve(10 * NANO, 100.0)
    claimed(mine)
    answer(mine, left=0)
    mine.adopt(Terms(4 * NANO, DAY, 0.5))
    assert mine.left == -6 * NANO
    assert not mine.reserve(1, 100.0)
    assert mine.claim("acme", 100.0) is not None  # the store is told of the new limit


def test_a_new_share_holds_at_once() -> None:
    mine = purse(share=1.0)
    mine.reserve(DOLLAR // 2, 100.0)
    mine.adopt(Terms(DOLLAR, DAY, 0.5))
    assert not mine.reserve(1, 100.0)


# ------------------------------------------------------------------------- the store


def test_a_purse_that_was_not_used_tells_nothing() -> None:
    assert purse().claim("acme", 100.0) is None


def test_a_claim_says_all_that_was_used_and_asks_for_some_more() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    mine.reserve(3000 * NANO, 100.0)
    assert claimed(mine) == Claim("acme", "p-1", DAY, 10**9, -1, 4000, 5000)
    assert mine.claim("acme", 100.0) is None


def test_it_asks_for_one_more_call_at_least() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    mine.correct(1000 * NANO, 900 * NANO, mine.period)
    assert claimed(mine) == Claim("acme", "p-1", DAY, 10**9, -1, 900, 1000)


def test_it_asks_for_the_largest_call_that_was_refused() -> None:
    mine = purse(limit=10_000 * NANO, share=0.1)
    mine.reserve(1000 * NANO, 100.0)
    assert not mine.reserve(2000 * NANO, 100.0)
    assert not mine.reserve(1500 * NANO, 100.0)
    assert claimed(mine).ahead == 1250 + 2000
    assert mine.claim("acme", 100.0) is None
    assert not mine.reserve(2000 * NANO, 100.0)
    claim = claimed(mine)  # nothing new was used
    assert (claim.used, claim.ahead) == (1000, 3000)


def test_parts_of_a_nano_dollar_are_told_as_one() -> None:
    mine = purse()
    mine.reserve(1001, 100.0)
    assert claimed(mine).used == 2
    mine.correct(1001, 1000, mine.period)
    assert claimed(mine).used == 1
    mine.correct(0, -5000, mine.period)
    assert claimed(mine).used == 0
    assert [nano(n) for n in (-1, 0, 1, 999, 1000, 1001)] == [0, 0, 1, 1, 1, 2]


def test_what_was_granted_may_be_used_and_then_the_share_of_what_is_left() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=400)
    assert (mine.granted, mine.left) == (1500 * NANO, 400 * NANO)
    assert mine.reserve(500 * NANO, 100.0)
    assert mine.reserve(100 * NANO, 100.0)
    assert not mine.reserve(1, 100.0)


def test_one_call_may_go_beyond_what_was_granted_if_the_fleet_has_it() -> None:
    for needs, goes in ((900, True), (901, False)):
        mine = purse()
        mine.reserve(1000 * NANO, 100.0)
        claimed(mine)
        answer(mine, ahead=500, left=400)
        assert mine.reserve(needs * NANO, 100.0) is goes
        assert not goes or not mine.reserve(1, 100.0)


def test_one_call_goes_beyond_where_all_that_was_granted_is_used() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=400)
    mine.reserve(500 * NANO, 100.0)
    assert mine.used == mine.granted
    assert mine.reserve(400 * NANO, 100.0)


def test_whether_the_fleet_has_room_is_told() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=400)
    mine.reserve(600 * NANO, 100.0)
    assert not mine.can_carry(300 * NANO)
    assert mine.fits_fleet(300 * NANO)
    assert not mine.fits_fleet(300 * NANO + 1)


def test_where_more_was_used_than_there_was_nothing_goes() -> None:
    mine = purse(share=1.0)
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, left=-1)
    assert mine.left == -NANO
    assert not mine.reserve(1, 100.0)


def test_what_was_granted_is_used_though_others_have_spent_the_rest() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=-300)
    assert mine.reserve(500 * NANO, 100.0)
    assert not mine.reserve(1, 100.0)


def test_what_is_used_between_a_claim_and_its_answer_is_not_granted_again() -> None:
    mine = purse(share=1.0)
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    mine.reserve(200 * NANO, 100.0)
    answer(mine, ahead=500, left=0)
    assert mine.reserve(300 * NANO, 100.0)
    assert not mine.reserve(1, 100.0)
    assert claimed(mine).used == 1500


def test_the_store_says_which_period_it_is_whatever_this_clock_says() -> None:
    mine = purse()
    assert not mine.is_told
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, 101.0, left=5, window=19_876, ends_in_s=10.0)
    assert mine.is_told
    assert (mine.window, mine.ends_at, mine.used) == (19_876, 111.0, 1000 * NANO)
    mine.reserve(NANO, 102.0)
    assert claimed(mine, 102.0).window == 19_876
    mine.turn(111.0)
    assert mine.window == 19_877


def test_a_period_that_the_store_has_begun_begins_here_too() -> None:
    mine = answered()
    assert mine.reserve(10 * NANO, 100.0)
    claimed(mine)
    mine.reserve(1, 100.0)
    answer(mine, ahead=2, left=50, window=20_001, ends_in_s=DAY)
    assert (mine.period, mine.window, mine.ends_at) == (1, 20_001, 100.0 + DAY)
    assert mine.used == 1  # what came after the claim
    assert (mine.granted, mine.left) == (2 * NANO, 50 * NANO)
    assert claimed(mine).used == 1


def test_a_period_that_begins_with_nothing_used_has_nothing_to_tell() -> None:
    mine = answered()
    assert mine.reserve(10 * NANO, 100.0)
    claimed(mine)
    mine.correct(10 * NANO, 4 * NANO, mine.period)
    answer(mine, left=50, window=20_001)
    assert mine.used == 0
    assert mine.claim("acme", 100.0) is None


def test_a_store_whose_clock_went_back_changes_nothing_that_was_used() -> None:
    mine = answered()
    assert mine.reserve(10 * NANO, 100.0)
    claimed(mine)
    answer(mine, left=50, window=19_999, ends_in_s=30.0)
    assert (mine.period, mine.used, mine.granted) == (0, 1010 * NANO, 1010 * NANO)
    assert (mine.window, mine.ends_at) == (19_999, 130.0)


def test_an_answer_about_a_period_that_has_ended_here_is_not_heard() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    end = mine.ends_at
    claimed(mine)
    answer(mine, end, ahead=5, left=3)
    assert (mine.granted, mine.left, mine.is_told) == (0, DOLLAR, False)
    assert mine.claim("acme", end) is None

    late = purse()
    late.reserve(1000 * NANO, 100.0)
    claimed(late)
    late.reserve(1, end)
    answer(late, end, ahead=5, left=3)
    assert claimed(late, end).used == 1


def test_a_claim_without_an_answer_is_made_again() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    mine.lose()
    assert claimed(mine).used == 1000


def test_while_the_store_is_gone_the_share_of_what_was_left_may_be_used() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=100, left=4000)
    claimed_again = mine.reserve(1100 * NANO, 200.0)
    assert claimed_again  # 100 granted, 1000 of the 4000 that were left
    claimed(mine, 200.0)
    mine.lose()
    assert not mine.reserve(1, 200.0)
    assert claimed(mine, 201.0).used == 2100  # and all of it is owed


# ------------------------------------------------------------------------- giving back


def test_what_is_not_used_for_a_while_is_given_back_once() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=400)
    assert mine.claim("acme", 100.0 + IDLE_S - 0.01) is None
    assert not mine.is_idle(100.0 + IDLE_S - 0.01)
    assert mine.is_idle(100.0 + IDLE_S)
    claim = claimed(mine, 100.0 + IDLE_S)
    assert (claim.used, claim.ahead) == (1000, 0)
    answer(mine, 100.0 + IDLE_S, left=900)
    assert mine.granted == mine.used
    assert mine.claim("acme", 200.0) is None


def test_what_changes_while_idle_is_told_and_nothing_asked_for() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    mine.correct(1000 * NANO, 300 * NANO, mine.period)
    claim = claimed(mine, 200.0)
    assert (claim.used, claim.ahead) == (300, 0)


def test_a_process_that_ends_gives_back_what_it_has_not_used() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    claimed(mine)
    answer(mine, ahead=500, left=400)
    claim = claimed(mine, closing=True)
    assert (claim.used, claim.ahead) == (1000, 0)


def test_a_refused_call_keeps_the_purse_in_use() -> None:
    mine = purse(limit=10 * NANO, share=1.0)
    assert mine.is_idle(100.0)
    assert not mine.reserve(11 * NANO, 100.0)
    assert not mine.is_idle(100.0)
    assert claimed(mine).ahead == 11
    assert IDLE_S == 10.0


def test_a_new_budget_is_told_though_nothing_was_used() -> None:
    mine = purse()
    mine.adopt(Terms(2 * DOLLAR, DAY, 0.25))
    assert claimed(mine) == Claim("acme", "p-1", DAY, 2 * 10**9, -1, 0, 0)


def test_what_was_used_in_a_period_that_is_over_is_not_told() -> None:
    mine = purse()
    mine.reserve(1000 * NANO, 100.0)
    assert mine.claim("acme", mine.ends_at) is None


def test_an_answer_about_the_same_period_keeps_what_was_used() -> None:
    mine = purse()
    for used in (1000, 2000):
        mine.reserve(1000 * NANO, 100.0)
        claimed(mine)
        answer(mine, ahead=10, left=9000)
        assert (mine.period, mine.used, mine.granted) == (0, used * NANO, (used + 10) * NANO)
