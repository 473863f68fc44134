"""Answers reused for identical calls that would get the same again: never anybody else's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, MutableMapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import cachetools
import openai
import pytest

import headway
from headway.core.model import AttemptKind, AttemptStarted, CallShared
from headway.credentials import Credential
from headway.errors import HeadwayError
from headway.testing import FakeClock
from tests.e2e.fleet import MESSAGES, Fleet, asay, document, say
from tests.e2e.replies import answer
from tests.e2e.sharing import Crowd, Gate, callers, wait_until
from tests.servers import DONE, ROLE, SSE, R, Seen, Server, chunk, error, event

PRICE = {"input_per_mtok": "2.50", "output_per_mtok": "10"}
WHOLE = Decimal("0.0035")
COLD: dict[str, Any] = {"temperature": 0}


@pytest.fixture
def keeping(fleet: Callable[..., Fleet]) -> Callable[..., Fleet]:
    """A fleet of one priced endpoint whose route keeps answers."""

    def make(server: Server, **options: Any) -> Fleet:
        cache = {"enabled": True, **options.pop("cache", {})}
        route = {"cache": cache, **options.pop("route", {})}
        return fleet({"a": server.url}, route=route, endpoint={"price": PRICE}, **options)

    return make


# --------------------------------------------------------------------------- the promise


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_same_again_costs_nothing(
    stream: bool, serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer(1000, 100, text="Hel|lo"))
    made = keeping(server)
    client = made.client()

    with headway.task("first") as first:
        before = say(client, stream=stream, **COLD)
    with headway.task("again") as again:
        after = say(client, stream=stream, **COLD)

    assert before == after
    assert len(server.hits) == 1
    assert (first.cost, first.saved) == (WHOLE, Decimal(0))
    assert (again.cost, again.saved, again.cost_complete) == (Decimal(0), WHOLE, True)
    assert (again.calls, again.attempts, again.tokens) == (1, 0, 0)
    assert [e.decision for e in made.events.of(CallShared)] == ["avoid"]
    assert not made.in_flight


def test_a_hit_says_so_and_is_a_response_like_the_first(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    whole = answer()(Seen(0.0, "POST /v1/chat/completions HTTP/1.1", {}, b"{}", 0))
    reply = R(200, whole.body, headers={"set-cookie": "__cf_bm=1", "x-kept": "y"})
    made = keeping(serve(reply))
    client = made.client()

    def raw() -> Any:
        return client.chat.completions.with_raw_response.create(
            model="m", messages=MESSAGES, temperature=0
        )

    first, again, third = raw(), raw(), raw()

    assert first.headers["x-headway-decision"].startswith("initial")
    assert again.headers["x-headway-decision"] == "avoid"
    assert again.headers["x-headway-attempts"] == "0"
    assert again.headers["x-headway-endpoint"] == "a"
    assert again.headers["x-kept"] == "y"
    assert "set-cookie" not in again.headers
    assert again.parse() == first.parse()
    assert again.parse() is not third.parse()


def test_a_stream_is_replayed_as_a_stream_and_never_as_anything_else(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="Hel|lo"))
    made = keeping(server)
    client = made.client()

    say(client, stream=True, **COLD)
    events = list(
        client.chat.completions.create(model="m", messages=MESSAGES, stream=True, temperature=0)
    )
    whole = say(client, **COLD)

    assert [e.choices[0].delta.content for e in events] == ["", "Hel", "lo", None]
    assert whole == "Hel|lo"
    assert len(server.hits) == 2


def test_sync_and_async_clients_reuse_each_others_answers(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="Hel|lo"))
    made = keeping(server)

    async def use() -> list[str]:
        async with made.async_client() as client:
            return [
                await asay(client, **COLD),
                await asay(client, stream=True, **COLD),
                await asay(client, stream=True, **COLD),
            ]

    say(made.client(), **COLD)

    assert asyncio.run(use()) == ["Hel|lo", "Hello", "Hello"]
    assert say(made.client(), stream=True, **COLD) == "Hello"
    assert len(server.hits) == 2


# --------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        ({}, 2),
        ({"temperature": 0.2}, 2),
        ({"temperature": 0}, 1),
        ({"temperature": 0.0, "n": 2}, 1),
        ({"seed": 7}, 1),
        ({"temperature": 1, "seed": 7}, 1),
        ({"temperature": 0, "store": True}, 2),
        ({"temperature": 0, "tools": [{"type": "web_search"}]}, 2),
        ({"temperature": 0, "extra_headers": {"cache-control": "no-store"}}, 2),
        ({"temperature": 0, "extra_headers": {"cache-control": "no-cache"}}, 2),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_only_what_would_be_the_same_again_is_kept(
    options: dict[str, Any],
    requests: int,
    serve: Callable[..., Server],
    keeping: Callable[..., Fleet],
) -> None:
    server = serve(answer())
    client = keeping(server).client()

    for _ in range(2):
        say(client, **options)

    assert len(server.hits) == requests


def test_no_cache_asks_anew_and_keeps_what_comes(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="old"), answer(text="new"))
    client = keeping(server).client()

    say(client, **COLD)
    say(client, extra_headers={"cache-control": "no-cache"}, **COLD)

    assert say(client, **COLD) == "new"
    assert len(server.hits) == 2


def test_embeddings_are_the_same_whatever_they_say(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    client = keeping(server).client()

    found = [client.embeddings.create(model="m", input="x", encoding_format="float") for _ in "12"]

    assert found[0] == found[1]
    assert len(server.hits) == 1


FILTERED = {"choices": [{"index": 0, "finish_reason": "content_filter", "message": {}}]}


@pytest.mark.parametrize(
    "step",
    [
        R(400, error("no")),
        R(200, b"{"),
        R(200, {"error": {"message": "overloaded"}}),
        R(200, {"id": "1", "object": "chat.completion", "model": "m", **FILTERED}),
    ],
    ids=["refused", "cut", "disguised", "filtered"],
)
def test_what_is_no_whole_answer_is_not_kept(
    step: R, serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(step, answer())
    client = keeping(server, route={"retry": {"max_attempts": 1}}).client()

    with contextlib.suppress(openai.OpenAIError, TypeError):
        say(client, **COLD)

    assert say(client, **COLD) == "Hello"
    assert len(server.hits) == 2


def test_a_stream_that_was_left_or_broke_is_not_kept(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    broken = SSE([ROLE, chunk("Hel")], end="rst")
    failing = SSE([ROLE, chunk("x"), event({"error": {"message": "overloaded"}}), DONE])
    server = serve(broken, failing, answer(text="Hel|lo"))
    client = keeping(server).client()

    for _ in range(2):
        with pytest.raises(headway.StreamInterrupted):
            say(client, stream=True, **COLD)
    left = client.chat.completions.create(model="m", messages=MESSAGES, stream=True, temperature=0)
    next(iter(left))
    left.close()

    assert say(client, stream=True, **COLD) == "Hello"
    assert len(server.hits) == 4


def test_a_stand_ins_answer_is_not_kept(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    main, reserve = serve(R(503, error("down")), answer(text="main")), serve(answer(text="spare"))
    made = fleet(
        {"a": main.url, "b": reserve.url},
        route={
            "weights": {"a": 1},
            "fallback": [{"endpoint": "b"}],
            "cache": {"enabled": True},
            "retry": {"max_attempts": 2},
        },
    )
    client = made.client()

    assert say(client, **COLD) == "spare"
    kinds = [e.attempt.kind for e in made.events.of(AttemptStarted)]
    assert AttemptKind.FALLBACK in kinds
    assert say(client, **COLD) == "main"
    assert say(client, **COLD) == "main"
    assert len(main.hits) == 2


# --------------------------------------------------------------------------- whose it is


@pytest.mark.parametrize(
    "options",
    [
        {"extra_headers": {"Authorization": "Bearer other"}},
        {"extra_headers": {"OpenAI-Organization": "org-2"}},
        {"extra_headers": {"x-tenant": "2"}},
        {"extra_headers": {"Cookie": "session=2"}},
        {"extra_query": {"tenant": "2"}},
        {"user": "2"},
    ],
    ids=lambda options: next(iter(next(iter(options.values())))) if options else "",
)
def test_another_tenants_answer_is_never_reused(
    options: dict[str, Any], serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    client = keeping(server).client()

    say(client, **COLD)
    say(client, **COLD, **options)

    assert len(server.hits) == 2


def test_routers_that_use_one_store_share_only_what_their_keys_may_see(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    store: dict[str, bytes] = {}
    policy = document({"a": server.url}, route={"cache": {"enabled": True}})
    policy["endpoints"]["a"]["credential"] = "shared"

    for secret in ("one", "one", "two"):
        credentials = {"shared": Credential(value=secret, hosts=["127.0.0.1"])}
        made = fleet(
            {"a": server.url}, policy=policy, credentials=credentials, response_cache=store
        )
        say(made.client(), **COLD)

    assert [hit.headers["authorization"] for hit in server.hits] == ["Bearer one", "Bearer two"]


def test_a_policy_that_sends_calls_elsewhere_has_answers_of_its_own(
    serve: Callable[..., Server], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    store: dict[str, bytes] = {}
    for model in ("small", "large", "large"):
        policy = document({"a": server.url}, route={"cache": {"enabled": True}})
        policy["endpoints"]["a"]["model"] = model
        say(fleet({"a": server.url}, policy=policy, response_cache=store).client(), **COLD)

    assert [hit.json["model"] for hit in server.hits] == ["small", "large"]


def test_nothing_can_be_read_from_a_key(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    store: dict[str, bytes] = {}
    made = keeping(serve(answer()), response_cache=store)

    say(made.client(), **COLD)

    ((key, value),) = store.items()
    assert key.startswith("headway:answer:")
    for secret in ("sk-own", "say hello"):
        assert secret not in key
        assert secret.encode() not in value


# --------------------------------------------------------------------------- bounds


def test_an_answer_is_kept_for_its_time(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    clock = FakeClock()
    server = serve(answer())
    client = keeping(server, cache={"ttl_s": 60}, clock=clock).client()

    say(client, **COLD)
    clock.advance(59)
    say(client, **COLD)
    assert len(server.hits) == 1
    clock.advance(2)
    say(client, **COLD)
    assert len(server.hits) == 2


def test_a_store_without_a_clock_keeps_to_the_time_too(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    clock = FakeClock()
    server = serve(answer())
    client = keeping(server, cache={"ttl_s": 60}, clock=clock, response_cache={}).client()

    say(client, **COLD)
    clock.advance(61)
    say(client, **COLD)

    assert len(server.hits) == 2


def test_memory_is_bounded_and_the_least_used_goes_first(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer(text="x" * 1000))
    made = keeping(server, cache={"max_bytes": 10_000})
    client = made.client()

    def ask(number: int) -> None:
        say(client, seed=number)

    for number in range(20):
        ask(0)
        ask(number)
    (memory,) = made.router.shelf._memories.values()

    assert memory.held_bytes <= 10_000
    assert 2 <= len(memory) < 10
    assert len(server.hits) == 20


# --------------------------------------------------------------------------- stores


def test_any_mutable_mapping_will_do(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer(1000, 100, text="Hel|lo"))
    store: MutableMapping[str, bytes] = cachetools.TTLCache(maxsize=100, ttl=60)
    made = keeping(server, response_cache=store)
    client = made.client()

    def both() -> list[str]:
        return [say(client, stream=stream, **COLD) for stream in (False, True)]

    with headway.task("t") as task:
        assert both() == both() == ["Hel|lo", "Hello"]

    assert len(store) == 2
    assert len(server.hits) == 2
    assert task.saved == 2 * WHOLE


class Broken(dict[str, bytes]):
    def get(self, *_: Any) -> Any:
        raise OSError("the disk is gone")

    def __setitem__(self, *_: Any) -> None:
        raise OSError("the disk is gone")


class Lying(dict[str, bytes]):
    """Returns what no store of ours would."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._lie = value

    def get(self, *_: Any) -> Any:
        return self._lie


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    "store",
    [
        Broken(),
        Lying(b""),
        Lying(b"\x00\xff"),
        Lying("text"),
        Lying(7),
        Lying(b'{"v":1}\nbody'),
        Lying(b'{"v":1,"bytes":4,"status":200,"headers":[["a\\r\\nb","c"]]}\nbody'),
    ],
    ids=["broken", "empty", "bytes", "text", "number", "short", "injecting"],
)
def test_a_store_that_fails_fails_no_call(
    colour: str, store: Any, serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    made = keeping(server, response_cache=store)

    async def use() -> list[str]:
        async with made.async_client() as client:
            return [await asay(client, **COLD) for _ in range(2)]

    if colour == "sync":
        client = made.client()
        texts = [say(client, **COLD) for _ in range(2)]
    else:
        texts = asyncio.run(use())

    assert texts == ["Hello"] * 2
    assert len(server.hits) == 2
    assert not made.in_flight


class Stuck(dict[str, bytes]):
    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.release = threading.Event()

    def get(self, *_: Any) -> Any:
        self.asked += 1
        self.release.wait(20)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_store_that_hangs_holds_up_one_call_and_only_a_moment(
    colour: str,
    serve: Callable[..., Server],
    keeping: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Stuck()
    made = keeping(serve(answer()), response_cache=store)

    async def use() -> list[str]:
        async with made.async_client() as client:
            return [await asay(client, **COLD) for _ in range(3)]

    with caplog.at_level(logging.WARNING, "headway"):
        if colour == "sync":
            client = made.client()
            texts = [say(client, **COLD) for _ in range(3)]
        else:
            texts = asyncio.run(use())
    store.release.set()

    assert texts == ["Hello"] * 3
    assert store.asked == 1
    assert "the response cache took too long" in caplog.text


def test_clients_share_a_router_only_with_the_same_store(refused_url: str) -> None:
    policy = document({"a": refused_url}, route={"cache": {"enabled": True}})
    one, other = dict[str, bytes](), dict[str, bytes]()

    def router(store: Any) -> Any:
        client = openai.OpenAI(api_key="k", base_url=refused_url)
        return headway.wrap(client, policy, response_cache=store)._client._transport.host

    first = router(one)
    assert router(one) is first
    assert router(other) is not first
    assert router("redis://127.0.0.1:1/0") is router("redis://127.0.0.1:1/0")


@pytest.mark.parametrize("wanted", [7, "memcached://localhost", [1]], ids=["int", "url", "list"])
def test_what_can_be_no_store_is_refused_when_it_is_given(wanted: Any, refused_url: str) -> None:
    with pytest.raises(HeadwayError, match="response_cache"):
        headway.Router(document({"a": refused_url}), response_cache=wanted)


# --------------------------------------------------------------------------- redis


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server on a free port."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("no redis-server here (`apt-get install redis-server`)")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    place: Path = tmp_path_factory.mktemp("redis")
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(place)],
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"]},
    )

    def answers() -> bool:
        assert server.poll() is None, "redis-server did not start"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers)
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait(10)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_processes_share_answers_through_redis(
    stream: bool, redis_url: str, serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    import redis

    server = serve(answer(1000, 100, text="Hel|lo"))

    async def use(made: Fleet) -> str:
        async with made.async_client() as client:
            return await asay(client, stream=stream, **COLD)

    first = say(keeping(server, response_cache=redis_url).client(), stream=stream, **COLD)
    with headway.task("t") as task:
        other = keeping(server, response_cache=redis_url)  # as another process would
        assert say(other.client(), stream=stream, **COLD) == first
        assert asyncio.run(use(other)) == first

    assert len(server.hits) == 1
    assert (task.cost, task.saved) == (Decimal(0), 2 * WHOLE)
    with redis.Redis.from_url(redis_url) as looker:
        keys = list(looker.scan_iter("headway:answer:*"))
        assert keys
        assert all(0 < looker.pttl(key) <= 300_000 for key in keys)


def test_a_redis_that_is_away_fails_no_call(
    refused_url: str, serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    port = refused_url.split(":")[2].removesuffix("/v1")
    made = keeping(serve(answer()), response_cache=f"redis://127.0.0.1:{port}/0")
    client = made.client()

    assert [say(client, **COLD) for _ in range(3)] == ["Hello"] * 3


# --------------------------------------------------------------------------- both at once


def test_who_comes_at_once_shares_and_who_comes_later_reuses(
    serve: Callable[..., Server], keeping: Callable[..., Fleet]
) -> None:
    gates: list[Gate] = []
    server = serve(lambda seen: gates[-1](seen))
    made = keeping(server, route={"coalesce": True})
    client = made.client()

    for stream in (False, True):
        gates.append(Gate(answer(1000, 100, text="Hel|lo")))
        crowd = Crowd(8, lambda _, stream=stream: say(client, stream=stream, **COLD))
        wait_until(lambda: callers(made.router) == 8)
        gates[-1].open()
        assert set(crowd.join()) == {"Hello" if stream else "Hel|lo"}
        say(client, stream=stream, **COLD)

    assert len(server.hits) == 2
    assert not len(made.router.board)
