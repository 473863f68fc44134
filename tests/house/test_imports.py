"""Imports go down only, and `import headway` stays cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, cast

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.house.paths import PYPROJECT

NEVER_AT_IMPORT = (
    "aiohttp", "aiolimiter", "genai_prices", "numpy", "opentelemetry.exporter", "opentelemetry.sdk",
    "pytest", "redis", "rich", "scipy", "tenacity", "typer", "yaml",
)  # fmt: skip

CPU_BOUND_S = 0.15
MEMORY_BOUND_MIB = 24
"""Beyond `import openai`, which is itself about 60 MiB."""

PROBE = """
import json, resource, sys, time
import openai
before_s, before_kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import headway
bare_s = time.process_time() - before_s
bare_modules = sorted(sys.modules)
headway.wrap, headway.Router, headway.task, headway.Credential, headway.Shed
used_s = time.process_time() - before_s
kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
print(json.dumps({"bare_s": bare_s, "used_s": used_s, "mib": kib / 1024, "modules": bare_modules,
                  "used_modules": sorted(sys.modules)}))
"""


def probe() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout))


def test_import_contracts_hold(capsys: pytest.CaptureFixture[str]) -> None:
    status = lint_imports(config_filename=str(PYPROJECT), no_cache=True)

    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


@pytest.mark.parametrize("when", ["modules", "used_modules"])
def test_importing_headway_imports_no_extra_no_exporter_and_no_price_data(when: str) -> None:
    modules: list[str] = probe()[when]

    unwanted = [
        module
        for module in modules
        if any(module == name or module.startswith(name + ".") for name in NEVER_AT_IMPORT)
    ]
    assert unwanted == []


def test_importing_headway_stays_within_its_cpu_and_memory_bound() -> None:
    # CPU time, so that a busy machine matters little; the least of several runs, since noise only
    # ever adds. Stops at the first run within the bounds.
    runs: list[tuple[float, float]] = []
    for _ in range(7):
        found = probe()
        runs.append((found["used_s"], found["mib"]))
        if min(runs)[0] <= CPU_BOUND_S and min(mib for _, mib in runs) <= MEMORY_BOUND_MIB:
            return
    pytest.fail(f"(CPU s, MiB) of each run: {runs}; bounds {CPU_BOUND_S} s, {MEMORY_BOUND_MIB} MiB")
