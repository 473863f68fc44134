"""Redirects of managed calls: never followed with a key and a prompt in hand.

The http client above would follow them, turning a POST into a GET for 301 to 303, and sending the
prompt and custom headers wherever the server says for 307 and 308. A model endpoint that redirects
is a base URL that is wrong, so that is what the caller is told.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

HOP = "headway.hop"
"""Request extension: a redirect copies it, so that the next hop is not taken for a new call."""

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.transport.family import Family


def forbidden(family: Family, response: httpx2.Response, endpoint: Endpoint) -> httpx2.Response:
    """The same reply without its Location, saying what is wrong."""
    where = response.headers.get("location", "nowhere")
    message = (
        f"Endpoint {endpoint.id!r} answered {response.status_code}, a redirect to {where!r}. "
        f"Headway does not carry a prompt to another address: correct the endpoint's base_url "
        f"({endpoint.base_url})."
    )
    body = json.dumps(
        {"error": {"message": message, "type": "headway_redirect", "param": None, "code": None}}
    ).encode()
    headers = [
        (name, value)
        for name, value in response.headers.raw
        if name.lower() not in (b"location", b"content-length", b"content-encoding")
    ]
    return family.Response(
        response.status_code,
        headers=[*headers, (b"content-type", b"application/json")],
        content=body,
        extensions=response.extensions,
    )
