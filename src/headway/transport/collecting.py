"""Whether the garbage collector is running this code.

A sync stream that is left early (`break` out of its loop) lives in a cycle with its generator: it
is the collector that closes it, at any allocation, in any thread, also while that thread holds the
engine's lock or the connection pool's. Another thread has to do the closing then.
"""

from __future__ import annotations

import gc
from threading import get_ident

_collecting_in = 0
"""Identity of the thread in which a collection is under way; there is only ever one."""


def watch() -> None:
    """Learn of collections. Costs a fraction of a microsecond in each; idempotent."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def is_collecting() -> bool:
    """Whether this code is called by a finaliser that the collector runs."""
    return _collecting_in != 0 and _collecting_in == get_ident()


def _note(phase: str, _info: object) -> None:
    global _collecting_in
    _collecting_in = get_ident() if phase == "start" else 0
