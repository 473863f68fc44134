"""The time one attempt may take, enforced where the waiting is done: in each phase and each read.

An http timeout limits one read of a socket, so a server that drips bytes outlasts any. `Limits`
turns the instants of an attempt (total deadline, first token by, longest silence between content)
into the timeout of the very next wait, in three places:

- the `timeout` extension of the request is a `Timeouts`, asked anew for each phase of the send;
- while a body is read over HTTP/1.1, the connection's `read` is given the time left;
- within a phase, where a head drips in or a body is taken in sips, a timer of the event loop bounds
  the whole, and for threads the connection itself asks again before each wait (see `network`).

Only content is progress: keep-alives don't reset the idle clock. While the application holds a
chunk and reads nothing, the clock stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headway.core.model import INFINITY, Attempt

if TYPE_CHECKING:
    import httpx2

SHORTEST_WAIT_S = 0.001
"""A zero timeout would make a socket non-blocking instead of timing it out."""
FOREVER_S = 7 * 86400.0
"""No limit, and still a number: sockets take no timeout of more than 24 days."""
DRAIN_S = 0.05
"""How long the end of a finished stream is awaited so that its connection can be reused."""


class Limits:
    """The instants that bound an attempt, and how far it has come."""

    __slots__ = (
        "_clock",
        "_left_at",
        "deadline_at",
        "drain_by",
        "first_token_by",
        "has_connected",
        "idle_s",
        "is_bounded",
        "is_fresh",
        "progress_at",
    )

    def __init__(self, attempt: Attempt, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.deadline_at = attempt.deadline_at
        self.first_token_by = attempt.first_token_by
        self.idle_s = attempt.idle_s
        self.is_bounded = not (self.deadline_at == self.first_token_by == self.idle_s == INFINITY)
        """False: there is nothing to keep time for, and the clock need not be read."""
        self.has_connected = False
        """A connection was made for it: httpcore asks for that phase's timeout then, and only then.
        Told where the request carries `Timeouts`."""
        self.progress_at: float | None = None
        """Since when content is awaited; None before the first."""
        self.is_fresh = False
        """Content has come since: the silence begins with the next wait. A flag, and no instant,
        because it is set for each token, and most clocks cost more than the token does."""
        self.drain_by: float | None = None
        self._left_at: float | None = None

    @property
    def until(self) -> float:
        """The instant at which the present wait is over."""
        if self.drain_by is not None:
            return self.drain_by
        if self.is_fresh:
            self.is_fresh = False
            self.progress_at = self._clock()
        if self.progress_at is None:
            return min(self.deadline_at, self.first_token_by)
        return min(self.deadline_at, self.progress_at + self.idle_s)

    def left_s(self) -> float | None:
        """Seconds until then; None when nothing limits it."""
        until = self.until
        return None if until == INFINITY else max(until - self._clock(), SHORTEST_WAIT_S)

    def shorter(self, timeout: float | None) -> float | None:
        """The lesser of a caller's own timeout and what is left. TimeoutError: nothing is left,
        and a wait that could end at once, for a server that floods, must not even begin."""
        until = self.until
        return timeout if until == INFINITY else self._within(until, timeout)

    def _within(self, until: float, timeout: float | None) -> float:
        left = until - self._clock()
        if left <= 0:
            raise TimeoutError("no time left for this attempt")
        left = max(left, SHORTEST_WAIT_S)
        return timeout if timeout is not None and timeout < left else left

    def exceeded(self) -> str | None:
        """What has run out: "deadline", "first_token", "idle" or "drain"; None: nothing of ours."""
        until, now = self.until, self._clock()
        if now < until:
            return None
        if self.drain_by is not None:
            return "drain"
        if now >= self.deadline_at:
            return "deadline"
        return "first_token" if self.progress_at is None else "idle"

    def progressed(self) -> None:
        """Content came."""
        self.is_fresh = True

    def let_go(self, stream: Any) -> None:
        """The connection is about to go back to its pool, as it came."""
        stream.__dict__.pop("read", None)

    def drain(self) -> None:
        """Nothing of interest follows: wait for the end only this long."""
        if self.drain_by is None:
            self.drain_by = self._clock() + DRAIN_S

    def handed_over(self) -> None:
        """The application has a chunk, and isn't reading."""
        if self.is_bounded and not self.is_fresh:
            self._left_at = self._clock()

    def resumed(self) -> None:
        """The application reads again: its own time doesn't count as the server's silence."""
        if self._left_at is not None:
            if self.progress_at is not None:
                self.progress_at += self._clock() - self._left_at
            self._left_at = None


class Leash(Limits):
    """The limits of an attempt that runs beside another in a thread of its own, and may be given up
    from outside: no wait of it begins after that, and the one that is under way is cut short."""

    __slots__ = ("_is_back", "_lock", "awaits_answer")

    def __init__(self, attempt: Attempt, clock: Callable[[], float]) -> None:
        super().__init__(attempt, clock)
        # A limit of some kind makes the http library ask us before each wait.
        self.first_token_by = min(self.first_token_by, clock() + FOREVER_S)
        self._lock = threading.Lock()
        self._is_back = False
        self.awaits_answer = False
        """The connection that the request was given carries it, and it alone."""

    def let_go(self, stream: Any) -> None:
        """From here on the connection may be somebody else's."""
        with self._lock:
            self._is_back = True
            super().let_go(stream)

    def give_up(self, cut: Callable[[], None]) -> None:
        """Wait for nothing more; `cut` ends the present wait, while the connection is still its."""
        with self._lock:
            self.deadline_at = -INFINITY
            if not self._is_back:
                cut()


class Remaining(float):
    """A timeout as the http library asks for it once for many waits in a row, which knows what is
    left when each of them begins."""

    __slots__ = ("_limits", "user")

    _limits: Limits
    user: float | None
    """The caller's own timeout for one wait."""

    @classmethod
    def of(cls, limits: Limits, user: float | None) -> Remaining | float | None:
        """What limits a wait that begins now, and those after it."""
        until = limits.until
        if until == INFINITY:
            return user
        made = cls(limits._within(until, user))
        made._limits = limits
        made.user = user
        return made

    def now(self) -> float | None:
        """What limits a wait that begins now."""
        return self._limits.shorter(self.user)


class Timeouts(dict[str, float | None]):
    """The `timeout` extension of a request: the user's values, and never more than what is left."""

    def __init__(self, user: Mapping[str, float | None], limits: Limits) -> None:
        super().__init__({phase: user.get(phase) for phase in ("connect", "read", "write", "pool")})
        self._limits = limits

    def get(self, phase: str, default: Any = None, /) -> Any:
        """The timeout of a phase that begins now."""
        if phase == "connect":
            self._limits.has_connected = True
        elif phase == "read" and type(self._limits) is Leash:
            self._limits.awaits_answer = True
        return Remaining.of(self._limits, super().get(phase, default))

    def __getitem__(self, phase: str) -> float | None:
        timeout: float | None = self.get(phase)
        return timeout


def limit_reads(response: httpx2.Response, limits: Limits) -> Callable[[], None] | None:
    """Bound each read of this response's connection; returns how to undo it, None if it can't be.

    Over HTTP/1.1 a connection belongs to one response until that is closed. HTTP/2 shares it, and a
    transport that isn't httpcore's has none: there the limits hold between reads only (sync), or by
    a timer of the event loop (async).
    """
    stream: Any = response.extensions.get("network_stream")
    version = response.extensions.get("http_version", b"")
    read = getattr(stream, "read", None)
    if read is None or not version.startswith(b"HTTP/1"):
        return None

    def bounded(max_bytes: int, timeout: float | None = None) -> Any:
        # What the library asked for when the body began is what was left then.
        user = timeout.user if type(timeout) is Remaining else timeout
        return read(max_bytes, limits.shorter(user))

    try:
        stream.read = bounded
    except AttributeError:  # a class with slots: nobody's we know of
        return None

    def undo() -> None:
        limits.let_go(stream)

    return undo
