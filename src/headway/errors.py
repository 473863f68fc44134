# long: every error in one place, beside the openai class that it also is
"""What Headway raises.

Every refusal is both a `HeadwayError` and the openai class an application already catches, so
adopting Headway needs no new `except`. What an upstream said is never replaced by one of these:
they are raised only for what Headway itself decided, or for a stream that broke after its first
token, where the openai classes have no place for what was received.

    HeadwayError
    |-- WrapError (TypeError)              wrap() was given something it can't wrap
    |-- Rejected (openai.APIStatusError)   refused before any spend
    |   |-- Shed (openai.RateLimitError)               429
    |   |-- NoEndpointAvailable (openai.InternalServerError)  503
    |   `-- TaskLimitExceeded                          402
    |-- DeadlineExceeded (openai.APITimeoutError)
    |-- StreamInterrupted (openai.APIConnectionError)
    |   `-- StreamStalled (openai.APITimeoutError), StreamTimedOut (DeadlineExceeded)
    |-- CredentialRefused (openai.APIConnectionError)
    `-- PolicyError: FetchError, ValidationError, VerifyError
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import openai

from headway.core.model import Rejection, Usage

if TYPE_CHECKING:
    import httpx2

__all__ = [
    "CredentialRefused",
    "DeadlineExceeded",
    "FetchError",
    "HeadwayError",
    "NoEndpointAvailable",
    "PartialAnswer",
    "PolicyError",
    "Rejected",
    "Shed",
    "StreamInterrupted",
    "StreamStalled",
    "StreamTimedOut",
    "TaskLimitExceeded",
    "ToolCall",
    "ValidationError",
    "VerifyError",
    "WrapError",
    "pass_on",
    "rejection_error",
    "upstream_error",
]


SDK_MAJOR = int(openai.__version__.partition(".")[0])


class HeadwayError(Exception):
    """Base of everything Headway raises. Subclasses are named for what the caller meets."""


class WrapError(HeadwayError, TypeError):
    """`wrap()` was given something that can't be wrapped, or was wrapped already."""


# --------------------------------------------------------------------------- requests to blame
#
# openai's error classes insist on a request, and status errors on a response. A task cap is checked
# before either exists, so they are made on demand, of the http family that the application uses.


def _http_module(request: object | None) -> Any:  # the two families have no common base
    if request is not None:
        return sys.modules[type(request).__module__.partition(".")[0]]
    for name in ("httpx2", "httpx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("openai needs httpx2 or httpx, and neither can be imported")


def _blank_request() -> httpx2.Request:
    return cast("httpx2.Request", _http_module(None).Request("POST", "https://headway.invalid/"))


def _synthetic_response(
    status: int, request: httpx2.Request, body: Mapping[str, object], retry_after_s: float | None
) -> httpx2.Response:
    headers = {"content-type": "application/json", "x-should-retry": "false"}
    if retry_after_s is not None:
        headers["retry-after-ms"] = str(max(int(retry_after_s * 1000), 1))
    return cast(
        "httpx2.Response",
        _http_module(request).Response(
            status,
            headers=headers,
            content=json.dumps({"error": body}).encode(),
            request=request,
        ),
    )


def _revive(cls: type[Exception], args: tuple[object, ...], state: dict[str, Any]) -> Exception:
    """Rebuild a pickled error; requests travel as (method, url), so no key travels with them."""
    error = cls.__new__(cls)
    error.args = args
    where = state.pop("_where", None)
    status = state.pop("_status", None)
    error.__dict__.update(state)
    if where is not None:
        request = _http_module(None).Request(*where)
        error.__dict__["request"] = request
        if status is not None:
            error.__dict__["response"] = _synthetic_response(
                status, request, state.get("body") or {}, state.get("retry_after_s")
            )
    return error


class _WireError(HeadwayError):
    """Shared by the errors that are also openai errors: how they are pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        request = state.pop("request", None)
        response = state.pop("response", None)
        if request is not None:
            bare = request.url.copy_with(username="", password="", query=None)  # may hold keys
            state["_where"] = (request.method, str(bare))
        if response is not None:
            state["_status"] = response.status_code
        return _revive, (type(self), self.args, state)


# --------------------------------------------------------------------------- refusals


class Rejected(_WireError, openai.APIStatusError):  # noqa: N818
    """A call was refused before anything was spent on it.

    `reason` is a short fixed word ("queue_full", "max_cost", ...), `retry_after_s` the seconds
    after which it may be worth asking again, when that is known.
    """

    status: ClassVar[int] = 429
    code_prefix: ClassVar[str] = "headway_rejected"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        retry_after_s: float | None = None,
        request: httpx2.Request | None = None,
    ) -> None:
        self.reason = reason
        """A fixed word."""
        self.retry_after_s = retry_after_s
        """Seconds after which asking again may help; None: unknown."""
        body = {
            "message": message,
            "type": self.code_prefix,
            "code": self.code_prefix,
            "param": reason,
        }
        response = _synthetic_response(
            self.status, request or _blank_request(), body, retry_after_s
        )
        super().__init__(message, response=response, body=body)


class Shed(Rejected, openai.RateLimitError):
    """Admission refused the call: the queue is full, the wait would be too long, or it is
    background work, and the endpoints are overloaded."""

    status: ClassVar[int] = 429
    code_prefix: ClassVar[str] = "headway_shed"


class NoEndpointAvailable(Rejected, openai.InternalServerError):
    """Every endpoint that could serve the call is out. The message says which and until when."""

    status: ClassVar[int] = 503
    code_prefix: ClassVar[str] = "headway_no_endpoint"


class TaskLimitExceeded(Rejected):
    """A cap of the task, or its tenant's budget, can't carry another call: `reason` names it
    ("max_cost", "tenant_max_cost", ...)."""

    status: ClassVar[int] = 402
    code_prefix: ClassVar[str] = "headway_task_limit"


class DeadlineExceeded(_WireError, openai.APITimeoutError):  # noqa: N818
    """The total deadline of the call or its task has passed."""

    def __init__(self, message: str, *, request: httpx2.Request | None = None) -> None:
        super().__init__(request=request or _blank_request())
        self.message = message
        self.args = (message,)


class CredentialRefused(_WireError, openai.APIConnectionError):  # noqa: N818
    """The key an endpoint needs can't be had, or may not be sent to that host."""

    def __init__(
        self, message: str, *, endpoint: str, request: httpx2.Request | None = None
    ) -> None:
        super().__init__(message=message, request=request or _blank_request())
        self.endpoint = endpoint
        """Id of the endpoint."""


# --------------------------------------------------------------------------- broken streams


@dataclass(slots=True)
class ToolCall:
    """A tool call as far as it was received: `arguments` is JSON text that may be cut anywhere."""

    id: str | None = None
    name: str | None = None
    arguments: str = field(default="", repr=False)  # what was generated is in no log by accident


@dataclass(slots=True)
class PartialAnswer:
    """What a stream delivered before it broke."""

    text: str = field(default="", repr=False)
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])


class StreamInterrupted(_WireError, openai.APIConnectionError):  # noqa: N818
    """A stream broke after its first content token, so nobody else may take over silently.

    `partial` is what had arrived, `usage` the token counts as far as they are known, `endpoint` the
    id of the endpoint, `cause` the exception underneath (None when the server itself ended the
    stream, or reported an error in it).
    """

    def __init__(
        self,
        message: str,
        *,
        partial: PartialAnswer | None = None,
        usage: Usage | None = None,
        endpoint: str | None = None,
        cause: BaseException | None = None,
        request: httpx2.Request | None = None,
    ) -> None:
        openai.APIConnectionError.__init__(
            self, message=message, request=request or _blank_request()
        )
        self.partial = partial if partial is not None else PartialAnswer()
        """What had come."""
        self.usage = usage
        """Token counts, as far as known."""
        self.endpoint = endpoint
        """Id of the endpoint."""
        self.cause = cause
        """The exception underneath; None: the server itself ended it."""
        self.__cause__ = cause

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (cls, args, state) = super().__reduce__()
        # A transport's exception may hold sockets: its text is what is worth keeping.
        state["cause"] = None if self.cause is None else RuntimeError(repr(self.cause))
        return rebuild, (cls, args, state)


class StreamStalled(StreamInterrupted, openai.APITimeoutError):
    """The stream went silent for longer than the route, or the call's own timeout, allows."""


class StreamTimedOut(StreamInterrupted, DeadlineExceeded):
    """The total deadline passed while the answer was streaming."""


# --------------------------------------------------------------------------- policy documents


_IN_CODE: Final = "the policy given in code"


class PolicyError(HeadwayError):
    """A policy document can't be used.

    `path` is the JSON path of the place ("routes[0].weights.vllm-1"), `source` where the document
    came from, `expected` what should have stood there.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        source: str | None = None,
        expected: str | None = None,
    ) -> None:
        self.message = message
        """What is wrong."""
        self.path = path
        """JSON path of the place."""
        self.source = source
        """Where the document is from."""
        self.expected = expected
        """What should have stood there."""
        text = message if path is None else f"{path}: {message}"
        if expected is not None:
            text += f" (expected {expected})"
        if source is not None:
            text += f" [{_IN_CODE if source == 'static' else source}]"
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, dict(self.__dict__))


class FetchError(PolicyError):
    """The document could not be had from its source."""


class ValidationError(PolicyError):
    """The document was read, and is wrong."""


class VerifyError(PolicyError):
    """The document is older than one already trusted, has expired, or isn't properly signed."""


# --------------------------------------------------------------------------- from the core's words


def rejection_error(
    rejection: Rejection,
    request: httpx2.Request | None = None,
    *,
    model: str | None = None,
) -> HeadwayError:
    """The exception for a core `Rejection`; `request` is the one the application's SDK built."""
    asked = f" for model {model!r}" if model else ""
    where = _whereabouts(rejection)
    match rejection.reason:
        case "deadline":
            return DeadlineExceeded(
                f"The deadline of the call{asked} passed before an answer came{where}. "
                "Give it a longer deadline, or a faster route.",
                request=request,
            )
        case "no_endpoint" | "policy_expired" if not _all_throttled(rejection):
            why = (
                "the policy has expired and says to stop (on_expiry: fail)"
                if rejection.reason == "policy_expired"
                else "every endpoint that could serve it is out"
            )
            return NoEndpointAvailable(
                f"Headway sent nothing{asked}: {why}{where}.",
                reason=rejection.reason,
                retry_after_s=rejection.retry_after_s,
                request=request,
            )
        case reason:
            what = {
                "queue_full": "the queue is full",
                "queue_wait": "the wait for a free slot would be too long",
                "yielded": "the endpoints are overloaded, and this is background work",
                "no_endpoint": "every endpoint asked for quiet",
            }.get(reason, reason.replace("_", " "))
            later = (
                ""
                if rejection.retry_after_s is None
                else f" Try again in {rejection.retry_after_s:.3g} s."
            )
            return Shed(
                f"Headway held the call{asked} back: {what}{where}.{later}",
                reason=reason,
                retry_after_s=rejection.retry_after_s,
                request=request,
            )


def _all_throttled(rejection: Rejection) -> bool:
    # A caller that backs off on RateLimitError should do so here too.
    return bool(rejection.detail) and all("throttl" in why for _, why, _ in rejection.detail)


def _whereabouts(rejection: Rejection) -> str:
    if not rejection.detail:
        return ""
    parts = [
        f"{endpoint}: {why}" + (f" for {left:.3g} s" if 0 < left < float("inf") else "")
        for endpoint, why, left in rejection.detail[:8]  # a message, not a report
    ]
    more = len(rejection.detail) - len(parts)
    return f" ({'; '.join(parts)}{f'; and {more} more' if more > 0 else ''})"


def upstream_error(
    exc: BaseException, request: httpx2.Request, note: str, *, timed_out: bool, detail: str = ""
) -> openai.APIConnectionError:
    """What the SDK would make of `exc`, made here so that the SDK doesn't send the call again."""
    told = detail or f"{type(exc).__name__}: {exc}".removesuffix(": ")
    if timed_out:
        error: openai.APIConnectionError = openai.APITimeoutError(request=request)
        error.message = f"{error.message} {told}"
        error.args = (error.message,)
    else:
        error = openai.APIConnectionError(message=f"Connection error. {told}", request=request)
    error.__cause__ = exc
    error.add_note(note)
    return error


def no_api_error(
    response: httpx2.Response, text: str, note: str, *, endpoint: str
) -> openai.APIResponseValidationError:
    """A web page came with a 200: what a client that validates strictly says to it."""
    status, start = response.status_code, " ".join(text[:200].split())
    error = openai.APIResponseValidationError(
        response=response,
        body=text,
        message=f"Endpoint {endpoint!r} answered with a web page ({status}): {start!r}. Its "
        "base_url leads to no API (is a /v1 missing?), or something on the way wants a login.",
    )
    error.add_note(note)
    return error


def pass_on(exc: BaseException, request: httpx2.Request) -> None:
    """An application's own exception goes up as it is, but for openai 2, which would send the call
    again: raises what that makes of it in the end."""
    if SDK_MAJOR < 3 and isinstance(exc, Exception) and not isinstance(exc, openai.OpenAIError):
        raise upstream_error(exc, request, "", timed_out=False) from exc
