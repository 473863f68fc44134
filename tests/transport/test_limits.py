"""The time of an attempt, on a clock that only moves when told."""

from __future__ import annotations

import pytest

from headway.core.model import INFINITY, Attempt, AttemptKind
from headway.transport.limits import DRAIN_S, SHORTEST_WAIT_S, Limits, Timeouts, limit_reads


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limits(
    clock: Clock, *, deadline: float = INFINITY, first: float = INFINITY, idle: float = INFINITY
) -> Limits:
    attempt = Attempt(
        number=1,
        kind=AttemptKind.INITIAL,
        endpoint_id="a",
        model="m",
        started_at=clock.now,
        deadline_at=clock.now + deadline,
        first_token_by=clock.now + first,
        idle_s=idle,
    )
    return Limits(attempt, clock)


def test_without_limits_the_users_timeouts_stand() -> None:
    made = limits(Clock())

    assert made.shorter(None) is None
    assert made.shorter(5.0) == 5.0
    assert made.exceeded() is None


def test_each_phase_gets_what_is_left_when_it_begins() -> None:
    clock = Clock()
    timeouts = Timeouts({"connect": 5.0, "read": None}, limits(clock, deadline=3.0))

    assert timeouts.get("connect") == 3.0
    clock.now += 2.5
    assert timeouts.get("read") == pytest.approx(0.5)
    assert timeouts["write"] == pytest.approx(0.5)
    clock.now += 0.4999
    assert timeouts.get("pool") == SHORTEST_WAIT_S
    clock.now += 5.0
    with pytest.raises(TimeoutError):
        timeouts.get("pool")


def test_before_content_the_first_token_counts_and_after_it_the_silence() -> None:
    clock = Clock()
    made = limits(clock, deadline=100.0, first=2.0, idle=10.0)
    assert made.left_s() == 2.0
    clock.now += 2.0
    assert made.exceeded() == "first_token"

    made.progressed()
    assert made.exceeded() is None
    assert made.left_s() == 10.0
    clock.now += 10.0
    assert made.exceeded() == "idle"


def test_only_content_is_progress() -> None:
    clock = Clock()
    made = limits(clock, idle=1.0)
    made.progressed()

    for _ in range(3):  # pings: awaited, read, handed on
        assert made.left_s() is not None
        clock.now += 0.4
        made.handed_over()
        made.resumed()

    assert made.exceeded() == "idle"


def test_the_silence_begins_when_the_wait_does() -> None:
    clock = Clock()
    made = limits(clock, idle=1.0)
    made.progressed()
    clock.now += 50.0  # nobody read meanwhile

    assert made.left_s() == 1.0
    clock.now += 0.75
    made.progressed()
    assert made.left_s() == 1.0


def test_the_applications_time_stands_still() -> None:
    clock = Clock()
    made = limits(clock, deadline=100.0, idle=1.0)
    made.progressed()
    made.handed_over()
    clock.now += 50.0
    made.resumed()

    assert made.exceeded() is None
    assert made.left_s() == pytest.approx(1.0)
    clock.now += 50.0
    assert made.exceeded() == "deadline"


def test_the_end_of_a_finished_stream_is_awaited_briefly() -> None:
    clock = Clock()
    made = limits(clock, idle=60.0)
    made.progressed()
    made.drain()
    clock.now += DRAIN_S / 2
    made.drain()

    assert made.left_s() == pytest.approx(DRAIN_S / 2)
    clock.now += DRAIN_S
    assert made.exceeded() == "drain"


class Connection:
    def __init__(self) -> None:
        self.asked: list[float | None] = []

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self.asked.append(timeout)
        return b""


class Reply:
    def __init__(self, connection: object, version: bytes = b"HTTP/1.1") -> None:
        self.extensions = {"network_stream": connection, "http_version": version}


def test_reads_of_a_connection_are_bounded_until_it_is_given_back() -> None:
    clock, connection = Clock(), Connection()
    undo = limit_reads(Reply(connection), limits(clock, deadline=3.0))  # type: ignore[arg-type]
    assert undo is not None

    connection.read(1, timeout=5.0)
    clock.now += 2.0
    connection.read(1, timeout=None)
    undo()
    connection.read(1, timeout=5.0)

    assert connection.asked == [3.0, 1.0, 5.0]


def test_a_shared_or_unknown_connection_is_left_alone() -> None:
    made = limits(Clock(), deadline=3.0)

    assert limit_reads(Reply(Connection(), b"HTTP/2"), made) is None  # type: ignore[arg-type]
    assert limit_reads(Reply(None), made) is None  # type: ignore[arg-type]
    assert limit_reads(Reply(object()), made) is None  # type: ignore[arg-type]
