"""What looking at the wire costs: microseconds per streamed chunk, request body and reply.

Run as `python -m benchmarks.looking`. Best of several repetitions; a quiet machine is advised.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Final

from headway.quirks import read_reply
from headway.transport.body import peek, prefix_hashes, rewrite
from headway.transport.sse import StreamObserver

WORDS: Final = ("the", "quick", "brown", "fox", "return", "self", '"quoted"', "[x]", "café", "\n")
CHUNKS: Final = 1000
REPEAT: Final = 15


def dumps(obj: object) -> bytes:
    """JSON as the SDK and the servers write it."""
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


def chat_chunk(text: str, **extra: object) -> bytes:
    """One content chunk of a chat stream."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + dumps({**head, "choices": [choice], **extra}) + b"\n\n"


def responses_chunk(number: int, text: str) -> bytes:
    """One content event of a Responses stream."""
    kind = "response.output_text.delta"
    event = {"type": kind, "sequence_number": number, "item_id": "msg_1", "delta": text}
    return b"event: " + kind.encode() + b"\ndata: " + dumps(event) + b"\n\n"


def chat_body(size: int) -> bytes:
    """A chat request with about `size` bytes of prompt."""
    rng = random.Random(1)
    messages: list[dict[str, str]] = []
    total = 0
    while total < size:
        text = " ".join(rng.choice(WORDS) for _ in range(150))
        messages.append({"role": "user", "content": text})
        total += len(text)
    return dumps({"model": "m", "stream": True, "messages": messages, "max_tokens": 100})


def best_us(action: Callable[[], object], times: int) -> float:
    """Microseconds per call of `action`, best of the repetitions."""
    best = float("inf")
    for _ in range(REPEAT):
        start = time.perf_counter()
        for _ in range(times):
            action()
        best = min(best, time.perf_counter() - start)
    return best / times * 1e6


def watching_us(chunks: list[bytes], surface: str, *, hide_usage: bool) -> float:
    """Microseconds per chunk of a stream that is watched."""

    def watch() -> None:
        feed = StreamObserver(surface, hide_usage=hide_usage).feed
        for chunk in chunks:
            feed(chunk)

    return best_us(watch, 1) / len(chunks)


def body_row(size: int) -> str:
    """One line: what a body of this size costs to read, change and hash, and to parse."""
    body = chat_body(size)
    facts = peek(body)
    times = max(10, 200_000 // size)
    actions: tuple[Callable[[], object], ...] = (
        lambda: peek(body),
        lambda: rewrite(body, facts, model="another", include_usage=True),
        lambda: prefix_hashes(body, facts),
        lambda: json.loads(body),
    )
    cells = "".join(f"{best_us(action, times):10.1f}" for action in actions)
    return f"  {len(body):>9} bytes {cells}"


def main() -> None:
    """Print the table."""
    rng = random.Random(2)
    texts = [" " + rng.choice(WORDS) for _ in range(CHUNKS)]
    padded = [chat_chunk(t, usage=None, obfuscation="aZ3" * rng.randint(1, 4)) for t in texts]
    unlike = [chat_chunk(t).replace(b"-1", b"-%d" % i) for i, t in enumerate(texts)]
    print("one streamed chunk, us")
    for name, chunks, surface, hide in (
        ("chat", [chat_chunk(t) for t in texts], "chat", False),
        ("chat, padded, usage hidden", padded, "chat", True),
        ("responses", [responses_chunk(i, t) for i, t in enumerate(texts)], "responses", False),
        ("chat, never alike: parsed", unlike, "chat", False),
    ):
        print(f"  {name:28}{watching_us(chunks, surface, hide_usage=hide):8.2f}")
    print("one request body, us        peek   rewrite  prefixes json.loads")
    for size in (1_000, 10_000, 135_000, 1_000_000):
        print(body_row(size))
    message = {"content": "hi " * 200}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    reply = dumps({"id": "x", "model": "m", "choices": [choice], "usage": usage})
    headers = {"content-type": "application/json"}
    cost = best_us(lambda: read_reply(headers, reply, surface="chat", wall_now=0.0), 200)
    print(f"one reply of {len(reply)} bytes, us: {cost:.1f}")


if __name__ == "__main__":
    main()
