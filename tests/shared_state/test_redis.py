"""The store on a real server: it lends what accrues, and never more."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headway.core.fleet import Want
from headway.errors import HeadwayError
from headway.shared_state import RateStore, RedisRateStore, store_for
from headway.shared_state.store import BURST_S, JITTER_S, LENT_PART


def test_a_rate_lends_what_has_accrued(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    [first] = store.lend([Want("a", "rpm", 10.0, 100.0)])
    assert first == ("a", "rpm", pytest.approx(10.0 * LENT_PART * BURST_S))
    [second] = store.lend([Want("a", "rpm", 10.0, 100.0)])
    assert second.amount < 2.0
    [other] = store.lend([Want("b", "rpm", 10.0, 3.0)])
    assert other.amount == 3.0
    store.close()


def test_no_more_than_wanted_is_taken(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    amounts = [store.lend([Want("a", "tpm", 1000.0, 95.0)])[0].amount for _ in range(4)]
    assert amounts == [95.0] * 4
    store.close()


def test_no_minute_has_more_than_the_rate_with_what_had_accrued() -> None:
    assert pytest.approx(60.0 - JITTER_S) == 60.0 * LENT_PART + BURST_S
    assert LENT_PART > 0.98


def test_namespaces_do_not_share(redis_server: Any) -> None:
    for name in ("one", "two"):
        store = RedisRateStore(redis_server.url, namespace=name)
        assert store.lend([Want("a", "rpm", 10.0, 10.0)])[0].amount > 3.9
        store.close()


def test_many_at_once_take_no_more_than_one(redis_server: Any) -> None:
    taken: list[float] = []
    stop = time.monotonic() + 1.0

    def borrow() -> None:
        store = RedisRateStore(redis_server.url)
        while time.monotonic() < stop:
            taken.append(store.lend([Want("a", "rpm", 50.0, 5.0)])[0].amount)
            time.sleep(0.01)
        store.close()

    began = time.monotonic()
    threads = [threading.Thread(target=borrow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    assert sum(taken) <= 50.0 * (took_s + 1.0) + 0.01
    assert sum(taken) >= 50.0 * 1.0  # what had accrued at once, then as it does


def test_the_clocks_of_clients_do_not_matter(
    redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisRateStore(redis_server.url)
    store.lend([Want("a", "rpm", 10.0, 100.0)])
    real = time.time
    for skew in (-86400.0, 86400.0):
        monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
        assert store.lend([Want("a", "rpm", 10.0, 100.0)])[0].amount < 2.0
    store.close()


def test_a_server_whose_clock_went_back_lends_again(redis_server: Any) -> None:
    import redis

    store = RedisRateStore(redis_server.url)
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("{headway}:rate:a:rpm", str(time.time() + 3600))
        store.lend([Want("a", "rpm", 1000.0, 1.0)])
        time.sleep(0.01)
        assert store.lend([Want("a", "rpm", 1000.0, 1.0)])[0].amount == 1.0
    store.close()


def test_a_restarted_server_is_found_again(redis_server: Any) -> None:
    store = RedisRateStore(redis_server.url)
    store.lend([Want("a", "rpm", 10.0, 1.0)])
    redis_server.kill()
    with pytest.raises(Exception, match=r"(?i)connect|closed|refused"):
        store.lend([Want("a", "rpm", 10.0, 1.0)])
    redis_server.start()
    assert store.lend([Want("a", "rpm", 10.0, 1.0)])[0].amount == 1.0
    store.close()


def test_no_password_is_shown() -> None:
    pytest.importorskip("redis")
    assert "hunter2" not in repr(RedisRateStore("redis://:hunter2@127.0.0.1:1/0"))


@pytest.mark.parametrize("given", ["http://127.0.0.1", 7, "127.0.0.1:6379"], ids=str)
def test_what_is_no_store_is_refused(given: object) -> None:
    with pytest.raises(HeadwayError, match="shared_state: expected"):
        store_for(given)


def test_an_object_of_ones_own_will_do() -> None:
    class Generous:
        def lend(self, wants: Any) -> Any:
            return [(w.endpoint_id, w.kind, w.amount) for w in wants]

        def close(self) -> None: ...

        def after_fork(self) -> None: ...

    store = Generous()
    assert isinstance(store, RateStore)
    assert store_for(store) is store
