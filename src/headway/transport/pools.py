"""Which connection pool carries a request: the user's own, but never across a fork or a loop.

The user's http client is asked for its transport (proxies, mounts, TLS, mocks), which is used as it
is, in the process and on the event loop where it was first used. Sockets can be shared with neither
a forked child nor another loop: there, a copy of the transport with a pool of its own stands in.
The parent's connections are dropped in a child, never closed.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headway.transport.family import unshared
from headway.transport.network import bound

if TYPE_CHECKING:
    import httpx2

HttpT = TypeVar("HttpT")


class Pools(Generic[HttpT]):
    """The transports under one wrapped client."""

    __slots__ = ("_bound", "_by_loop", "_copies", "_first_loop", "_http", "_pid")

    def __init__(self, http: HttpT) -> None:
        self._http: Any = http
        self._pid = os.getpid()
        self._bound: Any = None
        """The transport last used, whose connections keep their time."""
        self._first_loop: weakref.ref[Any] | None = None
        self._copies: dict[int, Any] = {}
        """In a forked child: the user's transport (by identity) -> its stand-in."""
        self._by_loop: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()

    @property
    def is_closed(self) -> bool:
        """The user's own client was closed."""
        return bool(self._http.is_closed)

    def forsake(self) -> bool:
        """In a forked child: mark the user's client closed, and leave its connections, which are
        the parent's, alone. False in the process that it was made in."""
        if os.getpid() == self._pid:
            return False
        self._http._state = self._http._state.__class__.CLOSED
        return True

    def sync(self, url: httpx2.URL) -> Any:
        """The transport for a URL, in this process."""
        transport = self._http._transport_for_url(url)
        if transport is not self._bound:
            bound(transport)
            self._bound = transport
        if os.getpid() == self._pid:
            return transport
        return self._stand_in(self._copies, transport)

    def on_loop(self, url: httpx2.URL, loop: Any) -> Any:
        """The transport for a URL, in this process and on this event loop."""
        transport = self._http._transport_for_url(url)
        if os.getpid() == self._pid:
            if self._first_loop is None:
                self._first_loop = weakref.ref(loop)
            if self._first_loop() is loop:
                return transport
        copies = self._by_loop.get(loop)
        if copies is None:
            copies = self._by_loop[loop] = {}
        return self._stand_in(copies, transport)

    def is_orphaned(self, loop: Any) -> bool:
        """Whether the user's own connections belong to another loop than this one."""
        return self._first_loop is not None and self._first_loop() is not loop

    def stand_ins(self, loop: Any = None) -> list[Any]:
        """The copies to close along with the user's client; those of other loops can't be."""
        copies = self._copies if loop is None else self._by_loop.get(loop, {})
        found = [copy for copy in copies.values() if copy is not None]
        copies.clear()
        return found

    def _stand_in(self, copies: dict[int, Any], transport: Any) -> Any:
        # The user's transports live as long as the client does, so their identity is a fine key.
        copy = copies.get(id(transport))
        if copy is None:
            copy = copies[id(transport)] = unshared(transport)
        return copy
