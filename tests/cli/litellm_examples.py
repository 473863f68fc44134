"""Import every configuration that LiteLLM publishes, and account for each of its values.

    python -m tests.cli.litellm_examples DIRECTORY ...

A directory is a checkout of BerriAI/litellm-docs (the pages), or of BerriAI/litellm (the example
files), or any other with `*.md`, `*.mdx`, `*.yaml` and `*.yml` below it. Nothing of them is kept, and
nothing is sent. The exit status is 1 if a value was lost silently, a policy is not sound, or there
was nothing to import.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from headway.cli.foreign import Imported
from headway.cli.litellm_config import from_litellm
from headway.errors import PolicyError
from headway.hosts import split_url
from headway.policy.models import Policy
from headway.policy.parse import parse, path_text
from tests.cli.accounting import account

FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*([\w+-]*)")
HAS_MODELS = re.compile(r"^[ \t]*(- )?[\"']?model_list[\"']?[ \t]*:", re.MULTILINE)
PLACES = re.compile(r"(BASE|ENDPOINT|HOST|URL)$")


class Everything(dict[str, str]):
    """An environment in which every variable is set, those that name places to one."""

    def get(self, name: str, default: Any = None) -> str:
        slug = name.lower().replace("_", "-")
        return f"https://{slug}.example/v1" if PLACES.search(name) else slug


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks of a page: the line, and what stands in it."""
    fence, line, inside = "", 0, list[str]()
    for number, said in enumerate(text.splitlines(), 1):
        found = FENCE.match(said)
        if not fence and found:
            fence, line, inside = found[1], number, []
        elif fence and found and found[1].startswith(fence) and not found[2]:
            yield line, textwrap.dedent("\n".join(inside).expandtabs(2))
            fence = ""
        elif fence:
            inside.append(said)


def examples(root: Path) -> Iterator[tuple[str, str]]:
    """Every text below a directory that has a list of models, with its place."""
    for path in sorted(root.rglob("*")):
        if path.suffix in {".md", ".mdx"}:
            found = [(f"{path}:{line}", text) for line, text in blocks(path.read_text("utf-8"))]
        elif path.suffix in {".yaml", ".yml"}:
            found = [(str(path), path.read_text("utf-8"))]
        else:
            continue
        yield from ((place, text) for place, text in found if HAS_MODELS.search(text))


def convert(tree: Any) -> Imported:
    return from_litellm(tree, Everything())


def why_unsound(policy: dict[str, Any]) -> str | None:
    """What is wrong with the policy that came of it; hosts are allowed as the report says."""
    hosts = sorted({str(split_url(e["base_url"])[0]) for e in policy["endpoints"].values()})
    try:
        Policy.load(policy).compile(allowed_hosts=hosts)
    except PolicyError as error:
        return str(error)
    return None


def look(place: str, text: str, count: Counter[str]) -> bool:
    """Account for one example; what is wrong is printed."""
    try:
        tree = parse(text.encode(), format="yaml")
    except PolicyError as error:
        try:
            yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):
            count["no YAML, for LiteLLM neither"] += 1
            return True
        print(f"{place}: LiteLLM reads it, and import doesn't: {error}")
        return False
    if not isinstance(tree, dict):
        count["no YAML, for LiteLLM neither"] += 1
        return True
    found, made = account(tree, convert), convert(tree)
    count["configurations"] += 1
    count["deployments"] += made.deployments
    count["endpoints"] += len(made.policy["endpoints"])
    for what, places in found._asdict().items():
        count[what] += len(places)
    for path in found.lost:
        print(f"{place}: lost: {path_text(path)}")
    if not made.policy["endpoints"]:
        count["without an endpoint"] += 1
        return not found.lost
    why = why_unsound(made.policy)
    if why is not None:
        print(f"{place}: not sound: {why}")
    return not found.lost and why is None


def main(roots: list[str]) -> int:
    count: Counter[str] = Counter({"configurations": 0, "carried": 0, "reported": 0, "lost": 0})
    fine = True
    for root in roots:
        for place, text in examples(Path(root)):
            fine &= look(place, text, count)
    for what, number in count.items():
        print(f"{number:6} {what}")
    return 0 if fine and count["configurations"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
