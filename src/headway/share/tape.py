"""One upstream answer as it comes, for any number of readers.

    add, add, add, end | fail          whoever drives the request writes
    take, take, take                   each reader has its own place, and begins at the beginning

Thread-safe, and waits for nothing: a reader that has everything leaves a waker behind, which is
called (outside the lock) at the next change. What has come is kept from the start, so that a late
reader can begin there, up to `TAPE_BYTES_MAX`; from then on no reader is let in, and only what some
reader hasn't taken is kept. A reader that lags by more than that is cut off: it must not hold up
the others, nor memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headway.core.model import INFINITY, Outcome

TAPE_BYTES_MAX = 8 * 1024 * 1024
"""Of one answer: some 30,000 streamed tokens."""


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    extensions: dict[str, object]
    endpoint_id: str
    outcome: Outcome | None
    """How the attempt that brought it ended; None: it hasn't yet."""
    streams: bool
    """The body is still coming."""


class Failure(NamedTuple):
    """Why there is no (further) answer."""

    error: BaseException
    is_own: bool
    """It was the business of the caller that made the request: others make one of their own."""


class Reader:
    """One caller's place in an answer. Waited on like a call: see `set_waker`."""

    __slots__ = (
        "_seen", "_tape", "deadline_at", "is_cut", "is_gone", "position", "taken_bytes", "waker",
    )  # fmt: skip

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._seen = -1
        self.position = 0
        """Chunks taken so far."""
        self.taken_bytes = 0
        self.deadline_at = INFINITY
        """Until when its caller waits."""
        self.waker: Callable[[], None] | None = None
        self.is_cut = False
        """It fell too far behind."""
        self.is_gone = False

    def take(self) -> bytes | None:
        """The next chunk; None: there is none yet, or none any more."""
        tape = self._tape
        with tape.lock:
            self._seen = tape.version
            if self.is_cut or self.position >= tape.length:
                return None
            chunk = tape.chunks[self.position - tape.dropped]
            self.position += 1
            self.taken_bytes += len(chunk)
            if not tape.keeps_all:
                tape.trim()
            writer = tape.writer
        if writer is not None:
            writer()
        return chunk

    def look(self) -> None:
        """Take note of how things stand: only a change after this wakes it."""
        self._seen = self._tape.version

    def set_waker(self, waker: Callable[[], None] | None) -> bool:
        """Ask to be woken at the next change; True: there has been one."""
        with self._tape.lock:
            self.waker = waker
            return self._seen != self._tape.version

    def leave(self) -> bool:
        """Read no more. True: it was the last one, and the answer hasn't ended."""
        tape = self._tape
        with tape.lock:
            if self.is_gone:
                return False
            self.is_gone = True
            self.waker = None
            tape.readers.discard(self)
            if tape.puller is self:
                tape.puller = None
                tape.version += 1
            tape.is_abandoned = tape.is_abandoned or not tape.readers
            last = not tape.readers and not tape.is_over
        tape.tell()
        return last


class Tape:
    """The answer, as far as it has come."""

    def __init__(self, bytes_max: int = TAPE_BYTES_MAX) -> None:
        self.lock = threading.Lock()
        self.version = 0
        self.head: Head | None = None
        self.failure: Failure | None = None
        self.is_ended = False
        self.is_abandoned = False
        """Every reader has left it."""
        self.chunks: deque[bytes] = deque()
        self.dropped = 0
        """Chunks from the start that are kept no longer."""
        self.held_bytes = 0
        self.keeps_all = True
        self.readers: set[Reader] = set()
        self.watchers: set[Reader] = set()
        """They only want to know when it is over."""
        self.writer: Callable[[], None] | None = None
        """Wakes whoever writes, when something was taken (async)."""
        self.written_bytes = 0
        self.puller: Reader | None = None
        """The reader that is fetching the next chunk (sync): one at a time."""
        self._bytes_max = bytes_max

    @property
    def length(self) -> int:
        """Chunks that have come."""
        return self.dropped + len(self.chunks)

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return self.is_ended or self.failure is not None

    def reader(self) -> Reader | None:
        """A new reader, from the start; None when it is too late for that."""
        with self.lock:
            if self.is_abandoned or self.failure is not None or not self.keeps_all:
                return None
            reader = Reader(self)
            self.readers.add(reader)
        return reader

    def first_reader(self) -> Reader:
        """The reader of a tape that nobody else knows of."""
        reader = self.reader()
        assert reader is not None, "a new tape takes readers"
        return reader

    def watch(self) -> Reader:
        """What to wait on for its end; counts as no reader. Give it back with `unwatch`."""
        watcher = Reader(self)
        with self.lock:
            self.watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: Reader) -> None:
        """It is waited on no more."""
        with self.lock:
            self.watchers.discard(watcher)

    def begin(self, head: Head) -> None:
        """The head of the answer is there."""
        with self.lock:
            self.head = head
            self.version += 1
        self.tell()

    def add(self, chunk: bytes) -> None:
        """A piece of its body is."""
        with self.lock:
            self.chunks.append(chunk)
            self.held_bytes += len(chunk)
            self.written_bytes += len(chunk)
            self.version += 1
            if self.held_bytes > self._bytes_max:
                self.keeps_all = False
            if not self.keeps_all:
                self.trim()
        self.tell()

    def end(self) -> None:
        """It is complete."""
        with self.lock:
            if self.is_over:
                return
            self.is_ended = True
            self.version += 1
        self.tell()

    def fail(self, error: BaseException, *, is_own: bool = False) -> None:
        """It will not be completed."""
        with self.lock:
            if self.is_over:
                return
            self.failure = Failure(error, is_own)
            self.version += 1
        self.tell()

    def pull_for(self, reader: Reader) -> bool:
        """Whether this reader is to fetch the next chunk: it has all, and nobody else is at it."""
        with self.lock:
            if self.puller is not None or self.is_over or reader.position < self.length:
                return False
            self.puller = reader
        return True

    def claim(self, reader: Reader) -> bool:
        """The same wherever the reader is: to see to the end of a complete answer."""
        with self.lock:
            if self.puller is not None or self.is_over:
                return False
            self.puller = reader
        return True

    def pulled(self, reader: Reader) -> None:
        """It is done with that."""
        with self.lock:
            if self.puller is reader:
                self.puller = None
                self.version += 1
        self.tell()

    def body(self) -> bytes | None:
        """All of it; None when not all was kept."""
        with self.lock:
            return b"".join(self.chunks) if self.keeps_all else None

    def has_room(self, ahead_max: int) -> bool:
        """Whether the foremost reader has taken all but so many bytes, or the last one is gone."""
        with self.lock:
            taken = [reader.taken_bytes for reader in self.readers]
            return not taken or self.written_bytes - max(taken) <= ahead_max

    def latest_deadline(self) -> float:
        """Until when anybody waits."""
        with self.lock:
            return max((reader.deadline_at for reader in self.readers), default=INFINITY)

    def trim(self) -> None:
        """Under the lock: drop what every reader has; cut off who holds up too much."""
        while self.chunks:
            behind = min((reader.position for reader in self.readers), default=self.length)
            while self.dropped < behind and self.chunks:
                self.held_bytes -= len(self.chunks.popleft())
                self.dropped += 1
            if self.held_bytes <= self._bytes_max or behind >= self.length:
                return
            first = max(reader.position for reader in self.readers)
            slow = [r for r in self.readers if r.position == behind]
            if behind == first:
                return  # they are all there: the writer is ahead, and waits for them
            for reader in slow:
                reader.is_cut = True
                self.readers.discard(reader)

    def tell(self) -> None:
        """Without the lock: wake whoever waits."""
        with self.lock:
            waiting = (*self.readers, *self.watchers)
            wakers = [reader.waker for reader in waiting if reader.waker is not None]
            if self.writer is not None:
                wakers.append(self.writer)
        for waker in wakers:
            waker()
