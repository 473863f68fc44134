"""Requests of a client that has no policy, while nobody looks: sent as they are, and learned from.

The SDK keeps its own retries, there is one endpoint, no task counts the cost and no telemetry
records. All that is left to do is to see that the answer is one. While it is, a request needs
neither a `Flight` nor a `Trial`; when anything else comes of it, `grown` makes them, and they are
fed what has come so far.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from headway import quirks
from headway.core.light import LightCall, begin_light
from headway.core.model import OK, CallFacts
from headway.task import unanswered
from headway.task.scope import nothing_in_scope
from headway.transport.decode import decoded, encoding_of
from headway.transport.glance import glance, in_memory

if TYPE_CHECKING:
    import httpx2

    from headway.transport.desk import Arrival, Desk
    from headway.transport.flight import Flight

logger = logging.getLogger("headway")

SURFACES = frozenset({"chat", "completions", "embeddings", "moderations"})
"""Replies are whole JSON objects that name nothing a later request is bound to."""
HELD_BYTES_MAX = 1024 * 1024
"""Larger replies are read as any other call's."""


class Light(NamedTuple):
    """One such request on its way."""

    desk: Desk
    arrival: Arrival
    call: LightCall

    def is_plain(self, response: httpx2.Response) -> dict[str, str] | None:
        """The headers of a reply whose body is all that is left to look at; None otherwise."""
        if response.status_code != 200 or response.is_closed:
            return None
        headers = quirks.relevant_headers(response.headers.raw)
        if not headers.get("content-type", "").startswith("application/json"):
            return None
        return headers

    def is_answered(self, headers: dict[str, str], body: bytes) -> bool:
        """Whether this is the answer; then the call is over."""
        desk = self.desk
        home, host = desk.home, desk.host
        plain: bytes | None = body
        if "content-encoding" in headers:
            plain = decoded(encoding_of(headers), body, home.family)
        if plain is None:
            return False
        if not quirks.is_plain_answer(headers, plain):
            return False
        now = host.clock()
        try:
            desk.answered(home.origin, now)
            self.call.succeed(OK, now)
        except Exception:  # whatever becomes of the books, this is the answer
            logger.exception("a call could not be settled; it goes on")
            self.call.cancel(now)
        return True

    def grown(self) -> Flight:
        """The flight of the same call. Once."""
        return self.desk.grown(self.arrival, self.call)

    def drop(self) -> None:
        """The caller gave up, and there is no reply to see to."""
        self.call.cancel(self.desk.host.clock())


def depart(desk: Desk, arrival: Arrival) -> Light | None:
    """Begin a light call for a request; None where somebody looks, or there is more to it."""
    host, surface = desk.host, arrival.surface
    if (
        surface.name not in SURFACES
        or not host.engine.snapshot.pass_through
        or host.mode != "enforce"
        or not nothing_in_scope()
        or unanswered.is_awaited()
        or not host.is_unwatched()
    ):
        return None
    body = in_memory(arrival.request)
    model = None if body is None else glance(body)
    if body is None or model is None:
        return None
    facts = CallFacts(model, surface.name, prompt_tokens=len(body) // 4, body_bytes=len(body))
    call: LightCall | None = None
    try:
        call = begin_light(host.engine, facts, host.clock())
        return None if call is None else Light(desk, arrival, call)
    except BaseException:  # an interrupt
        if call is not None:
            call.cancel(host.clock())
        raise


def replay(held: Iterable[bytes], rest: Iterable[bytes], exc: Exception | None) -> Iterator[bytes]:
    """What has come so far, then what follows, or the failure that came instead."""
    yield from held
    if exc is not None:
        raise exc
    yield from rest


async def areplay(held: Iterable[bytes], rest: Any, exc: Exception | None) -> Any:
    """The same of an async body. Ended early it ends the rest, too, as nobody else could."""
    try:
        for chunk in held:
            yield chunk
        if exc is not None:
            raise exc
        async for chunk in rest:
            yield chunk
    except GeneratorExit:
        if (aclose := getattr(rest, "aclose", None)) is not None:
            await aclose()
        raise


def body_chunks(response: httpx2.Response) -> Any:
    """An async body, piece by piece; nothing of one that is in memory (a mock's)."""
    body: Any = response.stream
    return None if response.is_closed else body.__aiter__()
