"""A hundred thousand calls among faults, and what the process has grown by: `make soak`.

    python -m tests.leaks.soak [--calls 100000] [--seed N]

Half of the calls are sync on threads, half async, half are streamed; of the streams some are left
after a few chunks, closed or just dropped, and some async calls are cancelled. Two endpoints in
processes of their own fail in every way of `tests.leaks.server`. The first tenth of the calls is for
warming up: caches fill, pools open. From there to the end the process may grow by 2 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import ctypes
import gc
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai

import headway

MESSAGES: list[Any] = [{"role": "user", "content": "What is the answer? " * 10}]
WORKERS = 8
GROWTH_MAX_BYTES = 2 * 1024 * 1024
ENDS = ("read", "read", "read", "left", "closed", "dropped")


@dataclass
class State:
    """What a process holds."""

    anon_bytes: int
    """Memory of its own: resident, and no page of a file."""
    file_bytes: int
    """Pages of its libraries, as far as they happen to be in memory."""
    sockets: int
    threads: int

    @classmethod
    def now(cls) -> State:
        for _ in range(3):
            gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed goes back to the system
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        sockets = 0
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                sockets += str(fd.readlink()).startswith("socket:")
        return cls(
            int(status["RssAnon"].split()[0]) * 1024,
            int(status["RssFile"].split()[0]) * 1024,
            sockets,
            threading.active_count(),
        )


@dataclass
class Soak:
    """The clients, and what their calls came to."""

    urls: list[str]
    seed: int
    came_to: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        policy = {
            "schema_version": "1.0",
            "version": 1,
            "endpoints": {
                name: {"base_url": url, "credential": "own"}
                for name, url in zip("ab", self.urls, strict=True)
            },
            "routes": [
                {
                    "weights": {"a": 3, "b": 1},
                    "deadline": {"total_ms": 4000, "ttft_ms": 200, "idle_ms": 1000},
                }
            ],
        }
        own = headway.Credential(value="sk-own", hosts=["127.0.0.1"])
        self.router = headway.Router(headway.Policy.load(policy), credentials={"own": own})
        self.sync = self.router.wrap(openai.OpenAI(base_url=self.urls[0], api_key="sk-own"))
        self.loop = asyncio.new_event_loop()
        self.plain_async = openai.AsyncOpenAI(base_url=self.urls[0], api_key="sk-own")
        self.async_ = self.router.wrap(self.plain_async)

    def run(self, calls: int) -> None:
        """Make that many."""
        with ThreadPoolExecutor(WORKERS) as pool:
            share = calls // 2 // WORKERS
            threads = [pool.submit(self._thread, share, index) for index in range(WORKERS)]
            self.loop.run_until_complete(self._tasks(calls // 2))
            for thread in threads:
                thread.result()

    def settle(self) -> None:
        """Wait until all that was dropped has been collected and closed."""
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            gc.collect()
            self.loop.run_until_complete(asyncio.sleep(0.02))
            if not any(row.in_flight for row in self.router.status().endpoints):
                return
        raise AssertionError(f"in flight after the last call: {self.router.status()}")

    def close(self) -> None:
        self.sync.close()
        self.loop.run_until_complete(self.async_.close())
        self.loop.close()
        self.router.close()

    # -- threads

    def _thread(self, calls: int, index: int) -> None:
        rng = random.Random(self.seed * 100 + index)
        for number in range(0, calls, 10):
            with headway.task("soak", verdict="no_exception"):
                for _ in range(min(10, calls - number)):
                    self._count(self._call(rng))

    def _call(self, rng: random.Random) -> str:
        is_stream, end = rng.random() < 0.5, rng.choice(ENDS)
        try:
            reply: Any = self.sync.chat.completions.create(
                model="m", messages=MESSAGES, stream=is_stream
            )
            if not is_stream:
                return "answered"
            for seen, _ in enumerate(reply):
                if end != "read" and seen == 2:
                    break
            if end == "closed":
                reply.close()
        except openai.APIError as exc:
            return type(exc).__name__
        return end

    # -- tasks

    async def _tasks(self, calls: int) -> None:
        share = calls // WORKERS
        await asyncio.gather(*(self._task(share, index) for index in range(WORKERS)))

    async def _task(self, calls: int, index: int) -> None:
        rng = random.Random(self.seed * 100 + 50 + index)
        for number in range(0, calls, 10):
            async with headway.task("soak", verdict="no_exception"):
                for _ in range(min(10, calls - number)):
                    try:
                        patience = 0.01 if rng.random() < 0.05 else 30.0
                        async with asyncio.timeout(patience):
                            self._count(await self._acall(rng))
                    except TimeoutError:
                        self._count("cancelled")

    async def _acall(self, rng: random.Random) -> str:
        is_stream, end = rng.random() < 0.5, rng.choice(ENDS)
        try:
            reply: Any = await self.async_.chat.completions.create(
                model="m", messages=MESSAGES, stream=is_stream
            )
            if not is_stream:
                return "answered"
            seen = 0
            async for _ in reply:
                seen += 1
                if end != "read" and seen == 3:
                    break
            if end == "closed":
                await reply.close()
        except openai.APIError as exc:
            return type(exc).__name__
        return end

    def _count(self, what: str) -> None:
        self.came_to[what] += 1


@contextlib.contextmanager
def endpoints(seed: int) -> Iterator[list[str]]:
    """Two of them."""
    with contextlib.ExitStack() as stack:
        urls = []
        for index, faults in enumerate((0.15, 0.03)):
            server = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.leaks.server", str(faults), str(seed + index)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert server.stdin is not None
            assert server.stdout is not None
            stack.callback(server.stdin.close)
            urls.append(f"http://127.0.0.1:{int(server.stdout.readline())}/v1")
        yield urls


def soak(calls: int, seed: int, *, say: Any = print) -> tuple[State, State, Soak]:
    """Run it: the process after a tenth of the calls, and at the end."""
    with endpoints(seed) as urls:
        soaked = Soak(urls, seed)
        began = time.monotonic()
        soaked.run(calls // 10)
        soaked.settle()
        before = after = State.now()
        for part in range(1, 10):
            soaked.run(calls // 10)
            soaked.settle()
            after = State.now()
            say(
                f"{(part + 1) * calls // 10:>9,} calls  {time.monotonic() - began:6.0f} s  "
                f"own memory +{(after.anon_bytes - before.anon_bytes) / 1e6:.2f} MB  "
                f"(files +{(after.file_bytes - before.file_bytes) / 1e6:.2f} MB)  "
                f"{after.sockets} sockets  {after.threads} threads"
            )
        soaked.close()
    return before, after, soaked


def main() -> int:
    """Run, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="say where memory was allocated")
    args = parser.parse_args()
    first = None
    if args.trace:
        tracemalloc.start(12)
        first = tracemalloc.take_snapshot()
    before, after, soaked = soak(args.calls, args.seed, say=lambda text: print(text, flush=True))
    if first is not None:
        for line in tracemalloc.take_snapshot().compare_to(first, "lineno")[:20]:
            print(line)
    until = time.monotonic() + 2.0
    while ((left := State.now()).sockets or left.threads > 1) and time.monotonic() < until:
        time.sleep(0.02)  # threads that close what was dropped
    print(dict(soaked.came_to.most_common()))
    print(f"closed: {left.sockets} sockets, {left.threads} threads")
    grown = after.anon_bytes - before.anon_bytes
    print(f"grown by {grown / 1e6:.2f} MB from call {args.calls // 10:,} to call {args.calls:,}")
    return 0 if grown < GROWTH_MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
