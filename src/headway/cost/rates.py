"""Rates per token, and their exact application to token counts."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from headway.core.model import Usage
from headway.core.snapshot import Endpoint, Price
from headway.cost.money import MONEY, PICO_USD, ZERO

PER_MTOK = -6
SECONDS_PER_HOUR = Decimal(3600)


class Rate(NamedTuple):
    """USD per token; above a threshold of input tokens the whole call has another rate."""

    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()
    """(input tokens above which it applies, rate), descending."""

    def at(self, input_tokens: int) -> Decimal:
        for start, rate in self.tiers:
            if input_tokens > start:
                return rate
        return self.base


class Rates(NamedTuple):
    input: Rate | None
    cached: Rate | None
    cache_write: Rate | None
    output: Rate | None
    per_request: Decimal = ZERO
    source: str = "local"
    expires_at: float = float("inf")
    by_request: bool = False
    """A flat price per request: token counts don't matter."""

    def price(self, usage: Usage) -> Decimal | None:
        """USD for `usage`; None when the counts contradict each other or a rate is missing."""
        if self.by_request:
            return self.per_request
        tokens = usage.input_tokens
        output = usage.output_tokens or 0
        cached = usage.cached_input_tokens or 0
        written = usage.cache_write_tokens or 0
        if tokens is None or min(cached, written, output) < 0 or cached + written > tokens:
            return None
        total = self.per_request
        for count, rate in (
            (tokens - cached - written, self.input),
            (cached, self.cached or self.input),
            (written, self.cache_write or self.input),
            (output, self.output),
        ):
            if count:
                if rate is None:
                    return None
                total = MONEY.add(total, MONEY.multiply(rate.at(tokens), Decimal(count)))
        return total


def per_token(per_mtok: Decimal | None) -> Rate | None:
    return None if per_mtok is None else Rate(per_mtok.scaleb(PER_MTOK, MONEY))


def policy_rates(price: Price) -> Rates | None:
    """The rates a policy states, or None when it states none."""
    by_token = price.input_per_mtok is not None or price.output_per_mtok is not None
    if not by_token:
        if price.per_request is None:
            return None
        return Rates(None, None, None, None, price.per_request, by_request=True)
    return Rates(
        per_token(price.input_per_mtok),
        per_token(price.cached_input_per_mtok),
        per_token(price.cache_write_per_mtok),
        per_token(price.output_per_mtok),
        price.per_request or ZERO,
    )


def is_priced(endpoint: Endpoint) -> bool:
    price = endpoint.price
    return price is not None and (
        price.per_gpu_hour is not None
        or price.input_per_mtok is not None
        or price.output_per_mtok is not None
        or price.per_request is not None
    )


def gpu_cost(price: Price, duration_s: float, inflight: float) -> Decimal:
    """Busy time's share: usd x gpus / 3600 x seconds / max(1, mean in-flight, at most slots)."""
    assert price.per_gpu_hour is not None
    sharing = max(1.0, inflight if price.slots is None else min(inflight, price.slots))
    usd_per_s = MONEY.divide(MONEY.multiply(price.per_gpu_hour, price.gpus), SECONDS_PER_HOUR)
    busy = MONEY.divide(Decimal(repr(max(duration_s, 0.0))), Decimal(repr(sharing)))
    cost = MONEY.multiply(usd_per_s, busy).quantize(PICO_USD, context=MONEY)
    return MONEY.add(cost, price.per_request or ZERO)
