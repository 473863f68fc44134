"""What one parsed event of a streamed reply says, per surface: content, end, error, names.

`read_event` fills a small record; it never raises on whatever JSON a server sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import cast

from headway.core.model import Outcome, Usage
from headway.quirks import classify_error, extract_usage
from headway.quirks.usage import as_object
from headway.transport.pins import ids_in

PARTIAL_BYTES_MAX = 256 * 1024
"""What is kept of an answer for `StreamInterrupted.partial`, text and tool arguments together."""

TOOL_CALLS_MAX = 256

CONTENT_KEYS = (
    "content",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "reasoning_details",
    "images",
)
"""Members of a chat delta that are part of the answer (role and the rest are not)."""

RESPONSES_END = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
}


@dataclass(slots=True)
class ToolCall:
    """A tool call as far as it came."""

    id: str = ""
    name: str = ""
    arguments: bytearray = field(default_factory=bytearray)
    """JSON string text, escapes and all."""


@dataclass(slots=True)
class EventFacts:
    """What one event says."""

    content: bool = False
    leaf: str | None = None
    """The member that holds the event's only text, when it has just one."""
    leaf_text: str = ""
    sink: bytearray | None = None
    error: Outcome | None = None
    error_message: str | None = None
    finish: tuple[tuple[int, str], ...] = ()
    """(choice index, finish reason)."""
    opened: tuple[int, ...] = ()
    """Choices that the event belongs to."""
    end: bool = False
    """The surface's last event."""
    usage: Usage | None = None
    usage_only: bool = False
    """No choices, and a usage: the chunk that `include_usage` asks for."""
    response_id: str | None = None
    objects: tuple[str, ...] = ()
    """Ids of what the answer made: items, containers, the conversation it belongs to."""
    model: str | None = None
    service_tier: str | None = None


class Partial:
    """The answer so far, kept as JSON string text: a chunk need not be decoded to be kept."""

    __slots__ = ("room", "text", "tools")

    def __init__(self) -> None:
        self.text = bytearray()
        self.tools: dict[int | str, ToolCall] = {}
        self.room = PARTIAL_BYTES_MAX

    def tool(self, key: int | str) -> ToolCall | None:
        """The call with this index or item id, made if need be; None when there are too many."""
        call = self.tools.get(key)
        if call is None and len(self.tools) < TOOL_CALLS_MAX:
            call = self.tools[key] = ToolCall()
        return call


def read_event(name: str | None, obj: Mapping[str, object], partial: Partial) -> EventFacts:
    """What the event called `name` with the JSON object `obj` says."""
    facts = EventFacts()
    kind = obj.get("type")
    error = obj.get("error")
    if error or name == "error" or kind == "error" or obj.get("object") == "error":
        facts.error = classify_error(as_object(error) or obj)
        facts.error_message = _message(error) or _message(obj) or "upstream error"
        facts.usage = extract_usage(obj)
        return facts
    if isinstance(kind, str) and "." in kind:
        _read_typed(kind, obj, partial, facts)
    else:
        _read_chunk(obj, partial, facts)
    return facts


def _read_chunk(obj: Mapping[str, object], partial: Partial, facts: EventFacts) -> None:
    """A chat or completions chunk."""
    facts.response_id = _text(obj.get("id"))
    facts.model = _text(obj.get("model"))
    facts.service_tier = _text(obj.get("service_tier"))
    if obj.get("usage") or obj.get("timings") or obj.get("x_groq"):
        facts.usage = extract_usage(obj)
    choices = obj.get("choices")
    items = cast("list[object]", choices) if isinstance(choices, list) else []
    facts.usage_only = choices == [] and isinstance(obj.get("usage"), dict)
    leaves: list[tuple[str, str, bytearray | None]] = []
    opened: list[int] = []
    finish: list[tuple[int, str]] = []
    for item in items:
        choice = as_object(item)
        if choice is None:
            continue
        index = choice.get("index")
        number = index if isinstance(index, int) else 0
        opened.append(number)
        text = choice.get("text")
        if isinstance(text, str) and text:
            facts.content = True
            leaves.append(("text", text, partial.text if number == 0 else None))
        delta = as_object(choice.get("delta")) or as_object(choice.get("message"))
        if delta is not None:
            _read_delta(delta, number, partial, facts, leaves)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            finish.append((number, reason))
        if (error := choice.get("error")) and facts.error is None:
            facts.error = classify_error(error)
            facts.error_message = _message(error) or "upstream error"
    facts.opened = tuple(opened)
    facts.finish = tuple(finish)
    _keep(facts, partial, leaves)


def _read_delta(
    delta: Mapping[str, object],
    number: int,
    partial: Partial,
    facts: EventFacts,
    leaves: list[tuple[str, str, bytearray | None]],
) -> None:
    for key in CONTENT_KEYS:
        value = delta.get(key)
        if not value:
            continue
        facts.content = True
        if isinstance(value, str):
            leaves.append((key, value, partial.text if key == "content" and number == 0 else None))
        elif key == "tool_calls" and isinstance(value, list):
            for entry in cast("list[object]", value):
                call = as_object(entry)
                if call is not None and number == 0:
                    _read_tool(call, call.get("index"), partial, leaves)
        elif key == "function_call" and number == 0 and (call := as_object(value)) is not None:
            _read_tool({"function": call}, 0, partial, leaves)
        else:
            leaves.append(("", "", None))  # content of a shape that no template describes


def _read_tool(
    entry: Mapping[str, object],
    index: object,
    partial: Partial,
    leaves: list[tuple[str, str, bytearray | None]],
) -> None:
    function = as_object(entry.get("function")) or as_object(entry.get("custom")) or {}
    call = partial.tool(index if isinstance(index, int) else 0)
    new_id, new_name = _text(entry.get("id")), _text(function.get("name"))
    if call is not None:
        call.id = call.id or new_id or ""
        call.name = call.name or new_name or ""
    arguments = function.get("arguments") or function.get("input")
    if isinstance(arguments, str):
        key = "arguments" if function.get("arguments") else "input"
        leaves.append((key, arguments, None if call is None else call.arguments))
    if new_id or new_name:
        leaves.append(("", "", None))  # names come once: not a shape that repeats


def _read_typed(kind: str, obj: Mapping[str, object], partial: Partial, facts: EventFacts) -> None:
    """A Responses event, or one of the audio, image and transcription streams of the same style."""
    leaves: list[tuple[str, str, bytearray | None]] = []
    response = as_object(obj.get("response"))
    if response is not None:
        facts.response_id = _text(response.get("id"))
        facts.model = _text(response.get("model"))
        facts.service_tier = _text(response.get("service_tier"))
    if kind.endswith((".delta", ".partial_image")):
        delta = obj.get("delta")
        if kind == "response.output_text.delta" and isinstance(delta, str):
            leaves.append(("delta", delta, partial.text))
        elif kind in _TOOL_DELTAS and isinstance(delta, str):
            call = partial.tool(_item_key(obj))
            leaves.append(("delta", delta, None if call is None else call.arguments))
        elif isinstance(delta, str):
            leaves.append(("delta", delta, None))
        else:
            leaves.append(("", "", None))
        facts.content = delta != ""
    elif kind == "response.output_item.added":
        item = as_object(obj.get("item")) or {}
        if item.get("type") in ("function_call", "custom_tool_call"):
            call = partial.tool(_item_key(obj))
            if call is not None:
                call.id = _text(item.get("call_id")) or _text(item.get("id")) or ""
                call.name = _text(item.get("name")) or ""
    elif kind == "response.output_item.done":
        facts.objects = ids_in(obj.get("item"))
    elif kind == "response.failed":
        error = None if response is None else response.get("error")
        facts.error = classify_error(error or {"message": "response failed"})
        facts.error_message = _message(error) or "response failed"
        facts.usage = extract_usage(obj)
    elif kind in RESPONSES_END:
        detail = as_object((response or {}).get("incomplete_details")) or {}
        facts.finish = ((0, _text(detail.get("reason")) or RESPONSES_END[kind]),)
        facts.end = True
        facts.objects = ids_in(response)
        facts.content = bool((response or {}).get("output"))
        facts.usage = extract_usage(obj)
        leaves.append(("", "", None))
    elif kind.endswith((".done", ".completed")) and not kind.startswith("response."):
        # speech.audio.done, transcript.text.done, image_generation.completed, image_edit.completed
        facts.end = True
        facts.content = True
        facts.finish = ((0, "completed"),)
        facts.usage = extract_usage(obj)
    _keep(facts, partial, leaves)


_TOOL_DELTAS = frozenset(
    {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
)


def _keep(
    facts: EventFacts, partial: Partial, leaves: list[tuple[str, str, bytearray | None]]
) -> None:
    if len(leaves) == 1 and leaves[0][0]:
        facts.leaf, facts.leaf_text, facts.sink = leaves[0]
    for _, text, sink in leaves:
        if sink is not None and text:
            raw = _string_text(text)
            if len(raw) <= partial.room:
                sink += raw
                partial.room -= len(raw)
            else:
                partial.room = 0


def _string_text(text: str) -> bytes:
    return encode_basestring_ascii(text)[1:-1].encode("ascii")


def _item_key(obj: Mapping[str, object]) -> int | str:
    index = obj.get("output_index")
    return index if isinstance(index, int) else str(obj.get("item_id", ""))


def _message(error: object) -> str | None:
    if isinstance(error, str):
        return error or None
    node = as_object(error)
    if node is None:
        return None
    message = node.get("message")
    return message if isinstance(message, str) and message else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
