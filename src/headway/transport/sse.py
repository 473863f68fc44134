# long: one pass over a stream, to be read in one sitting
"""One streamed reply, watched and cleaned in a single pass.

    bytes as they come ──▶ whole events ──▶ template hit?  ──yes──▶ content: count it, pass it on
                                              │ no
                                              ▼
                                            parse ──▶ content, end, usage, error ──▶ pass or drop

The caller gets the same bytes, event by event, except for what would break it or was never asked
for: see `StreamObserver`. Whatever way the bytes were split, the same events give the same result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from headway.core.model import FailureClass, Outcome, Usage
from headway.quirks import classify_body, load_object, usage_from_body
from headway.quirks.usage import as_object
from headway.transport.pins import IDS_PER_REPLY_MAX
from headway.transport.sse_events import EventFacts, Partial, read_event
from headway.transport.sse_lines import BLANK, BOM, EOL, decoded, fields
from headway.transport.sse_template import Template, is_text, learn

EVENT_BYTES_MAX = 1024 * 1024
"""A larger event (an image, a whole transcript) is passed on as it comes and not parsed."""

HUGE_TAIL_BYTES = 16 * 1024
"""Kept of such an event's end: that is where `usage` stands."""

TEMPLATES_MAX = 4
"""Shapes that alternate in one stream (choices, parallel tool calls, reasoning beside text)."""

LEARN_MIN, LEARN_RATIO = 16, 2
"""Learning stops when, after 16 templates, fewer than 2 chunks were recognised per template."""

_USAGE_NULL = re.compile(rb',\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,\s*|"usage"\s*:\s*null')
_HUGE_END = re.compile(rb'"type"\s*:\s*"response\.(completed|incomplete)"')


class StreamObserver:
    """Watches one streamed reply. Feed it every chunk; read the attributes after each feed.

    `feed` returns the bytes to hand to the caller: complete events (a partial one is held until its
    blank line comes), byte for byte as they came, except that it leaves out

    - events without data, which make the SDK's decoder fail, and a leading byte order mark;
    - with `hide_usage=True` (we asked for usage, the caller did not): the usage-only chunk, and
      `"usage":null` members, which servers add to every other chunk when asked.

    An in-band error ends the observation: `error` is set, `feed` returns what came before it, and
    `error_event` holds the failing event. A caller that has been handed content before can be given
    it or a `StreamInterrupted`; one that has not, another attempt.
    """

    def __init__(self, surface: str = "chat", *, hide_usage: bool = False) -> None:
        self.error: Outcome | None = None
        self.error_message: str | None = None
        self.error_event = b""
        self.done = False
        """`[DONE]`, or the surface's last event: nothing of interest follows."""
        self.usage: Usage | None = None
        """The last complete one told; never a sum."""
        self.response_id: str | None = None
        self.objects: tuple[str, ...] = ()
        """Ids of what the answer made, at most 128 and once more at its end."""
        self.model: str | None = None
        self.service_tier: str | None = None
        self._surface = surface
        self._hide_usage = hide_usage
        self._finish: dict[int, str] = {}
        self._open: set[int] = set()
        self._partial = Partial()
        self._templates: list[Template] = []
        self._quick: Template | None = None
        """The template to try first when nothing is held over from the last chunk."""
        self._learned = 0
        self._hits = 0
        """Events that a template recognised. They are content, and counted nowhere else."""
        self._parsed = 0
        """Other events that had data."""
        self._parsed_content = 0
        self._pending = b""
        self._scan = 0
        self._has_cr = False
        self._skip_lf = False
        self._last_dropped = False
        self._sticky_id = False
        self._first = True
        self._huge_head: bytes | None = None
        self._huge_tail = b""

    # ------------------------------------------------------------------ results

    @property
    def content_events(self) -> int:
        """Events that brought content (text, tool call, reasoning, refusal, audio). Its first step
        is the first token, each further one progress; pings and role chunks do not count."""
        return self._hits + self._parsed_content

    @property
    def events(self) -> int:
        """Events that had data, of whatever kind."""
        return self._hits + self._parsed

    @property
    def saw_content(self) -> bool:
        """The first content token has come."""
        return self.content_events > 0

    @property
    def terminal(self) -> bool:
        """The answer is complete: every choice finished, or the stream said it was done."""
        if self._finish and not self._open:
            return True
        return self.done and bool(self.content_events or self._finish)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Finish reasons by choice; "error" where one never came."""
        indices = sorted({*self._finish, *self._open})
        return tuple(self._finish.get(index, "error") for index in indices)

    @property
    def partial_text(self) -> str:
        """The text of the first choice so far (bounded, see `sse_events.PARTIAL_BYTES_MAX`)."""
        return decoded(self._partial.text)

    @property
    def has_only_text(self) -> bool:
        """All that came is text of one choice, and all of it was kept."""
        partial = self._partial
        return bool(partial.text) and not partial.tools and partial.room > 0 and not self._finish

    @property
    def partial_tool_calls(self) -> tuple[dict[str, str], ...]:
        """Tool calls so far: {"id", "name", "arguments"}, arguments as far as they came."""
        return tuple(
            {"id": call.id, "name": call.name, "arguments": decoded(call.arguments)}
            for call in self._partial.tools.values()
        )

    def outcome(self) -> Outcome:
        """What the stream amounts to if it ends here.

        OK with token counts; or the in-band error; or INCOMPLETE_STREAM, as `truncated_stream` (the
        end never came) or `empty_stream` (nothing did).
        """
        outcome = self.error
        if outcome is None:
            if self.terminal or (self.content_events and self._surface not in _WITH_END):
                outcome = Outcome(FailureClass.OK, status=200)
            else:
                how = "truncated_stream" if self.content_events else "empty_stream"
                outcome = Outcome(FailureClass.INCOMPLETE_STREAM, status=200, error_type=how)
        if self.usage is None:
            return outcome
        return outcome._replace(
            input_tokens=self.usage.input_tokens,
            cached_tokens=self.usage.cached_input_tokens,
            output_tokens=self.usage.output_tokens,
        )

    # ------------------------------------------------------------------ feeding

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes of the (decoded) body; return what the caller may see of them now."""
        return self.quick(chunk) or self.look(chunk)

    def quick(self, chunk: bytes) -> bytes:
        """What goes on of a chunk that is ordinary content and nothing else. Empty: it isn't, and
        it has to be looked at.

        This runs once per token of every stream: one frame, a few comparisons, no parsing.
        """
        template = self._quick
        if template is None:
            return b""
        if template.is_quick and chunk.startswith(template.begun) and chunk.endswith(template.tail):
            text = chunk[template.begun_size : -template.tail_size]
            if template.is_numbered:
                number, _, text = text.partition(template.head)
                if not number.isdigit():
                    text = b""
            if template.fits is not None:
                text, _, filling = text.partition(template.after[0][0])
                if not template.fits(filling):
                    text = b""
            # Nearly every token is a word with a space before it.
            if text.strip(b" ").isalnum() or (text and is_text(text)):
                self._hits += 1
                sink = template.sink
                if sink is not None:
                    partial = self._partial
                    room = partial.room - len(text)
                    if room >= 0:
                        partial.room = room
                        sink += text
                    else:
                        partial.room = 0
                if not template.cut_size:
                    return chunk
                template.end = template.begun_size + len(text)
                return template.without_usage(chunk, 0, len(chunk))
        end = template.match(chunk, 0)
        if end != len(chunk):
            return b""
        self._hit(template, chunk)
        return template.without_usage(chunk, 0, end) if template.cut_size else chunk

    def _hit(self, template: Template, buf: bytes) -> None:
        """A template recognised an event of `buf`."""
        self._hits += 1
        sink = template.sink
        if sink is not None:
            partial = self._partial
            room = partial.room - (template.end - template.start)
            if room >= 0:
                partial.room = room
                sink += buf[template.start : template.end]
            else:
                partial.room = 0

    def finish(self) -> bytes:
        """The body ended: what was held back (an event that lacks its blank line), as it came.

        No decoder dispatches such an event, so its content does not count; an error, a usage or the
        end that stands in it does.
        """
        held, self._pending = self._pending, b""
        if self._huge_head is not None:
            self._end_huge(self._huge_tail)
        if not held or self.error is not None or self.done:
            return held
        name, data, _, _ = fields(held.removeprefix(BOM))
        if data.startswith("[DONE]"):
            self.done = True
            return held
        # A JSON body where events were promised has no `data:` in front of it.
        obj = load_object(data.encode("utf-8", "surrogatepass") if data else held)
        if obj is not None:
            facts = read_event(name, obj, Partial())
            if facts.error is not None:
                self._fail(facts.error, facts.error_message, held)
                return b""
            self._take_usage(facts.usage)
        elif not self.events and held.lstrip()[:1] == b"<":
            hidden = classify_body({"content-type": "text/html"}, held)
            if hidden is not None:
                self._fail(hidden, "HTML instead of an event stream", held)
        return held

    def look(self, chunk: bytes) -> bytes:
        """Take a chunk that `quick` made nothing of."""
        self._quick = None
        if self.error is not None:
            return b""
        if not chunk:
            return chunk
        if self._huge_head is not None:
            return self._feed_huge(chunk)
        out: list[bytes] = []
        if self._skip_lf:
            # The line end of the last blank line was CR LF, split between two chunks.
            self._skip_lf = False
            if chunk[0] == 10:
                if not self._last_dropped:
                    out.append(b"\n")
                chunk = chunk[1:]
        if not self._has_cr and b"\r" in chunk:
            self._has_cr = True
            self._scan = 0
        buf = self._pending + chunk if self._pending else chunk
        pos = self._events(buf, out)
        if pos is None:
            return b"".join(out)
        rest = buf[pos:] if pos else buf
        self._pending = b""
        if len(rest) > EVENT_BYTES_MAX:
            self._huge_head = rest[:4096]
            self._huge_tail = rest[-HUGE_TAIL_BYTES:]
            self._parsed_content += 1
            out.append(rest)
        else:
            self._pending = rest
            self._scan = max(0, len(rest) - 3)
            if not rest and not self._skip_lf and not self.done and self._templates:
                self._quick = self._templates[0]
        return out[0] if len(out) == 1 else b"".join(out)

    def _events(self, buf: bytes, out: list[bytes]) -> int | None:
        """Observe the complete events in `buf`, and put what is seen of them `out`. Where the rest
        begins; None: an error ended it."""
        scan, self._scan = self._scan, 0
        pos = 0
        while True:
            if self._templates and not (self._has_cr or self.done):
                template = self._templates[0]
                end = template.match(buf, pos)
                if end > 0:
                    self._hit(template, buf)
                    cut = template.cut_size
                    out.append(template.without_usage(buf, pos, end) if cut else buf[pos:end])
                    self._last_dropped = False
                    pos = end
                    continue
            end = self._boundary(buf, pos, max(pos, scan))
            if end < 0:
                return pos
            if end == len(buf) and buf[-1] == 13:
                self._skip_lf = True
            shown = self._event(buf[pos:end])
            if shown is None:
                return None
            self._last_dropped = not shown
            out.append(shown)
            pos = end

    def _boundary(self, buf: bytes, pos: int, scan: int) -> int:
        """Where the event (or lone blank line) that starts at `pos` ends; -1: not yet here."""
        if pos >= len(buf):
            return -1
        if self._has_cr:
            blank = EOL.match(buf, pos) or BLANK.search(buf, scan)
            return -1 if blank is None else blank.end()
        if buf[pos] == 10:
            return pos + 1
        end = buf.find(b"\n\n", scan)
        return end if end < 0 else end + 2

    def _feed_huge(self, chunk: bytes) -> bytes:
        known = len(self._huge_tail)
        buf = self._huge_tail + chunk
        blank = BLANK.search(buf, max(0, known - 3))
        if blank is None:
            self._huge_tail = buf[-HUGE_TAIL_BYTES:]
            return chunk
        end = blank.end()
        self._skip_lf = end == len(buf) and buf[-1] == 13
        self._last_dropped = False
        self._end_huge(buf[:end])
        return chunk[: end - known] + self.look(chunk[end - known :])

    def _end_huge(self, tail: bytes) -> None:
        """An event too large to parse is over: what its two ends tell."""
        head, self._huge_head, self._huge_tail = self._huge_head or b"", None, b""
        self._parsed += 1
        if (end := _HUGE_END.search(head)) is not None:
            self._finish[0] = end[1].decode()
            self.done = True
            self._take_usage(usage_from_body(tail))

    # ------------------------------------------------------------------ one event

    def _event(self, raw: bytes) -> bytes | None:
        """Observe one complete event; return what the caller sees of it, None for an error."""
        if self.done:
            return raw
        for template in self._templates:
            if template.match(raw, 0) == len(raw):
                self._hit(template, raw)
                if template is not self._templates[0]:
                    self._templates.remove(template)
                    self._templates.insert(0, template)
                return template.without_usage(raw, 0, len(raw)) if template.cut_size else raw
        if self._first:
            self._first = False
            raw = raw.removeprefix(BOM)
        name, data, has_id, dispatches = fields(raw)
        if has_id is not None:
            self._sticky_id = has_id
        if not data.strip(_BLANK):
            # The SDK dispatches an event as soon as any field was ever set (an id stays set), and
            # then parses its empty data as JSON.
            return b"" if dispatches or self._sticky_id else raw
        self._parsed += 1
        if data.startswith("[DONE]"):
            self.done = True
            return raw
        try:
            obj = as_object(json.loads(data))
        except (ValueError, RecursionError):
            obj = None
        if obj is None:
            self._fail(_MALFORMED, "malformed event in the stream", raw)
            return None
        facts = read_event(name, obj, self._partial)
        if facts.error is not None:
            self._take_usage(facts.usage)
            self._fail(facts.error, facts.error_message, raw)
            return None
        self._take(facts)
        if facts.leaf is not None and not facts.finish and facts.usage is None:
            self._learn(raw, facts)
        return self._shown(raw, obj, facts) if self._hide_usage else raw

    def _take(self, facts: EventFacts) -> None:
        if facts.content and not (facts.end and self.content_events):
            self._parsed_content += 1
        self._open.update(facts.opened)
        for index, reason in facts.finish:
            self._finish[index] = reason
            self._open.discard(index)
        if facts.end:
            self.done = True
        self._take_usage(facts.usage)
        self.response_id = self.response_id or facts.response_id
        if facts.objects and len(self.objects) < IDS_PER_REPLY_MAX:
            self.objects += facts.objects
        self.model = self.model or facts.model
        if facts.service_tier is not None and (self.service_tier is None or facts.end):
            # A Responses stream starts with the tier asked for and ends with the one given.
            self.service_tier = facts.service_tier

    def _take_usage(self, usage: Usage | None) -> None:
        if usage is None:
            return
        known = self.usage
        complete = usage.input_tokens is not None and usage.output_tokens is not None
        if complete or known is None or known.input_tokens is None or known.output_tokens is None:
            self.usage = usage

    def _fail(self, outcome: Outcome, message: str | None, raw: bytes) -> None:
        self.error = outcome
        self.error_message = message
        self.error_event = raw
        self._pending = b""

    def _learn(self, raw: bytes, facts: EventFacts) -> None:
        if facts.leaf is None:
            return
        if self._learned >= LEARN_MIN and self._hits < LEARN_RATIO * self._learned:
            return
        template = learn(raw, facts.leaf, sink=facts.sink, hide_usage=self._hide_usage)
        if template is not None:
            self._learned += 1
            self._templates.insert(0, template)
            del self._templates[TEMPLATES_MAX:]

    def _shown(self, raw: bytes, obj: Mapping[str, object], facts: EventFacts) -> bytes:
        """The event as it would have come had nobody asked for usage."""
        if facts.usage_only:
            return b""
        if "usage" not in obj or obj["usage"] is not None:
            return raw
        members = list(_USAGE_NULL.finditer(raw))
        if len(members) == 1:
            # The only such member, and the object has one at its top: this is it.
            return raw[: members[0].start()] + raw[members[0].end() :]
        rest = {key: value for key, value in obj.items() if key != "usage"}
        for member in members:
            without = raw[: member.start()] + raw[member.end() :]
            if load_object(fields(without)[1].encode()) == rest:
                return without
        return raw


_BLANK = " \t\n"
"""All that is no data. JSON knows no other white space, `str.strip` a lot."""
_MALFORMED = Outcome(FailureClass.INCOMPLETE_STREAM, status=200, error_type="malformed_event")
_WITH_END = frozenset({"chat", "completions", "responses"})
