"""A caller's cancellation that meets a hedge's own cancellations is still the caller's."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import openai

from headway.client import wrap
from headway.core.snapshot import HedgePolicy
from tests.servers import R, completion
from tests.transport.callers import MESSAGES
from tests.transport.hosts import Host, policy

SLOWER_THAN_THE_HEDGE = R(200, completion(), delay=0.005)


def test_a_cancellation_at_any_moment_is_a_cancellation(serve: Callable[..., Any]) -> None:
    a, b = serve(SLOWER_THAN_THE_HEDGE), serve(SLOWER_THAN_THE_HEDGE)
    hedge = HedgePolicy(enabled=True, delay_s=0.004)
    host = Host(policy({"a": a.url, "b": b.url}, order=False, hedge=hedge))
    chance = random.Random(7)
    ends: Counter[str] = Counter()

    async def leave_early(client: openai.AsyncOpenAI) -> None:
        for _ in range(15):
            call = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=MESSAGES)
            )
            await asyncio.sleep(chance.random() * 0.02)
            call.cancel()
            (end,) = await asyncio.gather(call, return_exceptions=True)
            ends[type(end).__name__] += 1

    async def crowd() -> None:
        async with wrap(openai.AsyncOpenAI(base_url=a.url, api_key="k"), router=host) as client:
            await asyncio.gather(*(leave_early(client) for _ in range(30)))

    asyncio.run(crowd())

    assert set(ends) <= {"CancelledError", "ChatCompletion"}
    assert ends["CancelledError"] > 0
    assert host.in_flight == 0
