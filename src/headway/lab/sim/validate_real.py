"""The simulator against llama.cpp: a profile measured on the spot, then the same calls both ways.

Two servers with a small model, one thread each: `north` with three slots, `south` with one. The
engine model knows slots (`sequences_max`), prompts read in the same steps as answers are written,
and the queue. What it cannot know is who else is on this machine's cores: the servers are measured
before and after, and the mean of both is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from openai import AsyncOpenAI

from headway.lab.agents import filler
from headway.lab.engine_profile import EngineProfile
from headway.lab.real_engine import ALIAS, CONTEXT_TOKENS, RealServer, find_model
from headway.lab.sim.sites import saturation
from headway.lab.sim.validate import (
    SEEDS,
    Seen,
    Trial,
    in_virtual_time,
    lengths,
    over_http,
    plan_calls,
)
from headway.lab.sim.workload import builtin

SLOTS: Mapping[str, int] = {"north": 3, "south": 1}
DIVISOR, PROMPT_MAX = 12, 300
"""A call has a twelfth of the tokens of Azure's conversations: about 90, and 20 written."""
SHORT, LONG, OUTPUT, ROUNDS = 16, 144, 12, 3
"""Tokens of the probes, and how often each is asked."""
LOAD = 0.5


class Probe(NamedTuple):
    """Seconds to the first token, and between tokens."""

    ttft_s: float
    tpot_s: float


async def _probe(client: AsyncOpenAI, tokens: int, serial: int) -> Probe:
    began, firsts = time.monotonic(), list[float]()
    stream = await client.chat.completions.create(
        model=ALIAS,
        messages=[{"role": "user", "content": filler(serial, tokens)}],
        max_tokens=OUTPUT,
        stream=True,
        extra_body={"ignore_eos": True, "cache_prompt": False},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            firsts.append(time.monotonic())
    return Probe(firsts[0] - began, (firsts[-1] - firsts[0]) / (OUTPUT - 1))


async def _measure(address: str, slots: int) -> tuple[Probe, Probe, float]:
    """A short and a long prompt alone; the time between tokens with every slot busy."""
    async with AsyncOpenAI(base_url=address, api_key="none") as client:
        await _probe(client, LONG, 0)  # pages of the model, and of the server's code
        shorts = [await _probe(client, SHORT, 10 + i) for i in range(ROUNDS)]
        longs = [await _probe(client, LONG, 20 + i) for i in range(ROUNDS)]
        together = [
            await asyncio.gather(*(_probe(client, SHORT, 30 + 9 * i + k) for k in range(slots)))
            for i in range(ROUNDS)
        ]
    return _typical(shorts), _typical(longs), median(p.tpot_s for row in together for p in row)


def _typical(probes: list[Probe]) -> Probe:
    return Probe(median(p.ttft_s for p in probes), median(p.tpot_s for p in probes))


def fitted(short: Probe, long: Probe, full_tpot_s: float, slots: int) -> EngineProfile:
    """The profile that explains the probes. A thread of a CPU has no floor to hide tokens under:
    each costs its time, alone or not."""
    slope_s = max(1e-6, (long.ttft_s - short.ttft_s) / (LONG - SHORT))
    per_sequence_s = max(0.0, (full_tpot_s - short.tpot_s) / max(1, slots - 1))
    overhead_s = max(0.0, short.tpot_s - per_sequence_s)
    return EngineProfile(
        name="llama.cpp",
        floor_s=0.0,
        slope_s=slope_s,
        context_coef_s=max(0.0, (long.tpot_s - short.tpot_s) / (LONG - SHORT)),
        kv_tokens=CONTEXT_TOKENS * slots,
        sequence_s=max(0.0, per_sequence_s - slope_s),
        overhead_s=overhead_s,
        api_overhead_s=max(0.0, short.ttft_s - slope_s * SHORT - overhead_s),
        sequences_max=slots,
        reserves_output=True,  # a slot's context is its own
    )


async def _measure_all(addresses: Mapping[str, str]) -> dict[str, EngineProfile]:
    """Every server at once, as they will be in use: they share this machine's cores."""
    seen = await asyncio.gather(*(_measure(a, SLOTS[name]) for name, a in addresses.items()))
    return {
        name: fitted(*probes, SLOTS[name]) for name, probes in zip(addresses, seen, strict=True)
    }


def between(before: EngineProfile, after: EngineProfile) -> EngineProfile:
    """What lies half way between two measurements."""
    costs = ("slope_s", "context_coef_s", "sequence_s", "overhead_s", "api_overhead_s")
    mid = {c: (getattr(before, c) + getattr(after, c)) / 2.0 for c in costs}
    return replace(before, **mid)


def against_llama(*, seconds: float) -> tuple[list[Seen], Seen]:
    """Virtual runs, and one before real servers. Raises EngineUnavailableError."""
    model = find_model()
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(RealServer(name, model, slots=slots))
            for name, slots in SLOTS.items()
        }
        addresses = {name: f"{server.address}/v1" for name, server in servers.items()}
        before = asyncio.run(_measure_all(addresses))
        trial = trial_of(before, seconds=seconds)
        real = over_http(trial, addresses, model=ALIAS)
        after = asyncio.run(_measure_all(addresses))
    for when, engines in (("before", before), ("after", after)):
        for name, p in engines.items():
            print(
                f"{name} {when}: {1e3 * p.slope_s:.1f} ms per prompt token, "
                f"{1e3 * (p.overhead_s + p.slope_s + p.sequence_s):.0f} ms per token written alone"
            )
    meant = {name: between(before[name], after[name]) for name in SLOTS}
    trial = replace(trial, engines=meant)
    return [in_virtual_time(trial, seed) for seed in SEEDS], real


def trial_of(engines: Mapping[str, EngineProfile], *, seconds: float) -> Trial:
    """As many calls as keep the servers half busy; weights by what each can carry."""
    turns = [
        lengths(t, divisor=DIVISOR, prompt_max=PROMPT_MAX) for t in builtin("chat").sample(600)
    ]
    weights = {name: saturation(profile, turns) for name, profile in engines.items()}
    calls = plan_calls(
        rate=LOAD * sum(weights.values()),
        seconds=seconds,
        processes=2,
        divisor=DIVISOR,
        prompt_max=PROMPT_MAX,
    )
    return Trial(engines=engines, weights=weights, processes=2, calls=calls)
