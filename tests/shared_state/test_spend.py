"""What tenants spend, counted for a fleet: on a real server, and by the thread that asks it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from headway.core.fleet import Loan, Want
from headway.core.model import CallFacts, Event, FleetStoreChanged
from headway.core.purse import Claim, Grant
from headway.core.snapshot import Price, Snapshot, TenantBudget
from headway.cost import Pricer
from headway.errors import TaskLimitExceeded
from headway.record import Tenants
from headway.record.tenants import Reservation
from headway.shared_state import FleetKeeper, RedisRateStore, SpendStore
from headway.testing import FakeClock
from tests.core.build import endpoint, facts, route, snapshot
from tests.shared_state.test_keeper import Till, engine

DAY = 86_400
PRICE = Price(per_request=Decimal("0.01"))
"""What each call is reserved at."""


def claim(part: str, used: int, ahead: int = 0, **given: Any) -> Claim:
    return Claim("acme", part, DAY, 1000, -1, used, ahead)._replace(**given)


# ------------------------------------------------------------------------- on a real server


def test_what_is_used_and_granted_is_taken_from_the_budget(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    [first] = store.claim([claim("p", 100, 50)])
    assert (first.tenant, first.part, first.ahead, first.left) == ("acme", "p", 50, 850)
    assert first.window == int(time.time() // DAY)
    assert first.ends_in_s == pytest.approx((first.window + 1) * DAY - time.time(), abs=5)
    [other] = store.claim([claim("q", 10, 900)])
    assert (other.ahead, other.left) == (840, 0)
    [again] = store.claim([claim("p", 100, 50)])
    assert (again.ahead, again.left) == (50, 0)
    store.close()


def test_a_claim_that_arrives_twice_is_counted_once(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    answers = [store.claim([claim("p", 100, 50)]) for _ in range(3)]
    assert len({(a[0].ahead, a[0].left) for a in answers}) == 1
    store.close()


def test_what_was_spent_is_counted_though_there_was_less(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    store.claim([claim("p", 900)])
    [over] = store.claim([claim("q", 300, 10)])
    assert (over.ahead, over.left) == (0, -200)
    [given_back] = store.claim([claim("p", 600, 10)])
    assert (given_back.ahead, given_back.left) == (10, 90)
    store.close()


def test_tenants_periods_and_namespaces_are_told_apart(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    other = RedisRateStore(redis_server.url, namespace="other")
    store.claim([claim("p", 1000)])
    several = [claim("p", 1, tenant="b"), claim("p", 2, period_s=60), claim("p", 3, tenant="{x}:é")]
    assert [g.left for g in store.claim(several)] == [999, 998, 997]
    assert other.claim([claim("p", 4)])[0].left == 996
    store.close()
    other.close()


def test_a_server_that_has_forgotten_is_told_again(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    store.claim([claim("p", 400), claim("q", 500)])
    redis_server.kill()
    with pytest.raises(Exception, match=r"(?i)connect|closed|refused"):
        store.claim([claim("p", 410)])
    redis_server.start()
    assert store.claim([claim("p", 410)])[0].left == 590
    assert store.claim([claim("q", 500)])[0].left == 90
    store.close()


def test_money_is_counted_to_the_last_nano_dollar(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    most = 10**15  # a million USD
    [granted] = store.claim([claim("p", 1, most, limit=most)])
    assert (granted.ahead, granted.left) == (most - 1, 0)
    [granted] = store.claim([claim("p", 3, 0, limit=most)])
    assert granted.left == most - 3
    [granted] = store.claim([claim("q", 10**18, 10**18, limit=most)])
    assert granted.ahead == 0
    assert granted.left == -3  # more than any budget is counted as a million
    store.close()


@pytest.mark.parametrize(
    ("claimed", "counts"),
    [(-1, True), (0, True), (1, True), (-2, True), (5, True)],
    ids=["not told", "this", "the next", "an earlier", "a far one"],
)
def test_figures_of_an_earlier_period_are_not_counted(
    claimed: int, counts: bool, redis_server: Any
) -> None:
    store = RedisRateStore(redis_server.url)
    [now] = store.claim([claim("q", 100)])
    window = -1 if claimed == -1 else now.window + claimed
    [answer] = store.claim([claim("p", 300, window=window)])
    match claimed:
        case -2:  # of a period that is over
            assert (answer.window, answer.left) == (now.window, 900)
        case 1:  # a moment ahead of the server: the next one has begun
            assert (answer.window, answer.left) == (now.window + 1, 700)
            assert answer.ends_in_s == pytest.approx(now.ends_in_s + DAY, abs=5)
            [late] = store.claim([claim("q", 100, window=now.window)])
            assert (late.window, late.left) == (now.window + 1, 700)
        case _:  # the server's clock went back, or nothing is known: what was spent is spent
            assert (answer.window, answer.left) == (now.window, 600)
    store.close()


def test_an_ended_period_is_forgotten(redis_server: Any) -> None:
    import redis

    store = RedisRateStore(redis_server.url)
    [now] = store.claim([claim("p", 700)])
    key = f"{{headway}}:spend:{DAY}:acme"
    with redis.Redis.from_url(redis_server.url) as client:
        assert 0 < client.ttl(key) <= now.ends_in_s + 61
        client.hset(key, "#window", now.window - 1)
        [next_day] = store.claim([claim("q", 1)])
        assert next_day.left == 999
        assert set(client.hkeys(key)) == {b"#window", b"#total", b"q"}
        client.hset(key, "#window", now.window + 9)  # its clock was wrong, and was set right
        assert store.claim([claim("q", 2)])[0] == next_day._replace(
            left=998, ends_in_s=pytest.approx(next_day.ends_in_s, abs=5)
        )
    store.close()


def test_many_at_once_take_no_more_than_there_is(redis_server: Any) -> None:
    granted: list[int] = []

    def ask(name: str) -> None:
        store = RedisRateStore(redis_server.url)
        held = 0
        for _ in range(30):
            held = store.claim([claim(name, held, 7)])[0].ahead + held
        granted.append(held)
        store.close()

    threads = [threading.Thread(target=ask, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 1000


# ------------------------------------------------------------------------- the thread's turns


class Account(Till):
    """A store in memory, as a server would keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[tuple[str, str], int] = {}
        self.claims: list[Claim] = []

    def claim(self, claims: Sequence[Claim]) -> list[Grant]:
        if self.is_broken:
            raise ConnectionError("gone")
        self.claims += claims
        return [self._answer(c) for c in claims]

    def _answer(self, c: Claim) -> Grant:
        others = sum(n for (t, p), n in self.parts.items() if t == c.tenant and p != c.part)
        free = c.limit - others - c.used
        ahead = max(0, min(c.ahead, free))
        self.parts[c.tenant, c.part] = c.used + ahead
        return Grant(c.tenant, c.part, 7, 1000.0, ahead, free - ahead)


class Process:
    """The tenants of one process, and its keeper."""

    def __init__(
        self, store: Any, clock: FakeClock, max_cost: str = "1", share: float = 0.25
    ) -> None:
        self.clock = clock
        self.heard: list[Event] = []
        self.tenants = Tenants(Pricer(), clock, clock.wall)
        self.keeper = FleetKeeper(
            engine(), store, clock=clock, on_event=self.heard.append, tenants=self.tenants
        )
        self.budget = TenantBudget(max_cost=Decimal(max_cost), period_s=DAY, share=share)
        self.snapshot = with_budget({"acme": self.budget})

    def begin(self, tenant: str = "acme", of: CallFacts | None = None) -> Reservation:
        found = self.tenants.reserve(tenant, self.snapshot, of or facts(), self.clock())
        assert found is not None
        return found

    def goes(self) -> bool:
        """Whether another call goes; it costs what was estimated."""
        try:
            self.begin()
        except TaskLimitExceeded:
            return False
        return True


def with_budget(tenants: dict[str, TenantBudget]) -> Snapshot:
    from dataclasses import replace

    return replace(snapshot(route({"a": 1}), [endpoint("a", price=PRICE)]), tenants=tenants)


def test_redis_counts_spending_and_any_store_may() -> None:
    pytest.importorskip("redis")
    assert isinstance(RedisRateStore("redis://127.0.0.1:1/0"), SpendStore)
    assert isinstance(Account(), SpendStore)
    assert not isinstance(Till(), SpendStore)


def test_one_process_may_spend_what_the_others_leave() -> None:
    clock, store = FakeClock(), Account()
    busy, idle = Process(store, clock), Process(store, clock)
    spent = 0
    for _ in range(300):
        spent += busy.goes()
        busy.keeper.step()
        clock.advance(0.1)
    assert spent == 100  # a dollar, at a cent each
    assert idle.goes()  # by its share: it has not heard yet
    idle.keeper.step()
    assert not idle.goes()
    busy.keeper.step()
    [row] = busy.tenants.status(clock())
    assert (row.tenant, row.max_cost, row.used, row.left) == ("acme", 1, 1, 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_fleet_spends_its_budget_but_for_one_call_of_each(seed: int) -> None:
    clock, store, rng = FakeClock(), Account(), random.Random(seed)
    fleet = [Process(store, clock, share=1 / 16) for _ in range(16)]
    spent = 0
    for _ in range(60):
        for process in rng.sample(fleet, len(fleet)):
            spent += sum(process.goes() for _ in range(rng.choice((0, 0, 1, 3))))
            if rng.random() < 0.9:
                process.keeper.step()
        clock.advance(0.1)
    assert 100 - 16 <= spent <= 100 + 16


def test_without_a_store_each_keeps_to_its_share() -> None:
    clock = FakeClock()
    fleet = [Process(Till(), clock) for _ in range(4)]
    for process in fleet:
        process.keeper.step()
    assert [sum(p.goes() for _ in range(50)) for p in fleet] == [25] * 4
    assert fleet[0].tenants.status(clock())[0].left is None


def test_while_the_store_is_gone_the_share_holds_and_then_all_is_told() -> None:
    clock, store = FakeClock(), Account()
    fleet = [Process(store, clock) for _ in range(2)]
    for process in fleet:
        assert process.goes()
        assert process.keeper.step() == pytest.approx(0.1)
    store.is_broken = True
    used = []
    for process in fleet:
        used.append(sum(process.goes() for _ in range(100)))
        assert process.keeper.step() == pytest.approx(1.0)
    assert all(20 <= n <= 27 for n in used)  # a quarter of what was left, and what was granted
    assert [e.is_reachable for e in fleet[0].heard if isinstance(e, FleetStoreChanged)] == [False]

    store.is_broken = False
    clock.advance(1.0)
    for process in fleet:
        process.keeper.step()
    assert sum(store.parts.values()) >= (2 + sum(used)) * 10**7
    assert [e.is_reachable for e in fleet[0].heard if isinstance(e, FleetStoreChanged)] == [
        False,
        True,
    ]
    assert fleet[0].goes()


def test_what_a_call_cost_is_told_instead_of_what_was_reserved() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    began = process.begin()
    process.keeper.step()
    assert store.claims[-1].used == 10**7
    began.settle(Decimal("0.0003"))
    process.keeper.step()
    assert store.claims[-1].used == 300_000
    kept = process.begin()
    kept.settle(Decimal("0.004"), is_complete=False)  # at least so much: the estimate stands
    process.keeper.step()
    assert store.claims[-1].used == 10_300_000
    more = process.begin()
    more.settle(Decimal("0.02"), is_complete=False)
    process.keeper.step()
    assert store.claims[-1].used == 30_300_000


@pytest.mark.parametrize("cost", ["0.0003", "0.02"])
def test_what_a_long_call_cost_is_told_though_nothing_else_is_used(cost: str) -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    began = process.begin()
    process.keeper.step()
    for _ in range(300):
        clock.advance(0.1)
        process.keeper.step()
    assert process.tenants._active == {}
    began.settle(Decimal(cost))
    process.keeper.step()
    assert sum(store.parts.values()) == int(Decimal(cost) * 10**9)
    process.keeper.step()
    assert process.tenants._active == {}


def test_a_long_call_of_a_forgotten_tenant_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.record.tenants.TENANTS_MAX", 1)
    process = Process(Account(), FakeClock())
    process.snapshot = with_budget({"*": process.budget})
    began = process.begin("a")
    process.begin("b")
    began.settle(Decimal("0.02"))
    assert list(process.tenants._active) == ["b"]


def test_what_is_not_needed_any_more_is_given_back() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    process.goes()
    process.keeper.step()
    assert sum(store.parts.values()) > 10**7
    clock.advance(10.0)
    process.keeper.step()
    assert sum(store.parts.values()) == 10**7
    asked = len(store.claims)
    process.keeper.step()
    assert len(store.claims) == asked
    assert process.tenants._active == {}


def test_closing_gives_back_at_once() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    process.goes()
    process.keeper.step()
    process.keeper.close()
    assert sum(store.parts.values()) == 10**7
    assert store.closed


def test_closing_does_not_ask_a_store_that_is_gone() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    process.goes()
    store.is_broken = True
    process.keeper.step()
    process.keeper.close()
    assert store.claims == []


@pytest.mark.parametrize(
    "lie",
    [
        lambda g: g._replace(ahead=-1),
        lambda g: g._replace(ahead=g.ahead + 1),
        lambda g: g._replace(left=10**9 + 1),
        lambda g: g._replace(left=float("nan")),
        lambda g: g._replace(ends_in_s=float("nan")),
        lambda g: g._replace(ends_in_s=-0.1),
        lambda g: g._replace(ends_in_s=2 * DAY + 1.0),
        lambda g: g._replace(window=None),
        lambda g: g._replace(part="nobody's"),
        lambda g: None,
    ],
)
def test_a_store_that_grants_nonsense_counts_as_gone(lie: Any) -> None:
    class Liar(Account):
        def claim(self, claims: Sequence[Claim]) -> list[Grant]:
            return [lie(grant) for grant in super().claim(claims)]

    clock = FakeClock()
    process = Process(Liar(), clock)
    process.goes()
    assert process.keeper.step() == pytest.approx(1.0)
    assert process.keeper.status().is_reachable is False
    assert process.tenants.status(clock())[0].left is None


def test_rates_and_spending_are_asked_for_in_the_same_turn() -> None:
    class Ordered(Account):
        def lend(self, wants: Sequence[Want]) -> list[Loan]:
            assert wants, "nothing is wanted"
            return super().lend(wants)

    clock, store = FakeClock(), Ordered()
    process = Process(store, clock)
    process.goes()
    process.keeper.step()
    assert len(store.claims) == 1
    assert process.keeper.status().is_reachable is True


def test_a_forked_child_owes_nothing_of_its_parents() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    inherited = process.begin()
    process.tenants.after_fork()
    assert process.tenants.status(clock()) == ()
    inherited.settle(Decimal("0.5"))
    process.keeper.step()
    assert store.claims == []
    parts = set()
    for _ in range(2):
        process.tenants.after_fork()
        process.goes()
        process.keeper.step()
        parts.add(store.claims[-1].part)
    assert len(parts) == 2


# ------------------------------------------------------------------------- bounds


def test_the_tenant_that_was_idle_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.record.tenants.TENANTS_MAX", 3)
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    process.snapshot = with_budget({"*": process.budget})
    for name in ("a", "b", "c", "a", "d"):
        process.begin(name)
    assert [row.tenant for row in process.tenants.status(clock())] == ["c", "a", "d"]
    process.keeper.step()
    assert {c.tenant for c in store.claims} == {"c", "a", "d"}
    process.begin("b")  # counts anew, and takes nothing from what was told before
    process.keeper.step()
    assert len({c.part for c in store.claims}) == 4


def test_a_turn_tells_of_so_many_and_the_next_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.record.tenants.CLAIMS_MAX", 2)
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    process.snapshot = with_budget({"*": process.budget})
    for name in "abc":
        process.begin(name)
    process.keeper.step()
    assert [c.tenant for c in store.claims] == ["a", "b"]
    process.begin("a")
    process.keeper.step()
    assert [c.tenant for c in store.claims[2:]] == ["c", "a"]


def test_the_costliest_endpoint_of_a_route_is_what_is_reserved() -> None:
    from dataclasses import replace

    clock = FakeClock()
    process = Process(Till(), clock)
    prices = {
        "a": Price(input_per_mtok=Decimal(1), output_per_mtok=Decimal(2)),
        "b": Price(input_per_mtok=Decimal(10), output_per_mtok=Decimal(20)),
        "c": Price(per_gpu_hour=Decimal(1000)),
    }
    of = snapshot(
        replace(route({"a": 1, "b": 1, "c": 1}), expected_output_tokens=100),
        [endpoint(name, price=price) for name, price in prices.items()],
    )
    process.snapshot = replace(of, tenants={"acme": process.budget})
    assert process.begin(of=facts(prompt_tokens=50)).amount == 50 * 10**7 + 100 * 2 * 10**7
    some = facts(prompt_tokens=50, max_output_tokens=10)
    assert process.begin(of=some).amount == 50 * 10**7 + 10 * 2 * 10**7


def test_without_a_price_what_calls_cost_so_far_is_reserved() -> None:
    from dataclasses import replace

    clock = FakeClock()
    process = Process(Till(), clock)
    of = snapshot(route({"a": 1}), [endpoint("a", price=Price(per_gpu_hour=Decimal(1)))])
    process.snapshot = replace(of, tenants={"acme": process.budget})
    first = process.begin()
    assert first.amount == 1
    first.settle(Decimal("0.1"))
    assert process.begin().amount == 10**11
    with pytest.raises(TaskLimitExceeded):
        process.begin()


def test_a_new_period_length_begins_a_new_account() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock)
    process.goes()
    process.snapshot = with_budget(
        {"acme": TenantBudget(max_cost=Decimal(1), period_s=60, share=1.0)}
    )
    assert sum(process.goes() for _ in range(200)) == 100
    clock.advance(60.0)
    assert process.goes()


def test_a_new_amount_keeps_what_was_used() -> None:
    clock, store = FakeClock(), Account()
    process = Process(store, clock, share=1.0)
    assert sum(process.goes() for _ in range(200)) == 100
    process.snapshot = with_budget(
        {"acme": TenantBudget(max_cost=Decimal("1.5"), period_s=DAY, share=1.0)}
    )
    assert sum(process.goes() for _ in range(200)) == 50
