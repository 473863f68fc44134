"""The two http libraries an openai client may stand on, behind one set of names.

openai 3 speaks `httpx2`, openai 2.54 and injected clients speak legacy `httpx`. Their APIs are the
same where a transport touches them, only the class objects differ; so everything above this module
is written once against `Family`, and annotated with httpx2's types.
"""

from __future__ import annotations

import copy
import functools
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The class objects of one http library."""

    name: str
    Request: type[httpx2.Request]
    Response: type[httpx2.Response]
    Headers: type[httpx2.Headers]
    URL: type[httpx2.URL]
    ByteStream: type[httpx2.ByteStream]
    SyncByteStream: type[httpx2.SyncByteStream]
    AsyncByteStream: type[httpx2.AsyncByteStream]
    Client: type[httpx2.Client]
    AsyncClient: type[httpx2.AsyncClient]
    HTTPTransport: type[httpx2.HTTPTransport]
    AsyncHTTPTransport: type[httpx2.AsyncHTTPTransport]
    RequestError: type[httpx2.RequestError]
    TimeoutException: type[httpx2.TimeoutException]
    ReadTimeout: type[httpx2.ReadTimeout]
    ReadError: type[httpx2.ReadError]
    RemoteProtocolError: type[httpx2.RemoteProtocolError]
    DecodingError: type[httpx2.DecodingError]


_NAMES = tuple(name for name in Family.__dataclass_fields__ if name != "name")


@functools.cache
def _family(name: str) -> Family:
    module = importlib.import_module(name)
    return Family(name, *(getattr(module, attribute) for attribute in _NAMES))


def family_of(http_object: object) -> Family | None:
    """The family of an http client, request or transport; None if it is of neither.

    Subclasses count: the first base that one of the two libraries defines decides.
    """
    for base in type(http_object).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("httpx2", "httpx"):
            return _family(root)
    return None


_stream_classes: dict[tuple[type, type], type] = {}
"""One per colour and family."""


def byte_stream_class(base: type[T], stream_base: type[object]) -> type[T]:
    """`base` joined with a family's stream class, which its clients insist on by isinstance."""
    key = (base, stream_base)
    found = _stream_classes.get(key)
    if found is None:
        found = _stream_classes[key] = type(base.__name__, key, {})
    return cast("type[T]", found)


def unshared(transport: T) -> T:
    """The same transport over a connection pool of its own.

    For another event loop or a forked child: sockets can't be shared across either. Transports that
    hold no httpcore pool (mocks, aiohttp's) are returned as they are.
    """
    pool: Any = getattr(transport, "_pool", None)
    if not all(hasattr(pool, name) for name in ("_connections", "_requests")):
        return transport
    fresh_pool = copy.copy(pool)
    fresh_pool._connections = []
    fresh_pool._requests = []
    for name in ("_optional_thread_lock", "_thread_lock"):
        lock = getattr(pool, name, None)
        if lock is not None:
            setattr(fresh_pool, name, type(lock)())
    fresh: Any = copy.copy(transport)
    fresh._pool = fresh_pool
    return cast("T", fresh)


def stream_of(transport: object, timeouts: object) -> Any:
    """The connection's network stream that carries the request with these timeouts; None: there is
    none yet, or it isn't this request's alone (HTTP/2), or the transport isn't httpcore's.
    """
    pool: Any = getattr(transport, "_pool", None)
    if getattr(pool, "_http2", True):
        return None
    for waiting in list(getattr(pool, "_requests", ())):
        if waiting.request.extensions.get("timeout") is timeouts:
            connection: Any = waiting.connection
            while connection is not None:  # a tunnel's connection lies within another
                stream: Any = getattr(connection, "_network_stream", None)
                if stream is not None:
                    return stream
                connection = getattr(connection, "_connection", None)
    return None
