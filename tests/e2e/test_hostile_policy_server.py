"""A policy server that has turned hostile: no call notices, the good policy stays, and why is told.

One row for each attack. The documents that carry an attack in them are properly signed: it is the
worst case, an insider's. Loopback; what takes time takes a fraction of a second here.
"""

from __future__ import annotations

import gzip
import json
import logging
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

import headway
from headway.core.model import PolicyRejected
from headway.policy.http_source import HttpSource
from headway.policy.signing import PublicKeys, keygen, sign, signature_file
from headway.router import Router
from tests.e2e.fleet import Fleet, document, say
from tests.e2e.replies import answer
from tests.policy.servers import PolicyServer, policy_server
from tests.servers import Server
from tests.telemetry.otlp import Pipeline

OPS, THIEF = keygen("ops"), keygen("thief")
MEMORY_BOUND_BYTES = 4 * 1024 * 1024
FETCH_TIMEOUT_S = 0.3  # of attacks that hang; otherwise the usual 5 s
BOMB = gzip.compress(bytes(64 * 1024 * 1024))
"""64 MB in 64 kB."""
FLAPS = 20
KEY = {"b-key": headway.Credential(value="canary-key", hosts=["b.example"])}


@dataclass
class Stage:
    """A router whose policy was good, version 7, and the server that it came from."""

    server: PolicyServer
    source: HttpSource
    good: dict[str, Any]

    def publish(self, made: dict[str, Any] | bytes, *, key: Any = OPS) -> None:
        """Put a document there, signed (by whomever)."""
        content = made if isinstance(made, bytes) else json.dumps(made).encode()
        self.server.content, self.server.etag = content, f'"{hash(content)}"'
        signed = [] if key is None else [sign(content, key.private, key_id="ops")]
        self.server.signatures = signature_file(signed)

    def changed(self, **top: Any) -> dict[str, Any]:
        return {**self.good, "version": 8, **top}

    def raw(self, write: Callable[[BaseHTTPRequestHandler], None]) -> None:
        """Answer by hand, for as long as the client listens."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.close_connection = True
            with suppress(OSError):
                write(handler)

        self.server.answer = answer
        self.source._timeout_s = FETCH_TIMEOUT_S

    def endpoint(self, **entry: Any) -> dict[str, Any]:
        """The good document with the only endpoint of the route replaced."""
        return self.changed(endpoints={"a": entry})


def head(handler: BaseHTTPRequestHandler, *lines: str) -> None:
    text = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: application/json", *lines, "", ""])
    handler.wfile.write(text.encode())


def endless(handler: BaseHTTPRequestHandler) -> None:
    head(handler, f"Content-Length: {10 * 1024**3}")
    while True:
        handler.wfile.write(b" " * 65536)


def bomb(handler: BaseHTTPRequestHandler) -> None:
    head(handler, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}")
    handler.wfile.write(BOMB)


def drip(handler: BaseHTTPRequestHandler) -> None:
    head(handler, "Content-Length: 100000")
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.02)


def drip_head(handler: BaseHTTPRequestHandler) -> None:
    while True:
        handler.wfile.write(b"H")
        time.sleep(0.02)


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)


def replay(stage: Stage) -> None:
    good = stage.server.signatures
    stage.publish(stage.changed())
    stage.server.signatures = good


def half(stage: Stage) -> None:
    content = json.dumps(stage.changed()).encode()
    stage.publish(content)
    stage.server.content = content[: len(content) // 2]


def redirect(stage: Stage, where: str) -> None:
    stage.server.answer = lambda h: (302, {"Location": where}, b"")


# attack: (what the server does, the word for it, what the message says)
ATTACKS: dict[str, tuple[Callable[[Stage], object], str, str]] = {
    "wrong type": (
        lambda s: setattr(s.server, "answer", lambda h: (200, {"Content-Type": "text/html"}, b"<p>")),
        "fetch",
        "is text/html",
    ),
    "10 GB body": (lambda s: s.raw(endless), "too_large", "at most 1048576 bytes"),
    "gzip bomb": (lambda s: s.raw(bomb), "too_large", "at most 1048576 bytes"),
    "slow loris, body": (lambda s: s.raw(drip), "fetch", ""),
    "slow loris, headers": (lambda s: s.raw(drip_head), "fetch", "ReadTimeout"),
    "silence": (lambda s: s.raw(silent), "fetch", "ReadTimeout"),
    "10,000 redirects": (lambda s: redirect(s, "/policy.json"), "fetch", "more than 3 times"),
    "redirect to the metadata service": (
        lambda s: redirect(s, "http://169.254.169.254/latest/meta-data/"),
        "fetch",
        "redirected to http://169.254.169.254",
    ),
    "rollback": (lambda s: s.publish(s.changed(version=6)), "rollback", "older than (0, 7)"),
    "replayed signature": (replay, "signature", "for other bytes"),
    "wrong key": (lambda s: s.publish(s.changed(), key=THIEF), "signature", "by no pinned key"),
    "no signature": (lambda s: s.publish(s.changed(), key=None), "signature", "is not signed"),
    "half-written": (half, "signature", "for other bytes"),
    "half-written, and signed": (
        lambda s: s.publish(json.dumps(s.changed()).encode()[:200]),
        "invalid",
        "JSON",
    ),
    "invalid UTF-8": (
        lambda s: s.publish(json.dumps(s.changed()).encode().replace(b"prod", b"pr\xff\xfed")),
        "invalid",
        "UTF-8",
    ),
    "schema 2.0": (lambda s: s.publish(s.changed(schema_version="2.0")), "invalid", "1.x"),
    "unknown must_understand": (
        lambda s: s.publish(s.changed(must_understand=["teleport"])),
        "invalid",
        "must_understand[0]",
    ),
    "endpoint stealing a credential": (
        lambda s: s.publish(s.endpoint(base_url="https://evil.example/v1", credential="b-key")),
        "invalid",
        "endpoints.a.base_url",
    ),
    "credential sent elsewhere": (
        lambda s: s.publish(s.endpoint(base_url="https://c.example/v1", credential="b-key")),
        "invalid",
        "lets go to https://c.example",
    ),
    "the environment's secrets": (
        lambda s: s.publish(s.endpoint(base_url="https://b.example/v1", credential="env:HOME")),
        "invalid",
        "env: is for files",
    ),
    "http://169.254.169.254": (
        lambda s: s.publish(s.endpoint(base_url="http://169.254.169.254/latest")),
        "invalid",
        "http://169.254.169.254",
    ),
    "another policy of the same key": (
        lambda s: s.publish(s.changed(policy_id="staging")),
        "other_policy",
        '"staging"',
    ),
    "expired on arrival": (
        lambda s: s.publish(s.changed(expires_at="2020-01-01T00:00:00Z")),
        "expired",
        "has expired",
    ),
    "same version, other content": (
        lambda s: s.publish(s.changed(version=7, on_expiry="fail")),
        "same",
        "raise version",
    ),
}  # fmt: skip


@pytest.fixture
def stage(serve: Callable[..., Server]) -> Iterator[Stage]:
    with policy_server() as server:
        urls = {"a": serve(answer()).url}
        good = document(urls, policy_id="prod", expires_at="2099-01-01T00:00:00Z")
        made = Stage(server, HttpSource(server.url), good)
        made.publish(made.good)
        yield made


@pytest.fixture
def victim(stage: Stage, otel: Pipeline, fleet: Callable[..., Fleet]) -> Fleet:
    own = stage.good["endpoints"]["a"]["base_url"]
    running = fleet(
        {"a": own},
        policy=stage.source,
        public_keys=PublicKeys({"ops": OPS.public}),
        credentials=KEY,
        allowed_hosts=["b.example", "c.example", own.removesuffix("/v1")],
    )
    assert running.router.status().policy.signed_by == ("ops",)
    return running


def look(router: Router) -> int:
    """What the background thread does; the most memory it took meanwhile, in bytes."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        router._supply.refresh_once()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_call_notices_and_the_reason_is_told(
    attack: str, stage: Stage, victim: Fleet, otel: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    act, reason, words = ATTACKS[attack]
    client = victim.client()
    act(stage)
    with caplog.at_level(logging.INFO, "headway"):
        taken = [look(victim.router) for _ in range(2)]
        assert say(client) == "Hello"

    assert max(taken) < MEMORY_BOUND_BYTES
    status = victim.router.status().policy
    assert (status.version, status.last_reason) == (7, reason)
    assert words in (status.last_error or "")
    [event] = victim.events.of(PolicyRejected)  # told once, looked at twice
    assert (event.reason, event.message) == (reason, status.last_error)
    assert "the last good one stays" in caplog.text
    seen = otel.flush()
    assert seen.metrics["headway.policy.rejections"].point(reason=reason).value == 1
    told = [log for log in seen.logs if log.attributes.get("headway.reason") == reason]
    assert [log.attributes["headway.message"] for log in told] == [event.message]
    shown = f"{status} {event} {caplog.text}"
    assert "canary" not in shown

    stage.server.answer, stage.source._timeout_s = None, 5.0
    stage.publish(stage.changed(version=9))
    victim.router._supply.refresh_once()
    status = victim.router.status().policy
    assert (status.version, status.last_error) == (9, None)  # and over it is


def test_freeze_is_no_error_but_it_shows(stage: Stage, victim: Fleet) -> None:
    """The same good answer for ever: calls go on, and the policy's age says what is going on."""
    soon = {"issued_at": "2026-01-01T00:00:00Z", "fresh_until": "2026-01-02T00:00:00Z"}
    stage.publish(stage.changed(**soon))
    for _ in range(3):
        victim.router._supply.refresh_once()

    status = victim.router.status().policy
    assert (status.version, status.stale, status.last_error) == (8, True, None)
    assert victim.router.policy_age_s() == pytest.approx(status.age_s, abs=60)
    assert status.age_s > 86_400
    assert say(victim.client()) == "Hello"


def test_flapping_content_puts_nothing_bad_in_force(stage: Stage, victim: Fleet) -> None:
    """Good, garbage, rollback, good, ...: what is in force only rises."""
    seen: list[int] = []
    for turn in range(FLAPS):
        version = 8 + turn
        stage.publish(stage.changed(version=version))
        victim.router._supply.refresh_once()
        seen.append(victim.router.status().policy.version)
        stage.publish([b"{", stage.changed(version=1)][turn % 2])  # type: ignore[arg-type]
        victim.router._supply.refresh_once()
        seen.append(victim.router.status().policy.version)

    assert seen == [v for version in range(8, 8 + FLAPS) for v in (version, version)]
    assert say(victim.client()) == "Hello"


def test_the_first_call_does_not_wait_for_a_fetch_under_way(victim: Fleet) -> None:
    with victim.router._supply._lock:  # as the background thread holds it, from the fetch on
        assert say(victim.client()) == "Hello"


def test_calls_under_way_go_on_while_the_policy_hangs(stage: Stage, victim: Fleet) -> None:
    """The background thread hangs in a fetch: calls neither wait for it nor fail."""
    stage.raw(silent)
    supply = victim.router._supply
    client = victim.client()
    say(client)
    give_up_at = time.monotonic() + 10
    supply._pace.due = 0.0
    from headway.policy.refresh import refresher

    refresher.wake()
    while not supply._lock.locked():  # it is being asked
        assert time.monotonic() < give_up_at
        time.sleep(0.001)
    answered = 0
    while supply._lock.locked():
        assert say(client) == "Hello"
        answered += 1

    assert answered >= 1
    assert victim.router.status().policy.version == 7
