"""Endpoint models and arrivals for virtual-time runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headway.core.model import INFINITY, CallFacts, FailureClass, Outcome
from headway.lab.engine_model import NEVER, EngineModel, EngineRequest
from headway.lab.engine_profile import EngineProfile
from headway.lab.virtual import VirtualFleet, VirtualRequest
from headway.lab.virtual_records import Arrival, Served

DEFAULT_OUTPUT_TOKENS = 128


class FunctionEndpoint:
    """An endpoint whose function says at the send how the attempt will end."""

    def __init__(self, serve: Callable[[VirtualRequest], Served]) -> None:
        self._serve = serve

    def send(self, request: VirtualRequest) -> None:
        """Ask the function; schedule what it says."""
        outcome, total_s, first_token_s = self._serve(request)
        fleet, now = request.fleet, request.now
        if first_token_s is not None and request.facts.stream and first_token_s <= total_s:
            fleet.at(now + first_token_s, request.first_token)
        if total_s != INFINITY:
            fleet.at(now + total_s, partial(request.end, outcome))

    def cancel(self, request: VirtualRequest) -> None:
        """Nothing to undo: an ended request ignores its events."""


class EngineEndpoint:
    """An endpoint with an engine model behind it: load makes it slow, warm prefixes make it fast.

    Args:
        profile: the engine.
        blocks_of: the prompt's 64-token block identities; default: the call's own prefix hashes.
        fault: asked at each send; an outcome refuses the attempt at once, None serves it.
        network_s: one way, added to what the client sees at both ends.
    """

    def __init__(
        self,
        profile: EngineProfile,
        *,
        blocks_of: Callable[[CallFacts], Sequence[int]] = lambda facts: facts.prefix,
        fault: Callable[[VirtualRequest], Outcome | None] | None = None,
        network_s: float = 0.0005,
    ) -> None:
        self.engine = EngineModel(profile)
        self._blocks_of = blocks_of
        self._fault = fault
        self._network_s = network_s
        self._jobs: dict[EngineRequest, VirtualRequest] = {}
        self._by_request: dict[VirtualRequest, EngineRequest] = {}
        self._wake_at = NEVER

    def send(self, request: VirtualRequest) -> None:
        """Put the attempt into the engine's queue, one network delay from now."""
        outcome = self._fault(request) if self._fault is not None else None
        fleet = request.fleet
        if outcome is not None:
            fleet.at(fleet.now + 2 * self._network_s, lambda: request.end(outcome))
            return
        fleet.at(fleet.now + self._network_s, lambda: self._submit(request))

    def cancel(self, request: VirtualRequest) -> None:
        """Stop generating, as engines do when the connection closes."""
        job = self._by_request.pop(request, None)
        if job is not None:
            self._run(request.fleet)
            if self._jobs.pop(job, None) is not None:
                self.engine.cancel(job)

    def _submit(self, request: VirtualRequest) -> None:
        if request.ended:
            return
        fleet, facts = request.fleet, request.facts
        self._run(fleet)
        output = facts.max_output_tokens or DEFAULT_OUTPUT_TOKENS
        blocks = self._blocks_of(facts)
        job = self.engine.submit(fleet.now, facts.prompt_tokens, output, blocks)
        self._jobs[job] = request
        self._by_request[request] = job
        self._schedule(fleet)

    def _schedule(self, fleet: VirtualFleet) -> None:
        # A hair late: an instant that rounding put before the event would never reach it.
        due = max(self.engine.next_event_at(), fleet.now) + 1e-9
        if due < self._wake_at:
            self._wake_at = due
            fleet.at(due, lambda: self._wake(fleet, due))

    def _wake(self, fleet: VirtualFleet, due: float) -> None:
        if due == self._wake_at:
            self._wake_at = NEVER
            self._run(fleet)
            self._schedule(fleet)

    def _run(self, fleet: VirtualFleet) -> None:
        for event in self.engine.advance(fleet.now):
            request = self._jobs.get(event.request)
            if request is None:
                continue
            seen_at = event.at + self._network_s
            if event.kind == "first_token":
                if request.facts.stream:
                    fleet.at(seen_at, request.first_token)
                continue
            del self._jobs[event.request]
            self._by_request.pop(request, None)
            job = event.request
            outcome = Outcome(
                FailureClass.OK,
                input_tokens=job.prompt_tokens,
                cached_tokens=job.cached_tokens,
                output_tokens=job.output_tokens,
            )
            fleet.at(seen_at, partial(request.end, outcome))


def _plain_call(_: random.Random) -> CallFacts:
    return CallFacts("m", stream=True, prompt_tokens=1000)


def poisson(
    rate_per_s: float,
    *,
    until_s: float,
    processes: int,
    seed: int,
    facts: Callable[[random.Random], CallFacts] | None = None,
) -> Iterator[Arrival]:
    """Independent arrivals, each at a process drawn evenly.

    `facts` makes the call of each arrival; default: a stream of model "m" with 1000 prompt tokens.
    """
    rng = random.Random(f"{seed}/arrivals")
    make = facts or _plain_call
    at = rng.expovariate(rate_per_s)
    while at < until_s:
        yield Arrival(at, rng.randrange(processes), make(rng))
        at += rng.expovariate(rate_per_s)
