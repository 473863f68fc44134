"""Answers kept in this process: bounded in number and bytes, the least recently used go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.share.answer import Answer

ENTRIES_MAX = 4096
"""Answers per route, however small: a lookup's cost does not grow, but a forgotten one is rare."""
ENTRY_SHARE_MAX = 0.25
"""The most of the room that one answer may take: it would push out all the others."""


class Memory:
    """One route's answers. Thread-safe; every operation takes constant time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str, now: float) -> Answer | None:
        """The answer, unless its time is up."""
        with self._lock:
            answer = self._answers.get(key)
            if answer is None:
                return None
            if now >= answer.expires_at:
                self._drop(key)
                return None
            self._answers.move_to_end(key)
            return answer

    def put(self, key: str, answer: Answer, bytes_max: int) -> None:
        """Keep it, in at most so many bytes with the others."""
        size = answer.size_bytes
        if size > bytes_max * ENTRY_SHARE_MAX:
            return
        with self._lock:
            if key in self._answers:
                self._drop(key)
            self._answers[key] = answer
            self.held_bytes += size
            while self.held_bytes > bytes_max or len(self._answers) > ENTRIES_MAX:
                self._drop(next(iter(self._answers)))

    def _drop(self, key: str) -> None:
        self.held_bytes -= self._answers.pop(key).size_bytes
