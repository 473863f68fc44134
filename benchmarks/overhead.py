"""What wrapping costs: CPU per call and per streamed chunk, wrapped against plain.

    python -m benchmarks.overhead [--rounds 20] [--calls 50] [--quick] [--json FILE]

Method. Plain and wrapped clients run in one process, in short blocks that alternate (A B B A), so
that a slow phase of the machine meets both. The figure is CPU time of the calling thread, not wall
time. Of each pair of blocks the difference and the ratio are taken; the table gives the difference
of the minima (the cost with the least noise), the median of the paired differences (the cost in
practice), and the median ratio. Garbage collection stays on, since users pay for it too. A chunk's
cost is the slope between a short and a long stream.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import httpx2
import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

import headway
from benchmarks.wire import NullTransport

MESSAGES: Final[list[ChatCompletionMessageParam]] = [
    {"role": "system", "content": "You are a helpful assistant. " * 20},
    {"role": "user", "content": "What is the capital of France? " * 10},
]
SHORT, LONG = 10, 410
"""Chunks of the two streams whose difference is the cost of 400 chunks."""

MICROSECONDS: Final = 1e6
Block = Callable[[], None]
"""Runs a number of calls."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the table; times in microseconds of CPU."""

    name: str
    unit: str
    plain_us: float
    """Least of all blocks."""
    wrapped_us: float
    added_min_us: float
    """Difference of the minima."""
    added_median_us: float
    """Median of the paired differences."""
    ratio: float
    """Median of the paired ratios."""
    blocks: int


def cpu_s(block: Block) -> float:
    """CPU seconds that the calling thread spends in a block."""
    start = time.thread_time()
    block()
    return time.thread_time() - start


def measure(
    name: str, unit: str, plain: Block, wrapped: Block, per: float, rounds: int
) -> Measured:
    """Run both blocks in turn, `rounds` times each, and compare them pairwise."""
    plain()
    wrapped()
    pairs: list[tuple[float, float]] = []
    for index in range(rounds):
        gc.collect()
        if index % 2:  # A B, then B A: whatever drifts, drifts for both
            second, first = cpu_s(wrapped), cpu_s(plain)
        else:
            first, second = cpu_s(plain), cpu_s(wrapped)
        pairs.append((first / per * MICROSECONDS, second / per * MICROSECONDS))
    return _compare(name, unit, pairs)


def slope(name: str, short: list[tuple[float, float]], long: list[tuple[float, float]]) -> Measured:
    """Cost per chunk, from paired costs per call of a short and a long stream."""
    pairs = [
        (
            (long_plain - short_plain) / (LONG - SHORT),
            (long_wrapped - short_wrapped) / (LONG - SHORT),
        )
        for (short_plain, short_wrapped), (long_plain, long_wrapped) in zip(
            short, long, strict=True
        )
    ]
    return _compare(name, "chunk", pairs)


def _compare(name: str, unit: str, pairs: list[tuple[float, float]]) -> Measured:
    plain = min(a for a, _ in pairs)
    wrapped = min(b for _, b in pairs)
    return Measured(
        name=name,
        unit=unit,
        plain_us=plain,
        wrapped_us=wrapped,
        added_min_us=wrapped - plain,
        added_median_us=statistics.median(b - a for a, b in pairs),
        ratio=statistics.median(b / a for a, b in pairs),
        blocks=len(pairs),
    )


# --------------------------------------------------------------------------- the cases


class Bench:
    """The clients of one wire, plain and wrapped, and the blocks that exercise them."""

    def __init__(self, base_url: str, *, null: bool, calls: int, rounds: int) -> None:
        self._base_url = base_url
        self._null = null
        self._calls = calls
        self._rounds = rounds
        self._wire = "null" if null else "loopback"
        self._loop = asyncio.new_event_loop()

    def run(self, label: str) -> Iterator[Measured]:
        """Measure every case."""
        yield self._whole_sync(f"sync call, {self._wire}{label}")
        yield self._whole_sync(f"sync call in a task, {self._wire}{label}", in_task=True)
        yield self._whole_async(f"async call, {self._wire}{label}")
        yield self._chunks(f"sync stream, {self._wire}{label}")

    def close(self) -> None:
        """Release the event loop."""
        self._loop.close()

    def _client(self, chunks: int | None) -> OpenAI:
        http = httpx2.Client(transport=NullTransport(chunks)) if self._null else None
        return OpenAI(base_url=self._base_url, api_key="sk-bench", http_client=http)

    def _whole_sync(self, name: str, *, in_task: bool = False) -> Measured:
        """In a task each call is accounted for; outside, with nothing configured, nobody looks."""
        plain = self._client(None)
        wrapped = headway.wrap(self._client(None))
        scope = headway.task("bench") if in_task else contextlib.nullcontext()

        def block(client: OpenAI) -> Block:
            def run() -> None:
                for _ in range(self._calls):
                    client.chat.completions.create(model="bench", messages=MESSAGES)

            return run

        try:
            with scope:
                return measure(
                    name, "call", block(plain), block(wrapped), self._calls, self._rounds
                )
        finally:
            wrapped.close()
            plain.close()

    def _whole_async(self, name: str) -> Measured:
        def client() -> AsyncOpenAI:
            http = httpx2.AsyncClient(transport=NullTransport()) if self._null else None
            return AsyncOpenAI(base_url=self._base_url, api_key="sk-bench", http_client=http)

        def block(client: AsyncOpenAI) -> Block:
            async def calls() -> None:
                for _ in range(self._calls):
                    await client.chat.completions.create(model="bench", messages=MESSAGES)

            return lambda: self._loop.run_until_complete(calls())

        plain = client()
        wrapped = headway.wrap(client())
        try:
            return measure(name, "call", block(plain), block(wrapped), self._calls, self._rounds)
        finally:
            self._loop.run_until_complete(wrapped.close())
            self._loop.run_until_complete(plain.close())

    def _chunks(self, name: str) -> Measured:
        calls = max(self._calls // 20, 4)
        pairs: dict[int, list[tuple[float, float]]] = {SHORT: [], LONG: []}
        for chunks in (SHORT, LONG):
            plain = self._client(chunks)
            wrapped = headway.wrap(self._client(chunks))
            one, other = _streams(plain, calls, chunks), _streams(wrapped, calls, chunks)
            one()
            other()
            for index in range(self._rounds):
                order = (one, other) if index % 2 else (other, one)
                times = {run: cpu_s(run) / calls * MICROSECONDS for run in order}
                pairs[chunks].append((times[one], times[other]))
            wrapped.close()
            plain.close()
        return slope(name, pairs[SHORT], pairs[LONG])


def _streams(client: OpenAI, calls: int, chunks: int) -> Block:
    def run() -> None:
        for _ in range(calls):
            for _ in client.chat.completions.create(
                model="bench", messages=MESSAGES, stream=True, max_tokens=chunks
            ):
                pass

    return run


@contextlib.contextmanager
def loopback() -> Generator[str]:
    """The base URL of a server on this machine, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        finally:
            server.stdin.close()


def record_spans() -> None:
    """From here on every span is recorded and handed to an exporter that drops it."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        SimpleSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )

    class Drop(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Drop()))
    trace.set_tracer_provider(provider)


# --------------------------------------------------------------------------- the command


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="pairs of blocks (default 20)")
    parser.add_argument("--calls", type=int, default=50, help="calls a block (default 50)")
    parser.add_argument("--quick", action="store_true", help="6 pairs of blocks of 20 calls")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args(argv)
    rounds, calls = (6, 20) if args.quick else (args.rounds, args.calls)

    print(_machine(rounds, calls))
    print(f"{'':<42}{'unit':>6}{'plain':>9}{'wrapped':>9}{'+min':>8}{'+median':>9}{'ratio':>7}")
    found: list[Measured] = []
    spans: Literal["", ", spans"]
    for spans in ("", ", spans"):
        if spans:
            record_spans()
        with loopback() as url:
            for null, base_url in ((True, "https://api.bench.test/v1"), (False, url)):
                bench = Bench(base_url, null=null, calls=calls, rounds=rounds)
                for line in bench.run(spans):
                    found.append(line)
                    print(_row(line), flush=True)
                bench.close()
    print("CPU of the calling thread, microseconds.")
    if args.json:
        rows = [{name: getattr(m, name) for name in Measured.__slots__} for m in found]
        args.json.write_text(
            json.dumps({"machine": _machine(rounds, calls), "rows": rows}, indent=1)
        )
    return 0


def _row(m: Measured) -> str:
    return (
        f"{m.name:<42}{m.unit:>6}{m.plain_us:>9.1f}{m.wrapped_us:>9.1f}"
        f"{m.added_min_us:>8.1f}{m.added_median_us:>9.1f}{m.ratio:>7.3f}"
    )


def _machine(rounds: int, calls: int) -> str:
    return (
        f"headway {headway.__version__}, openai {openai.__version__}, "
        f"httpx2 {httpx2.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()}; {rounds} pairs of blocks of {calls} calls"
    )


if __name__ == "__main__":
    sys.exit(main())
