"""Sessions stay where their prefix is warm, and move when that endpoint dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import headway
from headway.core.model import AttemptStarted
from headway.testing import ScriptedEndpoints, document
from tests.e2e.fleet import Fleet, asay, at_once, say
from tests.e2e.replies import answer
from tests.servers import R, error

NAMES = ("a", "b", "c", "d")
LONG: list[Any] = [{"role": "user", "content": "the same question, " * 200}]


class Endpoint:
    """Answers until it is told to die."""

    def __init__(self) -> None:
        self.is_dead = False
        self._answer = answer()

    def __call__(self, seen: Any) -> Any:
        return R(503, error("down")) if self.is_dead else self._answer(seen)


@pytest.fixture
def four(serve: Callable[..., Any], fleet: Callable[..., Fleet]) -> tuple[Fleet, dict[str, Any]]:
    endpoints = {name: Endpoint() for name in NAMES}
    return fleet({name: serve(e).url for name, e in endpoints.items()}), endpoints


def went_to(fleet: Fleet) -> list[str]:
    return [event.attempt.endpoint_id for event in fleet.events.of(AttemptStarted)]


@pytest.mark.parametrize("how", ["task", "options"])
def test_a_session_stays_and_moves_when_its_endpoint_dies(
    how: str, four: tuple[Fleet, dict[str, Any]]
) -> None:
    fleet, endpoints = four
    client = fleet.client()

    def turn() -> None:
        if how == "task":
            with headway.task("chat", session="s-1"):
                assert say(client) == "Hello"
        else:
            with headway.options(session="s-1"):
                assert say(client) == "Hello"

    for _ in range(20):
        turn()
    [home] = set(went_to(fleet))
    reasons = [event.attempt.reason for event in fleet.events.of(AttemptStarted)]
    assert reasons[1:] == ["affinity"] * 19

    endpoints[home].is_dead = True
    fleet.events.clear()
    for _ in range(20):
        turn()
    others = Counter(went_to(fleet))
    assert others.pop(home) <= 3
    assert len(others) == 1  # it settled at one other, and stayed
    assert sum(others.values()) == 20


async def test_many_sessions_at_once_each_have_their_own_place(
    four: tuple[Fleet, dict[str, Any]],
) -> None:
    fleet, _ = four

    async def converse(number: int) -> str:
        async with headway.task(f"chat {number}", session=f"s-{number}"):
            for _ in range(5):
                await asay(client)
        return ""

    numbers = iter(range(24))
    async with fleet.async_client() as client:
        await at_once(lambda: converse(next(numbers)), 24, 8)

    homes: dict[str, set[str]] = {}
    for seen in fleet.events.of(AttemptStarted):
        homes.setdefault(str(seen.call_id), set()).add(seen.attempt.endpoint_id)
    used = Counter(went_to(fleet))
    affine = sum(e.attempt.reason == "affinity" for e in fleet.events.of(AttemptStarted))
    assert affine >= 0.9 * 24 * 4
    assert len(used) == 4
    assert max(used.values()) <= 70


def test_a_growing_conversation_finds_its_prefix_without_a_session(
    four: tuple[Fleet, dict[str, Any]],
) -> None:
    fleet, _ = four
    client = fleet.client()
    messages: list[Any] = [{"role": "system", "content": "You are terse. " * 200}]
    for turn in range(8):
        messages.append({"role": "user", "content": f"question {turn}"})
        reply = say(client, messages=messages)
        messages.append({"role": "assistant", "content": reply})

    assert len(set(went_to(fleet))) == 1


def test_an_explanation_names_the_warm_endpoint(four: tuple[Fleet, dict[str, Any]]) -> None:
    fleet, _ = four
    client = fleet.client()
    with headway.options(session="s-1"):
        say(client)

    [home] = went_to(fleet)
    assert fleet.router.explain(model="m", session="s-1").warm_endpoint == home


def test_a_session_keeps_a_place_for_each_of_its_models() -> None:
    """An agent embeds, asks a small model and a large one in turn: what one call warms says nothing
    of where another model's prefix is."""
    own = ["a", "b", "c", "d"]
    policy: dict[str, Any] = document([*own, "e"], model="large")
    policy["routes"][0]["weights"] = dict.fromkeys(own, 1)
    policy["routes"].append({"match": {"model": ["embedder", "small"]}, "weights": {"e": 1}})
    with ScriptedEndpoints(dict.fromkeys([*own, "e"], "ok"), policy=policy) as endpoints:
        client = endpoints.wrap()
        with headway.options(session="s-1"):
            for _ in range(8):
                client.embeddings.create(model="embedder", input="a question")
                client.chat.completions.create(model="large", messages=LONG)
        assert len({e for e in endpoints.sends if e != "e"}) == 1

        endpoints.requests.clear()
        for _ in range(8):  # without a session it is the prompt that ties calls together
            client.chat.completions.create(model="large", messages=LONG)
            client.chat.completions.create(model="small", messages=LONG)
        assert len({e for e in endpoints.sends if e != "e"}) == 1
