"""A fleet of routers: together they keep to the rate, and no call fails when the store does."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest

from headway.core.engine import Engine
from headway.core.fleet import Loan, Want
from headway.core.model import Event, FleetStoreChanged, Outcome, Send, Wait
from headway.core.snapshot import Capacity
from headway.router import Router
from headway.shared_state import FleetKeeper, RedisRateStore
from headway.shared_state.store import LENT_PART
from headway.testing import FakeClock
from tests.core.build import DONE, Even, endpoint, facts, route, snapshot
from tests.servers import OK, Server
from tests.transport.hosts import policy

RPM = 6000.0
PROCESSES = 16


class Till:
    """A store in memory, which can be broken."""

    def __init__(self) -> None:
        self.is_broken = False
        self.asked: list[Want] = []
        self.closed = False

    def lend(self, wants: Sequence[Want]) -> list[Loan]:
        self.asked += wants
        if self.is_broken:
            raise ConnectionError("secret-host:6379 is gone")
        return [Loan(w.endpoint_id, w.kind, w.amount) for w in wants]

    def close(self) -> None:
        self.closed = True

    def after_fork(self) -> None: ...


def engine(share: float = 1.0 / PROCESSES) -> Engine:
    described = endpoint("a", capacity=Capacity(rpm=RPM * share, fleet_rpm=RPM))
    return Engine(
        snapshot(route({"a": 1}), [described]), rng=Even(), lock=threading.Lock(), in_fleet=True
    )


def start_call(of: Engine, now: float) -> None:
    call = of.begin(facts(), now)
    assert call is not None
    sent = call.next_action(now)
    assert isinstance(sent, Send)
    call.on_outcome(sent.attempt, DONE, now)


def test_a_store_that_breaks_and_comes_back_is_told_of() -> None:
    clock, till, heard = FakeClock(), Till(), list[Event]()
    of = engine()
    keeper = FleetKeeper(of, till, clock=clock, on_event=heard.append)
    assert keeper.status() == (None, None, "")
    assert keeper.step() == pytest.approx(0.1)
    assert till.asked == []  # nothing is in use

    start_call(of, clock())
    keeper.step()
    assert keeper.status().is_reachable is True
    assert heard == []

    till.is_broken = True
    clock.advance(1.0)
    start_call(of, clock())
    assert keeper.step() == pytest.approx(1.0)
    clock.advance(2.0)
    assert keeper.status() == (False, pytest.approx(2.0), "ConnectionError")
    keeper.step()
    till.is_broken = False
    start_call(of, clock())
    keeper.step()

    assert [(e.is_reachable, e.reason) for e in heard if isinstance(e, FleetStoreChanged)] == [
        (False, "ConnectionError"),
        (True, ""),
    ]


@pytest.mark.parametrize(
    "lie",
    [
        [Loan("a", "rpm", float("nan"))],
        [Loan("a", "rpm", float("inf"))],
        [Loan("a", "rpm", -5.0)],
        [Loan("a", "rpm", "5")],  # type: ignore[arg-type]
        [None],
        None,
    ],
    ids=["nan", "inf", "negative", "text", "no loan", "nothing"],
)
def test_a_store_that_lends_nonsense_counts_as_gone(lie: Any) -> None:
    class Liar(Till):
        def lend(self, wants: Sequence[Want]) -> list[Loan]:
            return lie  # type: ignore[no-any-return]

    clock, of = FakeClock(), engine()
    keeper = FleetKeeper(of, Liar(), clock=clock, on_event=lambda _: None)
    start_call(of, clock())
    assert keeper.step() == pytest.approx(1.0)
    assert keeper.status().is_reachable is False
    clock.advance(1.0)
    start_call(of, clock())  # by the own share


def test_a_store_lends_no_more_than_was_wanted_and_nothing_else() -> None:
    class Spendthrift(Till):
        def lend(self, wants: Sequence[Want]) -> list[Loan]:
            return [Loan("a", "rpm", 1e9), Loan("a", "tpm", 1e9), Loan("nobody's", "rpm", 1e9)]

    clock, of = FakeClock(), engine()
    keeper = FleetKeeper(of, Spendthrift(), clock=clock, on_event=lambda _: None)
    start_call(of, clock())
    keeper.step()
    sent = 0
    while sent < 1000:
        call = of.begin(facts(), clock())
        assert call is not None
        if not isinstance(call.next_action(clock()), Send):
            break
        sent += 1
    assert sent < 10


def test_while_a_store_hangs_the_own_share_holds_and_is_not_owed() -> None:
    clock, of = FakeClock(), engine(1.0)

    class Slow(Till):
        hangs_s = 0.0

        def lend(self, wants: Sequence[Want]) -> list[Loan]:
            for _ in range(int(self.hangs_s)):
                clock.advance(1.0)
                for _ in range(20):
                    start_call(of, clock())
            return super().lend(wants)

    till = Slow()
    keeper = FleetKeeper(of, till, clock=clock, on_event=lambda _: None)
    start_call(of, clock())
    keeper.step()
    till.hangs_s = 60.0
    start_call(of, clock())
    keeper.step()
    start_call(of, clock())  # after a minute of the own share nobody waits a minute for the debt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_told_to_leave_is_followed_by_another() -> None:
    asked = threading.Event()

    class Leaves(Till):
        def lend(self, wants: Sequence[Want]) -> list[Loan]:
            asked.set()
            raise SystemExit

    of = engine()
    keeper = FleetKeeper(of, Leaves(), clock=time.monotonic, on_event=lambda _: None)
    for _ in range(2):
        asked.clear()
        start_call(of, time.monotonic())
        keeper.ensure_started()
        assert asked.wait(10)
        for thread in threading.enumerate():
            if thread.name == "headway-fleet":
                thread.join(10)
        of = keeper._engine = engine()
    keeper.close()


def test_no_thread_before_the_first_call_and_none_after_close() -> None:
    till = Till()
    with Server(OK) as server:
        router = Router(policy({"default": server.url}), shared_state=till)
        client = router.wrap(openai.OpenAI(base_url=server.url, api_key="k"))
        assert not named_threads()
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert len(named_threads()) == 1
        client.close()
        router.close()
        assert not named_threads()
        assert till.closed
        assert router.status().fleet is not None


def named_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "headway-fleet"]


class Process:
    """One engine with a keeper, which sends as fast as it may."""

    def __init__(self, store: Any) -> None:
        self.engine = engine()
        self.heard: list[Event] = []
        self.keeper = FleetKeeper(
            self.engine, store, clock=time.monotonic, on_event=self.heard.append
        )
        self.sent: list[float] = []
        self.failed = 0

    async def run(self, until: float) -> None:
        while (now := time.monotonic()) < until:
            call = self.engine.begin(facts(), now)
            assert call is not None
            action = call.next_action(now)
            while isinstance(action, Wait) and now < until:
                await asyncio.sleep(max(0.0, min(action.until, until) - time.monotonic()))
                now = time.monotonic()
                action = call.next_action(now)
            if isinstance(action, Send):
                self.sent.append(now)
                call.on_outcome(action.attempt, Outcome(DONE.kind, status=200), now)
            elif now < until:
                self.failed += 1
            await asyncio.sleep(0)


def run_fleet(
    server: Any, keepers: list[Any], seconds: float, *, act: Any = None
) -> tuple[list[Process], float]:
    processes = [Process(RedisRateStore(server.url)) for _ in range(PROCESSES)]
    keepers += [p.keeper for p in processes]
    began = time.monotonic()

    async def drive() -> None:
        for process in processes:
            process.keeper.ensure_started()
        runs = [process.run(began + seconds) for process in processes]
        await asyncio.gather(*runs, *([act(began)] if act is not None else []))

    asyncio.run(drive())
    return processes, began


def rate(processes: list[Process], begin: float, end: float) -> float:
    """Attempts a second between two instants."""
    n = sum(begin <= at < end for process in processes for at in process.sent)
    return n / (end - begin)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_sixteen_keep_to_one_rate(redis_server: Any, keepers: list[Any]) -> None:
    processes, began = run_fleet(redis_server, keepers, 15.0)

    # What each uses before its first loan is owed: repaid in the first seconds.
    lent = RPM / 60 * LENT_PART
    assert rate(processes, began + 5.0, began + 15.0) == pytest.approx(lent, rel=0.02)
    assert rate(processes, began, began + 15.0) <= RPM / 60 * (1.0 + 1.0 / 15.0) * 1.02
    assert not any(p.failed for p in processes)
    assert all(p.sent for p in processes)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["kill -9", "stopped", "partition"])
def test_the_store_goes_and_no_call_fails(how: str, redis_server: Any, keepers: list[Any]) -> None:
    async def act(began: float) -> None:
        await asyncio.sleep(began + 3.0 - time.monotonic())
        if how == "kill -9":
            await asyncio.to_thread(redis_server.kill)
        else:
            redis_server.signal(signal.SIGSTOP)
        await asyncio.sleep(began + 9.0 - time.monotonic())
        if how == "kill -9":
            await asyncio.to_thread(redis_server.start)
        else:
            redis_server.signal(signal.SIGCONT)

    processes, began = run_fleet(redis_server, keepers, 16.0, act=act)

    assert not any(p.failed for p in processes)
    assert rate(processes, began + 4.5, began + 9.0) == pytest.approx(RPM / 60, rel=0.15)
    assert rate(processes, began + 11.0, began + 16.0) == pytest.approx(RPM / 60, rel=0.03)
    for process in processes:
        told = [e.is_reachable for e in process.heard if isinstance(e, FleetStoreChanged)]
        assert told == [False, True]


def test_a_fleet_of_real_clients_shares_a_rate(redis_server: Any) -> None:
    """Two routers, 600 calls a minute between them: what both send in two seconds."""
    limited = endpoint("a", capacity=Capacity(rpm=300.0, fleet_rpm=600.0))
    with Server(OK) as server:
        described = {"a": replace(limited, base_url=server.url)}
        routers = [Router(policy(described), shared_state=redis_server.url) for _ in range(2)]
        clients = [r.wrap(openai.OpenAI(base_url=server.url, api_key="k")) for r in routers]
        until = time.monotonic() + 2.0

        def busy(client: openai.OpenAI) -> None:
            while time.monotonic() < until:
                client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}]
                )

        threads = [threading.Thread(target=busy, args=(c,)) for c in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(r.status().fleet.is_reachable for r in routers)  # type: ignore[union-attr]
        hits = len(server.hits)
        for client in clients:
            client.close()
        for router in routers:
            router.close()
    # Ten a second, one second's worth saved up in the store, and at the start one in each process.
    assert 15 <= hits <= 36
