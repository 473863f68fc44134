"""Property tests print how to repeat a failure, and never fail for being slow on a busy machine."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

settings.register_profile(
    "core", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("core")

# The fleets keep a hundred thousand small results alive: with the usual thresholds, collections that
# find nothing take a third of the time.
gc.set_threshold(50_000, 20, 50)
