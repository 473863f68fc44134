"""Reading request bodies: exact for any JSON, cheap for what the SDK writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.transport import body as body_module
from headway.transport.body import BodyFacts, peek, rewrite
from tests.effort import examples

MESSAGES = [{"role": "user", "content": "hello"}]


def dumps(obj: object) -> bytes:
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


# ------------------------------------------------------------------ peek


def test_a_chat_body_as_the_sdk_writes_it() -> None:
    body = dumps(
        {
            "model": "gpt-4o",
            "stream": True,
            "service_tier": "flex",
            "messages": MESSAGES,
            "max_completion_tokens": 100,
            "n": 2,
            "store": True,
            "stream_options": {"include_usage": False},
            "tools": [{"type": "function", "function": {"name": "f"}}],
        }
    )
    facts = peek(body)
    assert facts == BodyFacts(
        is_json=True,
        model="gpt-4o",
        model_span=(9, 17),
        stream=True,
        stream_options=True,
        include_usage=False,
        max_output_tokens=100,
        store=True,
        choices=2,
        prompt_start=body.index(b'[{"role"'),
        prompt_tokens_estimate=(len(body) - body.index(b'[{"role"')) // 4,
    )


@pytest.mark.parametrize(
    "name", ["gpt-4o", 'a"b', "back\\slash", "naïve/模型", "a\nb", "\ud83d", "", "𝄞", "a/b:c@1"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_model_of_any_name(name: str, ascii_only: bool) -> None:
    if name == "\ud83d" and not ascii_only:
        pytest.skip("a lone surrogate has no UTF-8")
    body = json.dumps({"model": name, "messages": []}, ensure_ascii=ascii_only).encode()
    facts = peek(body)
    assert facts.model == name
    assert json.loads(rewrite(body, facts, model="new")) == {"model": "new", "messages": []}


def test_a_nested_model_is_never_taken() -> None:
    nested = {"messages": [{"model": "inner"}], "metadata": {"model": "inner2"}}
    assert peek(dumps(nested)).model is None
    body = dumps({"messages": [{"model": "inner"}], "model": "outer"})
    facts = peek(body)
    assert facts.model == "outer"
    assert json.loads(rewrite(body, facts, model="new")) == {
        "messages": [{"model": "inner"}],
        "model": "new",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b'{"model":',
        b'{"model":"x"',
        b"\xff\xfe\x00",
        b'{"model":3}',
        b"--boundary\r\n",
        b'{"model":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_left_alone(body: bytes) -> None:
    facts = peek(body)
    assert facts.model is None
    if not facts.is_json:
        assert rewrite(body, facts, model="new", include_usage=True, drop=("x",)) is body


def test_text_cannot_pass_for_parameters() -> None:
    text = '","stream":true,"store":true,"previous_response_id":"resp_1","n":5}'
    for surface in ("chat", "responses", "completions"):
        facts = peek(dumps({"model": "m", "messages": [{"content": text}], "input": text}), surface)
        assert (facts.stream, facts.store, facts.pin_ids, facts.choices) == (False, None, (), 1)


def test_parameters_of_nested_objects_are_not_the_calls() -> None:
    facts = peek(
        dumps(
            {
                "model": "m",
                "messages": [{"role": "user", "content": [{"type": "x", "stream": True, "n": 3}]}],
                "metadata": {"store": True, "max_tokens": 9},
                "temperature": 0,
            }
        )
    )
    assert (facts.stream, facts.store, facts.choices, facts.max_output_tokens) == (
        False,
        None,
        1,
        None,
    )


@pytest.mark.parametrize(
    ("extra", "ids", "kind"),
    [
        ({"previous_response_id": "resp_1"}, ("resp_1",), "response"),
        ({"previous_response_id": None}, (), None),
        ({"conversation": "conv_1"}, ("conv_1",), "conversation"),
        ({"conversation": {"id": "conv_1"}}, ("conv_1",), "conversation"),
        ({"prompt": {"id": "pmpt_1", "version": "2"}}, ("pmpt_1",), "prompt"),
        (
            {"previous_response_id": "resp_1", "prompt": {"id": "pmpt_1"}},
            ("resp_1", "pmpt_1"),
            "response",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, ("msg_1",), "item"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]},
            ("file-1",),
            "file",
        ),
        (
            {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1", "vs_2"]}]},
            ("vs_1", "vs_2"),
            "vector_store",
        ),
        (
            {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
            ("cntr_1",),
            "container",
        ),
        (
            {
                "input": [
                    {"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA", "summary": []}
                ]
            },
            ("rs_1",),
            "encrypted",
        ),
        ({"input": "no file_id here"}, (), None),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "name": "f",
                        "parameters": {"properties": {"file_id": {"type": "string"}}},
                    }
                ]
            },
            (),
            None,
        ),
    ],
)
def test_a_responses_body_names_what_it_is_bound_to(
    extra: dict[str, Any], ids: tuple[str, ...], kind: str | None
) -> None:
    facts = peek(dumps({"model": "m", "input": "hi", **extra}), "responses")
    assert (facts.pin_ids, facts.pin_kind) == (ids, kind)


@pytest.mark.parametrize(
    ("surface", "extra", "server"),
    [
        ("responses", {"tools": [{"type": "function", "name": "f"}]}, False),
        ("responses", {"tools": [{"type": "custom", "name": "f"}, {"type": "local_shell"}]}, False),
        ("responses", {"tools": [{"type": "web_search"}]}, True),
        ("responses", {"tools": [{"type": "web_search_preview_2025_03_11"}]}, True),
        (
            "responses",
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
            True,
        ),
        ("responses", {"tools": [{"type": "mcp", "server_label": "x"}]}, True),
        ("responses", {"tools": [{"type": "computer_use_preview"}]}, True),
        ("responses", {"tools": [{"type": "image_generation"}]}, True),
        ("chat", {"tools": [{"type": "function", "function": {"name": "web_search"}}]}, False),
        ("chat", {"web_search_options": {}}, True),
        ("chat", {"web_search_options": None}, False),
        ("chat", {"plugins": [{"id": "web"}]}, True),
        ("chat", {"tools": [{"type": "openrouter:web_search"}]}, True),
    ],
)
def test_tools_that_run_at_the_provider(surface: str, extra: dict[str, Any], server: bool) -> None:
    assert (
        peek(dumps({"model": "m", "input": "x", "messages": [], **extra}), surface).server_tools
        is server
    )


def test_background_and_streaming_speech() -> None:
    assert peek(dumps({"model": "m", "background": True, "input": "x"}), "responses").background
    assert not peek(
        dumps({"model": "m", "background": False, "input": "x"}), "responses"
    ).background
    assert peek(dumps({"model": "m", "input": "x", "stream_format": "sse"}), "audio").stream
    voice = peek(dumps({"model": "m", "input": "x", "voice": {"id": "voice_1"}}), "audio")
    assert (voice.pin_ids, voice.pin_kind) == (("voice_1",), "voice")


def test_an_inline_image_is_not_a_million_tokens() -> None:
    image = "data:image/png;base64," + "A" * 1_000_000
    body = dumps(
        {
            "model": "m",
            "messages": [{"content": [{"type": "image_url", "image_url": {"url": image}}]}],
        }
    )
    assert 900 < peek(body).prompt_tokens_estimate < 1100
    last = dumps(
        {
            "messages": [{"content": [{"type": "image_url", "image_url": {"url": image}}]}],
            "model": "m",
        }
    )
    assert 900 < peek(last).prompt_tokens_estimate < 1100


def test_the_same_parameters_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tail = {
        "max_tokens": 77,
        "tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(50)],
    }
    first = dumps({"model": "m", "messages": MESSAGES, **tail})
    assert peek(first).max_output_tokens == 77

    def fail(*args: object, **kwargs: object) -> object:
        raise AssertionError("parsed again")

    monkeypatch.setattr(json, "loads", fail)
    monkeypatch.setattr(body_module, "_DECODER", None)
    second = dumps({"model": "m", "messages": [*MESSAGES, *MESSAGES], **tail})
    assert peek(second).max_output_tokens == 77


def test_what_is_remembered_is_bounded() -> None:
    for number in range(500):
        peek(dumps({"model": "m", "messages": MESSAGES, "max_tokens": number + 1}))
    assert len(body_module._suffixes) <= body_module.SUFFIXES_MAX


# ------------------------------------------------------------------ peek agrees with a full parse

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


def reference(obj: dict[str, Any]) -> tuple[Any, ...]:
    """What a full parse says."""
    options = obj.get("stream_options")
    usage = options.get("include_usage") if isinstance(options, dict) else None
    model, store = obj.get("model"), obj.get("store")
    return (
        model if isinstance(model, str) else None,
        obj.get("stream") is True,
        options is not None,
        usage if isinstance(usage, bool) else None,
        store if isinstance(store, bool) else None,
    )


@given(bodies, st.sampled_from(["chat", "responses"]), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=examples(400))
def test_a_peek_agrees_with_a_full_parse(
    obj: dict[str, Any], surface: str, model_first: bool, compact: bool, ascii_only: bool
) -> None:
    if model_first:
        obj = {"model": "m", **{k: v for k, v in obj.items() if k != "model"}}
    body = json.dumps(
        obj, separators=(",", ":") if compact else None, ensure_ascii=ascii_only
    ).encode("utf-8", "surrogatepass")
    facts = peek(body, surface)
    assert facts.is_json
    got = (facts.model, facts.stream, facts.stream_options, facts.include_usage, facts.store)
    assert got == reference(obj)
    if surface == "responses":
        assert facts.background == (obj.get("background") is True)
        previous = obj.get("previous_response_id")
        assert isinstance(previous, dict) or (previous in facts.pin_ids) == bool(
            isinstance(previous, str) and previous
        )
