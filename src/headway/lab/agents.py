"""Agents for the demos: real recorded sessions, replayed by code as people write it.

A session is a conversation that grows. A *task* is one turn of it: what a person asked for,
answered in one or more calls with tool results in between. Sessions start at fixed
instants (open loop); inside a session the next call waits for the one before it and for the
recorded tool or think time (closed loop). Nothing here knows Headway.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TypedDict

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from headway.lab.surfaces import CHARS_PER_TOKEN, token_text
from headway.lab.traces import Session

MODEL = "chat-large"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """One call of a turn. Seconds are real ones, already scaled."""

    wait_s: float
    """Tool or think time before it."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """One turn: succeeds if all of its calls are answered within the deadline."""

    id: str
    calls: tuple[CallPlan, ...]
    wait_s: float
    """Before it starts: the person reads and thinks."""
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    id: str
    start_s: float
    system_tokens: int
    tasks: tuple[TaskPlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How recorded sessions are made to fit a demo; every cut is stated in the report."""

    sessions: int = 140
    duration_s: float = 32.0
    """No task starts later than this."""
    time_scale: float = 6.0
    """Recorded think time, and the engines, run this much faster."""
    token_divisor: int = 6
    """All token counts are divided by this, so that prompts travel over loopback."""
    wait_cap_s: float = 10.0
    """Longest recorded gap honoured: the median; the longest is a lunch break."""
    calls_max: int = 6
    """Turns with more calls are cut, or the longest would outlive the run."""
    deadline_base_s: float = 1.5
    deadline_factor: float = 3.0
    """A task may take its base, its own waits, and this many times its calls' usual time."""


def usual_call_s(prompt_tokens: int, output_tokens: int) -> float:
    """What a call takes at an 8B engine on an A100, half loaded, cold cache: unscaled seconds."""
    return 0.2 + 80e-6 * prompt_tokens + 0.025 * output_tokens


def plan_sessions(sessions: Sequence[Session], load: Workload, seed: int) -> list[SessionPlan]:
    """Sessions drawn from the recorded ones: half start in the first tenth of the run, as if it had
    been going on before, the others all along."""
    rng = random.Random(f"{seed}/sessions")
    spread = (0.1 * load.duration_s, 0.97 * load.duration_s)
    starts = sorted(rng.random() * spread[i % 2] for i in range(load.sessions))
    plans: list[SessionPlan] = []
    for number, start_s in enumerate(starts):
        session = sessions[rng.randrange(len(sessions))]
        tasks: list[TaskPlan] = []
        for index, whole_turn in enumerate(session.turns()):
            turn = whole_turn[: load.calls_max]
            waits = [min(c.think_s or 0.0, load.wait_cap_s) / load.time_scale for c in turn]
            calls = tuple(
                CallPlan(
                    wait_s=0.0 if i == 0 else waits[i],
                    prompt_tokens=max(64, c.input_tokens // load.token_divisor),
                    output_tokens=max(2, c.output_tokens // load.token_divisor),
                )
                for i, c in enumerate(turn)
            )
            usual = sum(usual_call_s(c.prompt_tokens, c.output_tokens) for c in calls)
            deadline_s = (
                load.deadline_base_s
                + sum(c.wait_s for c in calls)
                + load.deadline_factor * usual / load.time_scale
            )
            tasks.append(
                TaskPlan(
                    id=f"{number:03d}-{index:02d}",
                    calls=calls,
                    wait_s=waits[0],
                    deadline_s=deadline_s,
                )
            )
        plans.append(
            SessionPlan(
                id=f"{number:03d}/{session.id}",
                start_s=start_s,
                system_tokens=(session.tool_tokens + session.system_tokens) // load.token_divisor,
                tasks=tuple(tasks),
            )
        )
    return plans


# --------------------------------------------------------------------------- what came of it


@dataclass(slots=True, kw_only=True)
class CallResult:
    started_s: float
    """Since the run's start."""
    ttft_s: float | None
    total_s: float
    error: str | None


@dataclass(slots=True, kw_only=True)
class TaskResult:
    id: str
    started_s: float
    ended_s: float = 0.0
    error: str | None = None
    """None: succeeded. "deadline", or the class of the error that reached the agent."""
    calls: list[CallResult] = field(default_factory=list[CallResult])

    @property
    def ok(self) -> bool:
        """Every call answered in time."""
        return self.error is None

    @property
    def duration_s(self) -> float:
        """From the turn's start, tool time included."""
        return self.ended_s - self.started_s


@dataclass(slots=True)
class Book:
    """All that a run's agents saw."""

    zero: float = field(default_factory=time.monotonic)
    tasks: list[TaskResult] = field(default_factory=list[TaskResult])
    """Ended ones, in order of ending."""
    calls_running: int = 0

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self.zero


# --------------------------------------------------------------------------- the agent


NextClient = Callable[[], AsyncOpenAI]
"""Which client makes the next call."""


class TaskScope(TypedDict):
    """What a scope around a task is told."""

    name: str
    deadline_s: float
    session: str


OpenScope = Callable[[TaskScope], AbstractAsyncContextManager[object]]
"""A context around each task: `asyncio.timeout` for the plain client, `headway.task` for ours."""


def filler(seed: int, tokens: int) -> str:
    """Text of about this many tokens, different for every seed."""
    head = f"[{seed:08x}] "
    return head + token_text(seed % 997, seed % 997 + max(0, tokens - len(head) // CHARS_PER_TOKEN))


class Agent:
    """One session's conversation, as an agent loop keeps it."""

    def __init__(self, plan: SessionPlan, next_client: NextClient, book: Book) -> None:
        self._plan = plan
        self._next_client = next_client
        self._book = book
        self._serial = zlib.crc32(plan.id.encode())
        self._messages: list[ChatCompletionMessageParam] = []
        self._tokens = 0
        self._restart()

    def _restart(self) -> None:
        # Sessions of one recording share tools and system prompt, as they do in life.
        system = filler(int(self._plan.id[-4:]), self._plan.system_tokens)
        self._messages = [{"role": "system", "content": system}]
        self._tokens = self._plan.system_tokens

    def _grow_to(self, tokens: int) -> None:
        """Add what the person or the tool said, so that the prompt has this many tokens."""
        if tokens < self._tokens:
            self._restart()  # the recorded agent compacted its context here
        self._serial += 1
        content = filler(self._serial, tokens - self._tokens)
        self._messages.append({"role": "user", "content": content})
        self._tokens = max(tokens, self._tokens)

    async def run_task(self, task: TaskPlan, open_scope: OpenScope) -> None:
        """One turn. Errors end the turn, not the session: the person asks the next thing."""
        book = self._book
        result = TaskResult(id=task.id, started_s=book.now_s())
        before = (list(self._messages), self._tokens)
        scope = TaskScope(name="agent-turn", deadline_s=task.deadline_s, session=self._plan.id)
        try:
            async with open_scope(scope):
                for call in task.calls:
                    await asyncio.sleep(call.wait_s)
                    await self._call(call, result)
        except TimeoutError:
            result.error = "deadline"
        except openai.OpenAIError as exc:
            result.error = type(exc).__name__
        result.ended_s = book.now_s()
        if result.error is None and result.duration_s > task.deadline_s:
            result.error = "deadline"
        if result.error is not None:
            self._messages, self._tokens = before
        book.tasks.append(result)

    async def _call(self, call: CallPlan, result: TaskResult) -> None:
        book = self._book
        self._grow_to(call.prompt_tokens)
        seen = CallResult(started_s=book.now_s(), ttft_s=None, total_s=0.0, error="cancelled")
        result.calls.append(seen)
        book.calls_running += 1
        start = time.monotonic()
        text: list[str] = []
        try:
            stream = await self._next_client().chat.completions.create(
                model=MODEL,
                messages=self._messages,
                max_tokens=call.output_tokens,
                stream=True,
                user=result.id,
            )
            async for chunk in stream:
                content = chunk.choices[0].delta.content if chunk.choices else None
                if content:
                    if seen.ttft_s is None:
                        seen.ttft_s = time.monotonic() - start
                    text.append(content)
            seen.error = None
        except openai.OpenAIError as exc:
            seen.error = type(exc).__name__
            raise
        finally:
            book.calls_running -= 1
            seen.total_s = time.monotonic() - start
        self._messages.append({"role": "assistant", "content": "".join(text)})
        self._tokens += call.output_tokens


async def run_sessions(
    plans: Sequence[SessionPlan],
    next_client: NextClient,
    open_scope: OpenScope,
    *,
    duration_s: float,
    book: Book,
) -> None:
    """Run every session; no task starts after `duration_s`."""

    async def one(plan: SessionPlan) -> None:
        await asyncio.sleep(plan.start_s - book.now_s())
        agent = Agent(plan, next_client, book)
        for task in plan.tasks:
            await asyncio.sleep(task.wait_s)
            if book.now_s() >= duration_s:
                return
            await agent.run_task(task, open_scope)

    await asyncio.gather(*(one(plan) for plan in plans))
