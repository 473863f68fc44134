"""How long a server asks us to stay away, in every form servers have been seen to say it.

Order of trust: `retry-after-ms`, `Retry-After` (seconds or a date), the vendors' own retry fields,
`x-ratelimit-reset-*` of the exhausted bucket, and last a wait that stands only in the message text.
A hint that is negative, not finite or not readable is no hint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

UNIX_TIME_FLOOR = 1_000_000_000.0
"""Bare numbers above this are instants (2001 and later), below it durations."""

BODY_SCAN_BYTES = 16 * 1024
"""A wait is named in the first sentences of an error; a 3 MB error page is not searched."""

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Patterns are kept as text: `re` compiles and caches them at the first refusal, not at import.
_COMPOUND = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_COMPOUND_WHOLE = r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+"
_ISO_DURATION = (
    r"(?i)P(?:(\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_ISO_INSTANT = r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}"

# Possessive (`*+`): with plain stars white space between the words could be divided in as many ways
# as the cube of its length, and a server may send nothing else.
_TEXT_WAIT = (
    r"(?i)(?:try again|retry|retrying|wait|available again|reset(?:s)?)"
    r"\s*+(?:after|in|for)?\s*+:?\s*+(?:at least|about|approximately)?\s*+"
    r"((?:\d+(?:\.\d+)?\s*"
    r"(?:milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
    r"(?![a-z])[\s,]*(?:and\s+)?)+)"
)
_TEXT_PART = r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)"
_RETRY_DELAY = r'"retryDelay"\s*:\s*"(\d+(?:\.\d+)?)s"'
_RETRY_FIELD = r'"retry_after(_ms|_seconds)?"\s*:\s*"?(\d+(?:\.\d+)?)'

RESET_BUCKETS: tuple[tuple[str, str], ...] = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("x-ratelimit-remaining-input-tokens", "x-ratelimit-reset-input-tokens"),
    ("x-ratelimit-remaining-output-tokens", "x-ratelimit-reset-output-tokens"),
    ("x-ratelimit-remaining-project-tokens", "x-ratelimit-reset-project-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
)
"""(remaining, reset) header pairs: OpenAI and kin, Anthropic, OpenRouter, proxies, IETF draft."""


_RELEVANT = frozenset(
    name.encode()
    for name in (
        "content-encoding",
        "content-type",
        "date",
        "retry-after",
        "retry-after-ms",
        "x-ms-retry-after-ms",
        "x-should-retry",
        "x-amzn-errortype",
        *(name for bucket in RESET_BUCKETS for name in bucket),
    )
)


def relevant_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The few of a reply's raw headers that this package reads, as a plain lower-case dict.

    A look-up in an http stack's own header object costs microseconds, and a reply is judged by a
    dozen of them; this is one pass.
    """
    found: dict[str, str] = {}
    for key, value in raw:  # no comprehension: its frame costs as much as all the rest
        name = key.lower()
        if name in _RELEVANT:
            found[name.decode("latin-1")] = value.decode("latin-1")
    return found


def retry_after_hint(headers: Mapping[str, str], body: bytes, wall_now: float) -> float | None:
    """Seconds the server asks us to wait; None when it says nothing usable.

    `wall_now` is the Unix time, needed for dates; a date is read against the server's own `Date`
    header when there is one, so that a skewed clock on either side does no harm.
    """
    value = headers.get("retry-after-ms") or headers.get("x-ms-retry-after-ms")
    if value is not None:
        wait_s = _usable(_number(value), 0.001)
        if wait_s is not None:
            return wait_s
    value = headers.get("retry-after")
    if value is not None:
        wait_s = _retry_after(value, headers, wall_now)
        if wait_s is not None:
            return wait_s
    wait_s = _reset_hint(headers, wall_now)
    if wait_s is not None:
        return wait_s
    return text_hint(body[:BODY_SCAN_BYTES].decode("utf-8", "replace")) if body else None


def exhausted_hint(headers: Mapping[str, str], wall_now: float) -> float | None:
    """Seconds until a bucket that a *successful* reply reports as used up refills, else None."""
    waits = [
        wait_s
        for remaining, reset in RESET_BUCKETS
        if (left := headers.get(remaining)) is not None
        and _number(left) == 0
        and (wait_s := parse_reset(headers.get(reset, ""), wall_now)) is not None
    ]
    return max(waits, default=None)


def text_hint(text: str) -> float | None:
    """The wait named in an error's text: "try again in 1.2s", "retry after 3 seconds", "7m12s"."""
    if (found := re.search(_RETRY_DELAY, text)) is not None:
        return _usable(float(found[1]))
    if (found := re.search(_RETRY_FIELD, text)) is not None:
        return _usable(float(found[2]), 0.001 if found[1] == "_ms" else 1.0)
    if (found := re.search(_TEXT_WAIT, text)) is None:
        return None
    total_s = 0.0
    for amount, unit in re.findall(_TEXT_PART, found[1]):
        total_s += float(amount) * _unit_s(unit.lower())
    return _usable(total_s)


def parse_reset(value: str, wall_now: float) -> float | None:
    """One `x-ratelimit-reset-*` value as seconds from now.

    Reads `6m0s`, `1m30.5s`, `500ms`, `42` (seconds), `1764500000` and `1764500000000` (instants),
    `PT1M30S` and `2026-11-30T12:00:00Z`. An instant in the past is 0.
    """
    text = value.strip()
    if not text:
        return None
    number = _number(text)
    if number is not None:
        if number > UNIX_TIME_FLOOR * 1000:
            number /= 1000
        if number > UNIX_TIME_FLOOR:
            return max(0.0, number - wall_now)
        return _usable(number)
    compact = text.replace(" ", "").lower()
    if re.fullmatch(_COMPOUND_WHOLE, compact):
        return _usable(sum(float(n) * _UNIT_S[u] for n, u in re.findall(_COMPOUND, compact)))
    if (duration := re.fullmatch(_ISO_DURATION, text)) is not None and any(duration.groups()):
        days, hours, minutes, seconds = (float(group or 0) for group in duration.groups())
        return _usable(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    if re.match(_ISO_INSTANT, text):
        return _seconds_until_iso(text, wall_now)
    return _seconds_until_date(text, wall_now)


def _retry_after(value: str, headers: Mapping[str, str], wall_now: float) -> float | None:
    number = _number(value)
    if number is not None:
        # Some proxies send the instant instead of the wait.
        return _usable(number - wall_now if number > UNIX_TIME_FLOOR else number)
    text = value.strip()
    if text[:1].isdigit():
        return parse_reset(text, wall_now)
    server_now = _instant(headers.get("date", ""))
    return _seconds_until_date(text, wall_now if server_now is None else server_now)


def _reset_hint(headers: Mapping[str, str], wall_now: float) -> float | None:
    """The reset of the bucket that is empty; the later one when both or neither says so."""
    empty: list[float] = []
    silent: list[float] = []
    for remaining, reset in RESET_BUCKETS:
        value = headers.get(reset)
        if value is None:
            continue
        wait_s = parse_reset(value, wall_now)
        if wait_s is None:
            continue
        left = headers.get(remaining)
        left_n = None if left is None else _number(left)
        if left_n is None:
            silent.append(wait_s)
        elif left_n <= 0:
            empty.append(wait_s)
    return max(empty or silent, default=None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _usable(seconds: float | None, scale: float = 1.0) -> float | None:
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return None
    return seconds * scale


def _unit_s(unit: str) -> float:
    if unit.startswith(("ms", "milli")):
        return 0.001
    return _UNIT_S[unit[0]]


def _instant(text: str) -> float | None:
    # Imported here: email.utils pulls in a dozen modules for a header that is rarely a date.
    from email.utils import parsedate_to_datetime

    if not text:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        return None


def _seconds_until_date(text: str, now: float) -> float | None:
    instant = _instant(text)
    return None if instant is None else max(0.0, instant - now)


def _seconds_until_iso(text: str, now: float) -> float | None:
    from datetime import UTC, datetime

    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    try:
        return max(0.0, instant.timestamp() - now)
    except (OverflowError, OSError, ValueError):
        return None
