"""What a supply says: log lines, events, and the trouble that its status shows. Each thing once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from headway.core.model import PolicyLoaded, PolicyRejected, PolicyStale
from headway.policy.decide import age_s, is_stale, rank
from headway.policy.document import Compiled
from headway.policy.standing import Standing

log = logging.getLogger("headway.policy")

PolicyEvent: TypeAlias = PolicyLoaded | PolicyRejected | PolicyStale


class Voice:
    """Tells `on_event` and the log. What `on_event` raises is logged and goes no further."""

    def __init__(self, label: str, on_event: Callable[[PolicyEvent], object] | None) -> None:
        self._label = label
        self._on_event = on_event
        self._unreachable: tuple[str, str] | None = None
        self._refused: tuple[str, str] | None = None
        self._stale_told: tuple[int, int] | None = None

    @property
    def trouble(self) -> tuple[str, str] | None:
        """(word, message) of what is wrong now."""
        return self._unreachable or self._refused

    def loaded(self, compiled: Compiled, now: float) -> None:
        """A document is in force."""
        snapshot = compiled.snapshot
        self._refused = None
        for warning in compiled.warnings:
            log.warning("%s", warning)
        self._emit(
            PolicyLoaded(snapshot.policy_id, snapshot.epoch, snapshot.version, snapshot.source, now)
        )

    def unreachable(self, reason: str, message: str, now: float) -> None:
        """The source gave no answer. Told once, however long it lasts."""
        known, self._unreachable = self._unreachable, (reason, message)
        if known is None:
            self._warn(
                "the policy can't be refreshed, the last good one stays: %s", reason, message
            )
            self._emit(PolicyRejected(self._label, reason, message, now))

    def reachable(self) -> None:
        """The source answers."""
        self._unreachable = None

    def refused(self, reason: str, message: str, now: float) -> None:
        """A document was not put in force."""
        known, self._refused = self._refused, (reason, message)
        if known != self._refused:
            self._warn("policy refused, the last good one stays: %s", reason, message)
            self._emit(PolicyRejected(self._label, reason, message, now))

    def content(self) -> None:
        """Nothing is wrong with what the source has."""
        self._refused = None

    def stale(self, standing: Standing, now: float, wall_now: float) -> None:
        """Time has passed: the publisher may no longer vouch for what is in force."""
        snapshot = standing.snapshot
        if snapshot is None or not is_stale(snapshot, wall_now):
            return
        if self._stale_told != rank(snapshot):
            self._stale_told = rank(snapshot)
            age = age_s(snapshot, standing.loaded_at, wall_now)
            log.warning("policy %s is stale: nobody vouches for it any more", rank(snapshot))
            self._emit(PolicyStale(snapshot.policy_id, snapshot.version, age, now))

    def _warn(self, sentence: str, reason: str, message: str) -> None:
        # The fields are those of the log event in OpenTelemetry: one name wherever it is read.
        fields = {
            "headway_event": "headway.policy.rejected",
            "headway.policy.source": self._label,
            "headway.reason": reason,
            "headway.message": message,
        }
        # What a document or a server said may hold anything, but begins no line of its own.
        log.warning(sentence, " ".join(message.splitlines()), extra=fields)

    def _emit(self, event: PolicyEvent) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            log.exception("on_event failed")
