"""Content chunks of one stream differ in a few places only; a template knows which.

A template is learned from one chunk that was parsed: its bytes, with holes where the content, and
known counters such as `created` or `sequence_number`, stand. A later chunk that has the same bytes
around the same holes, and valid JSON string contents (or digits) in them, is then known to parse to
the same object but for those values: no parse is needed to see that it is content, no error, no
usage and no end. What does not match is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

STRING, NUMBER, CONTENT = 0, 1, 2

_HOLES = re.compile(rb'"(?:(created|sequence_number)"\s*:\s*[0-9]+|(obfuscation)"\s*:\s*")')
_NUMBER_AT_END = re.compile(rb"[0-9]+$")
_PLAIN = rb'[^"\\\x00-\x1f\x80-\xff]*+'
_VALID = (
    _PLAIN
    + rb'(?:(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
    + rb"|[\xc2-\xdf][\x80-\xbf]"
    + rb"|\xe0[\xa0-\xbf][\x80-\xbf]"
    + rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    + rb"|\xed[\x80-\x9f][\x80-\xbf]"
    + rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    + rb"|[\xf1-\xf3][\x80-\xbf]{3}"
    + rb"|\xf4[\x80-\x8f][\x80-\xbf]{2})"
    + _PLAIN
    + rb")*+"
)
_STRING = re.compile(_VALID + b'"').match
is_text = re.compile(_VALID).fullmatch
"""The contents of a JSON string (with its closing quote, alone): escapes as JSON has them, and
valid UTF-8."""
_USAGE_NULL = re.compile(rb',\s*"usage"\s*:\s*null')

EVENT_BYTES_MAX = 16 * 1024
"""Larger chunks carry images or audio, and are rare."""


Filling = Callable[[bytes, int], re.Match[bytes] | None]
Hole = tuple[bytes, Filling]
"""(literal before it, what fits in it)."""
_FILLINGS: dict[int, Filling] = {
    STRING: re.compile(rb'[A-Za-z0-9]*+(?=")').match,
    NUMBER: re.compile(rb"[0-9]++").match,
    CONTENT: _STRING,
}


@dataclass(slots=True, eq=False)
class Template:
    """The fixed parts of a content chunk, and the kind of the hole after each."""

    begun: bytes
    """All before the content, as it last stood: a stream's `created` seldom changes, so this mostly
    saves looking at the holes. Where each event has a number, all before that."""
    begun_size: int
    before: tuple[Hole, ...]
    """Holes before the content."""
    head: bytes
    """The literal before the content."""
    after: tuple[Hole, ...]
    """Holes after the content; the first literal begins with the content's closing quote."""
    tail: bytes
    tail_size: int
    is_quick: bool
    """It has one hole at most on either side: its two ends tell whether a chunk is one such event
    (see `StreamObserver.quick`)."""
    is_numbered: bool
    """Each event has another number."""
    fits: Callable[[bytes], bool] | None
    """What the hole after the content holds, if there is one."""
    cut: int
    """Where the `"usage":null` to be hidden stands: from the content's end, or, negative, from the
    event's."""
    cut_size: int
    """0: nothing to hide."""
    sink: bytearray | None
    """Where the content belongs in the partial answer, as JSON string text; None: nowhere."""
    start: int = 0
    end: int = 0
    """Where the content stands, after a match."""

    def match(self, buf: bytes, pos: int) -> int:
        """The end of the event that stands at `pos` of `buf`, or -1 if it has another shape."""
        began = pos
        if not self.is_numbered and buf.startswith(self.begun, pos):
            pos += self.begun_size
        else:
            for literal, filling in self.before:
                if not buf.startswith(literal, pos):
                    return -1
                filled = filling(buf, pos + len(literal))
                if filled is None:
                    return -1
                pos = filled.end()
            if not buf.startswith(self.head, pos):
                return -1
            pos += len(self.head)
            if not self.is_numbered:
                self.begun = buf[began:pos]
                self.begun_size = pos - began
        string = _STRING(buf, pos)
        if string is None:
            return -1
        self.start = pos
        self.end = pos = string.end() - 1
        if pos == self.start:
            return -1
        for literal, filling in self.after:
            if not buf.startswith(literal, pos):
                return -1
            filled = filling(buf, pos + len(literal))
            if filled is None:
                return -1
            pos = filled.end()
        return pos + self.tail_size if buf.startswith(self.tail, pos) else -1

    def without_usage(self, buf: bytes, start: int, end: int) -> bytes:
        """The event at `buf[start:end]`, which was just matched, less its `"usage":null`."""
        cut = self.end + self.cut if self.cut >= 0 else end + self.cut
        return buf[start:cut] + buf[cut + self.cut_size : end]


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
        holes.append((event[pos:start], _FILLINGS[kind]))
        pos = end
    literals = [*(literal for literal, _ in holes), event[pos:]]
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
    before, after = holes[:content_at], holes[content_at + 1 :]
    is_numbered = b"sequence_number" in b"".join(literals[:content_at])
    fits: Callable[[bytes], bool] | None = None
    if after:
        fits = bytes.isdigit if spans[-1][2] == NUMBER else bytes.isalnum
    begun = literals[0] if is_numbered else event[: spans[content_at][0]]
    return Template(
        begun=begun,
        begun_size=len(begun),
        before=tuple(before),
        head=literals[content_at],
        after=tuple(after),
        tail=literals[-1],
        tail_size=len(literals[-1]),
        is_quick=len(after) <= 1 and not (is_numbered and (len(before) > 1 or cut_size)),
        is_numbered=is_numbered,
        fits=fits,
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


def _string_end(buf: bytes, pos: int) -> int:
    """Where the JSON string whose contents begin at `pos` closes; -1: never, or it is not valid."""
    string = _STRING(buf, pos)
    return -1 if string is None else string.end() - 1
