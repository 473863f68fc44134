"""The table: what each provider, engine, CDN and proxy means by its refusals.

A row applies when its status, one of its codes (or types) and its text all match; a condition that
is left out matches anything, and where no status is known (in-band errors) names and texts decide.
Rows are tried in order, the first match wins: named codes before
texts, texts before bare statuses. A row added here needs one recorded reply under
`tests/quirks/<provider>/<row>*.json`.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.core.model import FailureClass

_C = FailureClass


class Quirk(NamedTuple):
    """One row: which replies, and what they mean."""

    name: str
    provider: str
    """Whose reply it is; "any" where several say the same."""
    kind: FailureClass
    status: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    """Lower-case values of the error's code, type, status or inner code."""
    text: str | None = None
    """A pattern, searched (ignoring case) in the error's texts, or in the first KiB of a body that
    is not JSON."""
    error_type: str | None = None
    """Telemetry name; None: the status."""
    reached_model: bool = False
    """True when a model may have run (and been billed) before the failure."""
    soft: bool = False
    note: str = ""


def _row(
    name: str,
    provider: str,
    kind: FailureClass,
    *,
    status: int | tuple[int, ...] = (),
    codes: str = "",
    text: str | None = None,
    error_type: str | None = None,
    ran: bool = False,
    soft: bool = False,
    note: str = "",
) -> Quirk:
    return Quirk(
        name=name,
        provider=provider,
        kind=kind,
        status=frozenset((status,) if isinstance(status, int) else status),
        codes=frozenset(codes.split()),
        text=text,
        error_type=error_type,
        reached_model=ran,
        soft=soft,
        note=note,
    )


# fmt: off
QUIRKS: tuple[Quirk, ...] = (
    # ---- quota: the account is spent; waiting seconds does not help
    _row("insufficient-quota", "openai", _C.QUOTA_EXHAUSTED,
         codes="insufficient_quota billing_hard_limit_reached billing_not_active",
         error_type="insufficient_quota", note="429 or 403; not a rate limit"),
    _row("billing", "anthropic", _C.QUOTA_EXHAUSTED, codes="billing_error",
         error_type="insufficient_quota", note="402"),
    _row("budget-exceeded", "litellm", _C.QUOTA_EXHAUSTED, codes="budget_exceeded",
         error_type="insufficient_quota", note="proxy budget, sent as 400 or 429"),
    _row("quota-per-day", "gemini", _C.QUOTA_EXHAUSTED, status=429, codes="resource_exhausted",
         text=r"PerDay|per day", error_type="insufficient_quota",
         note="a daily quota id in the details"),
    _row("resource-exhausted", "gemini", _C.RATE_LIMITED, codes="resource_exhausted",
         error_type="rate_limit_exceeded",
         note="per-minute quota; the text says quota, RetryInfo says when"),
    _row("credit-text", "any", _C.QUOTA_EXHAUSTED, status=(400, 402, 403, 429),
         text=r"credit balance is too low|insufficient (?:credits|balance|funds|quota)"
              r"|exceeded your current quota|spend(?:ing)? (?:cap|limit)|billing hard limit"
              r"|(?:run|ran) out of credits|too many tokens per day|payment required"
              r"|exceeded (?:its|your) (?:monthly|daily) (?:spend|budget|quota)",
         error_type="insufficient_quota", note="message only, no code"),
    _row("payment", "openrouter", _C.QUOTA_EXHAUSTED, status=402, error_type="insufficient_quota",
         note="402 from any provider"),
    # ---- what the request itself is
    _row("content-filter", "azure", _C.CONTENT_FILTER,
         codes="content_filter responsibleaipolicyviolation content_policy_violation"
               " moderation_blocked image_generation_user_error",
         error_type="content_filter", note="400 with innererror"),
    _row("moderated", "openrouter", _C.CONTENT_FILTER, status=403,
         text=r"moderation|flagged", error_type="content_filter", note="403 with metadata.reasons"),
    _row("content-filter-text", "any", _C.CONTENT_FILTER, status=(400, 403, 422),
         text=r"content (?:management )?policy|content[ _]filter(?:ing)?|safety system"
              r"|blocked by (?:our )?(?:safety|guardrail)|guardrail (?:intervened|blocked)",
         error_type="content_filter", note="message only"),
    _row("context-length", "openai", _C.CONTEXT_LENGTH,
         codes="context_length_exceeded string_above_max_length exceed_context_size_error"
               " context_window_exceeded contextwindowexceedederror request_too_large",
         error_type="context_length_exceeded", note="also llama.cpp and Anthropic codes"),
    _row("context-length-text", "any", _C.CONTEXT_LENGTH, status=(400, 413, 422, 500),
         text=r"maximum context length|max(?:imum)? (?:model|sequence|context) len"
              r"|context[ _](?:length|window|size)|longer than the (?:model's|maximum)"
              r"|prompt is too long|input is too long|too many (?:input |total )?tokens\b(?! per)"
              r"|token count[^.]{0,60}exceeds|exceeds the (?:maximum|max|model's|available)"
              r"[^.]{0,40}(?:tokens|context)|input (?:tokens )?exceeds?|reduce the length of"
              r"|tokens? in your (?:prompt|request)|prompt (?:tokens|length)[^.]{0,40}exceed",
         error_type="context_length_exceeded",
         note="vLLM, SGLang, Gemini, Bedrock, Ollama: message only"),
    _row("body-too-large", "proxy", _C.CONTEXT_LENGTH, status=413,
         note="bytes, not tokens; only an endpoint with a larger limit will do"),
    # ---- whose key, whose account
    _row("key-in-400", "gemini", _C.AUTH, status=400,
         text=r"api key (?:not valid|expired|invalid)|invalid api key", error_type="401",
         note="an invalid key answered 400"),
    _row("bad-key", "openai", _C.AUTH,
         codes="invalid_api_key authentication_error unauthenticated invalid_authentication"
               " unrecognizedclientexception expiredtokenexception invalidsignatureexception"
               " incompletesignatureexception missingauthenticationtokenexception",
         note="401, and Bedrock's 403s"),
    _row("permission", "any", _C.AUTH,
         codes="permission_error permission_denied accessdeniedexception permissiondenied"
               " unsupported_country_region_territory account_deactivated org_not_verified",
         note="403"),
    # ---- what does not exist there
    _row("deployment-not-found", "azure", _C.NOT_FOUND,
         codes="deploymentnotfound resourcenotfound invalidendpoint",
         error_type="model_not_found", note="404; the deployment is missing"),
    _row("model-not-found", "openai", _C.NOT_FOUND,
         codes="model_not_found not_found_error notfounderror resourcenotfoundexception not_found"
               " model_not_available unknown_model invalid_model model_decommissioned",
         error_type="model_not_found", note="404, sometimes 400"),
    _row("model-not-found-text", "ollama", _C.NOT_FOUND, status=(400, 404),
         text=r"model [^.]{0,120}(?:not found|does not exist|is not (?:supported|available|found))"
              r"|no (?:allowed|available|such) (?:model|provider)|no endpoints found"
              r"|invalid model(?: id| identifier| name)?",
         error_type="model_not_found", note="also OpenRouter, Bedrock, LiteLLM; 400 or 404"),
    # ---- limits
    _row("slow-down", "openai", _C.OVERLOADED, codes="slow_down", error_type="503",
         note="503: ramping up too fast"),
    _row("overloaded", "anthropic", _C.OVERLOADED,
         codes="overloaded_error overloaded engine_overloaded model_overloaded server_overloaded",
         error_type="overloaded", note="529, also in-band and inside a 200"),
    _row("unavailable", "gemini", _C.OVERLOADED, status=503, codes="unavailable",
         error_type="overloaded", note="the model is overloaded"),
    _row("loading", "llama_cpp", _C.OVERLOADED, codes="unavailable_error", error_type="overloaded",
         note="503 while the model loads or no slot is free"),
    _row("busy", "ollama", _C.OVERLOADED, status=(429, 503),
         text=r"server busy|maximum pending requests|queue (?:is )?full|no (?:available )?slots?",
         error_type="overloaded", note="queue full"),
    _row("capacity", "any", _C.OVERLOADED,
         codes="modelnotready nocapacity capacity_exceeded no_capacity modelnotreadyexception"
               " serviceunavailableexception resource_unavailable flex_unavailable",
         error_type="overloaded",
         note="Azure and Bedrock out of capacity, flex tiers"),
    _row("throttled", "bedrock", _C.RATE_LIMITED,
         codes="throttlingexception toomanyrequestsexception throttling_error throttled"
               " requestlimitexceeded",
         error_type="rate_limit_exceeded", note="429, sometimes 400"),
    _row("rate-limit", "openai", _C.RATE_LIMITED,
         codes="rate_limit_exceeded rate_limit_error ratelimitreached too_many_requests"
               " rate_limit_reached toomanyrequests tokens_exceeded_error",
         error_type="rate_limit_exceeded", note="any status, also in-band"),
    _row("provisioned", "azure", _C.RATE_LIMITED, status=429,
         text=r"provisioned|exceeded (?:call|token|the) rate limit|rate limit",
         note="PTU full or pay-as-you-go limit; the wait is in retry-after-ms or in the text"),
    _row("service-quota", "bedrock", _C.QUOTA_EXHAUSTED, codes="servicequotaexceededexception",
         error_type="insufficient_quota", note="400"),
    # ---- gateways with a name of their own
    _row("model-timeout", "bedrock", _C.SERVER_ERROR, codes="modeltimeoutexception", ran=True,
         note="408 after the model ran too long"),
    _row("deadline", "gemini", _C.SERVER_ERROR, status=504, codes="deadline_exceeded", ran=True,
         note="504"),
    _row("envoy", "proxy", _C.OVERLOADED, status=(502, 503),
         text=r"no healthy upstream|upstream connect error|upstream_overflow"
              r"|no available (?:workers?|backends?|servers?)",
         note="nobody behind the proxy: not sent on"),
    _row("blocked-page", "cdn", _C.SERVER_ERROR, status=403, text=r"<(?:html|!doctype)", soft=True,
         note="a firewall's page, not the API's answer: no verdict on the key"),
    _row("invalid-request", "openai", _C.BAD_REQUEST, status=(400, 422),
         codes="invalid_request_error invalid_prompt invalid_argument validationexception"
               " badrequesterror bad_request_error unprocessable_entity",
         note="also in-band, where there is no status"),
    _row("no-such-path", "ollama", _C.NOT_FOUND, status=404, text=r"^404 page not found\s*$",
         note="any Go server's, for a path it doesn't serve; Traefik's, too, without a backend"),
    _row("nobody-home", "proxy", _C.SERVER_ERROR, status=404,
         text=r"^\(empty body\)$|^<|^default backend",
         note="no API answered: a restart, an ingress without a backend, a wrong host"),
    # ---- bare statuses
    _row("redirect", "any", _C.NOT_FOUND, status=(301, 302, 303, 307, 308),
         note="base_url points elsewhere"),
    _row("unauthorized", "any", _C.AUTH, status=(401, 403, 407)),
    _row("not-found", "any", _C.NOT_FOUND, status=(404, 410, 501, 505)),
    _row("conflict", "any", _C.SERVER_ERROR, status=(409, 425), soft=True),
    _row("request-timeout", "any", _C.SERVER_ERROR, status=408, soft=True, ran=True),
    _row("failed-dependency", "bedrock", _C.SERVER_ERROR, status=424, ran=True,
         note="ModelErrorException"),
    _row("too-many", "any", _C.RATE_LIMITED, status=429),
    _row("flex-capacity", "groq", _C.OVERLOADED, status=498),
    _row("client-closed", "proxy", _C.SERVER_ERROR, status=(460, 499), ran=True,
         note="a proxy's word; we did not close"),
    _row("internal", "any", _C.SERVER_ERROR, status=500, ran=True),
    _row("bad-gateway", "proxy", _C.SERVER_ERROR, status=502, ran=True),
    _row("unavailable-status", "any", _C.OVERLOADED, status=(503, 507, 529)),
    _row("gateway-timeout", "proxy", _C.SERVER_ERROR, status=(504, 524, 598, 599), ran=True),
    _row("origin-unreachable", "cdn", _C.SERVER_ERROR, status=(521, 522, 523, 525, 526, 530),
         note="the CDN never reached the origin"),
)
# fmt: on
"""Every known refusal. What no row knows: 4xx is bad_request, 5xx server_error."""
