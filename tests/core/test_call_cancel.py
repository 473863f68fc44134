"""The caller gives up, at each state: everything is given back and nobody learns anything."""

from __future__ import annotations

import pytest

from headway.core.model import CANCELLED, AttemptEnded, CallEnded, CallFacts, Finish
from headway.core.snapshot import AdmissionPolicy, HedgePolicy
from headway.core.state import EndpointState
from tests.core.build import BROKEN, DONE, Bench, Even, Hand, route, throttled


def bench_of_one(**known: object) -> Bench:
    bench = Bench(route({"a": 1}, **known), rng=Even())  # type: ignore[arg-type]
    bench.prove("a")
    return bench


def is_clean(bench: Bench) -> bool:
    pool = bench.world.pools["chat"]
    return (
        pool.inflight == 0
        and len(pool.queue) == 0
        and not bench.engine.parked
        and all(s.inflight == 0 for s in bench.world.states.values())
    )


def cancelled(hand: Hand, at: float) -> Finish:
    hand.call.cancel(at)
    return hand.finish(at)


def test_before_anything_was_decided() -> None:
    bench = bench_of_one()
    end = cancelled(bench.begin(), 0.0)

    assert end.attempt is None
    assert end.rejection is not None
    assert end.rejection.reason == "cancelled"
    assert is_clean(bench)


def test_while_an_attempt_runs() -> None:
    bench = bench_of_one()
    hand = bench.begin()
    attempt = hand.send(0.0)
    hand.call.cancel(1.0)

    assert attempt.ended
    assert is_clean(bench)
    assert bench.of(AttemptEnded)[-1].result == "cancelled"
    assert bench.events[-1] == CallEnded(
        hand.call.id, None, bench.of(AttemptEnded)[-1].outcome, 1, 1.0
    )


def test_while_backing_off() -> None:
    bench = bench_of_one()
    hand = bench.begin()
    hand.fail(0.0)
    assert bench.balance(0.0) == pytest.approx(2.1)
    hand.wait(0.0, "backoff")
    hand.call.cancel(0.1)

    assert bench.balance(0.1) == pytest.approx(3.1)
    assert is_clean(bench)


def test_while_an_endpoint_wants_quiet() -> None:
    bench = bench_of_one()
    bench.serve(0.0, throttled(5.0), takes=0.0, attempts_max=1)
    hand = bench.begin()
    hand.wait(0.0, "throttled")
    hand.call.cancel(1.0)

    assert is_clean(bench)


def test_while_in_line() -> None:
    bench = bench_of_one(admission=AdmissionPolicy(max_inflight=1))
    busy = bench.begin()
    attempt = busy.send(0.0)
    hand = bench.begin()
    hand.wait(0.0, "queue")
    hand.call.cancel(0.1)
    assert len(bench.world.pools["chat"].queue) == 0
    busy.end(attempt, DONE, 1.0)

    assert is_clean(bench)


def test_in_the_middle_of_a_stream() -> None:
    bench = bench_of_one()
    hand = bench.begin(stream=True)
    attempt = hand.send(0.0)
    hand.call.on_first_token(attempt, 0.5)
    hand.call.cancel(1.0)

    assert hand.finish(1.0).attempt is attempt
    assert bench.of(CallEnded)[-1].winner is attempt
    assert bench.of(CallEnded)[-1].outcome.kind.value == "cancelled"
    assert is_clean(bench)


def test_after_the_end_and_twice() -> None:
    bench = bench_of_one()
    hand = bench.begin()
    attempt = hand.send(0.0)
    hand.end(attempt, DONE, 1.0)
    before = list(bench.events)
    hand.call.cancel(2.0)
    hand.call.cancel(3.0)

    assert bench.events == before
    assert is_clean(bench)


def test_a_report_after_the_cancellation_is_ignored() -> None:
    bench = bench_of_one()
    hand = bench.begin()
    attempt = hand.send(0.0)
    hand.call.cancel(1.0)
    before = list(bench.events)
    hand.end(attempt, BROKEN, 2.0)

    assert not hand.call.on_first_token(attempt, 2.0)
    assert bench.events == before
    assert bench.state("a").badness(2.0) == 0.0


def test_a_driver_may_report_the_cancellation_as_an_outcome() -> None:
    bench = bench_of_one()
    hand = bench.begin()
    attempt = hand.send(0.0)
    hand.end(attempt, CANCELLED, 1.0)

    assert hand.finish(1.0).attempt is attempt
    assert is_clean(bench)
    assert bench.balance(1.0) == pytest.approx(3.1)


def test_what_an_interrupt_has_ended_already_is_not_ended_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = bench_of_one()
    hand = bench.begin()
    attempt = hand.send(0.0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EndpointState, "blame", interrupt)
        with pytest.raises(KeyboardInterrupt):
            hand.end(attempt, BROKEN, 1.0)
    assert attempt.ended
    hand.call.cancel(1.5)

    assert hand.call.running == []
    assert is_clean(bench)


def test_a_lost_attempt_left_running_is_ended_by_the_cancellation() -> None:
    bench = Bench(route({"a": 1, "b": 1}, hedge=HedgePolicy(enabled=True, delay_s=1.0)))
    bench.prove("a", "b")
    bench.world.pools["chat"].hedges._tokens = 1.0
    hand = bench.begin(what=CallFacts("m"))
    hand.send(0.0)
    second = hand.send(1.0)
    hand.end(second, DONE, 2.0)
    hand.call.cancel(3.0)

    assert is_clean(bench)
    assert bench.of(AttemptEnded)[-1].result == "lost"
    assert len(bench.of(CallEnded)) == 3
