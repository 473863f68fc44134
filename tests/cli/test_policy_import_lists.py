"""`headway policy import switchboard` and `openrouter`: lists of deployments, models, providers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from headway.cli import MISSING_EXTRA, NO, OK, main
from headway.cli.foreign import Imported
from headway.cli.openrouter_list import from_openrouter
from headway.cli.switchboard_list import from_switchboard
from headway.policy.models import Policy
from tests.cli.accounting import account, at, is_reported, objects

SWITCHBOARD: dict[str, Any] = {
    "resources": [
        {
            "name": "east",
            "api_key": "os.environ/EAST_KEY",
            "timeout": 30,
            "default_cooldown": 10,
            "models": [
                {"name": "gpt-4o-mini", "tpm": 30000, "rpm": 300, "type": "OpenAIDeployment"},
                {"name": "claude-sonnet-5", "tpm": 30000, "type": "AnthropicDeployment"},
                "o3",
            ],
        },
        {
            "name": "west",
            "api_key": "a-key-in-the-file",
            "timeout": 30,
            "models": [
                {"name": "gpt-4o-mini", "tpm": 10000, "rpm": 300},
                {"name": "other", "endpoint": "https://other.example/v1/", "default_cooldown": 5},
                {"name": "unlimited", "tpm": 0, "rpm": 0},
                {"tpm": 5},
            ],
        },
        {"name": "own", "base": "http://10.0.0.7:8000", "models": [{"name": "llama"}]},
        {"models": [{"name": "nowhere"}]},
    ],
    "openai_fallback": True,
    "anthropic_fallback": True,
    "max_sessions": 1024,
    "ratelimit_window": 60,
    "selector": "two_random_choices",
}
PREFERENCES: list[Any] = [
    {
        "model": "anthropic/claude-sonnet-4.6",
        "models": ["anthropic/claude-sonnet-4.6", "openai/gpt-5-mini", "mistralai/mistral-small"],
        "provider": {"order": ["anthropic"], "data_collection": "deny", "max_price": {"prompt": 1}},
        "route": "fallback",
        "temperature": 0.2,
        "messages": [{"role": "user", "content": "a prompt"}],
    },
    {
        "models": ["openai/gpt-5-mini"],
        "provider": {"sort": "throughput"},
        "plugins": [{"id": "web"}],
    },
    {"model": "meta-llama/llama-3.3-70b-instruct"},
    {"model": "openai/gpt-5-mini"},
    {"provider": {"sort": "price"}},
]
MODELS: dict[str, Any] = {
    "data": [
        {
            "id": "openai/gpt-4",
            "name": "GPT-4",
            "created": 1692901234,
            "context_length": 8192,
            "architecture": {"modality": "text->text"},
            "pricing": {
                "prompt": "0.00003",
                "completion": "0.00006",
                "request": "0",
                "image": "0.1",
            },
            "supported_parameters": ["temperature"],
        },
        {"id": "openrouter/auto", "pricing": {"prompt": "-1", "completion": "-1"}},
        {"id": "openai/gpt-4"},
    ]
}
PROVIDERS: dict[str, Any] = {
    "data": {
        "id": "openai/gpt-4",
        "name": "GPT-4",
        "description": "large",
        "endpoints": [
            {
                "name": "OpenAI: GPT-4",
                "provider_name": "OpenAI",
                "tag": "openai",
                "context_length": 8192,
                "pricing": {
                    "prompt": "0.00003",
                    "completion": "0.00006",
                    "input_cache_read": "0.000003",
                    "request": "0.001",
                },
                "status": 0,
                "uptime_last_30m": 99.5,
            },
            {"provider_name": "Azure", "pricing": {"prompt": "0.00002", "completion": "0.00006"}},
            {"name": "nobody's"},
        ],
    }
}
LISTS: dict[str, tuple[Callable[..., Imported], Any]] = {
    "switchboard": (from_switchboard, SWITCHBOARD),
    "preferences": (from_openrouter, PREFERENCES),
    "models": (from_openrouter, MODELS),
    "providers": (from_openrouter, PROVIDERS),
}


def converted(name: str) -> Imported:
    convert, tree = LISTS[name]
    made = convert(tree, {})
    Policy.load(made.policy).compile(allowed_hosts=["http://10.0.0.0/8"])
    return made


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_lost_silently(name: str) -> None:
    convert, tree = LISTS[name]
    found = account(tree, lambda other: convert(other, {}))
    assert found.lost == []
    assert len(found.carried) > 2
    assert len(found.reported) > 2


@pytest.mark.parametrize("name", LISTS)
def test_a_setting_that_nobody_thought_of_is_reported(name: str) -> None:
    convert, tree = LISTS[name]
    for path in objects(tree):
        changed = copy.deepcopy(tree)
        at(changed, path)["unheard_of"] = 1
        made = convert(changed, {})
        assert is_reported(made, (*path, "unheard_of")) or made.policy != converted(name).policy


def told(found: Imported) -> dict[str, str]:
    return {note.place: note.message for note in found.notes}


def test_resources_become_endpoints_and_shares_follow_their_limits() -> None:
    found = converted("switchboard")
    policy = found.policy
    assert policy["endpoints"]["east/gpt-4o-mini"] == {
        "base_url": "https://east.services.ai.azure.com/openai/v1",
        "model": "gpt-4o-mini",
        "credential": "env:EAST_KEY",
        "capacity": {"rpm": 300, "tpm": 30000},
    }
    assert policy["endpoints"]["west/gpt-4o-mini"]["credential"] == "west"
    assert policy["endpoints"]["west/other"]["base_url"] == "https://other.example/v1"
    assert policy["endpoints"]["own/llama"]["base_url"] == "http://10.0.0.7:8000/openai/v1"
    assert "capacity" not in policy["endpoints"]["west/unlimited"]
    first = policy["routes"][0]
    assert first["weights"] == {"east/gpt-4o-mini": 30000, "west/gpt-4o-mini": 10000}
    assert first["fallback"] == [{"endpoint": "openai"}]
    assert first["deadline"] == {"total_ms": 30000}
    assert policy["routes"][-1] == {"name": "any", "weights": {"openai": 1.0}}
    assert found.deployments == 9
    said = told(found)
    assert "Messages API" in said["resources[0].models[1]"]
    assert 'credentials={"west": ' in said["resources[1].api_key"]
    assert 'credentials={"own": ' in said["resources[2]"] or "plain http" in said["resources[2]"]
    assert said["resources[3]"] == "left out: it has no name"
    assert "a-key-in-the-file" not in str(found)


def test_a_bare_list_of_deployments_will_do() -> None:
    made = from_switchboard(
        [{"name": "a", "endpoint": "https://a.openai.azure.com", "models": ["m"]}], {}
    )
    assert list(made.policy["endpoints"]) == ["a/m"]
    assert made.policy["endpoints"]["a/m"]["base_url"] == "https://a.openai.azure.com/openai/v1"


def test_models_fall_back_in_order_and_preferences_are_sent() -> None:
    found = converted("preferences")
    policy = found.policy
    assert policy["endpoints"]["openrouter"] == {
        "base_url": "https://openrouter.ai/api/v1",
        "credential": "env:OPENROUTER_API_KEY",
        "params": {"set": {"provider": PREFERENCES[0]["provider"]}},
    }
    assert "params" not in policy["endpoints"]["openrouter.3"]
    assert policy["routes"][0] == {
        "match": {"model": "anthropic/claude-sonnet-4.6"},
        "weights": {"openrouter": 1.0},
        "fallback": [
            {"endpoint": "openrouter", "model": "openai/gpt-5-mini"},
            {"endpoint": "openrouter", "model": "mistralai/mistral-small"},
        ],
    }
    said = told(found)
    assert "overwrite" in said["[0].temperature"]
    assert "before it" in said["[3]"]
    assert "names no model" in said["[4]"]


def test_a_list_of_models_gives_prices_and_contexts() -> None:
    policy = converted("models").policy
    assert policy["endpoints"]["openai/gpt-4"]["max_context_tokens"] == 8192
    price = policy["endpoints"]["openai/gpt-4"]["price"]
    assert {name: float(cost) for name, cost in price.items()} == {
        "input_per_mtok": 30,
        "output_per_mtok": 60,
    }
    assert "price" not in policy["endpoints"]["openrouter/auto"]
    assert [route["match"]["model"] for route in policy["routes"]] == [
        "openai/gpt-4",
        "openrouter/auto",
    ]


def test_the_providers_of_a_model_become_endpoints_to_choose_from() -> None:
    policy = converted("providers").policy
    first, second = policy["endpoints"].values()
    assert first["params"] == {"set": {"provider": {"only": ["openai"], "allow_fallbacks": False}}}
    assert first["price"]["per_request"] == "0.001"
    assert second["params"]["set"]["provider"]["only"] == ["Azure"]
    [route] = policy["routes"]
    assert route == {
        "match": {"model": "openai/gpt-4"},
        "weights": {"openai": 1.0, "Azure": 1.0},
    }


# ----------------------------------------------------------------------------- the command


def test_a_list_in_json_needs_no_yaml(tmp_path, capsys, monkeypatch) -> None:
    path, out = tmp_path / "list.json", tmp_path / "policy.json"
    path.write_text(json.dumps(PREFERENCES))
    monkeypatch.setattr("headway.cli.policy_import.find_spec", lambda name: None)

    assert main(["policy", "import", "openrouter", str(path), "--out", str(out)]) == OK
    assert "5 deployments, 3 endpoints made of them" in capsys.readouterr().err
    assert main(["policy", "check", str(out)]) == OK
    assert (
        main(["policy", "import", "switchboard", str(path.with_suffix(".yaml"))]) == MISSING_EXTRA
    )


def test_a_list_in_yaml(tmp_path, capsys) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("resources: [{name: east, api_key: $KEY, models: [m]}]\n")
    assert main(["policy", "import", "switchboard", str(path), "--strict"]) == OK
    assert json.loads(capsys.readouterr().out)["endpoints"]["east/m"]["credential"] == "env:KEY"


@pytest.mark.parametrize("text", ["7", "[]", '{"data": []}', '[{"name": "x"}]'])
@pytest.mark.parametrize("name", ["switchboard", "openrouter"])
def test_what_is_no_list_is_one_line(name: str, text: str, tmp_path, capsys) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    assert main(["policy", "import", name, str(path)]) == NO
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{path}: ")


def test_what_is_said_of_many_places_is_said_a_few_times(tmp_path, capsys) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"data": [{"id": f"m{i}", "name": "M"} for i in range(100)]}))
    assert main(["policy", "import", "openrouter", str(path), "--out", str(tmp_path / "o")]) == OK
    said = capsys.readouterr().err
    assert "data[0].name ... and at 92 more places like it: left out" in said
    assert len(said.splitlines()) == 10
