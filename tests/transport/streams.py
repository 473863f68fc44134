"""Recorded shapes of streams, built small, for the observer's tests."""

from __future__ import annotations

import json
from typing import Any

from headway.transport.sse import StreamObserver

DONE = b"data: [DONE]\n\n"


def event(obj: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return (
        head
        + b"data: "
        + json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()
        + b"\n\n"
    )


def chunk(
    text: str | None = None,
    finish: str | None = None,
    *,
    index: int = 0,
    delta: Any = None,
    **extra: Any,
) -> bytes:
    if delta is None:
        delta = {} if text is None else {"content": text}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    return event({**head, "choices": [choice], **extra})


def usage_chunk(inputs: int = 1, outputs: int = 2) -> bytes:
    usage = {
        "prompt_tokens": inputs,
        "completion_tokens": outputs,
        "total_tokens": inputs + outputs,
    }
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m-1",
            "choices": [],
            "usage": usage,
        }
    )


ROLE = chunk(delta={"role": "assistant", "content": "", "refusal": None})
STOP = chunk(None, "stop")


def chat(*texts: str) -> bytes:
    return ROLE + b"".join(chunk(text) for text in texts) + STOP + DONE


def responses_delta(number: int, text: str) -> bytes:
    return event(
        {
            "type": "response.output_text.delta",
            "sequence_number": number,
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": text,
            "logprobs": [],
            "obfuscation": "ab1",
        },
        "response.output_text.delta",
    )


def responses_event(kind: str, number: int, **response: Any) -> bytes:
    body = {
        "id": "resp_1",
        "object": "response",
        "model": "m-1",
        "service_tier": "default",
        **response,
    }
    return event({"type": kind, "sequence_number": number, "response": body}, kind)


def responses(*texts: str) -> bytes:
    usage = {
        "input_tokens": 5,
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    return (
        responses_event("response.created", 0, status="in_progress")
        + b"".join(responses_delta(i + 1, text) for i, text in enumerate(texts))
        + responses_event(
            "response.completed", 99, status="completed", output=[{"id": "msg_1"}], usage=usage
        )
    )


def watch(
    stream: bytes, surface: str = "chat", *, hide_usage: bool = False
) -> tuple[StreamObserver, bytes]:
    observer = StreamObserver(surface, hide_usage=hide_usage)
    out = observer.feed(stream)
    return observer, out + observer.finish()
