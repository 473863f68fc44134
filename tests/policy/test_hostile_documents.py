"""Whatever the bytes, nothing but a policy error comes out, and soon."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import PolicyError
from headway.policy.document import compile_document
from headway.policy.parse import DOCUMENT_BYTES_MAX
from tests.effort import examples
from tests.policy.samples import SOUND, document, encoded, put

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
PLACES = [
    "schema_version", "policy_id", "epoch", "version", "issued_at", "must_understand", "extensions",
    "network", "profiles", "profiles.h100.ttft_ms", "profiles.h100.ttft_ms.mean", "endpoints",
    "endpoints.a", "endpoints.a.base_url", "endpoints.a.params", "endpoints.a.price", "classes",
    "routes", "routes.0", "routes.0.weights", "routes.0.weights.a", "routes.0.fallback",
    "routes.0.fallback.0", "routes.0.match", "defaults", "shares",
]  # fmt: skip


def only_policy_errors(content: bytes, **options: Any) -> None:
    with contextlib.suppress(PolicyError):
        compile_document(content, source="test", **options)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_policy_errors(content: bytes) -> None:
    only_policy_errors(content)
    only_policy_errors(content, format="yaml")


@settings(max_examples=examples(300), deadline=None)
@given(JSON_VALUES)
def test_arbitrary_json_raises_nothing_but_policy_errors(value: object) -> None:
    only_policy_errors(json.dumps(value).encode())


@settings(max_examples=examples(500), deadline=None)
@given(st.sampled_from(PLACES), JSON_VALUES)
def test_arbitrary_values_in_a_sound_document_raise_nothing_but_policy_errors(
    place: str, value: object
) -> None:
    only_policy_errors(encoded(document(put(place, value))), fetched=False)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_damaged_document_raises_nothing_but_policy_errors(data: st.DataObject) -> None:
    content = bytearray(encoded(SOUND))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    only_policy_errors(bytes(content), fetched=False)


HOSTILE = {
    "a hundred thousand unknown endpoints": document(
        put("routes.0.weights", {f"x{i}": 1 for i in range(60_000)})
    ),
    "unknown fields without end": document(put("routes.0", {f"x{i}": 1 for i in range(60_000)})),
    "every list too short": document(
        put("routes", [{"weights": {}, "fallback": [{}] * 8}] * 900)
    ),
    "cycles without end": document(
        put(
            "routes",
            [
                {"name": f"r{i}", "endpoints": ["a"], "fallback": [{"route": f"r{(i + k) % 900}"} for k in range(1, 20)]}
                for i in range(900)
            ],
        )
    ),
    "a thousand broken endpoints": document(
        put("endpoints", {f"e{i}": {"base_url": "http://x.example"} for i in range(1000)} | SOUND["endpoints"])
    ),
}  # fmt: skip


@pytest.mark.timeout(10)  # each takes well under a second; quadratic behaviour would take minutes
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_document_costs_little(case: str) -> None:
    content = encoded(HOSTILE[case])
    assert len(content) <= DOCUMENT_BYTES_MAX

    only_policy_errors(content, fetched=False)
    only_policy_errors(content.replace(b'"1.0"', b'"1.1"', 1), fetched=False)
