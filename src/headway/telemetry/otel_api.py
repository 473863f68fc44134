"""OpenTelemetry as it is found: the API if it can be imported, the providers if somebody set them.

Nothing here sets a provider. A provider is looked up each time and compared by identity, so one
that is set after a client was wrapped is used from the next call on; while only the API's own
stand-ins are there, `tracer`, `instruments` and `logger` are None and telemetry costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from headway.telemetry.names import SCOPE

if TYPE_CHECKING:
    from opentelemetry._logs import Logger, LoggerProvider
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger("headway")

ProviderT = TypeVar("ProviderT")

_STAND_INS = frozenset({
    "ProxyTracerProvider", "NoOpTracerProvider", "DefaultTracerProvider",
    "ProxyMeterProvider", "NoOpMeterProvider",
    "ProxyLoggerProvider", "NoOpLoggerProvider",
})  # fmt: skip


@cache
def has_api() -> bool:
    """Whether opentelemetry-api can be imported."""
    try:
        for part in ("context", "metrics", "trace"):
            import_module(f"opentelemetry.{part}")
    except ImportError:
        return False
    return True


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headway")
    except PackageNotFoundError:
        return "0"


@cache
def _current_tracer_provider() -> Callable[[], TracerProvider] | None:
    if not has_api():
        return None
    from opentelemetry.trace import get_tracer_provider

    return _asked_once("opentelemetry.trace", "_TRACER_PROVIDER", get_tracer_provider)


@cache
def _current_meter_provider() -> Callable[[], MeterProvider] | None:
    if not has_api():
        return None
    from opentelemetry.metrics import get_meter_provider

    return _asked_once("opentelemetry.metrics._internal", "_METER_PROVIDER", get_meter_provider)


def _asked_once(
    module: str, variable: str, ask: Callable[[], ProviderT]
) -> Callable[[], ProviderT]:
    """`ask`, less its look at the environment in every call as long as no provider is set.

    It is asked once: then a provider that the environment names is set. Afterwards it is enough to
    look where the API keeps the provider, if that is still where it was when this was written.
    """
    keeper = vars(import_module(module))
    if variable not in keeper:
        return ask
    stand_in = ask()

    def current() -> ProviderT:
        provider: ProviderT | None = keeper.get(variable)
        return stand_in if provider is None else provider

    return current


def is_stand_in(provider: object) -> bool:
    """Whether a provider is only the API's own: nobody has set one up."""
    return type(provider).__name__.lstrip("_") in _STAND_INS


class Providers:
    """The three providers: those given, else the global ones of the moment."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
    ) -> None:
        self._given_tracer = tracer_provider
        self._given_meter = meter_provider
        self._given_logger = logger_provider
        self._seen_tracer: object | None = None
        self._seen_meter: object | None = None
        self._seen_logger: object | None = None
        self._tracer: Tracer | None = None
        self._meter: Meter | None = None
        self._logger: Logger | None = None

    def are_known_to_be_none(self) -> bool:
        """Whether nobody collects spans or metrics; False, too, where that was never looked at."""
        if self._tracer is not None or self._meter is not None:
            return False
        tracers, meters = _current_tracer_provider(), _current_meter_provider()
        if tracers is None or meters is None:
            return self._given_tracer is None and self._given_meter is None
        return (self._given_tracer or tracers()) is self._seen_tracer and (
            self._given_meter or meters()
        ) is self._seen_meter

    def tracer(self) -> Tracer | None:
        """Our tracer, or None while nobody collects spans."""
        provider = self._given_tracer
        if provider is None:
            current = _current_tracer_provider()
            if current is None:
                return None
            provider = current()
        if provider is not self._seen_tracer:
            real = not is_stand_in(provider)
            self._tracer = provider.get_tracer(SCOPE, _version()) if real else None
            self._seen_tracer = provider
        return self._tracer

    def meter(self) -> Meter | None:
        """Our meter, or None while nobody collects metrics."""
        provider = self._given_meter
        if provider is None:
            current = _current_meter_provider()
            if current is None:
                return None
            provider = current()
        if provider is not self._seen_meter:
            real = not is_stand_in(provider)
            self._meter = provider.get_meter(SCOPE, _version()) if real else None
            self._seen_meter = provider
        return self._meter

    def gauge_meter(self) -> Meter | None:
        """A meter for observed gauges: the API's stand-in passes them on to a provider set
        later."""
        meter = self.meter()
        if meter is not None or not has_api():
            return meter
        from opentelemetry import metrics

        return metrics.get_meter(SCOPE, _version())

    def logger(self) -> Logger | None:
        """Our logger, or None while nobody collects log records (or the API has no logs)."""
        if not has_api():
            return None
        try:
            from opentelemetry import _logs as logs
        except ImportError:
            return None
        provider = self._given_logger or logs.get_logger_provider()
        if provider is not self._seen_logger:
            self._logger = None if is_stand_in(provider) else provider.get_logger(SCOPE, _version())
            self._seen_logger = provider
        return self._logger


def quietly(do: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call into a user's processor or exporter: its failure is logged and goes no further."""
    try:
        do(*args, **kwargs)
    except Exception as problem:
        log.warning(
            "telemetry failed and was ignored: %s",
            type(problem).__name__,
            exc_info=log.isEnabledFor(logging.DEBUG),
        )
