"""Policy over http: conditional, bounded, and nowhere it may not go."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler

import pytest

from headway.credentials import Credential
from headway.errors import FetchError, PolicyError
from headway.policy.http_source import FRESH_MAX_S, HttpSource
from headway.policy.sources import (
    Fetched,
    NotModified,
    UnavailableError,
)
from tests.policy.samples import document, encoded
from tests.policy.servers import PolicyServer, policy_server

CONTENT = encoded(document())


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as running:
        yield running


def test_asks_with_the_etag_else_the_date(server: PolicyServer) -> None:
    source = HttpSource(server.url)
    server.etag = '"v1"'
    got = source.fetch()
    assert isinstance(got, Fetched)
    source.fetch(got.etag)
    server.etag = None
    server.answer = lambda h: (200, {"Last-Modified": "Mon, 30 Nov 2026 11:00:00 GMT"}, b"{}")
    got = source.fetch()
    assert isinstance(got, Fetched)
    source.fetch(got.etag)

    assert "if-none-match" not in server.requests[0]
    assert server.requests[1]["if-none-match"] == '"v1"'
    assert server.requests[3]["if-modified-since"] == "Mon, 30 Nov 2026 11:00:00 GMT"
    assert server.requests[0]["accept-encoding"] == "gzip"


def test_a_status_is_a_fetch_error_with_its_hint(server: PolicyServer) -> None:
    source = HttpSource(server.url, wall_clock=lambda: 1000.0)
    for header, hint in (
        ("7", 7.0),
        (formatdate(1090.0, usegmt=True), 90.0),
        (formatdate(900.0, usegmt=True), None),
        ("1e9", 3600.0),
        ("nan", None),
        ("-5", None),
        ("soon", None),
    ):
        server.answer = lambda h, header=header: (503, {"Retry-After": header}, b"")
        with pytest.raises(UnavailableError, match="answered 503") as caught:
            source.fetch()
        assert caught.value.retry_after_s == hint


@pytest.mark.parametrize(
    ("kind", "path", "text_format"),
    [
        (None, "p.json", "json"),
        ("application/json", "p.yaml", "json"),
        ("application/json; charset=utf-8", "p", "json"),
        ("application/vnd.acme.policy+json", "p", "json"),
        ("text/plain", "p.json", "json"),
        ("text/plain", "p.yaml", "yaml"),
        ("binary/octet-stream", "p.yml", "yaml"),
        ("application/yaml", "p", "yaml"),
        ("TEXT/YAML", "p.json", "yaml"),
        ("text/html; charset=utf-8", "p.json", None),
        ("application/xml", "p.json", None),
        ("image/png", "p.json", None),
    ],
)
def test_the_content_type_says_how_it_is_written_or_that_it_is_no_policy(
    kind: str | None, path: str, text_format: str | None, server: PolicyServer
) -> None:
    server.answer = lambda h: (200, {} if kind is None else {"Content-Type": kind}, b"{}")
    source = HttpSource(server.url.replace("policy.json", path))
    if text_format is None:
        with pytest.raises(FetchError, match=r"no policy .expected application/json"):
            source.fetch()
        return
    got = source.fetch()
    assert isinstance(got, Fetched)
    assert got.format == text_format


@pytest.mark.parametrize(
    ("headers", "fresh_s"),
    [
        ({}, None),
        ({"Cache-Control": "no-cache"}, None),
        ({"Cache-Control": "max-age=120"}, 120.0),
        ({"Cache-Control": "public, MAX-AGE=120, must-revalidate"}, 120.0),
        ({"Cache-Control": 'max-age="120"', "Age": "100"}, 20.0),
        ({"Cache-Control": "max-age=60", "Age": "100"}, 0.0),
        ({"Cache-Control": "max-age=31536000"}, FRESH_MAX_S),  # a CDN's default, or a freeze
        ({"Cache-Control": "max-age=99999999999999999999"}, None),
        ({"Cache-Control": "max-age=-5"}, None),
        ({"Cache-Control": "max-age=soon"}, None),
        ({"Cache-Control": "s-maxage=500"}, None),
    ],
)
def test_cache_control_is_heard_within_reason(
    headers: dict[str, str], fresh_s: float | None, server: PolicyServer
) -> None:
    source = HttpSource(server.url)
    server.answer = lambda h: (200, headers, b"{}")
    got = source.fetch()
    assert isinstance(got, Fetched)
    assert got.fresh_s == fresh_s
    server.answer = lambda h: (304, headers, b"")
    unchanged = source.fetch("etag:x")
    assert isinstance(unchanged, NotModified)
    assert unchanged.fresh_s == fresh_s


def test_signatures_are_at_the_path_with_sig_after_it(server: PolicyServer) -> None:
    server.content, server.signatures = CONTENT, b"signed"
    source = HttpSource(f"{server.url}?token=t", headers={"x-team": "search"})
    got = source.fetch(signed=True)

    assert isinstance(got, Fetched)
    assert got.signatures == b"signed"
    assert [r[":path"] for r in server.requests] == [
        "/policy.json?token=t",
        "/policy.json.sig?token=t",
    ]
    assert server.requests[1]["x-team"] == "search"
    assert "if-none-match" not in server.requests[1]
    for status in (403, 404, 410):
        server.answer = lambda h, status=status: (
            (status, {}, b"") if h.path.partition("?")[0].endswith(".sig") else (200, {}, CONTENT)
        )
        got = source.fetch(signed=True)
        assert isinstance(got, Fetched)
        assert got.signatures is None
    server.answer = lambda h: (500 if ".sig" in h.path else 200, {}, CONTENT)
    with pytest.raises(UnavailableError, match="answered 500"):
        source.fetch(signed=True)


def test_gzip_is_unpacked_within_the_cap(server: PolicyServer) -> None:
    source = HttpSource(server.url)
    packed = {"Content-Encoding": "gzip"}
    server.answer = lambda h: (200, packed, gzip.compress(CONTENT))
    got = source.fetch()
    assert isinstance(got, Fetched)
    assert got.content == CONTENT

    for body, error in (
        (gzip.compress(bytes(50_000_000)), "too large"),
        (gzip.compress(CONTENT)[:-9], "ends in the middle"),
        (gzip.compress(CONTENT) + bytes(5_000_000), "goes on after its end"),
        (b"not gzip", "not the gzip"),
    ):
        server.answer = lambda h, body=body: (200, packed, body)
        with pytest.raises(FetchError, match=error):
            source.fetch()
    server.answer = lambda h: (200, {"Content-Encoding": "br"}, b"x")
    with pytest.raises(FetchError, match="not asked for"):
        source.fetch()


def test_redirects_stay_where_they_may(server: PolicyServer) -> None:
    def to(where: str) -> None:
        server.answer = lambda h: (
            (200, {}, CONTENT) if h.path == "/new" else (302, {"Location": where}, b"")
        )

    to("/new")
    assert isinstance(HttpSource(server.url).fetch(), Fetched)
    to("https://evil.example/policy.json")
    with pytest.raises(FetchError, match=r"redirected to https://evil\.example"):
        HttpSource(server.url).fetch()
    to("http://10.0.0.1/policy.json")
    with pytest.raises(FetchError, match="redirected to"):
        HttpSource(server.url, hosts=["10.0.0.1"]).fetch()
    to("file:///etc/passwd")
    with pytest.raises(FetchError, match="no http"):
        HttpSource(server.url).fetch()
    to("/policy.json")
    with pytest.raises(FetchError, match="more than 3 times"):
        HttpSource(server.url).fetch()


def test_headers_and_keys_go_to_their_hosts_only(server: PolicyServer) -> None:
    with policy_server() as other:
        other.content = CONTENT
        server.answer = lambda h: (302, {"Location": other.url}, b"")
        port = server.url.split(":")[2].split("/")[0]
        key = Credential(value="canary-k", hosts=[f"http://127.0.0.1:{port}"])
        source = HttpSource(
            server.url, hosts=["http://127.0.0.1"], credential=key, headers={"X-Team": "blue"}
        )

        assert isinstance(source.fetch(), Fetched)
        assert server.requests[0]["authorization"] == "Bearer canary-k"
        assert server.requests[0]["x-team"] == "blue"
        assert "authorization" not in other.requests[0]
        assert "x-team" not in other.requests[0]


def test_proxies_of_the_environment_are_not_used(
    server: PolicyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    assert isinstance(HttpSource(server.url).fetch(), Fetched)


def test_a_server_that_drips_is_given_up(server: PolicyServer) -> None:
    now = [0.0]

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(3):
            now[0] += 4.0
            handler.wfile.write(b" ")
        handler.close_connection = True

    server.answer = drip  # type: ignore[assignment]
    with pytest.raises(FetchError, match="took longer than 5 s"):
        HttpSource(server.url, clock=lambda: now[0]).fetch()


def test_a_server_that_drips_its_headers_is_given_up(server: PolicyServer) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 10_000:
                handler.wfile.write(bytes([byte]))
                given_up.wait(0.02)
        except OSError:
            given_up.set()

    given_up = threading.Event()
    server.answer = answer
    with pytest.raises(FetchError, match="ReadTimeout"):
        HttpSource(server.url, timeout_s=0.2).fetch()
    assert given_up.wait(10)


def test_a_connection_that_ends_early_or_never_begins_is_a_fetch_error(
    server: PolicyServer,
) -> None:
    def cut(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.close_connection = True

    server.answer = cut  # type: ignore[assignment]
    with pytest.raises(FetchError, match="while reading it"):
        HttpSource(server.url).fetch()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(FetchError, match="ConnectError"):
            HttpSource(f"http://127.0.0.1:{unused.getsockname()[1]}/").fetch()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://config.example/policy.json", "plain http off loopback"),
        ("https://u:canary@config.example/policy.json", "user information"),
        ("https://config.example/policy.json#x", "fragment"),
    ],
)
def test_a_wrong_url_is_refused_at_once(url: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words) as caught:
        HttpSource(url)
    assert "canary" not in str(caught.value)


def test_a_token_in_the_query_stays_out_of_sight(server: PolicyServer) -> None:
    source = HttpSource(f"{server.url}?sig=canary-1")
    server.answer = lambda h: (403, {}, b"")

    with pytest.raises(FetchError) as caught:
        source.fetch()
    assert server.requests[0][":path"].endswith("?sig=canary-1")
    assert "canary" not in str(caught.value) + repr(source)


def test_plain_http_off_loopback_needs_a_word_in_code() -> None:
    source = HttpSource("http://10.0.0.1/policy.json", hosts=["http://10.0.0.0/8"])

    assert not source.from_loopback


def test_fetching_leaves_no_span(server: PolicyServer) -> None:
    from opentelemetry import context

    seen: list[object] = []

    class Looks(HttpSource):
        def _check_time(self, give_up_at: float) -> None:
            seen.append(context.get_value("suppress_http_instrumentation"))

    assert isinstance(Looks(server.url).fetch(), Fetched)
    assert seen
    assert all(seen)
    assert context.get_value("suppress_http_instrumentation") is None
