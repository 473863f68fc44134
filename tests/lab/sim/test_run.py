"""The simulator: hand-checkable fleets, the engine table of its calibration, determinism."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import pytest

from headway.core.snapshot import Price, TrafficClass
from headway.lab.faults import Fault, FaultKind
from headway.lab.sim.arrivals import SteppedTimes
from headway.lab.sim.compare import compare, interval, metric
from headway.lab.sim.figures import Figures
from headway.lab.sim.run import Run, contenders, run_once
from headway.lab.sim.scenario import Check, PriceChange, Scenario
from headway.lab.sim.sites import Site, changed, measure, rtt_s, sites
from headway.lab.sim.workload import builtin
from headway.lab.virtual_records import CallRecord

SMALL = Scenario(
    name="small",
    about="two engines",
    fleet=sites(2, engine="8b-a100"),
    processes=10,
    load=0.5,
    duration_s=60.0,
    warmup_s=10.0,
)


def run(contender: str = "headway", seed: int = 1, **what: object) -> Figures:
    return run_once(replace(SMALL, **what), contender, seed)


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    once, again, other = run(), run(), run(seed=2)
    for figures in (once, again, other):
        figures.simulated_per_cpu_s = 0.0  # the only figure that is measured
    assert str(once) == str(again)
    assert once.mean_s != other.mean_s


def test_every_contender_sees_the_same_arrivals_and_answers_them() -> None:
    seen = {c: run(c, duration_s=20.0) for c in contenders()}
    assert len({f.calls for f in seen.values()}) == 1
    assert all(f.failed == 0.0 and f.amplification == 1.0 for f in seen.values())


def test_load_is_that_of_the_engines() -> None:
    top = measure(SMALL.fleet[0].profile, builtin("chat")).saturation
    assert run().calls_per_s == pytest.approx(0.5 * 2 * top, rel=0.1)


def test_a_measured_profile_rises_with_load_and_has_its_knee_late() -> None:
    profile = measure(SMALL.fleet[0].profile, builtin("chat")).profile
    assert list(profile.ttft_s.y) == sorted(profile.ttft_s.y)
    assert profile.predict_tpot_s(0.7) > 1.5 * profile.predict_tpot_s(0.05)
    # the published table for this engine and the whole trace: 208 ms and 25.5 ms at 0.7
    assert profile.predict_ttft_s(0.7, profile.ttft_ref_uncached_tokens) == pytest.approx(
        0.208, rel=0.15
    )
    assert profile.predict_tpot_s(0.7) == pytest.approx(0.0255, rel=0.15)


@pytest.mark.parametrize("contender", ["headway", "round_robin", "gateway"])
def test_a_process_calls_the_sites_of_its_own_cell(contender: str) -> None:
    seen: set[tuple[int, str]] = set()

    class Watching(Run):
        def _ended(self, record: CallRecord) -> None:
            seen.update((record.process % 2, a.endpoint_id) for a in record.attempts)
            super()._ended(record)

    fleet = sites(4, engine="8b-a100")
    Watching(replace(SMALL, fleet=fleet, cells=2), contender, 1).go()
    assert seen == {(0, "a"), (0, "c"), (1, "b"), (1, "d")}


def test_distance_is_paid_by_those_who_are_far() -> None:
    far = tuple(replace(s, zone="eu") for s in SMALL.fleet)
    near_s, far_s = run("round_robin").ttft_s, run("round_robin", fleet=far).ttft_s
    assert far_s - near_s == pytest.approx(rtt_s("east", "eu") - rtt_s("east", "east"), abs=0.003)


def test_a_dead_endpoint_is_left_and_costs_nobody_an_answer() -> None:
    fault = Fault(endpoint="a", kind=FaultKind.DIE, start_s=20.0, end_s=50.0)
    ours = run(faults=(fault,), load=0.3, warmup_s=25.0)
    plain = run("plain", faults=(fault,), load=0.3, warmup_s=25.0)
    assert ours.failed < 0.002
    assert plain.failed > 0.1
    assert ours.lines is not None
    assert max(ours.lines.open_breakers["a"]) > 0.3


def test_streams_that_die_with_their_endpoint_fail_and_are_charged() -> None:
    fault = Fault(endpoint="a", kind=FaultKind.DIE, start_s=30.0, end_s=31.0)
    figures = run(faults=(fault,))
    assert 0.0 < figures.failed < 0.1
    assert 0.0 < figures.wasted < 0.1


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (FaultKind.THROTTLE, {"retry_after_s": 2.0, "share": 0.3}),
        (FaultKind.UNAVAILABLE, {"share": 0.3}),
        (FaultKind.HANG, {"share": 0.3}),
    ],
)
def test_refusals_of_one_endpoint_are_answered_by_the_other(kind: FaultKind, how) -> None:
    fault = Fault(endpoint="a", kind=kind, start_s=15.0, end_s=60.0, **how)
    figures = run(faults=(fault,), load=0.3, silence_s=5.0)
    assert figures.failed < 0.01
    assert 1.0 < figures.amplification < 1.2


def test_a_cut_stream_is_a_failure_for_anyone() -> None:
    fault = Fault(endpoint="a", kind=FaultKind.CUT, start_s=10.0, end_s=60.0, after_tokens=5)
    assert run("plain", faults=(fault,)).failed > 0.3


def test_a_slow_endpoint_gets_less_and_an_informed_gateway_gives_it_least() -> None:
    slow = changed(SMALL.fleet, 0, slowness=3.0)
    share = {c: run(c, fleet=slow).share["a"] for c in ("weighted_random", "headway", "gateway")}
    assert share["gateway"] < share["headway"] < share["weighted_random"]


def test_hidden_callers_take_their_part() -> None:
    busy = changed(SMALL.fleet, 0, hidden_load=0.6)
    alone, beside = run("weighted_random", load=0.3), run("weighted_random", fleet=busy, load=0.3)
    assert beside.mean_s > 1.1 * alone.mean_s


def test_an_api_with_a_limit_refuses_what_is_above_it() -> None:
    fleet = (Site(id="a", engine="hosted", rpm=60.0, publishes_limits=False),)
    refused = run("plain", fleet=fleet, load=2.0)
    within = run("plain", fleet=fleet, load=0.5)
    assert refused.amplification > 1.2
    assert within.failed == 0.0


def test_published_limits_are_paced_and_not_run_into() -> None:
    fleet = (Site(id="a", engine="hosted", rpm=600.0), Site(id="b", engine="hosted", rpm=600.0))
    figures = run(fleet=fleet, load=0.6, processes=2)
    assert figures.amplification < 1.05


def test_a_full_queue_says_503() -> None:
    fleet = tuple(replace(s, queue_max=4) for s in SMALL.fleet)
    figures = run("plain", fleet=fleet, load=3.0, duration_s=40.0)
    assert figures.amplification > 1.2


@pytest.mark.slow
def test_a_session_goes_on_after_each_answer_and_finds_its_prefix() -> None:
    fleet = sites(2, engine="70b-h100x8")
    what = {"fleet": fleet, "workload": "agents", "duration_s": 400.0, "warmup_s": 50.0}
    ours, blind = run(**what), run("random", **what)
    assert ours.hit_rate > 0.95
    assert blind.hit_rate < 0.8
    assert ours.calls > 5 * ours.tasks
    assert ours.cost_per_task < blind.cost_per_task


def test_a_dearer_endpoint_is_left_as_far_as_time_is_worth_it() -> None:
    what = {
        "classes": {"c": TrafficClass(usd_per_second=0.0002)},
        "traffic_class": "c",
        "prices": (PriceChange(5.0, "a", 10.0),),
        "policy_age_s": 2.0,
        "processes": 100,
    }
    assert run(**what).share["a"] < 0.2
    assert run("weighted_random", **what).share["a"] == pytest.approx(0.5, abs=0.05)


def test_what_a_call_costs() -> None:
    price = Price(
        input_per_mtok=Decimal(1), cached_input_per_mtok=Decimal(0), output_per_mtok=Decimal(0)
    )
    fleet = tuple(replace(s, price=price) for s in SMALL.fleet)
    turns = builtin("chat").sample(3000)
    mean = sum(t.prompt_tokens for t in turns) / len(turns)
    assert run(fleet=fleet).cost_per_task == pytest.approx(mean / 1e6, rel=0.12)


def test_a_restart_forgets_and_a_freeze_publishes_nothing() -> None:
    class Counting(Run):
        published = 0

        def _publish(self, window_s: float) -> None:
            self.published += 1
            super()._publish(window_s)

    frozen = Counting(replace(SMALL, freeze=(15.0, 45.0)), "headway", 1)
    frozen.go()
    assert frozen.published == 2  # at 10 and 50

    restarted = Run(replace(SMALL, restart_at=30.0), "headway", 1)
    before = list(restarted.engines)
    assert restarted.go().failed == 0.0
    assert not set(map(id, before)) & set(map(id, restarted.engines))


def test_recovery_is_counted_from_the_last_faults_end() -> None:
    dead = tuple(
        Fault(endpoint=e, kind=FaultKind.DIE, start_s=15.0, end_s=30.0) for e in ("a", "b")
    )
    figures = run(faults=dead, duration_s=150.0, load=0.3)
    assert 0.0 <= figures.recovered_s <= 60.0
    assert math.isnan(run().recovered_s)


def test_arrivals_of_a_scenario_replace_those_of_its_workload() -> None:
    doubled = run(arrivals=SteppedTimes(((0.0, 2.0),)), load=0.25)
    assert doubled.calls == pytest.approx(run(load=0.5).calls, rel=0.1)


def test_a_comparison_takes_ratios_seed_by_seed_and_judges_them() -> None:
    scenario = replace(
        SMALL,
        contenders=("headway", "weighted_random"),
        checks=(
            Check("mean_s", over="weighted_random", at_most=1.5),
            Check("failed", at_least=0.5),
            Check("mean_s", over="gateway", at_most=0.0),
        ),
    )
    (compared,) = compare([scenario], seeds=(1, 2), workers=1)
    (pooled,) = compare([scenario], seeds=(1, 2), workers=2)
    assert compared.of("headway", "mean_s") == pooled.of("headway", "mean_s")
    first, second = compared.verdicts()  # the third needs a gateway, which did not run
    assert first.holds
    assert not second.holds
    a, b = compared.runs["headway"], compared.runs["weighted_random"]
    expected = sum(x.mean_s / y.mean_s for x, y in zip(a, b, strict=True)) / 2
    assert first.value.mean == pytest.approx(expected)
    assert metric(a[0], "share:a") + metric(a[0], "share:b") == pytest.approx(1.0)


def test_an_interval_is_students() -> None:
    value = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert value.mean == 3.0
    assert value.half == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert math.isnan(interval([1.0]).half)
    assert interval([1.0, math.inf]).mean == math.inf
