"""Redirects: followed where the key and the prompt may go, an error that says so elsewhere.

The http client above would follow any, turning a POST into a GET for 301 to 303, and sending the
prompt and custom headers wherever the server says for 307 and 308. Here a managed request follows
307 and 308 (and a GET all five) to its own origin, and to the origin of another endpoint of the
policy with what may go there; whatever else a model endpoint answers with a redirect is a base URL
that is wrong, and the caller is told. What merely passes through us is still redirected by the http
client, but takes nothing personal and no body to another origin.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headway.transport.aim import stays_home
from headway.transport.home import origin_of
from headway.transport.keys import declared_credential

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.transport.desk import Desk
    from headway.transport.home import Origin

HOP = "headway.hop"
"""Request extension: a redirect copies it, so that the next hop is not taken for a new call. Its
value is PLAIN or BARE."""
PLAIN = "plain"
"""The next hop goes as the http client makes it."""
BARE = "bare"
"""The next hop goes without what is personal, unless it stays at the client's own origin."""
HOPS_MAX = 5
"""A model endpoint has no reason for even two."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEEPING = frozenset({307, 308})
"""They repeat the request as it was, the others turn a POST into a GET."""
_READS = frozenset({"GET", "HEAD"})


def onward(
    desk: Desk,
    endpoint: Endpoint,
    request: httpx2.Request,
    response: httpx2.Response,
    secret: tuple[str, str] | None,
) -> httpx2.Request | None:
    """The request that a redirect leads to; None where it is none, or leads where it may not go."""
    status = response.status_code
    if status not in _KEEPING and not (status in REDIRECTS and request.method in _READS):
        return None
    url = _target(request, response)
    if url is None or not desk.home.follows_redirects:
        return None
    if desk.aim.target(endpoint).signer is not None:
        return None  # what is signed is signed for this very URL
    origin, before = origin_of(url), origin_of(request.url)
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
    if origin != before:
        if not _is_listed(desk, origin) or (before[0] == "https" and origin[0] != "https"):
            return None
        headers = _portable(headers, endpoint, secret)
        credential = declared_credential(desk.host, endpoint)
        if secret is not None and credential is not None and credential.allows(str(url)):
            headers.append((secret[0].encode("ascii"), secret[1].encode("ascii")))
    return desk.home.family.Request(
        request.method,
        url,
        headers=[(b"Host", url.netloc), *headers],
        stream=request.stream,
        extensions=request.extensions,
    )


def _target(request: httpx2.Request, response: httpx2.Response) -> httpx2.URL | None:
    location = response.headers.get("location")
    if not location:
        return None
    try:
        url = request.url.join(location)
    except Exception:  # noqa: BLE001 - InvalidURL, of either library, or what it lets through
        return None
    return url if url.scheme in ("http", "https") and url.host and not url.userinfo else None


def _is_listed(desk: Desk, origin: Origin) -> bool:
    endpoints = desk.host.engine.snapshot.endpoints.values()
    return any(desk.aim.target(endpoint).origin == origin for endpoint in endpoints)


def _portable(
    headers: list[tuple[bytes, bytes]], endpoint: Endpoint, secret: tuple[str, str] | None
) -> list[tuple[bytes, bytes]]:
    """Headers without what is the user's own or the endpoint's own."""
    own = {name.lower().encode("ascii") for name in endpoint.headers}
    if secret is not None:
        own.add(secret[0].lower().encode("ascii"))
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in own and not stays_home(lower, value)
    ]


def forbidden(desk: Desk, response: httpx2.Response, endpoint: Endpoint | None) -> httpx2.Response:
    """The same reply without its Location, saying what is wrong."""
    where = response.headers.get("location", "nowhere")
    name, base_url = (
        (f"Endpoint {endpoint.id!r}", endpoint.base_url)
        if endpoint is not None
        else ("The client's own host", desk.home.base_url)
    )
    message = (
        f"{name} answered {response.status_code}, a redirect to {where!r}. "
        f"Headway does not carry a prompt to another address: correct the endpoint's base_url "
        f"({base_url})."
    )
    body = json.dumps(
        {"error": {"message": message, "type": "headway_redirect", "param": None, "code": None}}
    ).encode()
    headers = [
        (name, value)
        for name, value in response.headers.raw
        if name.lower() not in (b"location", b"content-length", b"content-encoding")
    ]
    return desk.home.family.Response(
        response.status_code,
        headers=[*headers, (b"content-type", b"application/json")],
        content=body,
        extensions=response.extensions,
    )


# --------------------------------------------------------------------------- what passes through


def guarded(desk: Desk, request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether the http client may follow a redirect of a request that only passes through us.

    Where it leads to another origin, the next hop is marked to go without what is personal; no body
    goes there at all.
    """
    if desk.host.disabled or not desk.home.is_origin_of(request.url):
        return True
    url = _target(request, response)
    if url is None or origin_of(url) == origin_of(request.url):
        return True
    if response.status_code in _KEEPING and request.method not in _READS:
        return False
    request.extensions = {**request.extensions, HOP: BARE}
    return True


def bare(desk: Desk, request: httpx2.Request) -> httpx2.Request:
    """A redirected request without what is personal."""
    if desk.home.is_origin_of(request.url):
        return request
    return desk.home.family.Request(
        request.method,
        request.url,
        headers=[
            (name, value)
            for name, value in request.headers.raw
            if not stays_home(name.lower(), value)
        ],
        stream=request.stream,
        extensions=request.extensions,
    )
