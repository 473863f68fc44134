"""A supply under a virtual clock."""

from __future__ import annotations

import random
from typing import Any

from headway.core.model import Event, PolicyRejected
from headway.core.snapshot import Snapshot
from headway.policy.sources import NotModified, PolicySource, Reply
from headway.policy.supply import PolicySupply
from tests.policy.samples import CREDENTIALS, document, encoded

HOSTS = ["a.example", "b.example", "c.example"]
WALL = 1796036400.0  # 2026-11-30T11:00:00Z


class Remote(PolicySource):
    """A scripted remote source."""

    label = "remote"
    interval_s = 30.0
    jitter = 0.2
    cache_key = "remote"

    def __init__(self) -> None:
        self.content: bytes | Exception = encoded(document())
        self.reads = 0
        self.etag: str | None = None

    def read(self, etag: str | None) -> Reply | NotModified:
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        if self.etag is not None and etag == self.etag:
            return NotModified()
        return Reply([self.content], etag=self.etag)


class Bench:
    """A supply under a virtual clock, and what it told."""

    def __init__(self, argument: Any, **options: Any) -> None:
        self.now = 100.0
        self.wall_now = WALL
        self.events: list[Event] = []
        self.snapshots: list[Snapshot] = []
        defaults: dict[str, Any] = {
            "credentials": CREDENTIALS,
            "allowed_hosts": HOSTS,
            "allow_unsigned": True,
        }
        self.supply = PolicySupply(
            argument,
            clock=lambda: self.now,
            wall_clock=lambda: self.wall_now,
            on_event=self.events.append,
            on_snapshot=self.snapshots.append,
            rng=random.Random(7),
            **(defaults | options),
        )

    def later(self, seconds: float) -> bool:
        self.now += seconds
        self.wall_now += seconds
        return self.supply.refresh_once(self.now, self.wall_now)

    @property
    def version(self) -> int:
        return self.supply.status().version

    def reasons(self) -> list[str]:
        return [e.reason for e in self.events if isinstance(e, PolicyRejected)]
