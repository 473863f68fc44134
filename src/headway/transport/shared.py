"""A call of a route that joins calls or keeps answers: the steps, for either colour.

    keys ─▶ kept answer? ─▶ identical call in flight? ─▶ make the request, for all who come
             avoid                  share

`conduct` is a generator: it yields what has to be done or waited for, and the transports' drivers
(`shared_drivers`) do it, blocking or awaiting. It begins where the call has begun in the books and
ends with the response for this one caller; a `Listener` goes on with streams.

Whoever joined depends on the request, not on the caller that made it. If that caller leaves, the
request goes on as long as anybody waits (async), or ends as its own business (sync: a thread that
is interrupted takes its connection with it), and those who still wait make a new one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.collecting import outside
from headway.core.model import INFINITY, OK, FailureClass, Outcome
from headway.credentials import Credential, CredentialUnavailable
from headway.errors import DeadlineExceeded
from headway.record import Joint, kept_attempt, share_of
from headway.share.answer import Answer
from headway.share.aside import Job
from headway.share.board import Leg
from headway.share.shelf import WAIT_S
from headway.share.tape import Head, Reader
from headway.transport.alike import Keys, Wish, keys_of, reach_of, wish_of
from headway.transport.keys import declared_credential
from headway.transport.listener import Listener, own_copy, part
from headway.transport.shared_request import Gone, fail

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint, Route, Snapshot
    from headway.transport.flight import Flight
    from headway.transport.wake import Waitable

LOOK_EVERY_S = 1.0
"""How often a caller that waits for another's request sees whether that can still be made."""
_leading: ContextVar[frozenset[str]] = ContextVar("headway_leading", default=frozenset())
"""Calls that the running code is making the request of: it would wait for itself."""


class Ask(NamedTuple):
    """To do: fetch these keys' fingerprints."""

    credentials: dict[str, Credential]


class Rest(NamedTuple):
    """To do: wait for this, so long at most."""

    what: Waitable
    seconds: float


class Alone(NamedTuple):
    """To do: make the call as any other; the result is its response."""


class Lead(NamedTuple):
    """To do: make the request for all who wait (sync: up to its head), or begin it (async)."""

    leg: Leg


Step = Ask | Rest | Alone | Lead
Steps = Generator[Step, Any, "httpx2.Response"]
Identified = tuple[Keys | None, Wish | None, "httpx2.Response | None"]


class Sharing:
    """What one client's transport needs for it, beside its desk."""

    __slots__ = ("_reach", "colour", "stream_class")

    def __init__(self, colour: str, stream_class: Any) -> None:
        self.colour = colour
        self.stream_class = stream_class
        """Joins the family's stream class: the body of a response that shares a stream."""
        self._reach: tuple[Snapshot, dict[str, tuple[Endpoint, ...]]] | None = None

    def reach(self, route: Route, snapshot: Snapshot) -> tuple[Endpoint, ...]:
        """`reach_of`, remembered for the policy in force."""
        if self._reach is None or self._reach[0] is not snapshot:
            self._reach = (snapshot, {})
        known = self._reach[1]
        if route.name not in known:
            known[route.name] = reach_of(route, snapshot)
        return known[route.name]


# --------------------------------------------------------------------------- the steps


def conduct(flight: Flight, sharing: Sharing) -> Steps:
    """The response of one call."""
    keys, wish, response = yield from _identified(flight, sharing)
    if response is not None:
        return response
    if keys is None or wish is None:
        alone: httpx2.Response = yield Alone()
        return alone
    kept_as = keys.answer if wish.may_keep else None
    if not wish.may_join:
        bytes_max = flight.host.shelf.bytes_max(flight.call.route)
        leg = Leg(keys.answer, None, bytes_max=bytes_max)
        leg.kept_as = kept_as
        return (yield from _led(flight, sharing, leg, leg.tape.first_reader()))
    reused_as = keys.answer if wish.may_reuse else None
    key = f"{sharing.colour} {keys.call}"
    return (yield from _joined(flight, sharing, key, kept_as, reused_as))


def _identified(flight: Flight, sharing: Sharing) -> Generator[Step, Any, Identified]:
    """What the call is, and a kept answer, if there is one."""
    try:
        wish = None if flight.call.is_expired else wish_of(flight)
        if wish is None:
            return None, None, None
        call, shelf = flight.call, flight.host.shelf
        reach = sharing.reach(call.route, call.snapshot)
        secrets: dict[str, bytes] = yield Ask(_credentials(flight, reach))
        keys = keys_of(flight, wish.body, reach, secrets)
        if not wish.may_reuse:
            return keys, wish, None
        found = shelf.find(keys.answer, call.route)
        if isinstance(found, Job):
            yield Rest(found, min(WAIT_S, max(0.0, call.deadline_at - flight.clock())))
            found = shelf.found(found)
        if found is None or _home_of(found, flight) is None:
            return keys, wish, None
        return keys, wish, _reused(flight, found)
    except BaseException:
        flight.abandon()
        raise


def _credentials(flight: Flight, reach: tuple[Endpoint, ...]) -> dict[str, Credential]:
    """The declared keys that this caller's request might be sent with.

    Their names wouldn't do: what one stands for may depend on the caller (a callable that looks up
    the tenant), and on the process, where several use one store.
    """
    found: dict[str, Credential] = {}
    for endpoint in reach:
        if endpoint.credential is not None and endpoint.credential not in found:
            try:
                credential = declared_credential(flight.host, endpoint)
            except CredentialUnavailable:
                continue
            if credential is not None:
                found[endpoint.credential] = credential
    return found


def _joined(
    flight: Flight, sharing: Sharing, key: str, kept_as: str | None, reused_as: str | None
) -> Steps:
    record = flight.record

    def joint() -> Joint:
        shared = share_of(record)
        shared.leads = Joint()
        return shared.leads

    def kept() -> Answer | None:
        if reused_as is None:
            return None
        found = flight.host.shelf.at_hand(reused_as, flight.call.route)
        return None if found is None or _home_of(found, flight) is None else found

    while True:
        place = None
        if key not in _leading.get():
            place = flight.host.board.enter(key, record, joint, kept)
        if isinstance(place, Answer):
            return _reused(flight, place)
        if place is None:
            alone: httpx2.Response = yield Alone()
            return alone
        place.reader.deadline_at = flight.call.deadline_at
        if place.leads:
            place.leg.kept_as = kept_as
            token = _leading.set(_leading.get() | {key})
            try:
                return (yield from _led(flight, sharing, place.leg, place.reader))
            finally:
                _leading.reset(token)
        joined = yield from _followed(flight, sharing, place.leg, place.reader)
        if joined is not None:
            return joined


def _led(flight: Flight, sharing: Sharing, leg: Leg, reader: Reader) -> Steps:
    """The response of the caller whose request it is."""
    tape = leg.tape
    reader.deadline_at = flight.call.deadline_at
    try:
        yield Lead(leg)
        # Its own deadline is the request's, too, and says more there.
        yield from _head(flight, leg, reader, deadline_at=INFINITY)
        if tape.head is None:
            assert tape.failure is not None
            raise tape.failure.error
        response: httpx2.Response = leg.upstream
        leg.upstream = None
        if tape.head.streams:
            response.stream = sharing.stream_class(Listener(flight, leg, reader, leads=True))
            return response
        job = leg.keeping
        if job is not None:
            yield Rest(job, WAIT_S)
            flight.host.shelf.heard(job)
    except BaseException:
        outside(part, leg, reader)
        raise
    reader.leave()
    return response


def _followed(
    flight: Flight, sharing: Sharing, leg: Leg, reader: Reader
) -> Generator[Step, Any, httpx2.Response | None]:
    """The response of a caller that joined; None: it has to make a request of its own after all."""
    call, tape = flight.call, leg.tape
    try:
        yield from _head(flight, leg, reader, deadline_at=call.deadline_at)
        head, failure = tape.head, tape.failure
        if head is None and failure is not None and failure.is_own:
            part(leg, reader)
            return None
        share_of(flight.record).decision = "share"
        if head is None:
            assert failure is not None
            raise own_copy(failure.error, flight.request)
        stream: Any
        if head.streams:
            stream = sharing.stream_class(Listener(flight, leg, reader, leads=False))
        else:
            assert leg.body is not None
            stream = flight.desk.home.family.ByteStream(leg.body)
    except BaseException as exc:
        outside(_part_without, flight, leg, reader, exc)
        raise
    if not head.streams:
        reader.leave()
        call.on_answer("share", head.endpoint_id, head.outcome or OK, flight.clock())
    return _response(flight, head, stream, "share")


def _part_without(flight: Flight, leg: Leg, reader: Reader, exc: BaseException) -> None:
    """A caller that joined leaves without an answer."""
    part(leg, reader)
    if isinstance(exc, Exception):
        flight.call.on_answer("share", "", _outcome_of(exc), flight.clock())
    flight.call.cancel(flight.clock())


def _head(
    flight: Flight, leg: Leg, reader: Reader, *, deadline_at: float
) -> Generator[Step, Any, None]:
    """Wait for the head of the answer, or for the failure in its place."""
    tape = leg.tape
    while True:
        reader.look()
        if tape.head is not None or tape.failure is not None:
            return
        if not leg.is_driven():
            fail(leg, Gone(), is_own=True)
            continue
        left = deadline_at - flight.clock()
        if left <= 0:
            raise DeadlineExceeded(
                "The call's deadline passed while it waited for the answer to an identical call.",
                request=flight.request,
            )
        yield Rest(reader, min(left, LOOK_EVERY_S))


def _outcome_of(exc: Exception) -> Outcome:
    return Outcome(FailureClass.CANCELLED, error_type=type(exc).__name__)


def _home_of(answer: Answer, flight: Flight) -> Endpoint | None:
    """The endpoint that a kept answer is of; None: the policy has it no more."""
    return flight.call.snapshot.endpoints.get(answer.endpoint_id)


def _reused(flight: Flight, answer: Answer) -> httpx2.Response:
    """The kept answer, as this caller's response."""
    endpoint, shared = _home_of(answer, flight), share_of(flight.record)
    assert endpoint is not None
    shared.decision = "avoid"
    shared.kept = kept_attempt(
        endpoint,
        answer.model,
        usage=answer.usage,
        response_model=answer.response_model,
        service_tier=answer.service_tier,
        duration_s=answer.duration_s,
        busy_s=answer.busy_s,
    )
    flight.call.on_answer("avoid", endpoint.id, OK, flight.clock())
    head = Head(answer.status, answer.headers, {}, endpoint.id, OK, streams=False)
    return _response(flight, head, flight.desk.home.family.ByteStream(answer.body), "avoid")


def _response(flight: Flight, head: Head, stream: Any, decision: str) -> httpx2.Response:
    headers = [(n, v) for n, v in head.headers if n.lower() not in _RESTAMPED]
    headers += (
        (b"x-headway-attempts", b"0"),
        (b"x-headway-policy-version", b"%d" % flight.call.snapshot.version),
        (b"x-headway-decision", decision.encode()),
    )
    return flight.desk.home.family.Response(
        head.status, headers=headers, stream=stream, extensions=dict(head.extensions)
    )


_RESTAMPED = frozenset({
    b"x-headway-attempts", b"x-headway-policy-version", b"x-headway-decision",
})  # fmt: skip
