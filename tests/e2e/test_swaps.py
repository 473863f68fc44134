"""Policies change under running calls: nothing fails, nothing tears, nothing is forgotten."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import openai
import pytest

import headway
from headway.core.snapshot import Snapshot
from headway.policy.models import Policy
from headway.router import Router
from tests.e2e.fleet import MESSAGES, MODEL, Fleet, document, say
from tests.e2e.replies import answer
from tests.servers import R, Server, completion
from tests.telemetry.otlp import Pipeline

http: Any = importlib.import_module("httpx2" if openai.__version__ >= "3" else "httpx")
SWAPS = int(os.environ.get("HEADWAY_SWAPS", "10000"))
AT_ONCE = 64


def snapshot(urls: dict[str, str], version: int, **options: Any) -> Snapshot:
    return Policy.load(document(urls, version=version, **options)).compile()


def swap(running: Fleet, policy: Snapshot) -> None:
    running.router._adopt(policy)


# ----------------------------------------------------------------------------- what calls see


def test_each_call_says_which_version_it_used(
    serve: Callable[..., Server], otel: Pipeline, fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    priced = {"price": {"input_per_mtok": "1", "output_per_mtok": "1"}}
    running = fleet({"a": server.url}, endpoint=priced)
    client = running.client()
    with headway.task("t"):
        for version in (8, 9, 9):
            swap(running, snapshot({"a": server.url}, version, endpoint=priced))
            raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
            assert raw.headers["x-headway-policy-version"] == str(version)

    status = running.router.status()
    assert [(v.version, v.calls) for v in status.versions] == [(9, 1), (9, 1), (8, 1), (7, 0)]
    seen = otel.flush()
    found = [span.attributes.get("headway.policy.version") for span in seen.spans]
    assert sorted(version for version in found if version is not None) == [8, 9, 9]


def test_a_call_under_way_finishes_on_the_policy_it_began_with(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    entered, go = threading.Event(), threading.Event()

    def held(seen: Any) -> R:
        entered.set()
        go.wait(10)
        return R(503, {"error": {"message": "gone"}})

    old, spare, new = serve(held), serve(answer()), serve(answer())
    running = fleet(
        {"old": old.url},
        policy=document(
            {"old": old.url, "spare": spare.url},
            route={"weights": {"old": 1}, "fallback": [{"endpoint": "spare"}]},
        ),
    )
    client = running.client()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(
            client.chat.completions.with_raw_response.create, model=MODEL, messages=MESSAGES
        )
        assert entered.wait(10)
        swap(running, snapshot({"new": new.url}, 8))
        assert say(client) == "Hello"
        go.set()
        raw = under_way.result(10)

    assert raw.headers["x-headway-policy-version"] == "7"
    assert raw.headers["x-headway-endpoint"] == "spare"  # gone from the new policy, and still used
    assert (len(spare.hits), len(new.hits)) == (1, 1)
    swap(running, snapshot({"new": new.url}, 9))
    assert set(running.router.engine.world.states) == {"new"}


# ----------------------------------------------------------------------------- what is bound


def stored(name: str) -> R:
    return R(
        200,
        {
            "id": name,
            "object": "response",
            "created_at": 0,
            "model": MODEL,
            "status": "completed",
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        },
    )


def test_objects_of_an_endpoint_that_left_are_reachable_until_they_are_gone(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    own, a, b = serve(stored("resp_own")), serve(stored("resp_a")), serve(stored("resp_b"))
    running = fleet({"a": a.url})
    client = running.client(base_url=own.url)
    made = client.responses.create(model=MODEL, input="hi")
    assert made.id == "resp_a"
    swap(running, snapshot({"b": b.url}, 8))

    client.responses.create(model=MODEL, input="more", previous_response_id="resp_a")
    client.responses.retrieve("resp_a")
    assert len(a.hits) == 3
    client.responses.create(model=MODEL, input="new")  # what isn't bound goes by the new policy
    assert len(b.hits) == 1
    assert own.hits == []

    swap(running, snapshot({"b": b.url}, 9))  # still held
    client.responses.retrieve("resp_a")
    assert len(a.hits) == 4
    running.router.pins.forget("resp_a")
    swap(running, snapshot({"b": b.url}, 10))
    assert running.router.engine.endpoint("a") is None
    client.responses.retrieve("resp_a")
    assert (len(a.hits), len(own.hits)) == (4, 1)  # unknown: where a plain client would ask


def test_what_is_made_while_its_endpoint_leaves_is_reachable_too(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    entered, go = threading.Event(), threading.Event()

    def held(seen: Any) -> R:
        if seen.path.endswith("/responses"):
            entered.set()
            go.wait(10)
        return stored("resp_a")

    own, a, b = serve(stored("resp_own")), serve(held), serve(stored("resp_b"))
    running = fleet({"a": a.url})
    client = running.client(base_url=own.url)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(client.responses.create, model=MODEL, input="hi")
        assert entered.wait(10)
        swap(running, snapshot({"b": b.url}, 8))
        go.set()
        under_way.result(10)
    client.responses.retrieve("resp_a")

    assert len(a.hits) == 2
    assert own.hits == []


def test_a_draining_endpoint_takes_what_is_bound_to_it_a_disabled_one_nothing(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    own, a, b = serve(stored("resp_own")), serve(stored("resp_a")), serve(stored("resp_b"))
    running = fleet({"a": a.url})
    client = running.client(base_url=own.url)
    client.responses.create(model=MODEL, input="hi")
    for version, state in ((8, "draining"), (9, "disabled")):
        made = document({"a": a.url, "b": b.url}, version=version)
        made["endpoints"]["a"]["state"] = state
        swap(running, Policy.load(made).compile())
        for _ in range(8):
            client.responses.create(model=MODEL, input="new")
        assert len(b.hits) == 8 * (version - 7)
        before = len(a.hits)
        if state == "draining":
            client.responses.create(model=MODEL, input="more", previous_response_id="resp_a")
            assert len(a.hits) == before + 1
        else:
            with pytest.raises(headway.NoEndpointAvailable, match="a"):
                client.responses.create(model=MODEL, input="x", previous_response_id="resp_a")
            assert len(a.hits) == before


# ----------------------------------------------------------------------------- ten thousand


class Swaps:
    """64 calls at once on one event loop, while another thread puts policy after policy in force.

    Each version says its number to the endpoints in a header of its own; odd ones know "left", even
    ones "right"; all know "both", and "bad", which always fails.
    """

    def __init__(self) -> None:
        self.templates = [self.template(side) for side in ("right", "left")]
        self.router = Router(self.version(1))
        self.swapped = 0
        self.failures: list[str] = []
        self.torn: list[str] = []
        self.calls: Counter[str] = Counter()
        self.most_in_flight = 0

    def template(self, side: str) -> Snapshot:
        urls = {name: f"https://{name}.headway.test/v1" for name in (side, "both", "bad")}
        return snapshot(urls, 1, route={"weights": {side: 4, "both": 4, "bad": 1}})

    def version(self, number: int) -> Snapshot:
        template = self.templates[number % 2]
        said = {"x-policy": str(number)}
        endpoints = {k: replace(e, headers=said) for k, e in template.endpoints.items()}
        return replace(template, version=number, endpoints=endpoints)

    async def answer(self, request: Any) -> Any:
        name, version = request.url.host.partition(".")[0], request.headers["x-policy"]
        self.calls[name] += 1
        for _ in range(self.calls.total() % 7):  # under way while versions come and go
            await asyncio.sleep(0)
        return http.Response(
            503 if name == "bad" else 200,
            json={"error": {"message": "no"}} if name == "bad" else completion(),
            headers={"x-answered": f"{name} {version}"},
        )

    async def call(self, client: openai.AsyncOpenAI) -> None:
        try:
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=MESSAGES
            )
        except Exception as problem:
            self.failures.append(f"{type(problem).__name__}: {problem}")
            return
        version = int(raw.headers["x-headway-policy-version"])
        side = "left" if version % 2 else "right"
        endpoint = raw.headers["x-headway-endpoint"]
        said = raw.headers["x-answered"]
        if endpoint not in (side, "both") or said != f"{endpoint} {version}":
            self.torn.append(f"version {version} at {endpoint}, which heard {said}")

    def swap_all(self, count: int, turn: threading.Semaphore) -> None:
        for number in range(2, count + 2):
            turn.acquire()
            self.router._adopt(self.version(number))
            self.swapped = number
            in_flight = sum(s.inflight for s in list(self.router.engine.world.states.values()))
            self.most_in_flight = max(self.most_in_flight, in_flight)

    async def run(self, count: int) -> None:
        transport = http.MockTransport(self.answer)
        plain = openai.AsyncOpenAI(
            api_key="sk-own",
            base_url="https://both.headway.test/v1",
            http_client=http.AsyncClient(transport=transport),
        )
        client = self.router.wrap(plain)
        turn = threading.Semaphore(0)
        swapper = threading.Thread(target=self.swap_all, args=(count, turn))
        swapper.start()

        async def caller() -> None:
            while self.swapped <= count and not self.failures:
                await self.call(client)
                turn.release()
                turn.release()

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        turn.release(count)
        swapper.join(60)
        await client.close()


def swap_under_load(count: int) -> None:
    before = snapshots_alive()
    made = Swaps()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # the threads take turns in the middle of everything
    try:
        asyncio.run(made.run(count))
    finally:
        sys.setswitchinterval(interval)
    world = made.router.engine.world

    assert made.failures == []
    assert made.torn == []
    assert made.swapped == count + 1
    assert made.calls.total() > count / 4
    assert made.most_in_flight > AT_ONCE / 4  # versions changed under calls, not between them
    [bad] = [row for row in made.router.status().endpoints if row.endpoint_id == "bad"]
    assert sum(breaker.trips for breaker in bad.breakers) >= 1  # learned once, kept since
    # Not asked again by every version: what was learned of it outlives them.
    assert made.calls["bad"] < made.calls.total() / 50 + 20
    assert {state.inflight for state in world.states.values()} == {0}
    assert {pool.inflight for pool in world.pools.values()} == {0}
    made.router._adopt(made.version(count + 2))
    side = "right" if (count + 2) % 2 == 0 else "left"
    assert {"both", "bad"} <= set(world.states) <= {side, "both", "bad"}
    assert len(world.pools) == 1
    assert made.router.engine._retired == {}
    assert snapshots_alive() - before <= 8  # in force, two templates, and what a frame still holds


def snapshots_alive() -> int:
    gc.collect()
    return sum(type(thing) is Snapshot for thing in gc.get_objects())


def test_five_hundred_swaps_during_64_calls_at_once_harm_none_of_them() -> None:
    swap_under_load(500)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_swaps_during_64_calls_at_once_harm_none_of_them() -> None:
    swap_under_load(SWAPS)
