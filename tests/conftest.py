"""What all tests share."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.effort import PROFILE, USUAL, examples

pytest_plugins = ["headway.testing.fixtures"]

# No test leaves this machine. Each http client otherwise reads a hundred and forty certificates when
# it is made, which takes 24 ms: longer than most tests. Inherited by what tests start.
AUTHORITY = Path(__file__).with_name("authority.pem")
os.environ.setdefault("OUTSIDE_SSL_CERT_FILE", os.environ.get("SSL_CERT_FILE", ""))
os.environ["SSL_CERT_FILE"] = str(AUTHORITY)

# The quick suite finds the same in every run, and `full` (in `make test-slow`) does with all examples;
# `HYPOTHESIS_PROFILE=search` looks for more.
for name in ("quick", "full"):
    settings.register_profile(
        name,
        deadline=None,
        derandomize=True,
        print_blob=True,
        max_examples=examples(USUAL),
    )
settings.register_profile("search", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile(PROFILE)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Many tests call the collector: it need not walk seven thousand tests and the SDK's types."""
    del session
    gc.collect()
    gc.freeze()
