"""Waiting without waiting: on a fake clock, a backoff moves the clock instead of the sleeper.

The transports wait in real time, which is right for them. In a test with a `FakeClock` a wait that
only time can end would never end, so the calls of such a router are driven through `_HurriedCall`,
which takes the time from the clock. Waits that something else ends (a free slot, a running attempt)
are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from headway.core.model import INFINITY, Action, Wait

if TYPE_CHECKING:
    from headway.core.call import Call
    from headway.core.engine import Engine
    from headway.testing.clock import FakeClock

ENDED_BY_TIME: Final = frozenset({"backoff", "throttled"})


def hurry(engine: Engine, clock: FakeClock) -> Engine:
    """The same engine, whose calls take the time they wait for from `clock`."""
    return cast("Engine", _HurriedEngine(engine, clock))


class _HurriedEngine:
    def __init__(self, engine: Engine, clock: FakeClock) -> None:
        self._engine = engine
        self._clock = clock

    def begin(self, *args: Any, **kwargs: Any) -> Call | None:
        call = self._engine.begin(*args, **kwargs)
        return None if call is None else cast("Call", _HurriedCall(call, self._clock))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class _HurriedCall:
    def __init__(self, call: Call, clock: FakeClock) -> None:
        self._call = call
        self._clock = clock

    def next_action(self, now: float) -> Action:
        action = self._call.next_action(now)
        while (
            isinstance(action, Wait)
            and action.reason in ENDED_BY_TIME
            and now < action.until < INFINITY
            and not self._call.running
        ):
            now = self._clock.advance(action.until - now)
            action = self._call.next_action(now)
        return action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
