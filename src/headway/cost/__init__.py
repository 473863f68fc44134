"""Usage to money: exact, from the best source there is, and unknown rather than zero.

    what the provider says it cost  >  the policy's price for the endpoint  >  genai-prices  >
    unknown

Amounts are `Decimal` USD. Rates are kept per token, so a price is a few exact multiplications;
nothing is rounded, whatever decimal context the application has set. genai-prices takes 0.4 s of
CPU to import, so it is loaded in a short-lived thread at the first need (`Pricer.warm`), and what
it says of a model is compiled once. Its data are a best effort of its maintainers; the policy's
price wins."""

from headway.cost.money import (
    FREE,
    MONEY,
    PICO_USD,
    SOURCES,
    UNKNOWN,
    ZERO,
    Cost,
    add,
    plain,
    worst_source,
)
from headway.cost.pricer import Pricer
from headway.cost.providers import provider_name

__all__ = [
    "FREE",
    "MONEY",
    "PICO_USD",
    "SOURCES",
    "UNKNOWN",
    "ZERO",
    "Cost",
    "Pricer",
    "add",
    "plain",
    "provider_name",
    "worst_source",
]
