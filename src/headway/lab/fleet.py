"""The parent's side of the serving simulator: start it, talk to it, stop it.

with ServingFleet({"a": EndpointSpec(profile="8b-a100")}, time_scale=20) as fleet:
    client = OpenAI(base_url=fleet.base_url("a"), api_key="x")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import headway
from headway.lab.endpoint import LedgerRow
from headway.lab.faults import Fault, to_json

STOP_S = 5.0


class FleetError(RuntimeError):
    """The simulator did not start, or refused a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One endpoint of the fleet."""

    profile: str = "8b-a100"
    slowness: float = 1.0
    """Factor on every step: a slower GPU."""


class ServingFleet:
    """A serving simulator in its own process, so that it shares no GIL with the client."""

    def __init__(
        self,
        endpoints: Mapping[str, EndpointSpec],
        *,
        time_scale: float = 1.0,
        chunk_interval_s: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.time_scale = time_scale
        self._config = {
            "endpoints": {name: asdict(spec) for name, spec in endpoints.items()},
            "time_scale": time_scale,
            "chunk_interval_s": chunk_interval_s,
            "seed": seed,
        }
        self._process: subprocess.Popen[str] | None = None
        self.ports: dict[str, int] = {}
        self.policy_port = 0

    def __enter__(self) -> Self:
        source = str(Path(next(iter(headway.__path__))).parent)
        path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(  # noqa: S603 -- our own module, our own interpreter
            [sys.executable, "-m", "headway.lab.server", json.dumps(self._config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            ready = self._read()
        except BaseException:
            self.close()
            raise
        self.ports = cast("dict[str, int]", ready["ports"])
        self.policy_port = cast("int", ready["policy_port"])
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def base_url(self, endpoint: str) -> str:
        """What an OpenAI client takes as `base_url`."""
        return f"http://127.0.0.1:{self.ports[endpoint]}/v1"

    @property
    def policy_url(self) -> str:
        """Where the policy document is served."""
        return f"http://127.0.0.1:{self.policy_port}/policy.json"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process else None

    def start_run(self, faults: Iterable[Fault] = ()) -> None:
        """Cold engines, empty ledgers; the fault timeline starts now."""
        self._command({"op": "start", "faults": to_json(faults)})

    def publish(self, policy: object) -> str:
        """Put a policy document in place; returns its ETag."""
        return str(self._command({"op": "publish", "policy": policy})["etag"])

    def ledger(self) -> list[LedgerRow]:
        """Every request since the run's start, as the endpoints saw them."""
        rows = cast("list[list[object]]", self._command({"op": "ledger"})["rows"])
        return [LedgerRow._make(row) for row in rows]

    def stats(self) -> dict[str, object]:
        """Clock, CPU seconds, in-flight per endpoint, policy fetches."""
        return self._command({"op": "stats"})

    def close(self) -> None:
        """Ask it to leave; make it leave if it does not."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()  # end of stdin is the signal to leave
            process.wait(STOP_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        finally:
            process.stdout.close()

    def _command(self, message: Mapping[str, object]) -> dict[str, object]:
        if self._process is None or self._process.stdin is None:
            raise FleetError("the fleet is not running")
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if not answer.get("ok"):
            raise FleetError(str(answer.get("error")))
        return answer

    def _read(self) -> dict[str, object]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise FleetError(f"the simulator left with code {self._process.wait(STOP_S)}")
        return cast("dict[str, object]", json.loads(line))
