"""One `headway.options(...)` for many: what it says ends where its block does."""

from __future__ import annotations

import asyncio
import threading

import headway
from headway.task.scope import CallOptions, current_scope


def session() -> str | None:
    return current_scope().options.session


async def test_tasks_that_share_one_leave_it_in_any_order() -> None:
    shared = headway.options(session="shared")
    entered = asyncio.Event()

    async def first() -> str | None:
        with shared:
            await entered.wait()
        return session()

    async def second() -> str | None:
        with shared:
            entered.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return session()

    assert await asyncio.gather(first(), second()) == [None, None]


def test_threads_that_share_one_leave_it_in_any_order() -> None:
    shared = headway.options(session="shared")
    inside, left = threading.Event(), threading.Event()
    found: list[str | None] = []

    def first() -> None:
        with shared:
            inside.set()
            left.wait(10)
            found.append(session())
        found.append(session())

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with shared:
        pass
    found.append(session())
    left.set()
    thread.join()

    assert found == [None, "shared", None]


def test_one_may_be_entered_within_itself() -> None:
    outer = headway.options(session="outer", deadline=60)
    with outer as once, headway.options(session="inner"):
        with outer as twice:
            assert session() == "outer"
        assert session() == "inner"
        assert isinstance(once, CallOptions)
        assert once.deadline_at == twice.deadline_at  # the earlier one
    assert session() is None


def test_what_was_left_open_inside_ends_with_it() -> None:
    with headway.options(session="outer"):
        headway.options(session="never left").__enter__()
        assert session() == "never left"
    assert session() is None
