"""Content chunks of one stream differ in a few places only; a template knows which.

A template is learned from one chunk that was parsed: its bytes, with holes where the content, and
known counters such as `created` or `sequence_number`, stand. A later chunk that has the same bytes
around the same holes, and valid JSON string contents (or digits) in them, is then known to parse to
the same object but for those values: no parse is needed to see that it is content, no error, no
usage and no end. What does not match is parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STRING, NUMBER, CONTENT = 0, 1, 2

_HOLES = re.compile(rb'"(?:(created|sequence_number)"\s*:\s*[0-9]+|(obfuscation)"\s*:\s*")')
_DIGITS = re.compile(rb"[0-9]+")
_NUMBER_AT_END = re.compile(rb"[0-9]+$")
_CLEAN = re.compile(rb'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_USAGE_NULL = re.compile(rb',\s*"usage"\s*:\s*null')

EVENT_BYTES_MAX = 16 * 1024
"""Larger chunks carry images or audio, and are rare."""


Hole = tuple[bytes, int, int]
"""(literal before it, the literal's length, kind)."""


@dataclass(slots=True, eq=False)
class Template:
    """The fixed parts of a content chunk, and the kind of the hole after each."""

    begun: bytes
    """All before the content, as it stood in the chunk learned from: a stream's `created` seldom
    changes, so this mostly saves looking at the holes."""
    begun_size: int
    before: tuple[Hole, ...]
    """Holes before the content."""
    head: bytes
    """The literal before the content."""
    head_size: int
    after: tuple[Hole, ...]
    """Holes after the content; the first literal begins with the content's closing quote."""
    tail: bytes
    tail_size: int
    cut: int
    """Where the `"usage":null` to be hidden stands: from the content's end, or, negative, from the
    event's."""
    cut_size: int
    """0: nothing to hide."""
    sink: bytearray | None
    """Where the content belongs in the partial answer, as JSON string text; None: nowhere."""
    end: int = 0
    """Where the content ends, after a match."""
    text: bytes = b""
    """The content, after a match."""

    def match(self, buf: bytes, pos: int) -> int:
        """The end of the event that stands at `pos` of `buf`, or -1 if it has another shape."""
        if buf.startswith(self.begun, pos):
            pos += self.begun_size
        else:
            for literal, size, kind in self.before:
                if not buf.startswith(literal, pos):
                    return -1
                pos = _hole_end(buf, pos + size, kind)
                if pos < 0:
                    return -1
            if not buf.startswith(self.head, pos):
                return -1
            pos += self.head_size
        end = buf.find(b'"', pos)
        text = buf[pos:end]
        # Nearly every token is a word with a space before it; anything else goes by pattern.
        if not text.strip(b" ").isalnum():
            end = _string_end(buf, pos)
            if end <= pos:
                return -1
            text = buf[pos:end]
        self.text = text
        self.end = pos = end
        for literal, size, kind in self.after:
            if not buf.startswith(literal, pos):
                return -1
            pos = _hole_end(buf, pos + size, kind)
            if pos < 0:
                return -1
        return pos + self.tail_size if buf.startswith(self.tail, pos) else -1

    def without_usage(self, event: bytes) -> bytes:
        """`event`, which was just matched whole, less its `"usage":null`."""
        cut = self.end + self.cut if self.cut >= 0 else len(event) + self.cut
        return event[:cut] + event[cut + self.cut_size :]


def learn(event: bytes, leaf: str, *, sink: bytearray | None, hide_usage: bool) -> Template | None:
    """A template from `event`, a parsed content chunk whose one text is the string member `leaf`.

    None when the chunk is not of a kind that repeats: the member's name occurs more than once.
    """
    if len(event) > EVENT_BYTES_MAX:
        return None
    opening = re.compile(rb'"%s"\s*:\s*"' % re.escape(leaf).encode())
    contents = list(opening.finditer(event))
    if len(contents) != 1:
        return None
    spans = _spans(event, contents[0].end())
    if spans is None:
        return None
    holes: list[Hole] = []
    pos = content_at = 0
    for index, (start, end, kind) in enumerate(spans):
        if start < pos:
            return None
        if kind == CONTENT:
            content_at = index
        holes.append((event[pos:start], start - pos, kind))
        pos = end
    literals = [*(literal for literal, _, _ in holes), event[pos:]]
    cut = cut_size = 0
    if hide_usage and (members := list(_USAGE_NULL.finditer(event))):
        content_end = spans[content_at][1]
        first_after = content_end + len(literals[content_at + 1])
        start, end = members[0].span()
        if len(members) > 1 or start < content_end:
            return None
        if end <= first_after:
            cut = start - content_end
        elif start >= pos:
            cut = start - len(event)
        else:
            return None
        cut_size = end - start
    head = literals[content_at]
    begun = event[: spans[content_at][0]]
    return Template(
        begun=begun,
        begun_size=len(begun),
        before=tuple(holes[:content_at]),
        head=head,
        head_size=len(head),
        after=tuple(holes[content_at + 1 :]),
        tail=literals[-1],
        tail_size=len(literals[-1]),
        cut=cut,
        cut_size=cut_size,
        sink=sink,
    )


def _spans(event: bytes, start: int) -> list[tuple[int, int, int]] | None:
    """(start, end, kind) of the content at `start` and of every other hole, in order."""
    end = _string_end(event, start)
    if end <= start:
        return None
    spans = [(start, end, CONTENT)]
    for hole in _HOLES.finditer(event):
        if hole[1] is not None:
            number = _NUMBER_AT_END.search(event, hole.start(), hole.end())
            if number is None:
                return None
            spans.append((number.start(), number.end(), NUMBER))
        else:
            close = _string_end(event, hole.end())
            if close < 0:
                return None
            spans.append((hole.end(), close, STRING))
    return sorted(spans)


def _hole_end(buf: bytes, pos: int, kind: int) -> int:
    """Where a counter or a padding text that begins at `pos` ends; -1: it is none."""
    if kind == NUMBER:
        digits = _DIGITS.match(buf, pos)
        return -1 if digits is None else digits.end()
    end = buf.find(b'"', pos)
    return end if end == pos or buf[pos:end].isalnum() else -1


def _string_end(buf: bytes, pos: int) -> int:
    """Where the JSON string whose contents begin at `pos` closes; -1: never, or it is not valid."""
    clean = _CLEAN.match(buf, pos)
    assert clean is not None  # it matches the empty text
    end = clean.end()
    if buf[end : end + 1] != b'"':
        return -1
    text = buf[pos:end]
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            return -1
    return end
