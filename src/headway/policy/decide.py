"""What becomes of an offered document, and what is said of the one in force. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headway.core.snapshot import Snapshot
from headway.policy.document import Order, order


class Verdict(enum.Enum):
    """What becomes of an offered document that is sound in itself."""

    REPLACE = "replace"
    SAME = "same"
    ROLLBACK = "rollback"
    EXPIRED = "expired"


def verdict(
    offered: Snapshot, current: Snapshot | None, mark: tuple[int, int] | None, wall_now: float
) -> Verdict:
    """Does this document replace that one?

    Only upwards of the high-water mark; and a document that has expired never replaces one that
    hasn't (with nothing else to go by it is used, under its own `on_expiry`).
    """
    match order(rank(offered), mark):
        case Order.OLDER:
            return Verdict.ROLLBACK
        case Order.SAME if current is not None and rank(current) == rank(offered):
            return Verdict.SAME
        case _:
            pass
    if current is not None and is_expired(offered, wall_now) and not is_expired(current, wall_now):
        return Verdict.EXPIRED
    return Verdict.REPLACE


def why_not(found: Verdict, offered: Snapshot, mark: tuple[int, int] | None) -> str:
    """Why a document was not put in force, and what its publisher can do."""
    rank_text = f"(epoch, version) {rank(offered)}"
    match found:
        case Verdict.ROLLBACK:
            return (
                f"{rank_text} is older than {mark}, already trusted; "
                "to go back on purpose, raise epoch"
            )
        case Verdict.SAME:
            return f"changed, but still {rank_text}: raise version to put a change in force"
        case _:
            return f"{rank_text} has expired"


def is_stale(snapshot: Snapshot, wall_now: float) -> bool:
    """Whether the publisher has stopped vouching for the load hints."""
    return snapshot.fresh_until is not None and wall_now > snapshot.fresh_until


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
    epoch: int
    policy_id: str
    source: str
    age_s: float
    """Since it was issued, or, when it doesn't say, since it was loaded here."""
    stale: bool
    last_error: str | None
    """Why the newest look at the source brought nothing; None when all is well."""
    warnings: tuple[str, ...] = ()
    """What was forgiven in the document: fields ignored, endpoints left out."""


def age_s(snapshot: Snapshot, loaded_at: float, wall_now: float) -> float:
    """Seconds since a policy was issued or, when it doesn't say, loaded."""
    since = loaded_at if snapshot.issued_at is None else snapshot.issued_at
    return max(wall_now - since, 0.0)


def status_of(
    snapshot: Snapshot | None,
    *,
    source: str,
    loaded_at: float,
    wall_now: float,
    last_error: str | None,
    warnings: tuple[str, ...],
) -> PolicyStatus:
    """The status of a supply whose snapshot (None: not loaded yet) came from `source`."""
    if snapshot is None:
        return PolicyStatus(
            version=0,
            epoch=0,
            policy_id="",
            source=source,
            age_s=0.0,
            stale=False,
            last_error="not loaded yet",
        )
    return PolicyStatus(
        version=snapshot.version,
        epoch=snapshot.epoch,
        policy_id=snapshot.policy_id,
        source=snapshot.source,
        age_s=age_s(snapshot, loaded_at, wall_now),
        stale=is_stale(snapshot, wall_now),
        last_error=last_error,
        warnings=warnings,
    )
