"""The least that a request body is looked at, where nothing depends on more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.transport.body import MODEL

if TYPE_CHECKING:
    import httpx2


def glance(body: bytes) -> str | None:
    """The model of a body that asks for no stream; None where it takes a `peek` to tell."""
    head = MODEL.match(body)
    if head is None or b'"stream' in body:
        return None
    literal = head[1]
    if b"\\" in literal:
        return None
    try:
        return literal[1:-1].decode()
    except UnicodeDecodeError:
        return None


def in_memory(request: httpx2.Request) -> bytes | None:
    """The body, if it needn't be read from anywhere."""
    try:
        return request.content
    except RuntimeError:  # RequestNotRead, of whichever family
        return None
