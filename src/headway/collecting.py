"""Whether the garbage collector is running this code.

A finaliser may run at any allocation, in any thread, under any lock: of ours, of the connection
pool, of whatever exports spans. What waits for a lock there waits for ever.

A sync stream that is left early (`break` out of its loop) lives in a cycle with its generator: it
is the collector that closes it. So it does a generator, or a coroutine of an event loop that has
ended, with all its `finally` and `with` blocks. Another thread has to do the closing then.
"""

from __future__ import annotations

import _thread
import gc
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

_collecting_in = 0
"""Identity of the thread in which a collection is under way; there is only ever one."""


def watch() -> None:
    """Learn of collections. Costs a fraction of a microsecond in each; idempotent."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def is_collecting() -> bool:
    """Whether this code is called by a finaliser that the collector runs."""
    return _collecting_in != 0 and _collecting_in == get_ident()


def outside(work: Callable[..., object], *about: Any) -> None:
    """Do what may wait for a lock: at once, or where the collector runs this code on a thread of
    its own, which nobody waits for."""
    if is_collecting():
        aside(work, *about)
    else:
        work(*about)


def aside(work: Callable[..., object], *about: Any) -> None:
    """Do it on a thread of its own. Takes no lock."""
    with suppress(Exception):  # no threads any more: the process ends
        _thread.start_new_thread(_quietly, (work, about))


def _quietly(work: Callable[..., object], about: tuple[Any, ...]) -> None:
    with suppress(Exception):
        work(*about)


def _note(phase: str, _info: object) -> None:
    global _collecting_in
    _collecting_in = get_ident() if phase == "start" else 0
