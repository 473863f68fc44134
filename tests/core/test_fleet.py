"""Rates that a fleet shares: what a process may use is what it was lent, or its own share."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine import Engine
from headway.core.fleet import IDLE_S, OWN_BURST_S, RETRY_S, FleetGate, Loan, Want
from headway.core.model import Send, Wait
from headway.core.snapshot import Capacity
from tests.core.build import Even, endpoint, facts, route, snapshot

EVERY_S, VALID_S = 0.1, 0.6


def gate(own: float = 60.0, whole: float = 600.0) -> FleetGate:
    return FleetGate(own, whole)


def lend(of: FleetGate, amount: float, now: float) -> None:
    of.lend(amount, now, next_s=EVERY_S, valid_s=VALID_S)


def test_without_a_published_rate_nothing_waits() -> None:
    free = FleetGate(None, None)
    free.charge(1e9, 0.0)
    assert free.wait_s(0.0, 1e9) == 0.0
    assert free.want(0.0) == 0.0


def test_what_was_lent_may_be_used_and_no_more() -> None:
    of = gate()
    of.charge(0.0, 0.0)
    of.miss(1.0, 0.0)
    lend(of, 3.0, 0.0)
    for _ in range(3):
        assert of.wait_s(0.01, 1.0) == 0.0
        of.charge(1.0, 0.01)
    assert of.wait_s(0.01, 1.0) == pytest.approx(0.09)  # until the next loan
    assert of.wait_s(0.5, 1.0) == RETRY_S  # which is overdue


def test_a_large_need_waits_until_it_is_covered() -> None:
    of = gate(own=6000.0, whole=60000.0)
    of.miss(900.0, 0.0)
    lend(of, 600.0, 0.0)
    assert of.wait_s(0.0, 900.0) > 0
    of.miss(900.0, 0.05)
    lend(of, 300.0, 0.1)
    assert of.wait_s(0.1, 900.0) == 0.0


def test_what_no_second_covers_goes_with_a_second_at_hand_and_owes_the_rest() -> None:
    """30 000 tokens at 60 000 a minute: waiting for half a minute first would leave them unused."""
    of = gate(own=60000.0, whole=60000.0)
    of.miss(30_000.0, 0.0)
    assert of.want(0.0) == 1000.0
    lend(of, 1000.0, 0.0)
    assert of.wait_s(0.0, 30_000.0) == 0.0
    of.charge(30_000.0, 0.0)
    assert of.wait_s(0.0, 1.0) == pytest.approx(28.001)  # the debt, but for a second saved up


def test_small_needs_do_not_eat_up_what_a_large_one_waits_for() -> None:
    """1000 tokens a second, all of them wanted by small calls, and one call that needs 900."""
    of = gate(own=60000.0, whole=60000.0)
    now, gone_at = 0.0, None
    of.miss(1.0, now)
    for tick in range(100):
        now = tick * EVERY_S
        lend(of, min(of.want(now), 100.0), now)
        for _ in range(4):
            if of.wait_s(now, 50.0) == 0.0:
                of.charge(50.0, now)
            else:
                of.miss(50.0, now)
        if of.wait_s(now, 900.0) == 0.0:
            gone_at = now
            break
        of.miss(900.0, now)
    assert gone_at is not None, "it never went"
    assert gone_at <= 1.2
    of.charge(900.0, now)
    lend(of, 50.0, now)
    assert of.wait_s(now, 50.0) == 0.0  # nobody is held back for one that has gone


def test_debts_are_paid_while_nobody_calls() -> None:
    of = gate(own=60000.0, whole=60000.0)
    of.charge(30_000.0, 0.0)
    for tick in range(600):
        now = tick * EVERY_S
        lend(of, min(of.want(now), 100.0), now)
    assert of.balance == 0.0
    assert of.wait_s(60.0, 1.0) == 0.0
    of.charge(1.0, 60.0)
    lend(of, min(of.want(60.1), 100.0), 60.1)
    assert of.wait_s(60.1, 1.0) == 0.0


def test_who_owes_does_not_begin_anew_after_a_pause() -> None:
    of = gate(own=60000.0, whole=60000.0)
    of.charge(30_000.0, 0.0)
    lend(of, 100.0, IDLE_S + 1.0)
    assert of.wait_s(IDLE_S + 1.1, 1.0) > 0


def test_a_forked_child_has_neither_loans_nor_debts() -> None:
    of = engine(rpm=60.0, fleet_rpm=600.0)
    call = of.begin(facts(), 0.0)
    assert call is not None
    call.next_action(0.0)
    of.lend([Loan("a", "rpm", 5.0)], 0.0, next_s=EVERY_S, valid_s=VALID_S)
    state = of.world.states["a"]
    assert isinstance(state.rpm, FleetGate)
    assert state.rpm.balance == 4.0
    of.after_fork(of.lock, Even())
    assert state.rpm.balance == 0.0
    assert of.wants(0.1) == ()


def test_it_borrows_what_it_used_what_is_missing_and_what_it_owes() -> None:
    of = gate()
    of.miss(1.0, 0.0)
    assert of.want(0.0) == 2.0  # one for the call that waits, one at hand
    lend(of, 2.0, 0.0)
    for _ in range(2):
        of.charge(1.0, 0.0)
    assert of.want(0.1) == 2.5
    lend(of, 0.0, 0.1)
    assert of.want(0.2) == 1.0
    of.charge(4.0, 0.2)
    assert of.balance == -4.0
    assert of.want(0.2) == pytest.approx(9.0)


def test_an_estimate_is_corrected() -> None:
    of = gate(own=6000.0, whole=60000.0)
    of.miss(1000.0, 0.0)
    lend(of, 1000.0, 0.0)
    of.charge(1000.0, 0.0)
    of.charge(-800.0, 0.1)
    assert of.balance == 800.0
    assert of.wait_s(0.1, 500.0) == 0.0


def test_what_lies_unused_is_given_up() -> None:
    of = gate()
    of.charge(1.0, 0.0)
    lend(of, 9.0, 0.0)
    assert of.want(IDLE_S) == 0.0
    assert of.balance == 0.0


def test_who_begins_does_not_wait_and_owes_what_it_uses() -> None:
    of = gate()
    assert of.wait_s(0.0, 1.0) == 0.0
    of.charge(1.0, 0.0)
    assert of.wait_s(0.0, 1.0) > 0  # one call is more than a moment's worth of the own share
    assert of.balance == -1.0


def test_without_the_store_the_own_share_holds() -> None:
    of = gate(own=60.0)
    of.miss(1.0, 0.0)
    lend(of, 100.0, 0.0)
    of.lose()
    used = 0
    for tick in range(600):
        now = tick * 0.1
        while of.wait_s(now, 1.0) == 0.0:
            of.charge(1.0, now)
            used += 1
    assert 59 <= used <= 61


def test_after_an_outage_nothing_is_owed_for_it() -> None:
    of = gate()
    of.lose()
    for _ in range(5):
        of.charge(1.0, 0.0)
    lend(of, 1.0, 1.0)
    assert of.balance == 1.0
    of.charge(1.0, 1.0)
    assert of.balance == 0.0  # what is used now is owed again


def test_a_new_document_changes_the_own_share_too() -> None:
    of = gate(own=60.0)
    of.reshare(6.0, 120.0)
    of.lose()
    of.charge(1.0, 0.0)
    assert of.wait_s(0.0, 1.0) == pytest.approx(10.0 - OWN_BURST_S)


def test_a_loan_rules_until_it_has_grown_old_and_not_then() -> None:
    of = gate()
    of.miss(1.0, 0.0)
    lend(of, 1.0, 0.0)
    of.charge(1.0, VALID_S)
    assert of.wait_s(VALID_S, 1.0) == pytest.approx(1.0 - OWN_BURST_S)


def test_what_uses_nothing_is_no_use() -> None:
    of = gate()
    of.charge(0.0, 5.0)
    assert of.want(5.0) == 0.0


def test_half_a_unit_goes_when_there_is_half() -> None:
    of = gate()
    of.charge(0.5, 0.0)
    lend(of, 1.0, 0.0)
    assert of.balance == 0.5
    assert of.wait_s(0.0, 0.5) == 0.0
    assert of.wait_s(0.0) == 0.0
    assert of.wait_s(0.0, 0.51) > 0.0

    after = gate()
    after.miss(2.0, 0.0)
    lend(after, 2.5, 0.0)
    after.charge(2.0, 0.0)
    assert after.wait_s(0.0, 0.5) == 0.0


def test_a_loan_is_a_second_of_the_rate_at_most_whatever_is_at_hand() -> None:
    of = gate(whole=600.0)
    of.miss(0.5, 0.0)
    lend(of, 0.5, 0.0)
    of.miss(100.0, 0.0)
    assert of.want(0.0) == 10.0


def test_a_loan_that_nobody_has_used_for_long_holds_nobody_up() -> None:
    assert IDLE_S == 10.0
    of = gate()
    of.miss(1.0, 0.0)
    lend(of, 5.0, IDLE_S)
    assert of.wait_s(IDLE_S, 6.0) == 0.0

    used = gate()
    used.miss(1.0, 4.0)
    lend(used, 1.0, 6.0)
    assert used.wait_s(6.0, 2.0) > 0.0


def test_a_store_that_falls_silent_is_not_waited_for() -> None:
    of = gate()
    of.miss(1.0, 0.0)
    lend(of, 0.0, 0.0)
    assert of.wait_s(0.1, 1.0) > 0
    assert of.wait_s(VALID_S, 1.0) == 0.0


@given(seed=st.integers(0, 2**32 - 1))
def test_a_fleet_never_uses_more_than_accrues(seed: int) -> None:
    """16 processes of any appetite: all that is used was lent, but for one call each at the
    beginning."""
    rng = random.Random(seed)
    gates = [FleetGate(600.0 / 16, 600.0) for _ in range(16)]
    appetite = [rng.choice([0.0, 0.2, 1.0, 3.0]) for _ in gates]
    used, upto = 0.0, 0.0
    for tick in range(300):
        now = tick * EVERY_S
        for of, hunger in zip(gates, appetite, strict=True):
            for _ in range(int(hunger + rng.random())):
                if of.wait_s(now, 1.0) == 0.0:
                    of.charge(1.0, now)
                    used += 1
                else:
                    of.miss(1.0, now)
        for of in rng.sample(gates, len(gates)):
            upto = max(upto, now - 1.0)
            amount = min(of.want(now), max(0.0, (now - upto) * 10.0))
            upto += amount / 10.0
            lend(of, amount, now)
    assert used <= 10.0 * (300 * EVERY_S + 1.0) + 16


# ---------------------------------------------------------------- through the engine


def engine(**capacity: float) -> Engine:
    described = endpoint("a", capacity=Capacity(**capacity))  # type: ignore[arg-type]
    return Engine(snapshot(route({"a": 1}), [described]), rng=Even(), in_fleet=True)


def test_calls_wait_for_loans_and_the_engine_borrows_for_them() -> None:
    of = engine(rpm=6.0, fleet_rpm=600.0)
    assert of.wants(0.0) == ()
    first = of.begin(facts(), 0.0)
    assert first is not None
    assert isinstance(first.next_action(0.0), Send)
    [want] = of.wants(0.0)
    assert want == Want("a", "rpm", 10.0, pytest.approx(2.25))  # type: ignore[arg-type]
    of.lend([Loan("a", "rpm", 1.0)], 0.0, next_s=EVERY_S, valid_s=VALID_S)

    second = of.begin(facts(), 0.01)
    assert second is not None
    waiting = second.next_action(0.01)
    assert isinstance(waiting, Wait)
    assert waiting.until == pytest.approx(0.1)
    [want] = of.wants(0.1)
    assert want.amount >= 2.0
    of.lend([Loan("a", "rpm", 2.0)], 0.1, next_s=EVERY_S, valid_s=VALID_S)
    assert isinstance(second.next_action(0.1), Send)


def test_for_who_waits_a_request_is_borrowed_and_the_tokens_it_is_planned_with() -> None:
    of = engine(rpm=6.0, fleet_rpm=600.0, tpm=600.0, fleet_tpm=600_000.0)
    first = of.begin(facts(prompt_tokens=300), 0.0)
    assert first is not None
    first.next_action(0.0)
    of.wants(0.0)
    of.lend([], 0.0, next_s=EVERY_S, valid_s=VALID_S)
    second = of.begin(facts(prompt_tokens=300), 0.0)
    assert second is not None
    assert isinstance(second.next_action(0.0), Wait)

    # One like the last at hand, what the first owes, and what the second waits for.
    assert {w.kind: w.amount for w in of.wants(0.05)} == {"rpm": 3.0, "tpm": 1500.0}


def test_nothing_is_borrowed_for_endpoints_that_are_out_for_other_reasons() -> None:
    described = [
        endpoint("a", capacity=Capacity(rpm=6.0, fleet_rpm=600.0)),
        endpoint("b", state="disabled", capacity=Capacity(rpm=6.0, fleet_rpm=600.0)),
    ]
    of = Engine(snapshot(route({"a": 1, "b": 1}), described), rng=Even(), in_fleet=True)
    first = of.begin(facts(), 0.0)
    assert first is not None
    first.next_action(0.0)
    of.lend([], 0.0, next_s=EVERY_S, valid_s=VALID_S)
    second = of.begin(facts(), 0.0)
    assert second is not None
    assert isinstance(second.next_action(0.0), Wait)

    assert [w.endpoint_id for w in of.wants(0.05)] == ["a"]


@pytest.mark.parametrize(
    ("lent", "goes"), [((2.0, 1000.0), True), ((1.9, 1000.0), False), ((2.0, 999.0), False)]
)
def test_a_call_goes_when_what_is_lent_covers_its_request_and_all_its_tokens(
    lent: tuple[float, float], goes: bool
) -> None:
    of = engine(rpm=6.0, fleet_rpm=600.0, tpm=600.0, fleet_tpm=600_000.0)
    first = of.begin(facts(prompt_tokens=300), 0.0)
    assert first is not None
    first.next_action(0.0)  # owes one request and 500 tokens
    loans = [Loan("a", "rpm", lent[0]), Loan("a", "tpm", lent[1])]
    of.lend(loans, 0.0, next_s=EVERY_S, valid_s=VALID_S)
    second = of.begin(facts(prompt_tokens=300), 0.0)
    assert second is not None

    assert isinstance(second.next_action(0.0), Send) is goes


def test_a_rate_that_no_fleet_shares_is_borrowed_from_nobody() -> None:
    of = engine(rpm=6.0, fleet_rpm=600.0)
    call = of.begin(facts(), 0.0)
    assert call is not None
    call.next_action(0.0)

    assert [w.kind for w in of.wants(0.0)] == ["rpm"]


def test_nothing_is_borrowed_without_need_nor_where_no_store_lends() -> None:
    of, alone = engine(rpm=6.0, fleet_rpm=600.0), Engine(snapshot(route({"a": 1})), rng=Even())
    for each in (of, alone):
        call = each.begin(facts(), 0.0)
        assert call is not None
        call.next_action(0.0)
    of.wants(0.0)
    of.lend([Loan("a", "rpm", 1.5)], 0.0, next_s=EVERY_S, valid_s=VALID_S)

    assert [w.amount for w in of.wants(0.05)] == [0.5]  # half of the one to have at hand
    assert of.wants(60.0) == ()
    assert alone.wants(0.0) == ()


def test_a_lost_store_frees_who_waits_for_it() -> None:
    of = engine(rpm=60.0, fleet_rpm=600.0)
    first = of.begin(facts(), 0.0)
    assert first is not None
    first.next_action(0.0)
    of.lend([], 0.0, next_s=EVERY_S, valid_s=VALID_S)
    second = of.begin(facts(), 0.0)
    assert second is not None
    assert isinstance(second.next_action(0.0), Wait)
    of.lose()
    assert isinstance(second.next_action(0.1), Send)


def test_tokens_are_corrected_by_what_was_used() -> None:
    of = engine(tpm=6000.0, fleet_tpm=60000.0)
    of.world.state(of.snapshot.endpoints["a"]).tpm.miss(1.0, 0.0)  # type: ignore[attr-defined]
    of.lend([Loan("a", "tpm", 1000.0)], 0.0, next_s=EVERY_S, valid_s=VALID_S)
    call = of.begin(facts(prompt_tokens=300), 0.0)
    assert call is not None
    sent = call.next_action(0.0)
    assert isinstance(sent, Send)
    gate_ = of.world.states["a"].tpm
    assert isinstance(gate_, FleetGate)
    assert gate_.balance == 500.0
    from headway.core.model import FailureClass, Outcome

    done = Outcome(FailureClass.OK, status=200, input_tokens=280, output_tokens=20)
    call.on_outcome(sent.attempt, done, 0.5)
    assert gate_.balance == 700.0


def test_a_new_policy_changes_the_rates_and_keeps_the_balance() -> None:
    of = engine(rpm=60.0, fleet_rpm=600.0)
    state = of.world.state(of.snapshot.endpoints["a"])
    assert isinstance(state.rpm, FleetGate)
    state.rpm.charge(1.0, 0.0)
    slower = endpoint("a", capacity=Capacity(rpm=6.0, fleet_rpm=120.0))
    of.swap(snapshot(route({"a": 1}), [slower], version=2), 0.0)
    assert state.rpm.fleet_per_s == 2.0
    assert state.rpm.balance == -1.0
