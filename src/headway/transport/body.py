"""The request body: what one look at it tells, and how it is changed and nothing else with it.

The SDK writes `model` first, then `stream` and `service_tier`, so a prefix match reads them from a
body of any size in a microsecond. Everything else that matters is rare, and JSON helps to prove it
absent: a quote inside a string is escaped, so the bytes `"store":` occur only where a key of that
name stands, at whatever depth. One scan for all such keys finds nothing in most bodies. Where it
finds one, this settles the depth without reading the rest:

    body[k:] = , members }     and     { members }  is valid JSON
    =>  these are the last members of the top-level object

since every string and bracket opened in the suffix is closed in it. What the suffix cannot settle
is parsed whole, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

from headway.transport.body_ids import has_server_tools, id_of, stored_ids

HEAD_MEMBERS_MAX = 8
SUFFIX_TRIES_MAX = 12
SUFFIXES_MAX = 64
SUFFIX_BYTES_MAX = 256 * 1024
PREFIX_BLOCKS_MAX = 32
BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1000
"""What an inline image or file counts as: its base64 size says nothing about tokens."""
INLINE_BYTES_MIN = 2048

MODEL = re.compile(rb'\s*\{\s*"model"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")(?=\s*[,}])')
_SCALAR = re.compile(
    rb'\s*,\s*"([a-z_]{1,40})"\s*:\s*(true|false|null|-?[0-9]+(?:\.[0-9]+)?|"[^"\\\x00-\x1f]{0,256}")(?=\s*[,}])'
)
_EMPTY_OBJECT = re.compile(rb"\s*\{\s*\}\s*")

_CHAT_KEYS = (
    rb"stream(?:_options)?|max_(?:completion_)?tokens|n|store|tools|web_search_options|plugins"
    rb"|file_id"
)
_RESPONSES_KEYS = (
    rb"stream(?:_options)?|max_output_tokens|store|tools|background|previous_response_id|conversation"
    rb"|prompt|file_ids?|vector_store_ids|container(?:_id)?|skill_id|encrypted_content"
)
_SERVER_TOOL = (
    rb"item_reference|web_search\w*|file_search|code_interpreter|image_generation"
    rb"|mcp|computer\w*|shell|tool_search|programmatic_tool_calling|openrouter:\w+"
)
_INLINE_KEY = rb"url|image_url|data|file_data"
# All branches share one opening quote: the engine then hops from quote to quote.
_PROMPT_SCAN = rb'"(?:(%s)"\s*:|type"\s*:\s*"(?:%s)"|(%s)"\s*:\s*")'
_INLINE = re.compile(rb'"(?:%s)"\s*:\s*"' % _INLINE_KEY)
_SCANS: dict[str, bytes] = {
    "chat": _PROMPT_SCAN % (_CHAT_KEYS, _SERVER_TOOL, _INLINE_KEY),
    "responses": _PROMPT_SCAN % (_RESPONSES_KEYS, _SERVER_TOOL, _INLINE_KEY),
    "completions": rb'"(stream(?:_options)?|max_tokens|n|store)"\s*:',
    "images": rb'"(stream|n)"\s*:',
    "audio": rb'"(stream_format|voice)"\s*:',
}
_compiled: dict[str, re.Pattern[bytes]] = {}


def _scan_for(surface: str) -> re.Pattern[bytes] | None:
    """The scan of a surface, compiled at its first request."""
    scan = _compiled.get(surface)
    if scan is None and (source := _SCANS.get(surface)) is not None:
        scan = _compiled[surface] = re.compile(source)
    return scan


_DEEP_KEYS = frozenset(
    {
        b"file_id", b"file_ids", b"vector_store_ids", b"container", b"container_id", b"skill_id",
        b"encrypted_content", b"plugins",
    }
)  # fmt: skip
_PROMPT_KEY = re.compile(rb'\s*,\s*"(?:messages|input|prompt)"\s*:\s*')


@dataclass(slots=True)
class BodyFacts:
    """What one look at a JSON request body told. Filled by `peek`, not changed afterwards."""

    is_json: bool = False
    """The body is a JSON object."""
    model: str | None = None
    model_span: tuple[int, int] | None = None
    """Where the model's string literal stands, quotes included; None: not at the front."""
    stream: bool = False
    stream_options: bool = False
    """The user sent `stream_options` (whatever is in it)."""
    include_usage: bool | None = None
    """What the user said in `stream_options.include_usage`; None: did not mention it."""
    max_output_tokens: int | None = None
    store: bool | None = None
    choices: int = 1
    """`n`."""
    background: bool = False
    server_tools: bool = False
    """Tools the provider runs (web search, code, MCP...): effects that a repeat would double."""
    pin_ids: tuple[str, ...] = ()
    """Objects the body names, the most binding first: the call must go where they live."""
    pin_kind: str | None = None
    """response | conversation | prompt | file | vector_store | container | skill | item | voice |
    encrypted"""
    prompt_start: int = 0
    """Where the prompt's value begins, for `prefix_hashes`."""
    prompt_tokens_estimate: int = 0
    parsed: dict[str, object] | None = field(default=None, repr=False, compare=False)
    """The whole body, if it had to be parsed."""


def peek(body: bytes, surface: str = "chat") -> BodyFacts:
    """Read what routing needs from a JSON request body. Never raises: see `is_json`."""
    facts = BodyFacts()
    head = MODEL.match(body)
    if head is None:
        return _peek_parsed(body, surface, facts)
    literal = head[1]
    try:
        facts.model = literal[1:-1].decode() if b"\\" not in literal else json.loads(literal)
    except (ValueError, UnicodeDecodeError):
        return _peek_parsed(body, surface, facts)
    facts.is_json = True
    facts.model_span = head.span(1)
    pos = head.end()
    members: dict[str, object] = {}
    for _ in range(HEAD_MEMBERS_MAX):
        member = _SCALAR.match(body, pos)
        if member is None:
            break
        members[member[1].decode()] = _scalar(member[2])
        pos = member.end()
    prompt = _PROMPT_KEY.match(body, pos)
    facts.prompt_start = pos if prompt is None else prompt.end()
    inline_bytes = inline_n = 0
    scan = _scan_for(surface)
    if scan is not None:
        hits: list[int] = []
        for hit in scan.finditer(body, pos):
            if hit.lastindex == 2:
                size = body.find(b'"', hit.end()) - hit.end()
                if size > INLINE_BYTES_MIN:
                    inline_bytes += size
                    inline_n += 1
                continue
            key = hit[1]
            if key is None or key in _DEEP_KEYS:
                return _peek_parsed(body, surface, facts)
            start = hit.start()
            if not hits and len(body) - start <= SUFFIX_BYTES_MAX:
                known = _suffixes.get((surface, _digest(body, start)))
                if known is not None:
                    members.update(known)
                    break
            hits.append(start)
        else:
            if hits and not _settle(body, hits, members, "" if inline_n else surface):
                return _peek_parsed(body, surface, facts)
    if members:
        _fill(facts, members, surface)
    prompt_bytes = len(body) - facts.prompt_start - inline_bytes
    facts.prompt_tokens_estimate = max(0, prompt_bytes) // BYTES_PER_TOKEN + inline_n * IMAGE_TOKENS
    return facts


def _scalar(text: bytes) -> object:
    constant = _CONSTANTS.get(text, text)
    return json.loads(text) if constant is text else constant


_CONSTANTS: dict[bytes, object] = {b"true": True, b"false": False, b"null": None}


def rewrite(
    body: bytes,
    facts: BodyFacts,
    *,
    model: str | None = None,
    include_usage: bool = False,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    set_: Mapping[str, object] | None = None,
) -> bytes:
    """`body` with the named changes and no others; the same object when there are none.

    `model` replaces the model; `include_usage` asks for the usage chunk unless the user already
    mentioned `stream_options.include_usage`; `drop`, `rename` and `set_` work on top-level members,
    in that order. A rename whose target exists already only drops the source.
    """
    if not facts.is_json:
        return body
    wants_model = model is not None and model != facts.model
    wants_usage = include_usage and facts.include_usage is None
    if drop or rename or set_ or (wants_usage and facts.stream_options):
        return _rewrite_parsed(body, facts, model, wants_usage, drop, rename or {}, set_ or {})
    if wants_model and facts.model_span is None:
        return _rewrite_parsed(body, facts, model, wants_usage, (), {}, {})
    return _spliced(body, facts.model_span if wants_model else None, model, usage=wants_usage)


def prefix_hashes(body: bytes, facts: BodyFacts, block_bytes: int = 1024) -> tuple[int, ...]:
    """Chained 64-bit hashes of the prompt's leading blocks (about 256 tokens each), longest last.

    Two bodies share hash i exactly when their first i + 1 whole blocks are equal. No text is kept.
    At most 32 blocks are hashed: beyond 8,000 tokens of common prefix the choice is made.
    """
    start = facts.prompt_start
    count = min((len(body) - start) // block_bytes, PREFIX_BLOCKS_MAX)
    running = blake2b(digest_size=8)
    hashes: list[int] = []
    for _ in range(count):
        running.update(body[start : start + block_bytes])
        start += block_bytes
        hashes.append(int.from_bytes(running.digest(), "little"))
    return tuple(hashes)


def _settle(body: bytes, hits: list[int], members: dict[str, object], cache: str) -> bool:
    """Add the top-level members among `hits` to `members`; False: only a full parse can tell.

    The finding is remembered for the surface `cache`, unless that is empty.
    """
    for start in hits[:SUFFIX_TRIES_MAX]:
        try:
            # A slice that starts at a quote is valid UTF-8 if the body is.
            text = "{" + body[start:].decode()
            value, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            return False  # not valid JSON from here on: let the full parse say so
        if text[end:].strip():
            continue  # it closed early: the key is nested; try the next
        known = {k: v for k, v in cast("dict[str, object]", value).items() if k in _KEPT}
        members.update(known)
        if cache and start == hits[0] and len(body) - start <= SUFFIX_BYTES_MAX:
            if len(_suffixes) >= SUFFIXES_MAX:
                _suffixes.clear()
            _suffixes[cache, _digest(body, start)] = known
        return True
    return len(hits) <= SUFFIX_TRIES_MAX


def _digest(body: bytes, start: int) -> bytes:
    return blake2b(memoryview(body)[start:], digest_size=16).digest()


_DECODER = json.JSONDecoder()
_KEPT = frozenset(
    {
        "stream", "stream_options", "stream_format", "max_tokens", "max_completion_tokens",
        "max_output_tokens", "n", "store", "background", "previous_response_id", "conversation",
        "prompt", "voice", "web_search_options",
    }
)  # fmt: skip
_suffixes: dict[tuple[str, bytes], dict[str, object]] = {}
"""What a body's tail (parameters and tools, the same from call to call) was found to say, by its
digest. A tail with ids, provider-run tools or inline files never gets here. Emptied when full; two
threads that both fill it do no harm."""


def _peek_parsed(body: bytes, surface: str, facts: BodyFacts) -> BodyFacts:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return BodyFacts()
    if not isinstance(value, dict):
        return BodyFacts()
    members = cast("dict[str, object]", value)
    facts.is_json = True
    facts.parsed = members
    model = members.get("model")
    facts.model = model if isinstance(model, str) else None
    _fill(facts, members, surface)
    if surface in ("chat", "responses"):
        facts.server_tools = facts.server_tools or has_server_tools(members)
        prompt = members.get("input" if surface == "responses" else "messages")
        if found := stored_ids((members.get("tools"), prompt)):
            facts.pin_ids = tuple(dict.fromkeys((*facts.pin_ids, *found)))
            facts.pin_kind = facts.pin_kind or next(iter(found.values()))
    inline_bytes = inline_n = 0
    for hit in _INLINE.finditer(body):
        size = body.find(b'"', hit.end()) - hit.end()
        if size > INLINE_BYTES_MIN:
            inline_bytes += size
            inline_n += 1
    prompt_bytes = len(body) - facts.prompt_start - inline_bytes
    facts.prompt_tokens_estimate = max(0, prompt_bytes) // BYTES_PER_TOKEN + inline_n * IMAGE_TOKENS
    return facts


def _fill(facts: BodyFacts, members: Mapping[str, object], surface: str) -> None:
    facts.stream = members.get("stream") is True or members.get("stream_format") == "sse"
    options = members.get("stream_options")
    facts.stream_options = options is not None
    if isinstance(options, dict):
        mentioned = cast("dict[str, object]", options).get("include_usage")
        facts.include_usage = mentioned if isinstance(mentioned, bool) else None
    for key in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        limit = members.get(key)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            facts.max_output_tokens = limit
            break
    store = members.get("store")
    facts.store = store if isinstance(store, bool) else None
    n = members.get("n")
    facts.choices = n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1
    facts.background = members.get("background") is True
    if surface == "chat" and members.get("web_search_options") is not None:
        facts.server_tools = True
    pins: list[tuple[str, str]] = []
    if surface == "responses":
        for kind, key in _RESPONSE_PINS:
            if (name := id_of(members.get(key))) is not None:
                pins.append((kind, name))
    elif surface == "audio":
        voice = members.get("voice")
        if not isinstance(voice, str) and (name := id_of(voice)) is not None:
            pins.append(("voice", name))
    if pins:
        facts.pin_kind = pins[0][0]
        facts.pin_ids = tuple(name for _, name in pins)


_RESPONSE_PINS = (
    ("response", "previous_response_id"),
    ("conversation", "conversation"),
    ("prompt", "prompt"),
)


def _spliced(body: bytes, span: tuple[int, int] | None, model: str | None, *, usage: bool) -> bytes:
    """One copy, whatever changes: a body may be megabytes."""
    if span is None and not usage:
        return body
    view = memoryview(body)
    parts: list[bytes | memoryview] = []
    pos = 0
    if span is not None:
        parts += [view[: span[0]], _literal(model)]
        pos = span[1]
    if usage:
        end = body.rindex(b"}")
        comma = b"" if _EMPTY_OBJECT.fullmatch(body) else b","
        parts += [view[pos:end], comma, b'"stream_options":{"include_usage":true}']
        pos = end
    parts.append(view[pos:])
    return b"".join(parts)


def _literal(model: str | None) -> bytes:
    try:
        return json.dumps(model, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(model).encode()


def _rewrite_parsed(
    body: bytes,
    facts: BodyFacts,
    model: str | None,
    wants_usage: bool,
    drop: Sequence[str],
    rename: Mapping[str, str],
    set_: Mapping[str, object],
) -> bytes:
    parsed = facts.parsed
    members: dict[str, object] = json.loads(body) if parsed is None else dict(parsed)
    if model is not None:
        members["model"] = model
    if wants_usage:
        options = members.get("stream_options")
        known = cast("dict[str, object]", options) if isinstance(options, dict) else {}
        members["stream_options"] = {**known, "include_usage": True}
    for name in drop:
        members.pop(name, None)
    for old, new in rename.items():
        if old in members:
            value = members.pop(old)
            members.setdefault(new, value)
    members.update(set_)
    try:
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate: only an escape can carry it
        return json.dumps(members, separators=(",", ":")).encode()
