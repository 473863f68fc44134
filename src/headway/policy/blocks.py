"""How calls of a route are handled: the blocks that a route and `defaults` share.

Every field is optional. What a route leaves out comes from `defaults`, what both leave out from the
core (`headway.core.snapshot`), which holds the one copy of each default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator

from headway.policy.fields import (
    DAY_MS,
    Amount,
    Block,
    Count,
    Delay,
    FailureName,
    Flag,
    Fraction,
    Id,
    Millis,
    OneOrMany,
    Said,
    Seconds,
    Text,
    Tokens,
    Weight,
    ZoneKey,
    problem,
)


class Match(Block):
    """What a route applies to. A field left out matches everything."""

    model: OneOrMany | None = Field(
        default=None, description="Requested model name, or a list of them."
    )
    task: OneOrMany | None = Field(default=None, description="Task name, or a list of them.")
    class_: OneOrMany | None = Field(
        default=None, alias="class", description="Traffic class, or a list of them."
    )
    surface: OneOrMany | None = Field(
        default=None,
        description="chat, responses, completions, embeddings, ..., or a list of them.",
    )

    @field_validator("model", "task", "class_", "surface")
    @classmethod
    def _no_patterns(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for i, name in enumerate(names or ()):
            if "*" in name:
                raise problem(
                    "exact names (leave the field out to match everything)", at=(i,), shown=name
                )
        return names


FlatWeights: TypeAlias = Annotated[dict[Id, Weight], Field(min_length=1)]
ZonedWeights: TypeAlias = Annotated[dict[ZoneKey, FlatWeights], Field(min_length=1)]


def _weights_shape(value: Any) -> str:  # pydantic hands over whatever the document holds
    if isinstance(value, list | tuple):
        return "<by size>"
    if isinstance(value, dict) and any(
        isinstance(inner, dict)
        for inner in value.values()  # pyright: ignore[reportUnknownVariableType]
    ):
        return "<by zone>"
    return "<flat>"


class WeightBucket(Block):
    """Weights for prompts up to a size."""

    max_prompt_tokens: Count | None = Field(
        default=None, description="Largest prompt it applies to; left out in the last entry."
    )
    weights: Annotated[
        Annotated[FlatWeights, Tag("<flat>")] | Annotated[ZonedWeights, Tag("<by zone>")],
        Discriminator(_weights_shape),
    ] = Field(description="Weights by endpoint, or by caller's zone and endpoint.")


Weights: TypeAlias = Annotated[
    Annotated[FlatWeights, Tag("<flat>")]
    | Annotated[ZonedWeights, Tag("<by zone>")]
    | Annotated[tuple[WeightBucket, ...], Field(min_length=1, max_length=16), Tag("<by size>")],
    Discriminator(_weights_shape),
]


class ExpectedTokens(Block):
    """What a typical call of the route looks like; weights are derived for it."""

    input: Tokens | None = Field(default=None, description="Prompt tokens (default 1000).")
    output: Tokens | None = Field(default=None, description="Generated tokens (default 200).")


class Fallback(Block):
    """Where a call goes when the route's own endpoints are exhausted."""

    endpoint: Id | None = Field(default=None, description="An endpoint; or:")
    route: Text | None = Field(default=None, description="another route, by its name.")
    model: Text | None = Field(default=None, description="Model to ask for there instead.")
    on: tuple[FailureName, ...] | None = Field(
        default=None,
        description="Failure classes it applies to (default: all that may move elsewhere).",
    )

    @field_validator("on")
    @classmethod
    def _not_empty(cls, on: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if on is not None and not on:
            raise problem("at least one failure class, or the field left out")
        return on


class Selection(Block):
    """How an endpoint is picked among the weighted ones."""

    algorithm: (
        Literal[
            "steady",
            "weighted_random",
            "round_robin",
            "least_inflight",
            "two_choices",
            "min_cost",
        ]
        | None
    ) = Field(default=None, description="Strategy (default steady).")
    choices: Annotated[int, Field(strict=True, ge=1, le=8)] | None = Field(
        default=None,
        description="1 (default): one draw, damped by own outstanding calls; more: two draws, of "
        "which the less busy is kept. Of steady alone.",
    )
    explore: Fraction | None = Field(
        default=None,
        description="Share of calls without a warm endpoint that follow the weights alone "
        "(default 0).",
    )


class Affinity(Block):
    """Keeping related calls on the endpoint whose prefix cache is warm."""

    key: tuple[Literal["session", "prefix"], ...] | None = Field(
        default=None,
        description='What ties calls together (default ["session", "prefix"]; [] is off).',
    )
    min_prefix_tokens: Tokens | None = Field(
        default=None, description="Shortest shared prefix that counts (default 256)."
    )
    max_load_factor: Annotated[Amount, Field(ge=1)] | None = Field(
        default=None,
        description="Leave a warm endpoint when own outstanding calls exceed this times the mean "
        "(default: never).",
    )
    ttl_s: Seconds | None = Field(
        default=None, description="How long a tie is remembered (default 600)."
    )


class Deadline(Block):
    """Time limits of one call."""

    total_ms: Millis | None = Field(
        default=None, description="From the call to the end of its stream (default: none)."
    )
    ttft_ms: Millis | None = Field(
        default=None, description="An attempt to its first content token (default: none)."
    )
    idle_ms: Millis | None = Field(
        default=None, description="Longest silence within a stream (default 60000)."
    )


class RetryBudget(Block):
    """The token bucket that bounds retries and hedges of a route."""

    start: Amount | None = Field(default=None, description="Tokens at the start (default 3).")
    per_success: Fraction | None = Field(
        default=None, description="Tokens earned by a successful call (default 0.1)."
    )
    trickle_s: Seconds | None = Field(
        default=None, description="Seconds in which one token is earned anyway (default 300)."
    )
    capacity: Amount | None = Field(
        default=None,
        description="Most tokens held (default 5; grows to half the recent peak in flight).",
    )


class Backoff(Block):
    """Waits between attempts at the same endpoint: full jitter below a doubling ceiling.

    In code, `tenacity.wait_random_exponential(multiplier=0.5, max=8)` may stand in its place: it
    says the same. Other waits of tenacity are refused: without jitter from zero a fleet that failed
    together comes back as one wave."""

    base_ms: Millis | None = Field(default=None, description="First ceiling (default 500).")
    cap_ms: Millis | None = Field(default=None, description="Highest ceiling (default 8000).")

    @model_validator(mode="before")
    @classmethod
    def _from_tenacity(cls, value: Any) -> Any:  # whatever stands there
        module, name = value.__class__.__module__, value.__class__.__name__
        if module != "tenacity.wait":  # tenacity need not be imported to know its own
            return value
        if name != "wait_random_exponential" or value.exp_base != 2 or value.min != 0:
            raise problem(
                "base_ms and cap_ms, or tenacity.wait_random_exponential(multiplier=..., max=...)",
                shown=Said(name),
            )
        return {"base_ms": value.multiplier * 1e3, "cap_ms": min(value.max * 1e3, DAY_MS)}


class Retry(Block):
    """Attempts after a failed one."""

    max_attempts: Annotated[int, Field(strict=True, ge=1, le=20)] | None = Field(
        default=None,
        description="Attempts per call, the first included (default: the client's own).",
    )
    budget: RetryBudget | None = Field(default=None, description="What retries are paid from.")
    backoff: Backoff | None = Field(default=None, description="Waits between attempts.")
    on: tuple[FailureName, ...] | None = Field(
        default=None, description="Failure classes that are retried (default: all that may be)."
    )


class Hedge(Block):
    """A second attempt beside a slow first one, before the first token only."""

    enabled: Flag | None = Field(default=None, description="Off by default: it costs money.")
    delay_ms: Delay | None = Field(
        default=None, description="Wait before hedging (default: own p95 time to first token)."
    )
    max_extra_fraction: Fraction | None = Field(
        default=None, description="Most hedges per call made (default 0.05)."
    )


class Admission(Block):
    """What is let through, queued or shed before any spend."""

    max_inflight: Count | None = Field(
        default=None, description="Attempts in flight per endpoint and process (default: learned)."
    )
    max_queue: Annotated[int, Field(strict=True, ge=0, le=100_000)] | None = Field(
        default=None, description="Calls waiting per route (default 64; 0 sheds at once)."
    )
    queue_timeout_ms: Delay | None = Field(default=None, description="Longest wait (default 2000).")
    cold_concurrency: Count | None = Field(
        default=None,
        description="Attempts outstanding at an endpoint not yet seen to work (default 3).",
    )


class Continuation(Block):
    """Going on elsewhere when a stream breaks off after its first token. The stream is marked where
    another answer begins."""

    enabled: Flag | None = Field(
        default=None, description="Off by default: the two halves come from two generations."
    )
    params: dict[Text, JsonValue] | None = Field(
        default=None,
        description="Members that the request for the rest has in addition: what makes a server "
        "go on with the last message instead of answering it.",
    )


class Cache(Block):
    """Answers reused for identical calls that would get the same again: temperature 0, a seed,
    embeddings, moderations."""

    enabled: Flag | None = Field(default=None, description="Off by default.")
    ttl_s: Seconds | None = Field(
        default=None, description="How long an answer is reused (default 300)."
    )
    max_bytes: Annotated[int, Field(strict=True, ge=1, le=4 * 1024**3)] | None = Field(
        default=None, description="Memory for the route's answers (default 16777216)."
    )


class Handling(Block):
    """The blocks that a route and `defaults` share."""

    expected_tokens: ExpectedTokens | None = Field(default=None, description="A typical call.")
    selection: Selection | None = Field(default=None, description="How an endpoint is picked.")
    affinity: Affinity | None = Field(default=None, description="Keeping calls near a warm cache.")
    deadline: Deadline | None = Field(default=None, description="Time limits.")
    retry: Retry | None = Field(default=None, description="Attempts after a failed one.")
    hedge: Hedge | None = Field(default=None, description="A second attempt beside a slow one.")
    admission: Admission | None = Field(default=None, description="Queueing and shedding.")
    continuation: Continuation | None = Field(
        default=None, description="Going on elsewhere after a stream broke off."
    )
    coalesce: Flag | None = Field(
        default=None,
        description="Identical calls in flight share one request (default false).",
    )
    cache: Cache | None = Field(default=None, description="Reuse of answers.")
    mode: Literal["observe", "enforce"] | None = Field(
        default=None,
        description="observe: decide and record, but change nothing (default: as the router).",
    )
