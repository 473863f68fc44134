"""The reference says what the models say: the schema is current, every field is described."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headway.errors import PolicyError
from headway.policy import blocks, fields, fleet, models
from headway.policy.models import FEATURES, Policy
from headway.policy.parse import parse
from headway.policy.schema import schema_text
from tests.policy.samples import document

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "policy.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

BLOCKS = [
    block
    for module in (fleet, blocks, models)
    for block in vars(module).values()
    if isinstance(block, type) and issubclass(block, fields.Block) and block is not fields.Block
]


def names(block: type[fields.Block]) -> list[str]:
    return [field.alias or name for name, field in block.model_fields.items()]


def test_the_published_schema_is_current() -> None:
    published = (REFERENCE / "policy.schema.json").read_text()

    assert published == schema_text(), "python -m headway.policy.schema > docs/reference/..."


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.__name__)
def test_the_page_names_every_field(block: type[fields.Block]) -> None:
    # In a table's first column, or by its path there: `retry.budget.start`.
    described = {
        name.rpartition(".")[2]
        for cell in re.findall(r"^\|([^|]*)\|", PAGE, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", cell)
    }
    # Groups are shown as the dotted paths of what is in them.
    described |= {
        part
        for path in re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)
        for part in path.split(".")
    }
    inline = {
        "model",
        "task",
        "class",
        "surface",
        "input",
        "output",
        "max_prompt_tokens",
        "x",
        "mean",
        "p99",
    }

    assert set(names(block)) - described - inline == set()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.__name__)
def test_every_field_says_what_it_is(block: type[fields.Block]) -> None:
    assert [name for name, f in block.model_fields.items() if not f.description] == []
    assert block.__doc__


def test_every_feature_is_on_the_page() -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `must_understand`")]

    assert ", ".join(sorted(FEATURES)) in row


def whole(part: dict[str, Any]) -> dict[str, Any]:
    """An example laid over a sound document."""
    made = document() | {"endpoints": dict(document()["endpoints"])}
    for name in ("vllm-1", "azure-e", "openai"):
        made["endpoints"][name] = {"base_url": f"https://{name}.example/v1"}
    for key, value in part.items():
        made[key] = made[key] | value if key in {"endpoints", "profiles"} else value
    return made


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_sound(example: str) -> None:
    part = parse(example.encode(), format="yaml")
    assert isinstance(part, dict)

    policy = Policy.load(whole(part))

    assert policy.dump()
    policy.compile(allowed_hosts=["http://10.1.0.5:8000"])


def test_the_examples_use_every_field() -> None:
    used: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            used.update(node)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    for example in EXAMPLES:
        walk(parse(example.encode(), format="yaml"))
    unused = {name for block in BLOCKS for name in names(block)} - used

    # For a person an example of these would say less than their row in the table.
    assert unused <= {
        "$schema", "state", "profile", "provider", "max_body_bytes", "supports", "share", "in_flight",
        "completions_per_s", "cache_write_per_mtok", "per_request", "slots", "rpm", "tpm", "task",
        "endpoints",
    }  # fmt: skip


def test_the_first_example_needs_what_the_page_says_it_needs() -> None:
    with pytest.raises(PolicyError, match=r"endpoints\.vllm-1\.base_url"):
        Policy.load(dict(parse(EXAMPLES[0].encode(), format="yaml"))).compile()  # type: ignore[call-overload]
