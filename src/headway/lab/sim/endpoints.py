"""Endpoints of a simulated fleet: engines with networks, limits, other tenants and faults."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headway.core.model import FailureClass, Outcome
from headway.lab.engine_model import NEVER, EngineModel, EngineRequest
from headway.lab.faults import Fault, FaultKind
from headway.lab.sim.sites import HOSTED_TPOT_S, HOSTED_TTFT_S, Site
from headway.lab.sim.workload import Turn, TurnFacts
from headway.lab.virtual import EndpointModel, VirtualFleet, VirtualRequest

REFUSED = Outcome(FailureClass.CONNECT, error_type="ConnectError", reached_model=False)
RESET = Outcome(FailureClass.INCOMPLETE_STREAM, error_type="ReadError")
UNAVAILABLE = Outcome(FailureClass.OVERLOADED, status=503, error_type="503", reached_model=False)
LIMITED = Outcome(FailureClass.RATE_LIMITED, status=429, error_type="429", reached_model=False)
HOSTED_CACHE_S = 300.0
"""How long a hosted API keeps a prompt's prefix."""

OneWay = Callable[[int], float]
"""Seconds from a process to the endpoint."""


def turn_of(request: VirtualRequest) -> Turn:
    """The turn that an attempt is for."""
    facts = request.facts
    if not isinstance(facts, TurnFacts):
        msg = "arrivals before simulated endpoints carry TurnFacts"
        raise TypeError(msg)
    return facts.turn


class RateMeter:
    """What a server with rpm and tpm does: counts a sliding minute, and says when there is room."""

    def __init__(self, rpm: float | None, tpm: float | None) -> None:
        self._rpm, self._tpm = rpm, tpm
        self._seen: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def refuse_s(self, tokens: int, now: float) -> float | None:
        """Seconds until there is room again, or None: the request is counted and may pass."""
        seen = self._seen
        while seen and seen[0][0] <= now - 60.0:
            self._tokens -= seen.popleft()[1]
        over = (self._rpm is not None and len(seen) >= self._rpm) or (
            self._tpm is not None and self._tokens + tokens > self._tpm and bool(seen)
        )
        if over:
            return seen[0][0] + 60.0 - now
        seen.append((now, tokens))
        self._tokens += tokens
        return None


class _Gate:
    """What stands before the model at every endpoint: network, faults, limits; and the counts."""

    def __init__(self, site: Site, faults: Sequence[Fault], one_way: OneWay) -> None:
        self.site = site
        self.faults = tuple(f for f in faults if f.endpoint == site.id)
        self.one_way = one_way
        self.sends = 0
        self.wasted_tokens = 0
        """Output tokens of attempts that nobody waited for any more."""
        limited = site.rpm is not None or site.tpm is not None
        self._meter = RateMeter(site.rpm, site.tpm) if limited else None

    def refusal(self, request: VirtualRequest) -> Outcome | None:
        """What the endpoint says instead of serving; None: it serves."""
        if not self.faults and self._meter is None:
            return None
        now = request.fleet.now
        for fault in self.faults:
            if not fault.active(now):
                continue
            if fault.kind is FaultKind.DIE:
                return REFUSED
            if request.rng.random() >= fault.share:
                continue
            if fault.kind is FaultKind.UNAVAILABLE:
                return UNAVAILABLE
            if fault.kind is FaultKind.THROTTLE:
                return LIMITED._replace(retry_after_s=fault.retry_after_s)
        if self._meter is not None:
            turn = turn_of(request)
            wait = self._meter.refuse_s(turn.prompt_tokens + turn.output_tokens, now)
            if wait is not None:
                return LIMITED._replace(retry_after_s=wait)
        return None

    def fault(self, kind: FaultKind, request: VirtualRequest) -> Fault | None:
        """The active fault of this kind that hits the request."""
        for fault in self.faults:
            if fault.kind is kind and fault.active(request.fleet.now):
                return fault if request.rng.random() < fault.share else None
        return None


class SimEngine:
    """An engine behind a network, with faults on its time line and other callers on its queue."""

    def __init__(
        self, site: Site, faults: Sequence[Fault], one_way: OneWay, *, is_watched: bool = True
    ) -> None:
        self.gate = _Gate(site, faults, one_way)
        self.engine = EngineModel(site.profile)
        self._is_watched = is_watched or site.queue_max is not None
        """Somebody looks at the engine's queue: it is brought up to date at each change."""
        self._jobs: dict[EngineRequest, tuple[VirtualRequest, float, bool]] = {}
        self._by_request: dict[VirtualRequest, EngineRequest] = {}
        self._wake_at = NEVER

    def prepare(
        self,
        fleet: VirtualFleet,
        other: Callable[[random.Random], Turn],
        rate: float,
        until_s: float,
    ) -> None:
        """Put faults on the fleet's clock, and start the callers from outside the fleet."""
        for fault in self.gate.faults:
            if fault.kind is FaultKind.SLOW:
                fleet.at(fault.start_s, partial(self._slow, fleet, fault.factor))
                fleet.at(fault.end_s, partial(self._slow, fleet, 1.0))
            elif fault.kind is FaultKind.DIE:
                fleet.at(fault.start_s, partial(self._die, fleet))
        if rate > 0:
            rng = random.Random(f"others/{self.gate.site.id}/{rate}")
            self._next_other(fleet, rng, other, rate, until_s)

    def _next_other(
        self,
        fleet: VirtualFleet,
        rng: random.Random,
        other: Callable[[random.Random], Turn],
        rate: float,
        until_s: float,
    ) -> None:
        def arrive() -> None:
            turn = other(rng)
            self._run(fleet)
            self.engine.submit(fleet.now, turn.prompt_tokens, turn.output_tokens)
            self._schedule(fleet)
            if fleet.now < until_s:
                self._next_other(fleet, rng, other, rate, until_s)

        fleet.at(fleet.now + rng.expovariate(rate), arrive)

    def _slow(self, fleet: VirtualFleet, factor: float) -> None:
        self._run(fleet)
        self.engine.slowdown = factor
        self._schedule(fleet)

    def _die(self, fleet: VirtualFleet) -> None:
        self._run(fleet)
        for job, (request, _, _) in list(self._jobs.items()):
            self.engine.cancel(job)
            fleet.at(fleet.now, partial(request.end, RESET))
        self._jobs.clear()
        self._by_request.clear()
        self.engine.cache.clear()

    def send(self, request: VirtualRequest) -> None:
        """An attempt sets out."""
        gate, fleet = self.gate, request.fleet
        gate.sends += 1
        one_way = gate.one_way(request.process)
        refusal = gate.refusal(request)
        bound = gate.site.queue_max
        if refusal is None and bound is not None and self.engine.waiting >= bound:
            refusal = UNAVAILABLE
        if refusal is not None:
            fleet.at(fleet.now + 2 * one_way, partial(request.end, refusal))
            return
        if gate.faults and gate.fault(FaultKind.HANG, request) is not None:
            return
        fleet.at(fleet.now + one_way, partial(self._submit, request, one_way))

    def cancel(self, request: VirtualRequest) -> None:
        """Stop generating, as engines do when the connection closes."""
        job = self._by_request.pop(request, None)
        if job is not None:
            self._run(request.fleet)
            if self._jobs.pop(job, None) is not None:
                self.gate.wasted_tokens += self.engine.emitted(job)
                self.engine.cancel(job)

    def _submit(self, request: VirtualRequest, one_way: float) -> None:
        if request.ended:
            return
        fleet, turn = request.fleet, turn_of(request)
        self._run(fleet)
        output, is_cut = turn.output_tokens, False
        if self.gate.faults:
            cut = self.gate.fault(FaultKind.CUT, request)
            if cut is not None and cut.after_tokens < output:
                output, is_cut = max(1, cut.after_tokens), True
        job = self.engine.submit(fleet.now, turn.prompt_tokens, output, turn.blocks)
        self._jobs[job] = (request, one_way, is_cut)
        self._by_request[request] = job
        self._schedule(fleet)

    def _schedule(self, fleet: VirtualFleet) -> None:
        # A hair late: an instant that rounding put before the event would never reach it.
        due = self.engine.next_event_at(reports_only=not self._is_watched)
        due = max(due, fleet.now) + 1e-9
        if due < self._wake_at:
            self._wake_at = due
            fleet.at(due, partial(self._wake, fleet, due))

    def _wake(self, fleet: VirtualFleet, due: float) -> None:
        if due == self._wake_at:
            self._wake_at = NEVER
            self._run(fleet)
            self._schedule(fleet)

    def _run(self, fleet: VirtualFleet) -> None:
        events = self.engine.advance(fleet.now)
        if not events:
            return
        for kind, job, at in events:
            known = self._jobs.get(job)
            if known is None:
                continue
            request, one_way, is_cut = known
            if kind == "first_token":
                if request.facts.stream:
                    fleet.at(at + one_way, request.first_token)
                continue
            del self._jobs[job]
            self._by_request.pop(request, None)
            outcome = (
                RESET
                if is_cut
                else answered(job.prompt_tokens, job.cached_tokens, job.output_tokens)
            )
            fleet.at(at + one_way, partial(request.end, outcome))


def answered(prompt: int, cached: int, output: int) -> Outcome:
    """A full answer with its usage."""
    return Outcome(
        FailureClass.OK,
        200,
        input_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
    )


class SimHosted:
    """Somebody's API: no queue to be seen, latency of its own, limits per minute."""

    def __init__(self, site: Site, faults: Sequence[Fault], one_way: OneWay) -> None:
        self.gate = _Gate(site, faults, one_way)
        self._warm: dict[int, float] = {}

    def send(self, request: VirtualRequest) -> None:
        """An attempt sets out."""
        gate, fleet, rng = self.gate, request.fleet, request.rng
        gate.sends += 1
        one_way = gate.one_way(request.process)
        refusal = gate.refusal(request)
        if refusal is not None:
            fleet.at(fleet.now + 2 * one_way, partial(request.end, refusal))
            return
        slow = gate.site.slowness * (1.0 + gate.site.hidden_load)
        if gate.faults:
            if gate.fault(FaultKind.HANG, request) is not None:
                return
            fault = gate.fault(FaultKind.SLOW, request)
            slow *= fault.factor if fault is not None else 1.0
        turn = turn_of(request)
        cached = 64 * self._cached(turn, fleet.now)
        uncached_s = 5e-5 * (turn.prompt_tokens - cached)
        ttft = slow * (HOSTED_TTFT_S * rng.lognormvariate(-0.125, 0.5) + uncached_s)
        total = ttft + slow * HOSTED_TPOT_S * turn.output_tokens
        if request.facts.stream:
            fleet.at(fleet.now + ttft + 2 * one_way, request.first_token)
        done = answered(turn.prompt_tokens, cached, turn.output_tokens)
        fleet.at(fleet.now + total + 2 * one_way, partial(request.end, done))

    def _cached(self, turn: Turn, now: float) -> int:
        warm, known = self._warm, 0
        for block in turn.blocks:
            if warm.get(block, -NEVER) < now - HOSTED_CACHE_S:
                break
            known += 1
        for block in turn.blocks:
            warm[block] = now
        return known

    def cancel(self, request: VirtualRequest) -> None:
        """Nothing to undo: what an ended request is told, it ignores."""


SimEndpoint = SimEngine | SimHosted


def make_endpoints(
    sites: Sequence[Site],
    faults: Sequence[Fault],
    one_way: Callable[[str], OneWay],
    *,
    is_watched: bool = True,
) -> Mapping[str, SimEndpoint]:
    """A model per site; `one_way(zone)` says how far each process is. `is_watched`: somebody looks
    at their queues, and not only at what they answer."""
    made: dict[str, SimEndpoint] = {}
    for site in sites:
        away = one_way(site.zone)
        if site.engine == "hosted":
            made[site.id] = SimHosted(site, faults, away)
        else:
            made[site.id] = SimEngine(site, faults, away, is_watched=is_watched)
    return made


def as_models(endpoints: Mapping[str, SimEndpoint]) -> dict[str, EndpointModel]:
    """The same, as the virtual fleet wants them."""
    return dict(endpoints.items())
