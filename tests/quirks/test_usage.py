"""Token counts from every shape seen; what is not told stays unknown."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import Usage
from headway.quirks import extract_usage, reply_facts, usage_from_body


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        pytest.param(
            {
                "usage": {
                    "prompt_tokens": 1000,
                    "completion_tokens": 100,
                    "total_tokens": 1100,
                    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 50},
                    "completion_tokens_details": {"reasoning_tokens": 40},
                }
            },
            Usage(1000, 100, 600, 50, 40),
            id="chat",
        ),
        pytest.param(
            {
                "response": {
                    "usage": {
                        "input_tokens": 10,
                        "output_tokens": 5,
                        "input_tokens_details": {"cached_tokens": 0},
                        "output_tokens_details": {"reasoning_tokens": 0},
                    }
                }
            },
            Usage(10, 5, 0, None, 0),
            id="responses-event",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": 8, "total_tokens": 8}}, Usage(8, 0), id="embeddings"
        ),
        pytest.param(
            {
                "usage": {
                    "prompt_tokens": 3,
                    "completion_tokens": 4,
                    "cost": 0.00012,
                    "cost_details": {"upstream_inference_cost": None},
                }
            },
            Usage(3, 4, provider_cost_usd=Decimal("0.00012")),
            id="openrouter-cost",
        ),
        pytest.param(
            {"timings": {"prompt_n": 7, "cache_n": 20, "predicted_n": 5}},
            Usage(27, 5, 20),
            id="llama.cpp-timings",
        ),
        pytest.param(
            {
                "usage": {
                    "input_tokens": 10,
                    "cache_read_input_tokens": 100,
                    "cache_creation_input_tokens": 30,
                    "output_tokens": 5,
                }
            },
            Usage(140, 5, 100, 30),
            id="anthropic-native-counts-are-disjoint",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}},
            Usage(9, 2, 4),
            id="deepseek",
        ),
        pytest.param(
            {"x_groq": {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}},
            Usage(9, 2),
            id="groq-stream",
        ),
        pytest.param(
            {
                "usageMetadata": {
                    "promptTokenCount": 9,
                    "candidatesTokenCount": 2,
                    "thoughtsTokenCount": 3,
                }
            },
            Usage(9, 5, None, None, 3),
            id="gemini-native",
        ),
        pytest.param({"usage": None}, None, id="null"),
        pytest.param({"usage": {}}, None, id="empty"),
        pytest.param(
            {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}},
            None,
            id="all-zero-is-not-counted",
        ),
        pytest.param(
            {"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}, None, id="details-only"
        ),
        pytest.param(
            {"usage": {"prompt_tokens": None, "completion_tokens": 7}}, Usage(None, 7), id="partial"
        ),
        pytest.param(
            {"usage": {"prompt_tokens": 0, "completion_tokens": 7}}, Usage(None, 7), id="lone-zero"
        ),
        pytest.param(
            {"usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}},
            Usage(5, 0),
            id="an-empty-answer-is-zero",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": True, "completion_tokens": -1, "total_tokens": "9"}},
            None,
            id="nonsense",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": 5.0, "completion_tokens": 1e300}},
            Usage(5, None),
            id="floats",
        ),
        pytest.param({"usage": [1, 2]}, None, id="a-list"),
        pytest.param(
            {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": "NaN"}},
            Usage(1, 1),
            id="cost-not-a-number",
        ),
        *(
            pytest.param(
                {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": cost}},
                Usage(1, 1),
                id=f"cost-beyond-reason-{n}",
            )
            for n, cost in enumerate(["1e999999", "1e-999999", 1e12, "0." + "1" * 100_000, -1])
        ),
    ],
)
def test_usage_of_a_reply(reply: dict[str, Any], usage: Usage | None) -> None:
    assert extract_usage(reply) == usage
    if "response" not in reply and "x_groq" not in reply:
        assert usage_from_body(json.dumps(reply).encode()) == usage


def test_the_last_usage_of_a_body_is_found_without_parsing_it_whole() -> None:
    body = json.dumps(
        {
            "choices": [
                {"message": {"content": 'say "usage": {"prompt_tokens": 99}', "usage": None}}
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
            "metadata": {"usage": {"note": "none of your business"}},
        }
    ).encode()
    assert usage_from_body(body) == Usage(1, 2)
    # It does not look at the rest: a body cut off in front still tells.
    assert usage_from_body(body[40:]) == Usage(1, 2)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(body: bytes) -> None:
    usage_from_body(body)
    reply_facts(body)


def test_facts_of_a_reply() -> None:
    facts = reply_facts(
        b'{"id":"chatcmpl-1","model":"gpt-4o","service_tier":"flex","choices":[{"finish_reason":"stop"},'
        b'{"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    )
    assert facts == ("chatcmpl-1", "gpt-4o", "flex", ("stop", "length"), Usage(1, 2))
    incomplete = reply_facts(
        b'{"id":"resp_1","object":"response","status":"incomplete",'
        b'"incomplete_details":{"reason":"max_output_tokens"}}'
    )
    assert incomplete.finish_reasons == ("max_output_tokens",)
