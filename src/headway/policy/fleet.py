"""What calls can be sent to: endpoints, their speed, price, capacity, and the network between."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from headway.policy.fields import (
    Amount,
    Block,
    Count,
    Delay,
    Flag,
    Fraction,
    Id,
    Instant,
    Millis,
    PeriodSeconds,
    Rate,
    Said,
    Seconds,
    Share,
    TenantUsd,
    Text,
    Tokens,
    Usd,
    check_rising,
    problem,
)


class Network(Block):
    """Round trips between zones."""

    rtt_ms: dict[Id, dict[Id, Delay]] = Field(
        default_factory=dict, description="Caller's zone -> endpoint's zone -> milliseconds."
    )
    default_rtt_ms: Delay | None = Field(
        default=None, description="Between zones that rtt_ms doesn't name (default 0)."
    )


class Latency(Block):
    """Piecewise linear over load: x strictly increasing, values never falling, flat ends."""

    x: Annotated[tuple[Amount, ...], Field(min_length=2, max_length=32)] = Field(
        description="Load, on the axis that the profile names."
    )
    mean: Annotated[tuple[Delay, ...], Field(min_length=2, max_length=32)] = Field(
        description="Mean milliseconds at each x."
    )
    p99: Annotated[tuple[Delay, ...], Field(min_length=2, max_length=32)] | None = Field(
        default=None, description="99th percentile in milliseconds at each x."
    )

    @field_validator("x")
    @classmethod
    def _x_rises(cls, x: tuple[float, ...]) -> tuple[float, ...]:
        check_rising(x, strictly=True)
        return x

    @field_validator("mean", "p99")
    @classmethod
    def _never_falls(cls, y: tuple[float, ...] | None) -> tuple[float, ...] | None:
        check_rising(y or (), strictly=False)
        return y

    @model_validator(mode="after")
    def _same_length(self) -> Latency:
        for name, values in (("mean", self.mean), ("p99", self.p99)):
            if values is not None and len(values) != len(self.x):
                raise problem(
                    f"{len(self.x)} values, one for each x", at=(name,), shown=len(values)
                )
        return self


class Profile(Block):
    """How an engine's latency grows with its load."""

    load: Literal["utilization", "inflight"] | None = Field(
        default=None, description="What x is: utilization 0 to 1 (default), or calls in flight."
    )
    ttft_ms: Latency = Field(description="Time to first token.")
    tpot_ms: Latency = Field(description="Time per output token after the first.")
    prefill_us_per_token: Amount | None = Field(
        default=None, description="Microseconds per uncached prompt token at zero load (default 0)."
    )
    ttft_ref_uncached_tokens: Tokens | None = Field(
        default=None,
        description="Uncached prompt tokens that ttft_ms was measured with (default 0).",
    )
    fitted_at: Instant | None = Field(default=None, description="When it was fitted (for people).")
    samples: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None, description="Calls it was fitted from (for people)."
    )
    source: Text | None = Field(default=None, description="measured, simulated, ... (for people).")
    arrival_cv: Amount | None = Field(
        default=None, description="Burstiness it was measured under (for the optimizer)."
    )

    @model_validator(mode="after")
    def _utilization_ends_at_one(self) -> Profile:
        if self.load != "inflight":
            for name, curve in (("ttft_ms", self.ttft_ms), ("tpot_ms", self.tpot_ms)):
                if (
                    curve.x[-1] > 1.5
                ):  # a little past saturation may be measured; 80 is a percentage
                    last = len(curve.x) - 1
                    raise problem(
                        'a utilization of about 0 to 1 (or load: "inflight")',
                        at=(name, "x", last),
                        shown=curve.x[-1],
                    )
        return self


class Capacity(Block):
    """What an endpoint can carry, for the whole fleet of callers (see `shares`)."""

    concurrency: Count | None = Field(default=None, description="Calls at once.")
    rpm: Rate | None = Field(default=None, description="Requests per minute.")
    tpm: Rate | None = Field(default=None, description="Tokens per minute, input and output.")
    input_tps: Rate | None = Field(
        default=None, description="Prompt tokens per second (for the optimizer)."
    )
    output_tps: Rate | None = Field(
        default=None, description="Generated tokens per second (for the optimizer)."
    )


class Observed(Block):
    """What the publisher last saw, for the optimizer and for people."""

    at: Instant | None = Field(default=None, description="When.")
    utilization: Amount | None = Field(default=None, description="0 to 1.")
    planned_utilization: Amount | None = Field(
        default=None, description="What the published weights lead to, 0 to 1."
    )
    in_flight: Amount | None = Field(default=None, description="Calls in flight.")
    completions_per_s: Amount | None = Field(default=None, description="Calls finished per second.")
    queue: Amount | None = Field(default=None, description="Calls waiting in the engine.")
    kv_util: Fraction | None = Field(default=None, description="KV cache in use, 0 to 1.")


class Price(Block):
    """USD as decimal text: per million tokens, or per GPU-hour for self-hosted endpoints."""

    input_per_mtok: Usd | None = Field(default=None, description="Uncached prompt tokens.")
    cached_input_per_mtok: Usd | None = Field(
        default=None, description="Prompt tokens read from a cache."
    )
    cache_write_per_mtok: Usd | None = Field(
        default=None, description="Prompt tokens written to a cache."
    )
    output_per_mtok: Usd | None = Field(default=None, description="Generated tokens.")
    per_request: Usd | None = Field(default=None, description="Each request.")
    per_gpu_hour: Usd | None = Field(
        default=None, description="One GPU for an hour; excludes the others."
    )
    gpus: Annotated[Usd, Field(gt=0)] | None = Field(
        default=None, description="GPUs behind the endpoint (default 1)."
    )
    slots: Count | None = Field(
        default=None, description="Calls they serve at once (default: capacity.concurrency)."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Price:
        per_token = next((f for f in _TOKEN_PRICES if getattr(self, f) is not None), None)
        if self.per_gpu_hour is not None and per_token:
            raise problem(
                "either token prices or per_gpu_hour", at=(per_token,), shown=Said("both")
            )
        if self.per_gpu_hour is None:
            for field in ("gpus", "slots"):
                if getattr(self, field) is not None:
                    raise problem(
                        "per_gpu_hour beside it", at=(field,), shown=Said("no per_gpu_hour")
                    )
        return self


_TOKEN_PRICES = (
    "input_per_mtok",
    "cached_input_per_mtok",
    "cache_write_per_mtok",
    "output_per_mtok",
    "per_request",
)


class PrefixCache(Block):
    """What is known of the engine's prefix cache: for the optimizer; clients learn from calls."""

    block_tokens: Count | None = Field(
        default=None, description="Tokens per cached block (default 64)."
    )
    blocks: Count | None = Field(default=None, description="Blocks it holds (default 6400).")
    ttl_s: Seconds | None = Field(default=None, description="How long a block lives (default 600).")


# The document chooses the model and whether a call streams elsewhere, or not at all.
_RESERVED_PARAMS = ("model", "stream", "stream_options")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")
_REFUSED_HEADERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "api-key",
        "x-api-key",
        "x-goog-api-key",
        "cookie",
        "host",
        "content-length",
        "content-encoding",
        "content-type",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
    }
)


class Params(Block):
    """Changes to the JSON body that this endpoint needs, in this order."""

    drop: tuple[Text, ...] = Field(default=(), description="Top-level fields the endpoint refuses.")
    rename: dict[Text, Text] = Field(default_factory=dict, description="Old name -> new name.")
    set_: dict[Text, JsonValue] = Field(
        default_factory=dict, alias="set", description="Fields to add or overwrite."
    )

    @model_validator(mode="after")
    def _leaves_the_model_alone(self) -> Params:
        for where, names in (("drop", self.drop), ("rename", self.rename), ("set", self.set_)):
            for i, name in enumerate(names):
                if name in _RESERVED_PARAMS:
                    raise problem(
                        "a field other than model, stream and stream_options",
                        at=(where, i if where == "drop" else name),
                        shown=name,
                    )
        return self


class Endpoint(Block):
    """One base URL, credential and upstream model that calls can be sent to."""

    base_url: Text = Field(
        description="As the SDK's base_url. https, unless loopback or allowed in code."
    )
    dialect: Literal["openai", "azure"] | None = Field(
        default=None, description="How URLs and keys are written (default openai)."
    )
    api_version: Text | None = Field(default=None, description="Azure's api-version.")
    provider: Text | None = Field(
        default=None,
        description="gen_ai.provider.name in telemetry (default: guessed from the host).",
    )
    model: Text | None = Field(
        default=None, description="Upstream model for every call (default: the requested name)."
    )
    models: dict[Text, Text] = Field(
        default_factory=dict, description="Requested model -> upstream model."
    )
    credential: Text | None = Field(
        default=None,
        description="A name declared in code (a key, or a client that signs), or env:NAME in a "
        "file that the application itself names (default: the wrapped client's own key, to its "
        "own host only).",
    )
    zone: Id | None = Field(default=None, description="Where it is.")
    failure_domain: Text | None = Field(
        default=None, description="What fails together (default: the endpoint alone)."
    )
    profile: Id | None = Field(default=None, description="An entry of profiles.")
    state: Literal["active", "draining", "disabled"] | None = Field(
        default=None,
        description="draining takes only calls bound to what it holds, disabled none (default "
        "active).",
    )
    capacity: Capacity | None = Field(default=None, description="What it can carry.")
    observed: Observed | None = Field(default=None, description="What the publisher last saw.")
    price: Price | None = Field(
        default=None, description="What it costs (default: known price lists)."
    )
    prefix_cache: PrefixCache | None = Field(default=None, description="Its prefix cache.")
    supports: tuple[Text, ...] = Field(
        default=(),
        description="Features of the endpoint. trace_context: it is sent traceparent headers; "
        "other names are for people.",
    )
    max_context_tokens: Count | None = Field(default=None, description="Largest context.")
    max_body_bytes: Count | None = Field(
        default=None, description="Largest request body; larger calls go elsewhere."
    )
    params: Params | None = Field(default=None, description="Changes to the body.")
    headers: dict[str, str] = Field(
        default_factory=dict, description="Headers to add. Never keys: name a credential."
    )

    @field_validator("headers")
    @classmethod
    def _headers_fit(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER.fullmatch(name):
                raise problem("a header name", at=(name,), shown=Said("a header"))
            if name.lower() in _REFUSED_HEADERS:
                raise problem(
                    "a header that carries no key and frames no message (name a credential)",
                    at=(name,),
                    shown=Said("a header"),
                )
            if not _HEADER_VALUE.fullmatch(value):
                raise problem("printable ASCII text", at=(name,), shown=Said("a header"))
        return headers


class Slo(Block):
    """What a class of traffic is promised."""

    ttft_p99_ms: Millis | None = Field(
        default=None,
        description="Time to first token: a warm endpoint past it is left, and all "
        "that would miss it get fewer calls.",
    )
    tpot_p99_ms: Millis | None = Field(
        default=None, description="Time per output token; as ttft_p99_ms."
    )
    total_p99_ms: Millis | None = Field(default=None, description="The whole call; as ttft_p99_ms.")


class TrafficClass(Block):
    """A class of traffic: what goes first, what may be shed, what waiting costs."""

    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] | None = Field(
        default=None,
        description="Higher goes first; negative is background work (default 0; of the class "
        "interactive 10, of background -10: these two need not be defined).",
    )
    sheddable: Flag | None = Field(
        default=None, description="May be refused under load (default true)."
    )
    slo: Slo | None = Field(default=None, description="What it is promised.")
    usd_per_second: Usd | None = Field(
        default=None,
        description="What a second of waiting costs, to trade latency for price (default 0).",
    )


class TenantBudget(Block):
    """What a tenant may spend in each period, in all processes of the fleet together."""

    max_cost: TenantUsd = Field(description="USD that its calls may cost in a period.")
    period_s: PeriodSeconds = Field(
        default=86_400,
        description="Length of a period. Periods are counted from 1970, UTC (default 86400: days).",
    )


class Shares(Block):
    """How a fleet divides published capacity, and budgets, without talking to each other."""

    client_count: Count | None = Field(
        default=None, description="Processes that share it evenly; or:"
    )
    share: Share | None = Field(default=None, description="this process's part, 0 to 1.")

    @model_validator(mode="after")
    def _one_way(self) -> Shares:
        if self.client_count is not None and self.share is not None:
            raise problem("either client_count or share", at=("share",), shown=Said("both"))
        return self


class Rollout(Block):
    """A canary: a version that only some processes put in force. The others keep the one before."""

    share: Fraction = Field(
        description="Part of the processes, 0 to 1. Those of a smaller share are in a larger one."
    )
    seed: Text | None = Field(
        default=None, description="Another word chooses other processes (default: none)."
    )
