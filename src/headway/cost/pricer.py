"""The pricer: which price applies to an attempt."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from headway.core.model import Usage
from headway.core.snapshot import Endpoint, Price
from headway.cost.market import MARKET
from headway.cost.money import UNKNOWN, Cost
from headway.cost.providers import PRICE_NAMES, provider_name, provider_of
from headway.cost.rates import Rates, gpu_cost, is_priced, policy_rates

COMPILED_MAX = 1024
"""Models x tiers seen by one process; far above any real policy, so overflow may simply start
over."""
UNKNOWN_MAX = 1024
"""Models whose missing price was reported; past it no further reports are made."""
_STANDARD_TIERS = frozenset({"auto", "default", "standard"})


class Pricer:
    """Prices attempts. One per process is enough; every method is thread-safe.

    `on_unknown(model, provider)` is called once per model that has no price.
    """

    def __init__(self, on_unknown: Callable[[str, str], None] | None = None) -> None:
        self._on_unknown = on_unknown
        self._compiled: dict[tuple[str, str, str | None], Rates | None] = {}
        self._policy: dict[int, tuple[Price, Rates | None]] = {}
        self._reported: set[str] = set()
        self._market = MARKET

    def price(
        self,
        endpoint: Endpoint,
        model: str,
        usage: Usage,
        *,
        service_tier: str | None = None,
        duration_s: float | None = None,
        inflight: float = 1.0,
        is_last_name: bool = True,
    ) -> Cost:
        """What an attempt cost (USD).

        `model` is the name the answer came under, `service_tier` the tier on the *response*,
        `duration_s` the attempt's seconds and `inflight` the mean number of attempts at the
        endpoint meanwhile (for prices per GPU-hour). `is_last_name`: no other name of the model
        will be tried, so an unknown price is to be reported. May load genai-prices: see `pending`
        and `warm`."""
        if usage.provider_cost_usd is not None:
            return Cost(usage.provider_cost_usd, "provider")
        stated = endpoint.price
        if stated is not None:
            if stated.per_gpu_hour is not None and duration_s is not None:
                return Cost(gpu_cost(stated, duration_s, inflight), "local")
            rates = self._stated_rates(stated)
            if rates is not None:
                return self._apply(rates, usage)
        if usage.input_tokens is None:
            return UNKNOWN
        rates = self._market_rates(endpoint, model, service_tier)
        if rates is None:
            if is_last_name:
                self._report(model, provider_name(endpoint))
            return UNKNOWN
        return self._apply(rates, usage)

    def pending(self, endpoint: Endpoint) -> bool:
        """Whether pricing an attempt there must first load genai-prices."""
        return not self._market.loaded and not is_priced(endpoint)

    def warm(self, endpoint: Endpoint) -> None:
        """Start loading genai-prices in the background, if this endpoint will need it."""
        if not self._market.loaded and not is_priced(endpoint):
            self._market.load()

    def when_ready(self, settle: Callable[[], None]) -> None:
        """Call `settle` once prices are loaded: now, or later on the loading thread."""
        self._market.when_loaded(settle)

    def wait(self) -> None:
        """Return when every `settle` registered so far has run."""
        self._market.wait()

    def _apply(self, rates: Rates, usage: Usage) -> Cost:
        amount = rates.price(usage)
        if amount is None:
            return UNKNOWN
        return Cost(amount, "estimated" if usage.estimated else rates.source)

    def _report(self, model: str, provider: str) -> None:
        if model in self._reported or len(self._reported) >= UNKNOWN_MAX or sys.is_finalizing():
            return  # what only the interpreter's end closes can't be looked up any more
        self._reported.add(model)
        if self._on_unknown is not None:
            self._on_unknown(model, provider)

    def _stated_rates(self, price: Price) -> Rates | None:
        known = self._policy.get(id(price))
        if known is not None and known[0] is price:  # holding it keeps the id from being reused
            return known[1]
        if len(self._policy) >= COMPILED_MAX:
            self._policy.clear()
        rates = policy_rates(price)
        self._policy[id(price)] = (price, rates)
        return rates

    def _market_rates(self, endpoint: Endpoint, model: str, tier: str | None) -> Rates | None:
        if tier in _STANDARD_TIERS:
            tier = None
        provider, sure = provider_of(endpoint)
        key = (provider if sure else "", model, tier)
        if key in self._compiled:
            found = self._compiled[key]
            if found is None or time.monotonic() < found.expires_at:
                return found
        if len(self._compiled) >= COMPILED_MAX:
            self._compiled.clear()
        rates = self._market.rates(PRICE_NAMES.get(provider, provider), model, tier)
        if rates is not None and not sure:
            # An unknown host that serves a well-known model name may charge anything.
            rates = rates._replace(source="estimated")
        self._compiled[key] = rates
        return rates
