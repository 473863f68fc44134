"""Rewriting request bodies changes what it is asked to and not a byte more; prefixes of prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._utils._json import openapi_dumps

from headway.transport.body import peek, prefix_hashes, rewrite
from tests.effort import examples

MESSAGES = [{"role": "user", "content": "hello"}]


def dumps(obj: object) -> bytes:
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


names = st.sampled_from(
    [
        "stream",
        "store",
        "n",
        "max_tokens",
        "max_output_tokens",
        "stream_options",
        "background",
        "model",
        "previous_response_id",
        "conversation",
        "prompt",
        "messages",
        "input",
        "tools",
        "metadata",
        "type",
        "url",
        "web_search_options",
        "x",
    ]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(['"', "\\", '\\"', '","store":true', '{"stream":true}', "é", "模", "\u2028"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
bodies = st.dictionaries(names, values, max_size=8)


# ------------------------------------------------------------------ rewrite


@given(bodies, st.booleans(), st.text(max_size=8), st.booleans())
@settings(max_examples=examples(300))
def test_a_rewrite_changes_only_what_it_was_asked_to(
    obj: dict[str, Any], model_first: bool, model: str, include_usage: bool
) -> None:
    if model_first:
        obj = {"model": "m", **{k: v for k, v in obj.items() if k != "model"}}
    body = json.dumps(obj, ensure_ascii=True).encode()
    new = json.loads(rewrite(body, peek(body), model=model, include_usage=include_usage))

    expected = {**obj, "model": model}
    options = obj.get("stream_options")
    mentioned = isinstance(options, dict) and isinstance(options.get("include_usage"), bool)
    if include_usage and not mentioned:
        known = options if isinstance(options, dict) else {}
        expected["stream_options"] = {**known, "include_usage": True}
    assert new == json.loads(json.dumps(expected))


@given(
    bodies,
    st.lists(names, max_size=3),
    st.dictionaries(names, names, max_size=2),
    st.dictionaries(names, scalars, max_size=2),
)
def test_drop_rename_and_set(
    obj: dict[str, Any], drop: list[str], rename: dict[str, str], set_: dict[str, object]
) -> None:
    body = dumps({"model": "m", **obj}) if "model" not in obj else dumps(obj)
    before = json.loads(body)
    new = json.loads(rewrite(body, peek(body), drop=drop, rename=rename, set_=set_))
    for key, value in new.items():
        if key in set_:
            assert value == set_[key]
        elif key not in rename.values():
            assert value == before[key]
    for key in drop:
        assert key not in new or key in set_ or key in rename.values()


def test_a_splice_is_byte_exact_around_the_model() -> None:
    rest = b',"messages":[{"content":"\\u00e9 \xc3\xa9 1.0 1e5"}],"x":  1.50}'
    body = b'{ "model" : "old"' + rest
    assert rewrite(body, peek(body), model='n"w') == b'{ "model" : "n\\"w"' + rest


def test_usage_is_asked_for_at_the_end() -> None:
    body = dumps({"model": "m", "stream": True, "messages": []})
    asked = b',"stream_options":{"include_usage":true}}'
    assert rewrite(body, peek(body), include_usage=True) == body[:-1] + asked
    spaced = body + b" \n"
    assert rewrite(spaced, peek(spaced), include_usage=True) == body[:-1] + asked + b" \n"
    assert (
        rewrite(b"{}", peek(b"{}"), include_usage=True)
        == b'{"stream_options":{"include_usage":true}}'
    )


def test_what_the_user_said_about_usage_stands() -> None:
    for mentioned in (True, False):
        body = dumps({"model": "m", "messages": [], "stream_options": {"include_usage": mentioned}})
        assert rewrite(body, peek(body), include_usage=True) is body
    body = dumps({"model": "m", "messages": [], "stream_options": {"include_obfuscation": False}})
    new = json.loads(rewrite(body, peek(body), include_usage=True))
    assert new["stream_options"] == {"include_obfuscation": False, "include_usage": True}


def test_nothing_to_change_is_the_same_object() -> None:
    body = dumps({"model": "m", "messages": []})
    facts = peek(body)
    assert rewrite(body, facts) is body
    assert rewrite(body, facts, model="m") is body


def test_a_megabyte_is_spliced_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = dumps(
        {"model": "m", "stream": True, "messages": [{"content": "é" * 500_000}], "max_tokens": 5}
    )
    facts = peek(body)
    monkeypatch.setattr(json, "loads", None)
    new = rewrite(body, facts, model="new", include_usage=True)
    assert new.startswith(b'{"model":"new","stream":true')
    assert len(new) == len(body) + 2 + len(b',"stream_options":{"include_usage":true}')


def test_a_lone_surrogate_survives_a_rewrite() -> None:
    body = b'{"messages":["\\ud83d"],"model":"m"}'
    new = rewrite(body, peek(body), model="x", set_={"a": 1})
    assert json.loads(new) == {"messages": ["\ud83d"], "model": "x", "a": 1}


def test_the_sdk_writes_bodies_that_hit_the_prefix() -> None:
    body = openapi_dumps({"model": "m", "stream": True, "messages": MESSAGES})
    facts = peek(body)
    assert (facts.model_span, facts.stream) == ((9, 12), True)


# ------------------------------------------------------------------ prefixes


def prompt(*parts: str, **extra: Any) -> bytes:
    return dumps(
        {"model": "m", "messages": [{"role": "user", "content": part} for part in parts], **extra}
    )


def test_conversations_share_hashes_as_far_as_they_share_blocks() -> None:
    system, history = "s" * 3000, "h" * 3000
    one = prompt(system, history, "q1" * 1000)
    two = prompt(system, history, "q2" * 1000)
    first = prefix_hashes(one, peek(one))
    second = prefix_hashes(two, peek(two))
    shared = [a for a, b in zip(first, second, strict=True) if a == b]
    assert len(shared) == 5
    assert first[:5] == second[:5]
    assert first[6] != second[6]


def test_the_model_and_the_stream_flag_are_not_part_of_the_prompt() -> None:
    one = prompt("s" * 3000)
    two = b'{"model":"another-model","stream":true,' + one[len(b'{"model":"m",') :]
    assert prefix_hashes(one, peek(one)) == prefix_hashes(two, peek(two)) != ()


def test_short_prompts_have_no_prefix_and_long_ones_a_bounded_one() -> None:
    short, long = prompt("x" * 500), prompt("x" * 1_000_000)
    assert prefix_hashes(short, peek(short)) == ()
    hashes = prefix_hashes(long, peek(long))
    assert len(hashes) == 32
    assert all(0 <= value < 2**64 for value in hashes)
