# long: one vocabulary: values, actions and events are read together
"""The core's vocabulary: what a call is, what to do next, how an attempt ended, what happened.

Everything here is a value. `FailureClass` with its `TRAITS` row says what an outcome means for
health, for retries and for whom to blame; the actions (`Send`, `Wait`, `Finish`) are what a driver
performs; the events are the facts that telemetry, hooks and tests read.

Hot-path values are named tuples: immutable, and several times cheaper to build than frozen
dataclasses. All instants are monotonic seconds, supplied by the caller.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import NamedTuple, Protocol, TypeAlias

INFINITY = float("inf")


class Rng(Protocol):
    """The random source the core is handed: `random.Random` fits."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


class Lock(Protocol):
    """The mutual exclusion the core is handed: `threading.Lock` fits, and so does a no-op."""

    def __enter__(self) -> object: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> object: ...


# --------------------------------------------------------------------------- outcomes


class FailureClass(enum.StrEnum):
    """How an attempt ended. `quirks.classify` maps the wire to these."""

    __hash__ = str.__hash__  # the enum's own is written in Python, and this keys `TRAITS`
    OK = "ok"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CONNECT = "connect"
    TIMEOUT_BEFORE_FIRST_TOKEN = "timeout_before_first_token"
    STALLED = "stalled"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    CONTENT_FILTER = "content_filter"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    INCOMPLETE_STREAM = "incomplete_stream"
    CANCELLED = "cancelled"


class Blame(enum.StrEnum):
    """Whose fault an outcome is."""

    REQUEST = "request"
    CREDENTIAL = "credential"
    DEPLOYMENT = "deployment"
    HOST = "host"
    CALLER = "caller"
    UNKNOWN = "unknown"


class Health(enum.StrEnum):
    """What an outcome teaches about the endpoint's health."""

    GOOD = "good"
    HARD = "hard"  # counts towards consecutive failures and the failure ratio
    SOFT = "soft"  # counts towards the ratio only, and fails a probe
    NOTHING = "nothing"  # teaches nothing: released, never recorded


class Traits(NamedTuple):
    """One row of the outcome table."""

    blame: Blame
    health: Health
    retry_here: bool
    move_elsewhere: bool


_C, _B, _H = FailureClass, Blame, Health

TRAITS: dict[FailureClass, Traits] = {
    _C.OK: Traits(_B.UNKNOWN, _H.GOOD, False, False),
    _C.RATE_LIMITED: Traits(_B.DEPLOYMENT, _H.SOFT, True, True),
    _C.QUOTA_EXHAUSTED: Traits(_B.CREDENTIAL, _H.NOTHING, False, True),
    _C.OVERLOADED: Traits(_B.DEPLOYMENT, _H.HARD, True, True),
    _C.SERVER_ERROR: Traits(_B.DEPLOYMENT, _H.HARD, True, True),
    _C.CONNECT: Traits(_B.HOST, _H.HARD, True, True),
    _C.TIMEOUT_BEFORE_FIRST_TOKEN: Traits(_B.DEPLOYMENT, _H.HARD, True, True),
    _C.STALLED: Traits(_B.DEPLOYMENT, _H.HARD, True, True),
    _C.BAD_REQUEST: Traits(_B.REQUEST, _H.NOTHING, False, False),
    _C.CONTEXT_LENGTH: Traits(_B.REQUEST, _H.NOTHING, False, True),  # only to a larger window
    _C.CONTENT_FILTER: Traits(_B.REQUEST, _H.NOTHING, False, False),
    _C.AUTH: Traits(_B.CREDENTIAL, _H.NOTHING, False, True),
    _C.NOT_FOUND: Traits(_B.DEPLOYMENT, _H.NOTHING, False, True),
    _C.INCOMPLETE_STREAM: Traits(_B.DEPLOYMENT, _H.HARD, True, True),
    _C.CANCELLED: Traits(_B.CALLER, _H.NOTHING, False, False),
}


class Outcome(NamedTuple):
    """How one attempt ended, as the driver saw it."""

    kind: FailureClass
    status: int | None = None
    error_type: str | None = None
    """Low-cardinality text for telemetry: "503", "ConnectError", "rate_limit_exceeded"."""
    retry_after_s: float | None = None
    """The server's hint; None when absent or unusable."""
    should_retry: bool | None = None
    """The server's `x-should-retry`, when it sent one."""
    reached_model: bool = True
    """False only if it is certain that no model ran (connect phase, refusal by status)."""
    soft: bool = False
    """True demotes a hard health signal to a soft one (408, 409, 425)."""
    free_retry: bool = False
    """The failure says nothing about the endpoint (a stale keep-alive connection, an option the
    server does not know and that will now be left out): repeat at once, outside the budget.
    Honoured twice per call at most."""
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def health(self) -> Health:
        """What this outcome teaches."""
        health = TRAITS[self.kind].health
        return Health.SOFT if self.soft and health is Health.HARD else health


class Usage(NamedTuple):
    """Token counts of one attempt. None is unknown, never zero."""

    input_tokens: int | None = None
    """Includes cached tokens."""
    output_tokens: int | None = None
    """Includes reasoning tokens."""
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    provider_cost_usd: Decimal | None = None
    """What the provider itself says the call cost."""
    estimated: bool = False
    """Counted here (characters, chunks) because the server told nothing usable."""


CANCELLED = Outcome(FailureClass.CANCELLED, error_type="cancelled")
OK = Outcome(FailureClass.OK)
FIRST_TOKEN_LATE = Outcome(
    FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN, error_type="first_token_timeout"
)
"""`Attempt.first_token_by` passed in silence."""
DEADLINE_SILENT = Outcome(FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN, error_type="deadline", soft=True)
"""The caller's deadline passed in silence: soft, since it may just have been short."""
DEADLINE_STREAMING = Outcome(FailureClass.CANCELLED, error_type="deadline")
"""The caller's deadline passed while content kept coming: says nothing about the endpoint."""
OVERLOAD = frozenset(
    {
        FailureClass.RATE_LIMITED,
        FailureClass.OVERLOADED,
        FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN,
    }
)
"""What an endpoint does that is asked for more than it carries."""


# --------------------------------------------------------------------------- a call and its actions


class Allowance(Protocol):
    """What a task allows beyond the first attempts of its calls. Shared by calls that run at once,
    so it is taken from, not looked at."""

    def take_extra_attempt(self) -> bool:
        """Use up one; False when there is none left."""
        ...

    def return_extra_attempt(self) -> None:
        """Give one back that was never sent."""
        ...


@dataclass(slots=True)
class CallFacts:
    """What the driver knows of one call before it is sent."""

    model: str
    surface: str = "chat"
    stream: bool = False
    prompt_tokens: int = 0
    """Estimated from the body's size; used for size buckets, windows and predictions."""
    max_output_tokens: int | None = None
    body_bytes: int = 0
    prefix: tuple[int, ...] = ()
    """Chained hashes of the prompt's leading blocks, longest last; no text."""
    session: str | None = None
    task_id: str | None = None
    task_name: str | None = None
    traffic_class: str | None = None
    priority: int = 0
    """Higher goes first. Negative is background work: waits longer, is shed first."""
    deadline_at: float = INFINITY
    repeatable: bool = True
    """False when running it twice could do harm beyond cost (stored objects, server-side tools)."""
    attempts_max: int | None = None
    """The caller's own retry setting plus one; used when the policy is silent."""
    hedge: bool | None = None
    """None: as the route says. The driver sets False where it cannot overlap attempts."""
    pinned_to: str | None = None
    """Only this endpoint will do: the object the call names lives there."""
    allowance: Allowance | None = None
    """The task's own cap on attempts beyond the first of each call; None: no task, no cap."""
    route: str | None = None
    """A route named by the caller, instead of matching by model."""
    resend: int = 0
    """Requests of this call that the caller's SDK has sent before this one: attempts of the same
    call, which are counted on."""
    owed_since: float | None = None
    """The resend was not paid for: the last request, begun then, was turned away beside others."""
    delegated: bool = False
    """The caller's SDK runs the retry loop (no policy configured): one attempt per call here, and
    `Call.retry_granted` says whether the budget lets the SDK go on."""


class AttemptKind(enum.StrEnum):
    """Why an attempt was made."""

    INITIAL = "initial"
    RETRY = "retry"
    HEDGE = "hedge"
    FALLBACK = "fallback"
    PROBE = "probe"


@dataclass(slots=True, eq=False)
class Attempt:
    """One send of a call to one endpoint. The driver holds it and hands it back."""

    number: int
    kind: AttemptKind
    endpoint_id: str
    model: str
    started_at: float
    deadline_at: float
    """The call's total deadline: the attempt must be over by then."""
    first_token_by: float
    """Give up before the first content token at this instant (INFINITY: no limit)."""
    idle_s: float
    """Longest silence between content after the first token (INFINITY: no limit)."""
    reason: str = "only"
    """predicted | weight | affinity | only | fallback | probe | pinned"""
    predicted_s: float | None = None
    backoff_s: float = 0.0
    breaker_state: str = "closed"
    permit: int = 0
    """Breaker generation the attempt was admitted under."""
    is_probe: bool = False
    first_token_at: float | None = None
    lost: bool = False
    """Another attempt of the same call won: the driver closes this one."""
    ended: bool = False
    planned_uncached_tokens: int = 0


class Rejection(NamedTuple):
    """A refusal made here, before any spend."""

    reason: str
    """queue_full | queue_wait | yielded | throttled | quota | no_endpoint | deadline |
    policy_expired | cancelled"""
    retry_after_s: float | None = None
    detail: tuple[tuple[str, str, float], ...] = ()
    """(endpoint id, why it is out, seconds until it may be back)."""


class Send(NamedTuple):
    """Send the call to `attempt.endpoint_id` now."""

    attempt: Attempt


class Wait(NamedTuple):
    """Do nothing until `until`, until woken (see `Call.set_waker`), or until an attempt ends."""

    until: float
    reason: str
    """backoff | queue | throttled | hedge | running"""


class Finish(NamedTuple):
    """The call is decided: surface what `attempt` brought, or the `rejection`."""

    attempt: Attempt | None
    rejection: Rejection | None = None


Action: TypeAlias = Send | Wait | Finish
Waker: TypeAlias = Callable[[], None]


# --------------------------------------------------------------------------- events


class AttemptStarted(NamedTuple):
    """An attempt is about to be sent."""

    call_id: int
    attempt: Attempt
    at: float


class FirstToken(NamedTuple):
    """The first content of an attempt came, `ttft_s` seconds after it was sent."""

    call_id: int
    attempt: Attempt
    ttft_s: float
    at: float


class AttemptEnded(NamedTuple):
    """An attempt is over, its stream included."""

    call_id: int
    attempt: Attempt
    outcome: Outcome
    result: str
    """ok | error | timeout | cancelled | lost"""
    duration_s: float
    at: float


class RetryDenied(NamedTuple):
    """A call failed and is not attempted again."""

    call_id: int
    reason: str
    """budget | task_budget | deadline | not_retryable | attempts | breaker | hint"""
    at: float


class CallQueued(NamedTuple):
    """A call waits for its turn."""

    call_id: int
    priority: int
    reason: str
    at: float


class CallDequeued(NamedTuple):
    """Its wait is over, after `wait_s` seconds."""

    call_id: int
    priority: int
    wait_s: float
    at: float


class CallRejected(NamedTuple):
    """A call was refused before anything was spent on it."""

    call_id: int
    rejection: Rejection
    priority: int
    at: float
    mode: str | None = None
    """The route's own mode: where it is "observe", nothing was refused. None: as the router's."""


class CallEnded(NamedTuple):
    """The call is over, its stream included. `winner` is the attempt whose answer was surfaced."""

    call_id: int
    winner: Attempt | None
    outcome: Outcome
    attempts: int
    at: float


class CallShared(NamedTuple):
    """The call was answered without a request of its own; `CallEnded` follows, with no attempt."""

    call_id: int
    decision: str
    """share: it joined an identical call in flight. avoid: the answer had been kept."""
    endpoint_id: str
    """Where the answer had come from."""
    at: float


class BreakerChanged(NamedTuple):
    """A breaker opened, closed, or lets a probe through."""

    endpoint_id: str
    model: str
    old: str
    new: str
    reason: str
    until: float
    at: float


class EndpointThrottled(NamedTuple):
    """The endpoint asked for quiet until `until` (not a health failure)."""

    endpoint_id: str
    model: str
    until: float
    at: float


class CredentialBlocked(NamedTuple):
    """A credential is not used until `until`: its key was refused, or its quota is spent."""

    credential: str
    endpoint_id: str
    reason: str
    until: float
    at: float


class EndpointEjected(NamedTuple):
    """An endpoint is left out until `until`: it was clearly worse than its peers."""

    endpoint_id: str
    reason: str
    until: float
    at: float


class EndpointReadmitted(NamedTuple):
    """It takes part again."""

    endpoint_id: str
    at: float


class LimitChanged(NamedTuple):
    """The number of attempts at once that an endpoint carries was learned anew."""

    endpoint_id: str
    limit: float
    at: float


class BudgetExhausted(NamedTuple):
    """A route has no retry token left."""

    pool: str
    at: float


class FleetStoreChanged(NamedTuple):
    """The store that counts for the fleet can be asked again, or can't: then own shares hold."""

    is_reachable: bool
    reason: str
    """The class of what was raised; "" when it is back."""
    at: float


class PolicyLoaded(NamedTuple):
    """A document is in force."""

    policy_id: str
    epoch: int
    version: int
    source: str
    at: float


class PolicyRejected(NamedTuple):
    """An offered document was refused; the last good one stays in force."""

    source: str
    reason: str
    """fetch | too_large | invalid | signature | other_policy | rollback | same | expired"""
    message: str
    at: float


class PolicyStale(NamedTuple):
    """Nobody vouches any more for the document in force: `fresh_until` has passed."""

    policy_id: str
    version: int
    age_s: float
    at: float


Event: TypeAlias = (
    AttemptStarted
    | FirstToken
    | AttemptEnded
    | RetryDenied
    | CallQueued
    | CallDequeued
    | CallRejected
    | CallEnded
    | CallShared
    | BreakerChanged
    | EndpointThrottled
    | CredentialBlocked
    | EndpointEjected
    | EndpointReadmitted
    | LimitChanged
    | BudgetExhausted
    | FleetStoreChanged
    | PolicyLoaded
    | PolicyRejected
    | PolicyStale
)
"""Any of them."""

EVENTS: tuple[type, ...] = Event.__args__
"""Every type of event."""

Sink: TypeAlias = Callable[[Event], None]
Batch: TypeAlias = tuple[list[tuple[Sink | None, Event]], list[Waker]]
"""What one turn has to tell and whom to wake, once the engine's lock is released."""
