"""The serving simulator: a fleet of OpenAI-compatible endpoints in one process of its own.

    python -m headway.lab.server '{"endpoints": {"a": {"profile": "8b-a100"}}, "time_scale": 20}'

Reads one JSON command a line from stdin, writes one JSON answer a line to stdout, and leaves when
stdin ends, so that it never outlives its parent. `headway.lab.fleet` is the parent's side.

| command | answer |
|---|---|
| (started) | `ready`, `ports{endpoint: port}`, `policy_port` |
| `{"op": "start", "faults": [...]}` | cold engines, empty ledgers, the clock at 0 |
| `{"op": "publish", "policy": {...}}` | `etag`; served at `/policy.json` |
| `{"op": "ledger"}` | `rows`: every request since start |
| `{"op": "stats"}` | `now_s`, `cpu_s`, in-flight and busy (engine) seconds per endpoint |
| `{"op": "quit"}` | leaves |
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from typing import cast

from headway.lab.endpoint import SimulatedEndpoint
from headway.lab.engine_profile import PROFILES, scaled
from headway.lab.faults import from_json
from headway.lab.http1 import Exchange, Listener

TICK_S = 0.004
"""How often engines run and streams are written: the error of every latency, before scaling."""
FAULT_CHECK_S = 0.02

Json = dict[str, object]


class PolicyHost:
    """Serves one JSON document with an ETag, as a config service or bucket does."""

    def __init__(self) -> None:
        self.listener = Listener(self._handle)
        self.fetches = 0
        self._body = b""
        self._etag = ""

    def publish(self, policy: object) -> str:
        """Replace the document; returns its ETag."""
        self._body = json.dumps(policy).encode()
        self._etag = f'"{hashlib.sha256(self._body).hexdigest()[:16]}"'
        return self._etag

    def _handle(self, exchange: Exchange) -> None:
        request = exchange.request
        self.fetches += 1
        if request.path.partition("?")[0] != "/policy.json" or not self._body:
            exchange.reply(404, b"{}")
        elif request.method not in {"GET", "HEAD"}:
            exchange.reply(405, b"{}")
        elif request.headers.get("if-none-match") == self._etag:
            exchange.reply(304, headers={"etag": self._etag})
        else:
            exchange.reply(200, self._body, headers={"etag": self._etag})


class FleetServer:
    """All endpoints, the policy host, one clock and one ticker."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._zero = time.monotonic()
        scale = float(cast("float", config.get("time_scale", 1.0)))
        interval = float(cast("float", config.get("chunk_interval_s", 0.05)))
        seed = int(cast("int", config.get("seed", 0)))
        self.policy = PolicyHost()
        self.endpoints: dict[str, SimulatedEndpoint] = {}
        for name, spec in cast("Mapping[str, Mapping[str, object]]", config["endpoints"]).items():
            profile = PROFILES[str(spec["profile"])]
            slowness = float(cast("float", spec.get("slowness", 1.0)))
            self.endpoints[name] = SimulatedEndpoint(
                name,
                profile if slowness == 1.0 else scaled(profile, slowness),
                clock=self.now,
                time_scale=scale,
                chunk_interval_s=interval,
                seed=seed,
            )

    def now(self) -> float:
        """Real seconds since the run's start."""
        return time.monotonic() - self._zero

    async def open(self) -> Json:
        """Bind every port."""
        for endpoint in self.endpoints.values():
            await endpoint.listener.open()
        await self.policy.listener.open()
        return {
            "ready": True,
            "ports": {name: e.listener.port for name, e in self.endpoints.items()},
            "policy_port": self.policy.listener.port,
        }

    def close(self) -> None:
        """Release every port."""
        for endpoint in self.endpoints.values():
            endpoint.listener.close()
        self.policy.listener.close()

    async def run_ticker(self) -> None:
        """Move time forward until cancelled."""
        checked = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            now = self.now()
            if not 0 <= now - checked < FAULT_CHECK_S:
                checked = now
                for endpoint in self.endpoints.values():
                    await endpoint.apply_faults(now)
            for endpoint in self.endpoints.values():
                endpoint.tick(now)

    async def command(self, message: Mapping[str, object]) -> Json:
        """Carry out one command. Raises ValueError, TypeError, KeyError for a malformed one."""
        op = message["op"]
        if op == "start":
            faults = from_json(cast("list[Json]", message.get("faults", [])))
            unknown = {f.endpoint for f in faults} - self.endpoints.keys()
            if unknown:
                msg = f"faults of unknown endpoints: {sorted(unknown)}"
                raise ValueError(msg)
            self._zero = time.monotonic()
            for endpoint in self.endpoints.values():
                endpoint.reset()
                endpoint.set_faults(faults)
                await endpoint.apply_faults(0.0)
            return {"ok": True}
        if op == "publish":
            return {"ok": True, "etag": self.policy.publish(message["policy"])}
        if op == "ledger":
            rows = [row for e in self.endpoints.values() for row in e.ledger]
            return {"ok": True, "rows": rows}
        if op == "stats":
            inflight = {n: e.engine.running + e.engine.waiting for n, e in self.endpoints.items()}
            return {
                "ok": True,
                "now_s": self.now(),
                "cpu_s": time.process_time(),
                "inflight": inflight,
                "busy_s": {n: e.engine.busy_s for n, e in self.endpoints.items()},
                "policy_fetches": self.policy.fetches,
            }
        msg = f"unknown op: {op!r}"
        raise ValueError(msg)


async def serve(config: Mapping[str, object]) -> None:
    """Run until stdin ends or `quit` arrives."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    server = FleetServer(config)
    _answer(await server.open())
    ticker = asyncio.create_task(server.run_ticker())
    ticker.add_done_callback(lambda _: reader.feed_eof())  # without it nothing would be answered
    # Engines and ledgers make no cycles; a collection would only stall every stream at once.
    gc.freeze()
    gc.disable()
    try:
        while line := await reader.readline():
            try:
                message = cast("Json", json.loads(line))
                if message.get("op") == "quit":
                    break
                _answer(await server.command(message))
            except (ValueError, TypeError, KeyError) as exc:
                _answer({"ok": False, "error": f"{type(exc).__name__}: {exc}"})
        if ticker.done():
            ticker.result()
    finally:
        ticker.cancel()
        server.close()


def _answer(message: Json) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(cast("Json", json.loads(sys.argv[1]))))
