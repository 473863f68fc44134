"""The thread that asks a fleet's store for a router, so that no call does.

Started by the first call, never at construction; a daemon, gone soon after its router is closed,
collected, or idle. A forked child starts its own.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headway.core.fleet import Loan
from headway.core.model import FleetStoreChanged
from headway.core.purse import Claim, Grant
from headway.shared_state.store import RateStore, SpendStore

if TYPE_CHECKING:
    from headway.core.engine import Engine
    from headway.core.fleet import Want
    from headway.core.model import Sink
    from headway.record import Tenants

log = logging.getLogger("headway")

THREAD_NAME = "headway-fleet"
EVERY_S = 0.1
"""Between two loans. A call that finds the balance empty waits this long, or less."""
JITTER = 0.5
"""A turn comes this part of the time earlier or later. Where a fleet wants all that there is, each
process gets what has accrued since the one before it asked: in a fixed order always the same."""
VALID_S = 2.0
"""A loan that is not followed by another in this time no longer rules: the own share does. What a
busy machine delays is not lost: a store that can't be asked is told of at once."""
LOST_EVERY_S = 1.0
"""Between two attempts while the store can't be asked."""
IDLE_S = 60.0
"""With nothing to borrow for this long the thread ends; the next call starts another."""


class FleetStatus(NamedTuple):
    """How rates are shared, as of now."""

    is_reachable: bool | None
    """Whether the store answered last time; None: not asked yet."""
    since_s: float | None
    """For how long that has been so."""
    reason: str
    """What went wrong, "" where nothing did."""


class FleetKeeper:
    """Borrows for one engine from one store, and has it count what tenants spend.

    `step` is one turn and may be called by a driver of one's own (a simulator, a test).
    """

    def __init__(
        self,
        engine: Engine,
        store: RateStore,
        *,
        clock: Callable[[], float],
        on_event: Sink,
        tenants: Tenants | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._tenants = tenants
        self._spend = store if isinstance(store, SpendStore) else None
        self._clock = clock
        self._on_event = on_event
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._is_reachable: bool | None = None
        self._changed_at = 0.0
        self._reason = ""
        self._borrowed_at = clock()

    def status(self) -> FleetStatus:
        """What is known of the store."""
        since = None if self._is_reachable is None else self._clock() - self._changed_at
        return FleetStatus(self._is_reachable, since, self._reason)

    def ensure_started(self) -> None:
        """Start the thread, unless it runs. Called as each call begins: one attribute test."""
        if self._thread is None and not self._stop.is_set():
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return  # another call was first
            ref = weakref.ref(self)
            thread = threading.Thread(target=_run, args=(ref, self._stop), name=THREAD_NAME)
            thread.daemon = True
            self._borrowed_at = self._clock()
            try:
                thread.start()
            except RuntimeError as exc:  # no threads left, or the interpreter is ending
                log.warning("rates are not shared with the fleet: %s", exc)
                return
            self._thread = thread

    def step(self) -> float | None:
        """Ask once; seconds until the next turn, or None when there is no need for one."""
        engine, now = self._engine, self._clock()
        wants = engine.wants(now)
        claims = self._claims(now)
        if not (wants or claims):
            if self._is_reachable:
                engine.lend((), now, next_s=EVERY_S, valid_s=VALID_S)
            return EVERY_S if now - self._borrowed_at < IDLE_S else None
        self._borrowed_at = now
        try:
            loans = _checked(self._store.lend(wants), wants) if wants else []
            asked_at, now = now, self._clock()
            if now - asked_at > VALID_S:
                engine.lose()  # by then the own share held, and what it gave is not owed
            if wants or self._is_reachable:
                engine.lend(loans, now, next_s=EVERY_S, valid_s=VALID_S)
            if claims:
                self._claim(claims)
        except Exception as exc:  # noqa: BLE001 - whatever a store raises
            engine.lose()
            if self._tenants is not None:
                self._tenants.lose()
            self._note(False, type(exc).__name__, now)
            return LOST_EVERY_S
        self._note(True, "", now)
        return EVERY_S

    def _claims(self, now: float, *, closing: bool = False) -> list[Claim]:
        if self._tenants is None or self._spend is None:
            return []
        return self._tenants.claims(now, closing=closing)

    def _claim(self, claims: list[Claim]) -> None:
        if self._tenants is not None and self._spend is not None:
            grants = _granted(self._spend.claim(claims), claims)
            self._tenants.grant(grants, self._clock())

    def close(self) -> None:
        """Borrow no more."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)
        with contextlib.suppress(Exception):
            # What was set aside and not used is the others', who would wait for it until tomorrow.
            if self._is_reachable and (claims := self._claims(self._clock(), closing=True)):
                self._claim(claims)
        with contextlib.suppress(Exception):
            self._store.close()

    def after_fork(self) -> None:
        """In a forked child: the thread lives on in the parent only."""
        self._lock = threading.Lock()
        was_closed = self._stop.is_set()
        self._stop = threading.Event()
        if was_closed:
            self._stop.set()
        self._thread = None
        self._store.after_fork()

    def rest(self) -> None:
        """The thread ends for want of work; the next call starts another."""
        with self._lock:
            self._thread = None

    def _note(self, is_reachable: bool, reason: str, now: float) -> None:
        if self._is_reachable is is_reachable:
            self._reason = reason
            return
        first = self._is_reachable is None
        self._is_reachable, self._reason, self._changed_at = is_reachable, reason, now
        if not (first and is_reachable):
            self._on_event(FleetStoreChanged(is_reachable, reason, now))


def _checked(loans: Sequence[Loan], wants: Sequence[Want]) -> list[Loan]:
    """What a store says that it lent, but never more than was wanted. Raises for what is no loan:
    one bad number in a balance would hold calls back for ever, or none."""
    wanted = {(want.endpoint_id, want.kind): want.amount for want in wants}
    found: list[Loan] = []
    for endpoint_id, kind, amount in loans:
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"the store lent {amount!r}")
        most = wanted.get((endpoint_id, kind), 0.0)
        found.append(Loan(endpoint_id, kind, min(amount, most)))
    return found


def _granted(grants: Sequence[Grant], claims: Sequence[Claim]) -> list[Grant]:
    """What a store says that it granted. Raises for what is no answer to these claims."""
    asked = {claim.part: claim for claim in claims}
    found: list[Grant] = []
    for grant in grants:
        claim = asked[grant.part]
        window, ahead, left = int(grant.window), int(grant.ahead), int(grant.left)
        if not 0 <= ahead <= claim.ahead or left > claim.limit:
            raise ValueError(f"the store granted {ahead} and left {left}")
        if not 0 <= grant.ends_in_s <= 2 * claim.period_s:
            raise ValueError(f"the store's period ends in {grant.ends_in_s!r} s")
        found.append(grant._replace(window=window, ahead=ahead, left=left))
    return found


def _run(ref: weakref.ref[FleetKeeper], stop: threading.Event) -> None:
    # Holds the keeper only while it works: a router that is forgotten takes its thread with it.
    while not stop.is_set():
        keeper = ref()
        if keeper is None:
            return
        try:
            wait_s = keeper.step()
        except Exception:
            log.exception("asking the fleet's store failed")
            wait_s = LOST_EVERY_S
        except BaseException:
            keeper.rest()
            raise
        if wait_s is None:
            keeper.rest()
            return
        del keeper
        stop.wait(wait_s * random.uniform(1.0 - JITTER, 1.0 + JITTER))
