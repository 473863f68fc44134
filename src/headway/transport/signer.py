"""A client of the SDK that is an endpoint: it brings its own key, or signs each request itself.

Azure with a token provider, Bedrock's signatures over host and body, Vertex's tokens: the SDK's own
clients know how. So a request for such an endpoint is put together here, and handed to its client
as the SDK would hand it one: for its headers, for its signature, and for its connections.

The client is known by the few methods that the SDK's own request loop calls; nothing is imported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from headway.credentials import Credential, CredentialUnavailable
from headway.errors import HeadwayError
from headway.hosts import patterns_of
from headway.share.aside import Job, Slots
from headway.transport.aim import IDENTITY
from headway.transport.family import family_of
from headway.transport.home import origin_of
from headway.transport.pools import Pools
from headway.transport.wake import sleep

if TYPE_CHECKING:
    import httpx2

    from headway.core.snapshot import Endpoint
    from headway.transport.home import Home

Signers: TypeAlias = "Mapping[str, Mapping[bool, Signer]]"
"""name -> is it async -> client"""

NewOptions = Callable[..., Any]
"""The SDK's own record of a request before it is built: made of its method and url."""


class Signer:
    """One client as an endpoint. Safe to use from any thread, as far as the client is."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.name = name
        """By which it was declared; for messages."""
        self.is_async: bool = inspect.iscoroutinefunction(client._prepare_options)
        http: Any = getattr(client._client, "_headway_original", client._client)
        self.family = family_of(http)
        self.pools: Pools[Any] = Pools(http)
        self._pid = os.getpid()
        self._slots = Slots()
        self.base_url = str(client.base_url)
        self.query: dict[str, str] = {k: str(v) for k, v in client.default_query.items()}
        """What the client puts into each URL: Azure's version."""

    def check(self, endpoint: Endpoint, home: Home) -> None:
        """Raises `CredentialUnavailable` where it can't sign for this endpoint, or not for us."""
        ours = home.family
        if self.family is not ours:
            theirs = "another http library" if self.family is None else self.family.name
            raise self._refusal(f"stands on {theirs}, and this client on {ours.name}")
        if self.is_async is not home.is_async:
            kind, other = ("async", "sync") if self.is_async else ("sync", "async")
            raise self._refusal(f"is {kind}; give {other} code one of its own beside it: [a, b]")
        if origin_of(ours.URL(self.base_url)) != origin_of(ours.URL(endpoint.base_url)):
            raise self._refusal(f"is for {self.base_url}, not for {endpoint.base_url}")
        if self.pools.is_closed:
            raise self._refusal("is closed")

    def sign(self, request: httpx2.Request, home: Home, left_s: float | None = None) -> None:
        """Give a request the client's own headers and signature. It must not be changed after.

        The client may have to fetch a token for it. With `left_s` that is waited for so long, on a
        thread that is left behind then; raises `TimeoutError`.
        """
        if left_s is None:
            self._sign(request, home)
            return
        if self._pid != os.getpid():
            self._pid, self._slots = os.getpid(), Slots()
        context = copy_context()
        job = Job(lambda: context.run(self._sign, request, home), self._slots)
        if not job.start():
            self._sign(request, home)
            return
        sleep(job, left_s)
        if not job.is_done:
            raise TimeoutError(f"client {self.name!r} did not sign the request in time")
        if job.error is not None:
            raise job.error

    def _sign(self, request: httpx2.Request, home: Home) -> None:
        _ready(request, home)
        try:
            options = self._client._prepare_options(_options(request, home))
            self._adopt(request, options)
            self._client._prepare_request(request)
        except Exception as exc:
            raise self._raised(exc) from exc

    async def asign(self, request: httpx2.Request, home: Home) -> None:
        """The same, awaiting tokens."""
        _ready(request, home)
        try:
            options = await self._client._prepare_options(_options(request, home))
            self._adopt(request, options)
            await self._client._prepare_request(request)
        except Exception as exc:
            raise self._raised(exc) from exc

    def _adopt(self, request: httpx2.Request, options: Any) -> None:
        """The client's headers, where the request has none of that name."""
        for name, value in self._client._build_headers(options, retries_taken=0).multi_items():
            if name not in request.headers:
                request.headers[name] = value

    def _raised(self, exc: Exception) -> CredentialUnavailable:
        # The SDK's own errors say what is missing, and nothing that is secret.
        text = f": {exc}" if type(exc).__module__.startswith("openai.") else ""
        return self._refusal(f"could not sign the request: {type(exc).__name__}{text}")

    def _refusal(self, why: str) -> CredentialUnavailable:
        return CredentialUnavailable(f"client {self.name!r} {why}")


def signers_of(clients: Mapping[str, object]) -> Signers:
    """The declared clients, by name and colour. Raises `HeadwayError` for what is none."""
    found: dict[str, dict[bool, Signer]] = {}
    for name, given in clients.items():
        several: list[Any] = [given]
        if isinstance(given, list | tuple):
            several = list(cast("Sequence[Any]", given))
        for client in several:
            if not all(hasattr(client, method) for method in _METHODS):
                raise HeadwayError(
                    f"clients={{{name!r}: ...}} takes a client of the openai package, or a list of "
                    f"a sync and an async one; got {type(client).__name__}"
                )
            if getattr(client, "workload_identity", None) is not None:
                raise HeadwayError(
                    f"client {name!r} uses workload identity, whose tokens the SDK adds while it "
                    "sends: declare a Credential(call=...) that gives them"
                )
            signer = Signer(client, name)
            if found.setdefault(name, {}).setdefault(signer.is_async, signer) is not signer:
                raise HeadwayError(f"clients={{{name!r}: ...}} has two of one colour")
        if name not in found:
            raise HeadwayError(f"clients={{{name!r}: ...}} is empty")
    return found


def with_signers(credentials: Mapping[str, Credential], signers: Signers) -> dict[str, Credential]:
    """Declared credentials, and what a document has to know of clients: where they may be sent."""
    both = sorted(credentials.keys() & signers.keys())
    if both:
        raise HeadwayError(f"declared as a credential and as a client: {', '.join(both)}")
    for name, given in credentials.items():
        if not hasattr(given, "hosts"):  # a bare key, mostly: never repeated
            raise HeadwayError(
                f"credentials[{name!r}] must be a headway.Credential(..., hosts=[...]), which says "
                f"where the key may go; got {type(given).__name__}"
            )
    joined = dict(credentials)
    for name, colours in signers.items():
        hosts = {host for signer in colours.values() for host in patterns_of(signer.base_url)}
        # Never sent: it stands for the client where calls of different keys are kept apart, and is
        # not the same in another process, whose client may be another account's.
        joined[name] = Credential(value=token_hex(), hosts=sorted(hosts))
    return joined


_METHODS = ("_prepare_options", "_prepare_request", "_build_headers", "_client", "base_url")


def _options(request: httpx2.Request, home: Home) -> Any:
    assert home.new_options is not None
    return home.new_options(
        method=request.method.lower(), url=str(request.url), security={"bearer_auth": True}
    )


def _ready(request: httpx2.Request, home: Home) -> None:
    """Take off what another client or an earlier signature put there; have the body at hand."""
    for name, _ in request.headers.raw:
        lower = name.lower()
        if lower in IDENTITY or lower.startswith(b"x-amz-"):
            request.headers.pop(name.decode("ascii"), None)
    if isinstance(request.stream, home.family.ByteStream):
        request.read()  # from memory: it is what gets signed
