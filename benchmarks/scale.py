"""What a large policy costs: 1,000 endpoints, 10,000 routes.

    python -m benchmarks.scale [--rounds 2000] [--json FILE]

Figures, each with its bound:

- reading and compiling the document (bytes to snapshot), CPU seconds: at most 1;
- looking a route up, by the number of routes: constant;
- one decision (`Engine.begin` and the first `next_action`: filter, weigh, draw) among 8 and among
  32 candidates, CPU of the median: at most 40 and 90 µs. Every endpoint has a profile, a rate and
  a limit, so that every filter has something to look at, and evidence of its own;
- memory for each endpoint: compiled, and with live state (breaker, limits, evidence).

Times are CPU of the calling thread; the least of several rounds of the median, since other work on
the machine only adds.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any, Final

from headway.core.engine import Engine
from headway.core.model import CallFacts, FailureClass, Outcome, Send
from headway.core.snapshot import Snapshot
from headway.policy.document import compile_document
from headway.policy.parse import DOCUMENT_BYTES_MAX

ENDPOINTS: Final = 1_000
ROUTES: Final = 10_000
BOUNDS: Final = {"compile_s": 1.0, "decide_8_us": 40.0, "decide_32_us": 90.0}
OK: Final = Outcome(FailureClass.OK, status=200, input_tokens=1000, output_tokens=200)


def document(endpoints: int, routes: int, candidates: int) -> dict[str, Any]:
    """Routes by model over windows of `candidates` endpoints."""

    def weights(i: int) -> dict[str, int]:
        return {f"e{(i + k) % endpoints}": 1 + k % 3 for k in range(candidates)}

    return {
        "schema_version": "1.0",
        "version": 1,
        "profiles": {
            "p": {
                "ttft_ms": {"x": [0, 0.5, 1], "mean": [75, 120, 520]},
                "tpot_ms": {"x": [0, 0.5, 1], "mean": [16, 24, 74]},
            }
        },
        "endpoints": {
            f"e{i}": {
                "base_url": f"https://h{i}.x/v1",
                "profile": "p",
                "capacity": {"rpm": 1e9, "concurrency": 10**6},
            }
            for i in range(endpoints)
        },
        "routes": [{"match": {"model": f"m{i}"}, "weights": weights(i)} for i in range(routes)],
    }


def compiled(made: dict[str, Any]) -> tuple[Snapshot, float, int]:
    """(snapshot, CPU seconds, bytes); the bytes are cut to what a document may have."""
    content = json.dumps(made, separators=(",", ":")).encode()
    while len(content) > DOCUMENT_BYTES_MAX:
        made["routes"] = made["routes"][: len(made["routes"]) * 9 // 10]
        content = json.dumps(made, separators=(",", ":")).encode()
    snapshot = compile_document(content, source="warm", fetched=False)
    took: list[float] = []
    for _ in range(3):
        gc.collect()
        began = time.thread_time()
        snapshot = compile_document(content, source="benchmark", fetched=False)
        took.append(time.thread_time() - began)
    return snapshot, min(took), len(content)


def lookup_ns(snapshot: Snapshot, rounds: int) -> float:
    """CPU of one look-up, over all routes."""
    names = [f"m{i}" for i in random.Random(1).choices(range(len(snapshot.routes)), k=rounds)]
    best = float("inf")
    for _ in range(5):
        began = time.thread_time_ns()
        for name in names:
            snapshot.route_for(name)
        best = min(best, (time.thread_time_ns() - began) / rounds)
    return best


def decide_us(snapshot: Snapshot, rounds: int) -> float:
    """CPU of the median decision of the best round."""
    engine = Engine(snapshot, rng=random.Random(7))
    model = next(iter(snapshot.routes[0].match.models))
    now = 1.0
    for _ in range(200):  # so that every endpoint has been seen to work
        now = one(engine, model, now)[1]
    medians: list[float] = []
    for _ in range(5):
        took: list[int] = []
        for _ in range(rounds):
            spent, now = one(engine, model, now)
            took.append(spent)
        medians.append(statistics.median(took))
    return min(medians) / 1e3


def one(engine: Engine, model: str, now: float) -> tuple[int, float]:
    """Decide one call and let it succeed: (nanoseconds of the decision, later)."""
    facts = CallFacts(model=model, prompt_tokens=1000)
    began = time.thread_time_ns()
    call = engine.begin(facts, now)
    assert call is not None
    action = call.next_action(now)
    spent = time.thread_time_ns() - began
    assert isinstance(action, Send)
    call.on_outcome(action.attempt, OK, now + 0.005)
    return spent, now + 0.01


def memory_bytes() -> tuple[float, float]:
    """Bytes for each endpoint: compiled, and with live state."""
    made = document(ENDPOINTS, 1, 8)
    compile_document(json.dumps(made).encode(), source="warm", fetched=False)
    few = document(10, 1, 8)
    sizes: list[tuple[int, int]] = []
    for each in (few, made):
        content = json.dumps(each).encode()
        gc.collect()
        tracemalloc.start()
        snapshot = compile_document(content, source="benchmark", fetched=False)
        gc.collect()
        compiled_bytes = tracemalloc.get_traced_memory()[0]
        engine = Engine(snapshot, rng=random.Random(7))
        for endpoint in snapshot.endpoints.values():
            state = engine.world.state(endpoint)
            state.breaker(endpoint.upstream_model("m0"), engine.world.rng)
            state.observe_latency(2.0, 2.0, 0.0)
        gc.collect()
        sizes.append((compiled_bytes, tracemalloc.get_traced_memory()[0]))
        tracemalloc.stop()
    more = ENDPOINTS - 10
    return (sizes[1][0] - sizes[0][0]) / more, (sizes[1][1] - sizes[0][1]) / more


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(arguments)
    print(
        f"Python {platform.python_version()}, {platform.machine()}; {args.rounds} decisions a round"
    )
    figures: dict[str, float] = {}
    for count in (10, 100, 1_000, ROUTES):
        snapshot, seconds, size = compiled(document(ENDPOINTS, count, 1))
        found = len(snapshot.routes)
        figures[f"lookup_{found}_routes_ns"] = lookup_ns(snapshot, args.rounds)
        if count == ROUTES:
            print(f"{found} routes, {ENDPOINTS} endpoints: {size} bytes")
            figures["compile_s"] = seconds
    for candidates in (8, 32):
        snapshot, _, _ = compiled(document(ENDPOINTS, 1_000, candidates))
        figures[f"decide_{candidates}_us"] = decide_us(snapshot, args.rounds)
    figures["endpoint_compiled_bytes"], figures["endpoint_live_bytes"] = memory_bytes()
    missed = 0
    for name, value in figures.items():
        bound = BOUNDS.get(name)
        late = bound is not None and value > bound
        missed += late
        limit = "" if bound is None else f"   (at most {bound:g})"
        print(f"{name:28} {value:10.4g}{limit}{'  MISSED' if late else ''}")
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
