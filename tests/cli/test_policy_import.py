"""`headway policy import litellm`: what has a counterpart becomes it, the rest is reported."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli import MISSING_EXTRA, NO, OK, main
from headway.cli.foreign import Imported
from headway.cli.litellm_config import from_litellm
from headway.policy.models import Policy
from headway.policy.parse import parse
from tests.cli.accounting import account, at, is_reported, objects
from tests.cli.litellm_samples import ENVIRON, SAMPLES


def tree_of(name: str) -> dict[str, Any]:
    tree = parse(SAMPLES[name].encode(), format="yaml")
    assert isinstance(tree, dict)
    return tree


def imported_unchecked(tree: dict[str, Any]) -> Imported:
    return from_litellm(tree, ENVIRON)


def imported(tree: dict[str, Any]) -> Imported:
    found = from_litellm(tree, ENVIRON)
    Policy.load(found.policy)
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_lost_silently(name: str) -> None:
    """Whatever value is changed: the policy changes, or the report has named the place."""
    found = account(tree_of(name), imported_unchecked)
    assert found.lost == []
    assert len(found.carried) > 3
    assert len(found.reported) > 2


@pytest.mark.parametrize("name", SAMPLES)
def test_a_setting_that_nobody_thought_of_is_reported(name: str) -> None:
    tree = tree_of(name)
    for path in objects(tree):
        changed = copy.deepcopy(tree)
        at(changed, path)["unheard_of"] = 1
        assert is_reported(imported_unchecked(changed), (*path, "unheard_of")), path


def places(found: Imported, *, lost: bool) -> list[str]:
    return [note.place for note in found.notes if note.lost is lost]


def test_a_shuffle_between_deployments() -> None:
    found = imported(tree_of("shuffle"))
    policy = found.policy

    assert policy["endpoints"]["eu"] == {
        "base_url": "https://acme-eu.openai.azure.com",
        "model": "gpt-4o-eu",
        "dialect": "azure",
        "api_version": "2025-04-01-preview",
        "credential": "env:AZURE_KEY_EU",
        "capacity": {"rpm": 6},
    }
    second = policy["endpoints"]["gpt-4o-1"]
    assert second["base_url"] == "https://acme-env.openai.azure.com"
    assert second["credential"] == "gpt-4o-1"
    assert second["capacity"] == {"rpm": 1440, "tpm": 100000, "concurrency": 12}
    [route] = policy["routes"]
    assert route["match"] == {"model": ["gpt-4o", "gpt-4"]}
    assert route["weights"] == {"eu": 6, "gpt-4o-1": 1440}
    assert policy["defaults"] == {
        "selection": {"algorithm": "weighted_random"},
        "retry": {"max_attempts": 3},
        "deadline": {"total_ms": 30000},
    }
    assert places(found, lost=True) == [
        "model_list[1].litellm_params.api_key",
        "router_settings.redis_host",
        "router_settings.redis_password",
        "router_settings.redis_port",
    ]
    assert "router_settings.timeout" in places(found, lost=False)


def test_fallbacks_of_every_kind() -> None:
    found = imported(tree_of("reliability"))
    routes = {route["name"]: route for route in found.policy["routes"]}

    assert routes["zephyr-beta"]["fallback"] == [
        {"route": "gpt-3.5-turbo-16k", "on": ["context_length"]},
        {"route": "gpt-3.5-turbo-16k", "on": ["content_filter"]},
        {"route": "gpt-3.5-turbo"},
    ]
    # Back to where it came from: a route can't, so it goes to the endpoints.
    assert {"endpoint": "zephyr-beta-2"} in routes["gpt-3.5-turbo"]["fallback"]
    assert routes["gpt-3.5-turbo"]["deadline"] == {"total_ms": 20000}
    lost = places(found, lost=True)
    assert 'litellm_settings.fallbacks[1]["gpt-3.5-turbo"][1]' in lost
    assert "model_list[2].litellm_params.temperature" in lost
    assert "general_settings.master_key" in lost
    assert 'allowed_hosts=["http://10.0.0.1:8001"]' in str(found.notes)


def test_providers_that_speak_something_else_are_named() -> None:
    found = imported(tree_of("providers"))
    endpoints, routes = found.policy["endpoints"], found.policy["routes"]

    price = {name: float(cost) for name, cost in endpoints["claude-1"]["price"].items()}
    assert price == {"input_per_mtok": 3.0, "output_per_mtok": 15.0}
    assert endpoints["local-1"]["base_url"] == "http://localhost:11434/v1"
    assert endpoints["proxied-1"]["model"] == "big"
    assert "model" not in endpoints["any-1"]
    assert [route["name"] for route in routes] == ["claude", "local", "proxied", "*"]
    assert "match" not in routes[-1]
    told = {note.place: note.message for note in found.notes if note.lost}
    assert "bedrock" in told["model_list[0]"]
    assert "NOT_SET is not set" in told["model_list[5].litellm_params.api_base"]
    assert {
        "model_list[3]",
        "model_list[5]",
        "model_list[6]",
        "environment_variables.REDIS_HOST",
    } <= told.keys()


def test_order_and_weights() -> None:
    found = imported(tree_of("ordered"))
    route, other = found.policy["routes"]

    assert other["fallback"] == [{"endpoint": "third"}]  # by its model_info.id
    assert route["weights"] == {"first": 9, "second": 1}
    assert route["fallback"] == [{"endpoint": "third"}]
    assert float(found.policy["endpoints"]["second"]["price"]["input_per_mtok"]) == 0.15
    assert found.policy["defaults"]["retry"] == {"max_attempts": 20}
    lost = places(found, lost=True)
    assert "model_list[0].litellm_params.rpm" in lost
    assert "model_list[2].litellm_params.weight" in lost
    assert "litellm_settings.num_retries" in lost
    assert "router_settings.model_group_alias.n.hidden" in lost


def test_a_deployment_that_a_shuffle_draws_last_is_a_fallback() -> None:
    tree = tree_of("shuffle")
    del tree["model_list"][1]["litellm_params"]["rpm"]
    found = imported(tree)
    [route] = found.policy["routes"]

    assert route["weights"] == {"eu": 6}
    assert route["fallback"] == [{"endpoint": "gpt-4o-1"}]
    assert "model_list[1]" in places(found, lost=False)


# ----------------------------------------------------------------------------- the command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(SAMPLES["reliability"])
    return path


def test_the_policy_is_written_and_the_report_names_places_and_no_values(
    config, tmp_path, capsys
) -> None:
    out = tmp_path / "policy.json"

    assert main(["policy", "import", "litellm", str(config), "--out", str(out)]) == OK
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{config}: general_settings.master_key: left out: " in said.err
    assert "4 deployments, 4 endpoints made of them" in said.err
    assert "sk-1234" not in said.err
    assert "password@" not in said.err
    allow = ["--allow-host", "http://10.0.0.0/8"]
    assert main(["policy", "check", str(out), *allow]) == OK
    assert main(["policy", "import", "litellm", str(config), "--strict"]) == NO


def test_programs_get_policy_and_notes(config, capsys) -> None:
    assert main(["policy", "import", "litellm", str(config), "--json", "--policy-id", "p"]) == OK

    found = json.loads(capsys.readouterr().out)
    assert found["policy"]["policy_id"] == "p"
    assert {"path", "message", "lost"} == found["notes"][0].keys()


@pytest.mark.parametrize("text", ["[]", "model_list: 7", "model_list: [{a: 1}]", "a: &x 1\nb: *x"])
def test_what_is_no_configuration_is_one_line(text: str, config, capsys) -> None:
    config.write_text(text)

    assert main(["policy", "import", "litellm", str(config)]) == NO
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"{config}: ")


def test_without_pyyaml_the_extra_is_named(config, capsys, monkeypatch) -> None:
    monkeypatch.setattr("headway.cli.policy_import.find_spec", lambda name: None)
    assert main(["policy", "import", "litellm", str(config)]) == MISSING_EXTRA
    assert "headway[yaml]" in capsys.readouterr().err
