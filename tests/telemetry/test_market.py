"""The price list, where no thread can be had to load it: at exit, or at a container's limit."""

from __future__ import annotations

import sys
import threading

import pytest

from headway.core.model import Usage
from headway.core.snapshot import Endpoint
from headway.cost.market import Market
from headway.cost.money import UNKNOWN
from headway.cost.pricer import Pricer


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_at_the_interpreters_end_nobody_complains_about_prices(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    pricer = Pricer(on_unknown=lambda model, provider: told.append(model))
    # What the interpreter does to the import system before it collects what is left.
    monkeypatch.delitem(sys.modules, "genai_prices.data_snapshot", raising=False)
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)

    cost = pricer.price(
        Endpoint(id="e", base_url="https://e.example/v1"),
        "a-model",
        Usage(input_tokens=1, output_tokens=1),
    )

    assert cost == UNKNOWN
    assert told == []
    assert caplog.records == []


@pytest.mark.usefixtures("no_threads")
@pytest.mark.timeout(20)
def test_without_a_thread_prices_are_loaded_where_they_are_needed() -> None:
    market = Market()
    settled: list[str] = []

    market.when_loaded(lambda: settled.append("a call"))
    market.wait()

    assert settled == ["a call"]
    assert market.loaded
