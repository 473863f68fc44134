"""Keys, prompts and answers occur in nothing that leaves: not one of the places people look at.

Every call here carries canaries: in the client's key, in declared credentials, in the prompt, in
the answer, in what servers say of errors. Then everything is searched: spans, metrics and log
records as exported bytes, the stdlib log at DEBUG, reprs, exceptions, the task log, the report,
status, explanations, pickles.

What an upstream said in refusing a call is the application's to see, in the exception the SDK
raises for it, as ever: that text alone may quote.
"""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import openai
import pytest

import headway
from headway.cli import main
from headway.errors import HeadwayError
from tests.e2e.fleet import Fleet, asay, document, say
from tests.e2e.replies import answer
from tests.servers import FIN, ROLE, SSE, Close, Hang, R, Rst, chunk, error, event
from tests.telemetry.otlp import Pipeline

CANARY = "xq7z"
"""A word that occurs in nothing else."""
KEY, CREDENTIAL = f"sk-{CANARY}-own-key", f"{CANARY}-declared-key"
PROMPT, ANSWER = f"{CANARY}-prompt", f"{CANARY}-answer"
QUOTED = f"you sent {PROMPT} with {KEY}"

SAID = error(QUOTED, f"type_{KEY}", f"{PROMPT}_code")
"""An error that quotes what it can, even where codes should stand."""

STEPS: dict[str, Any] = {
    "answered": answer(text=f"{ANSWER}|{ANSWER}"),
    "400": R(400, SAID),
    "401": R(401, SAID),
    "403": R(403, SAID),
    "404": R(404, SAID),
    "429": R(429, SAID),
    "quota": R(429, error(QUOTED, "insufficient_quota", "insufficient_quota")),
    "context": R(400, error(QUOTED, "invalid_request_error", "context_length_exceeded")),
    "filtered": R(400, error(QUOTED, "invalid_request_error", "content_filter")),
    "500 page": R(500, f"<html>{QUOTED}</html>".encode(), ctype="text/html"),
    "503": R(503, SAID, {"x-request-id": "r-1"}),
    "error in a 200": R(200, SAID),
    "broken json": R(200, f'{{"{ANSWER}'.encode()),
    "empty": R(200, b""),
    "closed": Close(),
    "reset": Rst(),
    "silent": Hang(5),
    "redirect": R(307, b"", {"location": f"http://127.0.0.1:9/?key={KEY}"}),
    "cut stream": SSE([ROLE, chunk(ANSWER)], end="rst"),
    "ended stream": SSE([ROLE, chunk(ANSWER)]),
    "stalled stream": SSE([ROLE, chunk(ANSWER), 5.0]),
    "error in a stream": SSE([ROLE, event(SAID)]),
    "late error in a stream": SSE([ROLE, chunk(ANSWER), event(SAID)]),
    "filtered stream": SSE([ROLE, chunk(ANSWER), chunk(None, "content_filter")]),
    "garbled stream": SSE([ROLE, chunk(ANSWER), f"data: {{{ANSWER}\n\n".encode(), FIN]),
}
MAY_QUOTE = frozenset({"late error in a stream"})
"""Our own exception, holding what the server said of the failure."""

MESSAGES: list[Any] = [{"role": "user", "content": f"{PROMPT} " * 400}]


class Heap:
    """Where everything is thrown that is to be searched."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def text(self, where: str, text: object) -> None:
        self.texts.append((where, str(text)))

    def shown(self, where: str, *values: object) -> None:
        for value in values:
            self.text(f"repr of {where}", repr(value))
            self.text(f"str of {where}", str(value))

    def pickled(self, where: str, value: object) -> None:
        self.text(f"pickle of {where}", pickle.dumps(value))

    def search(self) -> None:
        found = [(where, text) for where, text in self.texts if CANARY in text.lower()]
        assert not found, found


@pytest.fixture
def heap() -> Heap:
    return Heap()


@pytest.fixture
def task_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tasks.jsonl"
    monkeypatch.setenv("HEADWAY_TASK_LOG", str(path))
    return path


def note(heap: Heap, problem: BaseException, *, quotes: bool) -> None:
    """An exception that reached the application."""
    said_upstream = type(problem) is openai.APIError or (
        isinstance(problem, openai.APIStatusError) and not isinstance(problem, HeadwayError)
    )
    heap.text("exception notes", getattr(problem, "__notes__", ""))
    if said_upstream or isinstance(problem, json.JSONDecodeError | TypeError):
        return  # the SDK's
    partial = getattr(problem, "partial", None)
    heap.shown("partial", partial)
    if quotes:
        return
    heap.shown("exception", problem, problem.args, problem.__cause__, problem.__context__)
    heap.text("traceback", "".join(traceback.format_exception(problem)))
    if isinstance(problem, HeadwayError):
        if partial is not None:
            partial.text, partial.tool_calls = "", []  # it is what a pickle is made for
        heap.pickled("exception", problem)


async def converse(fleet: Fleet, heap: Heap, kind: str) -> None:
    """Call in every way; note what came of it."""

    async def attempt(call: Callable[[], Any]) -> None:
        with headway.task("t", max_cost="5") as task:
            try:
                found = call()
                if not isinstance(found, str):
                    found = await found
                task.succeed()
            except (openai.OpenAIError, json.JSONDecodeError, TypeError) as problem:
                note(heap, problem, quotes=kind in MAY_QUOTE)
                task.fail("no")
        heap.shown("task", task, task.headers())

    how: dict[str, Any] = {"api_key": KEY, "timeout": 0.2, "max_retries": 1}
    client = fleet.client(**how)
    async with fleet.async_client(**how) as asynchronous:
        for stream in (True,) if "stream" in kind else (False, True):
            options: dict[str, Any] = {"stream": stream, "messages": MESSAGES}
            await attempt(partial(say, client, **options))
            await attempt(partial(asay, asynchronous, **options))
        heap.shown("client", client, asynchronous)


def look_around(fleet: Fleet, heap: Heap) -> None:
    router = fleet.router
    heap.shown("router", router, router.engine, router.engine.snapshot)
    heap.shown("status", router.status())
    heap.shown("explanation", router.explain(model="m", prompt=MESSAGES))
    heap.shown("events", *fleet.events)
    for happened in fleet.events:
        heap.pickled("event", happened)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with another"])
@pytest.mark.parametrize("kind", STEPS)
async def test_nothing_private_is_anywhere(
    kind: str,
    alone: bool,
    heap: Heap,
    task_log: Path,
    otel: Pipeline,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not alone and kind in ("answered", "silent", "stalled stream"):
        pytest.skip("no other outcome than alone")
    urls = {"a": serve(STEPS[kind]).url}
    if not alone:
        urls["b"] = serve(STEPS["answered"]).url
    route = {"deadline": {"total_ms": 500}, "retry": {"backoff": {"base_ms": 1, "cap_ms": 5}}}
    made = document(urls, endpoint={"credential": "declared"}, route=route)
    declared = headway.Credential(value=CREDENTIAL, hosts=["127.0.0.1"])
    heap.shown("credential", declared)
    with caplog.at_level(logging.DEBUG, "headway"):
        used = fleet(urls, policy=made, credentials={"declared": declared})
        heap.shown("policy", headway.Policy.load(made))
        await converse(used, heap, kind)
        used.ended()
        look_around(used, heap)
        seen = otel.flush()

    heap.text("task log", task_log.read_text())
    assert main(["report", str(task_log)]) == 0
    assert main(["report", "--json", str(task_log)]) == 0
    heap.text("report", capsys.readouterr().out)
    for record in caplog.records:
        if record.name.startswith("headway"):
            heap.text("log record", logging.Formatter().format(record))
            heap.text("log record", record.__dict__)
    heap.text("exported bytes", seen.raw)
    assert seen.spans
    assert seen.metrics
    heap.search()


# --------------------------------------------------------------------------- refusals and policies


def test_refusals_hold_nothing_private(
    heap: Heap,
    otel: Pipeline,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    down = fleet({"a": serve(R(503, SAID, {"retry-after": "300"})).url})
    client = down.client(api_key=KEY, max_retries=0)
    refusals: list[HeadwayError] = []

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(HeadwayError) as caught:
            call()
        refusals.append(caught.value)
        note(heap, caught.value, quotes=False)

    with caplog.at_level(logging.DEBUG, "headway"):
        with pytest.raises(openai.InternalServerError):
            say(client, messages=MESSAGES)
        refused(lambda: say(client, messages=MESSAGES))
        with headway.task("t", max_calls=0) as task:
            refused(lambda: say(client, messages=MESSAGES))
        with headway.options(deadline=0.000_001):
            refused(lambda: say(client, messages=MESSAGES))
        refused(lambda: headway.wrap(client))
    heap.shown("task", task)
    look_around(down, heap)
    heap.text("exported bytes", otel.flush().raw)
    heap.text("log", caplog.text)
    heap.search()

    assert [type(r).__name__ for r in refusals] == [
        "Shed",
        "TaskLimitExceeded",
        "DeadlineExceeded",
        "WrapError",
    ]


SECRETS: dict[str, dict[str, Any]] = {
    "as a credential": {"credential": KEY},
    "in a header": {"headers": {"Authorization": f"Bearer {KEY}"}},
    "in a header of its own": {"headers": {"x-gateway-key": f"{KEY}\n"}},
    "as an unknown field": {"api_key": KEY},
    "in the URL": {"base_url": f"https://u:{KEY}@127.0.0.1/v1"},
    "in the query": {"base_url": f"https://127.0.0.1/v1?key={KEY}"},
    "as a parameter": {"params": {"set": KEY}},
}


@pytest.mark.parametrize("place", SECRETS)
def test_a_bad_policy_is_not_quoted_where_it_holds_a_secret(
    place: str,
    heap: Heap,
    otel: Pipeline,
    tmp_path: Path,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = document({"a": serve(answer()).url})
    bad = document({"a": "http://127.0.0.1:1/v1"}, endpoint=SECRETS[place], version=8)
    file = tmp_path / "policy.json"

    with caplog.at_level(logging.DEBUG, "headway"):
        file.write_text(json.dumps(bad))
        for wrong in (bad, file):
            with pytest.raises(headway.PolicyError) as caught:
                headway.Router(wrong)
            note(heap, caught.value, quotes=False)
        main(["policy", "check", str(file)])
        shown = capsys.readouterr()
        heap.text("check", shown.out + shown.err)

        file.write_text(json.dumps(good))
        running = fleet({"a": good["endpoints"]["a"]["base_url"]}, policy=file)
        file.write_text(json.dumps(bad))
        assert not running.router._supply.refresh_once()  # it may still be growing
        assert not running.router._supply.refresh_once()
        assert say(running.client(api_key=KEY)) == "Hello"
        assert running.router.status().policy.last_error
        look_around(running, heap)
    heap.text("exported bytes", otel.flush().raw)
    heap.text("log", caplog.text)
    heap.search()


@pytest.fixture
def policy_url(serve: Callable[..., Any]) -> Iterator[str]:
    """A policy server whose URL holds a token."""
    body = json.dumps(document({"a": serve(answer()).url})).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = "token" in self.path
            self.send_response(200 if is_known else 403)
            self.send_header("content-length", str(len(body) if is_known else 0))
            self.end_headers()
            self.wfile.write(body if is_known else b"")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/policy.json?token={KEY}"
    server.shutdown()
    server.server_close()


def test_the_token_in_a_policys_url_is_not_shown(
    policy_url: str,
    heap: Heap,
    otel: Pipeline,
    fleet: Callable[..., Fleet],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "headway"):
        used = fleet({"a": "http://127.0.0.1:1/v1"}, policy=policy_url)
        look_around(used, heap)
        with pytest.raises(headway.FetchError) as caught:
            headway.Router(policy_url.replace("token", "wrong"))
        note(heap, caught.value, quotes=False)
    heap.text("exported bytes", otel.flush().raw)
    heap.text("log", caplog.text)
    heap.search()


def test_a_key_in_the_clients_own_url_is_not_shown(
    heap: Heap, otel: Pipeline, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(SSE([ROLE, chunk("x")], end="rst")).url
    with caplog.at_level(logging.DEBUG, "headway"):
        plain = openai.OpenAI(
            api_key=KEY,
            base_url=url.replace("://", f"://u:{KEY}@"),
            default_query={"key": KEY},
            max_retries=0,
        )
        events: list[Any] = []
        router = headway.Router(document({"a": url}), on_event=events.append)
        for client in (headway.wrap(plain, router=router), headway.wrap(plain)):
            try:
                say(client, stream=True)
            except openai.OpenAIError as problem:
                note(heap, problem, quotes=False)
        plain.close()
    heap.shown("events", *events)
    heap.text("exported bytes", otel.flush().raw)
    heap.text("log", caplog.text)
    heap.search()
