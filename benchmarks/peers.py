"""What a call costs through Headway and through another router, in one run.

    make bench-peers            # sets up .venvs/peers with LiteLLM in it
    python -m benchmarks.peers [--rounds 15] [--calls 30] [--json FILE]

Three clients send the same call to the same two loopback servers, in short blocks that take turns:
the plain SDK (to the first), the SDK wrapped with a policy of both endpoints, and `litellm.Router`
with both as deployments of one model. The figure is CPU time of the whole process, since some
routers work on threads of their own; wall time is beside it. What is compared is what each adds to
the plain SDK: the median of the paired differences, and the ratio of the two medians.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

import headway
from benchmarks.overhead import MESSAGES, MICROSECONDS, loopback

NAMES = ("plain SDK", "headway", "litellm.Router")
Call = Callable[[], object]


def policy(urls: tuple[str, str]) -> dict[str, Any]:
    """Both servers with equal shares, and the benchmark's key for each."""
    return {
        "schema_version": "1.0",
        "policy_id": "bench",
        "version": 1,
        "endpoints": {
            name: {"base_url": url, "credential": "bench"}
            for name, url in zip("ab", urls, strict=True)
        },
        "routes": [
            {"name": "bench", "match": {"model": ["bench"]}, "weights": {"*": {"a": 50, "b": 50}}}
        ],
    }


def contenders(urls: tuple[str, str]) -> list[Call]:
    """The same call, three ways."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-up on the internet
    litellm: Any = importlib.import_module("litellm")
    litellm.suppress_debug_info = True
    plain = openai.OpenAI(base_url=urls[0], api_key="sk-bench")
    key = headway.Credential(value="sk-bench", hosts=["127.0.0.1"])
    wrapped = headway.wrap(
        openai.OpenAI(base_url=urls[0], api_key="sk-bench"),
        policy=policy(urls),
        credentials={"bench": key},
        allowed_hosts=["127.0.0.1"],
    )
    router = litellm.Router(
        model_list=[
            {
                "model_name": "bench",
                "litellm_params": {"model": "openai/bench", "api_base": url, "api_key": "sk-bench"},
            }
            for url in urls
        ],
        num_retries=2,
    )
    return [
        lambda: plain.chat.completions.create(model="bench", messages=MESSAGES),
        lambda: wrapped.chat.completions.create(model="bench", messages=MESSAGES),
        lambda: router.completion(model="bench", messages=MESSAGES),
    ]


def measure(calls: list[Call], rounds: int, per_block: int) -> list[list[tuple[float, float]]]:
    """(CPU, wall) microseconds per call: one list per round, one pair per contender."""
    for call in calls:
        for _ in range(per_block):
            call()
    found: list[list[tuple[float, float]]] = []
    for turn in range(rounds):
        gc.collect()
        row: dict[int, tuple[float, float]] = {}
        for shift in range(len(calls)):  # who goes first changes from round to round
            index = (turn + shift) % len(calls)
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(per_block):
                calls[index]()
            row[index] = (
                (time.process_time() - cpu) / per_block * MICROSECONDS,
                (time.perf_counter() - wall) / per_block * MICROSECONDS,
            )
        found.append([row[index] for index in range(len(calls))])
    return found


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, and return 0; 2 where the peer is not installed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=30, help="calls a block (default 30)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    try:
        version = importlib.metadata.version("litellm")
    except importlib.metadata.PackageNotFoundError:
        print("litellm is not installed here: run `make bench-peers`", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        urls = (stack.enter_context(loopback()), stack.enter_context(loopback()))
        rows = measure(contenders(urls), args.rounds, args.calls)
    machine = (
        f"headway {headway.__version__}, litellm {version}, openai {openai.__version__}, "
        f"Python {sys.version.split()[0]}; {args.rounds} rounds of {args.calls} calls"
    )
    print(machine)
    print(f"{'':<18}{'CPU':>9}{'added':>9}{'wall':>9}{'added':>9}   microseconds a call, medians")
    added: list[float] = []
    for index, name in enumerate(NAMES):
        cpu = statistics.median(row[index][0] for row in rows)
        wall = statistics.median(row[index][1] for row in rows)
        more = statistics.median(row[index][0] - row[0][0] for row in rows)
        longer = statistics.median(row[index][1] - row[0][1] for row in rows)
        added.append(more)
        print(f"{name:<18}{cpu:>9.0f}{more:>9.0f}{wall:>9.0f}{longer:>9.0f}")
    print(f"added CPU, litellm.Router over headway: {added[2] / added[1]:.1f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
