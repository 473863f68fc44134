"""What the tests of the core share beyond `tests/conftest.py`."""

from __future__ import annotations

import gc

# The fleets keep a hundred thousand small results alive: with the usual thresholds, collections
# that find nothing take a third of the time.
gc.set_threshold(50_000, 20, 50)
