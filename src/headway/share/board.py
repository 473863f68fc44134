"""The calls in flight that identical ones may join."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.share.tape import Reader, Tape

if TYPE_CHECKING:
    from headway.record import CallRecord, Joint
    from headway.share.answer import Answer
    from headway.share.aside import Job

LEGS_MAX = 1024
"""Shared requests at once in a process; beyond it calls are made alone."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Of answers under way, all together, before calls are made alone."""


class Leg:
    """One upstream request on behalf of any number of identical calls."""

    __slots__ = (
        "board", "body", "chunks", "give_up", "is_driven", "joint", "keeping", "kept_as", "key",
        "source", "tape", "trial", "upstream",
    )  # fmt: skip

    def __init__(self, key: str, joint: Joint | None, *, bytes_max: int | None = None) -> None:
        self.key = key
        self.joint = joint
        """Who shares its cost; None: nobody may join."""
        self.tape = Tape() if bytes_max is None else Tape(bytes_max)
        self.upstream: Any = None
        """The response as the transport made it, for the caller whose request it is."""
        self.body: bytes | None = None
        """All of a reply that came whole: it goes to each caller at once, past the tape."""
        self.source: Any = None
        """The body of a stream, and the iterator over it."""
        self.chunks: Any = None
        self.trial: Any = None
        """The attempt that brought the answer."""
        self.kept_as: str | None = None
        """What the answer is to be kept under; None: not at all."""
        self.keeping: Job[None] | None = None
        """Where keeping it takes time."""
        self.board: Board | None = None
        """Where callers find it; None: nowhere."""
        self.give_up: Callable[[], None] | None = None
        """Ends the request: nobody waits for it any more."""
        self.is_driven: Callable[[], bool] = _always
        """Whether whoever makes the request still can."""


class Place(NamedTuple):
    """A caller's part in a leg."""

    leg: Leg
    reader: Reader
    leads: bool
    """It is to make the request."""


class Board:
    """Legs by the identity of their calls. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._legs: dict[str, Leg] = {}

    def __len__(self) -> int:
        return len(self._legs)

    def enter(
        self,
        key: str,
        record: CallRecord,
        joint: Callable[[], Joint],
        kept: Callable[[], Answer | None],
    ) -> Place | Answer | None:
        """Join the call of this identity, or begin it; None: there is no room.

        `kept` looks for an answer that has come since the caller looked: an answer is kept before
        its call leaves the board, so whoever finds neither is the first.
        """
        late: Place | None = None
        with self._lock:
            leg = self._legs.get(key)
            if leg is not None:
                reader = leg.tape.reader()
                if reader is not None:
                    late = Place(leg, reader, leads=False)
                    if leg.joint is not None and leg.joint.join(record):
                        return late
            else:
                answer = kept()
                if answer is not None:
                    return answer
                if not self._has_room():
                    return None
            leg = self._legs[key] = Leg(key, joint())
            leg.board = self
            reader = leg.tape.first_reader()
        if late is not None and late.reader.leave() and late.leg.give_up is not None:
            late.leg.give_up()  # its last caller left while we looked in
        return Place(leg, reader, leads=True)

    def close(self, leg: Leg) -> None:
        """It is over: the next identical call begins anew."""
        with self._lock:
            if self._legs.get(leg.key) is leg:
                del self._legs[leg.key]

    def _has_room(self) -> bool:
        if len(self._legs) >= LEGS_MAX:
            return False
        return sum(leg.tape.held_bytes for leg in self._legs.values()) < HELD_BYTES_MAX


def _always() -> bool:
    return True
