"""Timeouts, deadlines, cancellation, loops, forks, threads, and the end of the process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

import headway
from headway.client import wrap
from headway.core.model import AttemptEnded, CallEnded
from headway.core.snapshot import AdmissionPolicy, Capacity, HedgePolicy, RetryPolicy
from tests.faults.bench import Bench, Fault, Seen, fault, play, plays_of
from tests.faults.streams import ALL, HELLO, script
from tests.servers import OK, Drip, Hang, R, Step, completion, error
from tests.transport.callers import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.transport.callers import Caller

SECTION = "G. Time, cancellation, processes"


def paced(seen: Seen, bound_s: float) -> str:
    return f"{seen.words} {'within' if seen.took_s < bound_s else 'after more than'} {bound_s:g} s"


# --------------------------------------------------------------------------- time


@fault("C64", "a timeout of 0.2 s and two retries, with 0.5 s to spare")
def multiplied(bench: Bench) -> None:
    a = bench.serve(Hang())
    client = bench.client(a, options={"timeout": 0.2, "max_retries": 2})
    with headway.options(deadline=0.5):
        seen = bench.call(client.chat)
    bench.observed(f"{paced(seen, 1.5)}; {bench.requests()}")
    assert isinstance(seen.error, openai.APITimeoutError)
    assert seen.took_s < 1.5
    assert len(a.hits) <= 3


@fault("C64a", "a backoff that would outlast the deadline")
def no_time_to_wait(bench: Bench) -> None:
    a = bench.serve(R(500, error("x")))
    client = bench.client(a, retry=RetryPolicy(backoff_base_s=20.0, backoff_cap_s=20.0))
    with headway.options(deadline=3.0):
        seen = bench.call(client.chat)
    bench.observed(f"{seen.words}; {bench.requests()}")
    assert isinstance(seen.error, openai.APIError)
    assert (bench.hits, seen.took_s < 2.5) == ((1,), True)


@fault("C65", "a reply that drips, each piece in time")
def drips(bench: Bench) -> None:
    a = bench.serve(Drip(completion(), size=40, every_s=0.05))
    seen = bench.call(bench.client(a, options={"timeout": 0.2}).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1,))


@fault("C65a", "the same, and a deadline of 0.2 s")
def drips_past_the_deadline(bench: Bench) -> None:
    a = bench.serve(Drip(completion(), size=1, every_s=0.05))
    client = bench.client(a, options={"timeout": 0.2, "max_retries": 0})
    with headway.options(deadline=0.2):
        seen = bench.call(client.chat)
    bench.observed(paced(seen, 8.0))
    assert isinstance(seen.error, headway.DeadlineExceeded)
    assert isinstance(seen.error, openai.APITimeoutError)
    assert seen.took_s < 8.0


@fault("C65b", "a stream that outlasts the deadline", ways=ALL)
def stream_past_the_deadline(bench: Bench) -> None:
    pause_s = 1.5 if bench.is_plain else 9.0
    slow: Any = [piece for text in HELLO for piece in (text, pause_s)]
    a = bench.serve(script(bench.way, *slow))
    client = bench.client(a)
    with headway.options(deadline=0.4):
        seen = bench.stream(client)
    bench.observed(seen.words)
    assert isinstance(seen.error, openai.APITimeoutError)
    assert isinstance(seen.error, headway.DeadlineExceeded)
    assert seen.took_s < 8


# --------------------------------------------------------------------------- cancellation

FULL = AdmissionPolicy(queue_timeout_s=30.0)
AT_ONCE = HedgePolicy(enabled=True, delay_s=0.02, max_extra_fraction=1.0)
STAGES: dict[str, tuple[str, list[Step], dict[str, Any]]] = {
    "C67": ("while it waits for the head of a reply", [Hang()], {}),
    "C67a": (
        "in the backoff before a retry",
        [R(503, error("x"))],
        {"retry": RetryPolicy(backoff_base_s=30.0, backoff_cap_s=30.0)},
    ),
    "C67b": (
        "while it waits as told",
        [R(429, error("x"), {"retry-after": "30"})],
        {},
    ),
    "C67c": (
        "while it stands in a queue",
        [Hang()],
        {"endpoints": {"a": {"capacity": Capacity(concurrency=1)}}, "admission": FULL},
    ),
    "C67d": ("while a hedge runs beside it", [Hang()], {"hedge": AT_ONCE}),
}


def cancelled(name: str, title: str, steps: list[Step], route: dict[str, Any]) -> None:
    @fault(name, f"cancelled {title}", colours=("async",))
    def at_stage(bench: Bench) -> None:
        a = bench.serve(*steps)
        client = bench.client(*(a, bench.serve(Hang())) if "hedge" in route else (a,), **route)
        asked = {"model": "m", "messages": MESSAGES}

        async def leave() -> list[str]:
            create = client.client.chat.completions.create
            calls = [asyncio.ensure_future(create(**asked)) for _ in range(2)]
            await asyncio.sleep(0.12)
            for call in calls:
                call.cancel()
                call.cancel()  # once more does no harm
            ends = await asyncio.gather(*calls, return_exceptions=True)
            return [type(end).__name__ for end in ends]

        began = time.monotonic()
        ends = client.run(leave())
        took_s = time.monotonic() - began
        bench.observed(f"`{ends[0]}`, connections closed" if took_s < 20 else "late")
        assert ends == ["CancelledError"] * 2
        assert took_s < 20
        assert bench.host.in_flight == 0
        assert len(bench.host.named(CallEnded)) == 2
        sent = len(bench.host.named(AttemptEnded))
        assert sent == sum(len(record.attempts) for record in bench.host.records)
        assert {kind for kind in bench.kinds() if kind not in ("overloaded", "rate_limited")} <= {
            "cancelled"
        }
        a.steps[:] = [OK]
        bench.host.engine.world.states["a"].outs.clear()
        assert bench.call(client.chat).text == "hello"


for name, (title, steps, route) in STAGES.items():
    cancelled(name, title, steps, route)


@fault("C67e", "cancelled in the middle of a stream", ways=ALL, colours=("async",))
def in_a_stream(bench: Bench) -> None:
    from tests.faults.streams import consume

    a = bench.serve(script(bench.way, *HELLO[:2], 5.0, *HELLO[2:]))
    client = bench.client(a)
    seen = Seen()

    async def leave() -> str:
        call = asyncio.ensure_future(consume(client, bench.way, seen, {}))
        while not seen.text:
            await asyncio.sleep(0.005)
        call.cancel()
        (end,) = await asyncio.gather(call, return_exceptions=True)
        return type(end).__name__

    end = client.run(leave())
    bench.observed(f'`{end}` after "{seen.text}"')
    assert (end, seen.text) == ("CancelledError", "hel")
    assert bench.kinds() == ["cancelled"]
    assert bench.host.in_flight == 0
    assert bench.host.engine.status(bench.host.clock())[0].badness == 0


@fault("C67f", "a stream closed in the middle")
def closed_stream(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO[:2], 5.0, *HELLO[2:]))
    client = bench.client(a)
    stream = client.chat(stream=True)
    client.take(stream, 2)
    for _ in range(2):
        client.run(stream.close())
    bench.observed("closed")
    assert bench.kinds() == ["cancelled"]
    assert bench.host.in_flight == 0


class SoftTimeLimit(Exception):
    """A worker's own: raised into whatever it is doing."""


def raised(name: str, title: str, kind: type[BaseException]) -> None:
    @fault(name, title)
    def through(bench: Bench) -> None:
        a = bench.serve(OK)
        client = bench.client(a, options={"max_retries": 2})
        tries: list[int] = []

        def explode(_request: Any) -> Any:
            tries.append(1)
            raise kind

        async def aexplode(request: Any) -> Any:
            explode(request)

        transport = client.http._transport
        setattr(
            transport,
            "handle_async_request" if bench.is_async else "handle_request",
            aexplode if bench.is_async else explode,
        )
        if bench.is_async and issubclass(kind, KeyboardInterrupt | SystemExit):
            # A loop lets these out by themselves; the judgement is shared with the sync driver.
            bench.observed("not asked")
            return
        try:
            seen = bench.call(client.chat)
            words = seen.words
        except BaseException as exc:
            words = f"`{type(exc).__name__}`"
        bench.observed(f"{words}; {len(tries)} tries")
        assert tries == [1]
        assert bench.kinds() == ["cancelled"]


raised("C68", "an exception of the application's, raised while it sends", SoftTimeLimit)
raised("C68a", "an interrupt, raised while it sends", KeyboardInterrupt)


# --------------------------------------------------------------------------- loops


def made(bench: Bench, url: str) -> Any:
    """A client on the SDK's own http client, of this bench's colour."""
    bench.leaves_loops = True
    cls = openai.AsyncOpenAI if bench.is_async else openai.OpenAI
    client = cls(base_url=url, api_key="k", max_retries=0)
    return client if bench.is_plain else wrap(client, router=bench.host)


@fault("C70", "one async client under four event loops in turn", colours=("async",))
def loops(bench: Bench) -> None:
    a = bench.serve(OK)
    bench.client(a)
    client = made(bench, a.url)

    async def ask() -> str:
        reply = await client.chat.completions.create(model="m", messages=MESSAGES)
        return reply.choices[0].message.content

    ends = []
    for _ in range(4):
        try:
            ends.append(asyncio.run(ask()))
        except Exception as exc:
            ends.append(type(exc).__name__)
    bench.observed(f"{ends.count('hello')} of 4 answered")
    assert ends == ["hello"] * 4


@fault("C70a", "one async client under two event loops at once", colours=("async",))
def loops_at_once(bench: Bench) -> None:
    a = bench.serve(R(200, completion(), delay=0.05))
    bench.client(a)
    client = made(bench, a.url)

    async def ask() -> str:
        ask_one = client.chat.completions.create
        replies = await asyncio.gather(*(ask_one(model="m", messages=MESSAGES) for _ in range(4)))
        return str(replies[0].choices[0].message.content)

    def run(_number: int) -> list[str]:
        ends = []
        for _ in range(3):
            try:
                ends.append(asyncio.run(ask()))
            except Exception as exc:
                ends.append(type(exc).__name__)
        return ends

    with ThreadPoolExecutor(2) as pool:
        ends = [end for found in pool.map(run, range(2)) for end in found]
    bench.observed(f"{ends.count('hello')} of 6 answered")
    assert ends == ["hello"] * 6


# --------------------------------------------------------------------------- processes

HEAD = """
import asyncio, sys
import openai, headway
url, plain = sys.argv[1], sys.argv[2] == "plain"
policy = {"schema_version": "1.0", "version": 1, "endpoints": {"a": {"base_url": url}},
          "routes": [{"weights": {"a": 1}}]}
def client(cls=openai.OpenAI, **options):
    made = cls(base_url=url, api_key="k", **options)
    return made if plain else headway.wrap(made, policy=policy)
ask = dict(model="m", messages=[{"role": "user", "content": "hi"}])
"""


def script_of(bench: Bench, body: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a client of its own."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", HEAD + body, url, "plain" if bench.is_plain else "wrapped"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        cwd=root,
    )


def in_a_child(act: Callable[[], object]) -> str:
    """What becomes of a child that is forked here and does this: ok, failed or hung."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            act()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return {0: "ok", 1: "failed"}.get(os.waitstatus_to_exitcode(status), "hung")


@fault("C71", "a fork after a call, and calls in parent and child", colours=("sync",))
def fork(bench: Bench) -> None:
    a = bench.serve(OK)
    client = bench.client(a)
    client.chat()
    child = in_a_child(client.chat)
    client.chat()
    used = [seen.connection for seen in a.hits]
    bench.observed("one socket used by both" if len(set(used)) == 1 else "a socket each")
    assert (child, used) == ("ok", [1, 2, 1])


@fault("C71a", "a fork after a call of an async client", colours=("async",))
def fork_async(bench: Bench) -> None:
    a = bench.serve(OK)
    bench.client(a)
    client = made(bench, a.url)

    async def ask() -> None:
        await client.chat.completions.create(model="m", messages=MESSAGES)

    asyncio.run(ask())
    child = in_a_child(lambda: asyncio.run(ask()))
    bench.observed("the child answers" if child == "ok" else f"the child {child}")
    assert (child, len(a.hits)) == ("ok", 2)


def pool_of(client: Caller) -> Any:
    return client.http._transport._pool


@fault("C71b", "a fork in the middle of a stream, which the child closes", colours=("sync",))
def fork_stream(bench: Bench) -> None:
    pieces: Any = [piece for text in HELLO for piece in (text, 0.05)]
    a = bench.serve(script(bench.way, *pieces))
    client = bench.client(a)
    stream = client.chat(stream=True)
    taken = client.take(stream, 1)

    def leave() -> None:
        stream.close()
        client.client.close()

    lock = pool_of(client)._optional_thread_lock._lock
    with lock:  # another thread happens to hold it
        child = in_a_child(leave)
    seen = Seen(items=taken)
    for item in client.drain(stream):
        seen.items.append(item)
    seen.text = "".join(i.choices[0].delta.content or "" for i in seen.items if i.choices)
    bench.observed(f'the child: {child}; the parent reads "{seen.text}"')
    assert (child, seen.text) == ("ok", "hello")


@fault("C71c", "random numbers after a fork", colours=("sync",))
def fork_chance(bench: Bench) -> None:
    client = bench.client(bench.serve(OK))
    client.chat()
    if bench.is_plain:
        bench.observed("Python seeds its own anew")
    reader, writer = os.pipe()
    in_a_child(lambda: os.write(writer, repr(bench.host.rng.random()).encode()))
    drawn = os.read(reader, 99).decode()
    os.close(reader)
    os.close(writer)
    bench.observed("not the parent's")
    assert drawn != repr(bench.host.rng.random())


# --------------------------------------------------------------------------- threads


@fault("C73", "calls of a task made in other threads", colours=("sync",))
def threads(bench: Bench) -> None:
    client = bench.client(bench.serve(OK))
    if bench.is_plain:
        bench.observed("no tasks")
    with headway.task("work") as task, ThreadPoolExecutor(2) as pool:
        bound = [pool.submit(headway.bind(client.chat)) for _ in range(3)]
        for job in bound:
            job.result()
        thread = threading.Thread(target=headway.bind(client.chat))
        thread.start()
        thread.join()
        task.succeed()
    bench.observed(f"{task.calls} of 4 counted in their task")
    assert task.calls == 4


@fault("C73a", "calls outside of any task", colours=("sync",))
def untasked(bench: Bench) -> None:
    client = bench.client(bench.serve(OK))
    if bench.is_plain:
        bench.observed("no tasks")
    with ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(client.chat) for _ in range(3)]:
            job.result()
    ends = bench.host.named(CallEnded)
    bench.observed(f"{len(ends)} of 3 accounted for")
    assert [end.outcome.output_tokens for end in ends] == [1, 1, 1]


# --------------------------------------------------------------------------- the end

EXIT = """
c = client()
left = c.chat.completions.create(stream=True, **ask)
next(iter(left))
print("bye")
"""
EXIT_ASYNC = """
c = client(openai.AsyncOpenAI)
async def main():
    left = await c.chat.completions.create(stream=True, **ask)
    async for chunk in left:
        break
    print("bye")
asyncio.run(main())
"""


def ends(name: str, title: str, program: str, colour: str) -> None:
    @fault(name, title, colours=(colour,))
    def exits(bench: Bench) -> None:
        a = bench.serve(script(bench.way, *HELLO[:2], 5.0, *HELLO[2:]))
        done = script_of(bench, program, a.url)
        noise = done.stderr.strip().splitlines()
        bench.observed(
            f"exit code {done.returncode}" + (f", and `{noise[-1][:60]}`" if noise else ", silent")
        )
        assert (done.stdout.strip(), done.returncode) == ("bye", 0), done.stderr
        # asyncio itself complains of generators left open, and of a plain client's no less.
        assert colour == "async" or not noise
        assert "never retrieved" not in done.stderr


ends("C74", "the process ends with a stream open", EXIT, "sync")
ends("C74a", "the event loop ends with a stream open", EXIT_ASYNC, "async")


@fault("C74b", "a call on a closed client")
def after_close(bench: Bench) -> None:
    a = bench.serve(OK)
    client = bench.client(a)
    client.run(client.client.close())
    seen = bench.call(client.chat)
    bench.observed()
    assert isinstance(seen.error, RuntimeError | openai.APIConnectionError)  # openai 2's
    assert "closed" in f"{seen.error!r} {seen.error.__cause__!r}"
    assert not a.hits


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
