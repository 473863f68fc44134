"""The call that `headway policy explain` is asked about: figures, a prompt, or a request's body."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

PROMPT_TOKENS: Final = 1000
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""As large as a request with pictures in it may be."""
_BY_FIELD: Final = (
    ("messages", "chat"),
    ("prompt", "completions"),
    ("input", "responses"),
)
"""What the body of each has; others have to be named (`--surface`)."""


class Call(NamedTuple):
    """What routing looks at, and no text of it."""

    model: str
    surface: str
    prompt_tokens: int
    is_estimate: bool
    max_output_tokens: int | None
    bound_to: str | None
    """The kind of object that the body names: the call goes where that lives."""


def add_call(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--model", help="what the call asks for (default: what the request says)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--request",
        metavar="FILE",
        help="the JSON body that the SDK would send, or a line of a batch file; - for stdin",
    )
    size.add_argument("--prompt", metavar="TEXT", help="a user message")
    size.add_argument(
        "--prompt-tokens",
        type=int,
        metavar="N",
        help=f"the prompt's size (default: {PROMPT_TOKENS})",
    )
    parser.add_argument("--max-output-tokens", type=int, metavar="N", help="its limit")
    parser.add_argument(
        "--surface", help="chat, responses, embeddings, ... (default: what the request looks like)"
    )


def call_of(args: argparse.Namespace) -> Call:
    """The call that the arguments describe. Raises ValueError and OSError."""
    body, surface = _body(args)
    if body is None:
        if args.model is None:
            raise ValueError("--model: expected what the call asks for, or --request")
        tokens = PROMPT_TOKENS if args.prompt_tokens is None else int(args.prompt_tokens)
        return Call(args.model, surface, tokens, False, args.max_output_tokens, None)
    from headway.transport.body import peek

    facts = peek(body, surface)
    model = args.model or facts.model
    if not model:
        raise ValueError("the request names no model: say --model")
    limit = args.max_output_tokens or facts.max_output_tokens
    bound_to = facts.pin_kind or "object" if facts.pin_ids else None
    return Call(model, surface, facts.prompt_tokens_estimate, True, limit, bound_to)


def _body(args: argparse.Namespace) -> tuple[bytes | None, str]:
    """The body, if there is one, and the surface."""
    if args.prompt is not None:
        members: dict[str, Any] = {"messages": [{"role": "user", "content": args.prompt}]}
        surface = args.surface or "chat"
    elif args.request is not None:
        members, surface = _request(str(args.request), args.surface)
    else:
        return None, args.surface or "chat"
    if args.model is not None:
        members["model"] = args.model
    # The model first, as the SDK writes it: the same look, at the same bytes.
    ordered = {**({"model": members["model"]} if "model" in members else {}), **members}
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode(), surface


def _request(place: str, surface: str | None) -> tuple[dict[str, Any], str]:
    if place == "-":
        raw = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    else:
        with Path(place).open("rb") as file:
            raw = file.read(BODY_BYTES_MAX + 1)
    where = "stdin" if place == "-" else place
    if len(raw) > BODY_BYTES_MAX:
        raise ValueError(f"{where}: expected at most {BODY_BYTES_MAX} bytes")
    try:
        tree: object = json.loads(raw)
    except (ValueError, RecursionError):  # its message would quote what may be a prompt
        raise ValueError(f"{where}: expected the JSON body of one request") from None
    if not isinstance(tree, dict):
        raise ValueError(f"{where}: expected a JSON object, the body of one request")
    members = cast("dict[str, Any]", tree)
    url, inner = members.get("url"), members.get("body")
    if isinstance(url, str) and isinstance(inner, dict):  # a line of a batch file
        from headway.transport.surfaces import classify_request

        path = "/" + url.split("/v1/", 1)[-1].lstrip("/")
        return cast("dict[str, Any]", inner), surface or classify_request("POST", path).name
    found = next((name for field, name in _BY_FIELD if field in members), None)
    if surface is None and found is None:
        raise ValueError(f"{where}: what kind of request is it? Say --surface")
    return members, surface or found or ""
