"""The three drivers on one script: the sync transport, the async transport, and virtual time.

The first two run the whole product: an openai client, wrapped, with a scripted HTTP transport
underneath, on a fake clock that sends and waits move. The third feeds the very `CallFacts` that the
first built to `lab.virtual`. What is compared is everything the engine says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import httpx2
import openai

from headway import options
from headway.core.model import (
    Attempt,
    CallEnded,
    CallFacts,
    Event,
    PolicyLoaded,
    Rejection,
)
from headway.core.snapshot import Endpoint, RetryPolicy, Route, Snapshot, WeightTable
from headway.errors import HeadwayError
from headway.lab.virtual import VirtualFleet, VirtualRequest
from headway.lab.virtual_endpoints import FunctionEndpoint
from headway.lab.virtual_records import Arrival, CallRecord, Served
from headway.router import Router
from headway.testing import FakeClock
from headway.transport.desk import WARM_S
from tests.parity.scripts import BROKEN, CLIENT_TIMEOUT_S, Script, Wire

ENDPOINTS = ("a", "b")
MESSAGES: list[Any] = [{"role": "user", "content": "say hello"}]
INSTANTS = frozenset({"at", "until", "started_at", "deadline_at", "first_token_by"})


def policy(script: Script) -> Snapshot:
    """Two endpoints, equal shares, three attempts."""
    weights = tuple((name, 1 / len(ENDPOINTS)) for name in ENDPOINTS)
    route = Route(
        name="all",
        weights=WeightTable(by_zone={"*": ((float("inf"), weights),)}),
        endpoint_ids=frozenset(ENDPOINTS),
        retry=RetryPolicy(attempts_max=3),
    )
    return Snapshot(
        endpoints={n: Endpoint(id=n, base_url=f"https://{n}.test/v1") for n in ENDPOINTS},
        routes=(replace(route, **script.route),),
    )


@dataclass
class Run:
    """What one driver made of a script."""

    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """(type, fields), attempts spelt out as they were at that moment."""
    sends: list[str] = field(default_factory=list)
    results: list[tuple[Any, ...]] = field(default_factory=list)
    """What the application got, per call."""
    facts: list[CallFacts] = field(default_factory=list)

    def on_event(self, event: Event) -> None:
        if not isinstance(event, PolicyLoaded):
            self.events.append((type(event).__name__, _spelt(event._asdict())))

    @property
    def attempts(self) -> list[tuple[int, str, str, int]]:
        """(call, endpoint, kind, number), in the order of sending."""
        return [
            (f["call_id"], f["attempt.endpoint_id"], f["attempt.kind"], f["attempt.number"])
            for name, f in self.events
            if name == "AttemptStarted"
        ]


def _spelt(fields: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Attempt):
            flat |= {f"{name}.{slot}": getattr(value, slot) for slot in Attempt.__slots__}
        elif isinstance(value, Rejection) or hasattr(value, "_asdict"):
            flat |= {f"{name}.{key}": part for key, part in value._asdict().items()}
        else:
            flat[name] = value
    return flat


def rng_of(script: Script) -> random.Random:
    return random.Random(f"{script.seed}/process/0")


# --------------------------------------------------------------------------- the wire


class _Wire:
    """The http transport underneath: plays the script, and lets the time pass."""

    def __init__(self, script: Script, clock: FakeClock, run: Run) -> None:
        self._script = script
        self._clock = clock
        self._run = run
        self.call = 0
        self.attempt = 0

    def next(self, request: httpx2.Request) -> Wire:
        self._run.sends.append(request.url.host.removesuffix(".test"))
        stream, step = self._script.step(self.call, self.attempt)
        self.attempt += 1
        return step.streamed if stream else step.plain

    def respond(self, request: httpx2.Request) -> httpx2.Response:
        wire = self.next(request)
        if wire.silent:
            self.wait(float("inf"), request.extensions["timeout"].get("read"))
        if wire.raises is not None:
            self.wait(wire.at_s, request.extensions["timeout"].get("connect"))
            raise getattr(httpx2, wire.raises)("scripted", request=request)
        if wire.stream:
            kind, parts = "text/event-stream", wire.stream
        else:
            self.wait(wire.at_s, request.extensions["timeout"].get("read"))
            kind, parts = "application/json", (_encoded(wire.body),)
        # The connection, as httpcore would show it: limits on reads are set there.
        connection = _Connection(self, parts, wire.cut)
        return httpx2.Response(
            wire.status,
            headers={"content-type": kind, **wire.headers},
            stream=_Body(connection),
            extensions={"network_stream": connection, "http_version": b"HTTP/1.1"},
        )

    def wait(self, seconds: float, limit: float | None) -> None:
        """Let time pass, or the client's patience run out."""
        if limit is not None and limit < seconds:
            self._clock.advance(limit)
            raise httpx2.ReadTimeout("silent")
        self._clock.advance(seconds)

    def now(self) -> float:
        return self._clock()


class _Connection:
    def __init__(self, wire: _Wire, parts: Sequence[bytes | float], cut: str | None) -> None:
        self._wire = wire
        self._parts = list(parts)
        self._cut = cut
        self._began = wire.now()

    def read(self, _: int, timeout: float | None = None) -> bytes:
        """The next bytes; empty at the end."""
        while self._parts:
            part = self._parts[0]
            if isinstance(part, bytes):
                self._parts.pop(0)
                return part
            self._wire.wait(max(0.0, self._began + part - self._wire.now()), timeout)
            self._parts.pop(0)
        if self._cut is not None:
            raise getattr(httpx2, self._cut)("scripted")
        return b""


class _Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._connection.read(65_536, CLIENT_TIMEOUT_S):
            yield chunk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


class _Transport(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._wire.respond(request)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return self._wire.respond(request)


# --------------------------------------------------------------------------- real transports


@contextlib.contextmanager
def _hurried(clock: FakeClock) -> Iterator[None]:
    """Waits take their time from the clock."""

    def pass_time(call: Any, seconds: float) -> None:
        if not call.set_waker(lambda: None):
            call.set_waker(None)
            clock.advance(max(seconds, 0.0))

    async def pass_time_async(call: Any, _: Any, seconds: float) -> None:
        pass_time(call, seconds)

    with (
        mock.patch("headway.transport.sync.sleep", pass_time),
        mock.patch("headway.transport.async_.asleep", pass_time_async),
    ):
        yield


class _Real:
    """What the sync and the async run share."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.run = Run()
        self.clock = FakeClock(0.0)
        self.wire = _Wire(script, self.clock, self.run)
        self.router = Router(
            policy(script), clock=self.clock, rng=rng_of(script), on_event=self.run.on_event
        )
        begin = self.router.engine.begin

        def noting(facts: CallFacts, *args: Any, **kwargs: Any) -> Any:
            self.run.facts.append(replace(facts))
            return begin(facts, *args, **kwargs)

        self.router.engine.begin = noting  # type: ignore[method-assign]
        self.arguments: dict[str, Any] = {
            "base_url": "https://a.test/v1",
            "api_key": "k",
            "timeout": CLIENT_TIMEOUT_S,
        }

    def each_call(self) -> Iterator[bool]:
        for number, (stream, _) in enumerate(self.script.calls):
            self.clock.advance(self.script.gap(number))
            self.wire.call, self.wire.attempt = number, 0
            yield stream

    def scope(self) -> contextlib.AbstractContextManager[object]:
        if self.script.deadline_s is None:
            return contextlib.nullcontext()
        scope = options(deadline=self.script.deadline_s)
        scope_clock = mock.patch("headway.task.task.clock_of", return_value=self.clock)
        stack = contextlib.ExitStack()
        stack.enter_context(scope_clock)
        stack.enter_context(scope)
        return stack

    def note(self, text: str) -> None:
        self.run.results.append(("ok", text))

    def note_error(self, problem: Exception) -> None:
        if isinstance(problem, HeadwayError) and hasattr(problem, "reason"):
            self.run.results.append(("rejected", problem.reason))
        else:
            status = getattr(problem, "status_code", None)
            self.run.results.append(("error", type(problem).__name__, status))


def run_sync(script: Script) -> Run:
    real = _Real(script)
    http = httpx2.Client(transport=_Transport(real.wire))
    with _hurried(real.clock), openai.OpenAI(http_client=http, **real.arguments) as plain:
        client = real.router.wrap(plain)
        for stream in real.each_call():
            try:
                with real.scope():
                    reply: Any = client.chat.completions.create(
                        model="m", messages=MESSAGES, stream=stream
                    )
                    if stream:
                        real.note("".join(c.choices[0].delta.content or "" for c in reply))
                    else:
                        real.note(reply.choices[0].message.content)
            except (openai.OpenAIError, json.JSONDecodeError) as problem:
                real.note_error(problem)
    return real.run


def run_async(script: Script, runner: asyncio.Runner) -> Run:
    real = _Real(script)
    with _hurried(real.clock):
        runner.run(_run_async(real))
    return real.run


async def _run_async(real: _Real) -> None:
    http = httpx2.AsyncClient(transport=_Transport(real.wire))
    async with openai.AsyncOpenAI(http_client=http, **real.arguments) as plain:
        client = real.router.wrap(plain)
        for stream in real.each_call():
            try:
                with real.scope():
                    reply: Any = await client.chat.completions.create(
                        model="m", messages=MESSAGES, stream=stream
                    )
                    if stream:
                        real.note("".join([c.choices[0].delta.content or "" async for c in reply]))
                    else:
                        real.note(reply.choices[0].message.content)
            except (openai.OpenAIError, json.JSONDecodeError) as problem:
                real.note_error(problem)


# --------------------------------------------------------------------------- virtual time


def run_virtual(script: Script, facts: list[CallFacts]) -> Run:
    """The same calls in virtual time; `facts` are those that a transport built."""
    run = Run()
    sent: list[int] = [0] * len(script.calls)
    answered_at: dict[str, float] = {}

    def serve(name: str) -> FunctionEndpoint:
        def answer(request: VirtualRequest) -> Served:
            run.sends.append(name)
            call = len(run.results)
            stream, step = script.step(call, sent[call])
            sent[call] += 1
            served = step.served(stream=stream)
            wire = step.streamed if stream else step.plain
            if not wire.silent and wire.raises is None:
                head_at = request.now + (0.0 if wire.stream else wire.at_s)
                if head_at <= request.attempt.first_token_by:
                    answered_at[name] = head_at
            elif wire.raises == BROKEN and request.now - answered_at.get(name, -WARM_S) < WARM_S:
                # Only the wire knows of connections: this one may have been an old one.
                served = served._replace(outcome=served.outcome._replace(free_retry=True))
            return served

        return FunctionEndpoint(answer)

    def ended(record: CallRecord) -> None:
        run.results.append((record.ok, record.rejection))
        submit(len(run.results))

    def submit(number: int) -> None:
        if number < len(script.calls):
            at = fleet.now + script.gap(number)
            known = replace(facts[number])
            if script.deadline_s is not None:
                known.deadline_at = at + script.deadline_s
            fleet.submit(Arrival(at, 0, known))

    fleet = VirtualFleet(
        policy(script),
        processes=1,
        endpoints={name: serve(name) for name in ENDPOINTS},
        seed=script.seed,
        on_call=ended,
        on_event=lambda _, event: run.on_event(event),
    )
    submit(0)
    fleet.run()
    run.results = [_result(fields) for name, fields in run.events if name == CallEnded.__name__]
    return run


def _result(fields: dict[str, Any]) -> tuple[Any, ...]:
    return fields["outcome.kind"], fields["outcome.status"]
