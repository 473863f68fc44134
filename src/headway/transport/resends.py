"""What the SDK's own retry loop does, as far as a transport can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

    from headway.transport.trial import Trial


def sends_before(request: httpx2.Request) -> int:
    """How often the SDK says that it has sent a request before."""
    count = request.headers.get("x-stainless-retry-count", "")
    return int(count) if count.isdecimal() else 0


def is_retried_by_sdk(trial: Trial) -> bool:
    """Whether the SDK sends a request again that came to this, if it has attempts left."""
    if trial.error is not None:
        return True
    response = trial.response
    assert response is not None
    told = trial.headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true" and response.status_code >= 400
    return response.status_code in (408, 409, 429) or response.status_code >= 500
