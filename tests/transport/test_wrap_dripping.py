"""Servers that are never quite silent: whatever comes or is taken bit by bit, limits hold."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest

from headway.core.snapshot import DeadlinePolicy
from headway.errors import DeadlineExceeded, StreamTimedOut
from headway.task import options
from tests.servers import DONE, FIN, OK_STREAM, ROLE, SSE, Drip, chunk, completion
from tests.transport.hosts import Host, own, policy

LATE_S = 8.0
"""Of a busy machine. What is waited for here takes longer than that; how exactly deadlines are kept,
`tests/e2e/test_limits.py` measures."""
"""What a deadline may be overrun by here: the contract's 50 ms, and the share of a busy machine."""


class SlowReader:
    """An endpoint that takes a request in sips, and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._stop = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with sock:
                    while sock.recv(4096) and not self._stop.wait(0.02):
                        pass

    def close(self) -> None:
        self._stop.set()
        self._listener.close()


@pytest.fixture
def slow_reader() -> Iterator[SlowReader]:
    server = SlowReader()
    yield server
    server.close()


@pytest.mark.parametrize("what", ["head", "body"])
def test_a_reply_that_drips_in_ends_at_the_deadline(
    what: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    step = Drip(completion(), 1, 0.05) if what == "head" else Drip(completion("x" * 2000), 9, 0.05)
    a = serve(step)
    client = caller(a.url, Host(policy({"a": a.url})), timeout=None)
    began = time.monotonic()

    with options(deadline=0.4), pytest.raises(DeadlineExceeded):
        client.chat()

    assert time.monotonic() - began < 0.4 + LATE_S


def test_a_request_that_is_taken_in_sips_ends_at_the_deadline(
    slow_reader: SlowReader, caller: Callable[..., Any]
) -> None:
    client = caller(slow_reader.url, Host(policy({"a": slow_reader.url})), timeout=None)
    big: list[Any] = [{"role": "user", "content": "x" * 8_000_000}]
    began = time.monotonic()

    with options(deadline=0.5), pytest.raises(DeadlineExceeded):
        client.chat(messages=big)

    assert time.monotonic() - began < 0.5 + LATE_S


def test_a_large_request_arrives_whole(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(OK_STREAM)
    client = caller(a.url, Host(policy({"a": a.url}, deadline=DeadlinePolicy(total_s=60.0))))
    big: list[Any] = [{"role": "user", "content": "0123456789" * 300_000}]

    assert client.text(messages=big) == "Hello"
    assert a.hits[0].json["messages"] == big


def test_a_first_token_that_is_awaited_in_pings_comes_in_time_or_never(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, *([b": ping\n\n", 0.03] * 600), chunk("late")]))
    b = serve(OK_STREAM)
    host = Host(policy({"a": a.url, "b": b.url}, deadline=DeadlinePolicy(ttft_s=0.6)))
    client = caller(a.url, host, timeout=None)
    began = time.monotonic()

    assert client.text() == "Hello"

    assert time.monotonic() - began < 0.6 + LATE_S
    assert len(b.hits) == 1


def test_what_was_left_for_the_first_token_does_not_limit_what_follows(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, 0.05, chunk("Hel"), 1.0, chunk("lo"), FIN, DONE]))
    host = Host(policy({"a": a.url}, deadline=DeadlinePolicy(ttft_s=0.9, idle_s=20.0)))

    assert caller(a.url, host, timeout=None).text() == "Hello"


def test_a_flood_ends_at_the_deadline_too(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    burst = chunk("x") * 100
    a = serve(SSE([ROLE, *[burst] * 8000]))
    host = Host(policy({"a": a.url}, deadline=DeadlinePolicy(total_s=0.4)))
    client = caller(a.url, host, timeout=None)
    began = time.monotonic()

    with pytest.raises(StreamTimedOut):
        client.drain(client.chat(stream=True))

    assert time.monotonic() - began < 20.0  # all of it takes minutes


def test_without_a_policy_a_late_reply_is_the_sdks_own_timeout(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(SSE([ROLE, chunk("x"), *([chunk("x"), 0.03] * 60)]))
    client = caller(a.url, Host(own(a.url)), timeout=None, max_retries=0)

    with options(deadline=0.3):
        stream = client.chat(stream=True)
        with pytest.raises(Exception) as caught:
            client.drain(stream)

    family = type(client.http).__module__.partition(".")[0]
    raised = {openai.APITimeoutError.__name__, "ReadTimeout"}  # openai 2 lets the latter out
    assert type(caught.value).__name__ in raised | {"StreamTimedOut"}
    assert type(caught.value).__module__.partition(".")[0] in ("openai", family, "headway")
