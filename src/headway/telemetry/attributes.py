"""What spans say: attributes built from records. Pure; no prompt or answer text is ever among
them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headway.core.model import INFINITY, AttemptKind, FailureClass
from headway.cost import Cost, provider_name
from headway.record import observed
from headway.record.attempt import NOT_BILLED
from headway.telemetry import names as n

if TYPE_CHECKING:
    from headway.core.snapshot import Endpoint
    from headway.record import AttemptRecord, CallRecord, Shared
    from headway.task import Task

Value = str | bool | int | float | Sequence[str]
SpanAttributes = dict[str, Value]


@lru_cache(maxsize=1024)
def _address(base_url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(base_url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return None, None
    return parts.hostname, port


def server(attempt: AttemptRecord) -> SpanAttributes:
    """server.address and server.port: as the transport saw them, else as the policy names them."""
    address, port = attempt.server_address, attempt.server_port
    if address is None:
        address, port = _address(attempt.endpoint.base_url)
    found: SpanAttributes = {}
    if address is not None:
        found[n.SERVER_ADDRESS] = address
        if port is not None:
            found[n.SERVER_PORT] = port
    return found


def operation(surface: str) -> str:
    """gen_ai.operation.name of a surface."""
    return n.OPERATIONS.get(surface, surface)


def provider_of(endpoint: Endpoint | None) -> str:
    """gen_ai.provider.name; without an endpoint, that of the SDK."""
    return "openai" if endpoint is None else provider_name(endpoint)


# --------------------------------------------------------------------------- calls


def call_start(record: CallRecord) -> SpanAttributes:
    """What samplers may look at, plus what the request says."""
    facts = record.facts
    first = record.attempts[0] if record.attempts else None
    found: SpanAttributes = {
        n.OPERATION: operation(facts.surface),
        n.PROVIDER: provider_of(None if first is None else first.endpoint),
        n.REQUEST_MODEL: facts.model,
    }
    if first is not None:
        found |= server(first)
    if facts.stream:
        found[n.REQUEST_STREAM] = True
    if facts.max_output_tokens is not None:
        found[n.REQUEST_MAX_TOKENS] = facts.max_output_tokens
    if facts.session is not None:
        found[n.CONVERSATION_ID] = facts.session
    return found


def call_answer(record: CallRecord, semconv: n.Semconv) -> SpanAttributes:
    """The GenAI attributes of the answer that was surfaced: only where the call span is ours."""
    winner = record.winner
    if winner is None:
        return {}
    found: SpanAttributes = {n.PROVIDER: provider_of(winner.endpoint)} | server(winner)
    if winner.response_model is not None:
        found[n.RESPONSE_MODEL] = winner.response_model
    if winner.response_id is not None:
        found[n.RESPONSE_ID] = winner.response_id
    if winner.service_tier is not None:
        found[n.OPENAI_SERVICE_TIER] = winner.service_tier
    if winner.system_fingerprint is not None:
        found[n.OPENAI_FINGERPRINT] = winner.system_fingerprint
    broken = record.facts.stream and winner.result != "ok" and winner.ttft_s is not None
    if winner.finish_reasons:
        found[n.FINISH_REASONS] = list(winner.finish_reasons)
    elif broken:
        found[n.FINISH_REASONS] = ["error"]
    if record.facts.stream and winner.ttft_s is not None:
        waited = winner.attempt.started_at - record.started_at
        found[n.TIME_TO_FIRST_CHUNK] = waited + winner.ttft_s
    usage = winner.usage
    if usage is not None and not usage.estimated:
        for key, count in (
            (n.USAGE_INPUT, usage.input_tokens),
            (n.USAGE_OUTPUT, usage.output_tokens),
            (n.USAGE_CACHE_READ, usage.cached_input_tokens),
            (semconv.cache_write, usage.cache_write_tokens),
            (n.USAGE_REASONING, usage.reasoning_tokens),
        ):
            if count is not None:
                found[key] = count
    return found


def call_decisions(record: CallRecord, mode: str) -> SpanAttributes:
    """What Headway decided and what it cost: on our span, or on the one adopted."""
    kinds = [a.attempt.kind for a in record.attempts]
    found: SpanAttributes = {
        n.CALL_MODE: mode,
        n.CALL_ATTEMPTS: len(kinds),
        n.CALL_RETRIES: kinds.count(AttemptKind.RETRY),
        n.CALL_HEDGES: kinds.count(AttemptKind.HEDGE),
        n.CALL_FALLBACKS: kinds.count(AttemptKind.FALLBACK),
    }
    call = record.call
    if call is not None:
        snapshot = call.snapshot
        found[n.POLICY_VERSION] = snapshot.version
        if snapshot.epoch:
            found[n.POLICY_EPOCH] = snapshot.epoch
        found[n.POLICY_STALE] = time.time() > snapshot.hints_until
    shown = record.winner or (record.attempts[-1] if record.attempts else None)
    if shown is not None:
        found[n.ENDPOINT_ID] = shown.endpoint.id
        found[n.SELECT_REASON] = shown.attempt.reason
        if shown.attempt.predicted_s is not None:
            found[n.SELECT_PREDICTED] = shown.attempt.predicted_s
        if shown.attempt.deadline_at != INFINITY and record.ended_at is not None:
            found[n.DEADLINE_REMAINING] = shown.attempt.deadline_at - record.ended_at
        if shown.usage_injected:
            found[n.USAGE_INJECTED] = True
    if record.queue_wait_s:
        found[n.QUEUE_WAIT] = record.queue_wait_s
    if record.denied_by is not None:
        found[n.RETRY_DENIED_BY] = record.denied_by
    if record.is_observed:
        found |= _observed(record)
    if record.shared is not None:
        found |= _shared(record.shared)
    found |= money(record.cost, record.wasted)
    found[n.COST_COMPLETE] = record.cost_complete
    return found


def _shared(shared: Shared) -> SpanAttributes:
    """What the call had to do with others. `headway.cost.amount` is its own part."""
    found: SpanAttributes = {}
    if shared.decision is not None:
        found[n.DECISION] = shared.decision
    if shared.callers > 1:
        found[n.CALL_CALLERS] = shared.callers
    if shared.saved:
        found[n.COST_SAVED] = float(shared.saved)
    return found


def _observed(record: CallRecord) -> SpanAttributes:
    """What would have been done."""
    found: SpanAttributes = {n.OBSERVED: True, n.OBSERVED_RETRY: observed.would_retry(record)}
    other = observed.elsewhere(record)
    if other is not None:
        found[n.OBSERVED_ENDPOINT] = other
    if record.rejection is not None:
        found[n.OBSERVED_REJECTED] = record.rejection.reason
    return found


def call_error(record: CallRecord) -> str | None:
    """error.type of a call that finally failed; None for success and for a caller who gave up."""
    if record.rejection is not None and not record.is_observed:
        return record.rejection.reason
    outcome = record.outcome
    if outcome is None or outcome.kind is FailureClass.OK:
        return None
    if outcome.kind is FailureClass.CANCELLED and outcome.error_type in (None, "cancelled"):
        return None  # the caller's doing; a deadline or a full pool is an error to the caller
    winner = record.winner
    seen = winner.outcome if winner is not None and winner.outcome is not None else outcome
    return error_type(seen.error_type, seen.status, seen.kind)


def error_type(named: str | None, status: int | None, kind: FailureClass) -> str:
    """Low-cardinality: the status when there is one, the exception's or error's name, the class."""
    if status is not None and status >= 400:
        return str(status)
    return named or kind.value


# --------------------------------------------------------------------------- attempts


def attempt_start(attempt: AttemptRecord) -> SpanAttributes:
    """What is known as it is sent."""
    sent = attempt.attempt
    found: SpanAttributes = {
        n.ATTEMPT_NUMBER: sent.number,
        n.ATTEMPT_KIND: sent.kind.value,
        n.ENDPOINT_ID: attempt.endpoint.id,
        n.BREAKER_STATE: sent.breaker_state,
    } | server(attempt)
    if sent.number > 1:
        found[n.HTTP_RESEND_COUNT] = sent.number - 1
    if sent.backoff_s:
        found[n.ATTEMPT_BACKOFF] = sent.backoff_s
    return found


def attempt_end(attempt: AttemptRecord) -> SpanAttributes:
    """What it brought. Never `gen_ai.usage.*`: backends would count the tokens twice."""
    found = server(attempt)
    if attempt.result is not None:
        found[n.ATTEMPT_OUTCOME] = attempt.result
    if attempt.status is not None:
        found[n.HTTP_STATUS] = attempt.status
    if attempt.ttft_s is not None:
        found[n.ATTEMPT_TTFT] = attempt.ttft_s
    usage = attempt.settled_usage
    if usage is not None and usage is not NOT_BILLED:
        for key, count in (
            (n.ATTEMPT_INPUT, usage.input_tokens),
            (n.ATTEMPT_CACHED, usage.cached_input_tokens),
            (n.ATTEMPT_OUTPUT, usage.output_tokens),
            (n.ATTEMPT_REASONING, usage.reasoning_tokens),
        ):
            if count is not None:
                found[key] = count
    cost = attempt.cost
    if cost is not None:
        found[n.COST_SOURCE] = cost.source
        if cost.amount is not None:
            found[n.COST_AMOUNT] = float(cost.amount)
    if attempt.upper_bound is not None:
        found[n.COST_UPPER_BOUND] = float(attempt.upper_bound)
    return found


def attempt_error(attempt: AttemptRecord) -> str | None:
    """error.type of an attempt that failed; None when it was answered, cancelled or lost."""
    outcome = attempt.outcome
    if outcome is None or attempt.result not in ("error", "timeout"):
        return None
    return error_type(outcome.error_type, outcome.status, outcome.kind)


# --------------------------------------------------------------------------- tasks


def task_start(task: Task, semconv: n.Semconv) -> SpanAttributes:
    """What samplers may look at, and the application's own attributes."""
    found: SpanAttributes = {**task.attributes}
    ours: SpanAttributes = {
        n.OPERATION: n.WORKFLOW,
        semconv.workflow_name: task.name,
        n.TASK_NAME: task.name,
        n.TASK_ID: task.id,
        n.TASK_DEPTH: task.depth,
    }
    found.update(ours)
    if task.deadline_at != INFINITY:
        found[n.TASK_DEADLINE] = task.deadline_at - task.started_at
    return found


def task_end(task: Task) -> SpanAttributes:
    """Verdict and figures."""
    found: SpanAttributes = {
        n.TASK_OUTCOME: task.outcome,
        n.TASK_CALLS: task.calls,
        n.TASK_ATTEMPTS: task.attempts,
        n.COST_COMPLETE: task.cost_complete,
    }
    found.update(money(Cost(task.cost, task.cost_source), task.wasted))
    if task.outcome_source is not None:
        found[n.TASK_OUTCOME_SOURCE] = task.outcome_source
    if task.score is not None:
        found[n.TASK_SCORE] = task.score
    return found


def money(cost: Cost, wasted: Decimal) -> SpanAttributes:
    """headway.cost.*; the edge at which exact money becomes a double. Unknown has no amount."""
    found: SpanAttributes = {
        n.COST_CURRENCY: n.USD,
        n.COST_SOURCE: cost.source,
        n.COST_WASTED: float(wasted),
    }
    if cost.amount is not None:
        found[n.COST_AMOUNT] = float(cost.amount)
    return found
