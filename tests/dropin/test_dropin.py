"""openai-python's own tests with every client wrapped: nothing worse than plain but what is known."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
pytestmark = [pytest.mark.dropin, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("openai", ["3.*", "2.54.*"])
def test_wrapped_clients_pass_what_plain_ones_pass(openai: str) -> None:
    # It downloads what it needs: for that the certificates of the machine, not those of our tests.
    outside = {k: v for k, v in os.environ.items() if k != "SSL_CERT_FILE"}
    if os.environ["OUTSIDE_SSL_CERT_FILE"]:
        outside["SSL_CERT_FILE"] = os.environ["OUTSIDE_SSL_CERT_FILE"]
    done = subprocess.run(
        [sys.executable, str(RUN), "--openai", openai],
        capture_output=True,
        text=True,
        check=False,
        env=outside,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
