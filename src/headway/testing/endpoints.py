"""Endpoints that follow a script, without a network.

    fleet = ScriptedEndpoints({"a": [503, ok("hi")], "b": ok("hello")})
    client = fleet.wrap()                    # an OpenAI client routed over a and b
    client.chat.completions.create(...)
    assert [sent.endpoint for sent in fleet.requests] == ["a", "b"]

The seam is the HTTP transport, as in production: everything above it is the real SDK and the real
router. Works on both HTTP libraries the openai package has used, httpx2 and httpx.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from headway.testing import wire
from headway.testing.clock import FakeClock
from headway.testing.events import RecordedEvents
from headway.testing.hurry import hurry
from headway.testing.replies import Reply, Script, Step, as_reply

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI, OpenAI

    from headway.policy.models import Policy
    from headway.router import Router

DOMAIN = "headway.test"
"""Endpoint `a` lives at https://a.headway.test/v1: a name that no resolver answers."""

API_KEY = "sk-scripted"
"""What scripted clients send."""

Json: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class SentRequest:
    """One request that reached an endpoint."""

    endpoint: str
    """Which one."""
    number: int
    """1 for the first request of this endpoint."""
    path: str
    """Of the URL."""
    body: bytes
    """As it came."""
    headers: Mapping[str, str]
    """By lower-case name."""

    @property
    def json(self) -> Json:
        """The body as a JSON object; empty if there is none."""
        return cast("Json", json.loads(self.body)) if self.body[:1] == b"{" else {}

    @property
    def model(self) -> str:
        """The model asked for."""
        return str(self.json.get("model", "scripted"))


class ScriptedEndpoints:
    """A fleet of endpoints, each with a script, and clients and a policy that reach them.

    Args:
        scripts: per endpoint a step for ever, or a sequence of steps whose last one repeats.
        model: the model that the policy routes; any other passes through to the first endpoint.
        policy: a policy document to use instead of "all endpoints, equal weights"; its endpoints
            must be those of `scripts`. See `document`.
        clock: time for the router. Replies that take time and waits before retries move it.

    Thread-safe. Scripts advance per endpoint, in the order in which requests arrive.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script],
        *,
        model: str = "scripted-model",
        policy: Mapping[str, object] | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        if not scripts:
            raise ValueError("ScriptedEndpoints needs at least one endpoint")
        self.model = model
        """The model that the policy routes."""
        self.clock = clock
        """The clock that was given."""
        self.requests: list[SentRequest] = []
        """Every request that came, in order."""
        self.events = RecordedEvents()
        """What the routers made here reported."""
        self._scripts = {name: _steps(script) for name, script in scripts.items()}
        self._document = dict(policy) if policy is not None else document(scripts, model=model)
        self._lock = threading.Lock()
        self._router: Router | None = None
        self._closers: list[Callable[[], object]] = []

    # ------------------------------------------------------------------ clients

    @property
    def document(self) -> Json:
        """The policy document, as plain data."""
        return self._document

    @property
    def policy(self) -> Policy:
        """The policy document, validated."""
        from headway.policy.models import Policy

        return Policy.model_validate(self._document)

    @property
    def router(self) -> Router:
        """The router that wrapped clients share; made at first use, with this fleet's policy."""
        if self._router is None:
            self._router = self.new_router()
        return self._router

    def new_router(self, **options: Any) -> Router:
        """A router of its own, for instance `new_router(mode="observe")`.

        `options` are those of `headway.Router`.
        """
        from headway.credentials import Credential
        from headway.router import Router

        credential = Credential(value=API_KEY, hosts=[f"*.{DOMAIN}"])
        options.setdefault("credentials", {"scripted": credential})
        options.setdefault("on_event", self.events)
        if self.clock is not None:
            options.setdefault("clock", self.clock)
        router = Router(self.policy, **options)
        if self.clock is not None:
            router.engine = hurry(router.engine, self.clock)
        self._closers.append(router.close)
        return router

    def client(self, **options: Any) -> OpenAI:
        """A plain client of the first endpoint. `options` are those of `openai.OpenAI`."""
        import openai

        http = _family_of(openai.DefaultHttpxClient).Client(transport=self.transport())
        client = openai.OpenAI(**self._client_options(options), http_client=http)
        self._closers.append(client.close)
        return client

    def async_client(self, **options: Any) -> AsyncOpenAI:
        """A plain async client of the first endpoint. `options` are those of `AsyncOpenAI`.

        Nothing to close: its transport holds no connection.
        """
        import openai

        family = _family_of(openai.DefaultAsyncHttpxClient)
        http = family.AsyncClient(transport=self.transport())
        return openai.AsyncOpenAI(**self._client_options(options), http_client=http)

    def wrap(self, client: OpenAI | None = None) -> OpenAI:
        """A client routed over the whole fleet. One of your own never meets the network."""
        from headway.client import over, wrap

        ours = self.client() if client is None else over(client, self.transport())
        return wrap(ours, router=self.router)

    def wrap_async(self, client: AsyncOpenAI | None = None) -> AsyncOpenAI:
        """An async client routed over the whole fleet. See `wrap`."""
        from headway.client import over, wrap

        ours = self.async_client() if client is None else over(client, self.transport())
        return wrap(ours, router=self.router)

    def transport(self) -> httpx2.MockTransport:
        """The transport that plays the scripts, for an HTTP client of your own.

        Serves sync and async clients, of httpx2 and of httpx.
        """
        return cast("httpx2.MockTransport", _ScriptedTransport(self))

    def close(self) -> None:
        """Close what this fleet made."""
        while self._closers:
            self._closers.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ the record

    @property
    def sends(self) -> list[str]:
        """Which endpoint each request went to, in order."""
        return [sent.endpoint for sent in self.requests]

    def sends_to(self, endpoint: str) -> int:
        """How many requests an endpoint received."""
        return self.sends.count(endpoint)

    def script(self, endpoint: str, script: Script) -> None:
        """Replace an endpoint's script from now on."""
        if endpoint not in self._scripts:
            raise KeyError(f"no endpoint {endpoint!r}: there are {', '.join(self._scripts)}")
        with self._lock:
            self._scripts[endpoint] = _steps(script)

    def answer(self, host: str, path: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        """Record a request and look up what to answer. Called by the transport."""
        name = host.removesuffix(f".{DOMAIN}")
        if name not in self._scripts:
            raise LookupError(f"a request went to {host}, which is not part of the script")
        with self._lock:
            number = self.sends_to(name) + 1
            sent = SentRequest(name, number, path, body, headers)
            self.requests.append(sent)
            steps = self._scripts[name]
            step = steps.pop(0) if len(steps) > 1 else steps[0]
        # Outside the lock: a step may call back into the fleet.
        reply = as_reply(step(sent) if callable(step) else step)
        return _Answer(sent, reply)

    def _client_options(self, options: dict[str, Any]) -> dict[str, Any]:
        first = next(iter(self._scripts))
        defaults = {"base_url": f"https://{first}.{DOMAIN}/v1", "api_key": API_KEY}
        return {**defaults, **options}


def document(
    endpoints: Mapping[str, object] | Sequence[str],
    *,
    model: str = "scripted-model",
    weights: Mapping[str, float] | None = None,
    endpoint: Mapping[str, object] | None = None,
    route: Mapping[str, object] | None = None,
    version: int = 1,
) -> Json:
    """A small policy document for scripted endpoints.

    Args:
        endpoints: their names.
        model: what the one route matches.
        weights: equal when None.
        endpoint: further fields of every endpoint, for instance `{"price": {...}}`.
        route: further fields of the route, for instance `{"hedge": {...}}`.
        version: of the document.
    """
    names = list(endpoints)
    return {
        "schema_version": "1.0",
        "version": version,
        "endpoints": {
            name: {
                "base_url": f"https://{name}.{DOMAIN}/v1",
                "credential": "scripted",
                **(endpoint or {}),
            }
            for name in names
        },
        "routes": [
            {
                "match": {"model": model},
                "weights": dict(weights) if weights else dict.fromkeys(names, 1),
                **(route or {}),
            }
        ],
    }


@dataclass(frozen=True, slots=True)
class _Answer:
    sent: SentRequest
    reply: Reply


class _ScriptedTransport:
    """Plays the scripts to sync and async clients of either HTTP library."""

    def __init__(self, fleet: ScriptedEndpoints) -> None:
        self._fleet = fleet

    def handle_request(self, request: Any) -> Any:
        answer = self._record(request, request.read())
        delay_s, is_late = self._wait(answer.reply, request)
        if delay_s > 0:
            time.sleep(delay_s)
        return self._respond(request, answer, lambda pieces: pieces, is_late=is_late)

    async def handle_async_request(self, request: Any) -> Any:
        import anyio

        answer = self._record(request, await request.aread())
        delay_s, is_late = self._wait(answer.reply, request)
        if delay_s > 0:
            await anyio.sleep(delay_s)
        return self._respond(request, answer, _as_async, is_late=is_late)

    def close(self) -> None: ...
    async def aclose(self) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def _record(self, request: Any, body: bytes) -> _Answer:
        return self._fleet.answer(request.url.host, request.url.path, body, dict(request.headers))

    def _wait(self, reply: Reply, request: Any) -> tuple[float, bool]:
        """What is left to sleep really, after the fake clock took its part; and whether the
        caller's patience ends before the reply comes."""
        limits = cast("Mapping[str, float | None]", request.extensions.get("timeout") or {})
        patience_s, delay_s = limits.get("read"), reply.takes_s
        if reply.raises == "ReadTimeout" and self._fleet.clock is not None:
            delay_s = patience_s or 600.0
        is_late = patience_s is not None and delay_s > patience_s
        if is_late and patience_s is not None:
            delay_s = patience_s
        if self._fleet.clock is None:
            return delay_s, is_late
        self._fleet.clock.advance(delay_s)
        return 0.0, is_late

    def _respond(
        self,
        request: Any,
        answer: _Answer,
        adapt: Callable[[Iterator[bytes]], Any],
        *,
        is_late: bool,
    ) -> Any:
        reply, sent = answer.reply, answer.sent
        family = _family_of(request.__class__)
        if is_late:
            raise family.ReadTimeout("scripted: the reply comes too late", request=request)
        if reply.raises is not None:
            raise getattr(family, reply.raises)(reply.message, request=request)
        headers = {"content-type": "application/json", **reply.headers}
        surface = wire.surface_of(sent.path)
        if reply.status >= 400:
            content: Any = wire.error_body(reply)
        elif sent.json.get("stream") is True:
            headers["content-type"] = "text/event-stream; charset=utf-8"
            content = adapt(_pieces(reply, sent, surface, family, request))
        else:
            content = wire.whole_body(reply, surface, sent.model)
        return family.Response(reply.status, headers=headers, content=content)


def _pieces(
    reply: Reply, sent: SentRequest, surface: str, family: Any, request: Any
) -> Iterator[bytes]:
    wanted = sent.json.get("stream_options")
    usage = isinstance(wanted, dict) and cast("Json", wanted).get("include_usage") is True
    brought = 0
    for piece, is_content in wire.stream_pieces(reply, surface, sent.model, include_usage=usage):
        if is_content and brought == reply.cut_after:
            break
        yield piece
        brought += is_content
    else:
        if reply.cut_after is None:
            return
    raise family.RemoteProtocolError("scripted: the connection broke", request=request)


async def _as_async(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _steps(script: Script) -> list[Step]:
    if isinstance(script, Reply | int | str) or callable(script):
        return [script]
    if not script:
        raise ValueError("a script needs at least one step")
    return list(script)


def _family_of(cls: type) -> Any:
    """The HTTP library a class comes from: httpx2 or httpx."""
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in {"httpx2", "httpx"}:
            return import_module(package)
    raise TypeError(f"{cls.__qualname__} is of no known HTTP library")
