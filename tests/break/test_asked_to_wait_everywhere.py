"""When every endpoint asks for quiet, the call waits for the first that is back, not for the last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import OK, R, error
from tests.transport.hosts import Host, policy


def quiet(seconds: float) -> R:
    asked = {"retry-after-ms": str(int(seconds * 1000))}
    return R(429, error("slow", "requests", "rate_limit_exceeded"), asked)


@pytest.mark.parametrize("last_s", [12.0, 600.0])
def test_the_soonest_is_waited_for(
    last_s: float, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(quiet(0.3), OK), serve(quiet(last_s), OK)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    began = time.monotonic()
    client.chat()

    assert 0.3 <= time.monotonic() - began < 10.0
    assert (len(a.hits), len(b.hits)) == (2, 1)
