"""Fleets as large as they get, within the bounds of one machine: 8 GB, ten minutes of CPU."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

CPU_S, BYTES = 600, 8 << 30


def bounded() -> None:
    """The kernel ends what goes beyond."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", ["scale", "scale-whole"])
def test_ten_thousand_clients_and_a_thousand_endpoints_fit(scenario: str, tmp_path: Path) -> None:
    report = tmp_path / "page.html"
    command = ["simulate", scenario, "--seeds", "1", "--workers", "1", "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli", *command],
        preexec_fn=bounded,
        capture_output=True,
        text=True,
        check=False,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = used.ru_utime + used.ru_stime
    print(f"{scenario}: {spent_s:.0f} s of CPU so far, {used.ru_maxrss / 1e6:.1f} GB at most")
    assert done.returncode == 0, done.stdout + done.stderr
    assert report.exists()
