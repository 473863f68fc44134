"""The lower bound: exact for a call alone, below every assignment that there is."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from headway.core.model import CallFacts
from headway.lab.engine_model import EngineModel
from headway.lab.engine_profile import PROFILES, EngineProfile
from headway.lab.sim.bound import alone
from headway.lab.sim.plain import PlainClient, Rules
from headway.lab.sim.run import Run, run_once
from headway.lab.sim.scenario import Scenario
from headway.lab.sim.sites import Site
from headway.lab.virtual_client import Client

AT_S = (0.0, 0.1, 0.3, 0.35, 0.5, 0.9, 1.4, 1.5)


def eight(rng: random.Random, rate: float) -> Iterator[float]:
    return iter((*AT_S, math.inf))


TINY = Scenario(
    name="tiny",
    about="two unlike engines, a handful of calls on top of each other",
    fleet=(Site(id="a", engine="8b-a100"), Site(id="b", engine="8b-h100", zone="west")),
    processes=1,
    arrivals=eight,
    duration_s=30.0,
    warmup_s=0.0,
)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda p: p.name)
@pytest.mark.parametrize(
    ("prompt", "cached", "output"), [(1, 0, 1), (300, 256, 40), (5000, 128, 700)]
)
def test_a_call_alone_takes_what_the_engine_takes_for_it(
    profile: EngineProfile, prompt: int, cached: int, output: int
) -> None:
    engine = EngineModel(profile)
    blocks = range(cached // 64)
    engine.cache.insert(blocks)
    request = engine.submit(0.0, prompt, output, blocks)
    engine.advance(1e6)

    made = alone(profile, prompt, cached, output)
    assert made.first_s == pytest.approx(request.first_token_at)
    assert made.total_s == pytest.approx(request.finished_at)


def test_no_assignment_of_a_few_calls_is_better() -> None:
    """All 2^n assignments of n calls to two engines, each run as the simulator runs it."""

    class Assigned(Rules):
        turns: Sequence[str] = ()

        def pick(self, facts: CallFacts, now: float) -> str | None:
            return next(self.left)

    class Forced(Run):
        def __init__(self, assignment: Sequence[str]) -> None:
            self.left = iter(assignment)
            super().__init__(TINY, "random", 5)

        def _client(self, process: int) -> Client:
            rule = Assigned(["a", "b"], [1.0, 1.0], random.Random(0), process)
            rule.left = self.left
            return PlainClient(rule, random.Random(0))

    bound = run_once(TINY, "bound", 5)
    runs = [Forced(a).go(lines=False) for a in itertools.product("ab", repeat=bound.calls)]
    best, worst = min(r.mean_s for r in runs), max(r.mean_s for r in runs)
    print(
        f"{bound.calls} calls: bound {bound.mean_s:.3f} s, best {best:.3f} s, worst {worst:.3f} s"
    )

    assert {r.calls for r in runs} == {bound.calls} == {len(AT_S)}
    assert bound.mean_s < best < worst
    assert bound.mean_s > 0.7 * best
    assert bound.ttft_s <= min(r.ttft_s for r in runs)
    assert bound.p99_s <= min(r.p99_s for r in runs)
    for contender in ("gateway", "gateway_marginal", "headway"):
        assert run_once(TINY, contender, 5).mean_s >= best - 1e-9


@pytest.mark.parametrize(
    "what", [{"load": 0.3}, {"load": 0.9}, {"workload": "agents", "load": 0.2}], ids=str
)
def test_bounds_whoever_sees_everything(what: dict[str, object]) -> None:
    fleet = tuple(replace(s, engine="70b-h100x8") for s in TINY.fleet)
    scenario = replace(TINY, fleet=fleet, arrivals=None, processes=5, **what)
    bound, best = run_once(scenario, "bound", 1), run_once(scenario, "gateway_marginal", 1)
    assert bound.mean_s < best.mean_s
    assert bound.ttft_s < best.ttft_s
    assert bound.failed == 0.0


def test_is_near_what_can_be_reached_where_there_is_room() -> None:
    scenario = replace(TINY, arrivals=None, load=0.02, duration_s=200.0)
    bound, gateway = run_once(scenario, "bound", 1), run_once(scenario, "gateway", 1)
    assert gateway.mean_s == pytest.approx(bound.mean_s, rel=0.03)
