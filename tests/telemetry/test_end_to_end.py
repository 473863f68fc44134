"""Wrapped clients against real servers on loopback: what arrives at the receiver."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

import headway
from headway import telemetry as telemetries
from tests.telemetry.otlp import Otlp, Pipeline

KEY, PROMPT, ANSWER = "sk-canary-key-1", "canary prompt 2", "canary answer 3"
ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": PROMPT}]}
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "total_tokens": 1100,
    "prompt_tokens_details": {"cached_tokens": 600},
}
SHARED = {"id": "c1", "created": 1, "model": "gpt-4o-2024-08-06"}


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        if server.refuses > 0:
            server.refuses -= 1
            self._send(503, {"error": {"message": f"busy with {PROMPT}"}})
        elif body.get("stream"):
            self._stream((body.get("stream_options") or {}).get("include_usage", False))
        else:
            message = {"role": "assistant", "content": ANSWER}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send(
                200,
                SHARED | {"object": "chat.completion", "choices": [choice], "usage": USAGE},
            )

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, with_usage: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        chunk = SHARED | {"object": "chat.completion.chunk"}
        deltas: list[tuple[dict[str, str], str | None]] = [({"content": ANSWER}, None)] * 5
        try:
            for delta, finish in [*deltas, ({}, "stop")]:
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                self._event(chunk | {"choices": [choice]})
                self.server.may_go_on.wait(5)  # type: ignore[attr-defined]
            if with_usage:
                self._event(chunk | {"choices": [], "usage": USAGE})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # the client has left
            pass
        self.close_connection = True

    def _event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.daemon_threads = True
    server.refuses = 0
    server.may_go_on = threading.Event()
    server.may_go_on.set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def watched(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The process's own telemetry exports to the receiver."""
    before = telemetries.telemetry()
    telemetries.configure(
        tracer_provider=pipeline.tracer_provider,
        meter_provider=pipeline.meter_provider,
        logger_provider=pipeline.logger_provider,
    )
    yield pipeline
    telemetries.install(before)


def policy(url: str) -> dict[str, Any]:
    price = {"input_per_mtok": "2.5", "cached_input_per_mtok": "1.25", "output_per_mtok": "10"}
    endpoint = {"base_url": url, "provider": "openai", "price": price}
    return {
        "schema_version": "1.0",
        "version": 7,
        "endpoints": {"a": endpoint, "b": endpoint},
        "routes": [{"match": {"model": "gpt-4o"}, "weights": {"a": 1, "b": 1}}],
    }


def wrapped(client: Any, url: str) -> Any:
    return headway.wrap(client, policy=policy(url), allowed_hosts=["127.0.0.1"])


def test_a_retried_call_of_a_real_client(upstream: Any, watched: Pipeline) -> None:
    upstream.refuses = 1
    with OpenAI(api_key=KEY, base_url=upstream.url) as plain:
        client = wrapped(plain, upstream.url)
        with headway.task("t") as task:
            client.chat.completions.create(**ASK)
            task.succeed()
    seen = watched.flush()

    assert (task.cost, task.calls, task.attempts) == (Decimal("0.00275"), 1, 2)
    assert sorted(s.name for s in seen.spans) == [
        "chat gpt-4o",
        "headway.attempt",
        "headway.attempt",
        "invoke_workflow t",
    ]
    call = seen.one("chat gpt-4o")
    assert call.status == "UNSET"
    assert call.attributes["gen_ai.usage.cache_read.input_tokens"] == 600
    assert {s.status for s in seen.named("headway.attempt")} == {"ERROR", "UNSET"}
    _no_canary(seen)


def test_a_stream_keeps_its_cost_to_itself(upstream: Any, watched: Pipeline) -> None:
    with OpenAI(api_key=KEY, base_url=upstream.url) as plain:
        client = wrapped(plain, upstream.url)
        with headway.task("whole") as whole:
            chunks = list(client.chat.completions.create(**ASK, stream=True))
        upstream.may_go_on.clear()
        with headway.task("half") as half:
            with client.chat.completions.create(**ASK, stream=True) as stream:
                next(iter(stream))
        upstream.may_go_on.set()
    seen = watched.flush()

    assert all(chunk.choices for chunk in chunks)
    assert len(chunks) == 6
    assert whole.cost == Decimal("0.00275")
    assert half.cost == half.wasted
    assert half.cost_source == "estimated"
    roots = {s.span_id: s.name for s in seen.spans}
    ends = {
        roots[s.parent_id]: s.attributes["gen_ai.response.finish_reasons"]
        for s in seen.named("chat gpt-4o")
    }
    assert ends == {"invoke_workflow whole": ["stop"], "invoke_workflow half": ["error"]}
    _no_canary(seen)


async def test_concurrent_tasks_of_a_real_async_client(upstream: Any, watched: Pipeline) -> None:
    async with AsyncOpenAI(api_key=KEY, base_url=upstream.url) as plain:
        client = wrapped(plain, upstream.url)

        async def work() -> headway.Task:
            async with headway.task("t", max_calls=1) as task:
                await client.chat.completions.create(**ASK)
                with pytest.raises(headway.TaskLimitExceeded):
                    await client.chat.completions.create(**ASK)
                task.succeed()
            return task

        done = await asyncio.gather(*(work() for _ in range(20)))
    seen = watched.flush()

    assert {t.cost for t in done} == {Decimal("0.00275")}
    roots = seen.named("invoke_workflow t")
    calls = seen.named("chat gpt-4o")
    assert len({s.trace_id for s in roots}) == len(roots) == len(calls) == 20
    assert {c.parent_id for c in calls} == {r.span_id for r in roots}
    assert sum("gen_ai.usage.input_tokens" in s.attributes for s in seen.spans) == 20
    _no_canary(seen)


def _no_canary(seen: Otlp) -> None:
    for text in (KEY, PROMPT, ANSWER):
        assert not seen.contains(text)
