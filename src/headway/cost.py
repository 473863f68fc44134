"""Usage to money: exact, from the best source there is, and unknown rather than zero.

    what the provider says it cost  >  the policy's price for the endpoint  >  genai-prices  >  unknown

Amounts are `Decimal` USD. Rates are kept per token, so a price is a few exact multiplications;
nothing is rounded, whatever decimal context the application has set. genai-prices takes 0.4 s of CPU
to import, so it is loaded in a short-lived thread at the first need (`Pricer.warm`), and what it says
of a model is compiled once. Its data are a best effort of its maintainers; the policy's price wins.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from decimal import Context, Decimal
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from headway.core.model import Usage
from headway.core.snapshot import Endpoint, Price

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

logger = logging.getLogger("headway")

ZERO = Decimal(0)
MONEY = Context(prec=60)
"""Enough digits for exact sums; independent of the application's own decimal context."""
PICO_USD = Decimal(1).scaleb(-12)
"""Amounts that need a division (GPU hours) are rounded to this, so that their sums stay exact."""
PER_MTOK = -6
SECONDS_PER_HOUR = Decimal(3600)

COMPILED_MAX = 1024
"""Models x tiers seen by one process; far above any real policy, so overflow may simply start over."""
UNKNOWN_MAX = 1024
"""Models whose missing price was reported; past it no further reports are made."""
STATIC_TTL_S = 3600.0
"""How long a compiled price lives: an application may run genai-prices' own updater."""
DATED_TTL_S = 60.0
"""The same for prices that depend on the date or the time of day."""

SOURCES = ("provider", "local", "estimated", "unknown")
"""Best to worst: the source of a sum is the worst among its parts."""
_RANK = {source: rank for rank, source in enumerate(SOURCES)}


class Cost(NamedTuple):
    """An amount of money (USD) and where it comes from. `amount` is None only when unknown."""

    amount: Decimal | None
    source: str


UNKNOWN = Cost(None, "unknown")
FREE = Cost(ZERO, "estimated")
"""An attempt that no model ran for: connection failures and refusals are not billed."""


def add(a: Decimal, b: Decimal) -> Decimal:
    """The exact sum, whatever the application's decimal context."""
    return MONEY.add(a, b)


def worst_source(a: str, b: str) -> str:
    """The less certain of two sources."""
    return a if _RANK[a] >= _RANK[b] else b


# --------------------------------------------------------------------------- who the provider is

_PROVIDERS: tuple[tuple[str, str, str], ...] = (
    # host or host suffix, gen_ai.provider.name, name at genai-prices
    ("api.openai.com", "openai", "openai"),
    (".openai.azure.com", "azure.ai.openai", "azure"),
    (".cognitiveservices.azure.com", "azure.ai.openai", "azure"),
    (".services.ai.azure.com", "azure.ai.inference", "azure"),
    (".models.ai.azure.com", "azure.ai.inference", "azure"),
    ("api.anthropic.com", "anthropic", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini", "google"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai", "google"),
    ("-aiplatform.googleapis.com", "gcp.vertex_ai", "google"),
    (".amazonaws.com", "aws.bedrock", "aws"),
    ("api.groq.com", "groq", "groq"),
    ("api.deepseek.com", "deepseek", "deepseek"),
    ("api.mistral.ai", "mistral_ai", "mistral"),
    ("openrouter.ai", "openrouter", "openrouter"),
    ("api.x.ai", "x_ai", "x-ai"),
    ("api.together.xyz", "together_ai", "together"),
    ("api.fireworks.ai", "fireworks_ai", "fireworks"),
    ("api.perplexity.ai", "perplexity", "perplexity"),
    ("api.cohere.com", "cohere", "cohere"),
    ("api.cohere.ai", "cohere", "cohere"),
    ("api.moonshot.ai", "moonshot_ai", "moonshotai"),
)
_PRICE_NAMES = {name: priced_as for _, name, priced_as in _PROVIDERS}
_DEFAULT_PROVIDER = "openai"
_STANDARD_TIERS = frozenset({"auto", "default", "standard"})


def _provider_of(endpoint: Endpoint) -> tuple[str, bool]:
    """(gen_ai.provider.name, whether that is more than a guess)."""
    if endpoint.provider is not None:
        return endpoint.provider, True
    host = urlsplit(endpoint.base_url).hostname or ""
    for suffix, name, _ in _PROVIDERS:
        if host == suffix or (suffix[0] in ".-" and host.endswith(suffix)):
            return name, True
    if endpoint.dialect == "azure":
        return "azure.ai.openai", True
    return _DEFAULT_PROVIDER, False


def provider_name(endpoint: Endpoint) -> str:
    """`gen_ai.provider.name` of an endpoint: as the policy says, else by host, else "openai"."""
    return _provider_of(endpoint)[0]


# --------------------------------------------------------------------------- rates


class _Rate(NamedTuple):
    """USD per token; above a threshold of input tokens the whole call has another rate."""

    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()
    """(input tokens above which it applies, rate), descending."""

    def at(self, input_tokens: int) -> Decimal:
        for start, rate in self.tiers:
            if input_tokens > start:
                return rate
        return self.base


class _Rates(NamedTuple):
    input: _Rate | None
    cached: _Rate | None
    cache_write: _Rate | None
    output: _Rate | None
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


def _per_token(per_mtok: Decimal | None) -> _Rate | None:
    return None if per_mtok is None else _Rate(per_mtok.scaleb(PER_MTOK, MONEY))


def _policy_rates(price: Price) -> _Rates | None:
    """The rates a policy states, or None when it states none."""
    by_token = price.input_per_mtok is not None or price.output_per_mtok is not None
    if not by_token:
        if price.per_request is None:
            return None
        return _Rates(None, None, None, None, price.per_request, by_request=True)
    return _Rates(
        _per_token(price.input_per_mtok),
        _per_token(price.cached_input_per_mtok),
        _per_token(price.cache_write_per_mtok),
        _per_token(price.output_per_mtok),
        price.per_request or ZERO,
    )


# --------------------------------------------------------------------------- the pricer


class Pricer:
    """Prices attempts. One per process is enough; every method is thread-safe.

    `on_unknown(model, provider)` is called once per model that has no price.
    """

    def __init__(self, on_unknown: Callable[[str, str], None] | None = None) -> None:
        self._on_unknown = on_unknown
        self._compiled: dict[tuple[str, str, str | None], _Rates | None] = {}
        self._policy: dict[int, tuple[Price, _Rates | None]] = {}
        self._reported: set[str] = set()
        self._book = _BOOK

    def price(
        self,
        endpoint: Endpoint,
        model: str,
        usage: Usage,
        *,
        service_tier: str | None = None,
        duration_s: float | None = None,
        inflight: float = 1.0,
    ) -> Cost:
        """What an attempt cost (USD).

        `model` is the name the answer came under, `service_tier` the tier on the *response*,
        `duration_s` the attempt's seconds and `inflight` the mean number of attempts at the endpoint
        meanwhile (for prices per GPU-hour). May load genai-prices: see `pending` and `warm`.
        """
        if usage.provider_cost_usd is not None:
            return Cost(usage.provider_cost_usd, "provider")
        stated = endpoint.price
        if stated is not None:
            if stated.per_gpu_hour is not None and duration_s is not None:
                return Cost(_gpu_cost(stated, duration_s, inflight), "local")
            rates = self._policy_rates_of(stated)
            if rates is not None:
                return self._apply(rates, usage, model, endpoint)
        if usage.input_tokens is None:
            return UNKNOWN
        return self._apply(self._market_rates(endpoint, model, service_tier), usage, model, endpoint)

    def pending(self, endpoint: Endpoint) -> bool:
        """Whether pricing an attempt there must first load genai-prices."""
        return not self._book.loaded and not _is_priced(endpoint)

    def warm(self, endpoint: Endpoint) -> None:
        """Start loading genai-prices in the background, if this endpoint will need it."""
        if not self._book.loaded and not _is_priced(endpoint):
            self._book.load()

    def when_ready(self, settle: Callable[[], None]) -> None:
        """Call `settle` once prices are loaded: now, or later on the loading thread."""
        self._book.when_loaded(settle)

    def wait(self) -> None:
        """Return when every `settle` registered so far has run."""
        self._book.wait()

    def _apply(
        self, rates: _Rates | None, usage: Usage, model: str, endpoint: Endpoint
    ) -> Cost:
        if rates is None:
            self._report(model, provider_name(endpoint))
            return UNKNOWN
        amount = rates.price(usage)
        if amount is None:
            return UNKNOWN
        return Cost(amount, "estimated" if usage.estimated else rates.source)

    def _report(self, model: str, provider: str) -> None:
        if model in self._reported or len(self._reported) >= UNKNOWN_MAX:
            return
        self._reported.add(model)
        if self._on_unknown is not None:
            self._on_unknown(model, provider)

    def _policy_rates_of(self, price: Price) -> _Rates | None:
        known = self._policy.get(id(price))
        if known is not None and known[0] is price:  # holding it keeps the id from being reused
            return known[1]
        if len(self._policy) >= COMPILED_MAX:
            self._policy.clear()
        rates = _policy_rates(price)
        self._policy[id(price)] = (price, rates)
        return rates

    def _market_rates(self, endpoint: Endpoint, model: str, tier: str | None) -> _Rates | None:
        if tier in _STANDARD_TIERS:
            tier = None
        provider, sure = _provider_of(endpoint)
        key = (provider if sure else "", model, tier)
        found = self._compiled.get(key, False)
        if found is not False and (found is None or time.monotonic() < found.expires_at):
            return found
        if len(self._compiled) >= COMPILED_MAX:
            self._compiled.clear()
        rates = self._book.rates(_PRICE_NAMES.get(provider, provider), model, tier)
        if rates is not None and not sure:
            # An unknown host that serves a well-known model name may charge anything.
            rates = rates._replace(source="estimated")
        self._compiled[key] = rates
        return rates


def _is_priced(endpoint: Endpoint) -> bool:
    price = endpoint.price
    return price is not None and (
        price.per_gpu_hour is not None
        or price.input_per_mtok is not None
        or price.output_per_mtok is not None
        or price.per_request is not None
    )


def _gpu_cost(price: Price, duration_s: float, inflight: float) -> Decimal:
    """Busy time's share: usd x gpus / 3600 x seconds / max(1, mean in-flight, at most slots)."""
    assert price.per_gpu_hour is not None
    sharing = max(1.0, inflight if price.slots is None else min(inflight, price.slots))
    usd_per_s = MONEY.divide(MONEY.multiply(price.per_gpu_hour, price.gpus), SECONDS_PER_HOUR)
    busy = MONEY.divide(Decimal(repr(max(duration_s, 0.0))), Decimal(repr(sharing)))
    cost = MONEY.multiply(usd_per_s, busy).quantize(PICO_USD, context=MONEY)
    return MONEY.add(cost, price.per_request or ZERO)


# --------------------------------------------------------------------------- genai-prices


class _Book:
    """genai-prices, loaded once per process."""

    def __init__(self) -> None:
        self.loaded = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._waiting: list[Callable[[], None]] = []
        self._loader_pid: int | None = None

    def load(self) -> None:
        """Start the loading thread, once. Not a daemon: a script that ends still settles its costs."""
        with self._lock:
            pid = os.getpid()
            if self.loaded or self._loader_pid == pid:
                return
            self._loader_pid = pid  # a forked child has no such thread, and starts its own
        threading.Thread(target=self._load, name="headway-prices", daemon=False).start()

    def when_loaded(self, settle: Callable[[], None]) -> None:
        with self._lock:
            if not self.loaded:
                self._waiting.append(settle)
                settle_now = False
            else:
                settle_now = True
        if settle_now:
            settle()
        else:
            self.load()

    def wait(self) -> None:
        if not self._done.is_set():
            self.load()
            self._done.wait()

    def _load(self) -> None:
        _import_prices()
        with self._lock:
            self.loaded = True
            waiting, self._waiting = self._waiting, []
        for settle in waiting:
            try:
                settle()
            except Exception:
                logger.exception("a call's cost could not be settled")
        self._done.set()

    def rates(self, provider: str, model: str, tier: str | None) -> _Rates | None:
        """Compile what genai-prices knows of a model; None when it knows nothing."""
        if not _import_prices():
            return None
        from datetime import UTC, datetime

        from genai_prices.data_snapshot import get_snapshot

        try:
            _, info = get_snapshot().find_provider_model(model, None, provider, None)
            context = None if tier is None else {"service_tier": tier}
            prices = info.get_prices(datetime.now(tz=UTC), context)
        except (LookupError, ValueError, TypeError, AttributeError):
            return None
        return _compile(prices, info, tier)


_BOOK = _Book()


def _import_prices() -> bool:
    try:
        import genai_prices.data_snapshot as prices

        prices.get_snapshot()
    except Exception as problem:  # noqa: BLE001 - whatever ails it, costs are unknown, calls go on
        logger.warning("prices are unknown: genai-prices can't be loaded: %r", problem)
        return False
    return True


def _per_request(prices: ModelPrice) -> Decimal:
    per_thousand = getattr(prices, "requests_kcount", None)
    return per_thousand.scaleb(-3, MONEY) if isinstance(per_thousand, Decimal) else ZERO


def _compile(prices: ModelPrice, info: ModelInfo, tier: str | None) -> _Rates | None:
    rates: dict[str, _Rate | None] = {}
    for name in ("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok"):
        value = getattr(prices, name, None)
        if value is None:
            rates[name] = None
        elif isinstance(value, Decimal):
            rates[name] = _per_token(value)
        else:
            tiers = tuple(
                (int(t.start), t.price.scaleb(PER_MTOK, MONEY)) for t in reversed(value.tiers)
            )
            rates[name] = _Rate(value.base.scaleb(PER_MTOK, MONEY), tiers)
    if rates["input_mtok"] is None and rates["output_mtok"] is None:
        return None  # priced by something else (images, seconds): not known from tokens
    variants = info.price_variants or ()
    dated = isinstance(info.prices, list) or any(v.constraint is not None for v in variants)
    # A tier the price list doesn't have is charged at the standard price, and said to be a guess.
    exact = tier is None or any(v.when.get("service_tier") == tier for v in variants)
    return _Rates(
        rates["input_mtok"],
        rates["cache_read_mtok"],
        rates["cache_write_mtok"],
        rates["output_mtok"],
        per_request=_per_request(prices),
        source="local" if exact else "estimated",
        expires_at=time.monotonic() + (DATED_TTL_S if dated else STATIC_TTL_S),
    )
