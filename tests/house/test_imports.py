"""Imports go down only, and `import headway` stays cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, cast

import pytest

from tests.house.paths import PYPROJECT

NEVER_AT_IMPORT = (
    "aiohttp", "aiolimiter", "genai_prices", "numpy", "opentelemetry.exporter", "opentelemetry.sdk",
    "pytest", "redis", "rich", "scipy", "shtab", "tenacity", "typer", "yaml",
)  # fmt: skip

BARE_BOUND_S = 0.15
"""CPU of `import headway`, beyond `import openai`: the contract. Measured: 0.05 s."""
USED_BOUND_S = 0.40
"""With everything that the first `wrap` imports. Measured: 0.2 s."""
MEMORY_BOUND_MIB = 32.0
"""With everything, beyond the 60 MiB of `import openai`. Measured: 16 MiB."""

PROBE = """
import json, re, sys, time
def resident_mib():
    try:
        status = open("/proc/self/status").read()
    except OSError:
        return 0.0  # elsewhere than on Linux there is no cheap figure
    return int(re.search(r"VmRSS:\\s+(\\d+)", status)[1]) / 1024
import openai
theirs = set(sys.modules)  # openai imports aiohttp where that is installed
before_s, before_mib = time.process_time(), resident_mib()
import headway
bare_s = time.process_time() - before_s
modules = sorted(set(sys.modules) - theirs)
headway.wrap, headway.Router, headway.task, headway.Credential, headway.Shed
used_s = time.process_time() - before_s
print(json.dumps({"bare_s": bare_s, "used_s": used_s, "mib": resident_mib() - before_mib,
                  "modules": modules, "used_modules": sorted(set(sys.modules) - theirs)}))
"""


def probe() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout))


LINT = """
import sys
from importlinter.cli import lint_imports
sys.exit(lint_imports(config_filename=sys.argv[1], no_cache=True))
"""


def test_import_contracts_hold() -> None:
    # In a process of its own: import-linter configures logging and switches our loggers off.
    done = subprocess.run(
        [sys.executable, "-c", LINT, str(PYPROJECT)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("when", ["modules", "used_modules"])
def test_importing_headway_imports_no_extra_no_exporter_and_no_price_data(when: str) -> None:
    modules: list[str] = probe()[when]

    unwanted = [
        module
        for module in modules
        if any(module == name or module.startswith(name + ".") for name in NEVER_AT_IMPORT)
    ]
    assert unwanted == []


def test_the_http_library_is_imported_before_there_are_calls_and_threads() -> None:
    # openai 2 looks for it in sys.modules at each request, and breaks on one that is half-imported.
    code = "import sys, headway; print('httpx2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(find_spec("httpx2") is not None)


@pytest.mark.timing
def test_importing_headway_stays_within_its_cpu_and_memory_bound() -> None:
    # CPU time, so that a busy machine matters little; the least of several runs, since noise only
    # ever adds. Stops at the first moment at which every figure has once been within its bound.
    bounds = {"bare_s": BARE_BOUND_S, "used_s": USED_BOUND_S, "mib": MEMORY_BOUND_MIB}
    least = dict.fromkeys(bounds, float("inf"))
    for _ in range(7):
        found = probe()
        least = {figure: min(least[figure], found[figure]) for figure in bounds}
        if all(least[figure] <= bound for figure, bound in bounds.items()):
            return
    pytest.fail(f"least of 7 runs: {least}; bounds: {bounds}")
