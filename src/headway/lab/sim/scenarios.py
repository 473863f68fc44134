# long: one table, to be read from top to bottom
"""The scenarios, as data. Each says what has to hold; `headway simulate NAME` runs it.

A newcomer adds a scenario by adding a function to `SCENARIOS` that returns a `Scenario`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from headway.core.snapshot import TrafficClass
from headway.lab.faults import Fault, FaultKind
from headway.lab.sim.arrivals import GammaTimes, SteppedTimes
from headway.lab.sim.scenario import Check, PriceChange, Scenario
from headway.lab.sim.sites import Site, changed, sites
from headway.lab.sim.sizes import Sizes

LITELLM = ("litellm_shuffle", "litellm_least_busy", "litellm_latency", "litellm_usage")
CLIENTS = (
    "headway",
    "random",
    "round_robin",
    "weighted_random",
    "least_inflight",
    "two_choices",
    "lmetric",
    *LITELLM,
)
"""What a client can run."""
ALL = (*CLIENTS, "core:min_cost", "prequal", "gateway", "gateway_marginal", "bound")

EQUAL = sites(4, engine="8b-a100")
MIXED = (
    *(Site(id=n, engine="8b-a100", zone=z) for n, z in (("a", "east"), ("b", "west"))),
    *(Site(id=n, engine="8b-h100", zone=z) for n, z in (("c", "east"), ("d", "eu"))),
    Site(id="e", engine="70b-h100x4", zone="east"),
)
SLOW = changed(EQUAL, 0, slowness=3.0)
WRONG = changed(EQUAL, 0, weight=2.0)
FLEETS = {"equal": EQUAL, "mixed": MIXED, "slow": SLOW, "wrong": WRONG}
GATEWAY_BOUND = {50: 1.05, 70: 1.05, 85: 1.08, 95: 1.12}


def _cell(fleet: str, load: int, age_s: float = 10.0) -> Scenario:
    """One cell of fleet x load x policy age, chat."""
    checks = [
        Check("mean_s", over="gateway", at_most=GATEWAY_BOUND[load]),
        Check("mean_s", over="gateway_marginal", at_most=1.15),
    ]
    if load == 85 and fleet == "equal":
        checks.append(Check("ttft_s", over="gateway", at_most=1.9))
    if load == 70 and fleet in ("slow", "wrong"):
        checks += [Check("mean_s", of=c, over="headway", at_least=2.0) for c in LITELLM]
    texts = {
        "equal": "four equal engines",
        "mixed": "engines of three kinds in three zones",
        "slow": "one of four engines silently three times slower",
        "wrong": "one of four engines published with twice its weight",
    }
    # A fleet that has lost part of its capacity carries that much less: `load` is of the true one.
    return Scenario(
        name=f"{fleet}-{load}" + (f"-age{age_s:g}" if age_s != 10.0 else ""),
        about=f"{texts[fleet]}, {load} % load, policies {age_s:g} s old",
        fleet=FLEETS[fleet],
        zones=("east", "west", "eu") if fleet == "mixed" else ("east",),
        load=load / 100,
        policy_age_s=age_s,
        duration_s=700.0,
        warmup_s=200.0,
        contenders=ALL if age_s == 10.0 else ("headway", "core:min_cost", "gateway"),
        checks=tuple(checks if age_s == 10.0 else checks[:1]),
        tags=frozenset({"grid"}),
    )


def _sizes(load: int) -> Scenario:
    return replace(
        _cell("mixed", load),
        name=f"mixed-{load}-sizes",
        about=f"engines of three kinds, {load} % load, prompts over 2,000 tokens on H100s alone",
        sizes=Sizes(2000, ("c", "d", "e")),
        contenders=("headway", "weighted_random", "gateway"),
        checks=(
            Check("ttft_p99_s", over="gateway", at_most=1.8),
            Check("ttft_s", over="gateway", at_most=1.9),
            Check("mean_s", over="gateway", at_most=GATEWAY_BOUND[load]),
        ),
        tags=frozenset(),
    )


# --------------------------------------------------------------------------- faults


def _faulty(name: str, about: str, *faults: Fault, **rest: object) -> Scenario:
    base = Scenario(
        name=name,
        about=about,
        fleet=EQUAL,
        load=0.6,
        duration_s=900.0,
        warmup_s=100.0,
        silence_s=20.0,
        faults=faults,
        contenders=("headway", "plain", "litellm_shuffle", "gateway"),
        tags=frozenset({"fault"}),
    )
    return replace(base, **rest)  # type: ignore[arg-type]  # checked by the dataclass


def _all(kind: FaultKind, start_s: float, end_s: float, **how: float) -> tuple[Fault, ...]:
    return tuple(_one(s.id, kind, start_s, end_s, **how) for s in EQUAL)


def _one(endpoint: str, kind: FaultKind, start_s: float, end_s: float, **how: float) -> Fault:
    return Fault(endpoint=endpoint, kind=kind, start_s=start_s, end_s=end_s, **how)  # type: ignore[arg-type]


DIE, SLOWER, THROTTLE = FaultKind.DIE, FaultKind.SLOW, FaultKind.THROTTLE
HANG, CUT, REFUSE = FaultKind.HANG, FaultKind.CUT, FaultKind.UNAVAILABLE


def _outage() -> Scenario:
    return _faulty(
        "outage",
        "F1: every endpoint dead for five minutes, a call in six seconds from each process",
        *_all(DIE, 200.0, 500.0),
        warmup_s=200.0,
        duration_s=800.0,
        contenders=("headway", "plain", "litellm_shuffle"),
        checks=(
            Check("amplification", at_most=1.15),
            Check("recovered_s", at_most=120.0),
            Check("amplification", of="plain", at_least=1.5, why="the control multiplies it"),
        ),
    )


def _one_down() -> Scenario:
    return _faulty(
        "one-down",
        "F2: one of four dead for five minutes",
        _one("a", DIE, 300.0, 600.0),
        warmup_s=250.0,
        checks=(
            Check("failed", over="gateway", at_most=1.1, why="streams under way there are lost"),
            Check("amplification", at_most=1.10),
            Check("mean_s", over="gateway", at_most=1.10),
            Check("failed", of="plain", at_least=0.02, why="the control shows it to its users"),
        ),
    )


def _brownout() -> Scenario:
    return _faulty(
        "brownout",
        "F3: everything three times slower for two minutes, deadline 120 s",
        *_all(SLOWER, 300.0, 420.0, factor=3.0),
        load=0.4,
        timeout_s=120.0,
        warmup_s=250.0,
        contenders=("headway", "plain", "litellm_latency", "gateway"),
        checks=(Check("failed", at_most=0.1), Check("amplification", at_most=1.2)),
    )


def _one_slow() -> Scenario:
    return _faulty(
        "one-slow",
        "F4: one of four ten times slower from 200 s on, a call in five seconds per process",
        _one("a", SLOWER, 200.0, 1e9, factor=10.0),
        load=0.45,
        warmup_s=260.0,
        silence_s=1e9,
        contenders=("headway", "weighted_random", "litellm_latency", "gateway"),
        checks=(
            Check("share:a", at_most=0.05),
            Check("mean_s", over="gateway", at_most=1.15),
        ),
    )


def _slow_then_well() -> Scenario:
    return _faulty(
        "slow-then-well",
        "one of four three times slower for five minutes; counted from when it is well again",
        _one("a", SLOWER, 100.0, 400.0, factor=3.0),
        load=0.7,
        warmup_s=400.0,
        duration_s=800.0,
        silence_s=1e9,
        contenders=("headway", "weighted_random", "litellm_latency", "gateway"),
        checks=(
            Check("mean_s", over="gateway", at_most=1.15),
            Check("late_share:a", at_least=0.20, why="it gets its share back"),
        ),
    )


def _flapping() -> Scenario:
    faults = [_one("a", DIE, t, t + 20.0) for t in range(200, 700, 40)]
    return _faulty(
        "flapping",
        "F5: one of four dead for 20 s of every 40",
        *faults,
        warmup_s=200.0,
        checks=(
            Check("failed", at_most=0.005),
            Check("amplification", at_most=1.10),
            Check("late_share:a", at_most=0.20),
        ),
    )


def _throttled(hint_s: float | None) -> Scenario:
    how = {"share": 0.3, "retry_after_s": hint_s or 0.0}
    return _faulty(
        "throttled-hint" if hint_s else "throttled",
        "F6: an endpoint refuses 30 % with 429" + (f", Retry-After {hint_s:g}" if hint_s else ""),
        _one("a", THROTTLE, 200.0, 700.0, **how),
        warmup_s=200.0,
        checks=(Check("failed", at_most=0.005), Check("amplification", at_most=1.15)),
    )


def _black_hole() -> Scenario:
    return _faulty(
        "black-hole",
        "F8: one of four answers 503 at once, which looks fast",
        _one("a", REFUSE, 200.0, 1e9),
        warmup_s=260.0,
        contenders=("headway", "litellm_least_busy", "litellm_latency", "least_inflight"),
        checks=(Check("share:a", at_most=0.02), Check("failed", at_most=0.001)),
    )


def _cut() -> Scenario:
    return _faulty(
        "cut",
        "F9: one of four resets every stream after 20 tokens",
        _one("a", CUT, 200.0, 500.0),
        warmup_s=200.0,
        checks=(
            Check("failed", at_most=0.05, why="no stream is spliced: those seen first fail"),
            Check("failed", of="plain", at_least=0.08),
        ),
    )


def _hang() -> Scenario:
    return _faulty(
        "hang",
        "F10: one of four accepts and says nothing; first tokens are waited for 20 s",
        _one("a", HANG, 200.0, 500.0),
        warmup_s=200.0,
        checks=(Check("failed", at_most=0.005), Check("amplification", at_most=1.10)),
    )


def _recovery_herd() -> Scenario:
    return _faulty(
        "recovery-herd",
        "F11: 1000 processes, an endpoint comes back after five minutes",
        _one("a", DIE, 100.0, 400.0),
        processes=1000,
        warmup_s=390.0,
        duration_s=700.0,
        contenders=("headway", "gateway"),
        checks=(
            Check("mean_s", over="gateway", at_most=1.10),
            Check("late_share:a", at_least=0.20, why="it gets its full share back"),
        ),
    )


def _metastable() -> Scenario:
    return _faulty(
        "metastable",
        "F12: every step four times as long for 60 s, at 85 % load; first tokens waited for 20 s",
        *_all(SLOWER, 300.0, 360.0, factor=4.0),
        load=0.85,
        silence_s=20.0,
        duration_s=1200.0,
        warmup_s=300.0,
        contenders=("headway", "plain", "litellm_shuffle"),
        checks=(Check("recovered_s", at_most=360.0), Check("amplification", at_most=1.25)),
    )


def _all_refuse() -> Scenario:
    return _faulty(
        "all-refuse",
        "F18: every endpoint answers half of the calls with 503 for two minutes",
        *_all(REFUSE, 300.0, 420.0, share=0.5),
        warmup_s=300.0,
        checks=(Check("amplification", at_most=1.3), Check("recovered_s", at_most=60.0)),
    )


def _long_hint() -> Scenario:
    return _faulty(
        "long-hint",
        "F19: one of four answers 429 with Retry-After of an hour, for a minute",
        _one("a", THROTTLE, 300.0, 360.0, retry_after_s=3600.0),
        warmup_s=300.0,
        checks=(Check("failed", at_most=0.002), Check("amplification", at_most=1.05)),
    )


def _zone_loss() -> Scenario:
    fleet = tuple(
        Site(id=n, engine="8b-a100", zone=z)
        for n, z in (("a", "east"), ("b", "east"), ("c", "west"), ("d", "west"), ("e", "eu"))
    )
    return _faulty(
        "zone-loss",
        "a zone with two of five endpoints gone for five minutes",
        _one("a", DIE, 300.0, 600.0),
        _one("b", DIE, 300.0, 600.0),
        fleet=fleet,
        zones=("east", "west", "eu"),
        load=0.5,
        warmup_s=250.0,
        checks=(
            Check("failed", over="gateway", at_most=1.1, why="streams under way there are lost"),
            Check("amplification", at_most=1.10),
            Check("mean_s", over="gateway", at_most=1.10),
        ),
    )


def _restart_all() -> Scenario:
    return _faulty(
        "restart-all",
        "F14: a deploy replaces every process at once while one endpoint is silently slow",
        fleet=SLOW,
        restart_at=400.0,
        load=0.7,
        warmup_s=390.0,
        duration_s=800.0,
        silence_s=1e9,
        contenders=("headway", "weighted_random", "litellm_latency", "gateway"),
        checks=(Check("mean_s", over="gateway", at_most=1.25), Check("failed", at_most=0.001)),
    )


def _freeze() -> Scenario:
    return _faulty(
        "policy-freeze",
        "F13: no policy is published for five minutes, in which an endpoint becomes 3x slower",
        _one("a", SLOWER, 250.0, 600.0, factor=3.0),
        freeze=(200.0, 500.0),
        load=0.5,
        warmup_s=200.0,
        silence_s=1e9,
        contenders=("headway", "core:min_cost", "weighted_random", "gateway"),
        checks=(Check("mean_s", over="gateway", at_most=1.15),),
    )


# --------------------------------------------------------------------------- the rest


def _price_spike() -> Scenario:
    return Scenario(
        name="price-spike",
        about="one endpoint costs ten times as much from 300 s on; a second is worth 0.0002 USD",
        fleet=EQUAL,
        load=0.4,
        duration_s=900.0,
        warmup_s=350.0,
        classes={"chat": TrafficClass(usd_per_second=0.0002)},
        traffic_class="chat",
        prices=(PriceChange(300.0, "a", 10.0),),
        contenders=("headway", "weighted_random", "litellm_cost"),
        checks=(
            Check("share:a", at_most=0.10),
            Check("cost_per_task", over="weighted_random", at_most=0.6),
            Check("mean_s", over="weighted_random", at_most=1.15),
        ),
    )


def _overload(times: float) -> Scenario:
    fleet = tuple(replace(s, queue_max=32) for s in EQUAL)
    why = "nothing yields in the control"
    control = Check("by_class:interactive", of="plain", at_most=0.95, why=why)
    return Scenario(
        name=f"overload-{times:g}x",
        about=f"tasks of twenty calls, a fifth interactive, at {times:g} times the capacity",
        fleet=fleet,
        workload="priorities",
        load=times,
        duration_s=900.0,
        warmup_s=300.0,
        timeout_s=60.0,
        contenders=("headway", "plain", "random_shed", "litellm_shuffle"),
        checks=(
            Check("by_class:interactive", at_least=0.99),
            Check("tasks_per_s", over="random_shed", at_least=3.0 if times > 2 else 1.0),
            *((control,) if times > 2 else ()),
        ),
        classes={
            "interactive": TrafficClass(priority=10, sheddable=False, tpot_slo_s=0.08),
            "background": TrafficClass(priority=-1),
        },
    )


def _agents(load: int) -> Scenario:
    return Scenario(
        name=f"agents-{load}",
        about=f"coding-agent sessions with long shared prefixes, {load} % load",
        fleet=sites(4, engine="70b-h100x8"),
        workload="agents",
        load=load / 100,
        processes=100,
        duration_s=1500.0,
        warmup_s=500.0,
        contenders=(
            "headway",
            "weighted_random",
            "session_hash",
            "lmetric",
            "litellm_shuffle",
            "litellm_latency",
            "gateway",
            "gateway_marginal",
        ),
        checks=(
            Check("hit_rate", at_least=0.9),
            Check("cost_per_task", over="weighted_random", at_most=0.75),
            Check("tasks_per_s", over="weighted_random", at_least=1.0),
            Check("mean_s", over="gateway_marginal", at_most=1.10),
        ),
    )


def _bursty() -> Scenario:
    return Scenario(
        name="bursty-70",
        about="gamma bursts (CV 3) at 70 % load",
        fleet=EQUAL,
        arrivals=GammaTimes(3.0),
        duration_s=700.0,
        warmup_s=100.0,
        contenders=ALL,
        checks=(Check("mean_s", over="gateway", at_most=1.08),),
    )


def _code() -> Scenario:
    return Scenario(
        name="code-50",
        about="Azure code completion at its recorded times, very uneven",
        fleet=EQUAL,
        workload="code",
        load=0.5,
        duration_s=900.0,
        warmup_s=100.0,
        contenders=ALL,
        checks=(Check("mean_s", over="gateway", at_most=1.20),),
    )


def _surge() -> Scenario:
    return Scenario(
        name="surge",
        about="load doubles from 40 to 80 % for five minutes, policies 60 s old",
        fleet=EQUAL,
        arrivals=SteppedTimes(((300.0, 2.0), (600.0, 1.0))),
        load=0.4,
        policy_age_s=60.0,
        duration_s=900.0,
        warmup_s=200.0,
        contenders=("headway", "core:min_cost", "weighted_random", "gateway"),
        checks=(Check("mean_s", over="gateway", at_most=1.08),),
    )


def _hidden_load() -> Scenario:
    return Scenario(
        name="hidden-load",
        about="callers outside the fleet take half of one endpoint",
        fleet=changed(EQUAL, 0, hidden_load=0.5),
        load=0.7,
        duration_s=900.0,
        warmup_s=200.0,
        contenders=ALL,
        checks=(Check("mean_s", over="gateway", at_most=1.15),),
    )


def _hosted() -> Scenario:
    fleet = (
        *sites(2, engine="8b-a100"),
        Site(id="api", engine="hosted", rpm=600.0, publishes_limits=False),
    )
    return Scenario(
        name="hosted-limit",
        about="two engines and an API that grants fewer requests a minute than its weight says",
        fleet=changed(fleet, 2, weight=1.6),
        load=0.8,
        duration_s=900.0,
        warmup_s=200.0,
        contenders=("headway", "weighted_random", *LITELLM, "gateway"),
        checks=(Check("failed", at_most=0.005), Check("amplification", at_most=1.2)),
    )


def _herding() -> Scenario:
    return Scenario(
        name="herding",
        about="100 processes, engines of two sizes, figures a minute old: nobody may herd",
        fleet=(*sites(3, engine="8b-h100"), Site(id="d", engine="8b-a100")),
        load=0.75,
        processes=100,
        policy_age_s=60.0,
        duration_s=500.0,
        warmup_s=150.0,
        contenders=("headway", "weighted_random", "core:min_cost"),
        checks=(
            Check("mean_s", over="weighted_random", at_most=1.05),
            Check("p99_s", over="weighted_random", at_most=1.10),
            Check(
                "mean_s", of="core:min_cost", over="weighted_random", at_least=1.3, why="control"
            ),
        ),
    )


def _scale() -> Scenario:
    return Scenario(
        name="scale",
        about="10,000 processes before 1,000 endpoints in 50 cells",
        fleet=sites(1000, engine="8b-a100"),
        processes=10_000,
        cells=50,
        load=0.6,
        duration_s=20.0,
        warmup_s=5.0,
        policy_age_s=60.0,
        contenders=("headway",),
        checks=(Check("failed", at_most=0.0),),
        tags=frozenset({"scale"}),
    )


def _scale_whole() -> Scenario:
    return replace(
        _scale(),
        name="scale-whole",
        about="1,000 processes that each know all of 1,000 endpoints",
        processes=1000,
        cells=1,
    )


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    **{
        f"{fleet}-{load}": partial(_cell, fleet, load)
        for fleet in FLEETS
        for load in (50, 70, 85, 95)
    },
    **{
        f"{fleet}-70-age{age:g}": partial(_cell, fleet, 70, age)
        for fleet in FLEETS
        for age in (0.0, 60.0, 300.0)
    },
    "mixed-70-sizes": partial(_sizes, 70),
    "mixed-85-sizes": partial(_sizes, 85),
    "bursty-70": _bursty,
    "code-50": _code,
    "surge": _surge,
    "hidden-load": _hidden_load,
    "hosted-limit": _hosted,
    "herding": _herding,
    "agents-50": partial(_agents, 50),
    "agents-70": partial(_agents, 70),
    "outage": _outage,
    "one-down": _one_down,
    "brownout": _brownout,
    "one-slow": _one_slow,
    "slow-then-well": _slow_then_well,
    "flapping": _flapping,
    "throttled": partial(_throttled, None),
    "throttled-hint": partial(_throttled, 5.0),
    "black-hole": _black_hole,
    "cut": _cut,
    "hang": _hang,
    "recovery-herd": _recovery_herd,
    "metastable": _metastable,
    "all-refuse": _all_refuse,
    "long-hint": _long_hint,
    "zone-loss": _zone_loss,
    "restart-all": _restart_all,
    "policy-freeze": _freeze,
    "price-spike": _price_spike,
    "overload-1.2x": partial(_overload, 1.2),
    "overload-2x": partial(_overload, 2.0),
    "overload-3x": partial(_overload, 3.0),
    "scale": _scale,
    "scale-whole": _scale_whole,
}


def named(name: str) -> Scenario:
    """A scenario by name."""
    make = SCENARIOS.get(name)
    if make is None:
        msg = f"no scenario {name!r}; `headway simulate --list` shows them"
        raise ValueError(msg)
    return make()


def altered(scenario: Scenario, **what: object) -> Scenario:
    """The scenario with the given values that are not None. Warm-up shrinks with the duration."""
    given = {name: value for name, value in what.items() if value is not None}
    if not given:
        return scenario
    duration = given.get("duration_s")
    if isinstance(duration, float):
        given["warmup_s"] = min(scenario.warmup_s, duration / 4)
    return replace(scenario, **given)  # type: ignore[arg-type]  # checked by the dataclass
