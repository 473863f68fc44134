"""Exceptions of both httpx families, aiohttp, anyio and ssl; and those that are none of ours."""

from __future__ import annotations

import asyncio
import socket
import ssl

import aiohttp
import anyio
import httpx
import httpx2
import pytest

from headway.core.model import TRAITS, FailureClass, Health
from headway.quirks import classify_exception

C = FailureClass


@pytest.mark.parametrize("family", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize(
    ("name", "phase", "kind", "reached"),
    [
        ("ConnectError", "connect", C.CONNECT, False),
        ("ConnectError", "send", C.CONNECT, False),
        ("ConnectTimeout", "send", C.CONNECT, False),
        ("ProxyError", "send", C.CONNECT, False),
        ("ReadTimeout", "send", C.TIMEOUT_BEFORE_FIRST_TOKEN, True),
        ("ReadTimeout", "first_token", C.TIMEOUT_BEFORE_FIRST_TOKEN, True),
        ("ReadTimeout", "stream", C.STALLED, True),
        ("WriteTimeout", "send", C.CONNECT, False),
        ("WriteError", "send", C.CONNECT, False),
        ("ReadError", "send", C.CONNECT, True),
        ("ReadError", "first_token", C.INCOMPLETE_STREAM, True),
        ("ReadError", "stream", C.INCOMPLETE_STREAM, True),
        ("RemoteProtocolError", "send", C.CONNECT, True),
        ("RemoteProtocolError", "stream", C.INCOMPLETE_STREAM, True),
        ("LocalProtocolError", "send", C.BAD_REQUEST, False),
        ("PoolTimeout", "send", C.CANCELLED, False),
        ("DecodingError", "first_token", C.INCOMPLETE_STREAM, True),
        ("UnsupportedProtocol", "send", C.NOT_FOUND, False),
        ("TooManyRedirects", "send", C.NOT_FOUND, False),
    ],
)
def test_an_exception_of_the_http_stack(
    family: object, name: str, phase: str, kind: FailureClass, reached: bool
) -> None:
    exc = getattr(family, name)("boom")
    outcome = classify_exception(exc, phase=phase)
    assert outcome is not None
    assert (outcome.kind, outcome.reached_model, outcome.error_type) == (kind, reached, name)


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (anyio.EndOfStream(), C.CONNECT),
        (ssl.SSLError("bad record mac"), C.CONNECT),
        (ConnectionResetError(), C.CONNECT),
        (socket.gaierror("no such host"), C.CONNECT),
        (aiohttp.ServerDisconnectedError(), C.CONNECT),
        (aiohttp.ClientPayloadError(), C.CONNECT),
        (aiohttp.SocketTimeoutError(), C.TIMEOUT_BEFORE_FIRST_TOKEN),
        (aiohttp.ConnectionTimeoutError(), C.CONNECT),
        (httpx2.NetworkError("a kind not listed by name"), C.CONNECT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_of_another_stack(exc: BaseException, kind: FailureClass) -> None:
    outcome = classify_exception(exc)
    assert outcome is not None
    assert outcome.kind is kind


def test_a_bad_certificate_is_configuration_however_deep_it_hides() -> None:
    try:
        try:
            raise ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED")
        except ssl.SSLError as cause:
            raise httpx2.ConnectError("tls") from cause
    except httpx2.ConnectError as exc:
        outcome = classify_exception(exc, phase="connect")
    assert outcome is not None
    assert outcome.error_type == "certificate"
    assert TRAITS[outcome.kind].retry_here is False
    assert TRAITS[outcome.kind].move_elsewhere is True


def test_a_certificate_error_that_was_only_handled_before_is_not_the_cause() -> None:
    try:
        try:
            raise ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED")
        except ssl.SSLError:
            raise httpx2.ConnectError("refused") from None
    except httpx2.ConnectError as exc:
        outcome = classify_exception(exc)
    assert outcome is not None
    assert outcome.kind is C.CONNECT


def test_our_own_full_pool_teaches_nothing_about_the_endpoint() -> None:
    outcome = classify_exception(httpx2.PoolTimeout("full"))
    assert outcome is not None
    assert outcome.health is Health.NOTHING


class ReadError(Exception):
    """An application's own exception that happens to have a known name."""


class SoftTimeLimitExceeded(Exception):
    """What a task queue raises into running code."""


@pytest.mark.parametrize(
    "exc",
    [
        ReadError(),
        SoftTimeLimitExceeded(),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        TimeoutError("from a signal handler"),
        ValueError(),
        OSError("disk"),
        MemoryError(),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_what_is_not_of_the_transport_is_left_alone(exc: BaseException) -> None:
    assert classify_exception(exc) is None


def test_a_subclass_is_known_by_its_base() -> None:
    class Special(httpx2.ReadTimeout):
        pass

    outcome = classify_exception(Special("slow"))
    assert outcome is not None
    assert outcome.error_type == "ReadTimeout"


@pytest.mark.parametrize("name", ["RemoteProtocolError", "ReadError", "WriteError"])
def test_a_stale_kept_alive_connection_is_repeated_for_free(name: str) -> None:
    exc = getattr(httpx2, name)("Server disconnected without sending a response.")
    reused = classify_exception(exc, phase="send", reused=True)
    fresh = classify_exception(exc, phase="send")
    assert reused is not None
    assert fresh is not None
    assert reused.free_retry
    assert not fresh.free_retry
