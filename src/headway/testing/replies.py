"""What a scripted endpoint does with one request.

A reply is a value; `headway.testing.wire` turns it into bytes for whatever surface was asked, so
the same `ok("hi")` answers a chat completion, a response, a completion or an embedding, streamed
or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from headway.testing.endpoints import SentRequest


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the scripted model asks for."""

    name: str
    """Of the function."""
    arguments: str
    """JSON text, as a model writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. Build it with `ok`, `stream`, `tool_call`, `error`, `timeout`, `refuse`."""

    status: int = 200
    """Of the HTTP reply."""
    chunks: tuple[str, ...] = ()
    """The text, in the pieces a stream would bring."""
    tools: tuple[ToolCall, ...] = ()
    """Functions that it asks for."""
    finish_reason: str | None = None
    """None: stop, or tool_calls."""
    input_tokens: int = 10
    """What the usage says of the prompt."""
    cached_tokens: int = 0
    """How much of it came from a cache."""
    output_tokens: int | None = None
    """None: one per chunk."""
    message: str = ""
    """Of an error."""
    code: str | None = None
    """Of an error."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the HTTP reply."""
    raises: str | None = None
    """Name of the HTTP library's exception to raise instead of answering."""
    cut_after: int | None = None
    """Break the connection after that many chunks of the stream."""
    takes_s: float = 0.0
    """How long until the answer begins: on the fake clock if there is one, else really."""

    def after(self, seconds: float) -> Reply:
        """The same reply, that many seconds later."""
        return replace(self, takes_s=seconds)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.chunks)

    @property
    def completion_tokens(self) -> int:
        """What the usage block says was generated."""
        if self.output_tokens is not None:
            return self.output_tokens
        return len(self.chunks) + 5 * len(self.tools)


Step: TypeAlias = "Reply | int | str | Callable[[SentRequest], Reply | int | str]"
"""A reply; a status; a text; or a function of the request that decides."""
Script: TypeAlias = "Step | Sequence[Step]"
"""One step for ever, or steps in turn, the last of which repeats."""


def ok(
    text: str = "ok",
    *,
    input_tokens: int = 10,
    cached_tokens: int = 0,
    output_tokens: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Answer with `text`; a stream brings it word by word."""
    words = text.split(" ")
    chunks = (*(word + " " for word in words[:-1]), words[-1])
    return Reply(
        chunks=tuple(chunk for chunk in chunks if chunk),
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        headers=headers or {},
    )


def stream(*chunks: str, cut_after: int | None = None) -> Reply:
    """Answer in exactly these pieces; `cut_after=n` breaks the connection after n of them."""
    return Reply(chunks=chunks, cut_after=cut_after)


def tool_call(name: str, /, **arguments: object) -> Reply:
    """Ask for a function to be called."""
    return Reply(tools=(ToolCall(name, json.dumps(arguments)),))


def error(
    status: int,
    message: str | None = None,
    *,
    code: str | None = None,
    retry_after_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Answer with an error in the shape OpenAI-compatible servers use."""
    all_headers = dict(headers or {})
    if retry_after_s is not None:
        all_headers["retry-after"] = f"{retry_after_s:g}"
    return Reply(
        status=status, message=message or f"scripted {status}", code=code, headers=all_headers
    )


def timeout() -> Reply:
    """Say nothing until the client's read timeout has passed."""
    return Reply(raises="ReadTimeout", message="scripted: no answer in time")


def refuse() -> Reply:
    """Refuse the connection."""
    return Reply(raises="ConnectError", message="scripted: connection refused")


def as_reply(step: Reply | int | str) -> Reply:
    """The reply that a step stands for."""
    match step:
        case Reply():
            return step
        case str():
            return ok(step)
        case int():
            return ok() if 200 <= step < 300 else error(step)
