"""What the tests of shared calls have in common: a server that waits, callers that gather."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from headway.router import Router
from tests.servers import Seen, Step


class Gate:
    """A step that answers only once the test lets it."""

    def __init__(self, step: Step | Callable[[Seen], Step]) -> None:
        self._step = step
        self._open = threading.Event()

    def __call__(self, seen: Seen) -> Step:
        assert self._open.wait(20), "nobody opened the gate"
        return self._step(seen) if callable(self._step) else self._step

    def open(self) -> None:
        self._open.set()


def wait_until(condition: Callable[[], Any], within_s: float = 20.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.002)


def callers(router: Router) -> int:
    """Callers that share the one request under way."""
    legs = list(router.board._legs.values())
    return sum(leg.joint.callers for leg in legs if leg.joint is not None)


class Crowd:
    """Threads that do the same at once; what each returned, or raised."""

    def __init__(self, count: int, work: Callable[[int], Any]) -> None:
        self.results: list[Any] = [None] * count
        self.errors: list[BaseException | None] = [None] * count
        self._threads = [
            threading.Thread(target=self._run, args=(i, work), daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, index: int, work: Callable[[int], Any]) -> None:
        try:
            self.results[index] = work(index)
        except BaseException as exc:
            self.errors[index] = exc

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a caller hangs"
        return self.results
