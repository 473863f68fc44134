from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.breaker import (
    BUCKET_S,
    CONSECUTIVE_MAX,
    RATIO_MIN_RESULTS,
    TRANSITIONS,
    TRIPS_MAX,
    Breaker,
    Permit,
    Signal,
    State,
)
from headway.core.model import Health
from tests.core.build import Dice, Even

GOOD, HARD, SOFT, NOTHING = Health.GOOD, Health.HARD, Health.SOFT, Health.NOTHING
LEASE_S = 30.0


def breaker_that_works(at: float = 0.0) -> Breaker:
    """A breaker with jitter 1.0 that has seen a success."""
    breaker = Breaker(Even())
    finish(breaker, GOOD, at)
    return breaker


def take(breaker: Breaker, now: float, *, force: bool = False) -> Permit:
    permit = breaker.acquire(now, lease_s=LEASE_S, force=force)
    assert permit is not None
    return permit


def state_of(breaker: Breaker) -> State:
    return breaker.state


def finish(breaker: Breaker, health: Health, at: float) -> None:
    """One attempt that starts and ends at `at`."""
    breaker.record(take(breaker, at), health, at, at)


def work(breaker: Breaker, at: float, times: int = 4 * TRIPS_MAX) -> None:
    """Successes enough for every clean minute to count."""
    for _ in range(times):
        finish(breaker, GOOD, at)


def trip(breaker: Breaker, at: float) -> None:
    """Three hard failures one after another, the last at `at`."""
    for _ in range(3):
        finish(breaker, HARD, at)
    assert state_of(breaker) is State.OPEN


def fail_probe(breaker: Breaker, at: float, health: Health = HARD) -> None:
    probe = take(breaker, at)
    assert probe.is_probe
    breaker.record(probe, health, at, at)


# ---------------------------------------------------------------- the machine


def test_the_transition_table_is_the_whole_machine() -> None:
    arrows = {(a.value, s.value, b.value) for (a, s), b in TRANSITIONS.items()}

    assert arrows == {
        ("closed", "trip", "open"),
        ("open", "cooled", "half_open"),
        ("open", "forced", "half_open"),
        ("half_open", "probe_ok", "closed"),
        ("half_open", "probe_failed", "open"),
        ("half_open", "probe_released", "open"),
    }
    assert {s.value for s in Signal} == {s for _, s, _ in arrows}


def test_a_new_breaker_lets_attempts_through_that_are_no_probes() -> None:
    breaker = Breaker(Even())

    assert state_of(breaker) is State.CLOSED
    assert breaker.is_admitting(0.0)
    assert not breaker.is_probe_due(0.0)
    assert not breaker.can_force(0.0)
    assert take(breaker, 0.0) == Permit(0, is_probe=False)
    assert breaker.open_time_s(0.0) == 0.0
    assert breaker.trips(0.0) == 0
    assert breaker.closed_at is None
    assert (breaker.proven, breaker.is_hard, breaker.reason) == (False, False, "")
    assert breaker.open_until == -math.inf
    assert breaker.failures_in_row == 0


# ---------------------------------------------------------------- consecutive failures


def test_three_hard_failures_one_after_another_open_it() -> None:
    breaker = breaker_that_works()

    finish(breaker, HARD, 1.0)
    finish(breaker, HARD, 1.1)
    assert state_of(breaker) is State.CLOSED
    finish(breaker, HARD, 1.2)

    assert state_of(breaker) is State.OPEN
    assert breaker.reason == "consecutive"
    assert breaker.is_hard
    assert breaker.open_until == pytest.approx(11.2)
    assert breaker.proven is False
    assert breaker.failures_in_row == 0  # it has changed state


def test_a_success_between_failures_starts_the_count_again() -> None:
    breaker = breaker_that_works()

    for at in range(4):
        finish(breaker, HARD, at + 0.1)
        finish(breaker, HARD, at + 0.2)
        for _ in range(3):  # few enough bad results for the ratio
            finish(breaker, GOOD, at + 0.3)

    assert state_of(breaker) is State.CLOSED


def test_what_says_nothing_is_not_counted() -> None:
    breaker = breaker_that_works()

    finish(breaker, HARD, 1.0)
    finish(breaker, HARD, 2.0)
    for _ in range(20):
        finish(breaker, NOTHING, 3.0)
    assert state_of(breaker) is State.CLOSED
    finish(breaker, HARD, 4.0)

    assert state_of(breaker) is State.OPEN


def test_soft_failures_of_a_working_endpoint_never_count_as_consecutive() -> None:
    breaker = breaker_that_works()

    for _ in range(RATIO_MIN_RESULTS - 2):
        finish(breaker, SOFT, 1.0)

    assert state_of(breaker) is State.CLOSED


def test_soft_failures_do_not_end_a_row_of_hard_ones() -> None:
    breaker = breaker_that_works()

    for health in (HARD, SOFT, HARD, SOFT, HARD):
        finish(breaker, health, 1.0)

    assert state_of(breaker) is State.OPEN
    assert breaker.is_hard


def test_an_endpoint_never_seen_to_work_opens_after_three_failures_of_any_kind() -> None:
    breaker = Breaker(Even())

    for health in (SOFT, HARD, SOFT):
        finish(breaker, health, 0.0)

    assert state_of(breaker) is State.OPEN
    assert not breaker.is_hard  # the last straw was soft
    assert breaker.open_until == pytest.approx(20.0)  # it starts at the second step


# ---------------------------------------------------------------- bursts


def test_a_burst_of_simultaneous_failures_is_one_event_until_the_fifth() -> None:
    breaker = breaker_that_works()
    permits = [take(breaker, 1.0) for _ in range(5)]

    for permit in permits[:4]:
        breaker.record(permit, HARD, 1.0, 1.5)
    assert state_of(breaker) is State.CLOSED
    breaker.record(permits[4], HARD, 1.0, 1.5)

    assert state_of(breaker) is State.OPEN


def test_failures_of_a_working_endpoint_that_span_a_second_are_more_than_a_burst() -> None:
    breaker = breaker_that_works()
    permits = [take(breaker, 1.0) for _ in range(3)]

    breaker.record(permits[0], HARD, 1.0, 2.0)
    breaker.record(permits[1], HARD, 1.0, 2.999)
    assert state_of(breaker) is State.CLOSED
    breaker.record(permits[2], HARD, 1.0, 3.0)

    assert state_of(breaker) is State.OPEN


def test_attempts_sent_after_the_last_failure_was_known_are_fresh_evidence() -> None:
    """Three admission generations within a second are three events."""
    breaker = breaker_that_works()

    for at in (1.0, 1.2, 1.4):
        permit = take(breaker, at)
        breaker.record(permit, HARD, at, at + 0.2)

    assert state_of(breaker) is State.OPEN


def test_two_generations_with_a_twin_are_not_three() -> None:
    breaker = breaker_that_works()
    twins = [take(breaker, 1.0), take(breaker, 1.0)]
    for twin in twins:
        breaker.record(twin, HARD, 1.0, 1.1)

    breaker.record(take(breaker, 1.1), HARD, 1.1, 1.2)
    assert state_of(breaker) is State.CLOSED
    breaker.record(take(breaker, 1.2), HARD, 1.2, 1.3)

    assert state_of(breaker) is State.OPEN


def test_a_row_that_a_success_ended_leaves_no_epochs_behind() -> None:
    breaker = breaker_that_works()
    finish(breaker, HARD, 1.0)
    finish(breaker, HARD, 1.0)
    finish(breaker, GOOD, 1.0)
    permits = [take(breaker, 1.0) for _ in range(3)]

    for permit in permits:
        breaker.record(permit, HARD, 1.0, 1.2)

    assert state_of(breaker) is State.CLOSED  # one event, seen three times


# ---------------------------------------------------------------- the ratio


def alternate(breaker: Breaker, results: int, at: float, bad: Health = HARD) -> None:
    """Good, bad, good, bad ..."""
    for i in range(results):
        finish(breaker, bad if i % 2 else GOOD, at)


@pytest.mark.parametrize(("bad", "is_hard"), [(HARD, True), (SOFT, False)])
def test_half_of_ten_results_bad_opens_it_on_evidence_of_their_kind(
    bad: Health, is_hard: bool
) -> None:
    breaker = Breaker(Even())

    alternate(breaker, 9, at=5.0, bad=bad)  # 4 bad of 9
    assert state_of(breaker) is State.CLOSED
    finish(breaker, bad, 5.0)  # 5 bad of 10

    assert state_of(breaker) is State.OPEN
    assert breaker.reason == "ratio"
    assert breaker.is_hard is is_hard


def test_what_tripped_it_before_makes_later_soft_evidence_no_harder() -> None:
    breaker = breaker_that_works()
    trip(breaker, 1.0)
    finish(breaker, GOOD, 11.0)  # the probe
    assert state_of(breaker) is State.CLOSED
    work(breaker, 12.0, 5)
    for _ in range(5):
        finish(breaker, SOFT, 12.0)

    assert (state_of(breaker), breaker.reason) == (State.OPEN, "ratio")
    assert not breaker.is_hard


@pytest.mark.parametrize(("broken", "is_hard"), [(2, False), (3, True)])
def test_mixed_evidence_is_hard_when_half_of_it_is(broken: int, is_hard: bool) -> None:
    breaker = Breaker(Even())
    for i in range(5):
        finish(breaker, GOOD, 5.0)
        finish(breaker, HARD if i < broken else SOFT, 5.0)

    assert state_of(breaker) is State.OPEN
    assert breaker.is_hard is is_hard


def test_what_mostly_breaks_is_broken_even_if_it_works_in_between() -> None:
    mostly_hard, mostly_soft = Breaker(Even()), Breaker(Even())
    for health in (GOOD, GOOD, HARD, SOFT, GOOD, HARD, SOFT, GOOD, HARD, SOFT):
        finish(mostly_hard, health, 1.0)
    for health in (GOOD, GOOD, HARD, SOFT, GOOD, SOFT, SOFT, GOOD, HARD, SOFT):
        finish(mostly_soft, health, 1.0)

    assert mostly_hard.reason == mostly_soft.reason == "ratio"
    assert mostly_hard.is_hard  # 3 of the 6 bad ones
    assert not mostly_soft.is_hard


def test_less_than_half_bad_never_opens_it() -> None:
    breaker = Breaker(Even())

    for _ in range(50):
        for health in (GOOD, GOOD, SOFT):
            finish(breaker, health, 1.0)

    assert state_of(breaker) is State.CLOSED


def test_nine_results_are_too_few_to_judge() -> None:
    breaker = breaker_that_works()

    for _ in range(RATIO_MIN_RESULTS - 2):
        finish(breaker, SOFT, 1.0)
    assert state_of(breaker) is State.CLOSED
    finish(breaker, SOFT, 1.0)

    assert state_of(breaker) is State.OPEN


def test_results_leave_the_window_after_two_minutes() -> None:
    breaker = breaker_that_works(at=100.0)
    for _ in range(8):
        finish(breaker, SOFT, 101.0)

    finish(breaker, SOFT, 219.9)  # 9 of 10 bad: the bucket of 100..110 s is still in
    assert state_of(breaker) is State.OPEN


def test_results_older_than_the_window_do_not_count() -> None:
    breaker = breaker_that_works(at=100.0)
    for _ in range(8):
        finish(breaker, SOFT, 101.0)

    finish(breaker, SOFT, 220.0)
    assert state_of(breaker) is State.CLOSED
    for _ in range(8):
        finish(breaker, SOFT, 221.0)
    assert state_of(breaker) is State.CLOSED  # 9 results
    finish(breaker, SOFT, 222.0)
    assert state_of(breaker) is State.OPEN


@pytest.mark.parametrize("gap_s", [120.0, 130.0, 1_000.0, 1e7])
def test_a_long_silence_empties_the_window(gap_s: float) -> None:
    breaker = breaker_that_works(at=100.0)
    for step in range(8):
        finish(breaker, SOFT, 100.0 + step)

    finish(breaker, SOFT, 109.0 + gap_s)

    assert state_of(breaker) is State.CLOSED


def test_buckets_are_cleared_one_by_one_as_time_passes() -> None:
    breaker = breaker_that_works()
    for slot in range(9):
        finish(breaker, SOFT, slot * BUCKET_S)
        assert breaker.state is State.CLOSED or slot == 8
    # 9 bad and 1 good, one per bucket, all within 120 s
    assert state_of(breaker) is State.OPEN


def test_a_slow_answer_is_bad_but_proves_that_it_works() -> None:
    breaker = Breaker(Even())
    finish(breaker, HARD, 0.0)
    finish(breaker, HARD, 0.0)

    breaker.record_slow(take(breaker, 1.0), 1.0)
    assert breaker.proven
    assert breaker.failures_in_row == 0
    finish(breaker, HARD, 1.0)
    assert state_of(breaker) is State.CLOSED  # the row was broken
    for _ in range(6):
        breaker.record_slow(take(breaker, 1.0), 1.0)

    assert state_of(breaker) is State.OPEN
    assert not breaker.is_hard


def test_what_broke_leaves_the_window_with_the_rest() -> None:
    breaker = breaker_that_works()
    for _ in range(2):
        finish(breaker, HARD, 1.0)
        finish(breaker, GOOD, 1.0)
    for _ in range(10):
        finish(breaker, SOFT, 200.0)

    assert state_of(breaker) is State.OPEN
    assert not breaker.is_hard


def test_a_stale_slow_answer_is_ignored() -> None:
    breaker = breaker_that_works()
    old = take(breaker, 0.0)
    trip(breaker, at=1.0)
    finish(breaker, GOOD, 11.0)  # the probe closes it

    for _ in range(20):
        breaker.record_slow(old, 11.0)

    assert state_of(breaker) is State.CLOSED


# ---------------------------------------------------------------- how long it stays open


def test_the_time_until_a_probe_is_never_below_zero() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    assert breaker.open_time_s(4.0) == 6.0
    assert breaker.open_time_s(10.5) == 0.0

    take(breaker, 11.0)
    assert breaker.open_time_s(12.0) == 29.0
    assert breaker.open_time_s(41.5) == 0.0


def test_refuses_until_it_has_cooled_off_then_lets_exactly_one_probe_through() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=100.0)

    assert breaker.open_time_s(104.0) == 6.0
    assert not breaker.is_admitting(109.9)
    assert breaker.acquire(109.9, lease_s=LEASE_S) is None
    assert breaker.is_admitting(110.0)
    assert take(breaker, 110.0).is_probe
    assert state_of(breaker) is State.HALF_OPEN
    assert breaker.open_time_s(115.0) == 25.0
    assert breaker.acquire(110.0, lease_s=LEASE_S) is None
    assert not breaker.is_admitting(110.0)
    assert not breaker.can_force(110.0)


@pytest.mark.parametrize(("draw", "factor"), [(0.0, 0.5), (0.5, 1.0), (0.999999, 1.5)])
def test_the_open_time_is_jittered_between_half_and_one_and_a_half(
    draw: float, factor: float
) -> None:
    breaker = Breaker(Even(draw))
    finish(breaker, GOOD, 0.0)

    trip(breaker, at=0.0)

    assert breaker.open_until == pytest.approx(10.0 * factor, abs=1e-4)


def test_open_time_doubles_with_each_failed_probe_up_to_300_s() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    times = [breaker.open_time_s(0.0)]
    now = 0.0

    for _ in range(7):
        now = breaker.open_until
        fail_probe(breaker, now)
        times.append(breaker.open_time_s(now))

    assert times == pytest.approx([10, 20, 40, 80, 160, 300, 300, 300])
    assert breaker.reason == "probe_failed"
    assert breaker.trips(now) == TRIPS_MAX


def test_never_proven_endpoints_start_at_twenty_seconds() -> None:
    breaker = Breaker(Even())
    times = []
    now = 0.0
    for _ in range(3):
        finish(breaker, HARD, now)
    for _ in range(5):
        times.append(breaker.open_time_s(now))
        now = breaker.open_until
        fail_probe(breaker, now)

    assert times == pytest.approx([20, 40, 80, 160, 300])


def test_a_soft_failure_fails_a_probe_and_hard_evidence_stays_hard() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)

    fail_probe(breaker, 10.0, SOFT)

    assert state_of(breaker) is State.OPEN
    assert breaker.is_hard


def test_a_hard_probe_turns_a_soft_opening_hard() -> None:
    breaker = Breaker(Even())
    alternate(breaker, 10, at=0.0, bad=SOFT)
    assert not breaker.is_hard
    fail_probe(breaker, breaker.open_until, SOFT)
    assert not breaker.is_hard

    fail_probe(breaker, breaker.open_until, HARD)

    assert breaker.is_hard


def test_the_exponent_fades_by_one_per_clean_minute_once_closed() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)  # k 1
    fail_probe(breaker, 10.0)  # k 2
    fail_probe(breaker, 30.0)  # k 3
    assert breaker.trips(69.0) == 3  # open: nothing fades
    finish(breaker, GOOD, 70.0)
    assert breaker.closed_at == 70.0
    work(breaker, 71.0)

    assert [breaker.trips(70.0 + s) for s in (0, 59, 60, 119, 120, 180, 999)] == [
        3, 3, 2, 2, 1, 0, 0,
    ]  # fmt: skip


def test_a_minute_is_clean_only_with_four_successes_behind_it() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    fail_probe(breaker, 10.0)  # k 2
    finish(breaker, GOOD, 30.0)  # the probe itself is not counted
    work(breaker, 31.0, times=3)
    assert breaker.trips(200.0) == 2

    work(breaker, 200.0, times=1)
    assert breaker.trips(200.0) == 1
    work(breaker, 200.0, times=4)

    assert breaker.trips(200.0) == 0


def test_five_minutes_without_a_failure_forgive_everything() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    fail_probe(breaker, 10.0)  # k 2
    finish(breaker, GOOD, 30.0)
    work(breaker, 31.0, times=3)
    assert breaker.trips(400.0) == 2  # three successes are too few whatever the time

    work(breaker, 31.0, times=1)
    assert breaker.trips(329.0) == 1
    assert breaker.trips(330.0) == 0


def test_a_failure_ends_the_clean_minutes() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    fail_probe(breaker, 10.0)  # k 2
    finish(breaker, GOOD, 30.0)
    work(breaker, 31.0)

    finish(breaker, HARD, 89.0)
    assert breaker.trips(1000.0) == 2
    work(breaker, 90.0, times=3)
    assert breaker.trips(149.0) == 2  # the successes before it no longer count either
    work(breaker, 90.0)
    assert breaker.trips(148.0) == 2
    assert breaker.trips(149.0) == 1
    finish(breaker, HARD, 149.0)  # one minute was clean: it stays won
    work(breaker, 150.0)
    assert breaker.trips(150.0) == 1
    assert breaker.trips(209.0) == 0


def test_a_flapping_endpoint_is_remembered() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    finish(breaker, GOOD, 10.0)

    trip(breaker, at=20.0)
    assert breaker.open_time_s(20.0) == pytest.approx(20.0)
    finish(breaker, GOOD, 40.0)
    work(breaker, 41.0)
    trip(breaker, at=101.0)  # one clean minute between

    assert breaker.open_time_s(101.0) == pytest.approx(20.0)


# ---------------------------------------------------------------- probes


def test_a_successful_probe_closes_it_with_a_clean_slate() -> None:
    breaker = breaker_that_works()
    for _ in range(4):
        finish(breaker, SOFT, 0.0)
    trip(breaker, at=0.0)

    finish(breaker, GOOD, 10.0)

    assert state_of(breaker) is State.CLOSED
    assert breaker.proven
    assert breaker.closed_at == 10.0
    finish(breaker, HARD, 10.0)
    finish(breaker, HARD, 10.0)
    assert state_of(breaker) is State.CLOSED
    for _ in range(6):
        finish(breaker, SOFT, 10.0)
    assert state_of(breaker) is State.CLOSED  # 8 results since the probe
    finish(breaker, SOFT, 10.0)
    finish(breaker, SOFT, 10.0)
    assert state_of(breaker) is State.OPEN


def test_64_successes_admitted_before_the_trip_settle_nothing() -> None:
    breaker = breaker_that_works()
    stale = [take(breaker, 0.0) for _ in range(64)]
    trip(breaker, at=1.0)

    for permit in stale[:32]:
        breaker.record(permit, GOOD, 0.0, 5.0)
    assert state_of(breaker) is State.OPEN
    probe = take(breaker, 11.0)
    for permit in stale[32:]:
        breaker.record(permit, GOOD, 0.0, 11.5)
    assert state_of(breaker) is State.HALF_OPEN
    assert breaker.acquire(11.6, lease_s=LEASE_S) is None

    breaker.record(probe, GOOD, 11.0, 12.0)
    assert state_of(breaker) is State.CLOSED


def test_stale_failures_do_not_reopen_a_breaker_that_healed() -> None:
    breaker = breaker_that_works()
    stale = [take(breaker, 0.0) for _ in range(64)]
    trip(breaker, at=1.0)
    finish(breaker, GOOD, 11.0)

    for permit in stale:
        breaker.record(permit, HARD, 0.0, 12.0)

    assert state_of(breaker) is State.CLOSED


def test_a_probe_that_hangs_is_replaced_when_its_lease_ends_and_its_answer_is_stale() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    hung = take(breaker, 10.0)

    assert breaker.acquire(39.9, lease_s=LEASE_S) is None
    assert breaker.is_probe_due(40.0)
    assert breaker.can_force(40.0)
    second = take(breaker, 40.0)
    assert second.is_probe
    assert breaker.acquire(40.0, lease_s=LEASE_S) is None
    breaker.record(hung, GOOD, 10.0, 41.0)
    assert state_of(breaker) is State.HALF_OPEN
    breaker.release(hung)
    assert state_of(breaker) is State.HALF_OPEN
    breaker.record(second, GOOD, 40.0, 42.0)

    assert state_of(breaker) is State.CLOSED


def test_a_hung_probes_answer_stays_stale_after_the_next_one_has_settled_it() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    hung = take(breaker, 10.0)
    finish(breaker, GOOD, 40.0)

    breaker.record(hung, HARD, 10.0, 41.0)

    assert state_of(breaker) is State.CLOSED
    assert breaker.failures_in_row == 0


def test_a_permit_of_no_generation_settles_nothing_however_many_probes_hung() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    for at in (10.0, 40.0, 70.0):
        take(breaker, at)
        breaker.record(Permit(-1, is_probe=False), GOOD, at, at)
        assert state_of(breaker) is State.HALF_OPEN


def test_a_cancelled_probe_neither_closes_nor_reopens_and_the_next_may_go_at_once() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    k, until = breaker.trips(10.0), breaker.open_until

    breaker.release(take(breaker, 10.0))

    assert state_of(breaker) is State.OPEN
    assert (breaker.trips(10.0), breaker.open_until) == (k, until)
    assert take(breaker, 10.0).is_probe


def test_a_verdict_of_nothing_leaves_the_probe_running() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    probe = take(breaker, 10.0)

    breaker.record(probe, NOTHING, 10.0, 11.0)
    assert state_of(breaker) is State.HALF_OPEN
    breaker.release(probe)

    assert state_of(breaker) is State.OPEN


def test_releasing_an_ordinary_permit_changes_nothing() -> None:
    breaker = breaker_that_works()

    breaker.release(take(breaker, 0.0))

    assert state_of(breaker) is State.CLOSED
    assert take(breaker, 0.0).generation == 0


def test_a_forced_probe_that_fails_says_nothing_new_about_how_long_to_stay_away() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)

    assert breaker.can_force(3.0)
    forced = take(breaker, 3.0, force=True)
    assert forced.is_probe
    breaker.record(forced, HARD, 3.0, 4.0)

    assert state_of(breaker) is State.OPEN
    assert breaker.open_until == pytest.approx(10.0)
    assert breaker.trips(4.0) == 1
    assert breaker.reason == "consecutive"


def test_a_forced_probe_that_works_closes_it_early() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)

    breaker.record(take(breaker, 3.0, force=True), GOOD, 3.0, 4.0)

    assert state_of(breaker) is State.CLOSED
    assert breaker.closed_at == 4.0


def test_force_does_not_break_a_running_lease() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    take(breaker, 3.0, force=True)

    assert breaker.acquire(4.0, lease_s=LEASE_S, force=True) is None


def test_a_probe_after_a_forced_one_counts_again() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    breaker.record(take(breaker, 3.0, force=True), HARD, 3.0, 4.0)

    fail_probe(breaker, 10.0)

    assert breaker.open_until == pytest.approx(30.0)


def test_the_lease_is_as_long_as_the_caller_says() -> None:
    breaker = breaker_that_works()
    trip(breaker, at=0.0)
    assert breaker.acquire(10.0, lease_s=2.0) is not None

    assert breaker.acquire(11.9, lease_s=2.0) is None
    assert breaker.open_time_s(11.5) == 0.5
    assert breaker.acquire(12.0, lease_s=2.0) is not None


def test_jitter_spreads_a_fleet_over_the_whole_open_time() -> None:
    ends = []
    for seed in range(1000):
        breaker = Breaker(random.Random(seed))
        finish(breaker, GOOD, 0.0)
        trip(breaker, at=0.0)
        ends.append(breaker.open_until)

    busiest = max(sum(t <= e < t + 1 for e in ends) for t in range(16))
    assert min(ends) >= 5.0
    assert max(ends) <= 15.0
    assert busiest <= 150  # 1000 over 10 s, with room for chance


# ---------------------------------------------------------------- properties

steps = st.lists(
    st.tuples(
        st.floats(0, 40),
        st.sampled_from(list(Health)),
        st.booleans(),
        st.floats(0, 20),
    ),
    max_size=80,
)


@given(steps, st.integers(0, 2**16))
def test_never_wedges(script: list[tuple[float, Health, bool, float]], seed: int) -> None:
    """Whatever happened, an idle breaker admits an attempt after the longest open time."""
    breaker, now = Breaker(random.Random(seed)), 0.0
    for dt, health, force, took in script:
        now += dt
        permit = breaker.acquire(now, lease_s=LEASE_S, force=force)
        if permit is not None:
            breaker.record(permit, health, now, now + took)

    assert breaker.acquire(now + 20.0 + 450.0, lease_s=LEASE_S) is not None


@given(steps, st.integers(0, 2**16))
def test_reading_changes_nothing(
    script: list[tuple[float, Health, bool, float]], seed: int
) -> None:
    read, unread = Breaker(random.Random(seed)), Breaker(random.Random(seed))
    now = 0.0
    for dt, health, force, took in script:
        now += dt
        for late in (now, now + 1e6):
            read.is_admitting(late)
            read.is_probe_due(late)
            read.can_force(late)
            read.open_time_s(late)
            read.trips(late)
        for breaker in (read, unread):
            permit = breaker.acquire(now, lease_s=LEASE_S, force=force)
            if permit is not None:
                breaker.record(permit, health, now, now + took)

    assert all(getattr(read, s) == getattr(unread, s) for s in Breaker.__slots__ if s != "_rng")


@given(st.lists(st.sampled_from([GOOD, HARD, SOFT]), max_size=40))
def test_one_after_another_it_opens_exactly_when_the_rules_say(results: list[Health]) -> None:
    """Against the rules written down plainly: all results within one window."""
    breaker = breaker_that_works()
    seen, bad, row = 1, 0, 0
    for health in results:
        finish(breaker, health, 1.0)
        seen += 1
        bad += health is not GOOD
        row = 0 if health is GOOD else row + (health is HARD)
        should_open = row >= CONSECUTIVE_MAX or (
            health is not GOOD and seen >= RATIO_MIN_RESULTS and bad >= math.ceil(seen / 2)
        )
        assert (breaker.state is State.OPEN) == should_open
        if should_open:
            return


def test_each_opening_draws_its_own_jitter() -> None:
    breaker = Breaker(Dice(0.0, 0.5))
    finish(breaker, GOOD, 0.0)

    trip(breaker, at=0.0)
    assert breaker.open_until == 5.0
    fail_probe(breaker, 5.0)

    assert breaker.open_until == 25.0
