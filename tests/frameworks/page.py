"""The page that tells how to hand a wrapped client to each framework; its code is what is tested.

A framework's section begins with its title as a heading, and its first Python block makes what an
application would hand on, out of `sync` and `client` (wrapped by the page's first block).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from tests.frameworks.registry import Framework

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "frameworks.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippet(framework: Framework) -> str:
    """The code of the framework's section, on the lines it has in the page."""
    text = PAGE.read_text()
    heading = re.search(rf"^## {re.escape(framework.title)}\n", text, re.MULTILINE)
    if heading is None:
        raise LookupError(f"{PAGE.name} has no section {framework.title!r}")
    following = re.compile(r"^## ", re.MULTILINE).search(text, heading.end())
    block = BLOCK.search(text, heading.end(), following.start() if following else len(text))
    if block is None:
        raise LookupError(f"the section {framework.title!r} of {PAGE.name} has no Python block")
    return "\n" * text.count("\n", 0, block.start(1)) + block[1]


def run_snippet(framework: Framework, *, sync: object, client: object) -> dict[str, Any]:
    """What the section's code defines, given these two clients."""
    names: dict[str, Any] = {"sync": sync, "client": client}
    exec(compile(ast.parse(snippet(framework)), str(PAGE), "exec"), names)
    return names
