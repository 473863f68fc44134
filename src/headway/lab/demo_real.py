"""`headway demo --real`: the story on real engines. Real text, real queues, real prefix caches.

Two llama.cpp servers with a small model; a policy file that prices them by the GPU-hour; agents
with tasks of three questions each. In the middle, one server is killed. Every task must be
answered, and the spans and the costs must add up. Skipped, in words, where the wheels are missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import headway
from headway.lab.demo_screen import Screen, open_screen
from headway.lab.real_engine import ALIAS, EngineUnavailableError, RealServer, find_model

SERVERS = ("north", "south")
TASKS = 12
AT_ONCE = 4
KILL_AFTER = 5
"""Tasks ended when `south` is killed."""
DEADLINE_S = 240.0
ANSWER_TOKENS = 32
USD_PER_GPU_HOUR = Decimal("0.50")
SLOTS = 2

SYSTEM = (
    "You are a guide in a small museum of natural history. Answer each visitor in one or two short "
    "sentences, in plain words. The museum has a hall of minerals, a hall of birds, a room with a "
    "whale skeleton, a herbarium from 1850, a meteorite that visitors may touch, and a garden with "
    "bee hives. It opens at ten and closes at six; on Mondays it is closed. Children enter free."
)
QUESTIONS = (
    "What can I see here?",
    "When do you close?",
    "Tell me about the whale.",
    "May I touch something?",
    "Is there anything for children?",
    "What do bees do in winter?",
    "Why do birds sing?",
    "What is a meteorite?",
    "How old is the herbarium?",
)


@dataclass(slots=True)
class Visit:
    """What came of one task."""

    task: headway.Task
    answers: list[str] = field(default_factory=list[str])
    ttfts_s: list[float] = field(default_factory=list[float])
    asked_again: int = 0
    error: str | None = None

    @property
    def is_answered(self) -> bool:
        """Every question has a text."""
        return self.error is None and len(self.answers) == 3 and all(self.answers)


def policy(servers: tuple[RealServer, ...]) -> dict[str, object]:
    """Two self-hosted endpoints, priced by the hour of the machine under them."""
    price = {"per_gpu_hour": str(USD_PER_GPU_HOUR), "slots": SLOTS}
    return {
        "schema_version": "1.0",
        "policy_id": "demo-real",
        "version": 1,
        "endpoints": {
            s.name: {"base_url": f"{s.address}/v1", "model": ALIAS, "price": price} for s in servers
        },
        "routes": [
            {
                "match": {"model": "museum-guide"},
                "weights": dict.fromkeys((s.name for s in servers), 1),
                "affinity": {"min_prefix_tokens": 64},
            }
        ],
    }


async def visit(client: AsyncOpenAI, number: int) -> Visit:
    """One task: three questions of one visitor, in one growing conversation."""
    async with headway.task(
        "museum-visit", deadline=DEADLINE_S, session=f"visitor-{number}"
    ) as task:
        seen = Visit(task)
        messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": SYSTEM}]
        try:
            for i in range(3):
                question = QUESTIONS[(number * 2 + i * 4) % len(QUESTIONS)]
                messages.append({"role": "user", "content": question})
                answer = await ask(client, messages, seen)
                messages.append({"role": "assistant", "content": answer})
                seen.answers.append(answer)
        except headway.HeadwayError as exc:
            seen.error = type(exc).__name__
            task.fail(seen.error)
            return seen
        task.succeed()
        return seen


async def ask(client: AsyncOpenAI, messages: list[ChatCompletionMessageParam], seen: Visit) -> str:
    """One streamed answer. A stream that breaks after its first words is the application's to
    decide about; this one asks again, once."""
    for _ in range(2):
        start, text = time.monotonic(), ""
        try:
            stream = await client.chat.completions.create(
                model="museum-guide",
                messages=messages,
                max_tokens=ANSWER_TOKENS,
                temperature=0,
                frequency_penalty=0.8,  # a model this small repeats itself
                stream=True,
            )
            async for chunk in stream:
                content = chunk.choices[0].delta.content if chunk.choices else None
                if content and not text:
                    seen.ttfts_s.append(time.monotonic() - start)
                text += content or ""
        except headway.StreamInterrupted:
            seen.asked_again += 1
            continue
        return text.strip()
    return ""


async def run_visits(
    router: headway.Router, servers: tuple[RealServer, ...], screen: Screen
) -> list[Visit]:
    """All tasks, a few at a time; one server dies on the way."""
    north, south = servers
    own = AsyncOpenAI(base_url=f"{north.address}/v1", api_key="none")
    client = headway.wrap(own, router=router)
    visits: list[Visit] = []
    killed = False
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        nonlocal killed
        async with gate:
            seen = await visit(client, number)
        visits.append(seen)
        words = seen.answers[-1] if seen.answers else f"({seen.error})"
        screen.say(f"  task {number:2d}  {words.splitlines()[0][:88] if words else '(no text)'}")
        if len(visits) == KILL_AFTER and not killed:
            killed = True
            south.kill()
            screen.say(f"  -------  {south.name} is killed")

    await asyncio.gather(*(one(number) for number in range(TASKS)))
    await client.close()
    return visits


def run_demo_real(*, seed: int = 1) -> int:
    """Start the servers, run the tasks, check the accounts. Returns the exit code; 0 if skipped."""
    del seed  # nothing is drawn here: the engines' own timing decides the order
    with open_screen() as screen, ExitStack() as stack:
        try:
            model = find_model()
            servers = tuple(
                stack.enter_context(RealServer(name, model, slots=SLOTS)) for name in SERVERS
            )
        except EngineUnavailableError as exc:
            screen.say(f"SKIPPED: no real engine here: {exc}.")
            return 0
        logging.getLogger("headway").setLevel(logging.ERROR)  # the kill is told on the screen
        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        screen.say(
            f"Two llama.cpp servers with {model.name}; {TASKS} tasks of three questions each."
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "policy.json"
            path.write_text(json.dumps(policy(servers)), encoding="utf-8")
            start = time.monotonic()
            with headway.Router(path) as router:
                visits = asyncio.run(run_visits(router, servers, screen))
            elapsed_s = time.monotonic() - start
        metrics = servers[0].metrics()
    spans = exporter.get_finished_spans()
    report(visits, spans, metrics, elapsed_s)
    broken = unmet(visits, spans, metrics, elapsed_s)
    for promise in broken:
        print(f"NOT KEPT: {promise}")
    return 1 if broken else 0


def report(
    visits: list[Visit],
    spans: tuple[ReadableSpan, ...],
    metrics: dict[str, float],
    elapsed_s: float,
) -> None:
    """The figures, in words."""
    cost = sum((v.task.cost or Decimal(0) for v in visits), Decimal(0))
    ttfts = sorted(t for v in visits for t in v.ttfts_s)
    attempts = [s for s in spans if s.name.startswith("headway.attempt")]
    cached = metrics.get("prompt_tokens_cached_total", 0.0)
    computed = metrics.get("prompt_tokens_total", 0.0)
    print(
        f"\n{sum(v.is_answered for v in visits)} of {len(visits)} tasks answered in "
        f"{elapsed_s:.1f} s; {sum(v.task.calls for v in visits)} calls, {len(attempts)} attempts, "
        f"{sum(v.asked_again for v in visits)} broken streams asked again."
    )
    print(
        f"Time to first token: median {ttfts[len(ttfts) // 2]:.2f} s, worst {ttfts[-1]:.2f} s. "
        f"{SERVERS[0]} read {cached / max(1.0, cached + computed):.0%} of its prompt tokens from "
        "its cache."
        if ttfts
        else "No answer came."
    )
    print(
        f"Cost at ${USD_PER_GPU_HOUR} an hour and machine: ${cost:.6f}, "
        f"${cost / max(1, sum(v.is_answered for v in visits)):.6f} per successful task."
    )


def unmet(
    visits: list[Visit],
    spans: tuple[ReadableSpan, ...],
    metrics: dict[str, float],
    elapsed_s: float,
) -> list[str]:
    """What was promised and not kept."""
    by_kind: dict[str, list[ReadableSpan]] = {"task": [], "attempt": [], "call": []}
    for span in spans:
        attributes = span.attributes or {}
        if span.name.startswith("headway.attempt"):
            by_kind["attempt"].append(span)
        elif "headway.call.attempts" in attributes:
            by_kind["call"].append(span)
        elif "headway.task.outcome" in attributes:
            by_kind["task"].append(span)
    parents = {s.context.span_id for s in by_kind["task"] if s.context is not None}
    most = USD_PER_GPU_HOUR * Decimal(elapsed_s) * len(SERVERS) / 3600
    costs = [v.task.cost for v in visits]
    total = sum((c for c in costs if c is not None), Decimal(0))
    promises = {
        "every task is answered": all(v.is_answered for v in visits),
        "one span per task": len(by_kind["task"]) == len(visits),
        "one span per call, below its task's": len(by_kind["call"])
        == sum(v.task.calls for v in visits)
        and all(s.parent is not None and s.parent.span_id in parents for s in by_kind["call"]),
        "one span per attempt": len(by_kind["attempt"]) == sum(v.task.attempts for v in visits),
        "answered calls carry their tokens": sum(
            "gen_ai.usage.output_tokens" in (s.attributes or {}) for s in by_kind["call"]
        )
        >= 3 * len(visits),
        "every task has a cost": all(c is not None and c > 0 for c in costs),
        "the costs fit into the machines' hours": 0 < total <= most,
        "the cost on the task spans is the tasks' own": abs(
            sum(
                Decimal(str((s.attributes or {}).get("headway.cost.amount", 0)))
                for s in by_kind["task"]
            )
            - total
        )
        < Decimal("1e-6"),
        "the engine's prefix cache was used": metrics.get("prompt_tokens_cached_total", 0.0) > 0,
    }
    return [promise for promise, kept in promises.items() if not kept]
