"""Recorded streams, whole, cut, packed and damaged. `make fuzz` does this a million times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.fuzz.check import ENCODINGS, check, check_compressed, is_less_only
from tests.fuzz.corpus import RECORDED, WORDS
from tests.fuzz.run import one

TEXT = "".join(WORDS)
MEANT = {
    "anthropic error": ("overloaded", "a"),
    "azure": ("ok", TEXT),
    "completions": ("ok", TEXT),
    "deepseek": ("ok", TEXT),
    "empty": ("incomplete_stream", ""),
    "gemini": ("ok", TEXT),
    "groq": ("ok", TEXT),
    "html": ("not_found", ""),
    "json": ("incomplete_stream", ""),
    "json error": ("rate_limited", ""),
    "llama.cpp": ("ok", TEXT),
    "many lines": ("ok", "a b" * 3),
    "ollama": ("ok", TEXT),
    "openai": ("ok", TEXT),
    "openai tools": ("ok", ""),
    "openrouter": ("ok", TEXT),
    "openrouter error": ("server_error", "a"),
    "pings": ("ok", TEXT),
    "responses": ("ok", TEXT),
    "responses failed": ("server_error", ""),
    "spaced": ("ok", TEXT),
    "two choices": ("ok", "".join(WORDS[::2])),
    "vllm": ("ok", TEXT),
    "vllm error": ("server_error", "a"),
}
WITH_USAGE = {"deepseek", "groq", "json", "llama.cpp", "openai", "openrouter", "responses", "vllm"}


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_stream_is_understood_however_it_comes(name: str, eol: bytes) -> None:
    surface, stream = RECORDED[name]
    stream = stream.replace(b"\r\n", b"\n").replace(b"\n", eol)
    size = len(stream)
    cuts = [range(size), range(0, size, 2), range(0, size, 7), range(0, size, 1000)]

    seen = check(stream, surface, cuts, hide=False)

    outcome, text, usage = seen[2], seen[12], seen[7]
    assert (outcome.kind.value, text) == MEANT[name]  # type: ignore[attr-defined]
    assert (usage is not None) == (name in WITH_USAGE)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["openai", "responses", "vllm error"])
def test_a_compressed_stream_is_the_same_stream(name: str, encoding: str) -> None:
    surface, stream = RECORDED[name]
    check_compressed(stream, surface, range(len(stream)), encoding)
    check_compressed(stream, surface, range(0, len(stream), 50), encoding)


@given(st.integers(0, 2**64))
@settings(max_examples=examples(250))
def test_a_damaged_stream_breaks_nothing(seed: int) -> None:
    one(seed)


def test_the_check_notices_bytes_that_never_came() -> None:
    stream = b'data: {"a":1}\n\n: ping\n\ndata: {"b":2}\n\n'

    assert is_less_only(stream, stream, failed=False)
    assert is_less_only(stream, stream.replace(b": ping\n\n", b""), failed=False)
    assert not is_less_only(stream, stream + b"\n", failed=False)
    assert not is_less_only(stream, stream.replace(b"1", b"2"), failed=False)
    assert not is_less_only(stream, stream[:-15], failed=False)
    assert is_less_only(stream, stream[:-15], failed=True)
