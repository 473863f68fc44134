"""The simulator against the real thing: the same calls in virtual time and through HTTP.

    python -m headway.lab.sim.validate [--real] [--seconds 40]

One fleet, one list of calls, one policy. In virtual time the core decides before modelled engines;
for real, wrapped clients of openai-python make the same calls at the same instants over loopback,
one router per process of the scenario. Served are they by the embedded serving simulator, whose
engines are the same model on the wall clock: what differs is HTTP, two event loops and this
machine. With `--real` by llama.cpp servers (see `real_engine`), whose profile is first measured.
Both sides draw from the same seeds, but not in the same order: a difference within the spread of
the virtual runs is chance.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from openai import AsyncOpenAI, OpenAIError

import headway
from headway.core.model import CallFacts
from headway.core.snapshot import Endpoint, Route, Snapshot, WeightTable
from headway.lab.agents import filler
from headway.lab.engine_profile import PROFILES, EngineProfile, scaled
from headway.lab.fleet import EndpointSpec, ServingFleet
from headway.lab.sim.compare import Interval, interval
from headway.lab.sim.sites import measure
from headway.lab.sim.workload import Turn, builtin
from headway.lab.virtual import VirtualFleet
from headway.lab.virtual_endpoints import EngineEndpoint
from headway.lab.virtual_records import Arrival

MODEL = "m"
SEEDS = range(1, 11)
"""Of the virtual runs."""


class PlannedCall(NamedTuple):
    """One call of the scenario."""

    at_s: float
    process: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What both sides are given."""

    engines: Mapping[str, EngineProfile]
    weights: Mapping[str, float]
    processes: int
    calls: tuple[PlannedCall, ...]

    def snapshot(self, base_urls: Mapping[str, str], model: str = MODEL) -> Snapshot:
        """The policy, with these addresses."""
        total = sum(self.weights.values())
        shares = tuple((e, w / total) for e, w in self.weights.items())
        route = Route(
            name="r",
            weights=WeightTable(by_zone={"*": ((float("inf"), shares),)}),
            endpoint_ids=frozenset(self.weights),
        )
        endpoints = {
            e: Endpoint(id=e, base_url=url, model=model, failure_domain=e)
            for e, url in base_urls.items()
        }
        return Snapshot(version=1, endpoints=endpoints, routes=(route,))


class Seen(NamedTuple):
    """What clients saw of one run."""

    calls: int
    failed: int
    mean_s: float
    ttft_s: float
    share: float
    """Of the first endpoint."""
    late_s: float = 0.0
    """Mean delay of a call's start against its plan: this machine, not what is compared."""


def lengths(turn: Turn, *, divisor: int, prompt_max: int) -> Turn:
    """A call's tokens, made fit for a smaller engine."""
    prompt = max(16, min(turn.prompt_tokens // divisor, prompt_max))
    return Turn(prompt, max(2, min(turn.output_tokens // divisor, 400)))


def plan_calls(
    *, rate: float, seconds: float, processes: int, seed: int = 1, divisor: int, prompt_max: int
) -> tuple[PlannedCall, ...]:
    """Poisson arrivals with Azure's conversation lengths."""
    rng, body, at = random.Random(f"{seed}/trial"), builtin("chat").body, 0.0
    calls: list[PlannedCall] = []
    while (at := at + rng.expovariate(rate)) < seconds:
        turn = lengths(body(rng).turns[0], divisor=divisor, prompt_max=prompt_max)
        calls.append(
            PlannedCall(at, rng.randrange(processes), turn.prompt_tokens, turn.output_tokens)
        )
    return tuple(calls)


# --------------------------------------------------------------------------- virtual time


def in_virtual_time(trial: Trial, seed: int, *, network_s: float = 0.0005) -> Seen:
    """The core before modelled engines."""
    fleet = VirtualFleet(
        trial.snapshot({e: f"http://{e}.example/v1" for e in trial.engines}),
        trial.processes,
        {e: EngineEndpoint(p, network_s=network_s) for e, p in trial.engines.items()},
        (
            Arrival(
                call.at_s,
                call.process,
                CallFacts(
                    MODEL,
                    stream=True,
                    prompt_tokens=call.prompt_tokens,
                    max_output_tokens=call.output_tokens,
                ),
            )
            for call in trial.calls
        ),
        seed,
    )
    calls = fleet.run().calls
    good = [c for c in calls if c.ok]
    first = next(iter(trial.engines))
    return Seen(
        len(calls),
        len(calls) - len(good),
        sum(c.duration_s for c in good) / len(good),
        sum((c.first_token_at or 0.0) - c.arrived_at for c in good) / len(good),
        sum(c.endpoint_id == first for c in good) / len(good),
    )


# --------------------------------------------------------------------------- for real


class _Answer(NamedTuple):
    first_s: float
    total_s: float
    endpoint: str
    late_s: float


async def _ask(client: AsyncOpenAI, call: PlannedCall, number: int, zero: float) -> _Answer | None:
    await asyncio.sleep(zero + call.at_s - time.monotonic())
    prompt, first = filler(number, call.prompt_tokens), 0.0
    began = time.monotonic()
    try:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=call.output_tokens,
            stream=True,
            extra_body={"ignore_eos": True, "cache_prompt": False},
        )
        async for chunk in raw.parse():
            if not first and chunk.choices and chunk.choices[0].delta.content:
                first = time.monotonic()
    except (headway.HeadwayError, OpenAIError):
        return None
    endpoint = raw.headers.get("x-headway-endpoint", "")
    return _Answer(first - began, time.monotonic() - began, endpoint, began - zero - call.at_s)


async def _drive(trial: Trial, base_urls: Mapping[str, str], model: str, seed: int) -> Seen:
    snapshot = trial.snapshot(base_urls, model)
    routers = [
        headway.Router(snapshot, rng=random.Random(f"{seed}/process/{i}"))
        for i in range(trial.processes)
    ]
    own = [AsyncOpenAI(base_url=next(iter(base_urls.values())), api_key="none") for _ in routers]
    clients = [headway.wrap(c, router=r) for c, r in zip(own, routers, strict=True)]
    zero = time.monotonic() + 0.5
    answers = await asyncio.gather(
        *(_ask(clients[c.process], c, i, zero) for i, c in enumerate(trial.calls))
    )
    for client, router in zip(clients, routers, strict=True):
        await client.close()
        router.close()
    good = [a for a in answers if a is not None]
    first = next(iter(trial.engines))
    count = max(1, len(good))
    return Seen(
        len(answers),
        len(answers) - len(good),
        sum(a.total_s for a in good) / count,
        sum(a.first_s for a in good) / count,
        sum(a.endpoint == first for a in good) / count,
        sum(a.late_s for a in good) / count,
    )


def over_http(trial: Trial, base_urls: Mapping[str, str], *, model: str = MODEL) -> Seen:
    """Wrapped clients on the wall clock."""
    return asyncio.run(_drive(trial, base_urls, model, seed=1))


# --------------------------------------------------------------------------- the comparison


class Line(NamedTuple):
    """One figure of both sides."""

    name: str
    virtual: Interval
    lowest: float
    highest: float
    real: float

    @property
    def error(self) -> float:
        """Of the simulator, relative to what was seen; of a share, absolute."""
        if self.name.startswith("share"):
            return self.virtual.mean - self.real
        return self.virtual.mean / self.real - 1.0

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.virtual.mean:.3f} ({self.lowest:.3f} to {self.highest:.3f}) "
            f"| {self.real:.3f} | {self.error:+.1%} |"
        )


def lines(virtual: Sequence[Seen], real: Seen) -> list[Line]:
    """Figure by figure."""
    names = {"mean_s": "mean latency, s", "ttft_s": "mean TTFT, s", "share": "share of the first"}
    made: list[Line] = []
    for field, name in names.items():
        values = [float(getattr(v, field)) for v in virtual]
        made.append(
            Line(name, interval(values), min(values), max(values), float(getattr(real, field)))
        )
    return made


def as_table(virtual: Sequence[Seen], real: Seen) -> str:
    """The comparison, in Markdown."""
    late_ms = 1e3 * real.late_s
    head = f"{real.calls} calls, {real.failed} failed, begun {late_ms:.0f} ms late on average\n\n"
    head += "| | virtual time (lowest to highest of the seeds) | real | error |\n"
    head += "|---|---|---|---|\n"
    return head + "\n".join(map(str, lines(virtual, real))) + "\n"


def serving_trial(
    *, seconds: float, load: float = 0.6, processes: int = 4
) -> tuple[Trial, dict[str, EndpointSpec]]:
    """Two A100 with an 8B model, the second silently three times slower."""
    base = PROFILES["8b-a100"]
    engines = {"a": base, "b": scaled(base, 3.0)}
    top = sum(measure(p, builtin("chat")).saturation for p in engines.values())
    calls = plan_calls(
        rate=load * top, seconds=seconds, processes=processes, divisor=1, prompt_max=4000
    )
    weights = dict.fromkeys(engines, 1.0)
    specs = {"a": EndpointSpec(profile=base.name), "b": EndpointSpec(profile=base.name, slowness=3)}
    return Trial(engines=engines, weights=weights, processes=processes, calls=calls), specs


def against_serving(*, seconds: float) -> tuple[list[Seen], Seen]:
    """Virtual runs, and one through the serving simulator."""
    trial, specs = serving_trial(seconds=seconds)
    virtual = [in_virtual_time(trial, seed) for seed in SEEDS]
    with ServingFleet(specs) as fleet:
        fleet.start_run()
        real = over_http(trial, {e: fleet.base_url(e) for e in trial.engines})
        inside = [row.ttft_s for row in fleet.ledger() if row.ttft_s is not None]
    print(f"first tokens as the servers saw them: {sum(inside) / max(1, len(inside)):.3f} s")
    return virtual, real


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one comparison and print it."""
    parser = argparse.ArgumentParser(description="the simulator against the real thing")
    parser.add_argument("--real", action="store_true", help="against llama.cpp servers")
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals")
    args = parser.parse_args(arguments)
    if args.real:
        from headway.lab.real_engine import EngineUnavailableError
        from headway.lab.sim.validate_real import against_llama

        try:
            virtual, real = against_llama(seconds=args.seconds)
        except EngineUnavailableError as exc:
            print(f"SKIPPED: no real engine here: {exc}.")
            return
        print("llama.cpp servers")
    else:
        virtual, real = against_serving(seconds=args.seconds)
        print("serving simulator over HTTP")
    print(as_table(virtual, real))


if __name__ == "__main__":
    main()
