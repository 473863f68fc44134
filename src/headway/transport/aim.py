"""The outgoing request: an SDK's request, aimed at an endpoint.

When nothing has to change, it is the very Request object the SDK built. Otherwise a new one is put
together from its parts: the URL (cached per endpoint and path), the body (the model spliced in),
the headers. What may identify or authorise the user never crosses to another origin.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from headway.core.snapshot import Endpoint
from headway.transport.form import FormBody
from headway.transport.home import Home, Origin, Place, origin_of
from headway.transport.limits import Limits, Timeouts

if TYPE_CHECKING:
    import httpx2

    from headway.transport.family import Family
    from headway.transport.signer import Signer

URLS_MAX = 256
"""Cached URLs per endpoint; paths name models and stored objects, so they are not a fixed set."""
TARGETS_MAX = 4096

AUTH = frozenset({b"authorization", b"api-key"})
_REPLACED = frozenset({b"host", b"content-length", b"transfer-encoding"})
IDENTITY = frozenset(
    {
        *AUTH,
        b"cookie",
        b"proxy-authorization",
        b"openai-organization",
        b"openai-project",
    }
)
_INNOCENT = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-type",
        b"content-encoding",
        b"idempotency-key",
        b"openai-beta",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-client-request-id",
    }
)
_SECRET_NAME = re.compile(
    rb"key|token|secret|auth|credential|passw|cookie|session|signature|jwt|sas|tenant|account",
    re.IGNORECASE,
)
_SECRET_PARAMETERS = frozenset({b"code", b"sig"})
"""Where Azure Functions and shared access signatures put their keys."""
_SECRET_VALUE = re.compile(
    rb"^(bearer|basic|token|apikey)\s|^(sk|pk|rk|ghp|xox[abp])[-_]", re.IGNORECASE
)


@functools.lru_cache(maxsize=1024)
def _names_secret(name: bytes) -> bool:
    return (
        name not in _INNOCENT
        and not name.startswith(b"x-stainless-")
        and (
            name in IDENTITY
            or name.startswith(b"x-amz-")  # a signature, over another host
            or _SECRET_NAME.search(name) is not None
        )
    )


def stays_home(name: bytes, value: bytes) -> bool:
    """Whether a header (lower-case name) may only go to the origin the user meant it for."""
    return _names_secret(name) or (name not in _INNOCENT and bool(_SECRET_VALUE.match(value)))


def _impersonal(query: str) -> str:
    """A query without what is known to carry keys (`?key=`, `?sig=`), by the headers' rule."""
    return "&".join(part for part in query.split("&") if not _is_secret(part))


def _is_secret(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    plain, told = unquote_to_bytes(name).lower(), unquote_to_bytes(value)
    return plain in _SECRET_PARAMETERS or stays_home(plain, told)


class Target:
    """One endpoint as seen from one client."""

    __slots__ = (
        "_urls", "azure", "base", "endpoint", "headers", "is_plain", "is_v1", "origin", "own",
        "same_origin", "signer",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, home: Home, signer: Signer | None) -> None:
        url = home.family.URL(endpoint.base_url)
        self.endpoint = endpoint
        self.azure = endpoint.dialect == "azure"
        self.origin: Origin = origin_of(url)
        self.base = endpoint.base_url.rstrip("/")
        self.same_origin = self.origin == home.origin
        path = url.raw_path.decode("ascii").partition("?")[0].rstrip("/")
        # An Azure client's base URL ends with /openai, which documents leave out.
        self.own = self.same_origin and (
            path == home.prefix
            if self.azure == home.azure
            else not self.azure and path == home.prefix  # the built-in policy names no dialect
        )
        if self.azure and home.azure and self.same_origin:
            self.own = path.removesuffix("/openai") == home.root.removesuffix("/openai")
        self.is_v1 = self.azure and f"{path}/".endswith("/openai/v1/")
        """Azure's newer API: models in bodies, and no dated versions."""
        self.signer = signer or (home.signer if self.own else None)
        """The client that signs what is sent there; None: a key will do."""
        self.headers = tuple(
            (name.encode("ascii"), value.encode("utf-8"))
            for name, value in endpoint.headers.items()
        )
        self.is_plain = self.own and not (
            self.headers or endpoint.params_drop or endpoint.params_rename or endpoint.params_set
        )
        """The client's own endpoint, and the document asks for no change to what is sent there."""
        self._urls: dict[tuple[str, str, str], tuple[httpx2.URL, bytes]] = {}

    def url(self, home: Home, place: Place, model: str) -> tuple[httpx2.URL, bytes]:
        """(URL, Host header) for a path below this endpoint's base."""
        key = (place.path, place.query, model if self.azure else "")
        found = self._urls.get(key)
        if found is None:
            url = home.family.URL(self._text(home, place, model))
            found = (url, url.netloc)
            if len(self._urls) >= URLS_MAX:
                self._urls.clear()
            self._urls[key] = found
        return found

    def _text(self, home: Home, place: Place, model: str) -> str:
        query = place.query if self.same_origin else _impersonal(place.query)
        if home.azure and not self.azure:
            # Versions are Azure's own; others refuse or ignore them.
            query = "&".join(
                part for part in query.split("&") if part and not part.startswith("api-version=")
            )
        base, path = self.base, place.path
        if self.azure:
            if "/openai" not in base.partition("://")[2]:
                base += "/openai"
            if path in DEPLOYMENT_PATHS and "/deployments/" not in base and not self.is_v1:
                path = f"/deployments/{_segment(model)}{path}"
            version = self.endpoint.api_version
            if version is None and self.signer is not None and not self.is_v1:
                version = self.signer.query.get("api-version")
            if version or self.is_v1:
                kept = [p for p in query.split("&") if p and not p.startswith("api-version=")]
                query = "&".join([*kept, f"api-version={version}"] if version else kept)
        return f"{base}{path}{'?' if query else ''}{query}"


DEPLOYMENT_PATHS = frozenset(
    {
        "/completions",
        "/chat/completions",
        "/embeddings",
        "/audio/transcriptions",
        "/audio/translations",
        "/audio/speech",
        "/images/generations",
        "/images/edits",
    }
)
"""Where Azure names the model in the path."""


def _segment(model: str) -> str:
    return quote(model, safe="")


class Shot(NamedTuple):
    """What differs from the SDK's request, for one attempt."""

    body: bytes | FormBody | None
    """None: as it is (and it may be a stream that can be read only once)."""
    secret: tuple[str, str] | None
    """(header name, value) of the endpoint's own credential."""
    extra_headers: dict[str, str]
    """Trace propagation, only if configured."""
    plain_encoding: bool
    """Ask for an uncompressed reply, because the stream is watched."""
    other_model: bool
    """The upstream model is not the requested one."""


class Aim:
    """Aims the requests of one client; remembers what it worked out per endpoint."""

    def __init__(self, home: Home, signer_for: Callable[[Endpoint], Signer | None]) -> None:
        self._home = home
        self._signer_for = signer_for
        self._targets: dict[str, Target] = {}

    def target(self, endpoint: Endpoint) -> Target:
        """The endpoint as this client sees it."""
        target = self._targets.get(endpoint.id)
        if target is None or target.endpoint is not endpoint:
            if len(self._targets) >= TARGETS_MAX:
                self._targets.clear()
            target = self._targets[endpoint.id] = Target(
                endpoint, self._home, self._signer_for(endpoint)
            )
        return target

    def request(
        self,
        original: httpx2.Request,
        target: Target,
        place: Place,
        model: str,
        shot: Shot,
        extensions: dict[str, Any],
    ) -> httpx2.Request:
        """The request to send. `place` has no Azure deployment in it, `model` is upstream's."""
        own_url = target.own and not (self._home.azure and shot.other_model)
        changed = (
            not own_url
            or shot.body is not None
            or shot.secret is not None
            or bool(shot.extra_headers)
            or bool(target.headers)
            or target.signer is not None
        )
        if not changed:
            original.extensions = extensions
            return original
        family = self._home.family
        url, host = (
            (original.url, original.url.netloc) if own_url else target.url(self._home, place, model)
        )
        return family.Request(
            original.method,
            url,
            headers=_headers(original, target, shot, host),
            stream=_stream(original, shot.body, family),
            extensions=extensions,
        )


def _stream(original: httpx2.Request, body: bytes | FormBody | None, family: Family) -> Any:
    if body is None:
        return original.stream
    return body.stream if isinstance(body, FormBody) else family.ByteStream(body)


def _headers(
    original: httpx2.Request, target: Target, shot: Shot, host: bytes
) -> list[tuple[bytes, bytes]]:
    headers = [(b"Host", host)]
    replaced = _REPLACED if shot.body is not None else frozenset({b"host"})
    own_names = {name.lower() for name, _ in target.headers}
    for name, value in original.headers.raw:
        lower = name.lower()
        if lower in replaced or lower in own_names:
            continue
        if lower in AUTH and shot.secret is not None:
            continue
        if not target.same_origin and stays_home(lower, value):
            continue
        if shot.plain_encoding and lower == b"accept-encoding":
            value = b"identity"
        headers.append((name, value))
    if isinstance(shot.body, FormBody):
        headers.extend(shot.body.headers)
    elif shot.body is not None:
        headers.append((b"Content-Length", b"%d" % len(shot.body)))
    headers.extend(target.headers)
    for text, content in shot.extra_headers.items():
        headers.append((text.encode("ascii"), content.encode("ascii")))
    if shot.secret is not None:
        headers.append((shot.secret[0].encode("ascii"), shot.secret[1].encode("ascii")))
    return headers


def limited(extensions: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Request extensions with the attempt's own timeouts; the user's stay as they were."""
    user: dict[str, float | None] = extensions.get("timeout") or {}
    return {**extensions, "timeout": Timeouts(user, limits)}
