"""Every recorded reply means what its file says, and every row of the table has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.core.model import TRAITS, FailureClass
from headway.quirks import QUIRKS, classify, quirk_for

HERE = Path(__file__).parent
WALL_NOW = 1764500000.0  # Sun, 30 Nov 2025 10:53:20 GMT
RECORDED = sorted(HERE.glob("*/*.json"))


def load(path: Path) -> tuple[dict[str, Any], bytes]:
    reply = json.loads(path.read_text())
    body = reply["body"]
    return reply, body.encode() if isinstance(body, str) else json.dumps(body).encode()


@pytest.mark.parametrize("path", RECORDED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_recorded_reply_means_what_its_file_says(path: Path) -> None:
    reply, body = load(path)
    outcome = classify(reply["status"], reply["headers"], body, wall_now=WALL_NOW)

    quirk = quirk_for(reply["status"], reply["headers"], body)
    assert (quirk.name if quirk else None) == reply["row"]
    assert {
        "kind": outcome.kind.value,
        "error_type": outcome.error_type,
        "retry_after_s": outcome.retry_after_s,
        "should_retry": outcome.should_retry,
        "reached_model": outcome.reached_model,
        "soft": outcome.soft,
    } == reply["expect"]
    assert outcome.status == reply["status"]


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda q: q.name)
def test_every_row_has_a_recorded_reply(quirk: object) -> None:
    rows = {load(path)[0]["row"] for path in RECORDED}
    assert quirk.name in rows  # type: ignore[attr-defined]


def test_row_names_are_unique() -> None:
    names = [quirk.name for quirk in QUIRKS]
    assert len(names) == len(set(names))


def test_no_plain_4xx_is_ever_repeated_on_the_same_endpoint() -> None:
    for status in range(400, 500):
        outcome = classify(status, {}, b'{"error":{"message":"no"}}', wall_now=WALL_NOW)
        repeatable = TRAITS[outcome.kind].retry_here
        assert repeatable == (status in {408, 409, 424, 425, 429, 460, 498, 499}), status


def test_every_5xx_may_go_elsewhere() -> None:
    for status in range(500, 600):
        outcome = classify(status, {}, b"", wall_now=WALL_NOW)
        assert TRAITS[outcome.kind].move_elsewhere, status


def test_a_refusal_by_status_certainly_ran_no_model() -> None:
    for status in (429, 503, 529, 404, 401, 400):
        assert not classify(status, {}, b"", wall_now=WALL_NOW).reached_model


def test_a_three_megabyte_error_page_is_read_at_its_beginning_only() -> None:
    page = b"<html><title>502 Bad Gateway</title>" + b"<p>retry after 5 seconds</p>" * 100_000
    outcome = classify(502, {"content-type": "text/html"}, page, wall_now=WALL_NOW)
    assert outcome.kind is FailureClass.SERVER_ERROR


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"error":{"code":{}}}',
        b'{"error":[1]}',
        b"[" * 5000,
    ],
)
@pytest.mark.parametrize("status", [200, 400, 404, 429, 500])
def test_no_body_makes_it_raise(status: int, body: bytes) -> None:
    classify(status, {"content-type": "application/json"}, body, wall_now=WALL_NOW)
