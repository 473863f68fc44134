"""What `print` shows of a router: its status, and why a call goes nowhere of its own."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.views import BreakerStatus
from headway.router import Router
from headway.testing import ScriptedEndpoints

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
POLICY: dict[str, Any] = {
    "schema_version": "1.0",
    "version": 3,
    "policy_id": "shop",
    "endpoints": {
        "a": {"base_url": "http://127.0.0.1:9/v1"},
        "b": {"base_url": "http://127.0.0.1:9/v2"},
    },
    "routes": [
        {"match": {"model": "chat-large"}, "weights": {"a": 1}, "fallback": [{"endpoint": "b"}]},
        {"match": {"model": "chat-small"}, "weights": {"b": 1}},
    ],
}


@pytest.fixture
def router() -> Any:
    made = Router(POLICY)
    yield made
    made.close()


def test_a_typo_is_told_with_what_is_near(router: Router) -> None:
    found = router.explain(model="chat-lrage")

    assert found.route is None
    assert "No route of the policy matches model 'chat-lrage' (chat)" in found.why
    assert "Near: 'chat-large'" in found.why
    assert "own endpoint" in found.why


def test_what_is_near_nothing_names_nothing(router: Router) -> None:
    assert "Near" not in router.explain(model="whisper-1", surface="audio").why


def test_a_call_that_is_routed_has_nothing_to_say(router: Router) -> None:
    found = router.explain(model="chat-large")

    assert (found.route is None, found.why) == (False, "")


def test_a_status_is_a_table(router: Router) -> None:
    status = router.status()
    breakers = (BreakerStatus("chat-large", "open", "consecutive", 12.4, 1),)
    first = status.endpoints[0]._replace(breakers=breakers, out=(("chat-small", "cooling", 3.0),))
    status = status._replace(endpoints=(first, *status.endpoints[1:]))

    lines = str(status).splitlines()

    assert lines[0].startswith("policy 'shop' version 3 (enforce, ")
    assert lines[1].split() == [
        "endpoint",
        "state",
        "in",
        "flight",
        "limit",
        "seen/planned",
        "kept",
        "from",
        "calls",
        "by",
    ]
    a, b = lines[2], lines[3]
    column = lines[1].index("kept")
    assert a[column:] == "breaker of chat-large open (consecutive, 12 s); chat-small cooling (3 s)"
    assert (a[:column].split()[:3], b[column:]) == (["a", "active", "0"], "-")
    assert repr(status).startswith("RouterStatus(mode='enforce'")
    assert "\n" not in repr(status)


def test_a_status_tells_of_routes_that_were_used() -> None:
    with ScriptedEndpoints({"a": "hi"}) as fleet:
        fleet.wrap().chat.completions.create(model="scripted-model", messages=MESSAGES)

        lines = str(fleet.router.status()).splitlines()

    assert lines[-2].startswith("route ")
    assert lines[-1].startswith("scripted-model ")


def test_a_status_says_that_it_is_disabled(monkeypatch: Any) -> None:
    monkeypatch.setenv("HEADWAY_DISABLED", "1")
    router = Router(POLICY)

    assert "HEADWAY_DISABLED" in str(router.status())


def test_what_is_wrong_with_the_source_is_told(tmp_path: Any) -> None:
    import json

    path = tmp_path / "policy.json"
    path.write_text(json.dumps(POLICY))
    router = Router(path)
    status = router.status()
    broken = status.policy.__class__(
        **{
            **{name: getattr(status.policy, name) for name in status.policy.__dataclass_fields__},
            "last_error": "the file is gone",
            "stale": True,
        }
    )

    text = str(status._replace(policy=broken))

    assert "stale" in text
    assert "the file is gone" in text
    router.close()
