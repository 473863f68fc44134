"""What stands there, and what can be known of it: sites, capacity, fitted profiles."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from headway.core.snapshot import Curve, Price, Profile
from headway.lab.engine_model import EngineModel, EngineRequest
from headway.lab.engine_profile import PROFILES, EngineProfile, scaled
from headway.lab.sim.workload import Turn, Workload

AGENT_NODE = EngineProfile(
    name="70b-h100x8",
    # The four-GPU figures on eight, at 85 % of twice the speed; fp8 KV halves what a token holds.
    floor_s=14.3e-3 / 1.7,
    slope_s=55e-6 / 1.7,
    context_coef_s=25e-9 / 1.7 / 2,
    kv_tokens=10_000_000,
)
"""A node of eight H100 for long agent sessions. Its GPUs hold 2.6 M tokens; the rest lies in host
memory, as KV offloading keeps it, and comes back at no cost here."""

ENGINES: dict[str, EngineProfile] = {**PROFILES, AGENT_NODE.name: AGENT_NODE}

ZONE_MS: Mapping[tuple[str, str], float] = {
    ("east", "east"): 2.0,
    ("west", "west"): 2.0,
    ("eu", "eu"): 2.0,
    ("east", "west"): 62.0,
    ("east", "eu"): 84.0,
    ("west", "eu"): 138.0,
}
"""Round trips between zones, milliseconds."""


def rtt_s(a: str, b: str) -> float:
    """Round trip between two zones."""
    ms = ZONE_MS.get((a, b), ZONE_MS.get((b, a)))
    if ms is None:
        msg = f"no round trip between {a!r} and {b!r}"
        raise ValueError(msg)
    return ms / 1e3


PRICE = Price(
    input_per_mtok=Decimal("0.60"),
    cached_input_per_mtok=Decimal("0.06"),
    output_per_mtok=Decimal("2.40"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One endpoint: how it is, and what the policy believes of it."""

    id: str
    engine: str = "8b-h100"
    """A name in `ENGINES`; or "hosted": somebody's API, without a visible engine."""
    zone: str = "east"
    slowness: float = 1.0
    """How it is: every step this many times as long."""
    believed_slowness: float = 1.0
    """What the policy's profile says."""
    weight: float | None = None
    """What the operator believes it carries, over what an engine like it does; None: the same."""
    hidden_load: float = 0.0
    """Part of its capacity that callers outside the fleet take."""
    price: Price = PRICE
    rpm: float | None = None
    """Requests a minute that it grants the fleet; above that 429 with a hint."""
    tpm: float | None = None
    queue_max: int | None = None
    """Requests it lets wait; beyond that 503. None: it takes whatever comes, as engines do."""
    publishes_limits: bool = True
    """Whether the policy states rpm and tpm (each process gets its share)."""

    @property
    def profile(self) -> EngineProfile:
        """The engine's true costs."""
        base = ENGINES[self.engine]
        return base if self.slowness == 1.0 else scaled(base, self.slowness)

    @property
    def believed(self) -> EngineProfile:
        """The engine's costs by the policy."""
        base = ENGINES[self.engine]
        return base if self.believed_slowness == 1.0 else scaled(base, self.believed_slowness)


HOSTED_TTFT_S, HOSTED_TPOT_S = 0.35, 0.012
"""A hosted API at rest, typical of those whose status pages publish it."""
HOSTED_CALLS_PER_S = 60.0
"""What such an endpoint counts as in weights when it has no rpm."""


class Measured(NamedTuple):
    """What open-loop runs of one engine under one workload say."""

    saturation: float
    """Calls per second it completes when it is never idle."""
    profile: Profile


TURNS = 3000
"""Calls per measurement."""
UTILIZATIONS = (0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0)


def saturation(engine: EngineProfile, turns: Sequence[Turn]) -> float:
    """Calls per second with a full queue, warm prefixes counted as such."""
    model = EngineModel(engine)
    jobs = [_submit(model, 0.0, turn) for turn in turns]
    now = 0.0
    while any(job.finished_at is None for job in jobs):
        now = max(now, model.next_event_at()) + 1e-9
        model.advance(now)
    ends = sorted(job.finished_at or 0.0 for job in jobs)
    # Between the first tenth and the ninth: neither filling up nor running dry.
    low, high = len(ends) // 10, len(ends) * 8 // 10
    return (high - low) / (ends[high] - ends[low])


def _submit(model: EngineModel, at: float, turn: Turn) -> EngineRequest:
    # Sessions are measured as if each call's known prefix were cached.
    uncached = max(1, turn.prompt_tokens - 64 * turn.known_blocks)
    return model.submit(at, uncached, turn.output_tokens)


@lru_cache(maxsize=64)
def measure(engine: EngineProfile, workload: Workload) -> Measured:
    """Saturation, and TTFT and TPOT over utilization, as a profile fitter would find them."""
    turns = workload.sample(TURNS, seed=1)[:TURNS]
    top = saturation(engine, turns)
    ttft: list[float] = []
    p99: list[float] = []
    tpot: list[float] = []
    for u in UTILIZATIONS:
        firsts, steps = _open_loop(engine, turns, u * top)
        firsts.sort()
        # Noise must not make a curve fall: profiles are non-decreasing by definition.
        ttft.append(max(sum(firsts) / len(firsts), *ttft[-1:], 0.0))
        p99.append(max(firsts[int(0.99 * len(firsts))], *p99[-1:], 0.0))
        tpot.append(max(sum(steps) / len(steps), *tpot[-1:], 0.0))
    uncached = [max(1, t.prompt_tokens - 64 * t.known_blocks) for t in turns]
    return Measured(
        top,
        Profile(
            ttft_s=Curve(x=UTILIZATIONS, y=tuple(ttft)),
            ttft_p99_s=Curve(x=UTILIZATIONS, y=tuple(p99)),
            tpot_s=Curve(x=UTILIZATIONS, y=tuple(tpot)),
            prefill_s_per_token=engine.slope_s,
            ttft_ref_uncached_tokens=int(sum(uncached) / len(uncached)),
        ),
    )


def _open_loop(
    engine: EngineProfile, turns: Sequence[Turn], rate: float
) -> tuple[list[float], list[float]]:
    model, rng = EngineModel(engine), random.Random(f"{engine.name}/{rate}")
    now, jobs = 0.0, list[EngineRequest]()
    for turn in turns:
        now += rng.expovariate(rate)
        model.advance(now)
        jobs.append(_submit(model, now, turn))
    while any(job.finished_at is None for job in jobs[-300:]):
        now = max(now, model.next_event_at()) + 1e-9
        model.advance(now)
    kept = [job for job in jobs[len(jobs) // 5 :] if job.finished_at is not None]
    firsts = [(job.first_token_at or 0.0) - job.submitted_at for job in kept]
    steps = [
        ((job.finished_at or 0.0) - (job.first_token_at or 0.0)) / (job.output_tokens - 1)
        for job in kept
        if job.output_tokens > 1
    ]
    return firsts, steps


def sites(count: int, *, engine: str = "8b-h100", zone: str = "east") -> tuple[Site, ...]:
    """So many equal ones: a, b, c, ..."""
    return tuple(Site(id=_name(i), engine=engine, zone=zone) for i in range(count))


def _name(i: int) -> str:
    return chr(97 + i) if i < 26 else f"e{i}"


def changed(fleet: Sequence[Site], which: int, **what: object) -> tuple[Site, ...]:
    """The fleet with one site different."""
    out = list(fleet)
    out[which] = replace(out[which], **what)  # type: ignore[arg-type]  # checked by the dataclass
    return tuple(out)
