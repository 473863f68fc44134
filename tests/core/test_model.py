"""The vocabulary as other parts rely on it: the outcome table, names that telemetry shows."""

from __future__ import annotations

import pytest

from headway.core import model
from headway.core.model import (
    CANCELLED,
    DEADLINE_SILENT,
    DEADLINE_STREAMING,
    EVENTS,
    FIRST_TOKEN_LATE,
    INFINITY,
    OK,
    TRAITS,
    Attempt,
    AttemptKind,
    Blame,
    CallFacts,
    FailureClass,
    Health,
    Outcome,
    Usage,
)
from headway.core.snapshot import (
    AdmissionPolicy,
    AffinityPolicy,
    CachePolicy,
    DeadlinePolicy,
    Endpoint,
    HedgePolicy,
    PrefixCache,
    Price,
    RetryPolicy,
    SelectionPolicy,
    Snapshot,
    TrafficClass,
)

TABLE = """
ok                          unknown     good     -     -
rate_limited                deployment  soft     here  move
quota_exhausted             credential  nothing  -     move
overloaded                  deployment  hard     here  move
server_error                deployment  hard     here  move
connect                     host        hard     here  move
timeout_before_first_token  deployment  hard     here  move
stalled                     deployment  hard     here  move
bad_request                 request     nothing  -     -
context_length              request     nothing  -     move
content_filter              request     nothing  -     -
auth                        credential  nothing  -     move
not_found                   deployment  nothing  -     move
incomplete_stream           deployment  hard     here  move
cancelled                   caller      nothing  -     -
"""


def test_the_outcome_table() -> None:
    rows = [
        [
            kind.value,
            row.blame.value,
            row.health.value,
            "here" if row.retry_here else "-",
            "move" if row.move_elsewhere else "-",
        ]
        for kind, row in TRAITS.items()
    ]

    assert rows == [line.split() for line in TABLE.strip().splitlines()]
    assert list(TRAITS) == list(FailureClass)


@pytest.mark.parametrize("kind", list(FailureClass))
def test_a_soft_outcome_is_at_most_soft_evidence(kind: FailureClass) -> None:
    plain, soft = Outcome(kind).health, Outcome(kind, soft=True).health

    assert plain is TRAITS[kind].health
    assert soft is (Health.SOFT if plain is Health.HARD else plain)


def test_names_that_others_see() -> None:
    assert [k.value for k in AttemptKind] == ["initial", "retry", "hedge", "fallback", "probe"]
    assert [b.value for b in Blame] == [
        "request", "credential", "deployment", "host", "caller", "unknown",
    ]  # fmt: skip
    assert (CANCELLED.kind.value, CANCELLED.error_type) == ("cancelled", "cancelled")
    assert Outcome(FailureClass.OK) == OK
    facts = [c for c in vars(model).values() if "at" in getattr(c, "_fields", ())]
    assert sorted(EVENTS, key=str) == sorted(facts, key=str)


def test_an_outcome_assumes_that_the_model_ran_and_little_else() -> None:
    outcome = Outcome(FailureClass.SERVER_ERROR)

    assert outcome.reached_model
    assert not outcome.soft
    assert not outcome.free_retry
    assert not Usage().estimated


def test_what_drivers_report_of_their_own_limits() -> None:
    late = FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN

    assert Outcome(late, error_type="first_token_timeout") == FIRST_TOKEN_LATE
    assert Outcome(late, error_type="deadline", soft=True) == DEADLINE_SILENT
    assert Outcome(FailureClass.CANCELLED, error_type="deadline") == DEADLINE_STREAMING


def test_a_bare_attempt_is_an_ordinary_one_under_way() -> None:
    bare = Attempt(1, AttemptKind.INITIAL, "a", "m", 0.0, INFINITY, INFINITY, 60.0)

    assert (bare.reason, bare.backoff_s, bare.breaker_state, bare.permit) == (
        "only", 0.0, "closed", 0,
    )  # fmt: skip
    assert [bare.is_probe, bare.lost, bare.ended] == [False] * 3
    assert bare.planned_uncached_tokens == 0
    assert CallFacts("m").resend == CallFacts("m").body_bytes == 0


def test_facts_assume_an_ordinary_call() -> None:
    facts = CallFacts("m")

    assert (facts.surface, facts.stream, facts.prompt_tokens, facts.priority) == (
        "chat", False, 0, 0,
    )  # fmt: skip
    assert facts.repeatable
    assert not facts.delegated


def test_defaults_are_those_of_the_design() -> None:
    assert RetryPolicy() == RetryPolicy(
        budget_start=3.0,
        budget_per_success=0.1,
        budget_trickle_s=300.0,
        budget_capacity=5.0,
        backoff_base_s=0.5,
        backoff_cap_s=8.0,
    )
    assert HedgePolicy() == HedgePolicy(enabled=False, max_extra_fraction=0.05)
    assert AdmissionPolicy() == AdmissionPolicy(
        max_queue=64, queue_timeout_s=2.0, cold_concurrency=3
    )
    assert AffinityPolicy() == AffinityPolicy(
        key=("session", "prefix"), min_prefix_tokens=256, ttl_s=600.0
    )
    assert DeadlinePolicy() == DeadlinePolicy(idle_s=60.0)
    assert SelectionPolicy() == SelectionPolicy(algorithm="steady", choices=1, explore=0.0)
    assert CachePolicy() == CachePolicy(enabled=False, ttl_s=300.0, max_bytes=16_777_216)
    assert PrefixCache() == PrefixCache(block_tokens=64, blocks=6400, ttl_s=600.0)
    assert TrafficClass() == TrafficClass(priority=0, sheddable=True, usd_per_second=0.0)
    assert Price().gpus == 1
    plain = Endpoint(id="a", base_url="u")
    assert (plain.dialect, plain.state, plain.planned_load, plain.rtt_s) == (
        "openai", "active", 0.5, 0.0,
    )  # fmt: skip
    empty = Snapshot(endpoints={}, routes=())
    assert (empty.policy_id, empty.epoch, empty.version, empty.schema_version) == (
        "default", 0, 0, "1.0",
    )  # fmt: skip
    assert (empty.source, empty.on_expiry, empty.pass_through) == ("builtin", "degrade", False)
