"""Kept answers: what goes into a store comes out again, and nothing else does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.model import Usage
from headway.core.snapshot import CachePolicy, Route, WeightTable
from headway.share import board as boards
from headway.share.answer import Answer, decode, encode
from headway.share.aside import THREADS_MAX, Job, Slots
from headway.share.board import Board
from headway.share.memory import ENTRIES_MAX, Memory
from headway.share.shelf import Shelf
from headway.testing import FakeClock
from headway.transport.wake import sleep

texts = st.text(max_size=20)
headers = st.tuples(
    st.binary(min_size=1, max_size=20), st.binary(max_size=20)
).filter(lambda pair: not any(byte in b"\r\n\0" for byte in pair[0] + pair[1]))  # fmt: skip
counts = st.none() | st.integers(0, 10**9)
usages = st.builds(
    Usage, counts, counts, counts, counts, counts,
    st.none() | st.decimals(0, 100, allow_nan=False), st.booleans(),
)  # fmt: skip
seconds = st.floats(0, 1e9)
answers = st.builds(
    Answer,
    status=st.just(200),
    headers=st.lists(headers, max_size=4).map(tuple),
    body=st.binary(max_size=200),
    endpoint_id=texts,
    model=texts,
    expires_at=seconds,
    usage=st.none() | usages,
    response_model=st.none() | texts,
    service_tier=st.none() | texts,
    duration_s=st.none() | seconds,
    busy_s=seconds,
)


@given(answers)
def test_an_answer_comes_back_as_it_was(answer: Answer) -> None:
    assert decode(encode(answer)) == answer


@given(st.binary(max_size=300))
def test_anything_else_is_a_miss(stored: bytes) -> None:
    assert decode(stored) is None


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ('"expires_at":1000000000.0', '"expires_at":NaN'),  # it would hold for ever
        ('"expires_at":1000000000.0', '"expires_at":Infinity'),
        ('"busy_s":0.0', '"busy_s":NaN'),
        ('"0.25"', '"NaN"'),
        ('"0.25"', '"-0.25"'),
        ('"0.25"', '"Infinity"'),
    ],
)
def test_an_answer_with_a_number_that_is_none_is_a_miss(member: str, value: str) -> None:
    stored = encode(answer_of(1)._replace(usage=Usage(1, 1, provider_cost_usd=Decimal("0.25"))))
    assert member.encode() in stored

    assert decode(stored) is not None
    assert decode(stored.replace(member.encode(), value.encode())) is None


@given(answers, st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_answer_is_a_miss_or_an_answer(answer: Answer, at: int, byte: int) -> None:
    stored = bytearray(encode(answer))
    stored[at % len(stored)] = byte
    found = decode(bytes(stored[: at % len(stored)]) if byte % 2 else bytes(stored))

    assert found is None or all(b"\n" not in n + v for n, v in found.headers)


def answer_of(size: int, expires_at: float = 1e9) -> Answer:
    return Answer(200, (), b"x" * size, "a", "m", expires_at)


def test_memory_forgets_by_number_too() -> None:
    memory = Memory()
    for number in range(ENTRIES_MAX + 10):
        memory.put(str(number), answer_of(0), 1 << 40)

    assert len(memory) == ENTRIES_MAX
    assert memory.get("0", 0.0) is None
    assert memory.get(str(ENTRIES_MAX), 0.0) is not None


def test_memory_keeps_nothing_that_would_push_out_all_else() -> None:
    memory = Memory()
    memory.put("small", answer_of(10), 10_000)
    memory.put("large", answer_of(5_000), 10_000)

    assert memory.get("large", 0.0) is None
    assert memory.get("small", 0.0) is not None
    memory.put("small", answer_of(20), 10_000)
    assert memory.held_bytes == answer_of(20).size_bytes


# --------------------------------------------------------------------------- slow and broken stores


ROUTE = Route(name="r", weights=WeightTable(by_zone={}), cache=CachePolicy(enabled=True))


class Counting(dict[str, bytes]):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__()
        self.asked = 0
        self._act = act

    def get(self, *_: Any) -> Any:
        self.asked += 1
        return self._act()


def ask(shelf: Shelf, wait_s: float = 20.0) -> Any:
    job = shelf.find("k", ROUTE)
    if not isinstance(job, Job):
        return job
    sleep(job, wait_s)
    return shelf.found(job)


def test_a_store_that_fails_is_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    store = Counting(lambda: 1 / 0)
    shelf = Shelf(store, clock=clock, wall_clock=clock.wall)

    with caplog.at_level(logging.WARNING, "headway"):
        assert [ask(shelf) for _ in range(3)] == [None] * 3
        assert store.asked == 1
        clock.advance(6)
        assert ask(shelf) is None
        assert store.asked == 2

    assert caplog.text.count("ZeroDivisionError") == 1, "once a minute"


def test_jobs_that_hang_are_bounded() -> None:
    clock = FakeClock()
    release = threading.Event()
    store = Counting(lambda: release.wait(20))
    shelf = Shelf(store, clock=clock, wall_clock=clock.wall)

    begun = [shelf.find("k", ROUTE) for _ in range(THREADS_MAX + 5)]
    jobs = [job for job in begun if isinstance(job, Job)]

    assert len(jobs) == THREADS_MAX
    release.set()
    for job in jobs:
        sleep(job, 20)
        assert job.is_done


def test_a_job_wakes_whoever_waits_and_tells_who_comes_late() -> None:
    gate, woken = threading.Event(), threading.Event()
    job = Job(lambda: gate.wait(20), Slots())

    assert job.start()
    assert not job.set_waker(woken.set)
    gate.set()
    assert woken.wait(20)
    assert job.set_waker(None)
    assert job.result is True


def test_usage_survives_with_its_money() -> None:
    usage = Usage(10, 5, 2, None, 1, Decimal("0.000123"), estimated=False)
    kept = decode(encode(answer_of(1)._replace(usage=usage)))

    assert kept is not None
    assert kept.usage == usage


# --------------------------------------------------------------------------- the board


def test_who_finds_no_call_under_way_looks_for_its_answer_once_more() -> None:
    """An answer may have been kept, and its call have ended, since the caller looked."""
    board, answer = Board(), answer_of(10)
    record: Any = None

    assert board.enter("1", record, lambda: None, lambda: answer) is answer  # type: ignore[arg-type, return-value]
    assert not len(board)


def test_with_too_many_requests_under_way_calls_are_made_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boards, "LEGS_MAX", 2)
    board = Board()
    record: Any = None

    def enter(key: str) -> Any:
        return board.enter(key, record, lambda: None, lambda: None)  # type: ignore[arg-type, return-value]

    first, second, third = enter("1"), enter("2"), enter("3")

    assert third is None
    board.close(first.leg)
    assert enter("3") is not None

    monkeypatch.setattr(boards, "HELD_BYTES_MAX", 10)
    board.close(second.leg)
    board._legs["3"].tape.add(b"x" * 10)
    assert enter("4") is None
