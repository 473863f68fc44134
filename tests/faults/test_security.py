"""What may go where: no key, cookie, organisation or prompt to a host that it is not meant for."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import openai
import pytest

import headway
from headway.client import wrap
from headway.core.snapshot import Endpoint
from headway.credentials import Credential
from headway.errors import CredentialRefused
from headway.policy.document import compile_document
from tests.faults.bench import FAMILY, Bench, Fault, fault, play, plays_of
from tests.servers import OK, R, completion, error
from tests.transport.callers import Caller
from tests.transport.hosts import Host, own, policy

SECTION = "S. What may go where"
ORIGIN = "https://api.example.com"
HOME = f"{ORIGIN}/v1"
KEY = "sk-canary-0001"
SECRETS = (
    "authorization",
    "api-key",
    "cookie",
    "openai-organization",
    "openai-project",
    "x-tenant",
)
PERSONAL: dict[str, Any] = {
    "api_key": KEY,
    "organization": "org-canary",
    "project": "proj-canary",
    "default_headers": {"Cookie": "session=canary", "X-Tenant": "canary", "Api-Key": KEY},
}


class Wire:
    """Answers by URL instead of a network; remembers what was asked of whom."""

    def __init__(self, answers: Mapping[str, Callable[[], Any]] | None = None) -> None:
        self.http = importlib.import_module(FAMILY)
        self.answers = dict(answers or {})
        self.requests: list[Any] = []

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        origin = f"{request.url.scheme}://{request.url.netloc.decode()}"
        answer = self.answers.get(origin)
        return answer() if answer else self.reply(200, completion())

    def reply(self, status: int, body: Any = None, **headers: str) -> Any:
        named = [(n.replace("_", "-").encode(), v.encode()) for n, v in headers.items()]
        return self.http.Response(status, json=body, headers=named)

    def client(self, bench: Bench, url: str, host: Any, **options: Any) -> Caller:
        """A client of this bench's colour over this wire; without a host, wrapped without one."""
        made = Caller(bench.kind, url, host or Host(own(url)), **{**PERSONAL, **options})
        cls = self.http.AsyncClient if bench.is_async else self.http.Client
        http = cls(transport=self.http.MockTransport(self), follow_redirects=True)
        made.plain = made.plain.with_options(http_client=http)
        given = {} if host is None else {"router": host}
        made.client = made.plain if bench.is_plain else wrap(made.plain, **given)
        bench.stack.callback(made.close)
        bench.stack.callback(lambda: made.run(made.http.aclose()) if bench.is_async else None)
        return made

    def strangers(self, *hosts: str) -> list[str]:
        """Who else than home and these hosts was asked, and with what of the user's."""
        found = []
        for request in self.requests:
            if str(request.url).startswith(f"{ORIGIN}/") or request.url.host in hosts:
                continue
            told = [name for name in SECRETS if name in request.headers]
            told += ["the prompt"] if b"hi" in request.content else []
            found.append(f"{request.url.host} got {', '.join(told) or 'nothing'}")
        return found


LEADS_TO: dict[str, str] = {
    "another host": "https://thief.example/v1/chat/completions",
    "another port": "https://api.example.com:8443/v1/chat/completions",
    "plain http": "http://api.example.com/v1/chat/completions",
    "a subdomain": "https://evil.api.example.com/v1/chat/completions",
    "a host that ends alike": "https://api.example.com.thief.example/v1/chat/completions",
    "user information": "https://api.example.com@thief.example/v1/chat/completions",
    "its own user information": "https://someone:secret@api.example.com/v1/chat/completions",
    "no scheme": "//thief.example/v1/chat/completions",
    "a trailing dot": "https://api.example.com./v1/chat/completions",
    "letters that look alike": "https://аpi.example.com/v1/chat/completions",  # a Cyrillic a
    "backslashes": "https:\\\\thief.example\\v1",
    "another scheme": "file:///etc/passwd",
    "an address with a zone": "https://[fe80::1%25eth0]/v1/chat/completions",
}


def leads_away(number: int, what: str, location: str) -> None:
    @fault(f"S1-{number:02}", f"301 to 308 to {what}")
    def kept(bench: Bench) -> None:
        asked: list[str] = []
        for status in (301, 302, 303, 307, 308):
            wire = Wire()
            wire.answers["https://api.example.com"] = lambda w=wire, s=status: w.reply(
                s, location=location
            )
            endpoints = {"a": HOME, "b": "https://other.example.com/v1"}
            snapshot = policy({"a": HOME}) if status % 2 else policy(endpoints, order=True)
            client = wire.client(bench, HOME, Host(snapshot), max_retries=0)
            seen = bench.call(client.chat)
            mine = ("other.example.com",) if seen.error is None and status % 2 == 0 else ()
            asked += wire.strangers(*mine)
        bench.observed("; ".join(dict.fromkeys(asked)) or "nobody else is asked")
        assert not asked
        assert all(seen.error is None or "base_url" in str(seen.error) for seen in bench.calls)


for number, (what, location) in enumerate(LEADS_TO.items()):
    leads_away(number, what, location)


@fault("S2", "a redirect below a client without a policy")
def unlisted(bench: Bench) -> None:
    wire = Wire()
    wire.answers["https://api.example.com"] = lambda: wire.reply(
        307, location="https://thief.example/v1/chat/completions"
    )
    client = wire.client(bench, HOME, None, max_retries=0)
    bench.call(client.chat)
    asked = wire.strangers()
    bench.observed("; ".join(asked) or "nobody else is asked")
    assert not asked


@fault("S2a", "a file that is fetched through a redirect to a store")
def download(bench: Bench) -> None:
    wire = Wire({"https://store.example": lambda: wire.http.Response(200, content=b"bytes")})
    wire.answers["https://api.example.com"] = lambda: wire.reply(
        302, location="https://store.example/signed?x=1"
    )
    client = wire.client(bench, HOME, Host(policy({"a": HOME})))
    seen = bench.call(lambda: client.run(client.client.files.content("file-1")))
    asked = wire.strangers()
    bench.observed("; ".join(asked))
    assert seen.value.content == b"bytes"
    assert asked == ["store.example got nothing"]


@fault("S2b", "a file that is sent, and redirected to another host")
def upload(bench: Bench) -> None:
    wire = Wire()
    wire.answers["https://api.example.com"] = lambda: wire.reply(
        307, location="https://thief.example/v1/files"
    )
    client = wire.client(bench, HOME, Host(policy({"a": HOME})), max_retries=0)
    files = client.client.files
    seen = bench.call(lambda: client.run(files.create(file=b"hi there", purpose="assistants")))
    asked = wire.strangers()
    bench.observed("; ".join(asked) or "nobody else is asked")
    assert isinstance(seen.error, openai.APIStatusError)
    assert not asked


# --------------------------------------------------------------------------- failover


@fault("S3", "a call that moves to another endpoint's host")
def moved(bench: Bench) -> None:
    wire = Wire({"https://api.example.com": lambda: wire.reply(503)})
    endpoints = {"a": HOME, "b": "https://other.example.org/v1"}
    client = wire.client(bench, HOME, Host(policy(endpoints)), max_retries=0)
    bench.call(client.chat)
    told = wire.strangers()
    bench.observed("; ".join(told) or "nobody else is asked")
    assert told == ["other.example.org got the prompt"]


@fault("S3a", "cookies of another endpoint's host")
def cookies(bench: Bench) -> None:
    wire = Wire(
        {
            "https://api.example.com": lambda: wire.reply(503),
            "https://other.example.org": lambda: wire.reply(
                200, completion(), set_cookie="theirs=1"
            ),
        }
    )
    endpoints = {"a": HOME, "b": "https://other.example.org/v1"}
    client = wire.client(bench, HOME, Host(policy(endpoints)), max_retries=0, default_headers={})
    for _ in range(2):
        bench.call(client.chat)
    kept = [r for r in wire.requests if "theirs" in r.headers.get("cookie", "")]
    bench.observed("not kept as its own" if not kept else "kept as its own")
    assert not kept


@fault("S3b", "cookies of the endpoint that holds a stored response")
def cookies_of_stored(bench: Bench) -> None:
    stored = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }
    wire = Wire(
        {
            "https://api.example.com": lambda: wire.reply(503),
            "https://other.example.org": lambda: wire.reply(200, stored, set_cookie="theirs=1"),
        }
    )
    endpoints = {"a": HOME, "b": "https://other.example.org/v1"}
    client = wire.client(bench, HOME, Host(policy(endpoints)), max_retries=0, default_headers={})
    responses = client.client.responses
    bench.call(lambda: client.run(responses.create(model="m", input="hi")))
    for _ in range(2):
        bench.call(lambda: client.run(responses.input_items.list("resp_1")))
        bench.call(lambda: client.run(responses.retrieve("resp_1")))
    kept = [r for r in wire.requests if "theirs" in r.headers.get("cookie", "")]
    bench.observed("not kept as its own" if not kept else "kept as its own")
    assert not kept


@fault("S3c", "an endpoint whose key may not go to its host")
def wrong_host(bench: Bench) -> None:
    if bench.is_plain:
        bench.observed("no such check")
    wire = Wire()
    thief = Endpoint(id="a", base_url="https://thief.example/v1", credential="k")
    host = Host(
        policy({"a": thief}),
        credentials={"k": Credential(value=KEY, hosts=["api.example.com"])},
    )
    client = wire.client(bench, HOME, host)
    seen = bench.call(client.chat)
    bench.observed(f"{seen.words}; nobody is asked")
    assert isinstance(seen.error, CredentialRefused)
    assert not wire.requests


@fault("S4", "a policy that moves an endpoint while a call is under way")
def swapped(bench: Bench) -> None:
    if bench.is_plain:
        bench.observed("no policies")
    keys = {"k": Credential(value="sk-of-b", hosts=["b.example.com"])}

    def at(url: str) -> Any:
        b = Endpoint(id="b", base_url=url, credential="k")
        return policy({"a": HOME, "b": b})

    host = Host(at("https://b.example.com/v1"), credentials=keys)
    wire = Wire()

    def swap() -> Any:
        host.engine.swap(at("https://thief.example/v1"), host.clock())
        return wire.reply(503)

    wire.answers["https://api.example.com"] = swap
    client = wire.client(bench, HOME, host, max_retries=0)
    bench.call(client.chat)
    bench.call(client.chat)
    asked = [r.url.host for r in wire.requests]
    bench.observed("the call ends on the policy that it began with; the thief gets no key")
    assert asked[:2] == ["api.example.com", "b.example.com"]
    assert "sk-of-b" in wire.requests[1].headers["authorization"]
    assert "thief.example" not in asked


# --------------------------------------------------------------------------- proxies


@fault("S5", "a proxy that the client is set to use")
def proxied(bench: Bench) -> None:
    proxy = bench.serve(R(503, error("down")), OK)
    http = importlib.import_module(FAMILY)
    cls = http.AsyncClient if bench.is_async else http.Client
    host = Host(policy({"a": "http://a.example/v1", "b": "http://b.example/v1"}))
    made = Caller(bench.kind, "http://a.example/v1", host)
    through = cls(proxy=f"http://user:pass@127.0.0.1:{proxy.port}", trust_env=False)
    plain = made.plain.with_options(http_client=through)
    made.client = plain if bench.is_plain else wrap(plain, router=host)
    bench.stack.callback(made.close)
    seen = bench.call(made.chat)
    asked = [hit.line.split(" ")[1] for hit in proxy.hits]
    bench.observed(f"{seen.words}; the proxy carries {len(asked)} of {len(asked)} requests")
    assert asked == ["http://a.example/v1/chat/completions", "http://b.example/v1/chat/completions"]
    assert all("proxy-authorization" in hit.headers for hit in proxy.hits)
    assert "authorization" not in proxy.hits[1].headers


# --------------------------------------------------------------------------- base URLs

TRICKS = {
    "user information": "https://api.example.com@thief.example/v1",
    "letters that look alike": "https://аpi.example.com/v1",  # a Cyrillic a
    "full-width dots": "https://thief。example/v1",
    "a host that ends alike": "https://api.example.com.thief.example/v1",
    "a zone": "https://[fe80::1%25eth0]/v1",
    "a short address": "https://127.1/v1",
    "a hexadecimal address": "https://0x7f000001/v1",
    "a mapped address": "https://[::ffff:10.0.0.1]/v1",
    "a backslash": "https://api.example.com\\@thief.example/v1",
    "a line break": "https://api.example.com\r\nx-evil: 1/v1",
    "a query": "https://api.example.com/v1?to=thief.example",
    "a fragment": "https://api.example.com/v1#thief.example",
    "plain http": "http://api.example.com/v1",
}


def document(url: str, **endpoint: Any) -> bytes:
    return json.dumps(
        {
            "schema_version": "1.0",
            "version": 2,
            "endpoints": {"a": {"base_url": url, **endpoint}},
            "routes": [{"weights": {"a": 1}}],
        }
    ).encode()


def accepted(content: bytes) -> bool:
    try:
        compile_document(
            content,
            source="https://config.example/policy.json",
            allowed_hosts=["api.example.com"],
            credentials={},
            zone=None,
            wall_now=0.0,
            current=None,
        )
    except headway.PolicyError:
        return False
    return True


def trick(number: int, what: str, url: str) -> None:
    @fault(f"S6-{number:02}", f"a fetched policy whose base URL has {what}", colours=("sync",))
    def refused(bench: Bench) -> None:
        if bench.is_plain:
            bench.observed("no policies")
        was = accepted(document(url))
        bench.observed("accepted" if was else "refused")
        assert not was


for number, (what, url) in enumerate(TRICKS.items()):
    trick(number, what, url)


@fault("S6", "a fetched policy whose base URL is one of the allowed", colours=("sync",))
def allowed(bench: Bench) -> None:
    if bench.is_plain:
        bench.observed("no policies")
    urls = ("https://api.example.com/v1", "https://API.Example.com./v1")
    bench.observed("accepted")
    assert all(accepted(document(url)) for url in urls)


# --------------------------------------------------------------------------- injection

HEADERS = {"X-One": "a\r\nX-Two: b", "X-Three\r\nX-Four": "c", "X-Five": "d\0e", "X Six": "f"}


@fault("S7", "a policy whose headers hold line breaks", colours=("sync",))
def injected(bench: Bench) -> None:
    if bench.is_plain:
        bench.observed("no policies")
    taken = [
        name
        for name, value in HEADERS.items()
        if accepted(document("https://api.example.com/v1", headers={name: value}))
    ]
    bench.observed("refused" if not taken else f"accepted: {taken!r}")
    assert not taken


@fault("S7a", "a key that holds a line break")
def injected_key(bench: Bench) -> None:
    if bench.is_plain:
        bench.observed("not asked")
    a = bench.serve(OK)
    split = Credential(call=lambda: "k\r\nX-Evil: 1", hosts=["http://127.0.0.1"])
    client = bench.client(a, endpoints={"a": {"credential": "k"}}, credentials={"k": split})
    seen = bench.call(client.chat)
    bench.observed(seen.words)
    assert isinstance(seen.error, openai.APIConnectionError)
    assert not any("x-evil" in hit.headers for hit in a.hits)
    assert "X-Evil" not in str(seen.error)


@fault("S7b", "names with line breaks: of the model, the route, the session, the task")
def injected_names(bench: Bench) -> None:
    evil = "m\r\nX-Evil: 1"
    a = bench.serve(OK)
    client = bench.client(a)
    with headway.task(evil) as task, headway.options(session=evil):
        seen = bench.call(client.chat, model=evil)
        carried = task.headers()
    bench.observed(seen.words)
    assert not any("x-evil" in hit.headers for hit in a.hits)
    assert a.hits[0].json["model"] == evil
    assert not any("\n" in value or "\r" in value for value in carried.values())


@fault("S7c", "an answer whose headers hold odd bytes")
def odd_headers(bench: Bench) -> None:
    a = bench.serve(R(200, completion(), {"x-odd": "caf\u00e9 \u00ff"}))
    seen = bench.call(bench.client(a).chat)
    bench.observed()
    assert seen.text == "hello"


# --------------------------------------------------------------------------- what is held


@fault("S8", "an error that unfolds to 80 MB")
def bomb(bench: Bench) -> None:
    packed = gzip.compress(b"0" * 80_000_000, 1)
    a, b = bench.serve(R(500, packed, {"content-encoding": "gzip"})), bench.serve(OK)
    client = bench.client(a, b)
    held: list[int] = []
    if not bench.is_plain:
        from headway.transport import trial

        real = trial.decoded

        def measured(*args: Any, **more: Any) -> bytes | None:
            plain = real(*args, **more)
            held.append(len(plain or b""))
            return plain

        trial.decoded = measured  # type: ignore[assignment]
        bench.stack.callback(lambda: setattr(trial, "decoded", real))
    else:
        bench.observed("unfolds it for its message")
    seen = bench.call(client.chat)
    bench.observed(f"{seen.words}; {max(held) / 1e6:.0f} MB of it are looked at")
    assert (seen.text, bench.hits) == ("hello", (1, 1))
    assert max(held) <= 64 * 1024 * 1024


@fault("S8a", "an error of 40 MB")
def long_error(bench: Bench) -> None:
    a = bench.serve(R(500, b"x" * 40_000_000, ctype="text/plain"))
    client = bench.client(a, options={"max_retries": 0})
    seen = bench.call(client.chat)
    assert isinstance(seen.error, openai.APIStatusError)
    kept = len(seen.error.response.content)
    bench.observed(f"{kept / 1e6:.0f} MB are kept")
    assert kept < 1_200_000


@fault("S8b", "an answer of 40 MB")
@pytest.mark.slow
def long_answer(bench: Bench) -> None:
    a = bench.serve(R(200, completion("x" * 40_000_000)))
    seen = bench.call(bench.client(a).chat)
    bench.observed(f"{len(seen.text) / 1e6:.0f} MB of text")
    assert (len(seen.text), seen.error) == (40_000_000, None)


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
