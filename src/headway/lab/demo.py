"""`headway demo`: agents, four endpoints, faults; with plain clients, then with a wrapped one.

The exit code is 0 if the wrapped run did what it promises (`unmet`), 1 if not.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import headway
from headway.core.model import AttemptStarted, Event
from headway.lab.agents import (
    Book,
    NextClient,
    OpenScope,
    SessionPlan,
    TaskScope,
    plan_sessions,
    run_sessions,
)
from headway.lab.demo_figures import Arm, Figures, figures_of, percentile
from headway.lab.demo_page import books_sentence, build_page, table_rows
from headway.lab.demo_screen import Screen, open_screen
from headway.lab.demo_story import FLEET, Story, make_story, policy_document
from headway.lab.fleet import ServingFleet
from headway.lab.traces import excerpt_sessions
from headway.policy.http_source import HttpSource

if TYPE_CHECKING:
    import httpx2

DURATION_S = 32.0
DURATION_MIN_S = 16.0
LOOK_EVERY_S = 0.25
LAG_MAX_S = 0.1
"""An event loop later than this measures the machine, not the endpoints."""
POLL_S = 1.0
"""How often the wrapped client asks for a new policy; 30 s by default, too long for a demo."""


class Demo:
    """One fleet, one story, two clients."""

    def __init__(self, fleet: ServingFleet, story: Story, screen: Screen) -> None:
        self._fleet = fleet
        self._story = story
        self._screen = screen
        self._plans: list[SessionPlan] = plan_sessions(
            excerpt_sessions(), story.workload, story.seed
        )
        self._base_urls = {name: fleet.base_url(name) for name in FLEET}

    async def both(self) -> tuple[Arm, Arm]:
        """One after the other: they would take each other's CPU."""
        return await self.plain(), await self.wrapped()

    async def plain(self) -> Arm:
        """Four plain clients taken in turn: what people write by hand."""
        arm = Arm(name="plain", book=Book())
        names = {port: name for name, port in self._fleet.ports.items()}

        async def note(request: httpx2.Request) -> None:
            arm.sends.append((arm.book.now_s(), names[request.url.port or 0]))

        clients = [
            AsyncOpenAI(
                base_url=url,
                api_key="demo",
                http_client=DefaultAsyncHttpxClient(event_hooks={"request": [note]}),
            )
            for url in self._base_urls.values()
        ]
        turn = itertools.cycle(clients)

        def scope(task: TaskScope) -> asyncio.Timeout:
            return asyncio.timeout(task["deadline_s"])

        await self._run(arm, lambda: next(turn), scope)
        for client in clients:
            await client.close()
        return arm

    async def wrapped(self) -> Arm:
        """One client, wrapped; the policy comes over HTTP."""
        arm = Arm(name="headway", book=Book())
        spent: list[Decimal] = []
        wasted: list[Decimal] = []

        def note(event: Event) -> None:
            if isinstance(event, AttemptStarted):
                arm.sends.append((arm.book.now_s(), event.attempt.endpoint_id))

        self._publish(1)
        source = HttpSource(self._fleet.policy_url, interval_s=POLL_S)
        router = headway.Router(source, on_event=note)
        base_url = self._base_urls["alpha"]
        client = headway.wrap(AsyncOpenAI(base_url=base_url, api_key="demo"), router=router)

        @asynccontextmanager
        async def scope(task: TaskScope) -> AsyncGenerator[None]:
            opened = headway.task(
                task["name"],
                deadline=task["deadline_s"],
                session=task["session"],
                verdict="no_exception",
            )
            try:
                async with opened:
                    yield
            finally:
                spent.append(opened.cost or Decimal(0))
                wasted.append(opened.wasted or Decimal(0))

        def look() -> None:
            arm.policy_version = router.engine.snapshot.version
            if arm.policy_version == 2 and arm.policy_seen_s is None:
                arm.policy_seen_s = arm.book.now_s()

        await self._run(arm, lambda: client, scope, look)
        look()
        arm.own_cost, arm.own_wasted = sum(spent, Decimal(0)), sum(wasted, Decimal(0))
        router.close()
        await client.close()
        return arm

    def _publish(self, version: int) -> None:
        fleet = self._fleet
        fleet.publish(policy_document(self._base_urls, version, fleet.time_scale))

    async def _run(
        self,
        arm: Arm,
        next_client: NextClient,
        scope: OpenScope,
        look: Callable[[], None] | None = None,
    ) -> None:
        fleet, story = self._fleet, self._story
        fleet.start_run(story.faults)
        gc.collect()
        cpu = time.process_time()
        arm.book = Book()

        lags: list[float] = []

        async def watch() -> None:
            published = False
            while True:
                due = time.monotonic() + LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S)
                lags.append(time.monotonic() - due)
                if not published and arm.book.now_s() >= story.publish_at_s:
                    published = True
                    await asyncio.to_thread(self._publish, 2)
                if look is not None:
                    look()
                self._screen.show(arm, story)

        watcher = asyncio.create_task(watch())
        try:
            await run_sessions(
                self._plans,
                next_client,
                scope,
                duration_s=story.workload.duration_s,
                book=arm.book,
            )
        finally:
            watcher.cancel()
        arm.lag_s = percentile(lags, 0.99)
        arm.elapsed_s = arm.book.now_s()
        arm.cpu_s = time.process_time() - cpu
        arm.ledger = await asyncio.to_thread(fleet.ledger)


def unmet(
    story: Story, plain: Figures, wrapped: Figures, arm: Arm, *, is_busy: bool = False
) -> list[str]:
    """What the wrapped run promised and did not keep.

    A machine too busy to run the client on time makes every endpoint look slow: then the promises
    that need a clock are not held against the run.
    """
    duration_s = story.workload.duration_s
    late = {name for at, name in arm.sends if at > duration_s - 4.0}
    off = abs(arm.own_cost / wrapped.cost - 1) if arm.own_cost and wrapped.cost else Decimal(1)
    promises = {
        "at least 96 % of tasks succeed": is_busy or wrapped.success_rate >= 0.96,
        "no fewer tasks succeed than with plain clients": wrapped.succeeded >= plain.succeeded,
        "at most 1.15 attempts per call": wrapped.attempts_per_call <= 1.15,
        "a successful task costs no more than with plain clients": (
            wrapped.cost_per_success is not None
            and (plain.cost_per_success or Decimal("inf")) >= wrapped.cost_per_success
        ),
        "every endpoint is in use again at the end": is_busy or late == set(FLEET),
        "policy version 2 is in force": arm.policy_version == 2,
        "its books and the endpoints' agree within 3 %": off <= Decimal("0.03"),
    }
    return [promise for promise, kept in promises.items() if not kept]


def run_demo(report: Path, *, duration_s: float = DURATION_S, seed: int = 1) -> int:
    """Run both clients, print the figures, write the report. Returns the exit code.

    Raises ValueError for runs too short to tell a fault from its recovery.
    """
    if duration_s < DURATION_MIN_S:
        raise ValueError(f"the demo needs at least {DURATION_MIN_S:g} s per client")
    story = make_story(duration_s=duration_s, seed=seed)
    # The panel shows what these lines would say.
    logging.getLogger("headway").setLevel(logging.ERROR)
    load = story.workload
    with open_screen() as screen:
        screen.say(
            f"{load.sessions} recorded agent sessions, four endpoints, {load.duration_s:g} s "
            "for each client."
        )
        with ServingFleet(
            FLEET, time_scale=load.time_scale, chunk_interval_s=0.04, seed=seed
        ) as fleet:
            demo = Demo(fleet, story, screen)
            plain, wrapped = asyncio.run(demo.both())
        before, after = figures_of(plain), figures_of(wrapped)
        screen.table(["", "plain", "headway"], table_rows(before, after))
        screen.say("")
        screen.say(f"Headway: {books_sentence(wrapped, after)}")
        lag_s = max(plain.lag_s, wrapped.lag_s)
        is_busy = lag_s > LAG_MAX_S
        broken = unmet(story, before, after, wrapped, is_busy=is_busy)
        notices = [f"NOT KEPT: {promise}" for promise in broken]
        if is_busy:
            notices.insert(
                0,
                f"This machine was busy: the client ran up to {lag_s:.2f} s late (p99), so these "
                "figures say as much about the machine. Run it again when it is idle.",
            )
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(build_page(story, plain, wrapped, notices), encoding="utf-8")
        screen.say(f"Report: {report.resolve()}")
        for notice in notices:
            screen.say(notice)
    return 1 if broken else 0
