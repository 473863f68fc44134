"""Short ways to build what the tests of the core talk about."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from headway.core.breaker import Breaker, State
from headway.core.call import Call
from headway.core.engine import Engine
from headway.core.model import (
    INFINITY,
    Action,
    Attempt,
    CallFacts,
    Event,
    FailureClass,
    Finish,
    Lock,
    Outcome,
    Rejection,
    Rng,
    Send,
    Wait,
)
from headway.core.place import Request, groups_for
from headway.core.snapshot import (
    AdmissionPolicy,
    AffinityPolicy,
    Capacity,
    Curve,
    DeadlinePolicy,
    Endpoint,
    Fallback,
    HedgePolicy,
    Match,
    Price,
    Profile,
    RetryPolicy,
    Route,
    SelectionPolicy,
    Snapshot,
    TrafficClass,
    Weights,
    WeightTable,
)
from headway.core.state import EndpointState, Pool
from headway.core.world import World

F = FailureClass
E = TypeVar("E")

REFUSED = Outcome(F.CONNECT, error_type="ConnectError", reached_model=False)
UNAVAILABLE = Outcome(F.OVERLOADED, status=503, reached_model=False)
BROKEN = Outcome(F.SERVER_ERROR, status=500)
THROTTLED = Outcome(F.RATE_LIMITED, status=429, reached_model=False)
EXHAUSTED = Outcome(F.QUOTA_EXHAUSTED, status=429, reached_model=False)
LATE = Outcome(F.TIMEOUT_BEFORE_FIRST_TOKEN, error_type="ReadTimeout")
BAD = Outcome(F.BAD_REQUEST, status=400, reached_model=False)
DONE = Outcome(F.OK, status=200, input_tokens=100, output_tokens=20)


class Even:
    """A random source that always says the same: 0.5 makes every jitter its middle."""

    def __init__(self, value: float = 0.5) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


class Dice:
    """A random source that says what it was told to, then repeats the last."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def random(self) -> float:
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]


def throttled(retry_after_s: float) -> Outcome:
    return THROTTLED._replace(retry_after_s=retry_after_s)


def endpoint(
    name: str,
    *,
    model: str | None = None,
    credential: str | None = None,
    domain: str | None = None,
    profile: Profile | None = None,
    state: str = "active",
    capacity: Capacity | None = None,
    price: Price | None = None,
    window: int | None = None,
    rtt_s: float = 0.0,
    load: float = 0.5,
) -> Endpoint:
    return Endpoint(
        id=name,
        base_url=f"https://{name}.example/v1",
        model=model,
        credential=credential,
        failure_domain=domain,
        profile=profile,
        state=state,
        capacity=capacity or Capacity(),
        price=price,
        max_context_tokens=window,
        rtt_s=rtt_s,
        planned_load=load,
    )


def profile(
    ttft_s: float = 1.0,
    tpot_s: float = 0.01,
    *,
    p99_s: float | None = None,
    prefill_s_per_token: float = 0.0,
    ref_tokens: int = 0,
) -> Profile:
    """A flat profile: the same at any load."""
    return Profile(
        ttft_s=Curve(x=(0.0, 1.0), y=(ttft_s, ttft_s)),
        ttft_p99_s=None if p99_s is None else Curve(x=(0.0, 1.0), y=(p99_s, p99_s)),
        tpot_s=Curve(x=(0.0, 1.0), y=(tpot_s, tpot_s)),
        prefill_s_per_token=prefill_s_per_token,
        ttft_ref_uncached_tokens=ref_tokens,
    )


def share(weights: Mapping[str, float]) -> Weights:
    total = sum(weights.values())
    return tuple((name, w / total) for name, w in weights.items())


def table(weights: Mapping[str, float]) -> WeightTable:
    return WeightTable(by_zone={"*": ((INFINITY, share(weights)),)})


def route(
    weights: Mapping[str, float] | WeightTable,
    *,
    name: str = "chat",
    match: Match | None = None,
    fallback: Sequence[Fallback] = (),
    selection: SelectionPolicy | None = None,
    affinity: AffinityPolicy | None = None,
    deadline: DeadlinePolicy | None = None,
    retry: RetryPolicy | None = None,
    hedge: HedgePolicy | None = None,
    admission: AdmissionPolicy | None = None,
    output_tokens: int = 200,
    mode: str | None = None,
) -> Route:
    known = weights if isinstance(weights, WeightTable) else table(weights)
    ids = {e for buckets in known.by_zone.values() for _, ws in buckets for e, _ in ws}
    return Route(
        name=name,
        match=match or Match(),
        weights=known,
        fallback=tuple(fallback),
        expected_output_tokens=output_tokens,
        selection=selection or SelectionPolicy(),
        affinity=affinity or AffinityPolicy(),
        deadline=deadline or DeadlinePolicy(),
        retry=retry or RetryPolicy(),
        hedge=hedge or HedgePolicy(),
        admission=admission or AdmissionPolicy(),
        endpoint_ids=frozenset(ids),
        mode=mode,
    )


def snapshot(
    routes: Route | Sequence[Route],
    endpoints: Sequence[Endpoint] = (),
    *,
    classes: Mapping[str, TrafficClass] | None = None,
    version: int = 1,
    expires_at: float | None = None,
    on_expiry: str = "degrade",
) -> Snapshot:
    """A policy; endpoints that routes name and nobody describes are plain ones."""
    all_routes = (routes,) if isinstance(routes, Route) else tuple(routes)
    known = {e.id: e for e in endpoints}
    for r in all_routes:
        for name in sorted(r.endpoint_ids):
            known.setdefault(name, endpoint(name))
        for f in r.fallback:
            if f.endpoint is not None:
                known.setdefault(f.endpoint, endpoint(f.endpoint))
    return Snapshot(
        endpoints=known,
        routes=all_routes,
        classes=classes or {},
        version=version,
        expires_at=expires_at,
        on_expiry=on_expiry,
    )


def facts(model: str = "m", **known: Any) -> CallFacts:
    return CallFacts(model, **known)


class Bench:
    """An engine under test with its events, and a hand to drive calls with."""

    def __init__(
        self,
        policy: Snapshot | Route,
        *,
        endpoints: Sequence[Endpoint] = (),
        rng: Rng | None = None,
        seed: int = 1,
        zone: str | None = None,
        lock: Lock | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.engine = Engine(
            policy if isinstance(policy, Snapshot) else snapshot(policy, endpoints),
            zone=zone,
            rng=rng or random.Random(seed),
            lock=lock,
            on_event=self.events.append,
        )

    def begin(self, now: float = 0.0, what: CallFacts | None = None, **known: Any) -> Hand:
        call = self.engine.begin(what or facts(**known), now)
        assert call is not None
        return Hand(call, now)

    def serve(
        self, now: float, outcome: Outcome = DONE, *, takes: float = 0.1, **known: Any
    ) -> Attempt:
        """One whole call of one attempt."""
        hand = self.begin(now, **known)
        attempt = hand.send(now)
        hand.end(attempt, outcome, now + takes)
        hand.call.cancel(now + takes)
        return attempt

    def state(self, name: str) -> EndpointState:
        return self.engine.world.states[name]

    def pool(self, name: str = "chat") -> Pool:
        return self.engine.world.pools[name]

    def breaker(self, name: str, model: str = "m") -> Breaker:
        return self.state(name).breaker(model, self.engine.world.rng)

    def balance(self, now: float, pool: str = "chat") -> float:
        return self.engine.world.pools[pool].budget.balance(now)

    def prove(self, *names: str, now: float = 0.0, model: str = "m") -> None:
        """Let each endpoint answer one pinned call, so that it counts as seen to work."""
        for name in names:
            self.serve(now, takes=0.0, pinned_to=name, model=model)

    def kill(self, name: str, now: float = 0.0, model: str = "m") -> None:
        """Trip an endpoint's breaker on hard evidence."""
        for _ in range(5):
            if self.engine.world.states.get(name) is None or (
                self.breaker(name, model).state is State.CLOSED
            ):
                self.serve(now, REFUSED, takes=0.0, pinned_to=name, model=model, attempts_max=1)
        assert self.breaker(name, model).state is State.OPEN

    def request(self, what: CallFacts | None = None, *, now: float = 0.0) -> Request:
        """What a call would ask of placement."""
        engine, asked = self.engine, what or facts()
        chosen = engine.snapshot.route_for(asked.model)
        assert chosen is not None
        return Request(
            asked,
            chosen,
            engine.snapshot,
            engine.world.pool(chosen, now),
            groups_for(chosen, engine.snapshot, asked, engine.world.zone),
            0.0,
        )

    @property
    def world(self) -> World:
        return self.engine.world

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [e for e in self.events if isinstance(e, kind)]


class Hand:
    """Drives one call step by step."""

    def __init__(self, call: Call, now: float) -> None:
        self.call = call
        self.began_at = now

    def next(self, now: float) -> Action:
        return self.call.next_action(now)

    def send(self, now: float) -> Attempt:
        """The next action must be a send."""
        action = self.call.next_action(now)
        assert isinstance(action, Send), action
        return action.attempt

    def wait(self, now: float, reason: str | None = None) -> Wait:
        """The next action must be a wait."""
        action = self.call.next_action(now)
        assert isinstance(action, Wait), action
        assert reason is None or action.reason == reason, action
        return action

    def finish(self, now: float) -> Finish:
        """The next action must be the end."""
        action = self.call.next_action(now)
        assert isinstance(action, Finish), action
        return action

    def refusal(self, now: float) -> Rejection:
        """The next action must be a refusal."""
        end = self.finish(now)
        assert end.attempt is None
        assert end.rejection is not None
        return end.rejection

    def end(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        self.call.on_outcome(attempt, outcome, now)

    def fail(self, now: float, outcome: Outcome = BROKEN) -> Attempt:
        """Send and fail at once."""
        attempt = self.send(now)
        self.end(attempt, outcome, now)
        return attempt


class Extra:
    """A task's allowance of extra attempts."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take_extra_attempt(self) -> bool:
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def return_extra_attempt(self) -> None:
        self.left += 1
