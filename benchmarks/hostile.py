"""What a hostile policy server costs the calls of a process: paired with a healthy one.

    python -m benchmarks.hostile [--pairs 8] [--calls 300] [--json FILE]

One router, one thread of calls against a null wire, the policy's server in a process of its own,
and a background thread that looks at the policy twenty times a second: six hundred times as often
as it really would. Blocks of calls under a healthy server (a new version at every look) and under a
hostile one alternate (A B B A). For each pair the ratio of the two p99 is taken; the figure is the
median, beside the same figure of healthy blocks paired with each other, which is the noise. Wall
time: calls that wait are what is looked for.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import httpx2
from openai import OpenAI

import headway
from benchmarks.wire import NullTransport
from headway.policy.http_source import HttpSource

LOOK_EVERY_S: Final = 0.05
TIMEOUT_S: Final = 0.5
OWN: Final = "http://127.0.0.1:9/v1"
BOMB: Final = gzip.compress(bytes(64 * 1024 * 1024))
_versions = itertools.count(1)


def document(**changes: object) -> bytes:
    """A version above all before it."""
    made = {
        "schema_version": "1.0",
        "version": next(_versions),
        "endpoints": {"a": {"base_url": OWN}},
        "routes": [{"weights": {"a": 1}}],
    }
    return json.dumps(made | changes).encode()


Handler = Callable[[BaseHTTPRequestHandler], None]


def reply(body: bytes, *headers: tuple[str, str], status: int = 200) -> Handler:
    """Answer with these bytes."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def changing(**changes: object) -> Handler:
    """Answer with a new version at every look."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        reply(document(**changes))(handler)

    return answer


healthy: Final = changing()


def endless(handler: BaseHTTPRequestHandler) -> None:
    """Ten gigabytes."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(10 * 1024**3))
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.02)


def flapping(handler: BaseHTTPRequestHandler) -> None:
    """Good, garbage, good, ..."""
    content = document()
    reply(content if len(content) % 2 or next(_versions) % 2 else content[:40])(handler)


def garbage(handler: BaseHTTPRequestHandler) -> None:
    """Digits, never the same ones."""
    reply(str(next(_versions)).encode() * 10_000)(handler)


HEALTHY: Final = "healthy, against itself"
ATTACKS: Final[dict[str, Handler]] = {
    HEALTHY: healthy,
    "wrong type": reply(b"<p>", ("Content-Type", "text/html")),
    "10 GB body": endless,
    "gzip bomb": reply(BOMB, ("Content-Encoding", "gzip")),
    "slow loris": drip,
    "endless redirects": reply(b"", ("Location", "/endless%20redirects"), status=302),
    "rollback": changing(version=0),
    "flapping": flapping,
    "not JSON": garbage,
    "schema 2.0": changing(schema_version="2.0"),
    "a host that isn't allowed": changing(endpoints={"a": {"base_url": "http://169.254.169.254"}}),
}


class _Answers(BaseHTTPRequestHandler):
    """The path says how to answer."""

    def do_GET(self) -> None:
        with suppress(OSError):
            ATTACKS[unquote(self.path[1:])](self)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def serve() -> None:
    """Be the server, until standard input closes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


class Stage:
    """A server in a process of its own, a router that looks at it, a client that calls."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        self.base = f"http://127.0.0.1:{int(self.server.stdout.readline())}/"
        self.source = HttpSource(self.base + quote(HEALTHY), timeout_s=TIMEOUT_S)
        self.router = headway.Router(self.source, allowed_hosts=["http://127.0.0.1:9"])
        http = httpx2.Client(transport=NullTransport())
        self.client = self.router.wrap(OpenAI(api_key="k", base_url=OWN, http_client=http))
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self.router._supply.refresh_once()
            time.sleep(LOOK_EVERY_S)

    def block(self, name: str, calls: int) -> list[float]:
        """Seconds of each call, while the server answers so."""
        self.source._url = self.base + quote(name)
        time.sleep(2 * LOOK_EVERY_S)
        took: list[float] = []
        for _ in range(calls):
            began = time.perf_counter()
            self.client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
            took.append(time.perf_counter() - began)
        return took


def p99(values: list[float]) -> float:
    """The value that one in a hundred exceeds."""
    return sorted(values)[int(0.99 * len(values))]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve:
        serve()
        return 0
    stage = Stage()
    stage.block(HEALTHY, args.calls)
    figures: dict[str, dict[str, float]] = {}
    print(f"{'server':28}{'p50 ms':>8}{'p99 ms':>8}{'p99 / healthy':>15}{'quartiles':>14}")
    for name in ATTACKS:
        ratios: list[float] = []
        hostile: list[float] = []
        for pair in range(args.pairs):
            order = (HEALTHY, name) if pair % 2 == 0 else (name, HEALTHY)
            blocks = [stage.block(each, args.calls) for each in order]
            good, bad = blocks if pair % 2 == 0 else reversed(blocks)
            ratios.append(p99(bad) / p99(good))
            hostile += bad
        low, middle, high = statistics.quantiles(ratios, n=4)
        figures[name] = {
            "p50_ms": statistics.median(hostile) * 1e3,
            "p99_ms": p99(hostile) * 1e3,
            "ratio": middle,
            "ratio_low": low,
            "ratio_high": high,
        }
        f = figures[name]
        print(f"{name:28}{f['p50_ms']:8.2f}{f['p99_ms']:8.2f}{middle:15.2f}{low:8.2f}-{high:.2f}")
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=2))
    stage.server.communicate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
