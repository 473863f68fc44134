"""Waits, in every published form and in none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.quirks import (
    exhausted_hint,
    parse_reset,
    relevant_headers,
    retry_after_hint,
    should_retry,
    success_hint,
    text_hint,
)

NOW = 1764500000.0  # Sun, 30 Nov 2025 10:53:20 GMT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360.0),
        ("1m30.5s", 90.5),
        ("500ms", 0.5),
        ("59.7s", 59.7),
        ("8h12m3.5s", 29523.5),
        ("1d2h", 93600.0),
        ("42", 42.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("1764500060", 60.0),
        ("1764500060000", 60.0),
        ("1764499000", 0.0),
        ("PT1M30S", 90.0),
        ("pt0.5s", 0.5),
        ("P1DT1S", 86401.0),
        ("2025-11-30T10:54:20Z", 60.0),
        ("2025-11-30T11:54:20+01:00", 60.0),
        ("2025-11-30T10:54:20", 60.0),
        ("2020-01-01T00:00:00Z", 0.0),
        ("Sun, 30 Nov 2025 10:53:30 GMT", 10.0),
        ("", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("5 parsecs", None),
        ("PT", None),
        ("2025-99-99T10:54:20Z", None),
    ],
)
def test_a_reset_value_in_any_published_format(text: str, seconds: float | None) -> None:
    assert parse_reset(text, NOW) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "nope", "retry-after": "9"}, 9.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after": "300"}, 300.0),
        ({"retry-after": "30s"}, 30.0),
        ({"retry-after": "Sun, 30 Nov 2025 10:53:30 GMT"}, 10.0),
        ({"retry-after": "Sun, 30 Nov 2025 10:53:00 GMT"}, 0.0),
        # The server's clock is an hour ahead; its own Date says so.
        (
            {
                "retry-after": "Sun, 30 Nov 2025 11:53:30 GMT",
                "date": "Sun, 30 Nov 2025 11:53:20 GMT",
            },
            10.0,
        ),
        ({"retry-after": "1764500030"}, 30.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "NaN"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Sun, 99 Nov 2025 99:53:30 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after_in_any_state(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_hint(headers, b"", NOW) == seconds


def test_the_empty_bucket_decides_and_the_later_one_when_unsure() -> None:
    both = {"x-ratelimit-reset-requests": "8h12m3.5s", "x-ratelimit-reset-tokens": "6m0s"}
    for remaining, wait_s in [
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-remaining-requests": "5"}, 360.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "5"}, 29523.5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-remaining-tokens": "0"}, 29523.5),
        ({}, 29523.5),
    ]:
        assert retry_after_hint({**both, **remaining}, b"", NOW) == wait_s


def test_a_bucket_with_something_left_is_no_reason_to_wait() -> None:
    headers = {"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "100"}
    assert retry_after_hint(headers, b"", NOW) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please retry after 3 seconds.", 3.0),
        ("Please retry after 86400 seconds.", 86400.0),
        ("Please try again in 1.2s. Visit", 1.2),
        ("Please try again in 20ms.", 0.02),
        ("Please try again in 7m12s", 432.0),
        ("try again in 6m0s", 360.0),
        ("Retry in 5 minutes and 3 seconds", 303.0),
        ("wait 2 hours", 7200.0),
        ('"retryDelay": "34.5s"', 34.5),
        ('{"retry_after": 5}', 5.0),
        ('{"retry_after_ms": 250}', 0.25),
        ("please try again later", None),
        ("after 3 attempts we gave up", None),
        ("limit 5 s reached", None),
    ],
)
def test_a_wait_that_stands_only_in_the_text(text: str, seconds: float | None) -> None:
    assert text_hint(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.timeout(10)
@pytest.mark.parametrize("word", ["wait", "retry after", "try again in at least "])
def test_white_space_after_a_word_is_read_once(word: str) -> None:
    """A page is indented, and a hostile server sends nothing else: reading it again for each way
    to divide it would take hours."""
    blank = f"{word}{' ' * 16_000}"

    assert text_hint(f"{blank}x") is None
    assert text_hint(f"{blank}3 seconds") == 3.0
    assert retry_after_hint({}, f"please {blank}".encode(), NOW) is None


def test_a_header_outranks_the_text() -> None:
    assert retry_after_hint({"retry-after": "9"}, b"retry after 3 seconds", NOW) == 9.0
    assert retry_after_hint({"retry-after": "junk"}, b"retry after 3 seconds", NOW) == 3.0


def test_a_success_that_used_the_last_token_says_when_more_come() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "10",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "2m",
    }
    assert success_hint(headers, NOW) == 120.0
    assert success_hint({**headers, "x-ratelimit-remaining-tokens": "9"}, NOW) is None
    assert success_hint({}, NOW) is None
    assert exhausted_hint({}, NOW) is None


def test_the_headers_that_matter_in_one_pass() -> None:
    raw = [(b"Retry-After-Ms", b"250"), (b"x-request-id", b"r"), (b"X-RateLimit-Reset", b"\xe9")]
    assert relevant_headers(raw) == {"retry-after-ms": "250", "x-ratelimit-reset": "\xe9"}


def test_x_should_retry() -> None:
    assert should_retry({"x-should-retry": "true"}) is True
    assert should_retry({"x-should-retry": "False"}) is False
    assert should_retry({"x-should-retry": "maybe"}) is None
    assert should_retry({}) is None


@given(st.text(max_size=40), st.text(max_size=40), st.binary(max_size=60))
def test_whatever_is_sent_the_hint_is_a_sane_number_or_none(
    header: str, reset: str, body: bytes
) -> None:
    headers = {"retry-after": header, "retry-after-ms": reset, "x-ratelimit-reset-tokens": reset}
    hint = retry_after_hint(headers, body, NOW)
    assert hint is None or (math.isfinite(hint) and hint >= 0)


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h"]))
def test_amount_and_unit_round_trip(amount: int, unit: str) -> None:
    scale = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
    assert parse_reset(f"{amount}{unit}", NOW) == pytest.approx(amount * scale)
