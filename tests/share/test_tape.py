"""One answer, any number of readers: each from the start, none in the way of the others."""

from __future__ import annotations

import pytest

from headway.share.tape import Head, Reader, Tape

HEAD = Head(200, (), {}, "a", None, streams=True)


def drained(reader: Reader) -> bytes:
    found = b""
    while (chunk := reader.take()) is not None:
        found += chunk
    return found


def test_each_reader_has_its_own_place() -> None:
    tape = Tape()
    one = tape.first_reader()
    tape.add(b"a")
    assert one.take() == b"a"
    late = tape.first_reader()
    tape.add(b"b")

    assert drained(one) == b"b"
    assert drained(late) == b"ab"
    assert tape.body() == b"ab"


def test_a_reader_is_woken_by_a_change_and_never_misses_one() -> None:
    tape = Tape()
    reader = tape.first_reader()
    woken: list[str] = []

    assert reader.take() is None
    assert not reader.set_waker(lambda: woken.append("x"))
    for change in (lambda: tape.begin(HEAD), lambda: tape.add(b"a"), tape.end):
        change()
    assert len(woken) == 3

    reader.set_waker(None)
    assert reader.take() == b"a"
    assert not reader.set_waker(None)
    tape = Tape()
    reader = tape.first_reader()
    assert reader.take() is None
    tape.add(b"a")  # between the look and the wait
    assert reader.set_waker(lambda: None)


def test_past_its_bound_nobody_may_join_and_only_what_is_missing_is_kept() -> None:
    tape = Tape(bytes_max=10)
    ahead, behind = tape.first_reader(), tape.first_reader()
    for number in range(6):
        tape.add(b"%d-" % number)
        assert ahead.take() is not None

    assert tape.reader() is None
    assert tape.body() is None
    assert tape.held_bytes <= 12  # what `behind` hasn't, but for what it was cut off for
    assert behind.is_cut
    assert behind.take() is None
    assert not ahead.is_cut
    tape.add(b"more")
    assert ahead.take() == b"more"
    assert tape.held_bytes == 0


def test_a_reader_that_keeps_up_is_not_cut_off() -> None:
    tape = Tape(bytes_max=10)
    readers = [tape.first_reader() for _ in range(3)]
    for number in range(100):
        tape.add(b"%03d" % number)
        for reader in readers:
            assert reader.take() == b"%03d" % number

    assert not any(reader.is_cut for reader in readers)
    assert (tape.length, tape.held_bytes) == (100, 0)


def test_a_writer_that_is_ahead_of_everyone_cuts_nobody_off() -> None:
    tape = Tape(bytes_max=10)
    reader = tape.first_reader()
    for _ in range(20):
        tape.add(b"xxx")

    assert not tape.has_room(30)
    assert drained(reader) == b"xxx" * 20
    assert tape.has_room(0)


def test_one_reader_at_a_time_fetches_and_only_who_has_all() -> None:
    tape = Tape()
    one, other = tape.first_reader(), tape.first_reader()

    assert tape.pull_for(one)
    assert not tape.pull_for(other)
    tape.add(b"a")
    tape.pulled(one)
    assert not tape.pull_for(other), "it hasn't taken what there is"
    assert other.take() == b"a"
    assert tape.pull_for(other)
    other.leave()  # a reader that leaves hands the turn on
    assert one.take() == b"a"
    assert tape.pull_for(one)


def test_only_the_last_reader_to_leave_an_unfinished_answer_ends_it() -> None:
    tape = Tape()
    one, other = tape.first_reader(), tape.first_reader()

    assert not one.leave()
    assert other.leave()
    assert not other.leave()
    assert tape.reader() is None, "it is being ended"

    finished = Tape()
    reader = finished.first_reader()
    finished.end()
    assert not reader.leave()


@pytest.mark.parametrize("is_own", [False, True])
def test_the_first_end_counts(is_own: bool) -> None:
    tape = Tape()
    tape.fail(ValueError("no"), is_own=is_own)
    tape.end()
    tape.fail(KeyError())

    assert not tape.is_ended
    assert tape.failure is not None
    assert (type(tape.failure.error), tape.failure.is_own) == (ValueError, is_own)
    assert tape.reader() is None
