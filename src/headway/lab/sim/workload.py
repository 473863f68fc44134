"""What clients ask for: turns, the visits that are made of them, and when visits come.

A visit is one call, or a session: closed inside (the next call after the answer to the last one and
a pause), open outside (visits come whether or not earlier ones are done). Every source of chance is
handed in.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from headway.core.model import CallFacts
from headway.lab.engine_model import BLOCK_TOKENS
from headway.lab.sim.arrivals import (
    Arrivals,
    DiurnalTimes,
    GammaTimes,
    poisson_times,
    recorded,
    servegen_times,
)
from headway.lab.traces import (
    Lengths,
    Session,
    SessionCall,
    TraceCall,
    excerpt_sessions,
    load_azure,
    load_burstgpt,
    load_llmservingsim,
    load_mooncake,
    load_servegen,
    load_sharegpt,
    load_tracelab,
    load_vidur,
    load_weka,
)


class Turn(NamedTuple):
    """One call of a visit, with what only the engine can know."""

    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0
    """Between the answer before and this call: a tool, or a person."""
    blocks: tuple[int, ...] = ()
    """Identities of the prompt's 64-token blocks."""
    known_blocks: int = 0
    """Leading blocks already sent earlier in the visit: what an endless cache would hit."""


@dataclass(slots=True)
class TurnFacts(CallFacts):
    """What a client knows of a call, with the turn behind it for engines and all-seeing gateways.

    No client that could exist looks at `turn`.
    """

    turn: Turn = field(default=Turn(1, 1))


@dataclass(frozen=True, slots=True)
class Visit:
    """One thing that somebody wants."""

    turns: tuple[Turn, ...]
    is_session: bool = False
    traffic_class: str | None = None
    priority: int = 0
    patience_s: float = math.inf
    """A visit that is not done by then has failed."""


MOONCAKE_BLOCK_TOKENS = 512
"""What one of that trace's prefix identities stands for."""

Body = Callable[[random.Random], Visit]
"""Makes the next visit."""


# --------------------------------------------------------------------------- what


def _single(one: Lengths | TraceCall) -> Visit:
    blocks: tuple[int, ...] = ()
    if isinstance(one, TraceCall) and one.prefix:
        per = MOONCAKE_BLOCK_TOKENS // BLOCK_TOKENS
        blocks = tuple(h * per + i for h in one.prefix for i in range(per))
        blocks = blocks[: one.input_tokens // BLOCK_TOKENS]
    return Visit((Turn(one.input_tokens, max(one.output_tokens, 1), blocks=blocks),))


def calls_of(lengths: Sequence[Lengths | TraceCall]) -> Body:
    """Single calls of these lengths, drawn evenly."""
    made: dict[int, Visit] = {}

    def make(rng: random.Random) -> Visit:
        which = int(rng.random() * len(lengths))
        visit = made.get(which)
        if visit is None:
            visit = made[which] = _single(lengths[which])
        return visit

    return make


def sessions_of(
    sessions: Sequence[Session],
    *,
    turns_max: int = 16,
    think_max_s: float = 60.0,
    prompt_max: int = 120_000,
) -> Body:
    """Stretches of recorded sessions, each from a random turn on.

    Think times are cut (a pause of an hour says nothing in a run of twenty minutes), and so are
    sessions that outgrow `prompt_max`.
    """
    count = itertools.count(1)

    def make(rng: random.Random) -> Visit:
        while True:
            session = sessions[int(rng.random() * len(sessions))]
            first = int(rng.random() * max(1, len(session.calls) - 1))
            calls = session.calls[first : first + turns_max]
            calls = tuple(itertools.takewhile(lambda c: c.input_tokens <= prompt_max, calls))
            if calls:
                return Visit(_session_turns(calls, next(count), think_max_s), is_session=True)

    return make


def _session_turns(
    calls: Sequence[SessionCall], number: int, think_max_s: float
) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    fresh = itertools.count(number << 24)
    blocks: tuple[int, ...] = ()
    for i, call in enumerate(calls):
        whole = call.input_tokens // BLOCK_TOKENS
        known = min(call.hit_blocks, len(blocks), whole) if i else 0
        blocks = blocks[:known] + tuple(itertools.islice(fresh, whole - known))
        think = min(call.think_s or 0.0, think_max_s) if i else 0.0
        turns.append(Turn(call.input_tokens, max(call.output_tokens, 1), think, blocks, known))
    return tuple(turns)


def tasks_of(body: Body, calls: int, *, tool_s: float = 1.0, patience_s: float = math.inf) -> Body:
    """Tasks of `calls` calls one after another, each made by `body`, with a tool between them."""

    def make(rng: random.Random) -> Visit:
        turns = [
            body(rng).turns[0]._replace(think_s=rng.expovariate(1.0 / tool_s) if i else 0.0)
            for i in range(calls)
        ]
        return Visit(tuple(turns), is_session=True, patience_s=patience_s)

    return make


def mixed(*parts: tuple[float, Body]) -> Body:
    """Visits of several kinds, by weight."""
    weights = [w for w, _ in parts]

    def make(rng: random.Random) -> Visit:
        return rng.choices([b for _, b in parts], weights)[0](rng)

    return make


def labelled(body: Body, traffic_class: str | None, priority: int) -> Body:
    """The same visits, marked."""
    return lambda rng: replace(body(rng), traffic_class=traffic_class, priority=priority)


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What comes, and how. Equal to itself only: what was measured with it is kept by it."""

    name: str
    body: Body
    arrivals: Arrivals = poisson_times
    about: str = ""
    replay: Sequence[TraceCall] | None = None
    """Calls to repeat at their own instants, instead of `body` at those of `arrivals`."""

    def visits(self, rng: random.Random, rate: float) -> Iterator[tuple[float, Visit]]:
        """Visits with their instants, without end, at a mean rate of `rate` visits per second."""
        if self.replay is not None:
            return ((at, _single(call)) for at, call in recorded(self.replay, rng, rate))
        return ((at, self.body(rng)) for at in self.arrivals(rng, rate))

    def sample(self, visits: int, seed: int = 0) -> list[Turn]:
        """Turns of a few visits, to measure engines with."""
        rng = random.Random(f"{seed}/sample")
        return [turn for _ in range(visits) for turn in self.body(rng).turns]


# --------------------------------------------------------------------------- files

CHAT, CODE = "azure2023_conv_head.csv", "azure2023_code_head.csv"


@lru_cache
def excerpt_calls(name: str) -> tuple[TraceCall, ...]:
    """The head of an Azure trace that ships with the package."""
    with resources.as_file(resources.files("headway.lab").joinpath("excerpt", name)) as path:
        return tuple(load_azure(path))


@lru_cache
def _sessions() -> tuple[Session, ...]:
    return tuple(excerpt_sessions())


@lru_cache
def builtin(name: str) -> Workload:
    """A workload by name: see `WORKLOADS`."""
    if name not in WORKLOADS:
        msg = f"no workload {name!r}; there are {', '.join(WORKLOADS)}, and trace files"
        raise ValueError(msg)
    return WORKLOADS[name]()


def _tasks() -> Body:
    return tasks_of(calls_of(excerpt_calls(CHAT)), 20, patience_s=900.0)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "chat": lambda: Workload(
        "chat", calls_of(excerpt_calls(CHAT)), about="Azure conversation lengths, Poisson"
    ),
    "bursty": lambda: Workload(
        "bursty",
        calls_of(excerpt_calls(CHAT)),
        GammaTimes(3.0),
        about="the same lengths in bursts: gamma gaps, CV 3",
    ),
    "diurnal": lambda: Workload(
        "diurnal",
        calls_of(excerpt_calls(CHAT)),
        DiurnalTimes(period_s=900.0),
        about="the same lengths, their rate swinging by 60 % within 15 minutes",
    ),
    "code": lambda: Workload(
        "code",
        calls_of(excerpt_calls(CODE)),
        replay=excerpt_calls(CODE),
        about="Azure code completion at its recorded, very uneven times",
    ),
    "agents": lambda: Workload(
        "agents", sessions_of(_sessions()), about="Weka coding-agent sessions, closed inside"
    ),
    "tasks": lambda: Workload(
        "tasks",
        _tasks(),
        about="tasks of twenty chat calls one after another",
    ),
    "priorities": lambda: Workload(
        "priorities",
        mixed(
            (0.2, labelled(_tasks(), "interactive", 10)),
            (0.8, labelled(_tasks(), "background", -1)),
        ),
        about="such tasks, a fifth interactive, the rest background",
    ),
}

_CALL_LOADERS: dict[str, Callable[[Path], Sequence[TraceCall]]] = {
    "azure": load_azure,
    "burstgpt": load_burstgpt,
    "mooncake": load_mooncake,
    "sharegpt": load_sharegpt,
    "llmservingsim": load_llmservingsim,
}


@lru_cache
def from_file(path: Path, kind: str) -> Workload:
    """A workload of a public trace file; `kind` is one of `TRACE_KINDS`."""
    if kind in _CALL_LOADERS:
        calls = _CALL_LOADERS[kind](path)
        return Workload(path.stem, calls_of(calls), replay=calls, about=str(path))
    if kind == "vidur":
        return Workload(path.stem, calls_of(load_vidur(path)), about=str(path))
    if kind == "weka":
        return Workload(path.stem, sessions_of(load_weka(path)), about=str(path))
    if kind == "servegen":
        times = servegen_times(load_servegen(path))
        return Workload(path.stem, calls_of(excerpt_calls(CHAT)), times, about=str(path))
    if kind == "tracelab":
        rounds = load_tracelab(path)
        lengths = [Lengths(r.input_tokens, max(1, r.output_tokens)) for r in rounds]
        return Workload(path.stem, calls_of(lengths), about=str(path))
    msg = f"unknown trace kind {kind!r}; there are {', '.join(TRACE_KINDS)}"
    raise ValueError(msg)


TRACE_KINDS = (*_CALL_LOADERS, "vidur", "weka", "servegen", "tracelab")
