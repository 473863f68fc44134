"""A router's policy: the first snapshot, the ones that follow, and what is known about them."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.snapshot import Snapshot
from headway.credentials import Credential
from headway.errors import FetchError, PolicyError, VerifyError
from headway.hosts import check_patterns
from headway.policy.cache import DiskCache
from headway.policy.decide import PolicyStatus, Verdict, is_expired, takes_part, verdict, why_not
from headway.policy.document import Compiled
from headway.policy.first import (
    bounded_fetch,
    cache_key,
    compile_fetched,
    first_fetch,
    keep,
    newest_local,
    reason_of,
    refuse_unsigned,
)
from headway.policy.pace import Pace
from headway.policy.refresh import refresher
from headway.policy.signing import KeysArgument, SignatureError, keys_of
from headway.policy.sources import (
    Fetched,
    NotModified,
    PolicyArgument,
    PolicySource,
    Unsettled,
    source_for,
)
from headway.policy.standing import Standing, status_of
from headway.policy.trust import Trust
from headway.policy.voice import PolicyEvent, Voice

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
        public_keys: who must have signed the document: key id -> public key, one of them being
            enough, or `PublicKeys(keys, threshold=...)`.
        allow_unsigned: without public keys, a document from another machine is refused unless this
            says that it is meant.
        policy_id: which policy this has to be; None: whichever the source gives first.
        instance: this process's name in rollouts (`rollout` in the document); None: the host's.
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
        public_keys: KeysArgument | None = None,
        allow_unsigned: bool = False,
        policy_id: str | None = None,
        instance: str | None = None,
        on_snapshot: Callable[[Snapshot], object] | None = None,
        on_event: Callable[[PolicyEvent], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        backoff: Callable[[RetryCallState], float] | None = None,
        rng: random.Random | None = None,
        initial_timeout_s: float = INITIAL_TIMEOUT_S,
    ) -> None:
        self._given = argument if isinstance(argument, Snapshot) else None
        self._source = None if isinstance(argument, Snapshot) else source_for(argument)
        self._trust = Trust(
            fetched=self._source is not None and self._source.fetched,
            allowed_hosts=None if allowed_hosts is None else check_patterns(allowed_hosts),
            own_hosts=check_patterns(own_hosts),
            credentials=dict(credentials or {}),
            from_loopback=self._source is not None and self._source.from_loopback,
            keys=keys_of(public_keys),
            policy_id=policy_id,
        )
        if self._trust.keys is None and not allow_unsigned:
            refuse_unsigned(self._source)
        self._zone = zone
        self._instance = socket.gethostname() if instance is None else instance
        self._cache = None if cache_dir is None else DiskCache(cache_dir)
        self._cache_key = cache_key(self._source, policy_id)
        self._on_snapshot = on_snapshot
        self._clock = clock
        self._wall_clock = wall_clock
        self._initial_timeout_s = initial_timeout_s

        self._lock = threading.Lock()  # one step at a time; readers take no lock
        self._generation = -1
        self._closed = False
        self._standing = Standing()
        self._pace = Pace(self._source, rng or random.Random(), backoff)
        self._etag: str | None = None
        self._digest: str | None = None  # of the content last seen, trusted or not
        self._unverified = False  # ... because its signatures were missing
        self._voice = Voice(self._label, on_event)
        if self._follows:
            refresher.adopt(self)

    # ------------------------------------------------------------------ for the router

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot in force; None before `initial`."""
        return self._standing.snapshot

    def initial(self) -> Snapshot:
        """The first snapshot; see the class. Raises PolicyError. Later calls return the current."""
        with self._lock:
            if self._standing.snapshot is None:
                self._begin(self._clock(), self._wall_clock())
            assert self._standing.snapshot is not None
            return self._standing.snapshot

    def ensure_started(self) -> None:
        """Begin background refresh, once per process; a comparison afterwards."""
        if self._generation == refresher.generation:
            return
        self._generation = refresher.generation
        if self._follows and not self._closed:
            if self._standing.snapshot is None:  # else no lock: a fetch may be under way
                self.initial()
            refresher.wake()

    def refresh_once(self, now: float | None = None, wall_now: float | None = None) -> bool:
        """Look at the source once, whether or not it is due; True when a new policy is in force.

        What the background thread does, made callable. Raises nothing.
        """
        now = self._clock() if now is None else now
        wall_now = self._wall_clock() if wall_now is None else wall_now
        with self._lock:
            if self._closed or self._source is None or self._standing.snapshot is None:
                return False
            changed = self._follows and self._look(self._source, now, wall_now)
            changed = self._end_wait(now, wall_now) or changed
            self._voice.stale(self._standing, now, wall_now)
            return changed

    def status(self) -> PolicyStatus:
        """What is known of the policy in force. Takes no lock."""
        return status_of(
            self._standing,
            source=self._label or "none",
            wall_now=self._wall_clock(),
            trouble=self._voice.trouble,
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
        return self._pace.due - self._clock()

    def may_hang(self) -> bool:
        """Whether looking at the source goes over a network."""
        return self._source is not None and self._source.fetched

    def step(self) -> None:
        """Look at the source."""
        self.refresh_once()

    def after_fork(self) -> None:
        """Begin anew in a forked child, at its own pace."""
        self._lock = threading.Lock()
        self._pace.forked(self._clock())

    # ------------------------------------------------------------------ the first snapshot

    @property
    def _label(self) -> str:
        return "" if self._source is None else self._source.label

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
            fetched = first_fetch(self._source, signed=self._trust.keys is not None)
            compiled = self._compile(self._source, fetched, wall_now)
            self._seen(fetched)
            self._install(compiled, now, wall_now)
            self._pace.answered(now)

    def _begin_fetched(self, source: PolicySource, now: float, wall_now: float) -> None:
        local = newest_local(
            source,
            self._cache,
            self._cache_key,
            lambda s, f: self._compile(s, f, wall_now),
            self._instance,
        )
        best, self._standing.mark, self._standing.void = local.compiled, local.mark, local.void
        self._standing.bound = local.bound
        if local.fetched is not None:
            self._seen(local.fetched)
        is_own = local.fetched is not None
        if best is not None and not is_expired(best.snapshot, wall_now):
            self._install(best, now, wall_now, bind=is_own)
            return
        try:
            signed = self._trust.keys is not None
            fetched = bounded_fetch(source, self._initial_timeout_s, signed=signed)
            offer = self._compile(source, fetched, wall_now)
            found = self._verdict(offer, best and best.snapshot, local.bound, wall_now)
            if found is not Verdict.REPLACE and best is None:
                raise VerifyError(
                    why_not(found, offer.snapshot, self._standing.mark), source=source.label
                )
        except PolicyError as exc:
            if best is None:
                raise
            self._install(best, now, wall_now, bind=is_own)
            self._voice.refused(reason_of(exc), str(exc), now)
            return
        self._seen(fetched)
        if found is Verdict.REPLACE:
            self._install(self._warned(offer), now, wall_now)
            keep(self._cache, self._cache_key, self._standing, fetched, self._label)
        elif best is not None:
            self._install(best, now, wall_now, bind=is_own)
        self._pace.answered(now, fetched.fresh_s)

    def _warned(self, offer: Compiled) -> Compiled:
        if takes_part(offer.snapshot, self._instance):
            return offer
        note = (
            f"{offer.snapshot.source}: a version that is being rolled out is used before its turn: "
            "there is no other to start from (give cache_dir=..., or a bootstrap)"
        )
        return offer._replace(warnings=(*offer.warnings, note))

    # ------------------------------------------------------------------ the ones that follow

    def _look(self, source: PolicySource, now: float, wall_now: float) -> bool:
        try:
            got = source.fetch(self._etag, signed=self._trust.keys is not None)
        except FetchError as exc:
            self._pace.failed(now, exc)
            self._voice.unreachable(reason_of(exc), str(exc), now)
            return False
        if isinstance(got, Unsettled):
            self._pace.soon(now, got.again_s)
            return False
        self._voice.reachable()
        self._pace.answered(now, got.fresh_s)
        if isinstance(got, NotModified):
            return False
        seen = self._digest
        self._seen(got)
        if got.digest == seen:
            self._etag = None if self._unverified else self._etag
            return False
        try:
            offer = self._compile(source, got, wall_now)
            self._unverified = False
        except PolicyError as exc:
            self._unverified = isinstance(exc, SignatureError)
            if self._unverified:
                self._etag = None  # its signatures may come later: it has to be asked for again
            self._voice.refused(reason_of(exc), str(exc), now)
            return False
        return self._judge(offer, got, now, wall_now)

    def _verdict(
        self, offer: Compiled, current: Snapshot | None, bound: str | None, wall_now: float
    ) -> Verdict:
        return verdict(
            offer.snapshot,
            current,
            self._standing.mark,
            wall_now,
            bound=bound if self._trust.policy_id is None else None,
            instance=self._instance,
        )

    def _judge(self, offer: Compiled, fetched: Fetched, now: float, wall_now: float) -> bool:
        standing = self._standing
        current = standing.snapshot
        found = self._verdict(offer, current, standing.bound, wall_now)
        standing.held = None
        if found is Verdict.REPLACE:
            self._put_in_force(offer, fetched, now, wall_now)
            return True
        if current is not None and replace(offer.snapshot, source=current.source) == current:
            self._voice.content()  # the one in force, spelled in other bytes
            return False
        why = why_not(found, offer.snapshot, standing.mark)
        if found is Verdict.HELD:
            self._voice.content()  # nothing is wrong with it
            standing.held = offer, fetched
            log.info("policy %s", why)
            return False
        self._voice.refused(found.value, why, now)
        return False

    def _put_in_force(self, offer: Compiled, fetched: Fetched, now: float, wall_now: float) -> None:
        self._install(offer, now, wall_now)
        keep(self._cache, self._cache_key, self._standing, fetched, self._label)
        if self._on_snapshot is not None:
            try:
                self._on_snapshot(offer.snapshot)
            except Exception:
                log.exception("on_snapshot failed")

    def _end_wait(self, now: float, wall_now: float) -> bool:
        """A version that waits for its turn is better than one that has expired."""
        current, held = self._standing.snapshot, self._standing.held
        if held is None or current is None or not is_expired(current, wall_now):
            return False
        self._put_in_force(*held, now, wall_now)
        return True

    def _compile(self, source: PolicySource, fetched: Fetched, wall_now: float) -> Compiled:
        trust = self._trust if source is self._source else replace(self._trust, fetched=False)
        return compile_fetched(source, fetched, trust=trust, zone=self._zone, wall_now=wall_now)

    def _seen(self, fetched: Fetched) -> None:
        self._etag = fetched.etag
        self._digest = fetched.digest

    def _install(
        self, compiled: Compiled, now: float, wall_now: float, *, bind: bool = True
    ) -> None:
        self._standing.take(compiled, wall_now, bind=bind and self._trust.fetched)
        self._voice.loaded(compiled, now)
