from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.admission import (
    BURST_S,
    LIMIT_MAX,
    ConcurrencyLimit,
    RateGate,
    Ticket,
    WaitQueue,
)

# ---------------------------------------------------------------- the limit


def test_without_a_ceiling_there_is_no_limit_until_the_first_sign_of_overload() -> None:
    limit = ConcurrencyLimit(None)

    assert limit.limit is None
    assert limit.has_room(10_000)
    limit.on_success(64, now=100.0)
    assert limit.limit is None


def test_a_ceiling_holds_from_the_start() -> None:
    limit = ConcurrencyLimit(4.0)

    assert limit.has_room(3)
    assert not limit.has_room(4)


def test_overload_shrinks_the_limit_to_seven_tenths_of_what_was_in_flight() -> None:
    limit = ConcurrencyLimit(None)

    assert limit.on_overload(20, 1.0, now=0.0)

    assert limit.limit == pytest.approx(14.0)
    assert limit.has_room(13)
    assert not limit.has_room(14)


def test_overload_never_raises_the_limit() -> None:
    limit = ConcurrencyLimit(10.0)

    limit.on_overload(200, 1.0, now=0.0)

    assert limit.limit == pytest.approx(7.0)


def test_overload_at_low_use_cuts_from_what_was_used() -> None:
    limit = ConcurrencyLimit(100.0)

    limit.on_overload(10, 1.0, now=0.0)

    assert limit.limit == pytest.approx(7.0)


def test_the_limit_never_falls_below_one() -> None:
    limit = ConcurrencyLimit(None)
    for second in range(20):
        limit.on_overload(1, 0.0, now=float(second))

    assert limit.limit == 1.0
    assert limit.has_room(0)
    assert not limit.has_room(1)


def test_failures_of_one_call_time_are_one_piece_of_news() -> None:
    limit = ConcurrencyLimit(10.0)

    assert limit.on_overload(10, 8.0, now=0.0)
    assert limit.on_overload(10, 8.0, now=7.9) is False
    assert limit.limit == pytest.approx(7.0)
    assert limit.on_overload(10, 8.0, now=8.0)

    assert limit.limit == pytest.approx(4.9)


def test_fast_calls_shrink_it_at_most_once_a_second() -> None:
    limit = ConcurrencyLimit(10.0)
    limit.on_overload(10, 0.001, now=0.0)

    assert not limit.on_overload(10, 0.001, now=0.999)
    assert limit.on_overload(10, 0.001, now=1.0)


def test_it_grows_by_one_per_limit_of_successes_while_half_in_use() -> None:
    limit = ConcurrencyLimit(None)
    limit.on_overload(10, 1.0, now=0.0)  # 7
    limit.on_success(3, now=100.0)
    assert limit.limit == pytest.approx(7.0)

    limit.on_success(4, now=100.0)
    assert limit.limit == pytest.approx(7.0 + 1 / 7)
    for _ in range(7):
        limit.on_success(7, now=100.0)

    assert limit.limit is not None
    assert 8.0 < limit.limit < 8.2


def test_exactly_half_in_use_is_enough_to_grow() -> None:
    limit = ConcurrencyLimit(20.0)
    limit.on_overload(20, 1.0, now=0.0)
    assert limit.limit == pytest.approx(14.0)

    limit.on_success(7, now=100.0)

    assert limit.limit == pytest.approx(14.0 + 1 / 14)


def test_growth_stops_at_the_ceiling() -> None:
    limit = ConcurrencyLimit(8.0)
    limit.on_overload(8, 1.0, now=0.0)

    for _ in range(1000):
        limit.on_success(8, now=100.0)

    assert limit.limit == 8.0


def test_a_learned_limit_past_the_maximum_is_forgotten() -> None:
    limit = ConcurrencyLimit(None)
    limit.on_overload(366, 1.0, now=0.0)  # 256.2
    assert limit.limit is not None

    limit.on_success(int(LIMIT_MAX), now=100.0)

    assert limit.limit is None


def test_a_large_ceiling_is_kept_past_the_maximum() -> None:
    limit = ConcurrencyLimit(1000.0)
    limit.on_overload(400, 1.0, now=0.0)

    limit.on_success(280, now=100.0)

    assert limit.limit is not None
    assert 280.0 < limit.limit < 281.0


def test_a_new_ceiling_replaces_an_untouched_one_and_cuts_a_learned_one() -> None:
    untouched, learned = ConcurrencyLimit(10.0), ConcurrencyLimit(10.0)
    learned.on_overload(10, 1.0, now=0.0)

    untouched.reconfigure(20.0)
    learned.reconfigure(20.0)
    assert untouched.limit == 20.0
    assert learned.limit == pytest.approx(7.0)
    learned.on_success(7, now=100.0)
    learned.reconfigure(3.0)

    assert learned.limit == 3.0


def test_growth_stops_at_the_new_ceiling() -> None:
    limit = ConcurrencyLimit(10.0)
    limit.reconfigure(20.0)
    limit.on_overload(20, 1.0, now=0.0)
    for _ in range(500):
        limit.on_success(20, now=100.0)

    assert limit.limit == 20.0


def test_a_ceiling_that_goes_away_leaves_what_was_learned() -> None:
    untouched, learned = ConcurrencyLimit(10.0), ConcurrencyLimit(10.0)
    learned.on_overload(10, 1.0, now=0.0)

    untouched.reconfigure(None)
    learned.reconfigure(None)

    assert untouched.limit is None
    assert learned.limit == pytest.approx(7.0)


def test_a_ceiling_that_appears_holds_at_once() -> None:
    limit = ConcurrencyLimit(None)
    limit.reconfigure(2.0)

    assert limit.limit == 2.0


def test_what_is_still_under_way_when_one_is_turned_away_is_what_fits() -> None:
    limit = ConcurrencyLimit(None)

    assert limit.on_refused(39, now=0.0)
    for remaining in range(38, 3, -1):
        limit.on_refused(remaining, now=0.0)

    assert limit.limit == 4.0
    assert not limit.has_room(4)
    assert limit.on_refused(7, now=0.0) is False  # more than was found to fit


def test_room_that_was_found_so_is_not_tested_again_for_a_while() -> None:
    limit = ConcurrencyLimit(None)
    limit.on_refused(4, now=0.0)
    for _ in range(100):
        limit.on_success(4, now=4.9)
    assert limit.limit == 4.0

    limit.on_success(4, now=5.0)

    assert limit.limit == 4.25


@pytest.mark.parametrize(("ceiling", "shrunk"), [(None, 7.0), (8.0, 5.6)])
def test_a_burst_turned_away_to_the_last_met_a_rate_and_no_lack_of_room(
    ceiling: float | None, shrunk: float
) -> None:
    limit = ConcurrencyLimit(ceiling)
    for remaining in range(9, -1, -1):
        limit.on_refused(remaining, now=0.0)

    assert limit.limit == pytest.approx(shrunk)
    limit.on_success(int(shrunk), now=0.1)
    assert limit.limit is not None
    assert limit.limit > shrunk


def test_a_success_ends_the_burst() -> None:
    limit = ConcurrencyLimit(None)
    for remaining in range(9, 3, -1):
        limit.on_refused(remaining, now=0.0)
    limit.on_success(4, now=1.0)
    for remaining in (1, 0):
        limit.on_refused(remaining, now=2.0)

    assert limit.limit == pytest.approx(2.8)  # of the four, not of the ten


@given(
    st.floats(1, 300) | st.none(),
    st.lists(st.tuples(st.sampled_from("okx"), st.integers(0, 400), st.floats(0, 5)), max_size=80),
)
def test_the_limit_stays_between_one_and_its_ceiling(
    ceiling: float | None, script: list[tuple[str, int, float]]
) -> None:
    limit, now = ConcurrencyLimit(ceiling), 0.0
    for what, inflight, dt in script:
        now += dt
        if what == "o":
            limit.on_success(inflight, now)
        elif what == "k":
            limit.on_refused(inflight, now)
        else:
            limit.on_overload(inflight, 1.0, now)
        known = limit.limit
        assert known is None or 1.0 <= known <= (ceiling or 401.0)
        assert limit.has_room(0)


# ---------------------------------------------------------------- the rate


def test_without_a_rate_nothing_waits() -> None:
    gate = RateGate(None)
    gate.charge(1e9, 0.0)

    assert gate.wait_s(0.0) == 0.0


def test_ten_seconds_of_rate_may_go_at_once_then_arrivals_are_paced() -> None:
    gate = RateGate(60.0)  # one a second
    sent = 0
    while gate.wait_s(0.0) == 0.0:
        gate.charge(1.0, 0.0)
        sent += 1

    assert sent == BURST_S + 1
    assert gate.wait_s(0.0) == 1.0
    assert gate.wait_s(0.25) == 0.75
    assert gate.wait_s(1.0) == 0.0


def test_over_a_minute_the_rate_is_exact() -> None:
    gate, now, sent = RateGate(120.0), 0.0, 0
    for _ in range(21):  # use up the burst
        gate.charge(1.0, 0.0)
    while now < 60.0:
        wait = gate.wait_s(now)
        now += wait if wait > 0 else 0.0
        if now < 60.0:
            gate.charge(1.0, now)
            sent += 1

    assert sent == 119


def test_a_large_request_goes_first_and_pays_afterwards() -> None:
    gate = RateGate(6000.0)  # 100 tokens a second
    gate.charge(60_000.0, 0.0)

    assert gate.wait_s(0.0) == 590.0
    assert gate.wait_s(590.0) == 0.0


def test_an_estimate_that_was_too_high_is_given_back() -> None:
    gate = RateGate(60.0)
    gate.charge(30.0, 0.0)
    gate.charge(-15.0, 0.0)

    assert gate.wait_s(0.0) == 5.0


def test_a_pause_earns_no_credit_beyond_the_burst() -> None:
    gate = RateGate(60.0)
    gate.charge(1.0, 0.0)

    for _ in range(11):
        assert gate.wait_s(1000.0) == 0.0
        gate.charge(1.0, 1000.0)

    assert gate.wait_s(1000.0) == 1.0


def test_a_correction_after_a_pause_earns_no_credit_either() -> None:
    """An answer shorter than planned gives back what it was charged, never more."""
    gate = RateGate(60.0)
    gate.charge(30.0, 0.0)

    gate.charge(-30.0, 100.0)
    for _ in range(11):
        gate.charge(1.0, 100.0)

    assert gate.wait_s(100.0) == 1.0


def test_a_new_rate_keeps_the_debt_and_none_lifts_it() -> None:
    gate = RateGate(60.0)
    gate.charge(30.0, 0.0)

    gate.reconfigure(600.0)
    assert gate.wait_s(0.0) == 20.0
    gate.charge(10.0, 0.0)
    assert gate.wait_s(0.0) == 21.0
    gate.reconfigure(None)

    assert gate.wait_s(0.0) == 0.0


# ---------------------------------------------------------------- the queue


def ticket(
    priority: int = 0,
    task: str | None = None,
    at: float = 0.0,
    limit_s: float = 2.0,
    *,
    sheddable: bool = True,
) -> Ticket:
    return Ticket(priority, task, at, at + limit_s, sheddable)


def filled(*tickets: Ticket) -> WaitQueue:
    queue = WaitQueue()
    for t in tickets:
        assert queue.offer(t, 64) == (True, None)
    return queue


def test_waiters_are_granted_in_the_order_they_came() -> None:
    first, second = ticket(at=0.0), ticket(at=0.1)
    queue = filled(first, second)

    assert queue.grant(0.5) is first
    assert first.granted
    assert not second.granted
    assert queue.grant(0.5) is second
    assert queue.grant(0.5) is None
    assert len(queue) == 2  # they leave when they go


def test_when_backed_up_the_newest_goes_first() -> None:
    old, middle, new = ticket(at=100.0), ticket(at=100.5), ticket(at=101.0)
    queue = filled(old, middle, new)

    assert queue.grant(101.0) is old  # exactly half of its limit: not yet
    old.granted = False
    assert queue.grant(101.01) is new
    assert queue.grant(101.01) is middle


def test_how_long_is_too_long_is_half_of_the_oldest_waiters_own_limit() -> None:
    patient, new = ticket(at=0.0, limit_s=20.0), ticket(at=9.0)
    queue = filled(patient, new)

    assert queue.grant(9.9) is patient


def test_when_backed_up_the_tasks_that_are_spared_go_first() -> None:
    """Of the calls that will wait in vain, as many as can be belong to the same tasks."""
    spared, middle, shed = ranked(3)
    old, new, lucky = ticket(task=middle), ticket(0, shed, at=1.0), ticket(0, spared, at=0.5)
    also_lucky = ticket(0, spared, at=0.7)
    queue = filled(old, lucky, also_lucky, new)

    order = [queue.grant(1.5) for _ in range(4)]

    assert order == [also_lucky, lucky, old, new]


def test_turns_are_divided_six_three_one_between_the_bands() -> None:
    queue = WaitQueue()
    for _ in range(100):
        for priority in (1, 0, -1):
            queue.offer(ticket(priority), 1000)

    served = [t.band for _ in range(100) if (t := queue.grant(0.1)) is not None]

    assert [served.count(band) for band in (0, 1, 2)] == [60, 30, 10]


def test_a_turn_goes_to_the_band_that_is_furthest_behind_its_share() -> None:
    queue = WaitQueue()
    for _ in range(10):
        for priority in (1, 0, -1):
            queue.offer(ticket(priority), 1000)

    turns = [t.band for _ in range(10) if (t := queue.grant(0.1)) is not None]

    assert turns == [0, 1, 2, 0, 0, 1, 0, 0, 1, 0]


def test_a_waiter_may_be_shed_unless_it_says_otherwise() -> None:
    assert Ticket(0, None, 0.0, 2.0).sheddable


def test_unused_turns_go_to_whoever_waits() -> None:
    queue = filled(*(ticket(-1) for _ in range(5)))

    assert sum(queue.grant(0.1) is not None for _ in range(6)) == 5


def test_the_record_of_turns_stays_bounded_and_keeps_its_ratio() -> None:
    queue = WaitQueue()
    for _ in range(5000):
        for priority in (1, 0, -1):
            queue.offer(ticket(priority), 10)
        granted = queue.grant(0.1)
        assert granted is not None
        for waiter in list(queue.waiters):
            queue.leave(waiter)

    assert max(queue._served) <= 1001.0
    assert queue._served[0] / sum(queue._served) == pytest.approx(0.6, abs=0.01)


def test_bands_follow_the_sign_of_the_priority() -> None:
    assert [ticket(p).band for p in (9, 1, 0, -1, -9)] == [0, 0, 1, 2, 2]


def test_nobody_of_ones_own_rank_or_above_is_overtaken() -> None:
    queue = filled(ticket(0))

    assert queue.obstacle_for(-1) == "limit"
    assert queue.obstacle_for(0) == "limit"
    assert queue.obstacle_for(1) == ""
    assert WaitQueue().obstacle_for(-5) == ""


def test_a_newcomer_waits_for_what_those_ahead_of_it_wait_for() -> None:
    background, cold = ticket(-1), ticket(0)
    cold.obstacle = "cold"
    queue = filled(background, cold)

    assert queue.obstacle_for(0) == "cold"
    assert queue.obstacle_for(-1) == "limit"


def test_a_full_queue_refuses_its_equals() -> None:
    queue = filled(ticket(0, "a"), ticket(0, "a"))

    assert queue.offer(ticket(0, "a"), 2) == (False, None)
    assert len(queue) == 2


def test_a_full_queue_gives_way_to_a_higher_priority_and_evicts_the_lowest() -> None:
    background, normal = ticket(-1), ticket(0)
    queue = filled(normal, background)
    interactive = ticket(1)

    assert queue.offer(interactive, 2) == (True, background)

    assert background.evicted
    assert not normal.evicted
    assert queue.waiters == [normal, interactive]


def test_those_that_may_not_be_shed_are_never_evicted() -> None:
    queue = filled(ticket(-1, sheddable=False), ticket(-1, sheddable=False))

    assert queue.offer(ticket(5), 2) == (False, None)


def ranked(count: int = 50) -> list[str]:
    """Task names in ascending order of their shedding rank."""
    return sorted((f"t{i}" for i in range(count)), key=lambda t: zlib.crc32(t.encode()))


def test_among_equals_whole_tasks_are_spared_and_whole_tasks_are_shed() -> None:
    spared, middle, shed = ranked(3)
    low, high = ticket(0, middle), ticket(0, shed)
    queue = filled(low, high)

    assert queue.offer(ticket(0, spared), 2) == (True, high)
    assert queue.offer(ticket(0, shed), 2) == (False, None)
    assert queue.offer(ticket(0, spared), 2) == (True, low)


def test_among_lower_priorities_the_lowest_and_its_most_shed_task_goes() -> None:
    spared, _, shed = ranked(3)
    victims = [ticket(-1, spared), ticket(-1, shed), ticket(-2, spared), ticket(-2, shed)]
    queue = filled(*victims)

    assert queue.offer(ticket(0), 4) == (True, victims[3])
    assert queue.offer(ticket(0), 4) == (True, victims[2])
    assert queue.offer(ticket(0), 4) == (True, victims[1])


def test_a_call_without_a_task_has_a_rank_too() -> None:
    assert ticket(task=None).shed_rank == 0
    assert ticket(task="x").shed_rank == zlib.crc32(b"x")


def test_leaving_twice_is_leaving_once() -> None:
    stays, goes = ticket(), ticket()
    queue = filled(stays, goes)

    queue.leave(goes)
    queue.leave(goes)

    assert queue.waiters == [stays]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "grant", "leave"]),
            st.integers(-2, 2),
            st.sampled_from([None, "a", "b", "c"]),
            st.booleans(),
        ),
        max_size=120,
    ),
    st.integers(1, 6),
)
def test_the_queue_never_grows_past_its_bound_nor_loses_anyone(
    script: list[tuple[str, int, str | None, bool]], bound: int
) -> None:
    queue, now, inside = WaitQueue(), 0.0, set[int]()
    for what, priority, task, sheddable in script:
        now += 0.3
        if what == "offer":
            new = ticket(priority, task, now, sheddable=sheddable)
            admitted, evicted = queue.offer(new, bound)
            if evicted is not None:
                assert admitted
                assert evicted.sheddable
                assert evicted.priority <= priority
                inside.remove(id(evicted))
            if admitted:
                inside.add(id(new))
        elif what == "grant":
            waiting = [t for t in queue.waiters if not t.granted]
            granted = queue.grant(now)
            assert (granted is None) == (not waiting)
            assert granted is None or granted in waiting
        elif queue.waiters:
            gone = queue.waiters[0]
            queue.leave(gone)
            inside.remove(id(gone))
        assert len(queue) <= bound
        assert {id(t) for t in queue.waiters} == inside
