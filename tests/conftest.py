"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["headway.testing.fixtures"]

# The quick suite finds the same in every run; `HYPOTHESIS_PROFILE=search` looks for more.
settings.register_profile("quick", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("search", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
