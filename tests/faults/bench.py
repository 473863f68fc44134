"""One way to play a fault to a plain client and to a wrapped one, and to tell what came of it.

A fault is a function that takes a `Bench`. It starts scripted endpoints (the first is the client's
own), makes calls, and then says `bench.observed()`: there the run of a plain client ends, with what
it did written down for the page; what follows is what a wrapped client has to have done.

    @fault("C01", "a spent quota answered as a rate limit")
    def spent(bench: Bench) -> None:
        a, b = bench.serve(R(429, QUOTA)), bench.serve(OK)
        seen = bench.call(bench.client(a, b).chat)
        bench.observed()
        assert (seen.text, bench.hits) == ("hello", (1, 1))

Runs under whichever openai is installed: openai 3 stands on httpx2, openai 2 on httpx.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import openai

from headway.client import wrap
from headway.core.model import AttemptEnded
from headway.core.snapshot import Endpoint, RetryPolicy
from headway.credentials import Credential
from tests.faults.streams import WAYS, Way, consume
from tests.servers import Server, Step
from tests.transport.callers import MESSAGES, Caller
from tests.transport.hosts import Host, own, policy

FAMILY = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]
"""What the installed openai stands on: httpx2, or legacy httpx."""
COLOURS = ("sync", "async")
RETRY = RetryPolicy(attempts_max=3, budget_start=100, budget_capacity=100, backoff_base_s=0.02)
"""Short waits; the budget is a matter of its own faults."""


class Observed(Exception):
    """The plain client has done what it does."""


@dataclass
class Seen:
    """What one call came to."""

    value: Any = None
    error: BaseException | None = None
    text: str = ""
    items: list[Any] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def words(self) -> str:
        if self.error is not None:
            after = f' after "{self.text}"' if self.text else ""
            return f"`{type(self.error).__name__}`{after}"
        return f'"{self.text}"' if self.text else f"{_what(self.value)}, no error"


def _what(value: Any) -> str:
    if isinstance(value, list):
        return counted(len(value), "chunk") if value else "no chunks"
    if getattr(value, "status", None) == "failed":
        return "an object whose status is failed"
    return "nothing" if value is None else f"an empty `{type(value).__name__}`"


class Bench:
    """The servers, clients and observations of one run of one fault."""

    def __init__(self, colour: str, *, plain: bool = False, way: str = "create") -> None:
        self.is_plain = plain
        self.is_async = colour == "async"
        self.kind = f"{colour}-{FAMILY}"
        self.way: Way = WAYS[way]
        self.servers: list[Server] = []
        self.calls: list[Seen] = []
        self._host: Host | None = None
        self.words = ""
        self.stack = ExitStack()
        self.leaves_loops = False
        """Connections of event loops that are gone can't be closed any more, only dropped."""

    # -- setting the scene

    def serve(self, *steps: Step | Callable[..., Step]) -> Server:
        """Start a scripted endpoint."""
        server = self.stack.enter_context(Server(*steps))
        self.servers.append(server)
        return server

    def client(
        self,
        *servers: Server | str,
        endpoints: Mapping[str, Any] | None = None,
        retry: RetryPolicy = RETRY,
        credentials: Mapping[str, Credential] | None = None,
        mode: str = "enforce",
        options: Mapping[str, Any] | None = None,
        **route: Any,
    ) -> Caller:
        """A client of the first endpoint; wrapped, the others are its fallbacks in order.

        `endpoints` adds fields of the policy's entries, by name: a, b, c.
        """
        urls = [s if isinstance(s, str) else s.url for s in servers]
        described = {
            name: Endpoint(id=name, base_url=url, **(endpoints or {}).get(name, {}))
            for name, url in zip("abcdefgh", urls, strict=False)
        }
        snapshot = policy(described, retry=retry, **route)
        self._host = Host(snapshot, credentials=credentials, mode=mode)
        caller = Caller(self.kind, urls[0], self._host, **(options or {}))
        if self.is_plain:
            caller.client = caller.plain
        self.stack.callback(caller.close)
        return caller

    def bare(self, server: Server, **options: Any) -> Caller:
        """A client that is wrapped without a policy."""
        self._host = Host(own(server.url))
        caller = Caller(self.kind, server.url, self._host, **options)
        if self.is_plain:
            caller.client = caller.plain
        self.stack.callback(caller.close)
        return caller

    def unwatched(self, server: Server, **options: Any) -> Caller:
        """A client that is wrapped without anything, and nobody collects telemetry."""
        caller = Caller(self.kind, server.url, Host(own(server.url)), **options)
        caller.client = caller.plain if self.is_plain else wrap(caller.plain)
        self.stack.callback(caller.close)
        return caller

    # -- making calls

    def call(self, make: Callable[..., Any], *args: Any, **options: Any) -> Seen:
        """Make a call, whatever it comes to."""
        seen = Seen()
        began = time.monotonic()
        try:
            seen.value = make(*args, **options)
            seen.text = text_of(seen.value)
        except Exception as exc:
            seen.error = exc
        seen.took_s = time.monotonic() - began
        self.calls.append(seen)
        return seen

    def respond(self, caller: Caller, **options: Any) -> Seen:
        """Ask for a response of the Responses API, not streamed."""
        asked = {"model": "m", "input": "hi", **options}
        return self.call(lambda: caller.run(caller.client.responses.create(**asked)))

    def stream(self, caller: Caller, **options: Any) -> Seen:
        """Make a streamed call in this run's way and read it to its end."""
        seen = Seen()
        began = time.monotonic()
        try:
            caller.run(consume(caller, self.way, seen, options))
            seen.value = seen.items
        except Exception as exc:
            seen.error = exc
        seen.took_s = time.monotonic() - began
        self.calls.append(seen)
        return seen

    def crowd(self, caller: Caller, count: int, **options: Any) -> list[Seen]:
        """Make that many calls at once."""
        began = time.monotonic()
        if caller.is_async:
            return self._gathered(caller, count, options)
        with ThreadPoolExecutor(count) as pool:
            jobs = [pool.submit(caller.chat, **options) for _ in range(count)]
        for job in jobs:
            error = job.exception()
            seen = Seen(error=error, took_s=time.monotonic() - began)
            if error is None:
                seen.value = job.result()
                seen.text = text_of(seen.value)
            self.calls.append(seen)
        return self.calls[-count:]

    def _gathered(self, caller: Caller, count: int, options: Mapping[str, Any]) -> list[Seen]:
        asked = {"model": "m", "messages": MESSAGES, **options}

        async def together() -> list[Any]:
            create = caller.client.chat.completions.create
            return await asyncio.gather(
                *(create(**asked) for _ in range(count)), return_exceptions=True
            )

        for value in caller.run(together()):
            failed = isinstance(value, BaseException)
            self.calls.append(
                Seen(error=value) if failed else Seen(value=value, text=text_of(value))
            )
        return self.calls[-count:]

    # -- what happened

    @property
    def hits(self) -> tuple[int, ...]:
        """Requests that each endpoint received."""
        return tuple(len(server.hits) for server in self.servers)

    def observed(self, words: str = "") -> None:
        """Write down what was seen; for a plain client this is all."""
        self.words = words or self._words()
        if self.is_plain:
            raise Observed

    def _words(self) -> str:
        said = " then ".join(dict.fromkeys(seen.words for seen in self.calls))
        return f"{said}; {self.requests()}"

    def requests(self) -> str:
        """How many each endpoint received, in words."""
        hits = self.hits[:1] if self.is_plain else self.hits
        if len(hits) == 1:
            return counted(hits[0], "request")
        return ", ".join(f"{name} {n}" for name, n in zip("ABCDEFGH", hits, strict=False))

    def gaps(self, server: Server) -> list[float]:
        """Seconds between the requests that an endpoint received."""
        times = [seen.at for seen in server.hits]
        return [b - a for a, b in itertools.pairwise(times)]

    @property
    def host(self) -> Host:
        """The router of the client that was made."""
        assert self._host is not None
        return self._host

    def kinds(self) -> list[str]:
        """How each attempt ended, in order: its failure class."""
        return [event.outcome.kind.value for event in self.host.named(AttemptEnded)]

    def close(self) -> None:
        self.stack.close()
        if self.leaves_loops:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()


def counted(number: int, what: str) -> str:
    """ "1 request", "2 requests"."""
    return f"{number} {what}{'s' if number != 1 else ''}"


def text_of(value: Any) -> str:
    """The text of an answer, of whatever kind."""
    choices = getattr(value, "choices", None)
    if choices:
        return choices[0].message.content or ""
    output = getattr(value, "output_text", None)
    if isinstance(output, str):
        return output
    return f"{value[:20]}" if isinstance(value, str) else ""


# --------------------------------------------------------------------------- the register


@dataclass(frozen=True)
class Fault:
    """A fault that is tested, and told on the page."""

    id: str
    title: str
    play: Callable[[Bench], None]
    section: str
    ways: tuple[str, ...]
    colours: tuple[str, ...] = COLOURS


FAULTS: dict[str, Fault] = {}


def fault(
    name: str,
    title: str,
    *,
    ways: tuple[str, ...] = ("create",),
    colours: tuple[str, ...] = COLOURS,
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Register a fault; `ways` are the ways of streaming that it is played in."""

    def register(play: Callable[[Bench], None]) -> Callable[[Bench], None]:
        assert name not in FAULTS, f"two faults called {name}"
        section = play.__globals__["SECTION"]
        FAULTS[name] = Fault(name, title, play, section, ways, colours)
        return play

    return register


def plays_of(section: str) -> list[Any]:
    """pytest parameters of a module's faults: (fault, colour, way)."""
    import pytest

    return [
        pytest.param(
            found,
            colour,
            way,
            id="-".join([found.id, colour, *([way] if len(found.ways) > 1 else [])]),
            marks=getattr(found.play, "pytestmark", []),
        )
        for found in FAULTS.values()
        if found.section == section
        for way in found.ways
        for colour in found.colours
    ]


def play(found: Fault, colour: str, way: str, *, plain: bool = False) -> Bench:
    """Play a fault to a client; the bench tells what was seen."""
    bench = Bench(colour, plain=plain, way=way)
    try:
        found.play(bench)
    except Observed:
        pass
    finally:
        bench.close()
    return bench
