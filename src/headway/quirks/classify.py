"""From a reply to an `Outcome`: read the error in any vendor's shape, then walk the table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from pydantic_core import from_json

from headway.core.model import FailureClass, Outcome
from headway.quirks.hints import exhausted_hint, retry_after_hint, text_hint
from headway.quirks.table import QUIRKS, Quirk
from headway.quirks.usage import (
    NO_FACTS,
    ReplyFacts,
    as_object,
    extract_usage,
    facts_of_large,
    facts_of_reply,
    load_json,
    load_object,
)

ERROR_PARSE_BYTES = 256 * 1024
"""Larger error bodies are pages, not errors: only their beginning is read, as text."""

REPLY_PARSE_BYTES = 64 * 1024
"""Larger successful replies (embeddings, images) are not parsed a second time beside the SDK."""

TEXT_BYTES = 1024
MESSAGE_CHARS = 4096
_GOOD = Outcome(FailureClass.OK, status=200)
EMPTY = "(empty body)"
"""What texts are searched in when there is no text, so that a row can ask for that."""

_HTML = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_SSE = re.compile(rb"(?:\xef\xbb\xbf)?(?:data:|event:|id:|retry:|:)")
_IN_BAND_STATUS = re.compile(r"\s*([1-5]\d\d)\s*")


class ErrorFacts(NamedTuple):
    """An error reply, whatever its shape: names (lower-case), status inside the body, text."""

    codes: frozenset[str] = frozenset()
    status: int | None = None
    message: str = ""
    details: str = ""
    """The message and whatever else texts may be searched in."""


def classify(status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
    """How an attempt that was answered ended.

    `headers` is a case-insensitive or lower-case mapping; `wall_now` is Unix time. A 2xx is OK
    unless its body is a failure in disguise (see `classify_body`); its `retry_after_s` is then the
    refill time of a bucket that the reply reports as used up.
    """
    if 200 <= status < 300:
        disguised = classify_body(headers, body) if body else None
        return disguised or Outcome(
            FailureClass.OK, status=status, retry_after_s=success_hint(headers, wall_now)
        )
    outcome = _outcome(status, quirk_for(status, headers, body))
    hint = retry_after_hint(headers, body, wall_now)
    return outcome._replace(retry_after_s=hint, should_retry=should_retry(headers))


def quirk_for(status: int, headers: Mapping[str, str], body: bytes) -> Quirk | None:
    """The row of the table that a refusal falls under; None: the bare 4xx or 5xx rule."""
    return _match(status, error_facts(body, headers))


def classify_body(
    headers: Mapping[str, str],
    body: bytes,
    *,
    surface: str = "",
    stream: bool = False,
) -> Outcome | None:
    """The failure that a 2xx reply hides, or None when it is what it claims to be.

    `stream=True`: the caller asked for an event stream and this body, read whole, came instead.
    Surfaces with binary or text replies ("audio", "files", ...) are believed unless it is HTML.
    """
    return _judge(headers, body, surface, stream=stream)[0]


def read_reply(
    headers: Mapping[str, str], body: bytes, *, surface: str, wall_now: float, counted: bool = True
) -> tuple[Outcome, ReplyFacts]:
    """A whole 2xx reply judged and read in one parse: how it ended, and what accounting needs.

    The outcome carries the token counts, and the refill time of a bucket reported as used up.
    `counted=False`: nobody will look at the counts or the facts, so they are left out.
    """
    hidden, reply = _judge(headers, body, surface, stream=False)
    if not counted:
        facts = NO_FACTS
    elif reply is not None:
        facts = facts_of_reply(reply)
    elif hidden is None and surface in _JSON_ONLY:
        facts = facts_of_large(body)
    else:
        facts = NO_FACTS
    wait_s = None if hidden else success_hint(headers, wall_now)
    outcome = hidden or (
        _GOOD if wait_s is None else Outcome(FailureClass.OK, status=200, retry_after_s=wait_s)
    )
    if facts.usage is not None:
        outcome = outcome._replace(
            input_tokens=facts.usage.input_tokens,
            cached_tokens=facts.usage.cached_input_tokens,
            output_tokens=facts.usage.output_tokens,
        )
    return outcome, facts


def _judge(
    headers: Mapping[str, str], body: bytes, surface: str, *, stream: bool
) -> tuple[Outcome | None, Mapping[str, object] | None]:
    """(the hidden failure, the reply if it was parsed)."""
    ctype = headers.get("content-type", "").partition(";")[0].strip().lower()
    head = body[:TEXT_BYTES].lstrip()
    is_json = head.startswith((b"{", b"["))
    if not is_json and (ctype == "text/html" or _HTML.match(head)):
        return _disguised(FailureClass.NOT_FOUND, "html_body"), None
    if stream:
        reply = load_object(body)
        hidden = None if reply is None else _hidden_failure(reply)
        return hidden or _disguised(FailureClass.SERVER_ERROR, "not_event_stream", ran=True), reply
    if surface in _ANY_BODY:
        return None, None
    if not is_json and (ctype == "text/event-stream" or _SSE.match(head)):
        return _disguised(FailureClass.SERVER_ERROR, "event_stream", ran=True), None
    if surface not in _JSON_ONLY and "json" not in ctype:
        return None, None
    if not head:
        return _disguised(FailureClass.INCOMPLETE_STREAM, "empty_body", ran=True), None
    if len(body) > REPLY_PARSE_BYTES and is_json:
        return None if _is_whole(body) else _CUT, None
    try:
        value = load_json(body)
    except (ValueError, RecursionError):
        return _CUT, None
    reply = as_object(value)
    if reply is not None:
        return _hidden_failure(reply), reply
    facts = _facts_of(value)
    if facts.codes or facts.status:
        return classify_error(value), None
    if surface in _JSON_ONLY:
        return _disguised(FailureClass.INCOMPLETE_STREAM, "not_an_object", ran=True), None
    return None, None


def _is_whole(body: bytes) -> bool:
    """Whether a large body is all there.

    The caller's SDK will parse it; doing that twice for a megabyte of floats is not worth what a
    damaged middle would teach. So it is parsed only where counting brackets leaves a doubt: text in
    it (code, most likely) may hold some that don't match.
    """
    if not body.rstrip().endswith((b"}", b"]")):
        return False
    if body.count(b"{") == body.count(b"}") and body.count(b"[") == body.count(b"]"):
        return True
    try:
        load_json(body)
    except (ValueError, RecursionError):
        return False
    return True


def is_plain_answer(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a whole 200 JSON reply is beyond doubt what was asked for, with no news of limits.

    Where it is not, `read_reply` finds out what it is.
    """
    try:
        reply: object = from_json(body)
    except ValueError:
        return False
    if type(reply) is not dict:
        return False
    members = cast("dict[str, object]", reply)
    kind = members.get("object")
    return (
        bool(members.get("choices") or members.get("data") or members.get("results"))
        and not members.get("error")
        and (kind is None or (isinstance(kind, str) and kind not in _NOT_PLAIN))
        and "0" not in headers.values()
    )


_NOT_PLAIN = frozenset({"response", "error"})


def classify_error(error: object) -> Outcome:
    """An error met in band: the value under `error` (object or text), or the whole failing event.

    Its status is the one it names itself, else None: names and texts decide, and an error that says
    nothing known is the server's. The request was accepted, so a model may have run.
    """
    facts = _facts_of(error)
    outcome = _outcome(facts.status, _match(facts.status, facts))
    wait_s = text_hint(facts.details[:MESSAGE_CHARS])
    return outcome._replace(retry_after_s=wait_s, reached_model=True)


def success_hint(headers: Mapping[str, str], wall_now: float) -> float | None:
    """Seconds until a bucket that a successful reply reports as used up refills, else None."""
    # The look at the values is for nearly every reply all there is to do.
    return exhausted_hint(headers, wall_now) if "0" in headers.values() else None


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """The server's `x-should-retry`; None when absent or neither true nor false."""
    value = headers.get("x-should-retry")
    return None if value is None else {"true": True, "false": False}.get(value.strip().lower())


def names_parameter(body: bytes, name: str) -> bool:
    """Whether a 400 complains about the request field `name` (for example "stream_options")."""
    return name.encode() in body[:ERROR_PARSE_BYTES]


def error_message(body: bytes) -> str:
    """The human-readable part of an error body: its message, else its first 200 characters."""
    message = error_facts(body).message.strip()
    return message or body[:800].decode("utf-8", "replace").strip()[:200]


def error_facts(body: bytes, headers: Mapping[str, str] | None = None) -> ErrorFacts:
    """Codes, in-body status and text of an error reply, in any of the shapes seen in the wild."""
    facts: ErrorFacts
    if body.lstrip()[:1] in (b"{", b"[") and len(body) <= ERROR_PARSE_BYTES:
        try:
            facts = _facts_of(json.loads(body))
        except (ValueError, RecursionError):
            facts = _text_facts(body)
    else:
        facts = _text_facts(body)
    if headers is not None and (aws := headers.get("x-amzn-errortype")):
        code = aws.partition(":")[0].rpartition("#")[2].strip().lower()
        facts = facts._replace(codes=facts.codes | {code})
    return facts


def _hidden_failure(reply: Mapping[str, object]) -> Outcome | None:
    """An error inside a 200: an `error` member, a failed Responses object, a bare error object."""
    error = reply.get("error")
    if reply.get("object") == "response":
        if reply.get("status") != "failed":
            return None
        failed = classify_error(error or {"message": "failed"})
        usage = extract_usage(reply)
        failed = failed._replace(error_type=failed.error_type or "response_failed")
        return (
            failed
            if usage is None
            else failed._replace(
                input_tokens=usage.input_tokens,
                cached_tokens=usage.cached_input_tokens,
                output_tokens=usage.output_tokens,
            )
        )
    if error and not any(reply.get(key) for key in ("choices", "output", "data", "results")):
        return classify_error(reply if isinstance(error, str) else error)
    if reply.get("object") == "error" or (reply.get("type") == "error" and error):
        return classify_error(reply)
    return None


def _match(status: int | None, facts: ErrorFacts) -> Quirk | None:
    for quirk in QUIRKS:
        if status is None:
            if not quirk.codes and quirk.text is None:
                continue
        elif quirk.status and status not in quirk.status:
            continue
        if quirk.codes and not (quirk.codes & facts.codes):
            continue
        if quirk.text is not None and not re.search(quirk.text, facts.details, re.IGNORECASE):
            continue
        return quirk
    return None


def _outcome(status: int | None, quirk: Quirk | None) -> Outcome:
    if quirk is None:
        server = status is None or status >= 500
        kind = FailureClass.SERVER_ERROR if server else FailureClass.BAD_REQUEST
        return Outcome(kind, status=status, error_type=_name(status), reached_model=server)
    return Outcome(
        quirk.kind,
        status=status,
        error_type=quirk.error_type or _name(status),
        reached_model=quirk.reached_model,
        soft=quirk.soft,
    )


def _name(status: int | None) -> str:
    return "upstream_error" if status is None else str(status)


def _disguised(kind: FailureClass, error_type: str, *, ran: bool = False) -> Outcome:
    return Outcome(kind, status=200, error_type=error_type, reached_model=ran)


def _facts_of(value: object) -> ErrorFacts:
    """Facts of a parsed error in any shape: OpenAI, Azure, Google (a list), AWS, vLLM..."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return _facts_of(items[0]) if items else ErrorFacts()
    outer = as_object(value)
    if outer is None:
        text = value[:MESSAGE_CHARS] if isinstance(value, str) else ""
        return ErrorFacts(message=text, details=text)
    layers: list[Mapping[str, object]] = [outer]
    for key in ("error", "innererror", "inner_error", "metadata", "response"):
        for layer in tuple(layers):
            nested = layer.get(key)
            if (inner := as_object(nested)) is not None:
                layers.append(inner)
            elif key == "error" and isinstance(nested, str):
                layers.append({"message": nested})
            elif key == "error" and isinstance(nested, list):
                layers.extend(o for o in map(as_object, cast("list[object]", nested)) if o)
    codes = {code for layer in layers for code in _codes(layer)}
    codes -= {"error", "null", "none", ""}
    status = next((s for layer in reversed(layers) if (s := _status(layer)) is not None), None)
    texts = [text for layer in reversed(layers) for text in _texts(layer)]
    message = texts[0] if texts else ""
    details = "\n".join([*texts, *_detail_texts(layers)])[: 2 * MESSAGE_CHARS]
    return ErrorFacts(frozenset(codes), status, message[:MESSAGE_CHARS], details)


def _codes(layer: Mapping[str, object]) -> Iterable[str]:
    for key in ("code", "type", "status", "__type", "error_type", "reason"):
        value = layer.get(key)
        if isinstance(value, str) and len(value) <= 100:
            yield value.rpartition("#")[2].strip().lower()


def _status(layer: Mapping[str, object]) -> int | None:
    for key in ("code", "status", "status_code", "statusCode"):
        value = layer.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 300 <= value <= 599:
            return value
        if isinstance(value, str) and (found := _IN_BAND_STATUS.fullmatch(value)) is not None:
            return int(found[1])
    return None


def _texts(layer: Mapping[str, object]) -> Iterable[str]:
    for key in ("message", "Message", "detail", "error_description", "raw"):
        value = layer.get(key)
        if isinstance(value, str) and value:
            yield value
        elif key in ("message", "detail") and isinstance(value, dict | list) and value:
            yield json.dumps(value)


def _detail_texts(layers: Iterable[Mapping[str, object]]) -> Iterable[str]:
    """Google's structured details (quota ids, RetryInfo) as text the patterns can search."""
    for layer in layers:
        details = layer.get("details")
        if isinstance(details, list) and details:
            yield json.dumps(details)[:MESSAGE_CHARS]


def _text_facts(body: bytes) -> ErrorFacts:
    """A body that is no JSON: an error page, a proxy's line, or nothing at all."""
    text = body[:TEXT_BYTES].decode("utf-8", "replace").strip()
    return ErrorFacts(details=text or EMPTY)


_CUT = _disguised(FailureClass.INCOMPLETE_STREAM, "invalid_json", ran=True)
_JSON_ONLY = frozenset({"chat", "completions", "embeddings", "responses", "moderations", "images"})
_ANY_BODY = frozenset({"audio", "files", "containers", "videos", "skills", "other"})
