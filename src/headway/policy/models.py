"""The policy document, version 1.0, as pydantic models.

`Policy` is the whole document. It checks each value as it is built; what needs the whole (names
that must exist, cycles, hosts, credentials) is checked when it is loaded or compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue, StringConstraints, model_validator

from headway.policy.blocks import Fallback, Handling, Match, Weights
from headway.policy.fields import Block, Id, Instant, Said, Serial, Text, problem
from headway.policy.fleet import (
    Endpoint,
    Network,
    Profile,
    Rollout,
    Shares,
    TenantBudget,
    TrafficClass,
)

if TYPE_CHECKING:
    from headway.core.snapshot import Snapshot
    from headway.credentials import Credential

SCHEMA_VERSION = (1, 0)
FEATURES = frozenset(
    {
        "admission",
        "affinity",
        "cache",
        "classes",
        "coalesce",
        "continuation",
        "deadline",
        "fallback",
        "hedge",
        "network",
        "on_expiry",
        "params",
        "profiles",
        "retry",
        "rollout",
        "selection",
        "shares",
        "tenants",
        "zones",
    }
)
"""Names that `must_understand` may hold: what this version does something about."""

PolicyLike: TypeAlias = "Policy | Mapping[str, object] | bytes | str | os.PathLike[str]"


class Route(Handling):
    """The rule that maps matching calls to endpoints. First match wins."""

    name: Text | None = Field(
        default=None, description="For fallbacks, reports and budgets (default: made from match)."
    )
    match: Match | None = Field(
        default=None, description="What it applies to (default: everything)."
    )
    weights: Weights | None = Field(
        default=None,
        description="Share of calls by endpoint; or by caller's zone, then endpoint; or a list of "
        "{max_prompt_tokens, weights}. Any scale. Left out: derived from the profiles.",
    )
    endpoints: Annotated[tuple[Id, ...], Field(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description="Instead of weights: the endpoints to derive weights for (default: all that "
        "serve the route's models and are not among its fallbacks).",
    )
    fallback: Annotated[tuple[Fallback, ...], Field(max_length=32)] = Field(
        default=(), description="Where calls go when these endpoints are exhausted, in order."
    )

    @model_validator(mode="after")
    def _weights_or_endpoints(self) -> Route:
        if self.weights is not None and self.endpoints is not None:
            raise problem("either weights or endpoints", at=("endpoints",), shown=Said("both"))
        return self


class Defaults(Handling):
    """What routes that don't say otherwise do. Merged field by field."""


class Policy(Block):
    """A policy document.

    Build one in code, or `Policy.load` it; `dump` gives the bytes to publish.
    """

    schema_url: Text | None = Field(
        default=None, alias="$schema", description="For editors; ignored."
    )
    schema_version: Annotated[
        str, StringConstraints(strict=True, pattern=r"^[0-9]{1,4}\.[0-9]{1,4}$")
    ] = Field(description='The format, "1.0".')
    policy_id: Id = Field(default="default", description="Which policy this is a version of.")
    epoch: Serial = Field(default=0, description="Raised to publish a lower version on purpose.")
    version: Serial = Field(description="Raised with every change.")
    issued_at: Instant | None = Field(default=None, description="When it was made.")
    fresh_until: Instant | None = Field(
        default=None,
        description="After it, load hints (observed) no longer count, and the policy is reported "
        "stale; it stays in force.",
    )
    expires_at: Instant | None = Field(default=None, description="After it, on_expiry applies.")
    on_expiry: Literal["degrade", "fail"] = Field(
        default="degrade",
        description="degrade: it stays in force, without load hints, and is reported stale; fail: "
        "refuse calls.",
    )
    must_understand: tuple[Text, ...] = Field(
        default=(),
        description="Feature names; a reader that doesn't know one refuses the document.",
    )
    extensions: dict[str, JsonValue] = Field(
        default_factory=dict, description="Anything; ignored. Keys in reverse-DNS style."
    )
    network: Network | None = Field(default=None, description="Round trips between zones.")
    profiles: Annotated[dict[Id, Profile], Field(max_length=1000)] = Field(
        default_factory=dict, description="Latency over load, by name."
    )
    endpoints: Annotated[dict[Id, Endpoint], Field(min_length=1, max_length=1000)] = Field(
        description="What calls can be sent to, by name."
    )
    classes: Annotated[dict[Text, TrafficClass], Field(max_length=100)] = Field(
        default_factory=dict, description="Classes of traffic, by name."
    )
    routes: Annotated[tuple[Route, ...], Field(min_length=1, max_length=10_000)] = Field(
        description="From calls to endpoints; first match wins."
    )
    defaults: Defaults | None = Field(default=None, description="What routes leave out.")
    tenants: Annotated[dict[Text, TenantBudget], Field(max_length=10_000)] = Field(
        default_factory=dict,
        description='Budgets by tenant; "*" for each tenant that isn\'t named.',
    )
    shares: Shares | None = Field(default=None, description="This process's part of the capacity.")
    rollout: Rollout | None = Field(
        default=None, description="The processes that this version is for (default: all)."
    )

    @model_validator(mode="after")
    def _instants_in_order(self) -> Policy:
        if self.fresh_until and self.expires_at and self.fresh_until > self.expires_at:
            raise problem(
                "an instant not after expires_at", at=("fresh_until",), shown=self.fresh_until
            )
        return self

    @classmethod
    def load(cls, document: PolicyLike) -> Policy:
        """Read and check a whole document: a path, JSON text or bytes, or a mapping.

        A `.yaml` or `.yml` path is read as YAML where PyYAML is installed. Strict: nothing is
        dropped or ignored. Raises FetchError when a file can't be read, ValidationError naming the
        place otherwise. Hosts and credentials are checked by `compile`.
        """
        from headway.policy.document import load_policy

        return load_policy(document)

    def dump(self, *, indent: int | None = 2) -> bytes:
        """The document as JSON (UTF-8), without the fields that were never set."""
        text = self.model_dump_json(by_alias=True, exclude_unset=True, indent=indent)
        return text.encode() + b"\n"

    @classmethod
    def json_schema(cls) -> dict[str, JsonValue]:
        """JSON Schema (draft 2020-12) of the document."""
        from headway.policy.schema import json_schema

        return json_schema()

    def compile(
        self,
        *,
        source: str = "static",
        zone: str | None = None,
        allowed_hosts: Iterable[str] | None = None,
        credentials: Mapping[str, Credential] | None = None,
    ) -> Snapshot:
        """Check the whole and compile it for a caller in `zone`.

        `allowed_hosts` are the hosts that plain http may go to; `credentials` the declared ones
        (None: names are not looked up). Raises ValidationError.
        """
        from headway.hosts import check_patterns
        from headway.policy.document import compile_policy
        from headway.policy.trust import Trust

        trust = Trust(
            fetched=False,
            allowed_hosts=None if allowed_hosts is None else check_patterns(allowed_hosts),
            credentials=credentials,
        )
        return compile_policy(self, source=source, zone=zone, trust=trust)
