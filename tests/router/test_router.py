"""The router's own part: what it tells calls, what it shows, and how it is switched off."""

from __future__ import annotations

import logging
from pathlib import Path

import openai
import pytest

import headway
from headway.core.model import CallFacts
from headway.events import AttemptStarted
from headway.testing import ScriptedEndpoints, document, error

ASK = {"model": "scripted-model", "messages": [{"role": "user", "content": "hello"}]}


def rank(router: headway.Router, **scope: object) -> int:
    """The priority of a call made inside `headway.options(**scope)`."""
    with headway.options(**scope) as options:  # type: ignore[arg-type]
        facts = CallFacts(
            "scripted-model", priority=options.priority or 0, traffic_class=options.traffic_class
        )
        router.open_call(facts).let_pass()
    return facts.priority


# --------------------------------------------------------------------------- classes of traffic


def test_a_class_of_the_policy_brings_its_priority() -> None:
    policy = document(["a", "b"]) | {
        "classes": {"batch": {"priority": -3}, "interactive": {"sheddable": False}}
    }
    with ScriptedEndpoints({"a": "hi", "b": "hi"}, policy=policy) as fleet:
        assert rank(fleet.router, priority="batch") == -3
        assert rank(fleet.router, priority="interactive") == 10
        assert rank(fleet.router, priority=7) == 7
        assert rank(fleet.router) == 0


def test_interactive_and_background_need_no_policy() -> None:
    client = headway.wrap(openai.OpenAI(api_key="sk-test", base_url="https://own.test/v1"))
    router = client._client._transport.host
    assert rank(router, priority="interactive") > rank(router) > rank(router, priority="background")


def test_the_inner_priority_replaces_the_outer_one_number_or_name() -> None:
    with ScriptedEndpoints({"a": "hi"}) as fleet:
        with headway.options(priority=5):
            assert rank(fleet.router, priority="background") == -10
        with headway.options(priority="background"):
            assert rank(fleet.router, priority=5) == 5


def test_an_unknown_class_is_told_once_and_ranks_as_usual(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEndpoints({"a": "hi"}) as fleet, caplog.at_level(logging.WARNING, "headway"):
        assert rank(fleet.router, priority="interactiv") == 0
        assert rank(fleet.router, priority="interactiv") == 0
    assert caplog.text.count("'interactiv' names no class") == 1


def test_an_unknown_route_is_told_once_and_such_calls_pass_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ScriptedEndpoints({"a": "hi"}) as fleet, caplog.at_level(logging.WARNING, "headway"):
        with headway.options(route="mian"):
            for _ in range(2):
                fleet.wrap().chat.completions.create(**ASK)  # type: ignore[call-overload]
    assert caplog.text.count("no route of the policy is named 'mian'") == 1
    assert not fleet.events.of(AttemptStarted)


def test_a_tasks_priority_reaches_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    queued: list[CallFacts] = []
    with ScriptedEndpoints({"a": "hi"}) as fleet:
        client = fleet.wrap()
        begin = fleet.router.engine.begin
        fleet.router.engine.begin = lambda facts, *rest, **named: (  # type: ignore[method-assign]
            queued.append(facts) or begin(facts, *rest, **named)  # type: ignore[func-returns-value]
        )
        with headway.task("t", priority="interactive"):
            client.chat.completions.create(**ASK)  # type: ignore[call-overload]
    assert [(facts.priority, facts.traffic_class) for facts in queued] == [(10, "interactive")]


# --------------------------------------------------------------------------- switched off


@pytest.mark.parametrize("policy", ["missing.json", "broken.json", "http://127.0.0.1:9/policy"])
def test_the_kill_switch_does_not_depend_on_the_policy(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_DISABLED", "1")
    with ScriptedEndpoints({"a": error(503), "b": "hi"}) as fleet:
        client = headway.wrap(fleet.client(max_retries=0), policy=policy)
        with pytest.raises(openai.InternalServerError), headway.task("t", max_calls=0):
            client.chat.completions.create(**ASK)  # type: ignore[call-overload]
        assert fleet.sends == ["a"]
        assert client._client._transport.host.status().disabled
