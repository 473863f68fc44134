"""What a supply has in force and has come to trust, and how that is shown."""

from __future__ import annotations

from headway.core.snapshot import Snapshot
from headway.policy.decide import PolicyStatus, age_s, is_expired, is_stale, rank
from headway.policy.document import Compiled
from headway.policy.sources import Fetched


class Standing:
    """What a supply has in force, and what it has come to trust. Read without a lock: each field is
    one reference."""

    __slots__ = (
        "bound",
        "held",
        "loaded_at",
        "mark",
        "signed_by",
        "snapshot",
        "void",
        "warnings",
    )

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.warnings: tuple[str, ...] = ()
        self.signed_by: tuple[str, ...] = ()
        self.loaded_at = 0.0
        self.mark: tuple[int, int] | None = None
        """The highest (epoch, version) trusted."""
        self.void: tuple[int, int] | None = None
        """A mark on the disk that counts no longer."""
        self.bound: str | None = None
        """The id of the policy that the source has given so far."""
        self.held: tuple[Compiled, Fetched] | None = None
        """A sound document that waits for its turn."""

    def take(self, compiled: Compiled, wall_now: float, *, bind: bool) -> None:
        """Put a document in force; `bind`: the source gave it, so it says which policy that is."""
        snapshot = compiled.snapshot
        self.warnings = compiled.warnings
        self.signed_by = compiled.signed_by
        self.loaded_at = wall_now
        self.mark = max(self.mark or rank(snapshot), rank(snapshot))
        self.held = None
        if bind:
            self.bound = snapshot.policy_id
        self.snapshot = snapshot


def status_of(
    standing: Standing, *, source: str, wall_now: float, trouble: tuple[str, str] | None
) -> PolicyStatus:
    """The status of a supply; `trouble`: (word, message) of what is wrong with its source."""
    snapshot = standing.snapshot
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
        age_s=age_s(snapshot, standing.loaded_at, wall_now),
        stale=is_stale(snapshot, wall_now),
        last_error=None if trouble is None else trouble[1],
        warnings=standing.warnings,
        expired=is_expired(snapshot, wall_now),
        last_reason=None if trouble is None else trouble[0],
        signed_by=standing.signed_by,
        held=None if standing.held is None else rank(standing.held[0].snapshot),
    )
