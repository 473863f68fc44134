"""Sixteen processes and one upstream that means its limits: real clients, sockets, clocks, Redis."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import R, Seen, Server, completion, error

PROCESSES = 16
RPM, TPM = 600, 100_000
MINUTE_S = 60.0
SETTLING_S = 12.0
"""What each process uses before its first loan is owed, and repaid by now."""
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Busy:
    """How long this machine lately held up what was due: that is not the fleet's doing."""

    def __init__(self) -> None:
        self._late: deque[tuple[float, float]] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            self._late.append((now, now - due))
            while self._late[0][0] < now - MINUTE_S - 5.0:
                self._late.popleft()
            due = now + 0.01

    def worst_s(self) -> float:
        return max((late for _, late in tuple(self._late)), default=0.0)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)


class Upstream:
    """No minute, whenever it begins, has more requests or tokens than the limit: else 429."""

    def __init__(self, output: tuple[int, int], busy: Busy) -> None:
        self._busy = busy
        self._window: deque[tuple[float, int]] = deque()
        self._tokens = 0
        self._lock = threading.Lock()
        self._rng = random.Random(7)
        self._output = output
        self.accepted: list[tuple[float, int]] = []
        self.refused: list[tuple[float, str]] = []

    def __call__(self, seen: Seen) -> R:
        now = time.monotonic()
        with self._lock:
            asked = len(seen.json["messages"][0]["content"]) // 5
            answered = self._rng.randint(*self._output)
            tokens = asked + answered
            while self._window and self._window[0][0] <= now - MINUTE_S:
                self._tokens -= self._window.popleft()[1]
            held_up = 1.0 + self._busy.worst_s() / MINUTE_S
            full = [
                *(["requests"] if len(self._window) >= RPM * held_up else []),
                *(["tokens"] if self._tokens + tokens > TPM * held_up else []),
            ]
            if full:
                self.refused.append((now, full[0]))
                return R(429, error(f"too many {full[0]}"), {"retry-after-ms": "500"})
            self._window.append((now, tokens))
            self._tokens += tokens
            self.accepted.append((now, tokens))
        usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": tokens}
        return R(200, completion("ok") | {"usage": usage}, delay=0.03)

    def rates(self, begin: float, end: float) -> tuple[float, float]:
        """(requests, tokens) a minute that were accepted between two instants."""
        found = [tokens for at, tokens in self.accepted if begin <= at < end]
        minutes = (end - begin) / 60.0
        return len(found) / minutes, sum(found) / minutes


class Fleet:
    """The processes, which wait for the word."""

    def __init__(
        self, server: Server, redis_url: str, *, seconds: float, words: tuple[int, int], output: int
    ) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        for number in range(PROCESSES):
            asked = {
                "server": server.url, "redis": redis_url, "seconds": seconds, "seed": number,
                "rpm": RPM, "tpm": TPM, "processes": PROCESSES, "words": words, "output": output,
                "is_skewed": number == 3,
            }  # fmt: skip
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("caller.py")), json.dumps(asked)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

    def run(self, act: Callable[[float], None]) -> tuple[float, list[dict[str, Any]]]:
        """(when it began, what each process says)."""
        began = time.monotonic() + 2.0  # what sixteen of them did to be ready is over
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{began}\n")
            process.stdin.flush()
        act(began)
        said = [json.loads(process.communicate(timeout=200)[0]) for process in self._processes]
        return began, said

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def run_fleet(
    redis_server: Any,
    *,
    seconds: float,
    words: tuple[int, int],
    output: tuple[int, int],
    act: Callable[[float], None] = lambda began: None,
) -> tuple[Upstream, float, list[dict[str, Any]]]:
    busy = Busy()
    upstream = Upstream(output, busy)
    with Server(upstream) as server:
        # What is expected is a tenth more than what comes, on average.
        expected = round(1.1 * sum(output) / 2)
        fleet = Fleet(server, redis_server.url, seconds=seconds, words=words, output=expected)
        try:
            began, said = fleet.run(act)
        finally:
            fleet.end()
            busy.close()
    minutes = range(0, int(seconds), 10)
    shown = [[round(n) for n in upstream.rates(began + s, began + s + 10)] for s in minutes]
    print(f"(requests, tokens) a minute, every ten seconds: {shown}")
    refused = [round(at - began, 1) for at, _ in upstream.refused]
    print(f"refused by the upstream: {len(refused)} {refused[:9]}, held up {busy.worst_s():.2f} s")
    print(f"calls: {[one['calls'] for one in said]}")
    print(
        f"failed: {sum(one['failed'] for one in said)}, e.g. {[one['failures'][:1] for one in said]}"
    )
    print(f"lost the store: {sum(one['heard'].count(False) for one in said)} times")
    return upstream, began, said


SMALL = {"words": (2, 20), "output": (1, 20)}
"""The requests are what the limit meets."""
LARGE = {"words": (40, 160), "output": (20, 160)}
"""The tokens are."""


@pytest.mark.parametrize("bound", ["requests", "tokens"])
def test_sixteen_processes_use_the_limit_and_are_never_refused(
    bound: str, redis_server: Any
) -> None:
    """One of them has clocks that are wrong."""
    seconds = SETTLING_S + MINUTE_S
    sizes: Any = SMALL if bound == "requests" else LARGE
    upstream, began, said = run_fleet(redis_server, seconds=seconds, **sizes)

    requests, tokens = upstream.rates(began + SETTLING_S, began + seconds)
    print(f"{requests:.0f} requests and {tokens:.0f} tokens a minute")
    assert upstream.refused == []
    assert sum(one["failed"] for one in said) == 0
    if bound == "requests":
        assert requests == pytest.approx(RPM, rel=0.02)
    else:
        assert tokens == pytest.approx(TPM, rel=0.02)
    assert all(one["calls"] for one in said)
    assert all(one["is_reachable"] for one in said)


@pytest.mark.parametrize("how", ["kill -9", "partition"])
@pytest.mark.parametrize("bound", ["requests", "tokens"])
def test_redis_goes_and_no_call_fails(how: str, bound: str, redis_server: Any) -> None:
    gone_s, back_s, seconds = 15.0, 35.0, 60.0

    def act(began: float) -> None:
        time.sleep(max(0.0, began + gone_s - time.monotonic()))
        redis_server.kill() if how == "kill -9" else redis_server.signal(signal.SIGSTOP)
        time.sleep(max(0.0, began + back_s - time.monotonic()))
        redis_server.start() if how == "kill -9" else redis_server.signal(signal.SIGCONT)

    sizes: Any = SMALL if bound == "requests" else LARGE
    upstream, began, said = run_fleet(redis_server, seconds=seconds, act=act, **sizes)

    kind, limit = (0, RPM) if bound == "requests" else (1, TPM)
    without = upstream.rates(began + gone_s, began + back_s)[kind]
    after = upstream.rates(began + back_s + 2.0, began + seconds)[kind]
    print(f"{without:.0f} a minute without it, {after:.0f} after")
    assert sum(one["failed"] for one in said) == 0
    assert without == pytest.approx(limit, rel=0.15)
    assert after == pytest.approx(limit, rel=0.15)
    assert all(one["heard"] == [False, True] for one in said)
    assert all(one["is_reachable"] for one in said)
