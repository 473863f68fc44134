"""(signatures first; bodies follow)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class BodyFacts:
    """What one look at a JSON request body told. Immutable by convention."""

    __slots__ = ()
    is_json: bool  # a JSON object
    model: str | None
    model_span: tuple[int, int] | None  # the string literal, quotes included
    stream: bool
    include_usage: bool | None  # None: the user did not mention it
    stream_options: bool  # present at all
    max_output_tokens: int | None
    store: bool | None
    choices: int  # n
    background: bool
    server_tools: bool  # tools the provider runs (web_search, code_interpreter, mcp, ...)
    pin_ids: tuple[str, ...]  # objects named by the body, the most specific first
    pin_kind: str | None  # response | conversation | prompt | file | vector_store | container | item | encrypted
    prompt_start: int  # where the prompt begins in the body
    prompt_tokens_estimate: int


def peek(body: bytes, surface: str = "chat") -> BodyFacts:
    raise NotImplementedError


def rewrite(
    body: bytes,
    facts: BodyFacts,
    *,
    model: str | None = None,
    include_usage: bool = False,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    set_: Mapping[str, object] | None = None,
) -> bytes:
    """Returns the same object when nothing changes."""
    raise NotImplementedError


def prefix_hashes(body: bytes, facts: BodyFacts, block_bytes: int = 1024) -> tuple[int, ...]:
    raise NotImplementedError
