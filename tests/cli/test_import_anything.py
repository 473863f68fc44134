"""Whatever a file holds: an import ends with a sound policy and a report, or with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.cli import litellm_config, openrouter_list, switchboard_list
from headway.cli.foreign import Imported
from headway.errors import ValidationError
from headway.hosts import split_url
from headway.policy.models import Policy
from headway.policy.parse import check_tree
from tests.cli import litellm_names as names
from tests.cli.accounting import account
from tests.effort import examples

NAMES = (
    *("model_list", "model_name", "router_settings", "litellm_settings", "model_info", "weight"),
    *("resources", "name", "models", "base", "endpoint", "type", "openai_fallback", "data"),
    *("id", "model", "provider", "pricing", "prompt", "context_length", "tag", "endpoints"),
    *("litellm_params", "api_base", "api_key", "rpm", "tpm", "timeout", "order", *names.ROUTER),
    *("input_cost_per_token", "max_parallel_requests", "max_completion_tokens"),
)
PARAMS = (
    *("api_base", "api_key", "api_version", "custom_llm_provider", "rpm", "max_parallel_requests"),
    *("order", "weight", "timeout", "input_cost_per_token", "cache_read_input_token_cost"),
)
TEXTS = (
    *("large", "small", "*", "openai/large", "azure/large", "groq/", "/", "", "bedrock/x", "o3"),
    *("os.environ/SET", "os.environ/UNSET", "$SET", "https://a.example", "http://10.0.0.1:80", "7"),
    *(
        "ht!tp",
        "http://[",
        "x" * 300,
        "é",
        "\u2028",
        "1_000",
        "-1",
        "0",
        "1e400",
        "usage-based-routing",
    ),
)
LEAVES = st.none() | st.booleans() | st.integers(-5, 10**16) | st.floats() | st.sampled_from(TEXTS)
TREES = st.recursive(
    LEAVES,
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(st.sampled_from(NAMES), below, max_size=6)
    ),
    max_leaves=25,
)


def deployments(params: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What looks like a configuration, so that more than its first step is reached."""
    texts = st.sampled_from(TEXTS)
    more = dict.fromkeys(PARAMS, LEAVES)
    entry = st.fixed_dictionaries(
        {
            "model_name": texts,
            "litellm_params": st.fixed_dictionaries({"model": texts}, optional=more),
        },
        optional={"model_info": params, "rpm": LEAVES, "tpm": LEAVES},
    )
    settings_ = st.dictionaries(st.sampled_from(names.ROUTER), params, max_size=4)
    return st.fixed_dictionaries(
        {"model_list": st.lists(entry, min_size=1, max_size=4)},
        optional={"router_settings": settings_, "litellm_settings": settings_},
    )


def resources() -> st.SearchStrategy[Any]:
    texts = st.sampled_from(TEXTS)
    model = texts | st.dictionaries(st.sampled_from(NAMES), LEAVES, max_size=5)
    entry = st.fixed_dictionaries(
        {"name": texts, "models": st.lists(model, max_size=3)},
        optional={"base": texts, "api_key": texts, "timeout": LEAVES, "endpoint": LEAVES},
    )
    return st.lists(entry, min_size=1, max_size=3)


def providers() -> st.SearchStrategy[Any]:
    priced = st.dictionaries(st.sampled_from(("prompt", "completion", "request")), LEAVES)
    entry = st.fixed_dictionaries(
        {"id": st.sampled_from(TEXTS), "tag": st.sampled_from(TEXTS)},
        optional={"pricing": priced, "context_length": LEAVES, "models": TREES, "provider": TREES},
    )
    listed = st.lists(entry, max_size=3)
    return (
        listed
        | st.fixed_dictionaries({"data": listed})
        | st.fixed_dictionaries(
            {"data": st.fixed_dictionaries({"id": st.just("m"), "endpoints": listed})}
        )
    )


FORMATS: dict[str, tuple[Callable[..., Imported], st.SearchStrategy[Any]]] = {
    "litellm": (litellm_config.from_litellm, deployments(TREES) | TREES),
    "switchboard": (switchboard_list.from_switchboard, resources() | TREES),
    "openrouter": (openrouter_list.from_openrouter, providers() | TREES),
}


@pytest.mark.parametrize("name", FORMATS)
def test_anything_is_a_sound_policy_and_a_full_report(name: str) -> None:
    convert, trees = FORMATS[name]

    @settings(max_examples=examples(150))
    @given(trees)
    def run(tree: Any) -> None:
        if not isinstance(tree, dict | list) or not is_document(tree):
            return
        found = convert(tree, {"SET": "https://set.example"})
        if found.policy["endpoints"]:
            urls = [one["base_url"] for one in found.policy["endpoints"].values()]
            hosts = sorted({str(split_url(url)[0]) for url in urls})
            Policy.load(found.policy).compile(allowed_hosts=hosts)
        assert account(tree, lambda other: convert(other, {})).lost == []

    run()


def is_document(tree: Any) -> bool:
    """Whether reading the file would have let it through."""
    try:
        check_tree(tree)
    except ValidationError:
        return False
    return True
