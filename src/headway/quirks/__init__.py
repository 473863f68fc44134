"""One place for what providers mean: replies and exceptions to outcomes, waits, usage, names.

    status, headers, body ──classify──▶ Outcome        2xx body ──read_reply──▶ Outcome, ReplyFacts
    error in a stream ──classify_error──▶ Outcome      exception ──classify_exception──▶ Outcome
    reply, chunk, event ──extract_usage──▶ Usage       headers, text ──retry_after_hint──▶ seconds

Pure: no I/O, no clock, no http stack. A provider's peculiarity is a row in `table.py` plus one
recorded reply under `tests/quirks/`.
"""

from __future__ import annotations

from headway.quirks.classify import (
    classify,
    classify_body,
    classify_error,
    error_message,
    is_plain_answer,
    names_parameter,
    quirk_for,
    read_reply,
    should_retry,
    success_hint,
)
from headway.quirks.exceptions import classify_exception, describe
from headway.quirks.hints import (
    exhausted_hint,
    parse_reset,
    relevant_headers,
    retry_after_hint,
    text_hint,
)
from headway.quirks.table import QUIRKS, Quirk
from headway.quirks.usage import (
    ReplyFacts,
    extract_usage,
    load_object,
    parse_usage,
    reply_facts,
    usage_from_body,
)

__all__ = [
    "QUIRKS",
    "Quirk",
    "ReplyFacts",
    "classify",
    "classify_body",
    "classify_error",
    "classify_exception",
    "describe",
    "error_message",
    "exhausted_hint",
    "extract_usage",
    "is_plain_answer",
    "load_object",
    "names_parameter",
    "parse_reset",
    "parse_usage",
    "quirk_for",
    "read_reply",
    "relevant_headers",
    "reply_facts",
    "retry_after_hint",
    "should_retry",
    "success_hint",
    "text_hint",
    "usage_from_body",
]
