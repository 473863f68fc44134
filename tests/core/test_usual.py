"""The short way to a choice: the same as the long one, or none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.core.model import CallFacts, Send
from headway.core.place import Placement, place, place_usual
from headway.core.select import STRATEGIES
from headway.core.snapshot import (
    AdmissionPolicy,
    AffinityPolicy,
    Capacity,
    DeadlinePolicy,
    Endpoint,
    Price,
    SelectionPolicy,
    Snapshot,
    TrafficClass,
)
from tests.core.build import (
    BROKEN,
    DONE,
    EXHAUSTED,
    REFUSED,
    Bench,
    Even,
    endpoint,
    facts,
    profile,
    route,
    snapshot,
    table,
    throttled,
)

AB = route({"a": 3, "b": 1})
NAMES = "abcdef"


def usual(
    bench: Bench, what: CallFacts | None = None, *, now: float = 1.0, of: TrafficClass | None = None
) -> Placement | None:
    asked, policy = what or facts(), bench.engine.snapshot
    known = policy.routes[0]
    pool = bench.world.pool(known, now)
    return place_usual(bench.world, asked, known, policy, pool, of or TrafficClass(), now)


def proven(policy: Snapshot | None = None) -> Bench:
    bench = Bench(policy or snapshot(AB), rng=Even(0.1))
    bench.prove(*bench.engine.snapshot.routes[0].endpoint_ids)
    return bench


# --------------------------------------------------------------------------- the same, or none


def some_endpoint(name: str, chance: random.Random) -> Endpoint:
    paced = Capacity(rpm=chance.choice([None, 5, 600]), concurrency=chance.choice([None, 3]))
    return replace(
        endpoint(
            name,
            profile=chance.choice(
                [None, profile(chance.uniform(0.5, 2), prefill_s_per_token=1e-4)]
            ),
            capacity=paced if chance.random() < 0.2 else None,
            price=chance.choice(
                [None, Price(input_per_mtok=1, output_per_mtok=chance.randint(1, 9))]
            ),  # type: ignore[arg-type]
            window=2000 if chance.random() < 0.05 else None,
        ),
        max_body_bytes=500 if chance.random() < 0.05 else None,
    )


def lived_in(seed: int) -> tuple[Bench, float]:
    """An engine with a history."""
    chance = random.Random(seed)
    names = NAMES[: chance.randint(1, 6)]
    algorithm = "steady" if chance.random() < 0.6 else chance.choice(sorted(STRATEGIES))
    selection = SelectionPolicy(
        algorithm=algorithm, choices=chance.choice([1, 1, 2]), explore=chance.choice([0.0, 0.1])
    )
    affinity = AffinityPolicy(min_prefix_tokens=0, max_load_factor=chance.choice([None, 1.2]))
    weights = {n: chance.uniform(0.5, 3.0) for n in names}
    known = route(weights, selection=selection, affinity=affinity)
    bench = Bench(snapshot(known, [some_endpoint(n, chance) for n in names]), seed=seed)
    if chance.random() < 0.8:
        bench.prove(*names)
    now = 0.0
    for _ in range(chance.randint(0, 40)):
        now += chance.expovariate(1.0)
        outcome = DONE
        if chance.random() < 0.04:
            outcome = chance.choice([BROKEN, REFUSED, throttled(5.0), EXHAUSTED])
        session = chance.choice([None, "s"])
        prompt = chance.choice([100, 3000])
        hand = bench.begin(now, session=session, prompt_tokens=prompt, attempts_max=1)
        begun = hand.next(now)
        if isinstance(begun, Send) and chance.random() > 0.15:  # the others stay under way
            hand.end(begun.attempt, outcome, now + chance.uniform(0.5, 4.0))
            hand.call.cancel(now + 4.0)
    return bench, now + chance.choice([0.1, 40.0, 400.0])


def described(placement: Placement) -> tuple[object, ...]:
    chosen = placement.candidate
    if chosen is None:
        return (placement,)
    return (
        chosen.endpoint,
        chosen.state,
        chosen.breaker,
        chosen.model,
        chosen.expected_s,
        placement[1:],
    )


def test_the_short_way_leads_where_the_long_one_does() -> None:
    seen: Counter[str] = Counter()
    for seed in range(400):
        bench, now = lived_in(seed)
        chance = random.Random(seed)
        for _ in range(5):
            asked = facts(
                prompt_tokens=chance.choice([100, 1900, 3000]),
                max_output_tokens=chance.choice([None, 50, 300]),
                body_bytes=chance.choice([100, 600]),
                session=chance.choice([None, "s"]),
            )
            of = TrafficClass(
                usd_per_second=chance.choice([0.0, 0.001]),
                total_slo_s=chance.choice([float("inf"), 2.5]),
            )
            rng = bench.world.rng
            assert isinstance(rng, random.Random)
            request = bench.request(asked, now=now)._replace(
                usd_per_second=of.usd_per_second, promised=of.promised
            )
            before, turn = rng.getstate(), dict(request.pool.turn)
            short = usual(bench, asked, now=now, of=of)
            after, told = rng.getstate(), short and described(short)
            rng.setstate(before)
            request.pool.turn.clear()
            request.pool.turn.update(turn)
            careful = place(bench.world, request, now)
            if short is None:
                seen["none"] += 1
                continue
            assert told == described(careful), f"seed {seed}"
            assert rng.getstate() == after
            seen[careful.reason] += 1
            # the next one begins with that call under way
            assert careful.candidate is not None
            careful.candidate.state.inflight += 1
    assert min(seen[reason] for reason in ("none", "weight", "affinity", "predicted")) >= 10


def test_the_short_way_is_open_where_nothing_speaks_against_any_endpoint() -> None:
    found = usual(proven())

    assert found is not None
    assert found.candidate is not None
    assert found.candidate.endpoint.id == "a"  # 0.1 of three quarters
    assert (found.reason, found.is_probe, found.is_fallback) == ("weight", False, False)


def close(bench: Bench, how: str) -> None:
    state = bench.state("b")
    match how:
        case "open":
            bench.kill("b", 0.0)
        case "out":
            state.put_out("m", 9.0, "throttled", 0.0)
        case "limit":
            state.limit.reconfigure(2.0)
            state.inflight = 2
        case "blocked":
            bench.serve(0.0, EXHAUSTED, pinned_to="b", attempts_max=1)
        case "ejected":
            bench.pool().ejector.ejects_until = 1.1
        case "cold":
            bench.breaker("b").proven = False
            state.inflight = 3
        case "cold, failing":
            bench.breaker("b").proven = False
            bench.breaker("b")._consecutive = 1  # one failure before it was ever seen to work
            state.inflight = 2
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    "how", ["open", "out", "limit", "blocked", "ejected", "cold", "cold, failing"]
)
def test_what_speaks_against_one_endpoint_closes_it(how: str) -> None:
    bench = proven()
    close(bench, how)

    assert usual(bench) is None


@pytest.mark.parametrize(
    "nearly",
    [
        lambda b: setattr(b.state("b"), "inflight", 100),
        lambda b: setattr(b.pool().ejector, "ejects_until", 1.0),
        lambda b: b.state("b").limit.reconfigure(5.0),
        lambda b: (setattr(b.breaker("b"), "proven", False), setattr(b.state("b"), "inflight", 2)),
    ],
    ids=["busy", "readmitted", "room", "cold"],
)
def test_what_keeps_nobody_out_does_not(nearly: Callable[[Bench], object]) -> None:
    bench = proven()
    nearly(bench)

    assert usual(bench) is not None


@pytest.mark.parametrize(
    ("what", "is_open"),
    [
        ({"prompt_tokens": 900, "max_output_tokens": 100}, True),
        ({"prompt_tokens": 901, "max_output_tokens": 100}, False),
        ({"prompt_tokens": 1000}, True),
        ({"prompt_tokens": 1001}, False),
        ({"body_bytes": 500}, True),
        ({"body_bytes": 501}, False),
        ({"pinned_to": "a"}, False),
    ],
    ids=["fits", "too-long-an-answer", "just-fits", "too-long", "small", "too-large", "pinned"],
)
def test_a_call_that_not_all_would_take_looks_at_each(
    what: dict[str, object], is_open: bool
) -> None:
    wide = replace(endpoint("a", window=5000), max_body_bytes=900)
    tight = replace(endpoint("b", window=1000), max_body_bytes=500)
    bench = Bench(snapshot(AB, [wide, tight]), rng=Even(0.1))
    bench.prove("a", "b")

    assert (usual(bench, facts(**what)) is not None) is is_open


@pytest.mark.parametrize("state", ["draining", "disabled"])
def test_an_endpoint_that_takes_no_new_calls_closes_it(state: str) -> None:
    bench = proven()
    bench.engine.swap(snapshot(AB, [endpoint("b", state=state)], version=2), 0.5)

    assert usual(bench) is None


def test_one_endpoint_alone_is_no_choice() -> None:
    weights = replace(table({"a": 1}), by_zone={"*": table({"a": 1}).by_zone["*"], "x": table({"b": 1}).by_zone["*"]})  # fmt: skip
    bench = Bench(route(weights))
    bench.prove("a", "b")

    assert usual(bench) is None


def test_a_rate_closes_it_while_it_makes_calls_wait() -> None:
    paced = endpoint("b", capacity=Capacity(rpm=60.0))
    bench = Bench(snapshot(AB, [paced]), rng=Even(0.1))
    bench.prove("a", "b")
    assert usual(bench) is not None

    bench.state("b").rpm.charge(30.0, 1.0)  # half a minute's, where ten seconds' may go at once
    assert usual(bench) is None
    assert usual(bench, now=40.0) is not None


def test_tokens_are_paced_by_what_the_call_is_planned_with() -> None:
    paced = endpoint("b", capacity=Capacity(tpm=6000.0))
    bench = Bench(snapshot(AB, [paced]), rng=Even(0.1))
    bench.prove("a", "b")
    bench.state("b").tpm.charge(3000.0, 1.0)

    assert usual(bench) is None


def test_a_deadline_that_no_first_token_can_meet_is_refused_on_the_short_way() -> None:
    slow = [endpoint(n, profile=profile(3.0), rtt_s=0.5) for n in "ab"]
    bench = Bench(snapshot(AB, slow))
    bench.prove("a", "b")
    hurried = route({"a": 3, "b": 1}, deadline=DeadlinePolicy(total_s=3.4))
    bench.engine.swap(snapshot(hurried, slow, version=2), 0.5)

    assert usual(bench) is not None
    assert bench.begin(1.0).refusal(1.0).reason == "deadline"


def test_what_one_call_filled_in_says_nothing_of_the_next() -> None:
    described = [endpoint(n, profile=profile(2.0)) for n in "ab"]
    bench = Bench(snapshot(AB, described), rng=Even(0.1))
    bench.prove("a", "b")
    bench.serve(0.5, session="s", pinned_to="b")
    promised = TrafficClass(total_slo_s=0.1)
    kept = usual(bench, facts(session="s"))
    assert kept is not None
    assert kept.reason == "affinity"

    moved = usual(bench, facts(session="s"), of=promised)  # no endpoint keeps that promise
    assert moved is not None
    assert moved.reason == "weight"
    again = usual(bench, facts(session="s"))
    assert again is not None
    assert again.reason == "affinity"


def test_an_expectation_is_of_the_call_that_asks() -> None:
    bench = proven()
    bench.serve(0.5)  # so that the pool has a mean
    priced = usual(bench, of=TrafficClass(usd_per_second=1.0))
    assert priced is not None
    assert priced.candidate is not None
    assert priced.candidate.expected_s is not None

    plain = usual(bench)
    assert plain is not None
    assert plain.candidate is not None
    assert plain.candidate.expected_s is None  # no profile, and nobody compares


def test_the_cold_bound_is_the_routes_own() -> None:
    known = route({"a": 1, "b": 1}, admission=AdmissionPolicy(cold_concurrency=1))
    bench = Bench(snapshot(known), rng=Even(0.1))
    assert usual(bench) is not None

    bench.state("a").inflight = 1
    assert usual(bench) is None


def test_an_ejection_closes_the_short_way_until_it_ends() -> None:
    bench = proven()
    ejector = bench.pool().ejector
    for name in NAMES:
        for i in range(20):
            ejector.record(name, ok=name != "a" or i < 5)
    assert ejector.is_due(10.0)
    assert not ejector.is_due(9.9)
    ((ejected, until),) = ejector.sweep(6, 10.0)[0]

    assert (ejected, until, ejector.ejects_until) == ("a", 40.0, 40.0)
    assert usual(bench, now=39.9) is None
    assert usual(bench, now=40.0) is not None
