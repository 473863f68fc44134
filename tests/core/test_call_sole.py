"""One endpoint and nothing to say against it: the short way must decide as the long one does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from headway.core import machine
from headway.core.engine import Engine
from headway.core.model import (
    AttemptEnded,
    AttemptKind,
    CallFacts,
    Event,
    Finish,
    Outcome,
    Send,
    Wait,
)
from headway.core.place import place, place_sole
from headway.core.sending import open_attempt, open_sole
from headway.core.snapshot import AdmissionPolicy, Capacity, HedgePolicy, TrafficClass
from tests.core.build import (
    BROKEN,
    DONE,
    EXHAUSTED,
    REFUSED,
    THROTTLED,
    Bench,
    Even,
    F,
    endpoint,
    facts,
    profile,
    route,
    snapshot,
    throttled,
)

A = route({"a": 1})


def proven(**described: object) -> Bench:
    """A sole endpoint that has served one call."""
    bench = Bench(A, endpoints=[endpoint("a", **described)], rng=Even())  # type: ignore[arg-type]
    bench.prove("a")
    return bench


def short(bench: Bench, what: CallFacts | None = None) -> bool:
    """Whether the short way is open."""
    asked = what or facts()
    return (
        place_sole(bench.world, asked, bench.engine.snapshot.routes[0], bench.engine.snapshot)
        is not None
    )


def test_the_usual_case_takes_the_short_way_and_looks_the_same() -> None:
    bench = proven()
    assert short(bench)
    hand = bench.begin(1.0, prompt_tokens=50)
    attempt = hand.send(1.0)

    assert (attempt.number, attempt.kind, attempt.reason) == (1, AttemptKind.INITIAL, "only")
    assert (attempt.endpoint_id, attempt.model, attempt.backoff_s) == ("a", "m", 0.0)
    assert (attempt.is_probe, attempt.breaker_state) == (False, "closed")
    assert attempt.planned_uncached_tokens == 50
    assert bench.state("a").inflight == 1
    assert hand.wait(1.0, "running")
    hand.end(attempt, DONE, 2.0)
    assert hand.finish(2.0).attempt is attempt


def test_the_short_way_looks_at_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = proven()

    def long_way(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(machine, "place", long_way)

    assert bench.begin(1.0).send(1.0).endpoint_id == "a"


def test_the_short_way_counts_its_attempt() -> None:
    bench = proven()
    hand = bench.begin(attempts_max=2)
    hand.fail(0.0)
    hand.wait(0.0, "backoff")
    hand.fail(1.0)

    assert isinstance(hand.next(1.0), Finish)
    assert hand.call.attempts == 2


def test_one_attempt_means_one() -> None:
    hand = proven().begin(attempts_max=1)
    hand.fail(0.0)

    assert hand.finish(0.0).attempt is not None


def blocked(bench: Bench) -> None:
    bench.serve(0.0, EXHAUSTED, takes=0.0, attempts_max=1)


def cooling(bench: Bench) -> None:
    bench.serve(0.0, throttled(9.0), takes=0.0, attempts_max=1)


def opened(bench: Bench) -> None:
    bench.kill("a")


def overloaded(bench: Bench) -> None:
    bench.serve(0.0, THROTTLED._replace(kind=F.OVERLOADED), takes=0.0, attempts_max=1)


def without_the_model(bench: Bench) -> None:
    bench.serve(0.0, Outcome(F.NOT_FOUND), takes=0.0, attempts_max=1)


@pytest.mark.parametrize("spoil", [blocked, cooling, opened, overloaded, without_the_model])
def test_whatever_is_to_be_said_against_it_closes_the_short_way(
    spoil: Callable[[Bench], None],
) -> None:
    bench = proven()
    assert short(bench)
    spoil(bench)

    assert not short(bench)


@pytest.mark.parametrize(
    "described",
    [
        {"state": "draining"},
        {"state": "disabled"},
        {"profile": profile()},
        {"window": 1000},
        {"capacity": Capacity(rpm=60.0)},
        {"capacity": Capacity(tpm=60.0)},
        {"capacity": Capacity(concurrency=5)},
    ],
)
def test_whatever_has_to_be_looked_at_closes_it_too(described: dict[str, object]) -> None:
    bench = proven()
    changed = endpoint("a", **described)  # type: ignore[arg-type]
    bench.engine.swap(snapshot(A, [changed], version=2), 0.0)

    assert not short(bench)


def test_an_endpoint_not_seen_before_is_looked_at() -> None:
    assert not short(Bench(A))
    assert not short(proven(), facts("another-model"))
    assert not short(proven(), facts(pinned_to="a"))


def test_where_there_is_a_choice_there_is_no_short_way() -> None:
    bench = Bench(route({"a": 1, "b": 1}))
    bench.prove("a", "b")

    assert bench.engine.snapshot.routes[0].sole is None
    assert not short(bench)
    assert A.sole == "a"


def test_both_ways_lead_to_the_same_place() -> None:
    bench = proven(model="llama")
    bench.prove("a", model="m")
    request = bench.request()
    direct = place_sole(bench.world, facts(), request.route, bench.engine.snapshot)
    careful = place(bench.world, request, 0.0)

    assert direct is not None
    assert careful.candidate is not None
    assert direct.model == careful.candidate.model == "llama"
    assert direct.breaker is careful.candidate.breaker
    assert direct.state is careful.candidate.state
    assert direct.endpoint is careful.candidate.endpoint
    placed = open_attempt(
        careful,
        careful.candidate,
        facts(),
        request.route,
        number=1,
        kind=AttemptKind.INITIAL,
        backoff_s=0.0,
        deadline_at=9.0,
        now=1.0,
    )
    usual = open_sole(direct, facts(), request.route, deadline_at=9.0, now=1.0)
    assert dataclasses.asdict(usual) == dataclasses.asdict(placed)


def test_who_waits_is_not_overtaken_by_the_short_way() -> None:
    bench = Bench(route({"a": 1}, admission=AdmissionPolicy(max_inflight=1)), rng=Even())
    bench.prove("a")
    busy = bench.begin(0.0)
    attempt = busy.send(0.0)
    waiting = bench.begin(0.0)
    waiting.wait(0.0, "queue")
    bench.engine.swap(snapshot(A, version=2), 0.5)  # no limit any more
    assert short(bench)

    newcomer = bench.begin(0.5)
    assert isinstance(newcomer.next(0.5), Wait)
    assert isinstance(waiting.next(0.5), Send)
    assert isinstance(newcomer.next(0.5), Send)
    assert isinstance(bench.begin(0.5).next(0.5), Send)
    busy.end(attempt, DONE, 1.0)


def test_hedges_pay_in_on_the_short_way_too() -> None:
    r = route({"a": 1}, hedge=HedgePolicy(enabled=True, delay_s=1.0))
    bench = Bench(r)
    bench.prove("a")
    assert bench.world.pools["chat"].hedges.balance == 0.0  # pinned calls are not eligible
    bench.serve(0.0)

    assert bench.world.pools["chat"].hedges.balance == pytest.approx(0.05)


def test_a_failure_after_the_short_way_is_handled_as_any() -> None:
    bench = proven()
    hand = bench.begin()
    first = hand.fail(0.0, REFUSED)
    assert hand.wait(0.0, "backoff").until == 0.25
    second = hand.send(0.25)

    assert (second.number, second.kind, second.endpoint_id) == (2, AttemptKind.RETRY, "a")
    assert bench.balance(0.25) == pytest.approx(2.1)
    assert first.ended
    hand.end(second, BROKEN, 0.5)
    assert hand.wait(0.5, "backoff")


# ---------------------------------------------------------------- who wants to know


def silent(**described: object) -> Bench:
    """An engine that nobody listens to."""
    bench = proven(**described)
    bench.engine = Engine(bench.engine.snapshot, rng=Even())
    return bench


def wants(bench: Bench, what: CallFacts | None = None, sink: list[Event] | None = None) -> bool:
    call = bench.engine.begin(what or facts(), 0.0, sink=sink.append if sink is not None else None)
    assert call is not None
    return call.wants_counts


def test_counts_are_wanted_by_whoever_listens_or_compares_or_paces() -> None:
    assert not wants(silent())
    assert wants(silent(), sink=[])
    assert wants(proven())
    assert wants(silent(profile=profile()))
    assert wants(silent(capacity=Capacity(tpm=60.0)))
    assert not wants(silent(capacity=Capacity(rpm=60.0)))
    assert wants(silent(), facts(pinned_to="a"))


def test_where_something_is_promised_counts_are_wanted() -> None:
    bench = silent()
    classes = {"plain": TrafficClass(), "gold": TrafficClass(total_slo_s=9.0)}
    bench.engine.swap(snapshot(A, classes=classes, version=2), 0.0)

    assert wants(bench, facts(traffic_class="gold")) is True
    assert wants(bench, facts(traffic_class="plain")) is False


def test_where_there_is_a_choice_counts_are_wanted() -> None:
    bench = silent()
    bench.engine.swap(snapshot(route({"a": 1, "b": 1}), version=2), 0.0)

    assert wants(bench)


def test_a_listener_that_has_no_use_for_ends_wants_no_counts() -> None:
    heard: list[Event] = []
    for quiet, wanted in ((frozenset[type[Event]](), True), (frozenset({AttemptEnded}), False)):
        bench = silent()
        bench.engine = Engine(bench.engine.snapshot, rng=Even(), on_event=heard.append, quiet=quiet)
        assert wants(bench) == wanted
