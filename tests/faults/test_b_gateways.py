"""5xx and odd statuses: whose word they are, and where the call goes next."""

from __future__ import annotations

import time

import openai
import pytest

import headway
from headway.core.model import AttemptEnded
from headway.core.snapshot import RetryPolicy
from tests.faults.bench import Bench, Fault, fault, play, plays_of
from tests.faults.streams import ALL, HELLO, script
from tests.servers import OK, R, Seen, Step, error

SECTION = "B. Gateways and odd statuses"
PAGE = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


def elsewhere(name: str, title: str, step: Step) -> None:
    """The next endpoint answers, at once."""

    @fault(name, title)
    def moved(bench: Bench) -> None:
        a, b = bench.serve(step), bench.serve(OK)
        seen = bench.call(bench.client(a, b).chat)
        bench.observed()
        assert (seen.text, bench.hits) == ("hello", (1, 1))
        assert seen.took_s < 10


def repeated(name: str, title: str, step: Step) -> None:
    """The only endpoint is asked again."""

    @fault(name, title)
    def again(bench: Bench) -> None:
        a = bench.serve(step, OK)
        seen = bench.call(bench.client(a).chat)
        bench.observed()
        assert (seen.text, bench.hits) == ("hello", (2,))


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
elsewhere("C13", "529, overloaded", R(529, OVERLOADED))
repeated("C13a", "the same, and no other endpoint", R(529, OVERLOADED))
for status in (507, 520, 521, 522, 523, 524, 525, 526, 527, 530, 598, 599):
    elsewhere(f"C13-{status}", f"{status}, a status of CDNs and proxies", R(status, b"error"))

elsewhere("C14", "502 with a web page", R(502, PAGE.encode(), ctype="text/html"))


@fault("C14a", "the same, and no other endpoint")
def page_alone(bench: Bench) -> None:
    a = bench.serve(R(502, PAGE.encode(), ctype="text/html"))
    seen = bench.call(bench.client(a).chat)
    bench.observed()
    assert isinstance(seen.error, openai.InternalServerError)
    assert "502 Bad Gateway" in seen.error.response.text
    assert {e.outcome.error_type for e in bench.host.named(AttemptEnded)} == {"502"}


@fault("C14b", "502 with a web page of 3 MB")
def large_page(bench: Bench) -> None:
    a = bench.serve(R(502, PAGE.encode() + b" " * 3_000_000, ctype="text/html"))
    seen = bench.call(bench.client(a).chat)
    kept = len(seen.error.response.content) if isinstance(seen.error, openai.APIStatusError) else 0
    bench.observed(f"{seen.words} holding {kept / 1e6:.0f} MB; {len(a.hits)} requests")
    assert isinstance(seen.error, openai.InternalServerError)
    assert kept < 1_200_000


elsewhere("C16", "499, a proxy's word for a caller that left", R(499, b""))
elsewhere("C16-460", "460, a load balancer's word for the same", R(460, b""))
for status in (408, 409, 425):
    repeated(f"C16-{status}", f"{status}", R(status, error("try again")))


@fault("C16a", "500 that the server says not to repeat")
def not_to_be_repeated(bench: Bench) -> None:
    a, b = bench.serve(R(500, error("no"), {"x-should-retry": "false"})), bench.serve(OK)
    seen = bench.call(bench.client(a, b).chat)
    bench.observed()
    assert isinstance(seen.error, openai.InternalServerError)
    assert bench.hits == (1, 0)


repeated(
    "C16b",
    "400 that the server says to repeat",
    R(400, error("not yet"), {"x-should-retry": "true"}),
)


class Restarting:
    """503 until a while after the first request, then answers."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    def __call__(self, seen: Seen) -> Step:
        self._until = self._until or time.monotonic() + self._seconds
        return OK if time.monotonic() >= self._until else R(503, b"no worker")


@fault("C17", "503 for a while, and no other endpoint")
def rolling_update(bench: Bench) -> None:
    a = bench.serve(Restarting(0.3))
    retry = RetryPolicy(backoff_base_s=0.1)
    client = bench.client(a, retry=retry, options={"max_retries": 5})
    with headway.options(deadline=5.0):
        seen = bench.call(client.chat)
    bench.observed()
    assert seen.text == "hello"
    assert len(a.hits) <= 6


@fault("C17a", "503 for long, beside an endpoint that works")
def breaker(bench: Bench) -> None:
    a, b = bench.serve(R(503, b"no worker")), bench.serve(OK)
    client = bench.client(a, b)
    for _ in range(2 if bench.is_plain else 20):
        bench.call(client.chat)
    bench.observed()
    assert {seen.text for seen in bench.calls} == {"hello"}
    assert bench.hits == (3, 20)


elsewhere("C17b", "503 from a proxy with nobody behind it", R(503, b"no healthy upstream"))


@fault("C17c", "503 in answer to a stream", ways=ALL)
def streamed(bench: Bench) -> None:
    a = bench.serve(R(503, error("no worker")))
    b = bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
