"""`headway policy verify`: do enough of the keys vouch for a document?"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from headway.cli import NO, OK
from headway.cli.reading import add_json, fetch
from headway.cli.screen import say_json, say_wrong, wrong_as_tree

if TYPE_CHECKING:
    from headway.policy.signing import PublicKeys

VARIABLE = "HEADWAY_POLICY_KEYS"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("place", metavar="FILE_OR_URL")
    parser.add_argument(
        "--public-key",
        action="append",
        default=[],
        metavar="ID=BASE64",
        help=f"a key that counts, as keygen prints it; may be repeated (default: ${VARIABLE})",
    )
    parser.add_argument(
        "--threshold", type=int, metavar="N", help="how many different keys it takes (default: 1)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Say who vouches for it, or why that is not enough."""
    from headway.policy.signing import SignatureError, verify

    keys = _keys(args.public_key, args.threshold)
    place: str = args.place
    fetched = fetch(place, signed=True)
    try:
        vouched = verify(fetched.content, fetched.signatures, keys, source=place)
    except SignatureError as error:
        if args.json:
            say_json({"file": place, "verified": False, **wrong_as_tree(error)})
        else:
            say_wrong(error)
        return NO
    if args.json:
        say_json({"file": place, "verified": True, "signed_by": vouched.key_ids})
    else:
        print(f"{place}: signed by {', '.join(vouched.key_ids)}")
    return OK


def _keys(listed: list[str], threshold: int | None) -> PublicKeys:
    from headway.policy.signing import PublicKeys, keys_from_text

    if listed:
        pairs = [entry.partition("=") for entry in listed]
        return PublicKeys({key_id: key for key_id, _, key in pairs}, threshold or 1)
    text = os.environ.get(VARIABLE)
    if not text:
        raise ValueError(f"name the keys that count with --public-key ID=BASE64, or in {VARIABLE}")
    keys = keys_from_text(text)
    return keys if threshold is None else PublicKeys(keys.keys, threshold)
