"""What endpoints do in a parity run, told twice: as bytes on a wire and as the core's own words.

The left side is played to the real transports by a scripted HTTP transport; the right side is what
the virtual driver's endpoint says. That both lead to the same run is what the tests are about, so
the right side is written out by hand and not computed by `quirks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headway.core.model import FailureClass, Outcome
from headway.lab.virtual_records import Served
from tests.servers import DONE, FIN, ROLE, completion, error
from tests.servers import chunk as event

INPUT_TOKENS, OUTPUT_TOKENS = 1, 1
"""What `tests.servers.completion` says."""
CLIENT_TIMEOUT_S = 30.0
"""The application's own `timeout=`: what ends a call that nothing else limits."""
BROKEN = "RemoteProtocolError"
"""The server went away without a word: on a connection that had served before, no one's fault."""
FIRST_S, TOTAL_S = 0.2, 0.5
REFUSED_S, ERROR_S = 0.001, 0.05


class Wire(NamedTuple):
    """One attempt as a server plays it. Times are seconds after the send."""

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - a literal, never changed
    raises: str | None = None
    """An exception of the http library instead of a reply."""
    silent: bool = False
    """No reply at all: the read ends when the client's patience does."""
    stream: tuple[bytes | float, ...] = ()
    """An event stream: bytes, and times at which they come."""
    cut: str | None = None
    """How the stream ends, if not by itself: an exception's name, or "silence"."""
    at_s: float = ERROR_S


class Step(NamedTuple):
    """One way for an attempt to go."""

    plain: Wire
    streamed: Wire
    outcome: Outcome
    """As the core is told of it."""
    stream_outcome: Outcome | None = None
    """Where a stream tells it differently."""
    content: bool = False
    """A stream shows content first."""
    total_s: float = ERROR_S

    def served(self, *, stream: bool) -> Served:
        outcome = self.stream_outcome if stream and self.stream_outcome else self.outcome
        first = FIRST_S if stream and self.content else None
        return Served(outcome, self.total_s, first)


_C = FailureClass
_STREAM: tuple[bytes | float, ...] = (ROLE, FIRST_S, event("Hello"), TOTAL_S, FIN, DONE)


def _refusal(
    status: int, outcome: Outcome, headers: dict[str, str] | None = None, **error_of: Any
) -> Step:
    wire = Wire(status, error("no", **error_of), headers or {})
    return Step(wire, wire, outcome)


OK = Step(
    Wire(200, completion("Hello"), at_s=TOTAL_S),
    Wire(stream=_STREAM),
    Outcome(_C.OK, 200, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS),
    Outcome(_C.OK, 200),
    content=True,
    total_s=TOTAL_S,
)
UNAVAILABLE = _refusal(503, Outcome(_C.OVERLOADED, 503, "503", reached_model=False))
THROTTLED = _refusal(
    429,
    Outcome(_C.RATE_LIMITED, 429, "429", retry_after_s=2.0, reached_model=False),
    {"retry-after": "2"},
)
REFUSED = Step(
    Wire(raises="ConnectError", at_s=REFUSED_S),
    Wire(raises="ConnectError", at_s=REFUSED_S),
    Outcome(_C.CONNECT, None, "ConnectError", reached_model=False),
    total_s=REFUSED_S,
)
SILENT = Step(
    Wire(silent=True),
    Wire(silent=True),
    Outcome(_C.TIMEOUT_BEFORE_FIRST_TOKEN, None, "ReadTimeout"),
    total_s=CLIENT_TIMEOUT_S,
)

FIVE = {
    "ok": OK,
    "503": UNAVAILABLE,
    "429": THROTTLED,
    "refused": REFUSED,
    "timeout": SILENT,
}
"""The five kinds whose sequences are all played."""

MORE = {
    **FIVE,
    "500": _refusal(500, Outcome(_C.SERVER_ERROR, 500, "500")),
    "429 without a hint": _refusal(429, Outcome(_C.RATE_LIMITED, 429, "429", reached_model=False)),
    "429 for long": _refusal(
        429,
        Outcome(_C.RATE_LIMITED, 429, "429", retry_after_s=300.0, reached_model=False),
        {"retry-after": "300"},
    ),
    "503 with a hint": _refusal(
        503,
        Outcome(_C.OVERLOADED, 503, "503", retry_after_s=1.0, reached_model=False),
        {"retry-after-ms": "1000"},
    ),
    "no quota": _refusal(
        429,
        Outcome(_C.QUOTA_EXHAUSTED, 429, "insufficient_quota", reached_model=False),
        kind="insufficient_quota",
        code="insufficient_quota",
    ),
    "400": _refusal(400, Outcome(_C.BAD_REQUEST, 400, "400", reached_model=False)),
    "401": _refusal(401, Outcome(_C.AUTH, 401, "401", reached_model=False)),
    "404": _refusal(404, Outcome(_C.NOT_FOUND, 404, "404", reached_model=False)),
    "408": _refusal(408, Outcome(_C.SERVER_ERROR, 408, "408", soft=True)),
    "don't retry": _refusal(
        503,
        Outcome(_C.OVERLOADED, 503, "503", should_retry=False, reached_model=False),
        {"x-should-retry": "false"},
    ),
    "broken": Step(
        Wire(raises=BROKEN),
        Wire(stream=(ROLE, ERROR_S), cut=BROKEN),
        Outcome(_C.CONNECT, None, BROKEN),
        Outcome(_C.INCOMPLETE_STREAM, None, BROKEN),
    ),
    "cut": Step(
        Wire(200, b'{"id": "c', at_s=TOTAL_S),
        Wire(stream=(ROLE, FIRST_S, event("Hel"), TOTAL_S), cut="ReadError"),
        Outcome(_C.INCOMPLETE_STREAM, 200, "invalid_json"),
        Outcome(_C.INCOMPLETE_STREAM, None, "ReadError"),
        content=True,
        total_s=TOTAL_S,
    ),
}
"""What random runs draw from."""


@dataclass(frozen=True)
class Script:
    """One run: calls one after another, and how their attempts go."""

    calls: tuple[tuple[bool, tuple[str, ...]], ...]
    """(streamed, outcome of attempt 1, 2, ...); attempts beyond the last go as the last."""
    seed: int = 0
    gap_s: tuple[float, ...] = (1.0,)
    """Pause before each call, repeated."""
    route: dict[str, Any] = field(default_factory=dict)
    """Fields of the snapshot's route."""
    deadline_s: float | None = None
    """The deadline that `headway.options` sets on each call."""

    def gap(self, number: int) -> float:
        return self.gap_s[number % len(self.gap_s)]

    def step(self, call: int, attempt: int) -> tuple[bool, Step]:
        """(streamed, what the attempt meets); both from 0."""
        stream, names = self.calls[call]
        return stream, MORE[names[min(attempt, len(names) - 1)]]
