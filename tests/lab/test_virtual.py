"""The virtual-time driver: hand-checkable runs of the production core."""

from __future__ import annotations

import random
import time

import pytest

from headway.core.model import INFINITY, CallFacts, Event, FailureClass, Outcome
from headway.core.snapshot import (
    DeadlinePolicy,
    Endpoint,
    HedgePolicy,
    Route,
    Snapshot,
    WeightTable,
)
from headway.lab.engine_profile import PROFILES
from headway.lab.virtual import VirtualFleet, VirtualRequest
from headway.lab.virtual_endpoints import EngineEndpoint, FunctionEndpoint, poisson
from headway.lab.virtual_records import Arrival, CallRecord, Served

OK = Outcome(FailureClass.OK, input_tokens=1000, cached_tokens=0, output_tokens=100)
REFUSED = Outcome(FailureClass.CONNECT, reached_model=False)


def policy(*ids: str, **route: object) -> Snapshot:
    weights = WeightTable(by_zone={"*": ((INFINITY, tuple((i, 1 / len(ids)) for i in ids)),)})
    return Snapshot(
        endpoints={i: Endpoint(id=i, base_url=f"http://{i}/v1") for i in ids},
        routes=(Route(name="r", weights=weights, endpoint_ids=frozenset(ids), **route),),
    )


def steady(total_s: float = 1.0, first_s: float = 0.2) -> FunctionEndpoint:
    return FunctionEndpoint(lambda _: Served(OK, total_s, first_s))


def dead(_: VirtualRequest) -> Served:
    return Served(REFUSED, 0.001)


def one(at: float = 0.0, **facts: object) -> list[Arrival]:
    return [Arrival(at, 0, CallFacts("m", prompt_tokens=1000, **facts))]


def test_a_stream_takes_what_its_endpoint_says() -> None:
    fleet = VirtualFleet(policy("a"), 1, {"a": steady()}, one(5.0, stream=True))
    (call,) = fleet.run().calls
    assert (call.arrived_at, call.first_token_at, call.ended_at) == (5.0, 5.2, 6.0)
    assert call.ok
    assert call.endpoint_id == "a"


def test_a_dead_endpoint_beside_a_healthy_one_costs_nobody_an_answer() -> None:
    events: list[tuple[int, Event]] = []
    fleet = VirtualFleet(
        policy("a", "b"),
        20,
        {"a": FunctionEndpoint(dead), "b": steady()},
        poisson(20, until_s=60, processes=20, seed=4),
        seed=4,
        on_event=lambda process, event: events.append((process, event)),
    )
    result = fleet.run()
    assert result.failed == 0
    assert result.calls_ended > 1000
    assert 1.0 < result.amplification < 1.2
    assert {process for process, _ in events} == set(range(20))


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[CallRecord]:
        def flaky(request: VirtualRequest) -> Served:
            bad = request.rng.random() < 0.2
            return Served(Outcome(FailureClass.OVERLOADED) if bad else OK, request.rng.random())

        models = {"a": FunctionEndpoint(flaky), "b": FunctionEndpoint(flaky)}
        arrivals = poisson(30, until_s=20, processes=5, seed=9)
        return VirtualFleet(policy("a", "b"), 5, models, arrivals, seed=9).run().calls

    assert run() == run()


def test_the_deadline_ends_a_call_into_a_black_hole() -> None:
    hole = FunctionEndpoint(lambda _: Served(OK, INFINITY))
    (call,) = VirtualFleet(policy("a"), 1, {"a": hole}, one(deadline_at=3.0)).run().calls
    assert not call.ok
    assert call.ended_at == 3.0
    assert call.attempts[0].outcome.error_type == "deadline"


def test_the_first_token_limit_moves_a_call_elsewhere() -> None:
    hole = FunctionEndpoint(lambda _: Served(OK, INFINITY))
    snapshot = policy("a", "b", deadline=DeadlinePolicy(ttft_s=2.0))
    arrivals = [a for i in range(8) for a in one(float(i * 20), stream=True)]
    result = VirtualFleet(snapshot, 1, {"a": hole, "b": steady()}, arrivals).run()
    assert all(call.ok for call in result.calls)
    moved = next(call for call in result.calls if len(call.attempts) == 2)
    assert moved.duration_s == pytest.approx(3.0, abs=0.01)


def test_a_caller_who_leaves_is_no_failure() -> None:
    arrivals = [Arrival(0.0, 0, CallFacts("m", stream=True), cancel_after_s=0.5, tag="gone")]
    fleet = VirtualFleet(policy("a"), 1, {"a": steady()}, arrivals)
    (call,) = fleet.run().calls
    assert call.caller_left
    assert (call.tag, call.ended_at, fleet.result.failed) == ("gone", 0.5, 0)
    assert fleet.inflight == {"a": 0}
    assert fleet.engines[0].status(1.0)[0].in_flight == 0


def test_a_hedge_wins_and_the_loser_is_cancelled() -> None:
    slow_first = iter([9.0])

    def serve(_: VirtualRequest) -> Served:
        return Served(OK, 10.0, next(slow_first, 0.1))

    cancelled: list[str] = []

    class Watched(FunctionEndpoint):
        def cancel(self, request: VirtualRequest) -> None:
            cancelled.append(request.attempt.endpoint_id)

    snapshot = policy("a", "b", hedge=HedgePolicy(enabled=True, delay_s=1.0, max_extra_fraction=1))
    models = {"a": Watched(serve), "b": Watched(serve)}
    (call,) = VirtualFleet(snapshot, 1, models, one(stream=True)).run().calls
    assert call.ok
    assert [a.kind for a in call.attempts if a.lost] == ["initial"]
    assert call.first_token_at == pytest.approx(1.1)
    assert len(cancelled) == 1


def test_policies_swap_while_running_and_sessions_can_be_closed_loops() -> None:
    def again(call: CallRecord) -> None:
        if fleet.now < 50:
            fleet.submit(Arrival(fleet.now + 1.0, 0, CallFacts("m", stream=True)))

    models = {"a": steady(), "b": steady()}
    fleet = VirtualFleet(policy("a", "b"), 1, models, one(stream=True), on_call=again)
    fleet.publish(policy("b"), at_s=20.0)
    result = fleet.run()
    late = {c.endpoint_id for c in result.calls if c.arrived_at > 20}
    early = {c.endpoint_id for c in result.calls if c.arrived_at < 20}
    assert (early, late) == ({"a", "b"}, {"b"})


def test_an_engine_behind_the_endpoint_makes_load_and_warm_prefixes_matter() -> None:
    def facts(rng: random.Random) -> CallFacts:
        prefix = tuple(range(1000 * (session := rng.randrange(20)), 1000 * session + 30))
        return CallFacts("m", stream=True, prompt_tokens=2000, max_output_tokens=100, prefix=prefix)

    def mean_s(rate: float) -> float:
        endpoint = EngineEndpoint(PROFILES["8b-a100"])
        arrivals = poisson(rate, until_s=60, processes=4, seed=1, facts=facts)
        calls = VirtualFleet(policy("a"), 4, {"a": endpoint}, arrivals).run().calls
        assert all(call.ok for call in calls)
        assert endpoint.engine.running == endpoint.engine.waiting == 0
        assert max(c.outcome.cached_tokens or 0 for c in calls) == 1920
        return sum(c.duration_s for c in calls) / len(calls)

    assert mean_s(30.0) > 1.5 * mean_s(0.5)


def test_is_fast_enough_for_fleets() -> None:
    arrivals = poisson(400, until_s=25, processes=200, seed=2)
    models = {"a": steady(), "b": steady(), "c": steady()}
    fleet = VirtualFleet(policy("a", "b", "c"), 200, models, arrivals, keep_calls=False)
    start = time.process_time()
    ended = fleet.run().calls_ended
    assert ended / (time.process_time() - start) > 4_000  # about 15,000 on an idle core


def test_an_endpoint_without_a_model_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\['b'\]"):
        VirtualFleet(policy("a", "b"), 1, {"a": steady()})
