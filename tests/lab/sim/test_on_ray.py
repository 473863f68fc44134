"""Runs on a Ray cluster: the same figures as here. `make simulate-ray` brings Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headway.lab.sim.compare import Comparison, compare
from headway.lab.sim.jobs import Job
from headway.lab.sim.on_ray import RayUnavailableError, results_of
from headway.lab.sim.scenario import Scenario
from headway.lab.sim.scenarios import SLOW, named

SMALL = Scenario(
    name="small",
    about="four engines, one slow",
    fleet=SLOW,
    processes=10,
    load=0.5,
    duration_s=60.0,
    warmup_s=10.0,
    contenders=("headway", "gateway", "bound"),
)


def figures(made: list[Comparison]) -> list[str]:
    """All of them but the one that is measured."""
    return [
        str(replace(f, simulated_per_cpu_s=0.0))
        for comparison in made
        for runs in comparison.runs.values()
        for f in runs
    ]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RayUnavailableError, match=r"pip install 'headway\[ray\]'"):
        list(results_of([Job(SMALL, "headway", 1, lines=False)]))


def test_a_node_with_another_version_is_refused_and_the_cluster_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[bool] = []
    stand_in = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_: None,
        remote=lambda **_: lambda made: SimpleNamespace(remote=lambda job: ("0.0.1", None)),
        get=lambda made: made,
        shutdown=lambda: left.append(True),
    )
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    with pytest.raises(RayUnavailableError, match=r"a node runs headway 0\.0\.1"):
        list(results_of([Job(SMALL, "headway", 1, lines=False)]))
    assert left == [True]


@pytest.fixture
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what Ray's own start warns of is not ours to judge
def test_a_cluster_gives_the_figures_of_this_process(cluster: None) -> None:
    scenarios = [SMALL, replace(named("one-down"), duration_s=60.0, warmup_s=10.0)]
    told: list[str] = []
    there = compare(scenarios, seeds=(1, 2), ray="", told=told.append)
    here = compare(scenarios, seeds=(1, 2), workers=1)

    assert figures(there) == figures(here)
    assert len(told) == 2 * (3 + 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_cluster_of_its_own_ends_with_the_runs() -> None:
    ray = pytest.importorskip("ray")
    (made,) = compare([SMALL], seeds=(1,), contenders=("bound",), ray="", workers=2)
    assert made.runs["bound"][0].calls > 0
    assert not ray.is_initialized()
