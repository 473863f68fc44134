# long: one state machine, to be read in one sitting
"""One attempt at a call, from the send to the end of its body. Knows no sockets and no event loop.

    send ─▶ arrived ─┬─▶ READ   body kept whole, then judged ─────────────▶ WHOLE | FAILED
                     ├─▶ HOLD   stream kept back until its first content ─▶ OPEN | WHOLE | FAILED
                     └─▶ OPEN   handed to the application, watched to its end

A driver performs the I/O and feeds what comes; whatever an attempt comes to is reported to the call
exactly once. Until an attempt is OPEN its failure is the core's business and invisible outside;
then `handover` takes over.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headway import quirks
from headway.core.model import (
    CANCELLED,
    DEADLINE_SILENT,
    DEADLINE_STREAMING,
    FIRST_TOKEN_LATE,
    OK,
    Attempt,
    FailureClass,
    Outcome,
)
from headway.errors import pass_on
from headway.transport import notes
from headway.transport.continuing import prepare
from headway.transport.decode import (
    Inflater,
    UndecodableError,
    decoded,
    encoding_of,
    inflater_of,
)
from headway.transport.home import Origin
from headway.transport.limits import Limits, limit_reads
from headway.transport.resends import sends_before
from headway.transport.sse import StreamObserver
from headway.transport.sse_lines import BLANK

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.record import AttemptRecord
    from headway.transport.flight import Flight

BODY_BYTES_MAX = 32 * 1024 * 1024
"""A reply that isn't streamed is kept whole up to here, so that what it hides can be told."""
ERROR_BYTES_MAX = 1024 * 1024
"""Error bodies end here; what a caller reads of them is the first lines."""
NO_STREAM = "not_event_stream"
"""What quirks call a document that came where events were asked for."""
HELD_BYTES_MAX = 256 * 1024
HELD_EVENTS_MAX = 64
"""How much of a stream may come without content before it is handed over all the same."""

_UNREADABLE = Outcome(FailureClass.INCOMPLETE_STREAM, error_type="unreadable_encoding")


class State(enum.Enum):
    """How far an attempt has come."""

    SENT = "sent"
    READ = "read"  # a body that is judged whole
    HOLD = "hold"  # a stream before its first content
    OPEN = "open"  # in the application's hands
    WHOLE = "whole"  # read to its end, and good
    FAILED = "failed"
    LOST = "lost"  # another attempt was first


DECIDED = frozenset({State.OPEN, State.WHOLE, State.FAILED, State.LOST})


class Trial:
    """One attempt. Its driver calls `arrived`, then `take` and `ended`, or `broke`."""

    __slots__ = (
        "_bytes",
        "_held",
        "_inflater",
        "_refill_at",
        "_undo_reads",
        "attempt",
        "endpoint",
        "error",
        "finished",
        "flight",
        "headers",
        "injected",
        "is_elsewhere",
        "limits",
        "observer",
        "origin",
        "outcome",
        "record",
        "request",
        "response",
        "state",
        "transparent",
    )

    def __init__(
        self,
        flight: Flight,
        attempt: Attempt,
        endpoint: Endpoint,
        record: AttemptRecord,
        limits: Limits,
        *,
        transparent: bool,
        injected: bool,
        origin: Origin,
    ) -> None:
        self.flight = flight
        self.origin = origin
        """Where it is sent."""
        self.attempt = attempt
        self.endpoint = endpoint
        self.record = record
        self.limits = limits
        self.transparent = transparent
        """Bytes and exceptions go through as they come; the attempt is only watched."""
        self.injected = injected
        """We asked for usage, so its chunk is ours and stays hidden."""
        self.is_elsewhere = False
        """Observed only: sent to another endpoint than the one that was chosen."""
        self.request: httpx2.Request | None = None
        self.response: httpx2.Response | None = None
        self.headers: dict[str, str] = {}
        """The reply's, by lower-case name, as far as anything here reads them."""
        self.error: BaseException | None = None
        self.outcome: Outcome | None = None
        self.observer: StreamObserver | None = None
        self.state = State.SENT
        self.finished = False
        self._held: list[bytes] = []
        self._bytes = 0
        self._inflater: Inflater | None = None
        self._refill_at: float | None = None
        """When a rate limit refills that a stream's head reports as used up."""
        self._undo_reads: Callable[[], None] | None = None

    @property
    def is_inflated(self) -> bool:
        """The body is handed on as plain text, whatever its headers say."""
        return self._inflater is not None and not self.transparent

    @property
    def is_decided(self) -> bool:
        """Nothing more to read before the call can go on."""
        return self.state in DECIDED

    @property
    def is_winner(self) -> bool:
        """It brought what the application gets: open, or whole."""
        return self.state in (State.OPEN, State.WHOLE)

    @property
    def reads_are_limited(self) -> bool:
        """Each read of the connection is bounded below us; no timer is needed around it."""
        return self._undo_reads is not None

    # -- before the commit

    def arrived(self, response: httpx2.Response) -> None:
        """The head of the reply is there; `state` says what to do with its body."""
        self.response = response
        self.record.status = response.status_code
        self.headers = headers = quirks.relevant_headers(response.headers.raw)
        if response.is_closed:
            headers.pop("content-encoding", None)
        notes.server(self)
        flight = self.flight
        if not flight.is_observed:
            self._undo_reads = limit_reads(response, self.limits)
        is_good = 200 <= response.status_code < 300
        if not is_good:
            self.state = State.READ
        elif flight.facts.stream and not _is_document(headers):
            self.observer = StreamObserver(flight.facts.surface, hide_usage=self.injected)
            refill_s = quirks.success_hint(headers, flight.host.wall_clock())
            if refill_s is not None:
                self._refill_at = flight.clock() + refill_s
            self._inflater = inflater_of(encoding_of(headers), flight.desk.home.family)
            self.state = State.OPEN if self.transparent else State.HOLD
            if self._inflater is not None and not self._inflater.is_known:
                # Nothing can be told of such a stream, so it can't be held for its content either,
                # nor be joined to what the application has.
                self.observer = self._inflater = None
                if flight.is_continued:
                    self._fail(_UNREADABLE)
                elif not self.transparent:
                    self._open()
        elif not _is_document(headers) and flight.reads_raw:
            # The application streams a file: it is its own from the first byte.
            self._open()
        else:
            self.state = State.READ

    def take(self, chunk: bytes) -> bool:
        """Take a piece of the body; True when nothing more has to be read."""
        if self.state is State.READ:
            self._held.append(chunk)
            self._bytes += len(chunk)
            return self._read_enough()
        observer = self.observer
        assert observer is not None, "only streams are held"
        out = self.feed(chunk) if not self.flight.is_continued else self._feed_onward(chunk)
        if out:
            self._held.append(out)
            self._bytes += len(out)
        if observer.error is not None:
            self._held.append(observer.error_event)
            self._fail(observer.error)
        elif observer.done and not observer.content_events:
            outcome = observer.outcome()
            if outcome.kind is FailureClass.OK:
                self._open()
            else:
                self._fail(outcome)
        elif (
            observer.content_events
            or self._bytes > HELD_BYTES_MAX
            or observer.events > HELD_EVENTS_MAX
        ):
            self._open()
        return self.is_decided

    def _read_enough(self) -> bool:
        response = self.response
        assert response is not None
        if response.status_code >= 300:
            if self._bytes >= ERROR_BYTES_MAX:
                self._judge()
        elif self._bytes > BODY_BYTES_MAX:
            self._open()
        return self.is_decided

    def swallow(self, content: bytes) -> None:
        """The whole body is in memory already (a mock's reply), and the application's as it is."""
        if not self.is_decided:
            if not self.take(content):
                self.ended()
        elif self.observer is not None:
            self.feed(content)
        if self.state is State.OPEN and self.observer is not None:
            self.observer.finish()
            self.report_stream(self.observer.outcome())
        self.closed()

    def ended(self) -> None:
        """The body ended before anything was decided."""
        if self.state is State.READ:
            self._judge()
            return
        observer = self.observer
        assert observer is not None
        tail = observer.finish()
        if tail:
            self._held.append(tail)
        outcome = observer.outcome()
        if outcome.kind is FailureClass.OK:
            self.state = State.WHOLE
            self.report_stream(outcome)
        else:
            self._fail(outcome)

    def broke(self, exc: BaseException) -> bool:
        """The send or a read failed. False: it is no transport failure and must go on up."""
        phase = "send" if self.response is None else "first_token"
        outcome = self.classified(exc, phase)
        if outcome is None:
            if not self.transparent:
                pass_on(exc, self.flight.request)
            return False
        self.error = self.native(exc)
        self._fail(outcome)
        return True

    def refused(self, exc: BaseException) -> None:
        """It could not even be sent: the endpoint's key can't be had."""
        self.error = exc
        self._fail(Outcome(FailureClass.AUTH, error_type="credential", reached_model=False))

    # -- verdicts

    def _judge(self) -> None:
        """A body was read whole: what is it?"""
        response, flight = self.response, self.flight
        assert response is not None
        body = self.body()
        wall_now = flight.host.wall_clock()
        plain = decoded(encoding_of(self.headers), body, flight.desk.home.family)
        if response.status_code >= 300:
            plain = plain or b""
            outcome = quirks.classify(response.status_code, self.headers, plain, wall_now=wall_now)
            self._fail(flight.learned(self, outcome, plain))
            return
        if plain is None:
            # A reply that can't be looked into is believed: doubting it would buy it again.
            self.state = State.WHOLE
            self.report(notes.with_tokens(OK, None, response.status_code))
            return
        hidden: Outcome | None = None
        if flight.facts.stream:
            # The application waits for events: whatever this is, it isn't that.
            hidden = quirks.classify_body(
                self.headers, plain, surface=flight.facts.surface, stream=True
            )
            if flight.is_delegated and hidden is not None and hidden.error_type == NO_STREAM:
                # An answer all the same. Without a policy it stays what the plain client makes of
                # it: an empty stream.
                hidden = None
        if hidden is not None:
            outcome, facts = hidden, quirks.ReplyFacts()
        else:
            outcome, facts = quirks.read_reply(
                self.headers,
                plain,
                surface=flight.facts.surface,
                wall_now=wall_now,
                counted=flight.is_observed or flight.call.wants_counts,
            )
        notes.reply(self, facts, plain)
        if outcome.kind is FailureClass.OK:
            self.state = State.WHOLE
            self.report(outcome)
        else:
            self._fail(outcome)

    def _open(self) -> None:
        now = self.flight.clock()
        self.limits.progressed()
        won = self.flight.watcher.on_first_token(self.attempt, now)
        self.state = State.OPEN if won else State.LOST
        if not won:
            self.report(CANCELLED)

    def _fail(self, outcome: Outcome) -> None:
        self.state = State.LOST if self.attempt.lost else State.FAILED
        if self.observer is not None:
            notes.stream(self, self.observer)
        self.report(outcome)

    def native(self, exc: BaseException) -> BaseException:
        """An exception as the http library would have raised it: SDKs know no other."""
        if type(exc) is not TimeoutError:
            return exc
        late = self.flight.desk.home.family.ReadTimeout(str(exc), request=self.flight.request)
        late.__cause__ = exc
        return late

    def classified(self, exc: BaseException, phase: str) -> Outcome | None:
        """What an exception means for the attempt; None: it is no transport failure."""
        if isinstance(exc, self.flight.timeouts):
            match self.limits.exceeded():
                case "deadline":
                    return DEADLINE_STREAMING if phase == "stream" else DEADLINE_SILENT
                case "first_token":
                    return FIRST_TOKEN_LATE
                case "idle":
                    return Outcome(FailureClass.STALLED, error_type="idle_timeout")
                case _:
                    pass
        desk = self.flight.desk
        reused = desk.is_warm(self.origin)
        if reused and self.limits.has_connected and self.flight.had_stale(self):
            reused = False  # a second break, on a connection that was made for it
        if reused and self.flight.is_delegated and sends_before(self.flight.request):
            reused = False  # the SDK has sent it before: once per call, as above
        outcome = quirks.classify_exception(exc, phase=phase, reused=reused)
        if phase == "send" and outcome is not None and not outcome.free_retry:
            desk.broken(self.origin)
        return outcome

    # -- in the application's hands (see `handover`)

    def held(self) -> bytes:
        """What was kept back, to be handed over first. Once."""
        held, self._held = b"".join(self._held), []
        return held

    def closed(self) -> None:
        """It is over: finished, left early, cancelled, beaten by another attempt, or collected."""
        if self.finished:
            return
        observer = self.observer
        if observer is not None and (observer.done or observer.terminal):
            self.report_stream(observer.outcome())
            return
        if observer is not None:
            notes.stream(self, observer)
        self.report(CANCELLED)

    def release(self) -> None:
        """The connection goes back to its pool as it came."""
        if self._undo_reads is not None:
            self._undo_reads()
            self._undo_reads = None

    @property
    def feed(self) -> Callable[[bytes], bytes]:
        """Takes a piece of the stream, returns what of it goes on. The observer learns from it."""
        assert self.observer is not None
        return self.observer.feed if self._inflater is None else self._feed_inflated

    @property
    def quick(self) -> Callable[[bytes], bytes]:
        """Tries a piece of the stream as plain content, once the first has come."""
        observer = self.observer
        if observer is None or self._inflater is not None or not observer.content_events:
            return _nothing
        return observer.quick

    def _feed_onward(self, chunk: bytes) -> bytes:
        """The same for the rest of an answer, whose beginning the application has had: no event
        before the first content is handed on."""
        observer, feed, start = self.observer, self.feed, 0
        assert observer is not None
        out: list[bytes] = []
        for blank in BLANK.finditer(chunk):
            piece = feed(chunk[start : blank.end()])
            start = blank.end()
            if observer.content_events:
                out.append(piece)
        piece = feed(chunk[start:])
        if observer.content_events:
            out.append(piece)
        return b"".join(out)

    def _feed_inflated(self, chunk: bytes) -> bytes:
        assert self.observer is not None
        assert self._inflater is not None
        try:
            plain = self._inflater.feed(chunk)
        except UndecodableError as exc:
            if self.transparent:
                return chunk  # the http library fails as it ever did
            desk, request = self.flight.desk, self.flight.request
            what = f"The body can't be decompressed: {exc}"
            raise desk.home.family.DecodingError(what, request=request) from exc
        out = self.observer.feed(plain)
        return chunk if self.transparent else out

    def report_stream(self, outcome: Outcome) -> None:
        """Report a stream's end, with what it told."""
        assert self.observer is not None
        notes.stream(self, self.observer)
        outcome = notes.with_tokens(outcome, self.record.usage, self.record.status)
        if self._refill_at is not None and outcome.kind is FailureClass.OK:
            outcome = outcome._replace(retry_after_s=self._refill_at - self.flight.clock())
        self.report(outcome)

    def interrupted(self, outcome: Outcome) -> bool:
        """Report that the answer broke off. True: the call goes on from another attempt."""
        is_over = self.finished or outcome.kind is FailureClass.CANCELLED
        if is_over or not prepare(self):
            self.report(outcome)
            return False
        self.finished = True
        self.outcome = outcome
        flight = self.flight
        self.record.continued = flight.call.on_interruption(self.attempt, outcome, flight.clock())
        return self.record.continued

    def report(self, outcome: Outcome) -> None:
        """Report the attempt's end to the call. Only the first report counts."""
        if self.finished:
            return
        self.finished = True
        self.outcome = outcome
        if self.is_elsewhere:
            outcome = outcome._replace(free_retry=True)  # it says nothing about that endpoint
        flight = self.flight
        outcome = flight.settled(outcome)
        flight.watcher.on_outcome(self.attempt, outcome, flight.clock())
        if flight.is_observed:
            # A retry that the call may have scheduled is not made.
            flight.watcher.cancel(flight.clock())

    def body(self) -> bytes:
        """All that was kept of a reply."""
        body = b"".join(self._held)
        self._held = [body]
        return body


def _is_document(headers: Mapping[str, str]) -> bool:
    """JSON or a web page: not an event stream, whatever was asked for."""
    return headers.get("content-type", "").startswith(("application/json", "text/html"))


def _nothing(_chunk: bytes) -> bytes:
    return b""
