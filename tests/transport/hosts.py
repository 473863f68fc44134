"""Routers for tests, and the policies they follow."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from headway.core.model import CallFacts, Event
from headway.core.snapshot import (
    DeadlinePolicy,
    Endpoint,
    Fallback,
    HedgePolicy,
    Match,
    RetryPolicy,
    Route,
    Snapshot,
    WeightTable,
)
from headway.credentials import Credential
from headway.record import CallRecord
from headway.router import Router

INF = float("inf")


class Host(Router):
    """A router that keeps what it saw."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        mode: str = "enforce",
        disabled: bool = False,
        credentials: Mapping[str, Credential] | None = None,
        clients: Mapping[str, Any] | None = None,
        seed: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.records: list[CallRecord] = []
        super().__init__(
            snapshot,
            mode=mode,
            credentials=credentials,
            clients=clients,
            on_event=self.events.append,
            rng=random.Random(seed),
            clock=clock,
        )
        self.disabled = disabled

    def open_call(
        self, facts: CallFacts, *, earlier: CallRecord | None = None, is_exempt: bool = False
    ) -> CallRecord:
        record = super().open_call(facts, earlier=earlier, is_exempt=is_exempt)
        if record is not earlier:
            self.records.append(record)
        return record

    @property
    def in_flight(self) -> int:
        return sum(row.in_flight for row in self.engine.status(self.clock()))

    def named(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def policy(
    endpoints: Mapping[str, str | Endpoint],
    *,
    order: bool = True,
    retry: RetryPolicy | None = None,
    deadline: DeadlinePolicy | None = None,
    hedge: HedgePolicy | None = None,
    **route: Any,
) -> Snapshot:
    """The first endpoint carries everything, the others are fallbacks in order; or equal shares."""
    built = {
        name: value if isinstance(value, Endpoint) else Endpoint(id=name, base_url=value)
        for name, value in endpoints.items()
    }
    names = list(built)
    carrying = names[:1] if order else names
    weights = tuple((name, 1 / len(carrying)) for name in carrying)
    return Snapshot(
        policy_id="test",
        version=7,
        endpoints=built,
        routes=(
            Route(
                name="all",
                match=Match(),
                weights=WeightTable(by_zone={"*": ((INF, weights),)}),
                fallback=tuple(Fallback(endpoint=name) for name in names if name not in carrying),
                retry=retry
                or RetryPolicy(
                    attempts_max=3, budget_start=100, budget_capacity=100, backoff_base_s=0.02
                ),
                deadline=deadline or DeadlinePolicy(),
                hedge=hedge or HedgePolicy(),
                endpoint_ids=frozenset(carrying),
                **route,
            ),
        ),
    )


def own(url: str) -> Snapshot:
    """What a client wrapped without a policy gets."""
    return Snapshot(
        endpoints={"default": Endpoint(id="default", base_url=url)},
        routes=(
            Route(
                name="default",
                weights=WeightTable(by_zone={"*": ((INF, (("default", 1.0),)),)}),
                endpoint_ids=frozenset({"default"}),
                deadline=DeadlinePolicy(idle_s=INF),
            ),
        ),
        pass_through=True,
    )
