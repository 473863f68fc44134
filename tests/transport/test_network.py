"""Sockets that keep an attempt's time, and are transparent to everything else."""

from __future__ import annotations

import importlib
import importlib.util
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from httpcore._sync.http11 import HTTP11UpgradeStream

from headway.core.model import INFINITY, Attempt, AttemptKind
from headway.transport import network
from headway.transport.limits import Limits, Remaining, Timeouts

CORES: list[Any] = [
    importlib.import_module(name)
    for name in ("httpcore2", "httpcore")
    if importlib.util.find_spec(name)
]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def remaining(clock: Clock, seconds: float, user: float | None = None) -> Any:
    attempt = Attempt(
        number=1,
        kind=AttemptKind.INITIAL,
        endpoint_id="a",
        model="m",
        started_at=clock.now,
        deadline_at=clock.now + seconds,
        first_token_by=INFINITY,
        idle_s=INFINITY,
    )
    return Timeouts({"read": user}, Limits(attempt, clock)).get("read")


class Inner:
    """A stream of the http library's, as far as it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.asked.append(timeout)
        return b"x"

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.asked.append((bytes(buffer), timeout))

    def start_tls(self, *asked: Any) -> Inner:
        self.asked.append(asked)
        return self

    def get_extra_info(self, info: str) -> str:
        return info

    def close(self) -> None:
        self.asked.append("closed")


def test_each_wait_gets_what_is_left_then() -> None:
    clock, inner = Clock(), Inner()
    timeout = remaining(clock, 3.0, user=2.5)
    stream = network.Stream(inner)
    assert isinstance(timeout, Remaining)

    stream.read(1, timeout)
    clock.now += 2.0
    stream.read(1, timeout=timeout)
    stream.write(b"abc", timeout)
    clock.now += 2.0
    with pytest.raises(TimeoutError):
        stream.read(1, timeout)

    assert inner.asked == [2.5, 1.0, (b"abc", 1.0)]


def test_other_timeouts_go_through() -> None:
    inner = Inner()
    stream = network.Stream(inner)
    big = b"x" * (network.SENT_AT_ONCE_BYTES + 1)

    stream.read(1, None)
    stream.write(big, 7.0)
    stream.start_tls("context", "host", 5.0)
    stream.close()

    assert inner.asked == [None, (big, 7.0), ("context", "host", 5.0), "closed"]
    assert stream.get_extra_info("socket") == "socket"


def test_tls_through_a_proxy_keeps_time_too() -> None:
    clock, inner = Clock(), Inner()
    tunnel = HTTP11UpgradeStream(network.Stream(inner), b"")  # what stands behind a CONNECT
    timeout = remaining(clock, 3.0)
    clock.now += 1.0

    encrypted = tunnel.start_tls("context", "host", timeout)  # type: ignore[arg-type]

    assert isinstance(encrypted, network.Stream)
    assert inner.asked == [("context", "host", 2.0)]


def test_much_is_written_piece_by_piece_where_there_is_no_socket_to_write_to() -> None:
    clock, inner = Clock(), Inner()
    big = bytes(range(256)) * 700

    network.Stream(inner).write(big, remaining(clock, 3.0))

    assert b"".join(piece for piece, _ in inner.asked) == big
    assert max(len(piece) for piece, _ in inner.asked) <= network.SENT_AT_ONCE_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.__name__)
def test_much_is_written_to_a_socket_whole(
    core: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    big = bytes(range(256)) * 8000
    got = bytearray()

    def read() -> None:
        while len(got) < len(big):
            got.extend(theirs.recv(10_000))

    reader = threading.Thread(target=read)
    reader.start()
    network.Stream(core._backends.sync.SyncStream(ours)).write(big, remaining(Clock(), 30.0))
    reader.join()

    assert bytes(got) == big


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.__name__)
def test_a_reader_that_left_is_the_librarys_write_error(
    core: Any, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    theirs.close()

    with pytest.raises(core.WriteError):
        network.Stream(core._backends.sync.SyncStream(ours)).write(
            b"x" * 200_000, remaining(Clock(), 30.0)
        )


class Dialer:
    """A network backend that knows which addresses answer."""

    def __init__(self, *answering: str) -> None:
        self.answering = answering
        self.dialled: list[tuple[str, Any]] = []

    def connect_tcp(self, host: str, port: int, timeout: Any = None, **options: Any) -> Inner:
        self.dialled.append((host, timeout))
        if host not in self.answering:
            raise CORES[0].ConnectError(host)
        return Inner()


def test_the_addresses_of_a_host_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*_: object) -> list[Any]:
        return [(0, 0, 0, "", (address, 80)) for address in ("::1", "127.0.0.1", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    dialer = Dialer("127.0.0.1")

    made = network.Backend(dialer).connect_tcp("two.test", 80, timeout=remaining(Clock(), 3.0))

    assert isinstance(made, network.Stream)
    assert dialer.dialled == [("::1", 3.0), ("127.0.0.1", 3.0)]

    with pytest.raises(CORES[0].ConnectError, match=r"127\.0\.0\.1"):
        network.Backend(Dialer()).connect_tcp("two.test", 80, timeout=remaining(Clock(), 3.0))


def test_without_our_timeout_a_host_is_dialled_by_its_name() -> None:
    dialer = Dialer("one.test")

    network.Backend(dialer).connect_tcp("one.test", 80, timeout=5.0)

    assert dialer.dialled == [("one.test", 5.0)]


def test_a_pool_is_bound_once_and_other_transports_never() -> None:
    class Pool:
        _network_backend = "theirs"

    class Transport:
        _pool = Pool()

    transport = Transport()
    network.bound(transport)
    once = transport._pool._network_backend
    network.bound(transport)
    network.bound(object())

    assert isinstance(once, network.Backend)
    assert transport._pool._network_backend is once
