from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest

from headway.core.breaker import State
from headway.core.model import INFINITY, CallFacts, Outcome
from headway.core.place import Placement, Request, assess, groups_for, has_alternative, never, place
from headway.core.select import Out
from headway.core.snapshot import (
    AdmissionPolicy,
    AffinityPolicy,
    Capacity,
    Fallback,
    Match,
    Price,
    Route,
    SelectionPolicy,
    WeightTable,
)
from tests.core.build import (
    BROKEN,
    DONE,
    EXHAUSTED,
    THROTTLED,
    Bench,
    Even,
    F,
    endpoint,
    facts,
    profile,
    route,
    share,
    snapshot,
    throttled,
)

AB = route({"a": 1, "b": 1})


def why(bench: Bench, name: str, request: Request | None = None, *, now: float = 0.0) -> Out | None:
    """Why an endpoint of the first group is out, or None."""
    asked = request or bench.request(now=now)
    _, outs = assess(bench.world, asked, asked.groups[0], now)
    return next((o for o in outs if o.endpoint_id == name), None)


def put(bench: Bench, request: Request | None = None, *, now: float = 0.0) -> Placement:
    return place(bench.world, request or bench.request(now=now), now)


def where(placement: Placement) -> str:
    assert placement.candidate is not None, placement
    return placement.candidate.endpoint.id


def run_into(bench: Bench, name: str, count: int, now: float = 0.0) -> None:
    """Leave attempts outstanding at an endpoint."""
    for _ in range(count):
        bench.begin(now, pinned_to=name).send(now)


# ---------------------------------------------------------------- the policy's word


@pytest.mark.parametrize("state", ["draining", "disabled"])
def test_an_endpoint_that_is_not_active_gets_no_new_calls(state: str) -> None:
    bench = Bench(AB, endpoints=[endpoint("a", state=state)])

    assert why(bench, "a") == Out("a", state, INFINITY)
    assert where(put(bench)) == "b"


def test_a_draining_endpoint_still_serves_what_is_bound_to_it() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", state="draining")])
    placement = put(bench, bench.request(facts(pinned_to="a")))

    assert where(placement) == "a"
    assert placement.reason == "pinned"


def test_a_disabled_endpoint_serves_nothing_at_all() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", state="disabled")])

    assert put(bench, bench.request(facts(pinned_to="a"))).candidate is None


def test_an_endpoint_the_snapshot_does_not_know_is_passed_over() -> None:
    bench = Bench(AB)
    request = bench.request()._replace(
        groups=(groups_for(route({"ghost": 1, "b": 1}), bench.engine.snapshot, facts(), None)[0],)
    )

    assert where(put(bench, request)) == "b"
    assert put(bench, request).reason == "only"


# ---------------------------------------------------------------- this call's needs


def test_what_failed_this_call_is_not_tried_again_while_another_is_left() -> None:
    bench = Bench(AB)
    request = bench.request()._replace(tried=frozenset("a"))

    assert why(bench, "a", request) == Out("a", "tried", INFINITY)
    assert where(put(bench, request)) == "b"


@pytest.mark.parametrize(
    ("prompt", "output", "fits"),
    [(900, 100, True), (900, 101, False), (1001, None, False), (1000, None, True)],
)
def test_prompt_and_answer_must_fit_the_window(prompt: int, output: int | None, fits: bool) -> None:
    bench = Bench(AB, endpoints=[endpoint("a", window=1000)])
    request = bench.request(facts(prompt_tokens=prompt, max_output_tokens=output))

    out = why(bench, "a", request)

    assert (out is None) == fits
    assert out is None or out.reason == "context_window"


def test_a_body_must_fit_what_the_endpoint_takes() -> None:
    limited = replace(endpoint("a"), max_body_bytes=1000)
    bench = Bench(AB, endpoints=[limited])

    assert why(bench, "a", bench.request(facts(body_bytes=1000))) is None
    out = why(bench, "a", bench.request(facts(body_bytes=1001)))
    assert out == Out("a", "body_size", INFINITY)


def test_after_a_context_length_failure_only_a_larger_window_will_do() -> None:
    bench = Bench(
        route({"unknown": 1, "same": 1, "larger": 1}),
        endpoints=[endpoint("same", window=1000), endpoint("larger", window=1001)],
    )
    request = bench.request()._replace(min_context=1000)

    assert why(bench, "unknown", request) == Out("unknown", "context_window", INFINITY)
    assert why(bench, "same", request) == Out("same", "context_window", INFINITY)
    assert where(put(bench, request)) == "larger"


def test_a_hedge_goes_to_another_failure_domain() -> None:
    bench = Bench(
        route({"a": 1, "b": 1, "c": 1}),
        endpoints=[endpoint("a", domain="east"), endpoint("b", domain="east"), endpoint("c")],
    )
    request = bench.request()._replace(other_domain_than="east")

    assert why(bench, "b", request) == Out("b", "domain", INFINITY)
    assert where(put(bench, request)) == "c"
    assert why(bench, "c", request._replace(other_domain_than="c")) == Out("c", "domain", INFINITY)


# ---------------------------------------------------------------- limits, rates, cool-downs


def test_an_endpoint_at_its_limit_is_waited_for() -> None:
    bench = Bench(AB, endpoints=[endpoint("a", capacity=Capacity(concurrency=2))])
    run_into(bench, "a", 2)

    assert why(bench, "a") == Out("a", "limit", INFINITY)
    assert where(put(bench)) == "b"


def test_all_at_their_limit_is_an_obstacle_that_passes() -> None:
    bench = Bench(route({"a": 1, "b": 1}, admission=AdmissionPolicy(max_inflight=1)))
    run_into(bench, "a", 1)
    run_into(bench, "b", 1)

    placement = put(bench)

    assert placement.candidate is None
    assert placement.obstacle == "limit"
    assert {o.endpoint_id for o in placement.outs} == {"a", "b"}


def test_a_throttled_endpoint_is_left_alone_until_then() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.prove("a", "b")
    bench.serve(0.0, throttled(5.0), takes=0.0, pinned_to="a", attempts_max=1)

    assert why(bench, "a") == Out("a", "throttled", 5.0)
    assert why(bench, "a", now=4.999) is not None
    assert why(bench, "a", now=5.0) is None
    assert where(put(bench)) == "b"


def test_all_throttled_means_waiting_for_the_soonest() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.prove("a", "b")
    for name, hint in (("a", 5.0), ("b", 3.0)):
        bench.serve(0.0, throttled(hint), takes=0.0, pinned_to=name, attempts_max=1)

    placement = put(bench)

    assert (placement.candidate, placement.obstacle, placement.until) == (None, "throttled", 3.0)


def test_a_paced_endpoint_is_waited_for_until_its_rate_allows() -> None:
    bench = Bench(route({"a": 1}), endpoints=[endpoint("a", capacity=Capacity(rpm=60.0))])
    for _ in range(11):
        bench.serve(0.0, takes=0.0)

    placement = put(bench)

    assert (placement.obstacle, placement.until) == ("paced", 1.0)
    assert where(put(bench, now=1.0)) == "a"


def test_tokens_are_paced_by_what_was_used_not_by_what_was_planned() -> None:
    bench = Bench(
        route({"a": 1}, output_tokens=1000),
        endpoints=[endpoint("a", capacity=Capacity(tpm=6000.0))],  # 100 a second, 1000 at once
    )
    hand = bench.begin(prompt_tokens=2000)
    attempt = hand.send(0.0)
    assert put(bench).until == 20.0  # 3000 planned
    hand.end(attempt, DONE._replace(input_tokens=1500, output_tokens=100), 0.0)

    assert put(bench).until == 6.0  # 1600 used


def test_a_missing_model_is_left_alone_for_a_minute_there_on_every_surface() -> None:
    bench = Bench(AB)
    gone = Outcome(F.NOT_FOUND, status=404, error_type="model_not_found")
    bench.serve(0.0, gone, takes=0.0, pinned_to="a", attempts_max=1)

    assert why(bench, "a") == Out("a", "not_found", 60.0)
    assert why(bench, "a", bench.request(facts(surface="embeddings"))) is not None
    assert why(bench, "a", bench.request(facts("other"))) is None
    assert why(bench, "a", now=60.0) is None


def test_a_missing_path_is_left_alone_while_the_models_other_surfaces_are_served() -> None:
    bench = Bench(AB)
    gone = Outcome(F.NOT_FOUND, status=404, error_type="http_404")
    bench.serve(0.0, gone, takes=0.0, pinned_to="a", attempts_max=1, surface="embeddings")

    embedding = bench.request(facts(surface="embeddings"))
    assert why(bench, "a", embedding) == Out("a", "not_found", 60.0)
    assert why(bench, "a") is None
    assert why(bench, "a", embedding, now=60.0) is None

    bench.serve(61.0, takes=1.0, pinned_to="a", surface="embeddings")
    assert bench.state("a").outs == {}


# ---------------------------------------------------------------- credentials


def shared_key() -> Bench:
    return Bench(
        route({"a": 1, "b": 1, "c": 1}),
        endpoints=[endpoint("a", credential="k"), endpoint("b", credential="k"), endpoint("c")],
        rng=Even(0.0),
    )


def test_an_exhausted_credential_is_blocked_at_every_endpoint_that_uses_it() -> None:
    bench = shared_key()
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)

    assert why(bench, "a") == Out("a", "credential", 300.0)
    assert why(bench, "b") == Out("b", "credential", 300.0)
    assert where(put(bench)) == "c"


def test_when_the_block_lapses_one_call_tries_the_credential() -> None:
    bench = shared_key()
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    trial = bench.begin(300.0, pinned_to="b")
    attempt = trial.send(300.0)

    assert why(bench, "a", now=300.0) == Out("a", "credential", 330.0)
    trial.end(attempt, DONE, 301.0)

    assert why(bench, "a", now=301.0) is None
    assert bench.world.blocks == {}


def test_a_first_token_is_enough_to_clear_a_credential() -> None:
    bench = shared_key()
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    trial = bench.begin(300.0, pinned_to="b", stream=True)
    attempt = trial.send(300.0)

    trial.call.on_first_token(attempt, 301.0)

    assert why(bench, "a", now=301.0) is None


def test_a_trial_that_is_refused_blocks_for_another_five_minutes() -> None:
    bench = shared_key()
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)

    bench.serve(300.0, EXHAUSTED, takes=1.0, pinned_to="a", attempts_max=1)

    assert why(bench, "b", now=301.0) == Out("b", "credential", 601.0)


def test_a_trial_without_a_verdict_lets_the_next_one_try_at_once() -> None:
    bench = shared_key()
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    trial = bench.begin(300.0, pinned_to="a")
    trial.send(300.0)

    trial.call.cancel(301.0)

    assert why(bench, "a", now=301.0) is None
    assert bench.world.blocks["k"].until == 301.0
    bench.serve(302.0, BROKEN, takes=1.0, pinned_to="a", attempts_max=1)
    assert bench.world.blocks["k"].until == 303.0


def test_a_trial_that_hangs_is_replaced_after_thirty_seconds() -> None:
    bench = shared_key()
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    bench.begin(300.0, pinned_to="a").send(300.0)

    assert why(bench, "a", now=329.9) is not None
    assert why(bench, "a", now=330.0) is None


def test_an_answer_to_a_call_from_before_the_block_says_nothing_about_it() -> None:
    bench = shared_key()
    long_call = bench.begin(0.0, pinned_to="a")
    attempt = long_call.send(0.0)
    bench.serve(1.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)

    long_call.end(attempt, DONE, 100.0)

    assert why(bench, "a", now=100.0) == Out("a", "credential", 301.0)


def test_all_credentials_blocked_says_so() -> None:
    bench = Bench(
        AB,
        endpoints=[endpoint("a", credential="k"), endpoint("b", credential="k")],
        rng=Even(0.0),
    )
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)

    placement = put(bench)

    assert placement.candidate is None
    assert (placement.obstacle, placement.until) == ("credential", 300.0)


# ---------------------------------------------------------------- health


def test_an_open_endpoint_is_out_until_it_has_cooled_off() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")

    assert why(bench, "a") == Out("a", "open", 10.0)
    assert where(put(bench)) == "b"


def test_a_cooled_off_endpoint_is_probed_by_the_next_call_that_can_afford_it() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    request = bench.request(now=10.0)

    placement = put(bench, request, now=10.0)
    assert where(placement) == "a"
    assert (placement.reason, placement.is_probe) == ("probe", True)
    assert where(put(bench, request._replace(may_probe=never), now=10.0)) == "b"
    assert why(bench, "a", request._replace(may_probe=never), now=10.0) == Out("a", "open", 10.0)


def test_only_one_probe_at_a_time() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    probe = bench.begin(10.0)
    assert probe.send(10.0).is_probe

    assert why(bench, "a", now=11.0) == Out("a", "open", 40.0)
    assert where(put(bench, now=11.0)) == "b"


def test_when_nothing_is_left_the_one_that_reopens_first_is_probed_by_force() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a", now=0.0)
    bench.kill("b", now=5.0)

    placement = put(bench, now=6.0)

    assert (where(placement), placement.reason, placement.is_probe) == ("a", "probe", True)
    assert bench.breaker("a").state is State.OPEN  # asking takes nothing
    bench.begin(6.0).send(6.0)
    assert where(put(bench, now=6.0)) == "b"
    bench.begin(6.0).send(6.0)
    out = put(bench, now=6.0)
    assert (out.candidate, out.obstacle, out.until) == (None, "open", 36.0)


def test_a_call_that_may_not_force_is_told_that_all_are_open() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    bench.kill("a")
    bench.kill("b")

    placement = put(bench, bench.request()._replace(may_force=False))

    assert (placement.candidate, placement.obstacle, placement.until) == (None, "open", 10.0)


def test_with_too_little_left_soft_evidence_no_longer_keeps_an_endpoint_out() -> None:
    """Two of three are open: on soft evidence the weight that is left (1/3) is too little."""
    bench = Bench(route({"a": 1, "b": 1, "c": 1}), rng=Even())
    bench.prove("a", "b", "c")
    for name in ("a", "b"):
        for _ in range(9):
            bench.serve(
                0.0,
                THROTTLED._replace(kind=BROKEN.kind, soft=True),
                takes=0.0,
                pinned_to=name,
                attempts_max=1,
            )
        assert bench.breaker(name).state is State.OPEN
        assert not bench.breaker(name).is_hard

    # All three take calls again, as usual ones: a probe at a time would be too little for a fleet.
    run_into(bench, "c", 5)
    chosen = [put(bench) for _ in range(8)]
    assert {where(p) for p in chosen} <= {"a", "b"}
    assert not any(p.is_probe for p in chosen)


def test_with_half_the_weight_left_soft_evidence_stands() -> None:
    bench = Bench(AB, rng=Even())
    bench.prove("a", "b")
    for _ in range(9):
        bench.serve(0.0, BROKEN._replace(soft=True), takes=0.0, pinned_to="a", attempts_max=1)

    assert why(bench, "a") == Out("a", "open", 10.0)


def test_hard_evidence_stands_however_little_is_left() -> None:
    bench = Bench(route({"a": 8, "b": 1}), rng=Even())
    bench.prove("a", "b")
    bench.kill("a")

    assert why(bench, "a") == Out("a", "open", 10.0)
    assert where(put(bench)) == "b"


def six(now: float = 10.0) -> Bench:
    """Six peers, of which a failed all of its twenty calls, ejected."""
    bench = Bench(route(dict.fromkeys("abcdef", 1.0)), rng=Even())
    bench.begin(0.0).call.cancel(0.0)
    ejector = bench.world.pools["chat"].ejector
    for name in "abcdef":
        for _ in range(20):
            ejector.record(name, ok=name != "a")
    looking = bench.begin(now)
    looking.send(now)
    looking.call.cancel(now)
    return bench


def test_an_ejected_peer_is_out_until_its_time() -> None:
    bench = six()

    assert why(bench, "a", now=10.0) == Out("a", "ejected", 40.0)
    assert why(bench, "b", now=10.0) is None
    assert why(bench, "a", now=40.0) is None


def test_an_ejected_peer_still_serves_what_is_bound_to_it() -> None:
    bench = six()

    assert where(put(bench, bench.request(facts(pinned_to="a"), now=10.0), now=10.0)) == "a"


def test_an_ejected_peer_comes_back_when_its_peers_are_down() -> None:
    bench = six()
    for name in "bcdef":
        bench.kill(name, now=10.0)

    placement = put(bench, now=10.0)

    assert where(placement) == "a"
    assert not placement.is_probe


def test_an_ejected_peer_is_asked_when_the_others_want_quiet() -> None:
    bench = six()
    for name in "bcdef":
        bench.serve(10.0, throttled(50.0), takes=0.0, pinned_to=name, attempts_max=1)

    placement = put(bench, now=10.0)

    assert (where(placement), placement.reason, placement.is_probe) == ("a", "probe", False)


def test_an_ejected_peer_that_had_once_tripped_comes_back_like_any_other() -> None:
    bench = Bench(route(dict.fromkeys("abcdef", 1.0)), rng=Even())
    bench.prove(*"abcdef")
    bench.kill("a")
    bench.serve(10.0, takes=0.0, pinned_to="a")  # closed again
    for name in "abcdef":
        for _ in range(20):
            bench.pool().ejector.record(name, ok=name != "a")
    bench.begin(20.0).next(20.0)
    for name in "bcdef":
        bench.kill(name, now=20.0)

    placement = put(bench, now=20.0)

    assert (where(placement), placement.reason) == ("a", "only")


def test_what_stands_in_the_way_is_named() -> None:
    bench = six()
    request = bench.request(now=10.0)._replace(tried=frozenset("bcdef"), may_force=False)
    assert put(bench, request, now=10.0).obstacle == "open"

    disabled = Bench(route({"a": 1}), endpoints=[endpoint("a", state="disabled")])
    assert put(disabled).obstacle == "none"


def test_too_little_money_for_a_probe_leaves_the_calls_to_those_that_work() -> None:
    """Two of three are open on soft evidence, and due: too little is left to leave them out."""
    bench = Bench(route({"a": 1, "b": 1, "c": 1}), rng=random.Random(1))
    bench.prove("a", "b", "c")
    for name in "ab":
        for _ in range(9):
            bench.serve(0.0, BROKEN._replace(soft=True), takes=0.0, pinned_to=name, attempts_max=1)
    due = max(bench.breaker(name).open_until for name in "ab")
    request = bench.request(now=due)._replace(may_probe=never)

    assert {where(put(bench, request, now=due)) for _ in range(50)} == {"c"}


# ---------------------------------------------------------------- a cold start


def test_few_calls_go_to_endpoints_not_yet_seen_to_work_while_there_is_a_choice() -> None:
    bench = Bench(AB)
    run_into(bench, "a", 3)

    assert why(bench, "a") == Out("a", "cold", INFINITY)
    assert where(put(bench)) == "b"
    run_into(bench, "b", 3)
    assert put(bench).obstacle == "cold"
    assert where(put(bench, bench.request()._replace(ignore_cold=True))) in "ab"


def test_a_sole_endpoint_takes_part_of_a_burst_until_it_is_seen_to_work() -> None:
    bench = Bench(route({"a": 1}))
    run_into(bench, "a", 15)
    assert where(put(bench)) == "a"
    running = bench.begin(0.0)
    attempt = running.send(0.0)
    assert put(bench).obstacle == "cold"
    assert (
        where(put(bench, bench.request(facts(delegated=True)))) == "a"
    )  # a burst of the application's
    assert where(put(bench, bench.request(facts(pinned_to="a")))) == "a"

    first, last = bench.begin(0.0), bench.begin(0.0)
    first.wait(0.0, "queue")
    last.wait(0.0, "queue")
    running.end(attempt, DONE, 0.5)
    first.send(0.5)
    last.send(0.5)


def test_an_endpoint_seen_to_work_takes_as_many_as_come() -> None:
    bench = Bench(AB)
    bench.prove("a")
    run_into(bench, "a", 50)

    assert why(bench, "a") is None


def test_how_many_is_a_matter_of_policy() -> None:
    bench = Bench(route({"a": 1, "b": 1}, admission=AdmissionPolicy(cold_concurrency=1)))
    run_into(bench, "a", 1)

    assert why(bench, "a") == Out("a", "cold", INFINITY)


# ---------------------------------------------------------------- weights


def test_weights_are_those_of_the_callers_zone_and_prompt() -> None:
    weights = WeightTable(
        by_zone={
            "east": ((1000, share({"a": 1})), (INFINITY, share({"b": 1}))),
            "*": ((INFINITY, share({"c": 1})),),
        }
    )
    east, nowhere = Bench(route(weights), zone="east"), Bench(route(weights))

    assert where(put(east, east.request(facts(prompt_tokens=10)))) == "a"
    assert where(put(east, east.request(facts(prompt_tokens=5000)))) == "b"
    assert where(put(nowhere)) == "c"


# ---------------------------------------------------------------- fallbacks


def with_fallbacks(*fallbacks: Fallback, extra: Route | None = None) -> Bench:
    main = route({"a": 1}, fallback=fallbacks, match=Match(models=frozenset({"m"})))
    return Bench(snapshot([main] + ([extra] if extra else [])), rng=Even())


def test_fallbacks_are_used_in_order_when_the_routes_own_are_out() -> None:
    bench = with_fallbacks(Fallback(endpoint="f"), Fallback(endpoint="g"))
    request = bench.request()._replace(tried=frozenset("a"))

    placement = put(bench, request)
    assert (where(placement), placement.reason, placement.is_fallback) == ("f", "fallback", True)
    assert where(put(bench, request._replace(tried=frozenset("af")))) == "g"
    assert where(put(bench)) == "a"


def test_a_fallback_for_certain_failures_is_used_for_those_only() -> None:
    bench = with_fallbacks(Fallback(endpoint="f", on=frozenset({"rate_limited"})))
    request = bench.request()._replace(tried=frozenset("a"))

    assert put(bench, request._replace(last_failure="server_error")).candidate is None
    assert where(put(bench, request._replace(last_failure="rate_limited"))) == "f"
    assert where(put(bench, request)) == "f"  # nothing failed: all are out


def test_a_fallback_may_name_another_model() -> None:
    bench = with_fallbacks(Fallback(endpoint="f", model="small"))
    placement = put(bench, bench.request()._replace(tried=frozenset("a")))

    assert placement.candidate is not None
    assert placement.candidate.model == "small"


def test_a_fallback_may_be_a_route_with_its_own_fallbacks() -> None:
    other = route(
        {"x": 3, "y": 1},
        name="other",
        match=Match(models=frozenset({"n"})),
        fallback=[Fallback(endpoint="z")],
    )
    bench = with_fallbacks(Fallback(route="other", model="n"), extra=other)
    groups = groups_for(bench.request().route, bench.engine.snapshot, facts(), None)

    assert [[e for e, _ in g.weights] for g in groups] == [["a"], ["x", "y"], ["z"]]
    assert [g.is_fallback for g in groups] == [False, True, True]
    assert groups[1].model == "n"


def test_a_fallback_may_be_a_model_whose_route_is_looked_up() -> None:
    other = route({"x": 1}, name="other", match=Match(models=frozenset({"n"})))
    bench = with_fallbacks(Fallback(model="n"), Fallback(model="unknown"), extra=other)
    groups = groups_for(bench.request().route, bench.engine.snapshot, facts(), None)

    assert [[e for e, _ in g.weights] for g in groups] == [["a"], ["x"]]


def test_a_model_that_is_missing_at_an_endpoint_being_probed_is_waited_for() -> None:
    bench = Bench(route({"a": 1}), rng=Even())
    bench.prove("a")
    bench.kill("a")
    bench.begin(1.0).send(1.0)  # the probe
    bench.serve(1.0, Outcome(F.NOT_FOUND, status=404), takes=0.0, pinned_to="a", attempts_max=1)

    placement = put(bench, now=2.0)

    assert (placement.candidate, placement.obstacle, placement.until) == (None, "not_found", 61.0)


def test_a_fallback_that_leads_nowhere_is_passed_over() -> None:
    bench = with_fallbacks(Fallback(route="ghost"), Fallback(endpoint="f"))
    groups = groups_for(bench.request().route, bench.engine.snapshot, facts(), None)

    assert [[e for e, _ in g.weights] for g in groups] == [["a"], ["f"]]


def test_a_fallback_that_does_not_apply_does_not_hide_the_next() -> None:
    bench = with_fallbacks(
        Fallback(endpoint="f", on=frozenset({"rate_limited"})), Fallback(endpoint="g")
    )
    request = bench.request()._replace(tried=frozenset("a"), last_failure="server_error")

    assert where(put(bench, request)) == "g"


def test_a_fallback_route_is_the_one_that_is_named_whatever_serves_its_model() -> None:
    main = route({"a": 1}, fallback=[Fallback(route="other", model="n")])
    other = route({"x": 1}, name="other", match=Match(models=frozenset({"o"})))
    usual = route({"y": 1}, name="usual", match=Match(models=frozenset({"n"})))
    policy = snapshot([replace(main, match=Match(models=frozenset({"m"}))), other, usual])
    groups = groups_for(policy.routes[0], policy, facts(), None)

    assert [[e for e, _ in g.weights] for g in groups] == [["a"], ["x"]]
    assert groups[1].model == "n"


def test_cycles_of_fallbacks_end() -> None:
    one = route({"a": 1}, name="one", fallback=[Fallback(route="two")])
    two = route({"b": 1}, name="two", fallback=[Fallback(route="one")])
    bench = Bench(snapshot([one, two]))

    groups = groups_for(one, bench.engine.snapshot, facts(), None)

    assert len(groups) <= 8


def test_a_pinned_call_has_no_fallbacks() -> None:
    bench = with_fallbacks(Fallback(endpoint="f"))
    groups = groups_for(bench.request().route, bench.engine.snapshot, facts(pinned_to="a"), None)

    assert [g.weights for g in groups] == [(("a", 1.0),)]


def test_busy_endpoints_of_the_route_are_waited_for_rather_than_paying_for_a_fallback() -> None:
    main = route(
        {"a": 1}, fallback=[Fallback(endpoint="f")], admission=AdmissionPolicy(max_inflight=1)
    )
    bench = Bench(main)
    run_into(bench, "a", 1)

    assert put(bench).obstacle == "limit"


def test_a_busy_fallback_is_waited_for_when_the_routes_own_are_broken() -> None:
    bench = Bench(
        snapshot(
            route({"a": 1}, fallback=[Fallback(endpoint="f")]),
            [endpoint("f", capacity=Capacity(concurrency=1))],
        ),
        rng=Even(),
    )
    bench.prove("a", "f")
    bench.kill("a")
    run_into(bench, "f", 1)

    placement = put(bench)

    assert (placement.candidate, placement.obstacle) == (None, "limit")
    assert [o.endpoint_id for o in placement.outs] == ["a", "f"]


def test_a_forced_probe_asks_for_the_model_of_the_first_group_its_endpoint_is_in() -> None:
    bench = with_fallbacks(Fallback(endpoint="a", model="small"))
    bench.prove("a")
    bench.kill("a")
    bench.state("a").put_out("small", 100.0, "throttled", 0.0)

    placement = put(bench)

    assert placement.candidate is not None
    assert placement.candidate.model == "m"


# ---------------------------------------------------------------- affinity


WARM = AffinityPolicy(min_prefix_tokens=256)


def warm_bench(rng: Callable[[], random.Random] | None = None, **known: object) -> Bench:
    bench = Bench(route({"a": 1, "b": 1}, affinity=AffinityPolicy(**known)))  # type: ignore[arg-type]
    bench.prove("a", "b")
    bench.serve(0.0, takes=0.0, pinned_to="b", session="s", prefix=(1, 2), prompt_tokens=600)
    return bench


def spread(bench: Bench, what: CallFacts, *, now: float = 1.0, times: int = 200) -> set[str]:
    return {where(put(bench, bench.request(what, now=now), now=now)) for _ in range(times)}


def test_a_session_stays_on_its_endpoint_and_says_so() -> None:
    bench = warm_bench()
    placement = put(bench, bench.request(facts(session="s")), now=1.0)

    assert (where(placement), placement.reason, placement.warm_tokens) == ("b", "affinity", 600)
    assert spread(bench, facts(session="s")) == {"b"}
    assert spread(bench, facts(session="other")) == {"a", "b"}


def test_a_known_prefix_draws_a_call() -> None:
    bench = warm_bench()

    assert spread(bench, facts(prefix=(1, 2, 3), prompt_tokens=900)) == {"b"}
    assert put(bench, bench.request(facts(prefix=(1, 9))), now=1.0).warm_tokens == 256


def test_affinity_can_be_switched_off() -> None:
    assert spread(warm_bench(key=()), facts(session="s")) == {"a", "b"}


def test_affinity_ends_with_its_ttl() -> None:
    assert spread(warm_bench(ttl_s=10.0), facts(session="s"), now=10.0) == {"b"}
    assert spread(warm_bench(ttl_s=10.0), facts(session="s"), now=10.1) == {"a", "b"}


def test_a_warm_endpoint_that_is_out_is_left() -> None:
    bench = warm_bench()
    bench.kill("b", now=1.0)

    placement = put(bench, bench.request(facts(session="s")), now=1.0)

    assert (where(placement), placement.reason, placement.warm_tokens) == ("a", "only", 0)


def test_a_warm_endpoint_that_has_become_slow_is_left() -> None:
    bench = warm_bench()
    for _ in range(60):
        bench.state("b").observe_latency(4.0, 1.0, 1.0)
        bench.state("a").observe_latency(0.5, 1.0, 1.0)
    bench.state("a").observe_latency(0.5, 1.0, 1.0)

    chosen = spread(bench, facts(session="s"))

    # mean of 0.5 and 4 is 2.25: q of b is 1.8, still within bounds; with a third fast one it is not
    assert chosen == {"b"}
    three = Bench(route({"a": 1, "b": 1, "c": 1}))
    three.prove("a", "b", "c")
    three.serve(0.0, takes=0.0, pinned_to="b", session="s")
    for _ in range(60):
        three.state("b").observe_latency(4.0, 1.0, 1.0)
        three.state("a").observe_latency(0.5, 1.0, 1.0)
        three.state("c").observe_latency(0.5, 1.0, 1.0)
    assert spread(three, facts(session="s")) == {"a", "c"}


def test_a_warm_endpoint_past_the_classs_objective_is_left() -> None:
    bench = Bench(
        route({"a": 1, "b": 1}),
        endpoints=[endpoint("b", profile=profile(2.0), rtt_s=0.5)],
    )
    bench.prove("a", "b")
    bench.serve(0.0, takes=2.5 + 200 * 0.01, pinned_to="b", session="s")
    bench.world.tally.answered += 1000  # so that what was seen is forgotten after three minutes
    request = bench.request(facts(session="s"))

    def reason(slo_s: float) -> str:
        return put(bench, request._replace(promised=(slo_s, INFINITY, INFINITY)), now=200.0).reason

    assert reason(2.5) == "affinity"
    assert reason(2.49) == "weight"


def test_a_warm_endpoint_with_a_profile_says_what_is_expected_of_it() -> None:
    bench = Bench(AB, endpoints=[endpoint("b", profile=profile(2.0))])
    bench.prove("a", "b")
    bench.serve(0.0, takes=4.0, pinned_to="b", session="s")
    placement = put(bench, bench.request(facts(session="s")), now=200.0)

    assert placement.reason == "affinity"
    assert placement.candidate is not None
    assert placement.candidate.expected_s is not None


@pytest.mark.parametrize(
    ("promised", "kept"),
    [
        pytest.param((INFINITY, 0.02, INFINITY), True, id="per token"),
        pytest.param((INFINITY, 0.019, INFINITY), False, id="per token, missed"),
        pytest.param((INFINITY, INFINITY, 6.5), True, id="in whole"),
        pytest.param((INFINITY, INFINITY, 6.49), False, id="in whole, missed"),
    ],
)
def test_every_objective_of_the_class_counts(
    promised: tuple[float, float, float], kept: bool
) -> None:
    """2 s, then 200 tokens of 20 ms, half a second away: warm there, unless something is missed."""
    bench = Bench(
        route({"a": 1, "b": 1}), endpoints=[endpoint("b", profile=profile(2.0, 0.02), rtt_s=0.5)]
    )
    bench.prove("a", "b")
    bench.serve(0.0, takes=2.5 + 200 * 0.02, pinned_to="b", session="s")
    bench.world.tally.answered += 1000
    request = bench.request(facts(session="s"))._replace(promised=promised)

    assert (put(bench, request, now=200.0).reason == "affinity") is kept


def test_an_objective_is_held_against_the_profiles_own_p99_and_what_was_seen() -> None:
    bench = Bench(
        route({"a": 1, "b": 1}, affinity=AffinityPolicy(key=())),
        endpoints=[
            endpoint("a", profile=profile(1.0, 0.01, p99_s=3.0)),
            endpoint("b", profile=profile(1.0, 0.01, p99_s=1.0)),
        ],
        rng=random.Random(1),
    )
    bench.prove("a", "b")
    bench.world.tally.answered += 1000
    request = bench.request()._replace(promised=(1.5, INFINITY, INFINITY))

    chosen = Counter(where(put(bench, request, now=500.0)) for _ in range(400))
    assert chosen["a"] < 0.1 * chosen["b"]  # twice what is promised: e^-3.3


def test_a_due_probe_comes_before_affinity() -> None:
    bench = warm_bench()
    bench.kill("a", now=1.0)
    reopens = bench.breaker("a").open_until

    assert put(bench, bench.request(facts(session="s"), now=reopens), now=reopens).is_probe


def test_the_warm_tokens_are_counted_wherever_the_draw_falls_on_the_warm_endpoint() -> None:
    bench = warm_bench(max_load_factor=0.05)
    bench.state("b").inflight = 1
    request = bench.request(facts(session="s"))
    bench.state("a").inflight = 50

    placement = put(bench, request, now=1.0)

    assert (where(placement), placement.reason, placement.warm_tokens) == ("b", "weight", 600)


# ---------------------------------------------------------------- reasons and alternatives


def test_the_reason_says_how_it_was_chosen() -> None:
    two, one = Bench(AB), Bench(route({"a": 1}))
    cheap = Bench(route({"a": 1, "b": 1}, selection=SelectionPolicy(algorithm="min_cost")))

    assert put(two).reason == "weight"
    assert put(one).reason == "only"
    assert put(cheap).reason == "predicted"


def test_expectations_are_filled_in_where_a_strategy_or_a_profile_needs_them() -> None:
    slow, fast = endpoint("a", profile=profile(9.0)), endpoint("b", profile=profile(1.0))
    bench = Bench(
        route({"a": 1, "b": 1}, selection=SelectionPolicy(algorithm="min_cost")),
        endpoints=[slow, fast],
    )
    placement = put(bench)

    assert where(placement) == "b"
    assert placement.candidate is not None
    assert placement.candidate.expected_s == pytest.approx(3.0)
    alone = put(Bench(route({"a": 1}), endpoints=[slow]))
    assert alone.candidate is not None
    assert alone.candidate.expected_s == pytest.approx(11.0)


def test_a_class_with_a_rate_trades_price_for_time() -> None:
    dear = Price(input_per_mtok=Decimal(1000), output_per_mtok=Decimal(1000))
    cheap = Price(input_per_mtok=Decimal(1), output_per_mtok=Decimal(1))
    bench = Bench(
        AB,
        endpoints=[
            endpoint("a", profile=profile(1.0), price=dear),
            endpoint("b", profile=profile(2.0), price=cheap),
        ],
    )
    request = bench.request(facts(prompt_tokens=1000))

    free = {where(put(bench, request)) for _ in range(100)}
    frugal = {where(put(bench, request._replace(usd_per_second=0.001))) for _ in range(100)}

    assert free == {"a", "b"}
    assert frugal == {"b"}


def test_an_alternative_is_any_endpoint_that_could_take_the_call_now() -> None:
    bench = with_fallbacks(Fallback(endpoint="f", on=frozenset({"rate_limited"})))
    request = bench.request()

    assert has_alternative(bench.world, request, 0.0)
    gone = request._replace(tried=frozenset("a"), last_failure="server_error")
    assert not has_alternative(bench.world, gone, 0.0)
    assert has_alternative(bench.world, gone._replace(last_failure="rate_limited"), 0.0)


def test_an_unauthorised_sole_endpoint_is_tried_all_the_same() -> None:
    bench = Bench(route({"a": 1}), rng=Even(0.0))
    bench.serve(0.0, Outcome(F.AUTH, status=401), takes=0.0)

    placement = put(bench, now=1.0)

    assert (where(placement), placement.reason) == ("a", "only")
    assert not placement.is_probe


def test_an_unauthorised_sole_endpoint_that_is_failing_too_is_probed() -> None:
    bench = Bench(route({"a": 1}), rng=Even(0.0))
    bench.prove("a")
    bench.kill("a")
    bench.serve(0.0, Outcome(F.AUTH, status=401), takes=0.0, pinned_to="a", attempts_max=1)

    placement = put(bench, now=1.0)

    assert (where(placement), placement.reason) == ("a", "only")
    assert placement.is_probe


def test_an_early_try_of_a_refused_key_that_gets_no_verdict_leaves_the_block_as_it_was() -> None:
    bench = Bench(AB, endpoints=[endpoint(name, credential="k") for name in "ab"], rng=Even(0.0))
    bench.serve(0.0, Outcome(F.AUTH, status=401), takes=0.0, attempts_max=1)

    bench.serve(1.0, BROKEN, takes=1.0, attempts_max=1)

    assert why(bench, "a", now=2.0) == Out("a", "credential", 60.0)


def test_an_exhausted_quota_does_not_keep_one_that_lost_the_model_from_being_tried() -> None:
    bench = Bench(AB, rng=Even(0.0))
    bench.serve(0.0, EXHAUSTED, takes=0.0, pinned_to="a", attempts_max=1)
    bench.serve(0.0, Outcome(F.NOT_FOUND, status=404), takes=0.0, pinned_to="b", attempts_max=1)

    assert where(put(bench, now=1.0)) == "b"


def test_nothing_is_expected_where_nobody_asks() -> None:
    bench = Bench(AB)
    bench.serve(0.0)
    placement = put(bench, now=1.0)

    assert placement.candidate is not None
    assert placement.candidate.expected_s is None


def test_an_exhausted_sole_endpoint_is_never_tried_early() -> None:
    bench = Bench(route({"a": 1}), rng=Even(0.0))
    bench.serve(0.0, EXHAUSTED, takes=0.0)

    assert put(bench, now=299.0).obstacle == "credential"
    assert where(put(bench, now=300.0)) == "a"


def test_a_sole_endpoint_that_lost_the_model_is_tried_all_the_same() -> None:
    bench = Bench(route({"a": 1}))
    bench.serve(0.0, Outcome(F.NOT_FOUND, status=404), takes=0.0)

    assert where(put(bench, now=1.0)) == "a"
