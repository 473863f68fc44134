"""One caller's side of a stream that several may read: what to hand on, and when it has ended."""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, TypeVar

from headway.core.model import CANCELLED, DEADLINE_STREAMING, INFINITY, OK, FailureClass, Outcome
from headway.errors import PartialAnswer, StreamInterrupted
from headway.transport.interrupted import interruption

if TYPE_CHECKING:
    import httpx2

    from headway.share.board import Leg
    from headway.share.tape import Failure, Reader
    from headway.transport.flight import Flight

E = TypeVar("E", bound=BaseException)

GRACE_S = 0.05
"""How far a thread that reads for others, too, may go beyond its own deadline: most pauses between
tokens are shorter, and a read that is given up breaks the stream for all."""
LOOK_EVERY_S = 1.0
"""How often a caller that waits for a chunk sees whether there is still anybody to bring it."""


class Next(enum.Enum):
    """What a reader has to do to go on."""

    REST = "rest"  # wait for a change
    PULL = "pull"  # fetch the next chunk, for all
    OVER = "over"  # nothing: it has all


class Listener:
    """The rules by which one caller reads. Its stream does the waiting and the fetching."""

    __slots__ = ("_is_told", "_leads", "flight", "leg", "reader")

    def __init__(self, flight: Flight, leg: Leg, reader: Reader, *, leads: bool) -> None:
        self.flight = flight
        self.leg = leg
        self.reader = reader
        self._leads = leads
        self._is_told = leads  # the request's own books tell of the caller whose request it is

    def next(self, *, pulls: bool) -> bytes | Next:
        """The next chunk, or what to do for it. Raises what this caller is to see.

        `pulls`: the caller can fetch chunks itself.
        """
        reader, tape = self.reader, self.leg.tape
        chunk = reader.take()
        if chunk is not None:
            return chunk
        if reader.is_cut:
            raise self._ended_by(Outcome(FailureClass.STALLED, error_type="too_far_behind"))
        if reader.position >= tape.length:
            if tape.failure is not None:
                raise self._ended_early(tape.failure)
            if tape.is_ended:
                self._tell(self.leg.trial.outcome or OK)
                return Next.OVER
        if self.flight.clock() >= reader.deadline_at:
            raise self._ended_by(DEADLINE_STREAMING)
        if pulls and tape.pull_for(reader):
            self._limit_pull()
            return Next.PULL
        return Next.REST

    @property
    def rest_s(self) -> float:
        """How long to wait at most before looking again."""
        deadline_at = self.reader.deadline_at
        if deadline_at == INFINITY:
            return LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(0.0, deadline_at - self.flight.clock()))

    @property
    def is_complete(self) -> bool:
        """The answer has all come; what follows is the end of the transfer."""
        observer = self.leg.trial.observer
        return observer is not None and observer.done and observer.error is None

    def close(self) -> bool:
        """The caller reads no more. True: nobody does, and the request has to be ended."""
        outcome = CANCELLED
        if self.is_complete or self.leg.tape.is_ended:
            outcome = self.leg.trial.outcome or OK
        self._tell(outcome)
        return self.reader.leave()

    def _limit_pull(self) -> None:
        """Bound the read that comes by this caller's own deadline."""
        reader = self.reader
        grace = GRACE_S if len(self.leg.tape.readers) > 1 else 0.0
        self.leg.trial.limits.deadline_at = reader.deadline_at + grace

    def _ended_early(self, failure: Failure) -> BaseException:
        trial = self.leg.trial
        self._tell(trial.outcome or Outcome(FailureClass.INCOMPLETE_STREAM))
        if self._leads and not failure.is_own:
            return failure.error
        if failure.is_own and not self._is_mine(failure):
            error: StreamInterrupted = interruption(trial, None, _INTERRUPTED)
            error.request = self.flight.request
            return error
        return own_copy(failure.error, self.flight.request)

    def _is_mine(self, failure: Failure) -> bool:
        return self.flight.clock() >= self.reader.deadline_at and isinstance(
            failure.error, StreamInterrupted
        )

    def _ended_by(self, outcome: Outcome) -> BaseException:
        error = interruption(self.leg.trial, None, outcome)
        error.request = self.flight.request
        self._tell(outcome)
        return error

    def _tell(self, outcome: Outcome) -> None:
        """End the caller's own call in the books."""
        if self._is_told:
            return
        self._is_told = True
        flight, head = self.flight, self.leg.tape.head
        if outcome is CANCELLED:
            flight.call.cancel(flight.clock())
            return
        endpoint_id = "" if head is None else head.endpoint_id
        flight.call.on_answer("share", endpoint_id, outcome, flight.clock())


_INTERRUPTED = Outcome(FailureClass.INCOMPLETE_STREAM, error_type="shared_request_ended")


def part(leg: Leg, reader: Reader) -> None:
    """A caller leaves a leg; if it was the last, the request ends."""
    if reader.leave() and leg.give_up is not None:
        leg.give_up()


def own_copy(error: E, request: httpx2.Request) -> E:
    """The same error, as an instance of this caller's own."""
    # Constructors differ, and some need what the instance no longer has.
    twin = type(error).__new__(type(error), *error.args)
    twin.args = error.args
    for name, value in error.__dict__.items():
        value = list(value) if name == "__notes__" else value
        twin.__dict__[name] = copy.deepcopy(value) if isinstance(value, PartialAnswer) else value
    if "request" in twin.__dict__:
        twin.__dict__["request"] = request
    twin.__cause__ = error.__cause__
    twin.__suppress_context__ = error.__suppress_context__
    return twin
