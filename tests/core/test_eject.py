from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.eject import INTERVAL_S, PeerEjector

PEERS = ("a", "b", "c", "d", "e", "f")


def feed(ejector: PeerEjector, rates: dict[str, float], results: int = 20) -> None:
    for peer, rate in rates.items():
        for i in range(results):
            ejector.record(peer, ok=i < rate * results)


def one_bad(rate: float = 0.0, peers: int = 6) -> dict[str, float]:
    """The first of the peers succeeds at `rate`, the others always."""
    return {p: rate if p == "a" else 1.0 for p in PEERS[:peers]}


def ejector_at(now: float = 0.0) -> PeerEjector:
    return PeerEjector(now)


def test_the_one_that_is_clearly_worse_is_left_out_for_thirty_seconds() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())

    assert ejector.sweep(6, 10.0) == ([("a", 40.0)], [])
    assert ejector.ejected_until("a") == 40.0
    assert ejector.ejected_until("b") == float("-inf")
    assert ejector.ejected_until("unknown") == float("-inf")


def test_nothing_is_judged_more_often_than_each_ten_seconds() -> None:
    ejector = ejector_at(100.0)
    feed(ejector, one_bad())

    assert ejector.sweep(6, 100.0 + INTERVAL_S - 0.1) == ([], [])
    assert ejector.sweep(6, 100.0 + INTERVAL_S) == ([("a", 140.0)], [])


def test_below_five_peers_the_statistic_cannot_fire() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad(peers=4), results=100)

    assert ejector.sweep(4, 10.0) == ([], [])


def test_five_peers_are_enough() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad(peers=5))

    assert ejector.sweep(5, 10.0) == ([("a", 40.0)], [])  # z = 2.0


def test_peers_with_fewer_than_ten_results_are_not_compared() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad(peers=5), results=9)
    assert ejector.sweep(5, 10.0) == ([], [])

    feed(ejector, one_bad(peers=5), results=1)

    assert ejector.sweep(5, 20.0) == ([("a", 50.0)], [])  # 10 within the window


def test_a_small_gap_is_no_outlier_however_even_the_others_are() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad(rate=0.9), results=100)
    assert ejector.sweep(6, 10.0) == ([], [])  # mean 0.983: 0.083 below

    wide = ejector_at()
    feed(wide, one_bad(rate=0.85), results=100)
    assert wide.sweep(6, 10.0) == ([("a", 40.0)], [])  # mean 0.975: 0.125 below


def test_a_wide_spread_is_nobodys_fault() -> None:
    """0.4 is 1.3 standard deviations below the mean of 0.75: not an outlier."""
    ejector = ejector_at()
    feed(ejector, {"a": 0.4, "b": 0.5, "c": 0.6, "d": 1.0, "e": 1.0, "f": 1.0})

    assert ejector.sweep(6, 10.0) == ([], [])


def test_results_older_than_two_minutes_are_forgotten() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad(peers=5), results=9)
    for interval in range(1, 13):
        assert ejector.sweep(5, interval * 10.0) == ([], [])
    feed(ejector, one_bad(peers=5), results=1)

    assert ejector.sweep(5, 130.0) == ([], [])  # 1 result: the 9 have left the window


def test_never_more_than_a_third_of_the_pool() -> None:
    ejector = ejector_at()
    peers = [f"p{i}" for i in range(30)]
    feed(ejector, {p: 0.0 if i < 4 else 1.0 for i, p in enumerate(peers)})

    ejected, _ = ejector.sweep(9, 10.0)  # a third of 9 is 3

    assert len(ejected) == 3


def test_those_already_out_count_towards_the_third() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(3, 10.0)
    feed(ejector, {"b": 0.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0, "g": 1.0}, results=200)

    assert ejector.sweep(3, 20.0) == ([], [])
    assert ejector.sweep(6, 30.0) == ([("b", 60.0)], [])


def test_the_place_of_one_that_comes_back_is_free_at_once() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(3, 10.0)  # a, until 40
    feed(ejector, {"b": 0.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0, "g": 1.0}, results=200)

    assert ejector.sweep(3, 40.0) == ([("b", 70.0)], ["a"])


@pytest.mark.parametrize(("pool", "out"), [(1, 0), (2, 0), (3, 1), (5, 1), (6, 2)])
def test_never_the_last_and_a_third_is_rounded_down(pool: int, out: int) -> None:
    ejector = ejector_at()
    feed(ejector, {f"p{i}": 0.0 if i < 3 else 1.0 for i in range(20)})

    ejected, _ = ejector.sweep(pool, 10.0)

    assert len(ejected) == out


def test_the_worst_go_first() -> None:
    ejector = ejector_at()
    feed(ejector, {f"p{i}": 1.0 for i in range(20)} | {"bad": 0.3, "worse": 0.1})

    assert [e for e, _ in ejector.sweep(3, 10.0)[0]] == ["worse"]


def test_it_comes_back_with_a_clean_record_when_its_time_is_over() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(6, 10.0)
    assert ejector.sweep(6, 20.0) == ([], [])
    assert ejector.sweep(6, 30.0) == ([], [])

    assert ejector.sweep(6, 40.0) == ([], ["a"])
    assert ejector.sweep(6, 50.0) == ([], [])  # old failures do not eject it again


def test_each_return_is_told_once() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(6, 10.0)

    told = [ejector.sweep(6, at)[1] for at in (35.0, 45.0, 55.0, 65.0)]

    assert told == [[], ["a"], [], []]


def test_the_second_time_it_is_left_out_twice_as_long_and_a_clean_interval_forgives_one() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(6, 10.0)
    feed(ejector, dict.fromkeys(PEERS[1:], 1.0))
    ejector.sweep(6, 40.0)  # back
    feed(ejector, one_bad())
    assert ejector.sweep(6, 50.0) == ([("a", 110.0)], [])

    ejector.sweep(6, 110.0)  # back
    for at in range(120, 250, 10):
        feed(ejector, one_bad(rate=1.0), results=20)
        ejector.sweep(6, float(at))
    feed(ejector, one_bad(), results=400)

    assert ejector.sweep(6, 250.0) == ([("a", 280.0)], [])  # thirty seconds again


def test_one_clean_interval_forgives_one_time_and_no_more() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(6, 10.0)  # once
    ejector.sweep(6, 40.0)
    feed(ejector, one_bad())
    ejector.sweep(6, 50.0)  # twice
    ejector.sweep(6, 110.0)
    feed(ejector, one_bad(rate=1.0))
    ejector.sweep(6, 120.0)  # clean
    feed(ejector, one_bad(), results=400)

    assert ejector.sweep(6, 130.0) == ([("a", 190.0)], [])  # twice again: sixty seconds


def test_an_interval_with_a_failure_forgives_nothing() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(6, 10.0)
    ejector.sweep(6, 40.0)
    feed(ejector, {"a": 0.5}, results=2)
    ejector.sweep(6, 50.0)
    feed(ejector, one_bad(), results=400)

    assert ejector.sweep(6, 60.0) == ([("a", 120.0)], [])


def test_the_time_out_is_at_most_five_minutes() -> None:
    ejector, now = ejector_at(), 0.0
    longest = 0.0
    for _ in range(15):
        now += 10.0
        feed(ejector, one_bad())
        ejected, _ = ejector.sweep(6, now)
        assert ejected
        longest = max(longest, ejected[0][1] - now)
        now = ejected[0][1]
        feed(ejector, {"a": 0.0}, results=1)  # never a clean interval
        ejector.sweep(6, now)

    assert longest == 300.0


def test_endpoints_that_left_the_pool_are_forgotten() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ejector.sweep(6, 10.0)

    ejector.retain(frozenset("bcdef"))

    assert ejector.ejected_until("a") == float("-inf")
    feed(ejector, {"b": 0.0}, results=400)
    assert ejector.sweep(5, 20.0) == ([("b", 50.0)], [])


def test_who_comes_back_begins_with_nothing_against_or_for_it() -> None:
    ejector = ejector_at()
    feed(ejector, one_bad())
    ((name, until),) = ejector.sweep(6, 10.0)[0]
    assert ejector.sweep(6, until) == ([], [name])
    for _ in range(9):
        ejector.record(name, ok=False)
    assert ejector.sweep(6, until + 10.0) == ([], [])  # nine results are too few
    ejector.record(name, ok=False)
    assert [out for out, _ in ejector.sweep(6, until + 20.0)[0]] == [name]


@given(
    st.integers(5, 12),
    st.lists(st.lists(st.floats(0, 1), min_size=12, max_size=12), min_size=1, max_size=12),
)
def test_whatever_the_results_never_more_than_a_third_is_out(
    peers: int, rounds: list[list[float]]
) -> None:
    ejector, now = ejector_at(), 0.0
    names = [f"p{i}" for i in range(peers)]
    for rates in rounds:
        now += 10.0
        feed(ejector, dict(zip(names, rates, strict=False)))
        ejector.sweep(peers, now)
        out = sum(ejector.ejected_until(name) > now for name in names)
        assert out <= peers // 3
