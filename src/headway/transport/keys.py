"""Which key goes with an attempt, and whether it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.credentials import Credential, CredentialUnavailable
from headway.errors import CredentialRefused

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.transport.ports import CallHost


def declared_credential(host: CallHost, endpoint: Endpoint) -> Credential | None:
    """The key declared for an endpoint; None: the client's own (to its own host), or none at all.

    Raises `CredentialUnavailable` when it may not go there, or was never declared.
    """
    if endpoint.credential is None:
        return None
    credential = host.credential_for(endpoint)
    if credential is None:
        raise CredentialUnavailable(
            f"credential {endpoint.credential!r} is not declared (credentials=)"
        )
    if not credential.allows(endpoint.base_url):
        raise CredentialUnavailable(
            f"credential {endpoint.credential!r} may not be sent to {endpoint.base_url}"
        )
    return credential


def credential_refused(
    exc: CredentialUnavailable, endpoint: Endpoint, request: httpx2.Request
) -> CredentialRefused:
    """What the caller sees when an endpoint could not be asked for want of its key."""
    error = CredentialRefused(
        f"endpoint {endpoint.id!r} was not asked: {exc}", endpoint=endpoint.id, request=request
    )
    error.__cause__ = exc
    return error
