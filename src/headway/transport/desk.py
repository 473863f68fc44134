"""Where requests come in: which are managed, which are bound to an endpoint, which just pass.

Shared by the sync and the async transport of one client. Everything that isn't recognised passes
through as the same Request object: foreign origins, redirect hops, unmanaged paths.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from headway.core.engine import route_of
from headway.core.model import CallFacts, Rejection
from headway.errors import DeadlineExceeded, TaskLimitExceeded
from headway.task import current_scope, unanswered
from headway.transport import body as bodies
from headway.transport.aim import Aim, Shot
from headway.transport.flight import Flight, Intake
from headway.transport.form import Form
from headway.transport.glance import in_memory
from headway.transport.home import Origin, Place
from headway.transport.overheard import Ear, is_told
from headway.transport.pins import ids_in_document, ids_in_response
from headway.transport.redirects import BARE, HOP, REDIRECTS, bare, forbidden, guarded
from headway.transport.resends import sends_before
from headway.transport.surfaces import Surface, classify_request, refine

if TYPE_CHECKING:
    import httpx2

    from headway.core.light import LightCall
    from headway.core.snapshot import Endpoint, Snapshot
    from headway.record import CallRecord
    from headway.task.unanswered import Unanswered
    from headway.transport.home import Home
    from headway.transport.ports import CallHost

logger = logging.getLogger("headway")

WARM_S = 300.0
"""A connection to an origin that answered this recently may be one that the server has closed."""
WARM_MAX = 1024
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
UNROUTED_MAX = 64
"""Models that are warned of."""
MANAGED_MAX = 256
"""Paths of managed requests remembered; only Azure's, which name deployments, are many."""


class Arrival(NamedTuple):
    """A request that is ours to look at more closely."""

    request: httpx2.Request
    surface: Surface
    place: Place


class Detour(NamedTuple):
    """A request that makes or names objects: sent once, to where those live."""

    endpoint: Endpoint | None
    """None: the client's own, as the request is."""
    place: Place
    surface: Surface


class Desk:
    """One client's view of the process it runs in."""

    __slots__ = (
        "_managed",
        "_own",
        "_unrouted",
        "_warm",
        "aim",
        "home",
        "host",
        "mute",
        "timeouts",
    )

    def __init__(self, host: CallHost, home: Home) -> None:
        self.host = host
        self.home = home
        self.aim = Aim(home, lambda endpoint: host.signer_for(endpoint, is_async=home.is_async))
        self.timeouts: tuple[type[BaseException], ...] = (
            home.family.TimeoutException,
            TimeoutError,
        )
        self.mute: set[str] = set()
        """Endpoints that refuse to be asked for usage; at most as many as there are endpoints."""
        self._warm: dict[tuple[str, str, int | None], float] = {}
        self._unrouted: set[str] = set()
        self._own: tuple[Snapshot, str | None] | None = None
        host.pins.serve(home.origin)
        self._managed: dict[tuple[str, bytes], tuple[Surface, Place]] = {}
        """(method, raw path) -> what it is, for requests of the client's own origin."""

    def receive(self, request: httpx2.Request) -> Arrival | Detour | None:
        """Look at a request; None: let it pass (see `passing` and `passed`)."""
        host, home = self.host, self.home
        if host.disabled or HOP in request.extensions:
            return None
        url = request.url
        if not home.is_origin_of(url):
            return None
        raw_path = url.raw_path
        key = (request.method, raw_path)
        managed = self._managed.get(key)
        if managed is None:
            place = home.place_of(raw_path)
            if place is None:
                return None
            # What the body is, is seen by looking at it: its declared type says nothing more.
            surface = classify_request(request.method, place.path)
            place = Place(surface.path, place.query)
            if not surface.managed:
                return self._bound(request, surface, place)
            if len(self._managed) >= MANAGED_MAX:
                self._managed.clear()
            managed = self._managed[key] = (surface, place)
        return Arrival(request, *managed)

    def passing(self, request: httpx2.Request) -> httpx2.Request:
        """The request to send for one that passes: itself, unless a redirect leads it elsewhere."""
        return bare(self, request) if request.extensions.get(HOP) == BARE else request

    def passed(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The answer to a request that passed: itself, unless it is a redirect with a body."""
        if response.status_code in REDIRECTS and not guarded(self, request, response):
            return forbidden(self, response, None)
        return response

    def returned(self, detour: Detour, response: httpx2.Response) -> httpx2.Response:
        """The answer of the endpoint that holds what was asked for."""
        if response.status_code in REDIRECTS:
            response = forbidden(self, response, detour.endpoint)
        return response

    def unsigned(self, origin: Origin, response: httpx2.Response) -> httpx2.Response:
        """The reply of some origin without its cookies, if that isn't the client's own.

        The http client asked its own host, and would keep them as that one's.
        """
        if origin != self.home.origin:
            kept = [h for h in response.headers.raw if h[0].lower() != b"set-cookie"]
            response.headers = self.home.family.Headers(kept)
        return response

    def _bound(self, request: httpx2.Request, surface: Surface, place: Place) -> Detour | None:
        """Where an unmanaged request has to go; None: it passes."""
        pins = self.host.pins
        if not surface.pinned:
            return None
        found = pins.find(*surface.pin_ids)
        if found is None and len(pins) and request.method in _WITH_BODY:
            # A batch of a file, a job on it: bound to where the file is.
            found = pins.find(*ids_in_document(in_memory(request) or b""))
        endpoint = self.host.engine.endpoint(found or "")
        if endpoint is not None and self.aim.target(endpoint).own:
            endpoint = None
        if endpoint is None and not (surface.creates and pins.is_shared):
            return None
        return Detour(endpoint, place, surface)

    def ear(self, detour: Detour, response: httpx2.Response) -> Ear | None:
        """Who listens to the reply for objects that it names; None: nobody."""
        if not detour.surface.creates or not is_told(response):
            return None
        where = self.own_endpoint() if detour.endpoint is None else detour.endpoint.id
        name = detour.surface.name
        if where is None:
            return None
        ear = Ear(
            response,
            self.home.family,
            lambda body: self.remember(ids_in_response(name, body), where),
        )
        if not response.is_closed:
            return ear
        ear.hear(response.content)  # a mock's reply, in memory already
        ear.end()
        return None

    def remember(self, ids: tuple[str, ...], endpoint_id: str) -> None:
        """Objects live at an endpoint."""
        pins = self.host.pins
        if pins.is_shared or endpoint_id != self.own_endpoint():
            pins.record(ids, endpoint_id)

    def own_endpoint(self) -> str | None:
        """The id of the policy's endpoint that is the client's own; None if it isn't in there."""
        snapshot = self.host.engine.snapshot
        if self._own is None or self._own[0] is not snapshot:
            own = next((e.id for e in snapshot.endpoints.values() if self.aim.target(e).own), None)
            self._own = (snapshot, own)
        return self._own[1]

    def detoured(
        self, detour: Detour, request: httpx2.Request, secret: tuple[str, str] | None
    ) -> httpx2.Request:
        """The request for an endpoint that holds what it names; the SDK owns its retries."""
        endpoint = detour.endpoint
        assert endpoint is not None
        shot = Shot(None, secret, {}, plain_encoding=False, other_model=False)
        target = self.aim.target(endpoint)
        return self.aim.request(
            request, target, detour.place, endpoint.model or "", shot, request.extensions
        )

    # -- beginning a call

    def begin(self, arrival: Arrival) -> Flight | None:
        """Begin a call; None when no route matches, or the request is bound to our own endpoint and
        the policy doesn't know that: it passes.

        Raises `TaskLimitExceeded` and `DeadlineExceeded` where the task can't carry it.
        """
        host = self.host
        earlier = self._earlier(arrival.request)
        intake = self._intake(arrival)
        if intake is None:
            if earlier is not None:
                earlier.close()
            return None
        facts = intake.facts
        if earlier is not None:
            facts.resend = max(earlier.sent + 1, len(earlier.record.attempts))
            before = earlier.record.call
            facts.owed_since = None if before is None else before.owed_since
        host.ensure_started()
        record = self._account(intake, earlier)
        call = host.engine.begin(
            facts,
            host.clock(),
            wall_now=host.wall_clock(),
            sink=record.sink(host.engine.snapshot),
        )
        if earlier is not None and earlier.is_open:
            if call is None:
                earlier.close()
                return None
            earlier.is_open = False
            record.go_on(facts, call)
        elif call is None:
            record.let_pass(is_resend=sends_before(arrival.request) > 0)
            self._tell_unrouted(facts)
            return None
        else:
            record.call = call
        return Flight(self, intake, record, call, mode=call.route.mode or host.mode)

    def grown(self, arrival: Arrival, light: LightCall) -> Flight:
        """The flight of a call that began as a light one."""
        request, surface, place = arrival
        intake = self._intake(arrival)
        if intake is None:  # not JSON to its end: nobody but the server can tell what it asks for
            facts = CallFacts(light.attempt.model, surface.name, delegated=True)
            intake = Intake(request, surface, place, request.content, bodies.BodyFacts(), facts)
        record = self.host.open_call(intake.facts)
        call = record.call = light.grown(intake.facts)
        return Flight(self, intake, record, call, mode="enforce")

    def _tell_unrouted(self, facts: CallFacts) -> None:
        """Once per model: a typo in its name must not go unnoticed."""
        told = self._unrouted
        if facts.route is not None or facts.model in told or len(told) >= UNROUTED_MAX:
            return
        if route_of(self.host.engine.snapshot, facts) is None:
            told.add(facts.model)
            logger.warning(
                "no route of the policy matches model %r (%s): such calls go to the client's own "
                "endpoint as they are, and their cost is unknown; a last route without `match` "
                "takes them all",
                facts.model,
                facts.surface,
            )

    def _earlier(self, request: httpx2.Request) -> Unanswered | None:
        """The failed request of the same call that the SDK sends again with this one."""
        found = unanswered.take()
        if found is None:
            return None
        if found.sender is self and found.sent + 1 == sends_before(request):
            return found
        found.close()
        return None

    def _account(self, intake: Intake, earlier: Unanswered | None) -> CallRecord:
        """The account of the call: its own, or the one it goes on with."""
        host, facts = self.host, intake.facts
        open_record = earlier.record if earlier is not None and earlier.is_open else None
        # What no route takes is counted when it is first sent, and not again when it is resent.
        is_exempt = (
            earlier is None
            and sends_before(intake.request) > 0
            and route_of(host.engine.snapshot, facts) is None
        )
        try:
            return host.open_call(facts, earlier=open_record, is_exempt=is_exempt)
        except (TaskLimitExceeded, DeadlineExceeded) as refusal:
            route = route_of(host.engine.snapshot, facts)
            if ((route.mode if route is not None else None) or host.mode) == "observe":
                # The plain client knows no caps: it is only told what they would have done.
                record = host.open_call(facts, earlier=open_record, is_exempt=True)
                reason = refusal.reason if isinstance(refusal, TaskLimitExceeded) else "deadline"
                record.rejection = Rejection(reason)
                return record
            if earlier is not None:
                earlier.close()
            refusal.request = intake.request
            raise

    def _intake(self, arrival: Arrival) -> Intake | None:
        request, surface = arrival.request, arrival.surface
        form: Form | None = None
        body = in_memory(request)
        if body is not None:
            body_facts = bodies.peek(body, surface.name)
            surface = refine(surface, body_facts)
        else:
            form = Form.of(request) if surface.form else None
            if form is None:
                return None  # a stream that can be read once: nothing of ours applies
            body, body_facts = b"", form.facts
        if not surface.managed:
            return None
        snapshot = self.host.engine.snapshot
        scope = current_scope()
        options = scope.options
        facts = CallFacts(
            model=body_facts.model or surface.deployment or "",
            surface=surface.name,
            stream=body_facts.stream,
            prompt_tokens=body_facts.prompt_tokens_estimate,
            max_output_tokens=body_facts.max_output_tokens,
            body_bytes=len(body) if form is None else form.size,
            priority=options.priority or 0,
            session=options.session,
            traffic_class=options.traffic_class,
            hedge=options.hedge,
            route=options.route,
            deadline_at=options.deadline_at,
            repeatable=surface.repeatable or options.idempotent is True,
            attempts_max=self.home.attempts_max,
            delegated=snapshot.pass_through,
        )
        task = scope.task
        if task is not None:
            facts.task_id, facts.task_name = task.id, task.name
        if form is not None and not form.is_shareable:
            facts.hedge = False
        elif form is None and len(snapshot.endpoints) > 1:
            facts.prefix = bodies.prefix_hashes(body, body_facts)
            if not surface.repeatable or (surface.creates and body_facts.store is not False):
                # Two at once are two stored objects, or two runs of a tool, whatever was said of
                # a repetition after a failure.
                facts.hedge = False
        if surface.pinned:
            facts.pinned_to = self.host.pins.find(*surface.pin_ids) or self.own_endpoint()
            if facts.pinned_to is None:
                return None  # bound to an endpoint that the policy doesn't know: our client's own
        return Intake(request, surface, arrival.place, body, body_facts, facts, form)

    # -- remembering

    def answered(self, origin: Origin, now: float) -> None:
        """An origin has answered: there is a connection to it that may be used again."""
        if len(self._warm) >= WARM_MAX:
            self._warm.clear()
        self._warm[origin] = now

    def broken(self, origin: tuple[str, str, int | None]) -> None:
        """An origin failed to answer: that is what it does now, not what old connections do."""
        self._warm.pop(origin, None)

    def is_warm(self, origin: tuple[str, str, int | None]) -> bool:
        """Whether a connection to this origin may be an old one."""
        return self.host.clock() - self._warm.get(origin, float("-inf")) < WARM_S
