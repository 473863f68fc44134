"""genai-prices: what the providers charge, by the best effort of its maintainers.

Importing it takes 0.4 s of CPU, so that happens in a short-lived thread at the first need, once per
process. Audio, image and search units are not known from our token counts and are left out.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

from headway.cost.money import MONEY, ZERO
from headway.cost.rates import PER_MTOK, Rate, Rates, per_token
from headway.forks import free_in_children

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

logger = logging.getLogger("headway")

STATIC_TTL_S = 3600.0
"""How long a compiled price lives: an application may run genai-prices' own updater."""
DATED_TTL_S = 60.0
"""The same for prices that depend on the date or the time of day."""
LOAD_WAIT_S = 5.0
"""Loading takes 0.4 s of CPU; a fork is held up no longer than this for it."""


class Market:
    """genai-prices, loaded once per process."""

    def __init__(self) -> None:
        self.loaded = False
        self._lock = free_in_children(threading.Lock())
        self._done = threading.Event()
        self._waiting: list[Callable[[], None]] = []
        self._loader_pid: int | None = None

    def load(self) -> None:
        """Start the loading thread, once. Not a daemon: a script that ends still settles its
        costs."""
        with self._lock:
            pid = os.getpid()
            if self.loaded or self._loader_pid == pid:
                return
            self._loader_pid = pid  # a forked child has no such thread, and starts its own
        thread = threading.Thread(target=self._load, name="headway-prices", daemon=False)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is ending, or there are no more to be had: whoever asks waits for it.
            self._load()

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

    def before_fork(self) -> None:
        """Let the loading thread finish: a child would inherit the import locks that it holds, and
        wait for them for ever."""
        if self._loader_pid == os.getpid() and not self.loaded:
            self._done.wait(LOAD_WAIT_S)

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

    def rates(self, provider: str, model: str, tier: str | None) -> Rates | None:
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


MARKET = Market()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=MARKET.before_fork)


def _import_prices() -> bool:
    try:
        import genai_prices.data_snapshot as prices

        prices.get_snapshot()
    except Exception as problem:  # noqa: BLE001 - whatever ails it, costs are unknown, calls go on
        if sys.is_finalizing():
            return False  # a stream that only the end of the interpreter closed: nobody can look
        logger.warning("prices are unknown: genai-prices can't be loaded: %r", problem)
        return False
    return True


def _per_request(prices: ModelPrice) -> Decimal:
    per_thousand = getattr(prices, "requests_kcount", None)
    return per_thousand.scaleb(-3, MONEY) if isinstance(per_thousand, Decimal) else ZERO


def _compile(prices: ModelPrice, info: ModelInfo, tier: str | None) -> Rates | None:
    rates: dict[str, Rate | None] = {}
    for name in ("input_mtok", "cache_read_mtok", "cache_write_mtok", "output_mtok"):
        value = getattr(prices, name, None)
        if value is None:
            rates[name] = None
        elif isinstance(value, Decimal):
            rates[name] = per_token(value)
        else:
            tiers = tuple(
                (int(t.start), t.price.scaleb(PER_MTOK, MONEY)) for t in reversed(value.tiers)
            )
            rates[name] = Rate(value.base.scaleb(PER_MTOK, MONEY), tiers)
    if rates["input_mtok"] is None and rates["output_mtok"] is None:
        return None  # priced by something else (images, seconds): not known from tokens
    variants = info.price_variants or ()
    dated = isinstance(info.prices, list) or any(v.constraint is not None for v in variants)
    # A tier the price list doesn't have is charged at the standard price, and said to be a guess.
    exact = tier is None or any(v.when.get("service_tier") == tier for v in variants)
    return Rates(
        rates["input_mtok"],
        rates["cache_read_mtok"],
        rates["cache_write_mtok"],
        rates["output_mtok"],
        per_request=_per_request(prices),
        source="local" if exact else "estimated",
        expires_at=time.monotonic() + (DATED_TTL_S if dated else STATIC_TTL_S),
    )
