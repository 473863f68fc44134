"""Documents for the tests: one sound one, and ways to make others of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from headway.core.snapshot import Snapshot, Weights
from headway.credentials import Credential
from headway.policy.document import compile_document

Document = dict[str, Any]

SOUND: Document = {
    "schema_version": "1.0",
    "policy_id": "prod-eu",
    "version": 7,
    "profiles": {
        "h100": {
            "ttft_ms": {"x": [0, 0.5, 1.0], "mean": [75, 120, 520], "p99": [240, 498, 1800]},
            "tpot_ms": {"x": [0, 0.5, 1.0], "mean": [16, 24, 74]},
            "prefill_us_per_token": 55,
            "ttft_ref_uncached_tokens": 1000,
        }
    },
    "endpoints": {
        "a": {"base_url": "https://a.example/v1", "profile": "h100"},
        "b": {"base_url": "https://b.example/v1", "credential": "b-key"},
        "c": {"base_url": "https://c.example/v1", "model": "small"},
    },
    "routes": [
        {
            "match": {"model": "chat-large"},
            "weights": {"a": 3, "b": 1},
            "fallback": [{"endpoint": "c"}],
        }
    ],
}

CREDENTIALS = {"b-key": Credential(value="canary-b3f1", hosts=["b.example"])}


def document(change: Callable[[Document], object] | None = None, **top: object) -> Document:
    """A copy of the sound document, changed."""
    made = copy.deepcopy(SOUND)
    made.update(top)
    if change is not None:
        change(made)
    return made


def encoded(made: Document) -> bytes:
    return json.dumps(made).encode()


def compiled(made: Document | bytes, **options: Any):
    content = made if isinstance(made, bytes) else encoded(made)
    options = {"source": "test", "fetched": False, "credentials": CREDENTIALS} | options
    return compile_document(content, **options)


def put(path: str, value: object) -> Callable[[Document], None]:
    """A change that puts `value` at a path such as "routes.0.match"."""

    def change(made: Document) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        node: Any = made
        for part in parents:
            node = node[part]
        node[last] = value

    return change


def weights(
    snapshot: Snapshot, zone: str | None = None, tokens: int = 0, route: int = 0
) -> Weights:
    return snapshot.routes[route].weights.pick(zone, tokens)


def shares(found: Weights) -> dict[str, float]:
    return {endpoint: round(share, 6) for endpoint, share in found}
