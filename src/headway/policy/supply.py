"""A router's policy: the first snapshot, the ones that follow, and what is known about them."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.model import PolicyLoaded, PolicyRejected, PolicyStale
from headway.core.snapshot import Snapshot
from headway.credentials import Credential
from headway.errors import FetchError, PolicyError, VerifyError
from headway.hosts import check_patterns
from headway.policy.cache import DiskCache
from headway.policy.decide import (
    PolicyStatus,
    Verdict,
    age_s,
    is_expired,
    is_stale,
    rank,
    status_of,
    verdict,
    why_not,
)
from headway.policy.document import Compiled
from headway.policy.first import (
    bounded_fetch,
    compile_fetched,
    first_fetch,
    newest_local,
    reason_of,
)
from headway.policy.refresh import default_backoff, failed_wait_s, refresher
from headway.policy.sources import (
    Fetched,
    NotModified,
    PolicyArgument,
    PolicySource,
    UnavailableError,
    source_for,
)
from headway.policy.trust import Trust

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("headway.policy")

INITIAL_TIMEOUT_S = 5.0


class PolicySupply:
    """Everything a router needs of its policy.

    Life: `supply = PolicySupply(argument, ...)` makes no I/O and no thread; `supply.initial()`
    returns the first snapshot or raises; `supply.ensure_started()`, cheap enough to be called on
    every call, begins background refresh once; `supply.close()` ends it. Later snapshots arrive at
    `on_snapshot`, called by the refresh thread (never by a user's call): swap the engine there.

    What `initial` does, by the kind of source:

    - a `Snapshot`, `Policy`, mapping, bytes or file: read and compiled now. A bad first document
      raises PolicyError.
    - http(s): the newest sound document of disk cache and bootstrap, at once, the source being
      asked in the background. With neither (or only an expired one): one fetch that blocks for at
      most `initial_timeout_s` (5 s). It happens here, at the router's construction, because no
      later moment may wait: calls can be on an event loop. If that fails too and there is nothing
      expired to fall back on, FetchError says what to do.

    After that nothing here raises into anybody. A document that can't be had, or can't be trusted,
    leaves the last good one in force, is told once as a `PolicyRejected` event and a log line, and
    stays readable in `status().last_error` until a good one comes.

    Args:
        argument: see `headway.policy.sources.source_for`; also a `Snapshot`, used as it is.
        allowed_hosts: host patterns (`headway.hosts`) that fetched documents may name, and where
            plain http is allowed. None: the hosts of `credentials`, and loopback if the policy is
            fetched from loopback.
        own_hosts: patterns that are always allowed: where the wrapped client sends calls anyway.
        credentials: declared credentials by name. Naming any other makes an endpoint invalid.
        zone: where this process is, for round trips.
        cache_dir: where fetched documents and the high-water mark are kept (None: nowhere).
        public_keys: not available in this version; anything but None is refused.
        on_snapshot, on_event: called with each later snapshot, and each Policy* event, by the
            refresh thread (events of `initial` by its caller). What they raise is logged.
        clock, wall_clock: monotonic seconds and seconds since 1970.
        backoff: a tenacity `wait` object for the time between failing fetches of http sources.
        rng: for jitter; seeded anew in forked children.

    Thread-safe. Tests drive it with `refresh_once(now, wall_now)` and a virtual clock.
    """

    def __init__(
        self,
        argument: PolicyArgument | Snapshot,
        *,
        allowed_hosts: Iterable[str] | None = None,
        own_hosts: Iterable[str] = (),
        credentials: Mapping[str, Credential] | None = None,
        zone: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        public_keys: object = None,
        on_snapshot: Callable[[Snapshot], object] | None = None,
        on_event: Callable[[PolicyLoaded | PolicyRejected | PolicyStale], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        backoff: Callable[[RetryCallState], float] | None = None,
        rng: random.Random | None = None,
        initial_timeout_s: float = INITIAL_TIMEOUT_S,
    ) -> None:
        if public_keys is not None:
            raise VerifyError(
                "signed policies are not available in this version of headway",
                expected="public_keys=None; until then, serve the policy over https",
            )
        self._given = argument if isinstance(argument, Snapshot) else None
        self._source = None if isinstance(argument, Snapshot) else source_for(argument)
        self._trust = Trust(
            fetched=self._source is not None and self._source.fetched,
            allowed_hosts=None if allowed_hosts is None else check_patterns(allowed_hosts),
            own_hosts=check_patterns(own_hosts),
            credentials=dict(credentials or {}),
            from_loopback=self._source is not None and self._source.from_loopback,
        )
        self._zone = zone
        self._cache = None if cache_dir is None else DiskCache(cache_dir)
        self._on_snapshot = on_snapshot
        self._on_event = on_event
        self._clock = clock
        self._wall_clock = wall_clock
        self._backoff = backoff
        self._rng = rng or random.Random()
        self._initial_timeout_s = initial_timeout_s

        self._lock = threading.Lock()  # one step at a time; readers take no lock
        self._generation = -1
        self._closed = False
        self._snapshot: Snapshot | None = None
        self._loaded_at = 0.0
        self._warnings: tuple[str, ...] = ()
        self._mark: tuple[int, int] | None = None
        self._etag: str | None = None
        self._digest: str | None = None  # of the content last seen, trusted or not
        self._due = 0.0
        self._failures = 0
        self._fetch_error: str | None = None
        self._rejection: str | None = None
        self._stale_told: tuple[int, int] | None = None
        if self._source is not None and self._source.interval_s is not None:
            refresher.adopt(self)

    # ------------------------------------------------------------------ for the router

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot in force; None before `initial`."""
        return self._snapshot

    def initial(self) -> Snapshot:
        """The first snapshot; see the class. Raises PolicyError. Later calls return the current."""
        with self._lock:
            if self._snapshot is None:
                self._begin(self._clock(), self._wall_clock())
            assert self._snapshot is not None
            return self._snapshot

    def ensure_started(self) -> None:
        """Begin background refresh, once per process; a comparison afterwards."""
        if self._generation == refresher.generation:
            return
        self._generation = refresher.generation
        if self._follows and not self._closed:
            self.initial()
            refresher.wake()

    def refresh_once(self, now: float | None = None, wall_now: float | None = None) -> bool:
        """Look at the source once, whether or not it is due; True when a new policy is in force.

        What the background thread does, made callable. Raises nothing.
        """
        now = self._clock() if now is None else now
        wall_now = self._wall_clock() if wall_now is None else wall_now
        with self._lock:
            if self._closed or self._source is None or self._snapshot is None:
                return False
            changed = self._follows and self._look(self._source, now, wall_now)
            self._tell_stale(now, wall_now)
            return changed

    def status(self) -> PolicyStatus:
        """What is known of the policy in force. Takes no lock."""
        return status_of(
            self._snapshot,
            source="none" if self._source is None else self._source.label,
            loaded_at=self._loaded_at,
            wall_now=self._wall_clock(),
            last_error=self._fetch_error or self._rejection,
            warnings=self._warnings,
        )

    def close(self) -> None:
        """End background refresh. The last snapshot stays usable; closing twice is harmless."""
        self._closed = True
        refresher.notice()

    # ------------------------------------------------------------------ for the refresh thread

    def is_active(self) -> bool:
        """Whether background refresh is wanted in this process."""
        return not self._closed and self._follows and self._generation == refresher.generation

    def due_in_s(self) -> float:
        """Seconds until the source is looked at next."""
        return self._due - self._clock()

    def step(self) -> None:
        """Look at the source."""
        self.refresh_once()

    def after_fork(self) -> None:
        """Begin anew in a forked child, at its own pace."""
        self._lock = threading.Lock()
        self._rng.seed()
        # Children forked together must not ask together.
        self._due = self._clock() + self._interval_s() * self._rng.random()

    # ------------------------------------------------------------------ the first snapshot

    @property
    def _follows(self) -> bool:
        return self._source is not None and self._source.interval_s is not None

    def _begin(self, now: float, wall_now: float) -> None:
        if self._source is None:
            assert self._given is not None
            self._install(Compiled(self._given), now, wall_now)
        elif self._source.fetched:
            self._begin_fetched(self._source, now, wall_now)
        else:
            fetched = first_fetch(self._source)
            compiled = self._compile(self._source, fetched, wall_now)
            self._seen(fetched)
            self._install(compiled, now, wall_now)
            self._due = now + self._interval_s()

    def _begin_fetched(self, source: PolicySource, now: float, wall_now: float) -> None:
        local = newest_local(source, self._cache, lambda s, f: self._compile(s, f, wall_now))
        best, self._mark = local.compiled, local.mark
        if local.fetched is not None:
            self._seen(local.fetched)
        if best is not None and not is_expired(best.snapshot, wall_now):
            self._install(best, now, wall_now)
            return
        try:
            fetched = bounded_fetch(source, self._initial_timeout_s)
            offer = self._compile(source, fetched, wall_now)
            found = verdict(offer.snapshot, best and best.snapshot, self._mark, wall_now)
            if found is not Verdict.REPLACE and best is None:
                raise VerifyError(why_not(found, offer.snapshot, self._mark), source=source.label)
        except PolicyError as exc:
            if best is None:
                raise
            self._install(best, now, wall_now)
            self._reject(reason_of(exc), str(exc), now)
            return
        self._seen(fetched)
        if found is Verdict.REPLACE:
            self._install(offer, now, wall_now)
            self._keep(fetched)
        elif best is not None:
            self._install(best, now, wall_now)
        self._due = now + self._interval_s()

    # ------------------------------------------------------------------ the ones that follow

    def _look(self, source: PolicySource, now: float, wall_now: float) -> bool:
        try:
            got = source.fetch(self._etag)
        except FetchError as exc:
            self._failures += 1
            self._due = now + self._failed_wait_s(exc)
            known, self._fetch_error = self._fetch_error, str(exc)
            if known is None:  # told once, however long it lasts
                log.warning("the policy can't be refreshed, the last good one stays: %s", exc)
                self._emit(PolicyRejected(source.label, reason_of(exc), str(exc), now))
            return False
        self._failures = 0
        self._fetch_error = None
        self._due = now + self._interval_s()
        if isinstance(got, NotModified):
            return False
        seen = self._digest
        self._seen(got)
        if got.digest == seen:
            return False
        try:
            offer = self._compile(source, got, wall_now)
        except PolicyError as exc:
            self._reject("invalid", str(exc), now)
            return False
        return self._judge(offer, got, now, wall_now)

    def _judge(self, offer: Compiled, fetched: Fetched, now: float, wall_now: float) -> bool:
        current = self._snapshot
        found = verdict(offer.snapshot, current, self._mark, wall_now)
        if found is Verdict.REPLACE:
            self._install(offer, now, wall_now)
            self._keep(fetched)
            if self._on_snapshot is not None:
                try:
                    self._on_snapshot(offer.snapshot)
                except Exception:
                    log.exception("on_snapshot failed")
            return True
        if current is not None and replace(offer.snapshot, source=current.source) == current:
            self._rejection = None  # the one in force, spelled in other bytes
            return False
        self._reject(found.value, why_not(found, offer.snapshot, self._mark), now)
        return False

    def _compile(self, source: PolicySource, fetched: Fetched, wall_now: float) -> Compiled:
        trust = self._trust if source is self._source else replace(self._trust, fetched=False)
        return compile_fetched(source, fetched, trust=trust, zone=self._zone, wall_now=wall_now)

    def _seen(self, fetched: Fetched) -> None:
        self._etag = fetched.etag
        self._digest = fetched.digest

    def _install(self, compiled: Compiled, now: float, wall_now: float) -> None:
        snapshot = compiled.snapshot
        self._snapshot = snapshot
        self._warnings = compiled.warnings
        self._loaded_at = wall_now
        self._rejection = None
        self._mark = max(self._mark or rank(snapshot), rank(snapshot))
        for warning in compiled.warnings:
            log.warning("%s", warning)
        self._emit(
            PolicyLoaded(snapshot.policy_id, snapshot.epoch, snapshot.version, snapshot.source, now)
        )

    def _keep(self, fetched: Fetched) -> None:
        source = self._source
        if self._cache is None or source is None or source.cache_key is None or not self._mark:
            return
        self._cache.store(
            source.cache_key,
            fetched.content,
            format=fetched.format,
            etag=fetched.etag,
            mark=self._mark,
            label=source.label,
        )

    def _reject(self, reason: str, message: str, now: float) -> None:
        label = "" if self._source is None else self._source.label
        log.warning("policy refused, the last good one stays: %s", message)
        self._rejection = message
        self._emit(PolicyRejected(label, reason, message, now))

    def _tell_stale(self, now: float, wall_now: float) -> None:
        snapshot = self._snapshot
        if snapshot is None or not is_stale(snapshot, wall_now):
            return
        if self._stale_told == rank(snapshot):
            return
        self._stale_told = rank(snapshot)
        age = age_s(snapshot, self._loaded_at, wall_now)
        log.warning("policy %s is stale: past fresh_until", rank(snapshot))
        self._emit(PolicyStale(snapshot.policy_id, snapshot.version, age, now))

    def _emit(self, event: PolicyLoaded | PolicyRejected | PolicyStale) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            log.exception("on_event failed")

    def _interval_s(self) -> float:
        source = self._source
        if source is None or source.interval_s is None:
            return 0.0
        return source.interval_s * (1.0 + source.jitter * (2.0 * self._rng.random() - 1.0))

    def _failed_wait_s(self, exc: FetchError) -> float:
        if self._source is None or not self._source.fetched:
            return self._interval_s()
        if self._backoff is None:
            self._backoff = default_backoff()
        wait_s = failed_wait_s(self._backoff, self._failures)
        hint_s = exc.retry_after_s if isinstance(exc, UnavailableError) else None
        return wait_s if hint_s is None else max(wait_s, hint_s)
