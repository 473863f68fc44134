"""What becomes of an offered document, and what is said of the one in force. Pure."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from headway.core.snapshot import Snapshot
from headway.policy.document import Order, order

UNNAMED = "default"
"""The id of policies that nobody named. Any policy may follow one."""


class Verdict(enum.Enum):
    """What becomes of an offered document that is sound in itself."""

    REPLACE = "replace"
    SAME = "same"
    ROLLBACK = "rollback"
    EXPIRED = "expired"
    OTHER = "other_policy"
    HELD = "held"
    """It is being rolled out, and not yet to this process."""


def verdict(
    offered: Snapshot,
    current: Snapshot | None,
    mark: tuple[int, int] | None,
    wall_now: float,
    *,
    bound: str | None = None,
    instance: str | None = None,
) -> Verdict:
    """Does this document replace that one?

    Only upwards of the high-water mark, and only a version of the same policy: `bound` is the
    policy id that the source gave before (a key may have signed other policies, too). A document
    that has expired never replaces one that hasn't (with nothing else to go by it is used, under
    its own `on_expiry`), and one that is being rolled out waits until this `instance` has its turn,
    or what is in force has expired.
    """
    if bound not in (None, UNNAMED, offered.policy_id):
        return Verdict.OTHER
    match order(rank(offered), mark):
        case Order.OLDER:
            return Verdict.ROLLBACK
        case Order.SAME if current is not None and rank(current) == rank(offered):
            return Verdict.SAME
        case _:
            pass
    if current is not None and is_expired(offered, wall_now) and not is_expired(current, wall_now):
        return Verdict.EXPIRED
    if (
        current is not None
        and instance is not None
        and not is_expired(current, wall_now)
        and not takes_part(offered, instance)
    ):
        return Verdict.HELD
    return Verdict.REPLACE


def takes_part(snapshot: Snapshot, instance: str) -> bool:
    """Whether a document that is being rolled out is for this process.

    The same processes are asked for every version with the same seed, and a larger share takes the
    smaller one in: raising it moves nobody back.
    """
    if snapshot.rollout_share >= 1.0:
        return True
    name = f"{snapshot.policy_id}\0{snapshot.rollout_seed}\0{instance}"
    place = int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "big")
    return place < snapshot.rollout_share * 2.0**64


def why_not(found: Verdict, offered: Snapshot, mark: tuple[int, int] | None) -> str:
    """Why a document was not put in force, and what its publisher can do."""
    rank_text = f"(epoch, version) {rank(offered)}"
    match found:
        case Verdict.ROLLBACK:
            return (
                f"{rank_text} is older than {mark}, already trusted; "
                "to go back on purpose, raise epoch"
            )
        case Verdict.OTHER:
            return (
                f'is a version of another policy, "{offered.policy_id}"; '
                "to change over, name it in code: policy_id=..."
            )
        case Verdict.HELD:
            return (
                f"{rank_text} is being rolled out to {offered.rollout_share:.0%} of processes, "
                "this one not among them"
            )
        case Verdict.SAME:
            return f"changed, but still {rank_text}: raise version to put a change in force"
        case _:
            return f"{rank_text} has expired"


def is_stale(snapshot: Snapshot, wall_now: float) -> bool:
    """Whether the publisher has stopped vouching for the load hints, or for the whole."""
    return wall_now > snapshot.hints_until


def is_expired(snapshot: Snapshot, wall_now: float) -> bool:
    """Whether `on_expiry` applies."""
    return snapshot.expires_at is not None and wall_now > snapshot.expires_at


def rank(snapshot: Snapshot) -> tuple[int, int]:
    """What versions are compared by."""
    return snapshot.epoch, snapshot.version


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatus:
    """What is known of the policy in force."""

    version: int
    """Of the document in force."""
    epoch: int
    """Of the document in force."""
    policy_id: str
    """Which policy that is a version of."""
    source: str
    """Where it is from."""
    age_s: float
    """Since it was issued, or, when it doesn't say, since it was loaded here."""
    stale: bool
    """Past `fresh_until`, or past `expires_at`."""
    last_error: str | None
    """Why the newest look at the source brought nothing; None when all is well."""
    warnings: tuple[str, ...] = ()
    """What was forgiven in the document: fields ignored, endpoints left out."""
    expired: bool = False
    """Past `expires_at`: `on_expiry` applies."""
    last_reason: str | None = None
    """The word for `last_error`: fetch, too_large, invalid, signature, rollback, ..."""
    signed_by: tuple[str, ...] = ()
    """Ids of the pinned keys that vouch for it; empty where none are pinned."""
    held: tuple[int, int] | None = None
    """(epoch, version) of a document that is being rolled out, but not yet to this process."""


def age_s(snapshot: Snapshot, loaded_at: float, wall_now: float) -> float:
    """Seconds since a policy was issued or, when it doesn't say, loaded."""
    since = loaded_at if snapshot.issued_at is None else snapshot.issued_at
    return max(wall_now - since, 0.0)
