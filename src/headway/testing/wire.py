"""Replies as bytes, on each surface of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

from headway.testing.replies import Reply

Json: TypeAlias = dict[str, object]

CREATED = 1_700_000_000
"""A fixed date: answers are the same in every run."""

DONE = b"data: [DONE]\n\n"


def surface_of(path: str) -> str:
    """Which surface a URL path belongs to."""
    for suffix, surface in (
        ("/chat/completions", "chat"),
        ("/completions", "completions"),
        ("/responses", "responses"),
        ("/embeddings", "embeddings"),
        ("/models", "models"),
    ):
        if path.endswith(suffix):
            return surface
    return "other"


def error_body(reply: Reply) -> bytes:
    """The error object of an unsuccessful reply."""
    kind = "invalid_request_error" if reply.status < 429 else "server_error"
    return _dump(
        {"error": {"message": reply.message, "type": kind, "param": None, "code": reply.code}}
    )


def whole_body(reply: Reply, surface: str, model: str) -> bytes:
    """The body of a successful answer that is not streamed."""
    match surface:
        case "chat":
            return _dump(_chat(reply, model))
        case "completions":
            return _dump(_completion(reply, model, reply.text, reply.finish_reason or "stop"))
        case "responses":
            return _dump(_response(reply, model, "completed"))
        case "embeddings":
            vector: Json = {"object": "embedding", "index": 0, "embedding": [0.0, 0.6, 0.8]}
            count = {"prompt_tokens": reply.input_tokens, "total_tokens": reply.input_tokens}
            return _dump({"object": "list", "model": model, "data": [vector], "usage": count})
        case "models":
            row: Json = {"id": model, "object": "model", "created": CREATED, "owned_by": "scripted"}
            return _dump({"object": "list", "data": [row]})
        case _:
            return _dump({"id": "scripted", "object": "scripted", "text": reply.text})


def stream_pieces(
    reply: Reply, surface: str, model: str, *, include_usage: bool
) -> Iterator[tuple[bytes, bool]]:
    """The pieces of a streamed answer; True marks those that carry content."""
    match surface:
        case "responses":
            yield from _response_events(reply, model)
        case "completions":
            for chunk in reply.chunks:
                yield _sse(_completion(reply, model, chunk, None, usage=False)), True
            yield _sse(_completion(reply, model, "", "stop", usage=include_usage)), False
            yield DONE, False
        case _:
            yield from _chat_chunks(reply, model, include_usage=include_usage)


def _chat(reply: Reply, model: str) -> Json:
    message: Json = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.tools:
        message["tool_calls"] = _tool_calls(reply)
    choice: Json = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(reply),
        "logprobs": None,
    }
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": CREATED,
        "model": model,
        "choices": [choice],
        "usage": _usage(reply),
    }


def _chat_chunks(reply: Reply, model: str, *, include_usage: bool) -> Iterator[tuple[bytes, bool]]:
    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice: Json = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        body = {**head, "choices": [choice]}
        return _sse({**body, "usage": None} if include_usage else body)

    head: Json = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": model,
    }
    yield chunk({"role": "assistant", "content": ""}), False
    for text in reply.chunks:
        yield chunk({"content": text}), True
    for index, call in enumerate(_tool_calls(reply)):
        yield chunk({"tool_calls": [{"index": index, **call}]}), True
    yield chunk({}, _finish_reason(reply)), False
    if include_usage:
        yield _sse({**head, "choices": [], "usage": _usage(reply)}), False
    yield DONE, False


def _completion(
    reply: Reply, model: str, text: str, finish: str | None, *, usage: bool = True
) -> Json:
    choice: Json = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    body: Json = {
        "id": "cmpl-scripted",
        "object": "text_completion",
        "created": CREATED,
        "model": model,
        "choices": [choice],
    }
    return {**body, "usage": _usage(reply)} if usage else body


def _response(reply: Reply, model: str, status: str) -> Json:
    done = status == "completed"
    output: list[Json] = []
    if done and reply.chunks:
        output.append(_response_message(reply.text, "completed"))
    for index, call in enumerate(reply.tools if done else ()):
        function_call: Json = {
            "type": "function_call",
            "id": f"fc_{index}",
            "call_id": f"call_{index}",
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        output.append(function_call)
    usage: Json = {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.completion_tokens,
    }
    return {
        "id": "resp_scripted",
        "object": "response",
        "created_at": CREATED,
        "model": model,
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": usage if done else None,
    }


def _response_message(text: str, status: str) -> Json:
    parts = [_text_part(text)] if text else []
    return {
        "type": "message",
        "id": "msg_scripted",
        "role": "assistant",
        "status": status,
        "content": parts,
    }


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _response_events(reply: Reply, model: str) -> Iterator[tuple[bytes, bool]]:
    number = 0

    def event(kind: str, **fields: object) -> bytes:
        nonlocal number
        body = {"type": kind, "sequence_number": number, **fields}
        number += 1
        return f"event: {kind}\n".encode() + _sse(body)

    where = {"item_id": "msg_scripted", "output_index": 0, "content_index": 0}
    yield event("response.created", response=_response(reply, model, "in_progress")), False
    if reply.chunks:
        item = _response_message("", "in_progress")
        part = _text_part("")
        yield event("response.output_item.added", output_index=0, item=item), False
        yield event("response.content_part.added", **where, part=part), False
        for text in reply.chunks:
            yield event("response.output_text.delta", **where, delta=text, logprobs=[]), True
        yield event("response.output_text.done", **where, text=reply.text, logprobs=[]), False
    yield event("response.completed", response=_response(reply, model, "completed")), False


def _tool_calls(reply: Reply) -> list[Json]:
    return [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reply.tools)
    ]


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tools else "stop")


def _usage(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.input_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _sse(body: Json) -> bytes:
    return b"data: " + _dump(body) + b"\n\n"


def _dump(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
