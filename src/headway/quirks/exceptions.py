"""Exceptions of the http stacks, by class name along the MRO, so that one table serves all of them.

httpx, httpx2, httpcore, aiohttp, anyio and ssl are recognised without being imported. Anything else
(a caller's own exception, a cancellation, a builtin `TimeoutError` from a signal handler) is not
ours: it propagates untouched.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from headway.core.model import FailureClass, Outcome

CAUSES_MAX = 8
"""Links of `__cause__` followed to find what really happened (not `__context__`: it may be the
failure of an earlier attempt)."""


class ExceptionRow(NamedTuple):
    """What an exception class means."""

    before: FailureClass
    """Before the response head."""
    after: FailureClass
    """Once the head has come, until the first content token."""
    sent: bool = True
    """The request may have reached a model when this is raised while sending."""
    streaming: FailureClass | None = None
    """After the first content token; None: as `after`."""
    note: str = ""


_C = FailureClass
_CONFIG = ExceptionRow(_C.NOT_FOUND, _C.NOT_FOUND, sent=False, note="configuration: elsewhere only")
_CONNECT = ExceptionRow(_C.CONNECT, _C.CONNECT, sent=False, note="no request was sent")
_LOCAL = ExceptionRow(_C.CANCELLED, _C.CANCELLED, sent=False, note="our own pool: teaches nothing")
_BROKEN = ExceptionRow(_C.CONNECT, _C.INCOMPLETE_STREAM, note="connection broke after the send")
_UNSENT = ExceptionRow(_C.CONNECT, _C.INCOMPLETE_STREAM, sent=False, note="body not fully written")
_SILENT = ExceptionRow(
    _C.TIMEOUT_BEFORE_FIRST_TOKEN,
    _C.TIMEOUT_BEFORE_FIRST_TOKEN,
    streaming=_C.STALLED,
    note="nothing came in time",
)
_BAD = ExceptionRow(_C.BAD_REQUEST, _C.INCOMPLETE_STREAM, sent=False, note="malformed request")

EXCEPTIONS: dict[str, ExceptionRow] = {
    # httpx, httpx2, httpcore
    "ConnectTimeout": _CONNECT,
    "ConnectError": _CONNECT,
    "ProxyError": _CONNECT,
    "PoolTimeout": _LOCAL,
    "ReadTimeout": _SILENT,
    "WriteTimeout": _UNSENT,
    "WriteError": _UNSENT,
    "ReadError": _BROKEN,
    "CloseError": _BROKEN,
    "RemoteProtocolError": _BROKEN,
    "LocalProtocolError": _BAD,
    "DecodingError": ExceptionRow(
        _C.INCOMPLETE_STREAM, _C.INCOMPLETE_STREAM, note="compressed body damaged"
    ),
    "TooManyRedirects": _CONFIG,
    "UnsupportedProtocol": _CONFIG,
    "NetworkError": _BROKEN,
    "ProtocolError": _BROKEN,
    "TimeoutException": _SILENT,
    "TransportError": _BROKEN,
    # aiohttp
    "ClientConnectorCertificateError": _CONFIG,
    "ClientConnectorSSLError": _CONNECT,
    "ClientConnectorDNSError": _CONNECT,
    "ClientConnectorError": _CONNECT,
    "ClientProxyConnectionError": _CONNECT,
    "ConnectionTimeoutError": _CONNECT,
    "SocketTimeoutError": _SILENT,
    "ServerTimeoutError": _SILENT,
    "ServerDisconnectedError": _BROKEN,
    "ClientPayloadError": _BROKEN,
    "ClientOSError": _BROKEN,
    "ClientConnectionResetError": _BROKEN,
    "ClientConnectionError": _BROKEN,
    # anyio
    "EndOfStream": _BROKEN,
    "BrokenResourceError": _BROKEN,
    "ClosedResourceError": _BROKEN,
    # the standard library
    "SSLCertVerificationError": _CONFIG,
    "CertificateError": _CONFIG,
    "SSLEOFError": _BROKEN,
    "SSLZeroReturnError": _BROKEN,
    "SSLError": _BROKEN,  # a failed handshake comes as ConnectError; raw, it broke while reading
    "gaierror": _CONNECT,
    "ConnectionRefusedError": _CONNECT,
    "ConnectionResetError": _BROKEN,
    "ConnectionAbortedError": _BROKEN,
    "BrokenPipeError": _BROKEN,
    "IncompleteRead": _BROKEN,
}

_MODULES = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "anyio"}
    | {"ssl", "socket", "http", "builtins"}
)
_CERTIFICATE = frozenset({"SSLCertVerificationError", "CertificateError"})


def classify_exception(
    exc: BaseException, *, phase: str = "send", reused: bool = False
) -> Outcome | None:
    """What `exc`, raised while an attempt was made, says about it. None: not a transport failure.

    `phase` is how far the attempt had come: "connect", "send" (no response head yet), "first_token"
    (head seen, no content yet; also the body of a plain reply) or "stream" (content seen). `reused`
    tells that the connection had served before: if it breaks before any byte of the reply, that is
    a stale keep-alive, not the endpoint's failure.
    """
    name, row = _row(exc)
    if row is None:
        return None
    if row is not _LOCAL and _has_certificate_cause(exc):
        name, row = "certificate", _CONFIG
    if phase in ("connect", "send"):
        kind = row.before
        sent = row.sent and phase == "send"
    else:
        kind = row.after if phase == "first_token" or row.streaming is None else row.streaming
        # A response head means that the request was received whole.
        sent = row is not _LOCAL
        if kind is FailureClass.CONNECT:
            kind = FailureClass.INCOMPLETE_STREAM
    return Outcome(
        kind,
        error_type=name,
        reached_model=sent,
        free_retry=reused and phase == "send" and (row is _BROKEN or row is _UNSENT),
    )


def describe(exc: BaseException) -> str:
    """The exception's class and text, and what the system said where its text leaves that out.

    httpx tells of a failed connection in its own words (async: "All connection attempts failed")
    and of a timeout in none.
    """
    name, text = type(exc).__name__, str(exc)
    told = f"{name}: {text}" if text else name
    if name == "PoolTimeout":
        told += " (every connection of the client's own pool was in use: streams left open?)"
    link: BaseException | None = exc
    for _ in range(CAUSES_MAX):
        if link is None:
            break
        if isinstance(link, OSError) and link.strerror and link.strerror not in told:
            return f"{told} ({type(link).__name__}: {link.strerror})"
        if isinstance(link, BaseExceptionGroup):
            link = cast("BaseExceptionGroup[BaseException]", link).exceptions[0]
        else:
            wrapped = link.args[0] if link.args else None  # httpcore keeps it there, and no cause
            link = link.__cause__ or (wrapped if isinstance(wrapped, BaseException) else None)
    return told


def _row(exc: BaseException) -> tuple[str, ExceptionRow | None]:
    for cls in type(exc).__mro__:
        row = EXCEPTIONS.get(cls.__name__)
        if row is not None and cls.__module__.partition(".")[0] in _MODULES:
            return cls.__name__, row
    return "", None


def _has_certificate_cause(exc: BaseException) -> bool:
    link: BaseException | None = exc
    for _ in range(CAUSES_MAX):
        if link is None:
            return False
        if type(link).__name__ in _CERTIFICATE or "CERTIFICATE_VERIFY_FAILED" in str(link):
            return True
        link = link.__cause__
    return False
