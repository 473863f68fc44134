# long: one public class: its parameters, and what the transports ask of it
"""Router: the state of one process, shared by any number of clients.

It owns the engine (decisions), the policy supply (where decisions come from), the books (what calls
cost) and the telemetry, and hands them to the transports through one small port. It does no I/O of
its own and starts no thread before the first call.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from headway import tasklog
from headway import telemetry as telemetries
from headway.core.engine import Engine
from headway.core.model import (
    AttemptEnded,
    AttemptStarted,
    CallDequeued,
    CallEnded,
    CallFacts,
    CallQueued,
    CallRejected,
    Event,
    FirstToken,
    RetryDenied,
    Rng,
    Sink,
)
from headway.core.snapshot import Endpoint, Snapshot
from headway.core.views import EndpointStatus, Explanation, PoolStatus, VersionStatus
from headway.cost import ZERO, Pricer
from headway.credentials import Credential, credential_named
from headway.errors import HeadwayError
from headway.legible import status_text, unrouted
from headway.policy.builtin import pass_through
from headway.policy.decide import PolicyStatus
from headway.policy.supply import PolicySupply
from headway.record import Books, CallRecord, ObservedCalls, Tenants, TenantStatus
from headway.share.board import Board
from headway.share.shelf import Shelf
from headway.task import current_scope
from headway.task.observe import is_disabled
from headway.transport import body as bodies
from headway.transport.pins import PinMap
from headway.transport.signer import Signer, signers_of, with_signers

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from headway.client import EndpointClients
    from headway.policy.signing import PublicKeys
    from headway.policy.sources import PolicyArgument
    from headway.shared_state import FleetKeeper, FleetStatus

_log = logging.getLogger("headway")
_ClientT = TypeVar("_ClientT", bound="OpenAI | AsyncOpenAI")

MODES = ("enforce", "observe")
NOWHERE = "https://headway.invalid/"
WARNINGS_MAX = 64
"""Unknown names that are warned of, once each; more than these are made up as the calls go."""
_RECORDED: frozenset[type[Event]] = frozenset(
    {AttemptStarted, FirstToken, AttemptEnded, RetryDenied, CallQueued, CallDequeued, CallEnded}
)
"""Events that a call's record takes; the process's telemetry has no use for them."""


class RouterStatus(NamedTuple):
    """What this process knows and does, for people and dashboards."""

    mode: str
    """enforce | observe"""
    disabled: bool
    """HEADWAY_DISABLED was set."""
    policy: PolicyStatus
    """What is in force, how old it is, and what is wrong with its source."""
    endpoints: tuple[EndpointStatus, ...]
    """Every endpoint of the policy, in its order."""
    pools: tuple[PoolStatus, ...]
    """Every route that was used."""
    observed: ObservedCalls
    """Calls in observe mode, and how often Headway would have done otherwise."""
    versions: tuple[VersionStatus, ...]
    """The latest versions of the policy, the one in force first, and the calls begun under each."""
    fleet: FleetStatus | None = None
    """How the fleet's rates are shared; None without `shared_state`."""
    tenants: tuple[TenantStatus, ...] = ()
    """Tenants with a budget that had calls here."""

    def __str__(self) -> str:
        return status_text(self)


class Router:
    """Routes the calls of wrapped clients by one policy.

    Args:
        policy: a path, a URL (http(s), or of an object store), `env:NAME`, `package:NAME/FILE`, a
            `Policy`, a dict, JSON as text or bytes, or a compiled snapshot.
        mode: "enforce", or "observe": leave every call as the plain client makes it, and record
            what would have been done.
        zone: where this process runs; selects weights and round-trip times.
        credentials: name -> `Credential`; a document can only name them.
        clients: name -> a client of the SDK that is an endpoint of its own: it brings its key, or
            signs each request (Azure, Bedrock, Vertex), and sends through its own http client. For
            endpoints that name it as their credential, or are called like it. A list of two gives
            a sync and an async one.
        allowed_hosts: host patterns a fetched document may send calls to; None: those of
            `credentials` and `clients`.
        own_hosts: hosts that are always allowed: `wrap` puts the client's own here.
        public_keys: who must have signed the document: key id -> Ed25519 public key, one of them
            being enough, or `PublicKeys`. Needs `headway[signing]`.
        allow_unsigned: accept a document from another machine that nobody has to sign. Without this
            or `public_keys` such a policy is refused.
        policy_id: which policy the document has to be a version of; None: whichever comes first.
        instance: this process's name in rollouts; None: HEADWAY_INSTANCE, else the host's name.
        cache_dir: where the last good document is kept across restarts; None keeps none.
        shared_state: where a whole fleet's rates and its tenants' spending are counted: a Redis or
            Valkey URL ("headway[redis]"), or a `headway.shared_state.RateStore`; None: `shares`
            divide them.
        response_cache: where routes that say `cache` keep answers: None (memory of this process), a
            mutable mapping such as `cachetools.TTLCache`, or a Redis URL ("headway[redis]").
        on_event: receives every event (`headway.events`) after the decision; what it raises is
            logged and goes no further.
        clock: monotonic seconds; `clock.wall()`, if there is one, gives Unix seconds.
        rng: the random source; `random.Random(seed)` makes decisions reproducible.

    Where HEADWAY_DISABLED is set (to 1, true, yes or on) as the router is made, the policy is not
    even read, and calls pass as if there were no router.

    Raises:
        PolicyError: the first document is bad, or cannot be had and nothing is cached.
        HeadwayError: an argument makes no sense.
    """

    def __init__(  # long: one argument a line
        self,
        policy: PolicyArgument | Snapshot,
        *,
        mode: str = "enforce",
        zone: str | None = None,
        credentials: Mapping[str, Credential] | None = None,
        clients: Mapping[str, EndpointClients] | None = None,
        allowed_hosts: Sequence[str] | None = None,
        own_hosts: Sequence[str] = (),
        public_keys: PublicKeys | Mapping[str, str | bytes] | None = None,
        allow_unsigned: bool = False,
        policy_id: str | None = None,
        instance: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        shared_state: object | None = None,
        response_cache: MutableMapping[str, bytes] | str | None = None,
        on_event: Sink | None = None,
        clock: Callable[[], float] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if mode not in MODES:
            raise HeadwayError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
        self.mode = mode
        self.disabled = is_disabled()
        self.clock: Callable[[], float] = clock if clock is not None else time.monotonic
        self.wall_clock: Callable[[], float] = getattr(clock, "wall", time.time)
        self.rng: Rng = rng if rng is not None else random.Random()
        self.pins = PinMap()
        self._signers = signers_of(clients or {})
        self._credentials = with_signers(credentials or {}, self._signers)
        self.board = Board()
        self.shelf = self._new_shelf(response_cache)
        self._hook = on_event
        self._is_closed = False
        tasklog.ensure_installed()
        self._telemetry = telemetries.telemetry()
        self._books = Books(
            pricer=Pricer(on_unknown=self._telemetry.price_unknown),
            observer=self._telemetry,
            mode=mode,
        )
        self._tenants = Tenants(self._books.pricer, self.clock, self.wall_clock)
        # Whoever switches Headway off must not depend on its policy being there, sound or signed.
        self._supply = PolicySupply(
            pass_through(NOWHERE) if self.disabled else policy,
            allowed_hosts=allowed_hosts,
            own_hosts=own_hosts,
            public_keys=None if self.disabled else public_keys,
            allow_unsigned=allow_unsigned,
            policy_id=policy_id,
            instance=instance or os.environ.get("HEADWAY_INSTANCE") or None,
            credentials=self._credentials,
            zone=zone,
            cache_dir=cache_dir,
            on_snapshot=self._adopt,
            on_event=self._on_event,
            clock=self.clock,
            wall_clock=self.wall_clock,
        )
        self.engine = Engine(
            self._supply.initial(),
            zone=zone,
            rng=self.rng,
            lock=threading.Lock(),
            on_event=self._on_event,
            quiet=_RECORDED if on_event is None else frozenset(),
            in_fleet=shared_state is not None,
        )
        self._keeper: FleetKeeper | None = None
        if shared_state is not None:
            from headway.shared_state import keeper_for

            self._keeper = keeper_for(
                shared_state, self.engine, self.clock, self._on_event, self._tenants
            )
        self._warned: set[tuple[str, str]] = set()
        self._telemetry.watch_router(self)
        _routers.add(self)

    def __repr__(self) -> str:
        snapshot = self.engine.snapshot
        return (
            f"<headway.Router {snapshot.policy_id!r} version {snapshot.version} "
            f"({len(snapshot.endpoints)} endpoint{'s' * (len(snapshot.endpoints) != 1)}, "
            f"{self.mode})>"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- for applications

    def wrap(self, client: _ClientT) -> _ClientT:
        """A copy of `client`, of the same class, whose calls this router manages."""
        from headway.client import wrap

        return wrap(client, router=self)

    def status(self) -> RouterStatus:
        """Endpoints, breakers, in-flight, budgets and the policy's age, as of now."""
        now = self.clock()
        return RouterStatus(
            self.mode,
            self.disabled,
            self._supply.status(),
            self.engine.status(now),
            self.engine.pools(now),
            self._books.observed,
            self.engine.versions(),
            None if self._keeper is None else self._keeper.status(),
            self._tenants.status(now),
        )

    def explain(
        self,
        *,
        model: str,
        prompt: str | Sequence[Mapping[str, Any]] = "",
        surface: str = "chat",
        session: str | None = None,
        task: str | None = None,
        traffic_class: str | None = None,
        max_output_tokens: int | None = None,
    ) -> Explanation:
        """Why a call would go to A and not to B: candidates, score terms, filters. Sends nothing.

        `prompt` is a user message or a whole `messages` list. Where no route matches, `route` is
        None, and `why` says what becomes of such a call and which models' names are near.
        """
        body = _body_of(model, prompt)
        peeked = bodies.peek(body, surface)
        facts = CallFacts(
            model=model,
            surface=surface,
            session=session,
            task_name=task,
            traffic_class=traffic_class,
            prompt_tokens=peeked.prompt_tokens_estimate,
            prefix=bodies.prefix_hashes(body, peeked),
            max_output_tokens=max_output_tokens,
        )
        found = self.engine.explain(facts, self.clock())
        if found.route is not None:
            return found
        return found._replace(why=unrouted(model, surface, self.engine.snapshot))

    def take_retry(self, model: str | None = None) -> bool:
        """Take one token for a retry that the application makes itself; False: don't.

        See `headway.tenacity`. Without a model the poorest pool answers.
        """
        return self.engine.take_retry(self.clock(), model=model)

    def close(self) -> None:
        """Stop refreshing the policy. Clients keep working on the snapshot they have."""
        if not self._is_closed:
            self._is_closed = True
            self._supply.close()
            if self._keeper is not None:
                self._keeper.close()
            self.shelf.close()

    # -- for the transports (see headway.transport.ports.CallHost)

    def open_call(
        self, facts: CallFacts, *, earlier: CallRecord | None = None, is_exempt: bool = False
    ) -> CallRecord:
        """Start the accounts of a call in the current task and trace context, or go on with the
        `earlier` ones of a call that the SDK sends again.

        Raises `TaskLimitExceeded` or `DeadlineExceeded` when a cap of the task, or the budget of
        the call's tenant, forbids it; an exempt call is only counted.
        """
        if facts.traffic_class is not None:
            self._rank(facts, facts.traffic_class)
        if facts.route is not None and self.engine.snapshot.route_named(facts.route) is None:
            self._warn_once(
                "no route of the policy is named %r: such calls pass through untouched", facts.route
            )
        snapshot = self.engine.snapshot
        if earlier is not None or not snapshot.tenants:
            return self._books.open_call(facts, self.clock(), earlier=earlier, is_exempt=is_exempt)
        return self._open_for_tenant(facts, snapshot, is_exempt=is_exempt)

    def is_unwatched(self) -> bool:
        """Whether nobody wants to know of single calls."""
        return self._hook is None and self._telemetry.is_idle()

    def credential_for(self, endpoint: Endpoint) -> Credential | None:
        """The declared credential of an endpoint; None: the client's own key, own host only."""
        if endpoint.credential is None:
            return None
        return credential_named(endpoint.credential, endpoint.base_url, self._credentials)

    def signer_for(self, endpoint: Endpoint, *, is_async: bool) -> Signer | None:
        """The client that is this endpoint, of this colour if there is one; None: a key will do."""
        found = self._signers.get(endpoint.credential or endpoint.id)
        return None if found is None else found.get(is_async) or found[not is_async]

    def ensure_started(self) -> None:
        """Start the policy refresh, at the first call and again after a fork."""
        if not self._is_closed:
            self._supply.ensure_started()
            if self._keeper is not None and not self.disabled:
                self._keeper.ensure_started()

    # -- for the gauges (see headway.telemetry.metrics.Gauged)

    def breaker_states(self) -> tuple[tuple[str, str], ...]:
        """(endpoint id, closed | half_open | open)."""
        return self.engine.breaker_states()

    def budget_tokens(self) -> tuple[tuple[str, float], ...]:
        """(pool, extra attempts allowed now)."""
        return tuple((p.route, p.retry_budget) for p in self.engine.pools(self.clock()))

    def policy_age_s(self) -> float | None:
        """Seconds since the policy in force was issued, or else loaded."""
        return self._supply.status().age_s

    # -- inside

    def _open_for_tenant(
        self, facts: CallFacts, snapshot: Snapshot, *, is_exempt: bool
    ) -> CallRecord:
        now, tenant = self.clock(), current_scope().options.tenant
        reserved = None
        if tenant is not None:
            reserved = self._tenants.reserve(tenant, snapshot, facts, now, anyway=is_exempt)
        try:
            record = self._books.open_call(facts, now, is_exempt=is_exempt)
        except BaseException:
            if reserved is not None:
                reserved.settle(ZERO)
            raise
        record.reserved = reserved
        return record

    def _new_shelf(self, wanted: object) -> Shelf:
        try:
            return Shelf(wanted, clock=self.clock, wall_clock=self.wall_clock)
        except ValueError as exc:
            raise HeadwayError(f"response_cache: {exc}") from None

    def _warn_once(self, text: str, name: str) -> None:
        told = (text, name)
        if told not in self._warned and len(self._warned) < WARNINGS_MAX:
            self._warned.add(told)
            _log.warning(text, name)

    def _rank(self, facts: CallFacts, name: str) -> None:
        """A class brings its priority, unless the application gave a number, too."""
        found = self.engine.snapshot.classes.get(name)
        if found is None:
            self._warn_once(
                "priority %r names no class of the policy: such calls have priority 0", name
            )
        elif current_scope().options.priority is None:
            facts.priority = found.priority

    def _adopt(self, snapshot: Snapshot) -> None:
        self.engine.swap(snapshot, self.clock(), holding=self.pins.endpoint_ids())

    def _on_event(self, event: Event) -> None:
        if type(event) not in _RECORDED and not _is_only_observed(event, self.mode):
            try:
                self._telemetry.on_event(event)
            except Exception:  # noqa: BLE001 - whatever an exporter raises
                _log.exception("headway: telemetry failed to take an event; the call goes on")
        if self._hook is not None:
            try:
                self._hook(event)
            except Exception:  # noqa: BLE001 - whatever a user's hook raises
                _log.exception("headway: on_event hook failed; the call goes on")

    def _after_fork(self) -> None:
        # The parent may have held the lock at the fork, and jitter must differ from the parent's.
        self.rng = random.Random() if isinstance(self.rng, random.Random) else self.rng
        self.engine.after_fork(threading.Lock(), self.rng)
        self._tenants.after_fork()
        if self._keeper is not None:
            self._keeper.after_fork()
        self._supply.after_fork()
        self._books.after_fork()
        self.pins.after_fork()
        self.board = Board()  # the parent's requests are answered there
        self.shelf.after_fork()


def _is_only_observed(event: Event, mode: str) -> bool:
    """A refusal that was none: the call went on, and is only told what would have been."""
    return isinstance(event, CallRejected) and (event.mode or mode) == "observe"


def _body_of(model: str, prompt: str | Sequence[Mapping[str, Any]]) -> bytes:
    """The request body the SDK would write: prefix hashes are taken over its very bytes."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    body = {"model": model, "messages": messages}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


_routers: weakref.WeakSet[Router] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for router in list(_routers):
        router._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
