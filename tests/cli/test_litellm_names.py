"""Every setting that LiteLLM's published configurations use is carried over, or reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from headway.cli.foreign import Imported
from headway.cli.litellm_config import from_litellm
from headway.policy.models import Policy
from tests.cli import litellm_names as names
from tests.cli.accounting import account, at, is_reported
from tests.cli.litellm_examples import blocks, main

BASE: dict[str, Any] = {
    "model_list": [
        {
            "model_name": "large",
            "litellm_params": {
                "model": "openai/gpt-large",
                "api_key": "os.environ/OPENAI_API_KEY",
            },
            "model_info": {"mode": "chat"},
        },
        {"model_name": "large", "litellm_params": {"model": "deepseek/large"}},
        {"model_name": "small", "litellm_params": {"model": "groq/small", "rpm": 60}},
    ],
    "router_settings": {"routing_strategy": "least-busy"},
    "litellm_settings": {"drop_params": True},
    "general_settings": {"master_key": "os.environ/MASTER"},
}
VALUES = (
    *(7, "seven", "openai/other", True, None, ["small"], {"one": 1}),
    *({"one": "small"}, [{"large": ["small"]}], {"model": "openai/other"}),
)
WHERE = {
    "entry": (names.ENTRY, ("model_list", 0)),
    "params": (names.PARAMS, ("model_list", 0, "litellm_params")),
    "model": (names.MODEL, ("model_list", 0, "model_info")),
    "router": (names.ROUTER, ("router_settings",)),
    "litellm": (names.LITELLM, ("litellm_settings",)),
    "general": (names.GENERAL, ("general_settings",)),
    "section": (names.SECTIONS, ()),
}
CARRIED = {
    "entry": {"litellm_params", "model_name", "rpm", "tpm"},
    "params": {
        *("api_base", "api_key", "custom_llm_provider", "input_cost_per_token", "model"),
        *("order", "rpm", "tpm"),  # and timeout, where all deployments of a model say the same
    },
    "model": {
        *("cache_creation_input_token_cost", "cache_read_input_token_cost", "id"),
        *("input_cost_per_token", "output_cost_per_token"),
    },
    "router": {
        *("content_policy_fallbacks", "context_window_fallbacks", "fallbacks", "num_retries"),
        *("model_group_alias", "timeout", "routing_strategy", "default_fallbacks"),
    },
    "litellm": {
        *("content_policy_fallbacks", "context_window_fallbacks", "default_fallbacks"),
        *("fallbacks", "num_retries", "request_timeout"),
    },
    "general": set[str](),
    "section": set[str](),
}
"""What is part of the policy; everything else is reported, or goes with what it stands in."""


def convert(tree: Any) -> Imported:
    return from_litellm(tree, {})


def with_setting(path: tuple[str | int, ...], name: str, value: object) -> dict[str, Any]:
    tree = copy.deepcopy(BASE)
    at(tree, path)[name] = value
    return tree


@pytest.mark.parametrize("section", WHERE)
def test_a_setting_is_carried_or_reported_whatever_its_value(section: str) -> None:
    listed, path = WHERE[section]
    carried = set()
    for name in listed:
        for value in VALUES:
            tree = with_setting(path, name, value)
            made = convert(tree)
            if made.policy["endpoints"]:
                Policy.load(made.policy)
            found = account(tree, convert, below=(*path, name))
            assert found.lost == [], (name, value)
            if found.carried:
                carried.add(name)
    assert carried == CARRIED[section]


@pytest.mark.parametrize("section", WHERE)
def test_a_setting_that_no_release_has_had_yet_is_reported(section: str) -> None:
    path = WHERE[section][1]
    for value in VALUES:
        made = convert(with_setting(path, "unheard_of", value))
        assert is_reported(made, (*path, "unheard_of")) or any(
            note.path[: len(path) + 1] == (*path, "unheard_of") for note in made.notes
        )


def test_numbers_are_read_as_litellm_reads_them() -> None:
    tree = with_setting(("model_list", 0, "litellm_params"), "tpm", "20_000")
    [first, *_] = convert(tree).policy["endpoints"].values()
    assert first["capacity"] == {"tpm": 20_000}


def test_what_says_nothing_is_named_and_is_no_loss() -> None:
    made = convert(with_setting(("router_settings",), "fallbacks", []))
    [note] = [note for note in made.notes if note.path == ("router_settings", "fallbacks")]
    assert note.message == "says nothing"
    assert not note.lost


# ----------------------------------------------------------- the account of published examples

PAGE = """
Text, and a list:

- as this

    ```yaml showLineNumbers
    model_list:
      - model_name: m
        litellm_params: {model: openai/m, temperature: 1}
    ```

~~~yaml
other: thing
~~~

```yaml
model_list: [
```
"""


def test_the_blocks_of_a_page_are_found() -> None:
    assert [line for line, _ in blocks(PAGE)] == [6, 12, 16]


def test_published_examples_are_accounted_for(tmp_path, capsys) -> None:
    (tmp_path / "page.mdx").write_text(PAGE)
    (tmp_path / "a.yaml").write_text(
        "model_list: [{model_name: b, litellm_params: {model: bedrock/b}}]\n"
    )

    assert main([str(tmp_path)]) == 0
    said = dict(
        reversed(line.strip().split(" ", 1)) for line in capsys.readouterr().out.splitlines()
    )
    assert said["configurations"] == "2"
    assert said["carried"] == "2"
    assert said["reported"] == "3"
    assert said["lost"] == "0"
    assert said["without an endpoint"] == "1"
    assert said["no YAML, for LiteLLM neither"] == "1"


def test_a_directory_without_examples_proves_nothing(tmp_path) -> None:
    assert main([str(tmp_path)]) == 1


def test_what_a_converter_loses_is_found() -> None:
    """The account itself: a converter that takes a value and makes nothing of it is caught."""

    def losing(tree: Any) -> Imported:
        made = from_litellm(tree, {})
        return made._replace(notes=tuple(n for n in made.notes if "drop_params" not in n.path))

    lossy: Callable[[Any], Imported] = losing
    assert account(BASE, lossy).lost == [("litellm_settings", "drop_params")]
