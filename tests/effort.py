"""How many examples a property is shown: all of them in `make test-slow`, a third in the quick suite."""

from __future__ import annotations

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
USUAL = 100
"""Where a property says nothing else."""


def examples(full: int) -> int:
    """For `@settings(max_examples=examples(300))`."""
    return full // 3 if PROFILE == "quick" else full
