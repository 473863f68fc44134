"""Token counts and costs out of replies, chunks and events, whoever sent them.

Zeros all over, nulls and fragments are how servers say "not counted": they become unknown, never 0.
Counts include their subsets: input includes cached, output includes reasoning.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import NamedTuple, cast

from pydantic_core import from_json

from headway.core.model import Usage

_CACHE_READ = ("cached_tokens", "cache_read_tokens", "cache_read_input_tokens")
_CACHE_WRITE = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")

TOKENS_MAX = 1 << 40
"""Larger counts are nonsense, not usage."""

COST_MAX = 1_000_000
COST_CHARS_MAX, COST_DECIMALS_MAX = 40, 30
"""Costs (USD) beyond these are nonsense, too. Sums are exact: a digit in the millionth place would
be carried along, and written out, wherever the sum goes."""

USAGE_CANDIDATES_MAX = 16
"""`"usage"` keys looked at from the end of a body before it is parsed whole."""


_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,256})"')
_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]{1,256})"')


FULL_PARSE_BYTES = 1024 * 1024
"""Bodies up to here are parsed whole when no plain `usage` object is found."""


class ReplyFacts(NamedTuple):
    """What accounting needs of a non-streamed JSON reply."""

    id: str | None = None
    model: str | None = None
    service_tier: str | None = None
    finish_reasons: tuple[str, ...] = ()
    usage: Usage | None = None


NO_FACTS = ReplyFacts()


def extract_usage(obj: Mapping[str, object]) -> Usage | None:
    """The usage that `obj` (a reply, a chunk, a Responses event) carries; None when it tells none.

    Looks at `usage`, `response.usage` (Responses events), `x_groq.usage`, `usageMetadata`
    (Gemini's native name) and llama.cpp's `timings`.
    """
    found = as_object(obj.get("usage"))
    if found is None and (response := as_object(obj.get("response"))) is not None:
        found = as_object(response.get("usage"))
    if found is None and (groq := as_object(obj.get("x_groq"))) is not None:
        found = as_object(groq.get("usage"))
    if found is not None:
        usage = parse_usage(found)
        if usage is not None:
            return usage
    if (gemini := as_object(obj.get("usageMetadata"))) is not None:
        return _gemini_usage(gemini)
    if (timings := as_object(obj.get("timings"))) is not None:
        return _timings_usage(timings)
    return None


def parse_usage(raw: Mapping[str, object]) -> Usage | None:
    """One usage object, in OpenAI's chat or Responses shape or Anthropic's native one."""
    native = "cache_read_input_tokens" in raw or "cache_creation_input_tokens" in raw
    input_tokens = _count(raw, "prompt_tokens", "input_tokens")
    output_tokens = _count(raw, "completion_tokens", "output_tokens")
    total_tokens = _count(raw, "total_tokens")
    cost = _money(raw.get("cost"))
    if not (input_tokens or output_tokens or total_tokens or cost):
        return None  # all zero or all missing: an engine that does not count
    details = as_object(raw.get("prompt_tokens_details"))
    if details is None:
        details = as_object(raw.get("input_tokens_details"))
    cached = written = None
    if details is not None:
        cached = _count(details, *_CACHE_READ)
        written = _count(details, *_CACHE_WRITE)
    if cached is None:
        cached = _count(raw, "cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
    if written is None:
        written = _count(raw, "cache_write_tokens", "cache_creation_input_tokens")
    if native and input_tokens is not None and "prompt_tokens" not in raw and details is None:
        # Anthropic's own counts are disjoint: input excludes what came from or went to the cache.
        input_tokens += (cached or 0) + (written or 0)
    out_details = as_object(raw.get("completion_tokens_details")) or as_object(
        raw.get("output_tokens_details")
    )
    reasoning = None if out_details is None else _count(out_details, "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(raw, "reasoning_tokens")
    if input_tokens == 0:
        # No prompt is empty: a lone zero is a server that does not count its input.
        input_tokens = None
    if output_tokens is None and total_tokens is not None and input_tokens is not None:
        output_tokens = max(0, total_tokens - input_tokens)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
        provider_cost_usd=cost,
    )


def usage_from_body(body: bytes) -> Usage | None:
    """The usage of a whole JSON body, reading it from its last `"usage"` key.

    A quote inside a JSON string is escaped, so the key cannot be found inside text. It may still be
    a nested namesake: one that holds no counts is passed over for an earlier one.
    """
    end = len(body)
    for _ in range(USAGE_CANDIDATES_MAX):
        start = body.rfind(b'"usage"', 0, end)
        if start < 0:
            break
        end = start
        value = _object_after(body, start + 7)
        if value is not None:
            usage = parse_usage(value)
            if usage is not None:
                return usage
    if len(body) <= FULL_PARSE_BYTES and (b'"timings"' in body or b'"usage' in body):
        reply = load_object(body)
        return None if reply is None else extract_usage(reply)
    return None


def reply_facts(body: bytes) -> ReplyFacts:
    """id, model, service tier, finish reasons and usage of a non-streamed JSON reply."""
    reply = load_object(body)
    return ReplyFacts() if reply is None else facts_of_reply(reply)


def facts_of_reply(reply: Mapping[str, object]) -> ReplyFacts:
    """The same from a reply already parsed."""
    reasons: list[str] = []
    choices = reply.get("choices")
    if isinstance(choices, list):
        for choice in cast("list[object]", choices):
            reason = (as_object(choice) or {}).get("finish_reason")
            if isinstance(reason, str):
                reasons.append(reason)
    elif reply.get("object") == "response" and isinstance(status := reply.get("status"), str):
        incomplete = as_object(reply.get("incomplete_details")) or {}
        detail = incomplete.get("reason")
        reasons.append(detail if isinstance(detail, str) else status)
    return ReplyFacts(
        id=_text(reply.get("id")),
        model=_text(reply.get("model")),
        service_tier=_text(reply.get("service_tier")),
        finish_reasons=tuple(reasons),
        usage=extract_usage(reply),
    )


def facts_of_large(body: bytes) -> ReplyFacts:
    """What both ends of a body too large to parse twice tell: id and model, and the usage."""
    ends = body[:1024] + body[-4096:]
    model = _MODEL.search(ends)
    name = _ID.match(body[:1024])
    return ReplyFacts(
        id=None if name is None else name[1].decode("utf-8", "replace"),
        model=None if model is None else model[1].decode("utf-8", "replace"),
        usage=usage_from_body(body),
    )


def as_object(value: object) -> Mapping[str, object] | None:
    """`value` as a JSON object, or None."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def load_json(body: bytes) -> object:
    """`body` parsed. Raises `ValueError` or `RecursionError` for what isn't JSON."""
    try:
        return cast("object", from_json(body))  # several times faster, and stricter
    except ValueError:
        return cast("object", json.loads(body))


def load_object(body: bytes) -> Mapping[str, object] | None:
    """`body` parsed as a JSON object, or None for anything else. Never raises."""
    try:
        return as_object(load_json(body))
    except (ValueError, RecursionError):
        return None


def _object_after(body: bytes, colon: int) -> Mapping[str, object] | None:
    """The object that is the value of the key ending at `colon`, parsed alone."""
    head = body[colon : colon + 4096]
    text = head.decode("utf-8", "replace").lstrip()
    if not text.startswith(":"):
        return None
    text = text[1:].lstrip()
    if not text.startswith("{"):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return as_object(value)


def _gemini_usage(raw: Mapping[str, object]) -> Usage | None:
    prompt = _count(raw, "promptTokenCount")
    thoughts = _count(raw, "thoughtsTokenCount")
    candidates = _count(raw, "candidatesTokenCount")
    if not (prompt or candidates or thoughts):
        return None
    silent = candidates is None and thoughts is None
    output = None if silent else (candidates or 0) + (thoughts or 0)
    return Usage(
        input_tokens=prompt or None,
        output_tokens=output,
        cached_input_tokens=_count(raw, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )


def _timings_usage(raw: Mapping[str, object]) -> Usage | None:
    # llama.cpp: prompt_n is what was processed, cache_n what was already in the slot.
    processed, cached = _count(raw, "prompt_n"), _count(raw, "cache_n")
    predicted = _count(raw, "predicted_n")
    if not (processed or predicted):
        return None
    return Usage(
        input_tokens=None if processed is None else processed + (cached or 0),
        output_tokens=predicted,
        cached_input_tokens=cached,
    )


def _count(raw: Mapping[str, object], *names: str) -> int | None:
    for name in names:
        value = raw.get(name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int) and 0 <= value < TOKENS_MAX:
            return value
        if isinstance(value, float) and math.isfinite(value) and 0 <= value < TOKENS_MAX:
            return int(value)
    return None


def _money(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value) if not isinstance(value, int) or abs(value) <= COST_MAX else ""
    if len(text) > COST_CHARS_MAX:
        return None
    try:
        amount = Decimal(text)
    except InvalidOperation:
        return None
    if not amount.is_finite() or not 0 <= amount <= COST_MAX:
        return None
    decimals = amount.as_tuple().exponent
    return amount if isinstance(decimals, int) and decimals >= -COST_DECIMALS_MAX else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
