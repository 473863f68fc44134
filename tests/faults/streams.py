"""The ways in which an application streams, and one script of events for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.servers import DONE, FIN, ROLE, SSE, chunk
from tests.transport import streams as recorded
from tests.transport.callers import MESSAGES

if TYPE_CHECKING:
    from tests.faults.bench import Seen
    from tests.transport.callers import Caller


class Way(NamedTuple):
    """How a stream is asked for and read."""

    name: str
    surface: str
    open: Callable[[Any, Mapping[str, Any]], Any]
    is_scope: bool = False
    """What comes is a context manager."""
    parses: bool = False
    """What comes holds the stream in `parse()`."""


def _chat(options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES, **more, **options}


def _responses(options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hi", **more, **options}


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way("create", "chat", lambda c, o: c.chat.completions.create(**_chat(o, stream=True))),
        Way("helper", "chat", lambda c, o: c.chat.completions.stream(**_chat(o)), is_scope=True),
        Way(
            "raw",
            "chat",
            lambda c, o: c.chat.completions.with_raw_response.create(**_chat(o, stream=True)),
            parses=True,
        ),
        Way(
            "streaming",
            "chat",
            lambda c, o: c.chat.completions.with_streaming_response.create(**_chat(o, stream=True)),
            is_scope=True,
            parses=True,
        ),
        Way(
            "responses", "responses", lambda c, o: c.responses.create(**_responses(o, stream=True))
        ),
        Way(
            "responses-helper",
            "responses",
            lambda c, o: c.responses.stream(**_responses(o)),
            is_scope=True,
        ),
    )
}
ALL = tuple(WAYS)
CHAT = tuple(name for name, way in WAYS.items() if way.surface == "chat")
RESPONSES = tuple(name for name, way in WAYS.items() if way.surface == "responses")


async def consume(caller: Caller, way: Way, seen: Seen, options: Mapping[str, Any]) -> None:
    """Read a stream to its end. Awaits nothing with a sync client."""
    opened = way.open(caller.client, options)
    if not caller.is_async:
        if way.is_scope:
            with opened as entered:
                for item in entered.parse() if way.parses else entered:
                    note(seen, item)
        else:
            for item in opened.parse() if way.parses else opened:
                note(seen, item)
    elif way.is_scope:
        async with opened as entered:
            stream = await entered.parse() if way.parses else entered
            async for item in stream:
                note(seen, item)
    else:
        got = await opened
        async for item in got.parse() if way.parses else got:
            note(seen, item)


def note(seen: Seen, item: Any) -> None:
    """Add one chunk or event to what was seen."""
    seen.items.append(item)
    choices = getattr(item, "choices", None)
    if choices:
        seen.text += choices[0].delta.content or ""
    elif getattr(item, "type", None) == "response.output_text.delta":
        seen.text += item.delta
    # The chat helper tells each text twice: as the chunk that it is, and as an event of its own.
    elif getattr(item, "type", None) == "chunk" and item.chunk.choices:
        seen.text += item.chunk.choices[0].delta.content or ""


# --------------------------------------------------------------------------- scripts


class Say(str):
    """A piece of the answer's text."""

    __slots__ = ()


class Both(NamedTuple):
    """Bytes that differ by surface."""

    chat: bytes
    responses: bytes


Piece = Say | Both | bytes | float


def _response(kind: str, number: int, **more: Any) -> bytes:
    return recorded.responses_event(
        kind,
        number,
        created_at=1,
        output=[],
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
        **more,
    )


def _item(status: str, texts: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": texts, "annotations": []}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [part] if texts else [],
    }


def _responses_start() -> bytes:
    place = {"item_id": "msg_1", "output_index": 0}
    return (
        _response("response.created", 0, status="in_progress")
        + recorded.event(
            {
                "type": "response.output_item.added",
                "sequence_number": 1,
                "output_index": 0,
                "item": _item("in_progress", ""),
            },
            "response.output_item.added",
        )
        + recorded.event(
            {
                "type": "response.content_part.added",
                "sequence_number": 2,
                "content_index": 0,
                "part": {"type": "output_text", "text": "", "annotations": []},
                **place,
            },
            "response.content_part.added",
        )
    )


def _responses_end(texts: str) -> bytes:
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }
    return recorded.responses_event(
        "response.completed",
        99,
        created_at=1,
        status="completed",
        output=[_item("completed", texts)],
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
        usage=usage,
    )


START = Both(ROLE, _responses_start())
END = Both(FIN + DONE, _responses_end("hello"))
HELLO: tuple[Piece, ...] = (START, Say("hel"), Say("lo"), END)


def failure(message: str, code: Any = "server_error") -> Both:
    """An error as each surface reports it in band."""
    chat = recorded.event({"error": {"message": message, "type": "server_error", "code": code}})
    told = {"type": "error", "code": str(code), "message": message, "param": None}
    return Both(chat, recorded.event({**told, "sequence_number": 5}, "error"))


def script(way: Way, *pieces: Piece, end: str = "clean", **more: Any) -> SSE:
    """The server's side of a stream, for the surface that this way uses."""
    is_chat = way.surface == "chat"
    parts: list[bytes | float] = []
    for number, piece in enumerate(pieces):
        if isinstance(piece, Say):
            text = str(piece)
            parts.append(chunk(text) if is_chat else recorded.responses_delta(number + 3, text))
        elif isinstance(piece, Both):
            parts.append(piece.chat if is_chat else piece.responses)
        else:
            parts.append(piece)
    return SSE(parts, end=end, **more)
