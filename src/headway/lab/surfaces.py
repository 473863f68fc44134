"""OpenAI's wire shapes, as an engine that has no words would fill them.

One object per request turns token counts into response bytes: chat completions, completions,
responses and embeddings, streamed or not. A token is a word of four characters, so that text length
and token count agree in both directions.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

CHARS_PER_TOKEN = 4
_WORDS = (
    " the map and sea are not one yet may all act has due use for day now old way who ran far out "
    "new led its own key log run set top and see how two add try fix bug let put get ask any path"
)[: 48 * CHARS_PER_TOKEN]
_TEXT = _WORDS * 2800
"""About 130,000 tokens: any slice is the text of those tokens."""

Json = dict[str, object]


class TokenUsage(NamedTuple):
    prompt: int
    cached: int
    completion: int


class BodyError(ValueError):
    """The request body is not what the surface takes."""


def token_text(start: int, end: int) -> str:
    """The text of output tokens `start` to `end`."""
    size = len(_TEXT) // CHARS_PER_TOKEN
    start, end = start % size, start % size + (end - start)
    return _TEXT[start * CHARS_PER_TOKEN : end * CHARS_PER_TOKEN]


def _text_of(value: object) -> str:
    """All text in a message, a list of parts, or a plain string, in order."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        part = cast("Mapping[str, object]", value)
        inner = part.get("content", part.get("text", part.get("output", "")))
        role = part.get("role")
        return f"<{role}>{_text_of(inner)}" if role else _text_of(inner)
    if isinstance(value, list):
        return "".join(_text_of(item) for item in cast("list[object]", value))
    return ""


def _int_of(body: Mapping[str, object], *names: str) -> int | None:
    for name in names:
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _sse(event: object) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


class Surface(Protocol):
    """How one request is read and answered."""

    prompt: str
    output_tokens: int
    stream: bool
    model: str
    user: str

    def opening(self) -> bytes:
        """Events before the first token."""
        ...

    def delta(self, start: int, end: int) -> bytes:
        """The event that carries output tokens `start` to `end`."""
        ...

    def closing(self, usage: TokenUsage) -> bytes:
        """Events after the last token."""
        ...

    def whole(self, usage: TokenUsage) -> bytes:
        """The answer when it is not streamed."""
        ...


class _Common:
    default_output_tokens = 128

    def __init__(self, body: Json, serial: int) -> None:
        self.stream = body.get("stream") is True
        self.model = str(body.get("model", ""))
        self.user = str(body.get("user", ""))
        self.serial = serial
        self.created = int(time.time())
        self.output_tokens = (
            _int_of(body, "max_completion_tokens", "max_tokens", "max_output_tokens")
            or self.default_output_tokens
        )
        options = body.get("stream_options")
        self.include_usage = (
            isinstance(options, Mapping)
            and cast("Mapping[str, object]", options).get("include_usage") is True
        )


def _usage(usage: TokenUsage) -> Json:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


class Chat(_Common):
    def __init__(self, body: Json, serial: int) -> None:
        super().__init__(body, serial)
        if not isinstance(body.get("messages"), list):
            raise BodyError("messages: expected an array")
        self.prompt = _text_of(body["messages"])
        self._frame = {
            "id": f"chatcmpl-{serial}",
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
        }
        head = json.dumps(self._frame, separators=(",", ":"))[:-1].encode()
        self._before = (
            b"data: " + head + b',"choices":[{"index":0,"finish_reason":null,"delta":{"content":"'
        )

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return _sse({**self._frame, "choices": [{"index": 0, "delta": delta}]})

    def delta(self, start: int, end: int) -> bytes:
        # The hot line of the simulator: no JSON encoding per chunk.
        return self._before + token_text(start, end).encode() + b'"}}]}\n\n'

    def closing(self, usage: TokenUsage) -> bytes:
        last: Json = {"index": 0, "delta": dict[str, object](), "finish_reason": "stop"}
        out = _sse({**self._frame, "choices": [last]})
        if self.include_usage:
            out += _sse({**self._frame, "choices": [], "usage": _usage(usage)})
        return out + b"data: [DONE]\n\n"

    def whole(self, usage: TokenUsage) -> bytes:
        message = {"role": "assistant", "content": token_text(0, usage.completion)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        frame = {**self._frame, "object": "chat.completion"}
        return json.dumps({**frame, "choices": [choice], "usage": _usage(usage)}).encode()


class Completion(_Common):
    def __init__(self, body: Json, serial: int) -> None:
        super().__init__(body, serial)
        if not isinstance(body.get("prompt"), (str, list)):
            raise BodyError("prompt: expected a string or an array")
        self.prompt = _text_of(body["prompt"])
        self._frame = {
            "id": f"cmpl-{serial}",
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }

    def opening(self) -> bytes:
        return b""

    def _choice(self, text: str, reason: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    def delta(self, start: int, end: int) -> bytes:
        return _sse({**self._frame, "choices": [self._choice(token_text(start, end), None)]})

    def closing(self, usage: TokenUsage) -> bytes:
        out = _sse({**self._frame, "choices": [self._choice("", "stop")]})
        if self.include_usage:
            out += _sse({**self._frame, "choices": [], "usage": _usage(usage)})
        return out + b"data: [DONE]\n\n"

    def whole(self, usage: TokenUsage) -> bytes:
        choice = self._choice(token_text(0, usage.completion), "stop")
        return json.dumps({**self._frame, "choices": [choice], "usage": _usage(usage)}).encode()


class Responses(_Common):
    def __init__(self, body: Json, serial: int) -> None:
        super().__init__(body, serial)
        self.prompt = _text_of(body.get("instructions")) + _text_of(body.get("input"))
        self._sequence = 0
        self._item_id = f"msg_{serial}"

    def _event(self, kind: str, **fields: object) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\n" + _sse(event)

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": []}

    def _item(self, status: str, text: str | None) -> Json:
        content = [] if text is None else [self._part(text)]
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _response(self, status: str, output: list[Json], usage: TokenUsage | None) -> Json:
        counts = usage and {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        }
        return {
            "id": f"resp_{self.serial}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": counts,
        }

    def opening(self) -> bytes:
        started = self._response("in_progress", [], None)
        return (
            self._event("response.created", response=started)
            + self._event("response.in_progress", response=started)
            + self._event(
                "response.output_item.added", output_index=0, item=self._item("in_progress", None)
            )
            + self._event("response.content_part.added", part=self._part(""), **self._at())
        )

    def _at(self) -> Json:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def delta(self, start: int, end: int) -> bytes:
        text = token_text(start, end)
        return self._event("response.output_text.delta", delta=text, logprobs=[], **self._at())

    def closing(self, usage: TokenUsage) -> bytes:
        text = token_text(0, usage.completion)
        item = self._item("completed", text)
        return (
            self._event("response.output_text.done", text=text, logprobs=[], **self._at())
            + self._event("response.content_part.done", part=self._part(text), **self._at())
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event("response.completed", response=self._response("completed", [item], usage))
        )

    def whole(self, usage: TokenUsage) -> bytes:
        item = self._item("completed", token_text(0, usage.completion))
        return json.dumps(self._response("completed", [item], usage)).encode()


class Embeddings(_Common):
    dimensions = 16

    def __init__(self, body: Json, serial: int) -> None:
        super().__init__(body, serial)
        value = body.get("input")
        if not isinstance(value, (str, list)):
            raise BodyError("input: expected a string or an array")
        texts: list[object] = [value] if isinstance(value, str) else cast("list[object]", value)
        self.prompt = _text_of(texts)
        self.stream = False
        self.output_tokens = 1  # the engine's one pass
        self._count = len(texts)
        self._base64 = body.get("encoding_format") == "base64"

    def opening(self) -> bytes:
        return b""

    def delta(self, start: int, end: int) -> bytes:
        del start, end  # nothing is streamed
        return b""

    def closing(self, usage: TokenUsage) -> bytes:
        del usage
        return b""

    def whole(self, usage: TokenUsage) -> bytes:
        rows: list[Json] = []
        for index in range(self._count):
            vector = [((index + i) % 7 - 3) / 10 for i in range(self.dimensions)]
            packed = struct.pack(f"<{self.dimensions}f", *vector)
            value: object = base64.b64encode(packed).decode() if self._base64 else vector
            rows.append({"object": "embedding", "index": index, "embedding": value})
        counts = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
        listing = {"object": "list", "data": rows, "model": self.model, "usage": counts}
        return json.dumps(listing).encode()


SURFACES: dict[str, type[Chat | Completion | Responses | Embeddings]] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completion,
    "/v1/responses": Responses,
    "/v1/embeddings": Embeddings,
}
"""Path to how it is read and answered."""
