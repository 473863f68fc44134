"""Replies with token counts of one's choosing, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.servers import DONE, FIN, ROLE, SSE, R, Seen, chunk, completion, event


def usage(given: int, written: int, cached: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": given,
        "completion_tokens": written,
        "total_tokens": given + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        **more,
    }


def wants_usage(seen: Seen) -> bool:
    return bool((seen.json.get("stream_options") or {}).get("include_usage"))


def answer(
    given: int = 1000,
    written: int = 100,
    cached: int = 0,
    *,
    model: str = "gpt-4o",
    tier: str | None = None,
    text: str = "Hello",
    delay: float = 0.0,
    **in_usage: Any,
) -> Callable[[Seen], R | SSE]:
    """Answers chat and embeddings as asked; a stream tells its usage only when asked."""
    counts = usage(given, written, cached, **in_usage)

    def serve(seen: Seen) -> R | SSE:
        if seen.path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
            count = {"prompt_tokens": given, "total_tokens": given}
            return R(200, {"object": "list", "model": model, "data": [vector], "usage": count})
        if not seen.json.get("stream"):
            body = completion(text, model) | {"usage": counts, "service_tier": tier}
            return R(200, body, delay=delay)
        asked = wants_usage(seen)
        parts = [ROLE, *(chunk(part) for part in text.split("|")), FIN]
        if asked:
            parts.append(_usage_chunk(counts))
        return SSE([*(_of_model(p, model) for p in parts), DONE], delay=delay)

    return serve


def _usage_chunk(counts: dict[str, Any]) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": [], "usage": counts})


def _of_model(part: bytes, model: str) -> bytes:
    body = json.loads(part.removeprefix(b"data: "))
    return event(body | {"model": model})


def slowly(part: bytes, every_s: float, times: int) -> list[bytes | float]:
    """The same part of a stream again and again, with a pause after each."""
    parts: list[bytes | float] = []
    for _ in range(times):
        parts += [part, every_s]
    return parts
