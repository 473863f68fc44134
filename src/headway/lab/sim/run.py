"""One contender, one seed: builds the fleet, publishes policies, keeps sessions going, adds up."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Lock

from headway.core.breaker import State
from headway.core.engine import Engine
from headway.core.snapshot import (
    Capacity,
    DeadlinePolicy,
    Endpoint,
    Price,
    Route,
    Snapshot,
)
from headway.lab.sim.bound import BOUND, unloaded
from headway.lab.sim.endpoints import OneWay, SimEngine, as_models, make_endpoints
from headway.lab.sim.figures import BINS, Booking, Figures
from headway.lab.sim.plain import PlainClient, Rules
from headway.lab.sim.rules import RULES, rule_for
from headway.lab.sim.scenario import Scenario
from headway.lab.sim.seeing import SEEING
from headway.lab.sim.sites import HOSTED_CALLS_PER_S, Site, measure, rtt_s
from headway.lab.sim.sizes import table_of
from headway.lab.sim.workload import Turn, TurnFacts, Visit, Workload, builtin, from_file
from headway.lab.virtual import VirtualFleet
from headway.lab.virtual_client import Client
from headway.lab.virtual_records import Arrival, CallRecord

CORE = ("headway", "core:")
"""`headway` is the default strategy; `core:NAME` another one of `core.select.STRATEGIES`."""
MODEL = "m"
UNLIMITED = Capacity()
COLLECT_AFTER = 50_000  # objects made, less those gone, between two searches for cycles
VISITS = 400
"""How many are looked at, to know how many calls each makes."""
FRESH_S = 2.0
"""How often the freshest policies are published."""


def contenders() -> tuple[str, ...]:
    """Every name that `simulate` knows."""
    return ("headway", "core:min_cost", *RULES, *SEEING, BOUND)


def workload_of(scenario: Scenario) -> Workload:
    """The scenario's workload by its name. The same object for the same name."""
    kind, _, path = scenario.workload.partition(":")
    return from_file(Path(path), kind) if path else builtin(kind)


def capacity(site: Site, workload: Workload, *, believed: bool = False) -> float:
    """Calls per second that a site carries for the fleet."""
    if site.engine == "hosted":
        return (site.rpm or 60.0 * HOSTED_CALLS_PER_S) / 60.0
    if believed:
        return measure(site.believed, workload).saturation
    return measure(site.profile, workload).saturation * (1.0 - site.hidden_load)


def weights_of(fleet: Sequence[Site], workload: Workload) -> dict[str, float]:
    """What each site is believed to carry, which is its published weight."""
    by_capacity = {s.id: capacity(s, workload, believed=True) for s in fleet}
    return {s.id: by_capacity[s.id] * (1.0 if s.weight is None else s.weight) for s in fleet}


@contextmanager
def _few_collections() -> Generator[None]:
    """Search for cycles seldom: a call leaves none, and a search looks at all that there is."""
    usual = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class Publisher:
    """Makes the documents: weights, profiles, and the load that was seen since the last one."""

    def __init__(self, scenario: Scenario, workload: Workload, algorithm: str) -> None:
        self._scenario = scenario
        self._workload = workload
        self._algorithm = algorithm
        self.weights = weights_of(scenario.fleet, workload)
        self.prices: dict[str, Price] = {s.id: s.price for s in scenario.fleet}
        output = [t.output_tokens for t in workload.sample(500)]
        self._output_tokens = max(1, sum(output) // len(output))
        self._version = 0

    def cell(self, number: int) -> tuple[Site, ...]:
        """The sites that processes of a cell are told of."""
        return self._scenario.fleet[number :: self._scenario.cells]

    def snapshot(self, zone: str, cell: int, loads: Mapping[str, float]) -> Snapshot:
        """The document of this moment, as compiled for a process in `zone` and `cell`."""
        scenario = self._scenario
        self._version += 1
        fleet = self.cell(cell)
        selection = scenario.options.selection
        if self._algorithm:
            selection = replace(selection, algorithm=self._algorithm)
        route = Route(
            name="r",
            weights=table_of(fleet, self._workload, scenario.sizes, self.weights),
            endpoint_ids=frozenset(s.id for s in fleet),
            selection=selection,
            affinity=scenario.options.affinity,
            retry=scenario.options.retry,
            hedge=scenario.options.hedge,
            admission=scenario.options.admission,
            deadline=DeadlinePolicy(total_s=scenario.timeout_s, ttft_s=scenario.silence_s),
            expected_output_tokens=self._output_tokens,
        )
        return Snapshot(
            version=self._version,
            endpoints={s.id: self._endpoint(s, zone, loads) for s in fleet},
            routes=(route,),
            classes=scenario.classes,
        )

    def _endpoint(self, site: Site, zone: str, loads: Mapping[str, float]) -> Endpoint:
        scenario = self._scenario
        is_planned = scenario.is_planned and site.engine != "hosted"
        share = 1.0 / scenario.processes
        limits = UNLIMITED
        if site.publishes_limits and (site.rpm or site.tpm):
            limits = Capacity(
                rpm=site.rpm * share if site.rpm else None,
                tpm=site.tpm * share if site.tpm else None,
            )
        return Endpoint(
            id=site.id,
            base_url=f"http://{site.id}.example/v1",
            zone=site.zone,
            failure_domain=site.id,
            profile=measure(site.believed, self._workload).profile if is_planned else None,
            capacity=limits,
            planned_load=loads.get(site.id, scenario.load),
            rtt_s=rtt_s(zone, site.zone),
            price=self.prices[site.id],
        )


class _Session:
    """A visit under way."""

    __slots__ = ("at", "began_at", "id", "process", "usd", "visit")

    def __init__(self, number: int, visit: Visit, process: int, began_at: float) -> None:
        self.id = f"s{number}"
        self.visit = visit
        self.process = process
        self.began_at = began_at
        self.at = 0
        self.usd = 0.0


class Run:
    """One run. `go` returns its figures."""

    def __init__(self, scenario: Scenario, contender: str, seed: int) -> None:
        self.scenario, self.contender, self.seed = scenario, contender, seed
        self.workload = workload_of(scenario)
        self._turns = len(self.workload.sample(VISITS, seed=2)) / VISITS
        if contender == BOUND:
            self.endpoints = unloaded(scenario.fleet, self._one_way)
        else:
            is_watched = contender in SEEING
            self.endpoints = make_endpoints(
                scenario.fleet, scenario.faults, self._one_way, is_watched=is_watched
            )
        algorithm = contender.removeprefix("core:") if contender.startswith("core:") else ""
        self.publisher = Publisher(scenario, self.workload, algorithm)
        ids = [s.id for s in scenario.fleet]
        ends = [f.end_s for f in scenario.faults if f.end_s < scenario.duration_s]
        self.booking = Booking(
            ids,
            warmup_s=scenario.warmup_s,
            duration_s=scenario.duration_s,
            last_fault_s=max(ends) if ends else None,
        )
        self.booking.prices = self.publisher.prices
        self.engines: list[Engine] = []
        self._snapshots = self._documents({})
        self._generation = 0
        self.fleet = VirtualFleet(
            next(iter(self._snapshots.values())),
            scenario.processes,
            as_models(self.endpoints),
            seed=seed,
            on_call=self._ended,
            keep_calls=False,
            clients=self._client,
        )
        self._seen = dict.fromkeys(ids, 0)
        self._schedule()

    def _one_way(self, zone: str) -> OneWay:
        zones = self.scenario.zones
        half = [rtt_s(z, zone) / 2.0 for z in zones]
        return lambda process: half[process % len(half)]

    def _documents(self, loads: Mapping[str, float]) -> dict[tuple[str, int], Snapshot]:
        places = {self._place(i) for i in range(self.scenario.processes)}
        return {place: self.publisher.snapshot(*place, loads) for place in sorted(places)}

    def _place(self, process: int) -> tuple[str, int]:
        zones = self.scenario.zones
        return zones[process % len(zones)], process % self.scenario.cells

    def _client(self, process: int) -> Client:
        rng = random.Random(f"{self.seed}/process/{process}/{self._generation}")
        if self.contender.startswith(CORE):
            place = self._place(process)
            engine = Engine(self._snapshots[place], zone=place[0], rng=rng, lock=Lock())
            self.engines.append(engine)
            return engine
        ids = [s.id for s in self.publisher.cell(process % self.scenario.cells)]
        weights = [self.publisher.weights[e] for e in ids]
        seeing = SEEING.get(self.contender)
        if seeing is not None:
            return self._plain(seeing(ids, weights, rng, process, self.endpoints), rng)
        name = "random" if self.contender == BOUND else self.contender
        turns = round(self._turns)
        kind = rule_for(name, self.publisher.prices, self.scenario.load, turns)
        return self._plain(kind(ids, weights, rng, process), rng)

    def _plain(self, rule: Rules, rng: random.Random) -> PlainClient:
        return PlainClient(
            rule, rng, timeout_s=self.scenario.timeout_s, silence_s=self.scenario.silence_s
        )

    # -- what comes

    def rate(self) -> float:
        """Visits per second."""
        scenario = self.scenario
        calls = scenario.load * sum(capacity(s, self.workload) for s in scenario.fleet)
        return calls / self._turns

    def _schedule(self) -> None:
        scenario, fleet = self.scenario, self.fleet
        rng = random.Random(f"{self.seed}/visits")
        source = self.workload
        if scenario.arrivals is not None:
            source = replace(source, arrivals=scenario.arrivals, replay=None)
        self._visits = source.visits(rng, self.rate())
        self._rng = random.Random(f"{self.seed}/processes")
        self._count = 0
        self._next_visit()
        for site in scenario.fleet:
            endpoint = self.endpoints[site.id]
            if isinstance(endpoint, SimEngine):
                rate = site.hidden_load * measure(site.profile, self.workload).saturation
                endpoint.prepare(fleet, self._other, rate, scenario.duration_s)
        if self.engines:
            every = max(FRESH_S, scenario.policy_age_s)
            at = every
            while at < scenario.duration_s:
                if scenario.freeze is None or not scenario.freeze[0] <= at < scenario.freeze[1]:
                    fleet.at(at, partial(self._publish, every))
                at += every
        for change in scenario.prices:
            fleet.at(change.at_s, partial(self._reprice, change.endpoint, change.factor))
        if scenario.restart_at is not None:
            fleet.at(scenario.restart_at, self._restart)

    def _other(self, rng: random.Random) -> Turn:
        turns = self.workload.body(rng).turns
        return turns[int(rng.random() * len(turns))]

    def _next_visit(self) -> None:
        at, visit = next(self._visits)
        if at < self.scenario.duration_s:
            self.fleet.at(at, partial(self._begin, visit))

    def _begin(self, visit: Visit) -> None:
        self._next_visit()
        self._count += 1
        process = int(self._rng.random() * self.scenario.processes)
        self._submit(_Session(self._count, visit, process, self.fleet.now))

    def _submit(self, session: _Session) -> None:
        visit, scenario = session.visit, self.scenario
        turn = visit.turns[session.at]
        facts = TurnFacts(
            MODEL,
            stream=True,
            prompt_tokens=turn.prompt_tokens,
            prefix=() if visit.is_session else turn.blocks[3::4],
            session=session.id if visit.is_session else None,
            task_id=session.id,
            traffic_class=visit.traffic_class or scenario.traffic_class,
            priority=visit.priority,
            turn=turn,
        )
        self.fleet.start(Arrival(self.fleet.now, session.process, facts, tag=session))

    def _ended(self, record: CallRecord) -> None:
        session = record.tag
        assert isinstance(session, _Session)
        session.usd += self.booking.call(record)
        session.at += 1
        turns = session.visit.turns
        if record.ok and session.at < len(turns):
            wait = turns[session.at].think_s
            self.fleet.at(self.fleet.now + wait, partial(self._submit, session))
            return
        in_time = self.fleet.now - session.began_at <= session.visit.patience_s
        self.booking.visit(session.began_at, session.usd, ok=record.ok and in_time)

    # -- what happens

    def _publish(self, window_s: float) -> None:
        rates: dict[str, float] = {}
        for site in self.scenario.fleet:
            sends = self.endpoints[site.id].gate.sends
            rates[site.id] = (sends - self._seen[site.id]) / window_s
            self._seen[site.id] = sends
        believed = self.publisher.weights
        if self.scenario.states_observed:
            loads = {e: rate / believed[e] for e, rate in rates.items()}
        else:
            planned = sum(rates.values()) / sum(believed.values())
            loads = dict.fromkeys(rates, planned)
        self._snapshots = self._documents(loads)
        delay = self.scenario.policy_age_s / 2.0
        for process, engine in enumerate(self.engines):
            when = self.fleet.now + (self._rng.random() * delay if delay else 0.0)
            snapshot = self._snapshots[self._place(process)]
            self.fleet.at(when, partial(self._swap, engine, snapshot))

    def _swap(self, engine: Engine, snapshot: Snapshot) -> None:
        engine.swap(snapshot, self.fleet.now)

    def _reprice(self, endpoint: str, factor: float) -> None:
        old = self.publisher.prices[endpoint]
        self.publisher.prices[endpoint] = scaled_price(old, factor)

    def _restart(self) -> None:
        self._generation += 1
        self.engines.clear()
        self.fleet.clients[:] = [self._client(i) for i in range(self.scenario.processes)]

    def _look(self) -> None:
        counts: dict[str, int] = {}
        for engine in self.engines:
            for endpoint, state in engine.world.states.items():
                for breaker in state.breakers.values():
                    if breaker.state is not State.CLOSED:
                        counts[endpoint] = counts.get(endpoint, 0) + 1
                        break
        opens = {e: n / len(self.engines) for e, n in counts.items()}
        self.booking.looked(self.fleet.now, self.fleet.inflight, opens)

    def go(self, *, lines: bool = True) -> Figures:
        """Run to the end: arrivals stop at `duration_s`, what is under way is finished."""
        if lines:
            step = self.scenario.duration_s / BINS
            for i in range(BINS):
                self.fleet.at((i + 0.5) * step, self._look)
        with _few_collections():
            began = time.process_time()
            self.fleet.run(until_s=self.scenario.duration_s * 4)
            spent = time.process_time() - began
        figures = self.booking.figures(self.contender, self.seed, lines=lines)
        figures.simulated_per_cpu_s = self.fleet.result.calls_ended / max(spent, 1e-9)
        return figures


def scaled_price(price: Price, factor: float) -> Price:
    """The same prices, times `factor`."""
    by = Decimal(str(factor))
    return replace(
        price,
        input_per_mtok=None if price.input_per_mtok is None else price.input_per_mtok * by,
        cached_input_per_mtok=(
            None if price.cached_input_per_mtok is None else price.cached_input_per_mtok * by
        ),
        output_per_mtok=None if price.output_per_mtok is None else price.output_per_mtok * by,
    )


def run_once(scenario: Scenario, contender: str, seed: int, *, lines: bool = True) -> Figures:
    """One run's figures."""
    return Run(scenario, contender, seed).go(lines=lines)
