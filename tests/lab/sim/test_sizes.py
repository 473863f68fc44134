"""Weights per prompt size: they keep every engine equally busy, and documents carry them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.lab.sim.run import Run, run_once, weights_of
from headway.lab.sim.scenario import Scenario
from headway.lab.sim.sites import Site
from headway.lab.sim.sizes import Sizes, long_part, rates, weights_by_size
from headway.lab.sim.workload import builtin

FLEET = (Site(id="a", engine="8b-a100"), Site(id="b", engine="8b-h100"))
CHAT = builtin("chat")
LONG_TO_B = Sizes(2000, ("b",))
MIXED = Scenario(
    name="sizes",
    about="two unlike engines",
    fleet=FLEET,
    sizes=LONG_TO_B,
    processes=5,
    load=0.5,
    duration_s=40.0,
    warmup_s=10.0,
)


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_every_engine_is_equally_busy(part: float) -> None:
    sizes = LONG_TO_B._replace(part=part)
    (bound, short), (_, long) = weights_by_size(FLEET, CHAT, sizes, weights_of(FLEET, CHAT))
    assert bound == 2000
    assert (long["a"] == 0.0) == (part == 1.0)
    assert sum(long.values()) == pytest.approx(1.0)
    p = long_part(CHAT, 2000)
    assert sum(short.values()) == pytest.approx(1.0 - p)
    busy = [
        short[s.id] / rates(s.profile, CHAT, 2000).short
        + p * long[s.id] / rates(s.profile, CHAT, 2000).long
        for s in FLEET
    ]
    assert busy[0] == pytest.approx(busy[1])


def test_prefillers_that_cannot_carry_it_are_named() -> None:
    with pytest.raises(ValueError, match="a cannot carry all prompts over 100"):
        weights_by_size(FLEET, CHAT, Sizes(100, ("a",)), weights_of(FLEET, CHAT))


def test_a_long_prompt_goes_to_the_prefiller_and_a_short_one_to_either() -> None:
    (route,) = next(iter(Run(MIXED, "headway", 1)._snapshots.values())).routes
    assert dict(route.weights.pick(None, 2001)) == {"b": 1.0}
    short = dict(route.weights.pick(None, 2000))
    assert set(short) == {"a", "b"}
    assert sum(short.values()) == pytest.approx(1.0)
    assert route.endpoint_ids == {"a", "b"}


def test_it_shortens_the_tail_of_first_tokens() -> None:
    bare = run_once(replace(MIXED, sizes=None), "headway", 1)
    assert run_once(MIXED, "headway", 1).ttft_p99_s < 0.8 * bare.ttft_p99_s
