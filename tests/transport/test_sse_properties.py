"""However a stream is cut, and whatever is in it, the observer sees the same and breaks nothing."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from headway.transport.sse import StreamObserver
from tests.effort import examples
from tests.fuzz.check import observed, pieces
from tests.transport.streams import DONE, ROLE, STOP, chat, chunk, event, responses, usage_chunk

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def run(
    stream: bytes, cuts: list[int], surface: str, *, hide: bool
) -> tuple[tuple[object, ...], bytes]:
    return observed(pieces(stream, cuts), surface, hide=hide)


deltas = st.one_of(
    texts.map(chunk),
    texts.map(lambda text: chunk(text, obfuscation="q7")),
    texts.map(lambda text: chunk(text, usage=None)),
    texts.map(lambda text: chunk(delta={"reasoning_content": text})),
    texts.map(
        lambda text: chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
    ),
    texts.map(lambda text: chunk(text, index=1)),
    st.sampled_from(
        [
            ROLE,
            STOP,
            DONE,
            usage_chunk(),
            b": ping\n\n",
            b"data:\n\n",
            b"event: ping\n\n",
            b"\n",
            b"id: 3\n",
            event({"error": {"message": "x", "code": 503}}),
            b"data: {oops\n\n",
            b"\xef\xbb\xbf",
            chunk("x").replace(b'"content":"x"', b'"content":"\\ud83d"'),
            chunk("a\\"),
            b"data: [DONE]x\n\n",
            chunk("x").replace(b'"x"', b'"\\q"'),
            chunk("x").replace(b'"x"', b'"\xff"'),
        ]
    ),
)
eols = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(
    st.lists(deltas, max_size=12), eols, st.lists(st.integers(0, 5000), max_size=8), st.booleans()
)
@settings(max_examples=examples(400))
def test_any_split_of_a_stream_is_the_same_stream(
    parts: list[bytes], eol: bytes, cuts: list[int], hide: bool
) -> None:
    stream = b"".join(parts).replace(b"\n", eol)
    whole = run(stream, [], "chat", hide=hide)
    assert run(stream, cuts, "chat", hide=hide) == whole
    assert run(stream, list(range(len(stream))), "chat", hide=hide) == whole


@given(
    st.lists(deltas, max_size=8),
    st.lists(eols, min_size=1, max_size=5),
    st.lists(st.integers(0, 5000), max_size=8),
)
def test_line_ends_may_be_mixed(parts: list[bytes], ends: list[bytes], cuts: list[int]) -> None:
    lines = b"".join(parts).split(b"\n")
    stream = b"".join(line + ends[i % len(ends)] for i, line in enumerate(lines))
    assert run(stream, cuts, "chat", hide=True) == run(stream, [], "chat", hide=True)


def decoded(stream: bytes) -> list[tuple[str | None, str]]:
    """The events that the SDK's own decoder finds, up to the end of the stream."""
    found = []
    for sse in SSEDecoder().iter_bytes(iter([stream])):
        if sse.data.startswith("[DONE]"):
            break
        found.append((sse.event, sse.data))
    return found


@given(st.lists(deltas, max_size=12), eols, st.lists(st.integers(0, 5000), max_size=8))
@settings(max_examples=examples(200))
def test_the_sdk_decodes_the_same_events_less_the_empty_ones(
    parts: list[bytes], eol: bytes, cuts: list[int]
) -> None:
    stream = b"".join(part for part in parts if b"\xff" not in part and part != b"\xef\xbb\xbf")
    stream = stream.replace(b"\n", eol)
    facts, out = run(stream, cuts, "chat", hide=False)
    kept = [item for item in decoded(stream) if item[1].strip()]
    got = decoded(out)
    failed = facts[3] is not None
    assert got == (kept[: len(got)] if failed else kept)


@given(st.lists(texts, max_size=6), st.lists(st.integers(0, 5000), max_size=8))
def test_any_split_of_a_responses_stream(words: list[str], cuts: list[int]) -> None:
    stream = responses(*words)
    assert run(stream, cuts, "responses", hide=False) == run(stream, [], "responses", hide=False)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6), st.booleans())
@settings(max_examples=examples(300))
def test_any_bytes_are_survived_and_split_alike(data: bytes, cuts: list[int], hide: bool) -> None:
    assert run(data, cuts, "chat", hide=hide) == run(data, [], "chat", hide=hide)


@given(
    st.lists(texts, min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    st.lists(st.integers(0, 5000), max_size=6),
)
@settings(max_examples=examples(400))
def test_a_damaged_stream_is_judged_alike_however_it_is_split(
    words: list[str], damage: list[tuple[int, int]], cuts: list[int]
) -> None:
    stream = bytearray(chat(*words))
    for at, byte in damage:
        stream[at % len(stream)] = byte
    raw = bytes(stream)
    assert run(raw, cuts, "chat", hide=False) == run(raw, [], "chat", hide=False)
    # And what is handed on is a part of what came: nothing is invented.
    _, out = run(raw, cuts, "chat", hide=False)
    assert len(out) <= len(raw)


@given(st.lists(texts, min_size=1, max_size=8), st.booleans())
def test_hiding_usage_restores_the_stream_nobody_asked_to_change(
    words: list[str], padded: bool
) -> None:
    extra = {"obfuscation": "aZ3"} if padded else {}
    asked = b"".join(chunk(word, usage=None, **extra) for word in words)
    asked += chunk(None, "stop", usage=None) + usage_chunk() + DONE
    plain = b"".join(chunk(word, **extra) for word in words) + STOP + DONE
    observer = StreamObserver(hide_usage=True)
    assert observer.feed(asked) == plain
    assert observer.partial_text == "".join(words)


@given(st.lists(texts, min_size=1, max_size=8))
def test_templates_and_parsing_agree(words: list[str]) -> None:
    """The text kept without parsing is the text a parser finds."""
    stream = b"".join(chunk(word) for word in words)
    observer = StreamObserver()
    observer.feed(stream)
    parsed = [json.loads(line[6:]) for line in stream.split(b"\n\n") if line]
    assert observer.partial_text == "".join(p["choices"][0]["delta"]["content"] for p in parsed)
    assert observer.content_events == len(words)
