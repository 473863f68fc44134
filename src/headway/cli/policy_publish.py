"""`headway policy publish`: put a document, and its signatures, where clients fetch it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import OK
from headway.cli.policy_sign import add_key, signature_of
from headway.cli.reading import add_json
from headway.cli.screen import say_json

if TYPE_CHECKING:
    from headway.credentials import Credential
    from headway.policy.signing import Signature


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "target", metavar="TARGET", help="a path, an https URL that takes PUT, s3://..., gs://..."
    )
    add_key(parser, required=False)
    parser.add_argument(
        "--token-env", metavar="VARIABLE", help="what the HTTP server wants to see is in here"
    )
    parser.add_argument(
        "--token-header",
        metavar="NAME",
        help="the header that carries it (default: Authorization, as a bearer token)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Publish; what is not newer than what is there, or another policy, is refused."""
    from headway.policy.publish import publish

    file: Path = args.file
    content = file.read_bytes()
    signatures = _beside(file, content)
    if args.key is not None:
        signatures.append(signature_of(content, args))
    done = publish(
        content, args.target, signatures=signatures, credential=_token(args, args.target)
    )
    if args.json:
        say_json(done._asdict())
        return OK
    replaced = "nothing was there" if done.replaced is None else f"after {_rank(done.replaced)}"
    how = f"published, {replaced}" if done.changed else "was there already"
    signed = f"; signed by {', '.join(done.signed_by)}" if done.signed_by else "; not signed"
    print(f"{done.target}: {_rank(done.rank)} {how}{signed}")
    return OK


def _rank(rank: tuple[int, int]) -> str:
    epoch, version = rank
    return f"version {version}" + (f" of epoch {epoch}" if epoch else "")


def _beside(file: Path, content: bytes) -> list[Signature]:
    """The signatures of these bytes that lie beside the file."""
    from headway.policy.signing import SUFFIX, only_for, read_signatures

    try:
        kept = file.with_name(file.name + SUFFIX).read_bytes()
    except FileNotFoundError:
        return []
    return list(read_signatures(only_for(content, kept), source=f"{file}{SUFFIX}"))


def _token(args: argparse.Namespace, target: str) -> Credential | None:
    from headway.credentials import Credential
    from headway.hosts import patterns_of

    if args.token_env is None:
        return None
    hosts = patterns_of(target)  # the key is for this one server: nothing else may be told it
    if not hosts:
        raise ValueError("--token-env is for a target that is an http(s) URL")
    return Credential(env=args.token_env, hosts=hosts, header=args.token_header)
