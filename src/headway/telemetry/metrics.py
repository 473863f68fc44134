"""The metrics: made from the table in `names`, recorded from events. Sampling has no say here."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from headway.telemetry.names import (
    ENDPOINT_ID,
    METRICS,
    RETRY_BUDGET,
    Metric,
)
from headway.telemetry.otel_api import Providers

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

Attributes = dict[str, str | bool | int | float]

TASK_NAMES_MAX = 50
MODELS_MAX = 100
ERRORS_MAX = 50
"""Distinct values kept per dimension; the rest are counted as "_other"."""
OTHER = "_other"

BREAKER_CODES = {"closed": 0, "half_open": 1, "half-open": 1, "open": 2}


class Capped:
    """The first so many distinct values pass; later ones become "_other"."""

    def __init__(self, values_max: int) -> None:
        self._max = values_max
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) < self._max:
            self._seen.add(value)
            return value
        return OTHER


class Gauged(Protocol):
    """What the observed gauges read: a router. It is held weakly."""

    def breaker_states(self) -> Iterable[tuple[str, str]]:
        """(endpoint id, closed | half_open | open)."""
        ...

    def budget_tokens(self) -> Iterable[tuple[str, float]]:
        """(pool, extra attempts allowed now)."""
        ...

    def policy_age_s(self) -> float | None:
        """Seconds since the policy in force was issued or loaded; None when it has no age."""
        ...


class Instruments:
    """One meter's instruments, by name."""

    def __init__(self, meter: Meter, semconv: str) -> None:
        self._by_name: dict[str, Any] = {
            row.name: _make(meter, row)
            for row in METRICS
            if row.kind != "gauge" and row.profile in (None, semconv)
        }

    def add(self, name: str, amount: float, attributes: Attributes) -> None:
        """Count (counters and up-down counters)."""
        self._by_name[name].add(amount, attributes)

    def record(
        self, name: str, value: float, attributes: Attributes, context: Context | None = None
    ) -> None:
        """Record into a histogram; `context` carries the trace for the exemplar."""
        self._by_name[name].record(value, attributes, context)


def _make(meter: Meter, row: Metric) -> object:
    match row.kind:
        case "counter":
            return meter.create_counter(row.name, row.unit, row.text)
        case "updown":
            return meter.create_up_down_counter(row.name, row.unit, row.text)
        case _:
            return meter.create_histogram(
                row.name, row.unit, row.text, explicit_bucket_boundaries_advisory=row.buckets
            )


class Metering:
    """Instruments of whichever meter provider is set, and the gauges over all routers."""

    def __init__(self, providers: Providers) -> None:
        self.semconv = "genai-0.1"
        self.task_name = Capped(TASK_NAMES_MAX)
        self.model = Capped(MODELS_MAX)
        self.error = Capped(ERRORS_MAX)
        self._providers = providers
        self._meter: object | None = None
        self._instruments: Instruments | None = None
        self._gauged_meter: object | None = None
        self._routers: weakref.WeakSet[Gauged] = weakref.WeakSet()

    def instruments(self) -> Instruments | None:
        """The instruments, or None while nobody collects metrics."""
        meter = self._providers.meter()
        if meter is not self._meter:
            self._instruments = None if meter is None else Instruments(meter, self.semconv)
            self._meter = meter
            if meter is not None and self._routers:
                self._make_gauges()
        return self._instruments

    def watch(self, router: Gauged) -> None:
        """Observe a router for as long as it lives."""
        self._routers.add(router)
        if self._gauged_meter is None:
            self._make_gauges()

    def _make_gauges(self) -> None:
        meter = self._providers.gauge_meter()
        if meter is None or meter is self._gauged_meter:
            return
        if self._gauged_meter is not None and type(self._gauged_meter).__name__.startswith(
            "_Proxy"
        ):
            return  # the stand-in has passed its gauges on
        self._gauged_meter = meter
        read: dict[str, Callable[[CallbackOptions], Iterable[Observation]]] = {
            "headway.breaker.state": self._breakers,
            "headway.retry.budget.tokens": self._budgets,
            "headway.policy.age": self._policy_age,
        }
        for row in METRICS:
            if row.kind == "gauge":
                meter.create_observable_gauge(row.name, [read[row.name]], row.unit, row.text)

    def _breakers(self, _: CallbackOptions) -> Iterable[Observation]:
        worst: dict[str, int] = {}
        for router in list(self._routers):
            for endpoint_id, state in router.breaker_states():
                worst[endpoint_id] = max(worst.get(endpoint_id, 0), BREAKER_CODES.get(state, 0))
        return [_observation(code, {ENDPOINT_ID: e}) for e, code in worst.items()]

    def _budgets(self, _: CallbackOptions) -> Iterable[Observation]:
        tokens: dict[str, float] = {}
        for router in list(self._routers):
            for pool, balance in router.budget_tokens():
                tokens[pool] = tokens.get(pool, 0.0) + balance
        return [_observation(balance, {RETRY_BUDGET: p}) for p, balance in tokens.items()]

    def _policy_age(self, _: CallbackOptions) -> Iterable[Observation]:
        ages = [age for r in list(self._routers) if (age := r.policy_age_s()) is not None]
        return [_observation(max(ages), {})] if ages else []


def _observation(value: float, attributes: Attributes) -> Observation:
    from opentelemetry.metrics import Observation

    return Observation(value, attributes)
