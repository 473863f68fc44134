"""Past `fresh_until` and past `expires_at`: what still holds, and what calls meet."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

import headway
from headway.core.engine import Engine
from headway.core.model import CallFacts, Finish, Send
from tests.policy.samples import Document, compiled, document

WALL = 1_800_000_000.0
AT = datetime.fromtimestamp(WALL, UTC).isoformat().replace("+00:00", "Z")
LATER = datetime.fromtimestamp(WALL + 100, UTC).isoformat().replace("+00:00", "Z")


def hinted(**top: Any) -> Document:
    """Load hints on endpoint a: 0.9, where nothing known means 0.5."""

    def change(made: Document) -> None:
        made["endpoints"]["a"]["observed"] = {"utilization": 0.9}

    return document(change, **top)


def engine(**top: Any) -> Engine:
    return Engine(compiled(hinted(**top)), rng=random.Random(1))


def begun(under_test: Engine, wall_now: float) -> Any:
    call = under_test.begin(CallFacts(model="chat-large"), 0.0, wall_now=wall_now)
    assert call is not None
    return call


@pytest.mark.parametrize(
    ("times", "ends_at"),
    [
        ({"fresh_until": AT}, WALL),
        ({"expires_at": AT}, WALL),  # nobody vouches for hints of a policy that has expired
        ({"fresh_until": AT, "expires_at": LATER}, WALL),
        ({}, float("inf")),
    ],
)
def test_load_hints_fade_at_the_earlier_of_the_two(times: dict[str, str], ends_at: float) -> None:
    under_test = engine(**times)
    before = begun(under_test, WALL - 1).snapshot
    assert before.endpoints["a"].planned_load == 0.9
    assert before.hints_until == ends_at

    after = begun(under_test, WALL + 1).snapshot
    assert after.endpoints["a"].planned_load == (0.9 if ends_at > WALL else 0.5)
    assert after.version == before.version


def test_an_expired_policy_goes_on_or_stops_as_it_says() -> None:
    for on_expiry, kind in (("degrade", Send), ("fail", Finish)):
        under_test = engine(expires_at=AT, on_expiry=on_expiry)
        assert isinstance(begun(under_test, WALL - 1).next_action(0.0), Send)
        action = begun(under_test, WALL + 1).next_action(0.0)
        assert isinstance(action, kind)
        if isinstance(action, Finish):
            assert action.rejection is not None
            assert action.rejection.reason == "policy_expired"


def test_switched_off_nothing_of_the_policy_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill switch works whatever is wrong: unsigned, unreachable, no key, no such scheme."""
    monkeypatch.setenv("HEADWAY_DISABLED", "1")
    for policy in ("https://config.invalid/p.json", "s3://b/p.json", "warp://x", "/absent.json"):
        assert headway.Router(policy, public_keys={"ops": "no key"}).disabled
