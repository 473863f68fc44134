"""Every name that telemetry uses, in one place: attributes, metrics, log events, and which event
feeds which. These names are a contract with dashboards; the tests compare them with what arrives on
the wire.

The GenAI names are our own strings on purpose: the conventions moved to a repository of their own
and renamed much on the way, and the Python constants still hold the old set."""

from __future__ import annotations

from typing import Final, NamedTuple

from headway.core import model as core

SCOPE: Final = "headway"

# --------------------------------------------------------------------------- attributes

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_MODALITY: Final = "gen_ai.token.modality"
TOKEN_TYPE: Final = "gen_ai.token.type"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
OPENAI_SERVICE_TIER: Final = "openai.response.service_tier"
OPENAI_FINGERPRINT: Final = "openai.response.system_fingerprint"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_RESEND_COUNT: Final = "http.request.resend_count"
ERROR_TYPE: Final = "error.type"

TASK_NAME: Final = "headway.task.name"
TASK_ID: Final = "headway.task.id"
TASK_OUTCOME: Final = "headway.task.outcome"
TASK_OUTCOME_SOURCE: Final = "headway.task.outcome.source"
TASK_OUTCOME_LATE: Final = "headway.task.outcome.late"
TASK_SCORE: Final = "headway.task.score"
TASK_CALLS: Final = "headway.task.calls"
TASK_ATTEMPTS: Final = "headway.task.attempts"
TASK_DEADLINE: Final = "headway.task.deadline_s"
TASK_DEPTH: Final = "headway.task.depth"

COST_AMOUNT: Final = "headway.cost.amount"
COST_CURRENCY: Final = "headway.cost.currency"
COST_SOURCE: Final = "headway.cost.source"
COST_WASTED: Final = "headway.cost.wasted"
COST_COMPLETE: Final = "headway.cost.complete"
COST_UPPER_BOUND: Final = "headway.cost.upper_bound"
COST_SAVED: Final = "headway.cost.saved"
USD: Final = "USD"

ENDPOINT_ID: Final = "headway.endpoint.id"
POLICY_ID: Final = "headway.policy.id"
POLICY_VERSION: Final = "headway.policy.version"
POLICY_SOURCE: Final = "headway.policy.source"
POLICY_STALE: Final = "headway.policy.stale"
POLICY_EPOCH: Final = "headway.policy.epoch"
POLICY_AGE: Final = "headway.policy.age_s"
CALL_ATTEMPTS: Final = "headway.call.attempts"
CALL_RETRIES: Final = "headway.call.retries"
CALL_HEDGES: Final = "headway.call.hedges"
CALL_FALLBACKS: Final = "headway.call.fallbacks"
CALL_MODE: Final = "headway.call.mode"
CALL_CALLERS: Final = "headway.call.callers"
DECISION: Final = "headway.decision"
SELECT_REASON: Final = "headway.select.reason"
SELECT_PREDICTED: Final = "headway.select.predicted_s"
QUEUE_WAIT: Final = "headway.queue.wait_s"
DEADLINE_REMAINING: Final = "headway.deadline.remaining_s"
RETRY_DENIED_BY: Final = "headway.retry.denied_by"
RETRY_BUDGET: Final = "headway.retry.budget"
USAGE_INJECTED: Final = "headway.usage.injected"
OBSERVED: Final = "headway.observed"
OBSERVED_ENDPOINT: Final = "headway.observed.endpoint.id"
OBSERVED_RETRY: Final = "headway.observed.retry"
OBSERVED_REJECTED: Final = "headway.observed.rejected"
PRIORITY: Final = "headway.priority"
SHED_REASON: Final = "headway.shed.reason"

ATTEMPT_NUMBER: Final = "headway.attempt.number"
ATTEMPT_KIND: Final = "headway.attempt.kind"
ATTEMPT_OUTCOME: Final = "headway.attempt.outcome"
ATTEMPT_TTFT: Final = "headway.attempt.ttft_s"
ATTEMPT_BACKOFF: Final = "headway.backoff_s"
ATTEMPT_INPUT: Final = "headway.usage.input_tokens"
ATTEMPT_CACHED: Final = "headway.usage.cached_input_tokens"
ATTEMPT_OUTPUT: Final = "headway.usage.output_tokens"
ATTEMPT_REASONING: Final = "headway.usage.reasoning_tokens"

BREAKER_STATE: Final = "headway.breaker.state"
BREAKER_FROM: Final = "headway.breaker.from"
BREAKER_TO: Final = "headway.breaker.to"
REASON: Final = "headway.reason"
MESSAGE: Final = "headway.message"
FOR_SECONDS: Final = "headway.for_s"
LIMIT: Final = "headway.limit"

ATTEMPT_SPAN: Final = "headway.attempt"
WORKFLOW: Final = "invoke_workflow"

OPERATIONS: Final = {
    "chat": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
"""Surface -> gen_ai.operation.name; a surface without a convention goes by its own name."""
INFERENCE: Final = frozenset({"chat", "text_completion", "generate_content"})
LLM_OPERATIONS: Final = INFERENCE | {"embeddings"}
"""Operations whose span, opened by somebody else, is adopted."""


class Semconv(NamedTuple):
    """The names that differ between releases of the GenAI conventions."""

    workflow_name: str
    cache_write: str
    inference_duration: str
    inference_ttfc: str
    token_counters: bool
    """Counters and histograms per kind of token; else one histogram by gen_ai.token.type."""


SEMCONV: Final[dict[str, Semconv]] = {
    "genai-0.1": Semconv(
        "gen_ai.agent.name",
        "gen_ai.usage.cache_write.input_tokens",
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.time_to_first_chunk",
        True,
    ),
    "1.41": Semconv(
        "gen_ai.workflow.name",
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        False,
    ),
}

# --------------------------------------------------------------------------- metrics

D: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
T: Final = tuple(4**n for n in range(14))
TASK_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
TASK_USD: Final = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)


class Metric(NamedTuple):
    """One row of the metrics table."""

    name: str
    kind: str
    """counter | updown | histogram | gauge (observed)"""
    unit: str
    dims: tuple[str, ...]
    buckets: tuple[float, ...] | None
    text: str
    profile: str | None = None
    """The GenAI release it belongs to; None: ours, whichever is chosen."""


_GEN_AI = (
    OPERATION,
    PROVIDER,
    REQUEST_MODEL,
    RESPONSE_MODEL,
    SERVER_ADDRESS,
    SERVER_PORT,
    ERROR_TYPE,
)
_CLIENT = "gen_ai.client.inference"

METRICS: Final[tuple[Metric, ...]] = (
    Metric("headway.task.duration", "histogram", "s", (TASK_NAME, TASK_OUTCOME), TASK_SECONDS,
           "Time from begin to end of outermost tasks."),
    Metric("headway.task.cost", "histogram", "{USD}", (TASK_NAME, TASK_OUTCOME, COST_SOURCE),
           TASK_USD, "Known cost of outermost tasks, nested tasks and every attempt included."),
    Metric("headway.task.outcomes", "counter", "{task}",
           (TASK_NAME, TASK_OUTCOME, TASK_OUTCOME_LATE), None,
           "Verdicts on outermost tasks, late ones too."),
    Metric("headway.cost", "counter", "{USD}",
           (ENDPOINT_ID, REQUEST_MODEL, COST_SOURCE, COST_WASTED), None, "Known cost of attempts."),
    Metric("headway.cost.saved", "counter", "{USD}", (REQUEST_MODEL, DECISION), None,
           "What calls would have cost more, had they shared no request and reused no answer."),
    Metric("headway.calls.shared", "counter", "{call}", (REQUEST_MODEL, DECISION), None,
           "Calls without a request of their own: joined to another's (share), or kept (avoid)."),
    Metric("headway.attempt.duration", "histogram", "s",
           (ENDPOINT_ID, ATTEMPT_KIND, ATTEMPT_OUTCOME, ERROR_TYPE), D, "Time from send to end."),
    Metric("headway.attempt.time_to_first_chunk", "histogram", "s", (ENDPOINT_ID, REQUEST_MODEL), D,
           "Time from send to the first content of a stream."),
    Metric("headway.attempts", "counter", "{attempt}", (ENDPOINT_ID, ATTEMPT_KIND, ATTEMPT_OUTCOME),
           None, "Sends that ended."),
    Metric("headway.retry.denied", "counter", "{retry}", (RETRY_DENIED_BY,), None,
           "Retries not made, and why."),
    Metric("headway.shed", "counter", "{request}", (SHED_REASON, PRIORITY), None,
           "Calls refused here before any spend."),
    Metric("headway.queue.wait", "histogram", "s", (PRIORITY,), D,
           "Time calls waited for their turn."),
    Metric("headway.inflight", "updown", "{request}", (ENDPOINT_ID,), None, "Attempts under way."),
    Metric("headway.retry.budget.tokens", "gauge", "{token}", (RETRY_BUDGET,), None,
           "Extra attempts each budget allows now."),
    Metric("headway.breaker.state", "gauge", "1", (ENDPOINT_ID,), None,
           "0 closed, 1 half-open, 2 open."),
    Metric("headway.breaker.transitions", "counter", "{transition}", (ENDPOINT_ID, BREAKER_TO),
           None, "Breaker changes."),
    Metric("headway.policy.age", "gauge", "s", (), None, "Age of the policy in force."),
    Metric("headway.policy.rejections", "counter", "{document}", (REASON,), None,
           "Looks at the policy's source that brought nothing good, and why; each trouble once."),
    Metric("headway.select.prediction_error", "histogram", "s", (ENDPOINT_ID,), D,
           "|seen - predicted| time of calls that were answered."),
    Metric("gen_ai.client.operation.duration", "histogram", "s", _GEN_AI, D,
           "GenAI operation duration."),
    Metric(f"{_CLIENT}.duration", "histogram", "s", _GEN_AI, D, "Inference duration.", "genai-0.1"),
    Metric(f"{_CLIENT}.time_to_first_chunk", "histogram", "s", _GEN_AI, D,
           "Time to the first chunk of a stream.", "genai-0.1"),
    Metric(f"{_CLIENT}.usage.input_tokens", "counter", "{token}", (*_GEN_AI, TOKEN_MODALITY), None,
           "Input tokens used.", "genai-0.1"),
    Metric(f"{_CLIENT}.usage.output_tokens", "counter", "{token}", (*_GEN_AI, TOKEN_MODALITY), None,
           "Output tokens used.", "genai-0.1"),
    Metric(f"{_CLIENT}.usage.cache_read.input_tokens", "counter", "{token}",
           (*_GEN_AI, TOKEN_MODALITY), None, "Input tokens read from cache.", "genai-0.1"),
    Metric(f"{_CLIENT}.usage.cache_write.input_tokens", "counter", "{token}",
           (*_GEN_AI, TOKEN_MODALITY), None, "Input tokens written to cache.", "genai-0.1"),
    Metric(f"{_CLIENT}.usage.reasoning.output_tokens", "counter", "{token}",
           (*_GEN_AI, TOKEN_MODALITY), None, "Output tokens spent on reasoning.", "genai-0.1"),
    Metric(f"{_CLIENT}.operation.input_tokens", "histogram", "{token}", _GEN_AI, T,
           "Input tokens per operation.", "genai-0.1"),
    Metric(f"{_CLIENT}.operation.output_tokens", "histogram", "{token}", _GEN_AI, T,
           "Output tokens per operation.", "genai-0.1"),
    Metric("gen_ai.client.operation.time_to_first_chunk", "histogram", "s", _GEN_AI, D,
           "Time to the first chunk of a stream.", "1.41"),
    Metric("gen_ai.client.token.usage", "histogram", "{token}", (*_GEN_AI, TOKEN_TYPE), T,
           "Tokens used.", "1.41"),
)  # fmt: skip

# --------------------------------------------------------------------------- log events


class LogEvent(NamedTuple):
    """One row of the log events table."""

    name: str
    severity: str
    """INFO | WARN; an opened breaker is a WARN as well."""


BREAKER_TRANSITION: Final = LogEvent("headway.breaker.transition", "INFO")
ENDPOINT_EJECTED: Final = LogEvent("headway.endpoint.ejected", "WARN")
ENDPOINT_READMITTED: Final = LogEvent("headway.endpoint.readmitted", "INFO")
ENDPOINT_THROTTLED: Final = LogEvent("headway.endpoint.throttled", "INFO")
CREDENTIAL_BLOCKED: Final = LogEvent("headway.credential.blocked", "WARN")
LIMIT_CHANGED: Final = LogEvent("headway.limit.changed", "INFO")
POLICY_LOADED: Final = LogEvent("headway.policy.loaded", "INFO")
POLICY_REJECTED: Final = LogEvent("headway.policy.rejected", "WARN")
POLICY_STALENESS: Final = LogEvent("headway.policy.stale", "WARN")
BUDGET_EXHAUSTED: Final = LogEvent("headway.retry.budget.exhausted", "WARN")
FLEET_LOST: Final = LogEvent("headway.fleet.lost", "WARN")
FLEET_RESTORED: Final = LogEvent("headway.fleet.restored", "INFO")
SHED_STARTED: Final = LogEvent("headway.shed.started", "WARN")
SHED_STOPPED: Final = LogEvent("headway.shed.stopped", "INFO")
PRICE_UNKNOWN: Final = LogEvent("headway.price.unknown", "WARN")
EVALUATION: Final = LogEvent("gen_ai.evaluation.result", "INFO")

LOG_EVENTS: Final[tuple[LogEvent, ...]] = (
    BREAKER_TRANSITION, ENDPOINT_EJECTED, ENDPOINT_READMITTED, ENDPOINT_THROTTLED,
    CREDENTIAL_BLOCKED, LIMIT_CHANGED, POLICY_LOADED, POLICY_REJECTED, POLICY_STALENESS,
    BUDGET_EXHAUSTED, FLEET_LOST, FLEET_RESTORED,
    SHED_STARTED, SHED_STOPPED, PRICE_UNKNOWN, EVALUATION,
)  # fmt: skip

# --------------------------------------------------------------------------- what feeds what


class EventRow(NamedTuple):
    """What one type of core event turns into."""

    scope: str
    """call: seen with its call's record; process: seen through the engine's `on_event`."""
    spans: str = ""
    """The span it starts, ends or marks."""
    metrics: tuple[str, ...] = ()
    logs: tuple[LogEvent, ...] = ()


_OURS = tuple(m.name for m in METRICS if m.name.startswith("gen_ai."))

POLICY_REASONS: Final = frozenset(
    {"fetch", "too_large", "invalid", "signature", "other_policy", "rollback", "same", "expired"}
)
"""Why a document was refused: the values of headway.reason on its metric and log event."""

EVENT_ROWS: Final[dict[type, EventRow]] = {
    core.AttemptStarted: EventRow("call", "starts headway.attempt", ("headway.inflight",)),
    core.FirstToken: EventRow(
        "call", "headway.attempt.ttft_s", ("headway.attempt.time_to_first_chunk",)
    ),
    core.AttemptEnded: EventRow(
        "call",
        "ends headway.attempt",
        (
            "headway.inflight",
            "headway.attempts",
            "headway.attempt.duration",
            "headway.select.prediction_error",
        ),
    ),
    core.RetryDenied: EventRow("call", "headway.retry.denied_by", ("headway.retry.denied",)),
    core.CallQueued: EventRow("call", "headway.queue.wait_s"),
    core.CallDequeued: EventRow("call", "headway.queue.wait_s", ("headway.queue.wait",)),
    core.CallRejected: EventRow(
        "call", "error.type of the call", ("headway.shed",), (SHED_STARTED, SHED_STOPPED)
    ),
    core.CallEnded: EventRow("call", "ends the call span", ("headway.cost", *_OURS)),
    core.CallShared: EventRow(
        "call", "headway.decision", ("headway.calls.shared", "headway.cost.saved")
    ),
    core.BreakerChanged: EventRow(
        "process",
        "",
        ("headway.breaker.transitions", "headway.breaker.state"),
        (BREAKER_TRANSITION,),
    ),
    core.EndpointThrottled: EventRow("process", logs=(ENDPOINT_THROTTLED,)),
    core.CredentialBlocked: EventRow("process", logs=(CREDENTIAL_BLOCKED,)),
    core.EndpointEjected: EventRow("process", logs=(ENDPOINT_EJECTED,)),
    core.EndpointReadmitted: EventRow("process", logs=(ENDPOINT_READMITTED,)),
    core.LimitChanged: EventRow("process", logs=(LIMIT_CHANGED,)),
    core.BudgetExhausted: EventRow(
        "process", "", ("headway.retry.budget.tokens",), (BUDGET_EXHAUSTED,)
    ),
    core.FleetStoreChanged: EventRow("process", logs=(FLEET_LOST, FLEET_RESTORED)),
    core.PolicyLoaded: EventRow("process", "", ("headway.policy.age",), (POLICY_LOADED,)),
    core.PolicyRejected: EventRow(
        "process", "", ("headway.policy.rejections",), (POLICY_REJECTED,)
    ),
    core.PolicyStale: EventRow("process", "", ("headway.policy.age",), (POLICY_STALENESS,)),
}
"""Every event of the core, and what becomes of it."""

TASK_METRICS: Final = ("headway.task.duration", "headway.task.cost", "headway.task.outcomes")
"""Fed by tasks, not by events of the core; so are the next."""
TASK_LOGS: Final = (EVALUATION, PRICE_UNKNOWN)
