"""The price list, where no thread can be had to load it: at exit, or at a container's limit."""

from __future__ import annotations

import threading

import pytest

from headway.cost.market import Market


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("no_threads")
@pytest.mark.timeout(20)
def test_without_a_thread_prices_are_loaded_where_they_are_needed() -> None:
    market = Market()
    settled: list[str] = []

    market.when_loaded(lambda: settled.append("a call"))
    market.wait()

    assert settled == ["a call"]
    assert market.loaded
