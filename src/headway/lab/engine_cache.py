"""The prefix cache of a modelled engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Least-recently-used set of block identities."""

    def __init__(self, blocks: int) -> None:
        self.limit = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def hit(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that are cached; they become the most recently used."""
        known = self._blocks
        n = 0
        for block in blocks:
            if block not in known:
                break
            known.move_to_end(block)
            n += 1
        return n

    def peek(self, blocks: Sequence[int]) -> int:
        """`hit`, but nothing is used by looking."""
        known = self._blocks
        n = 0
        for block in blocks:
            if block not in known:
                break
            n += 1
        return n

    def insert(self, blocks: Sequence[int], limit: int | None = None) -> None:
        """Remember `blocks`, evicting the least recently used beyond the limit."""
        known = self._blocks
        # Deepest first: eviction must take the tail of a prompt before its head.
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        bound = self.limit if limit is None else min(self.limit, limit)
        while len(known) > max(bound, 0):
            known.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self._blocks.clear()
