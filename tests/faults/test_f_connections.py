"""Below HTTP: stale, reset, refused and unresolved connections, certificates, redirects, pools."""

from __future__ import annotations

import functools
import gc
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile

import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headway.core.snapshot import RetryPolicy
from tests.faults.bench import Bench, Fault, counted, fault, play, plays_of
from tests.faults.streams import HELLO, script
from tests.servers import OK, RAW, Close, R, Rst, whole

SECTION = "F. Connections"
LONG_S = 5.0
ONCE = RetryPolicy(attempts_max=1, budget_start=0, budget_capacity=0)


def is_healthy(bench: Bench) -> bool:
    """Nothing was held against the first endpoint."""
    status = bench.host.engine.status(bench.host.clock())[0]
    return status.badness == 0 and all(b.state == "closed" for b in status.breakers)


@fault("C55", "a kept connection that the server has closed meanwhile")
def closed_meanwhile(bench: Bench) -> None:
    a = bench.serve(RAW(whole(OK)))  # keep-alive, and closed all the same
    client = bench.client(a, retry=ONCE, options={"max_retries": 0})
    for _ in range(3):
        bench.call(client.chat)
    bench.observed()
    assert [seen.text for seen in bench.calls] == ["hello"] * 3
    assert set(bench.kinds()) <= {"ok", "connect"}
    assert is_healthy(bench)


class OncePerConnection:
    """Answers the first request of each connection, and closes on the second."""

    def __init__(self, end: Close | Rst) -> None:
        self._end = end
        self._known: set[int] = set()

    def __call__(self, seen: object) -> R | Close | Rst:
        number: int = seen.connection  # type: ignore[attr-defined]
        if number in self._known:
            return self._end
        self._known.add(number)
        return OK


def stale(name: str, title: str, end: Close | Rst) -> None:
    @fault(name, title)
    def repeated(bench: Bench) -> None:
        a, b = bench.serve(OncePerConnection(end)), bench.serve(OK)
        client = bench.client(a, b, retry=ONCE, options={"max_retries": 0})
        for _ in range(3):
            bench.call(client.chat)
        bench.observed()
        assert [seen.text for seen in bench.calls] == ["hello"] * 3
        assert bench.hits == (5, 0)
        assert is_healthy(bench)


stale("C55a", "a kept connection that closes on the second request", Close())
stale("C55b", "a kept connection that is reset on the second request", Rst())


def elsewhere(name: str, title: str, step: Close | Rst | RAW) -> None:
    @fault(name, title)
    def moved(bench: Bench) -> None:
        a, b = bench.serve(step), bench.serve(OK)
        seen = bench.call(bench.client(a, b).chat)
        bench.observed()
        assert (seen.text, bench.hits) == ("hello", (1, 1))
        assert seen.took_s < 10


elsewhere("C56", "a reset instead of a reply", Rst())
elsewhere("C56a", "a close instead of a reply", Close())
elsewhere("C56b", "something that is no HTTP", RAW(b"SSH-2.0-OpenSSH_9.6\r\n"))
elsewhere("C56c", "half a head", RAW(b"HTTP/1.1 200 OK\r\ncontent-ty"))
elsewhere(
    "C56d",
    "a body longer than announced",
    RAW(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n{"id": 1}'),
)


@fault("C56e", "a reset instead of a reply, once, and no other endpoint")
def reset_once(bench: Bench) -> None:
    a = bench.serve(Rst(), OK)
    seen = bench.call(bench.client(a).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (2,))


# --------------------------------------------------------------------------- never connected


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that completes no handshake: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(address)
        try:
            yield f"http://127.0.0.1:{address[1]}/v1"
        finally:
            for filler in fillers:
                filler.close()


def refused_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/v1"


IMPATIENT = {"timeout": openai.Timeout(5.0, connect=0.15)}


def unreachable(name: str, title: str, url: str, says: str) -> None:
    @fault(name, title)
    def moved(bench: Bench) -> None:
        scope = black_hole() if not url else None
        where = bench.stack.enter_context(scope) if scope else url
        b = bench.serve(OK)
        seen = bench.call(bench.client(where, b, options=IMPATIENT).chat)
        bench.observed(seen.words)
        assert (seen.text, bench.hits) == ("hello", (1,))
        assert bench.kinds() == ["connect", "ok"]

    @fault(f"{name}a", f"{title}, and no other endpoint")
    def alone(bench: Bench) -> None:
        scope = black_hole() if not url else None
        where = bench.stack.enter_context(scope) if scope else url
        seen = bench.call(bench.client(where, options=IMPATIENT).chat)
        text = str(seen.error)
        bench.observed(f"{seen.words}: {text.splitlines()[0][:60]}")
        assert isinstance(seen.error, openai.APIConnectionError)
        assert says.lower() in text.lower()


unreachable("C58", "nobody listens", refused_port(), "refused")
unreachable(
    "C58-dns", "a name that does not resolve", "http://no-such-host.invalid/v1", "ConnectError"
)
unreachable("C58-hole", "packets vanish", "", "ConnectTimeout")


@functools.cache
def self_signed() -> bytes:
    """A key and a certificate that it signed itself, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, pkcs8, plain) + made.public_bytes(pem)


class TlsServer:
    """Speaks TLS with a certificate that nobody trusts; counts handshakes."""

    def __init__(self) -> None:
        self.tries = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with NamedTemporaryFile(suffix=".pem") as file:
            file.write(self_signed())
            file.flush()
            self._context.load_cert_chain(file.name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.tries += 1
            with sock, suppress(OSError, ssl.SSLError):
                sock.settimeout(5)
                self._context.wrap_socket(sock, server_side=True).close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@fault("C59", "a certificate that nobody trusts")
def certificate(bench: Bench) -> None:
    server = TlsServer()
    bench.stack.callback(server.close)
    b = bench.serve(OK)
    client = bench.client(server.url, b)
    for _ in range(1 if bench.is_plain else 3):
        bench.call(client.chat)
    bench.observed(f"{bench.calls[0].words}; {counted(server.tries, 'handshake')}")
    assert {seen.text for seen in bench.calls} == {"hello"}
    assert (server.tries, bench.hits) == (1, (3,))


@fault("C59a", "the same, and no other endpoint")
def certificate_alone(bench: Bench) -> None:
    server = TlsServer()
    bench.stack.callback(server.close)
    seen = bench.call(bench.client(server.url).chat)
    bench.observed(
        f"{seen.words}: {str(seen.error).splitlines()[0][:60]}; {counted(server.tries, 'handshake')}"
    )
    assert isinstance(seen.error, openai.APIConnectionError)
    assert "CERTIFICATE_VERIFY_FAILED" in str(seen.error)
    assert server.tries == 1


# --------------------------------------------------------------------------- redirects


def redirected(name: str, title: str, status: int, *, follows: bool) -> None:
    @fault(name, title)
    def within(bench: Bench) -> None:
        a = bench.serve(R(status, b"", {"location": "/elsewhere/chat/completions"}), OK)
        seen = bench.call(bench.client(a).chat)
        last = a.hits[-1]
        became = "" if last.line.startswith("POST") else ", which had become a GET"
        bench.observed(f"{seen.words}; {bench.requests()}{became}")
        if follows:
            assert (seen.text, bench.hits) == ("hello", (2,))
            assert (last.path, last.body) == ("/elsewhere/chat/completions", a.hits[0].body)
            assert last.headers["authorization"] == a.hits[0].headers["authorization"]
            assert bench.kinds() == ["ok"]
        else:
            assert isinstance(seen.error, openai.APIStatusError)
            assert "base_url" in str(seen.error)
            assert bench.hits == (1,)

    @fault(f"{name}-port", f"{title}, to another port")
    def across(bench: Bench) -> None:
        other = bench.serve(OK)
        a = bench.serve(R(status, b"", {"location": f"{other.url}/chat/completions"}))
        client = bench.client(a, options={"default_headers": {"X-Tenant": "acme"}})
        seen = bench.call(client.chat)
        leaked = [
            n for n in ("authorization", "x-tenant") if other.hits and n in other.hits[0].headers
        ]
        bench.observed(
            f"{seen.words}; {counted(len(other.hits), 'request')} there"
            + (f", with {' and '.join(leaked)}" if leaked else "")
        )
        assert isinstance(seen.error, openai.APIStatusError)
        assert "base_url" in str(seen.error)
        assert not other.hits


for status in (301, 302, 303):
    redirected(f"C61-{status}", f"{status}, which makes a POST a GET", status, follows=False)
for status in (307, 308):
    redirected(f"C61-{status}", f"{status}, which keeps a POST", status, follows=True)


@fault("C61", "307 to another endpoint of the policy")
def listed(bench: Bench) -> None:
    b = bench.serve(OK)
    a = bench.serve(R(307, b"", {"location": f"{b.url}/chat/completions"}))
    seen = bench.call(bench.client(a, b).chat)
    leaked = "authorization" in b.hits[0].headers if b.hits else False
    bench.observed(f"{seen.words}{', the key went along' if leaked else ''}")
    assert seen.text == "hello"
    assert b.hits[0].body == a.hits[0].body
    assert not leaked
    assert [record.attempts[0].attempt.endpoint_id for record in bench.host.records] == ["a"]


@fault("C61c", "307 within its own host, and no policy")
def unlisted(bench: Bench) -> None:
    a = bench.serve(R(307, b"", {"location": "/elsewhere/chat/completions"}), OK)
    seen = bench.call(bench.unwatched(a).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (2,))
    assert a.hits[1].body == a.hits[0].body


@fault("C61a", "redirects that lead back")
def loop(bench: Bench) -> None:
    a = bench.serve(R(307, b"", {"location": "/v1/chat/completions"}))
    seen = bench.call(bench.client(a).chat)
    bench.observed()
    assert isinstance(seen.error, openai.APIStatusError)
    assert len(a.hits) <= 6


@fault("C61b", "a redirect that leads nowhere")
def nowhere(bench: Bench) -> None:
    a, b = bench.serve(R(307, b"", {"location": "ftp://x/"})), bench.serve(OK)
    seen = bench.call(bench.client(a, b).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))


# --------------------------------------------------------------------------- the pool


@fault("C62", "a connection pool used up by streams left open")
def pool(bench: Bench) -> None:
    a, b = bench.serve(script(bench.way, *HELLO[:2], LONG_S, *HELLO[2:])), bench.serve(OK)
    client = bench.client(
        a,
        b,
        options={
            "limits": {"max_connections": 2},
            "timeout": openai.Timeout(5.0, pool=0.15),
        },
    )
    left_open = [client.chat(stream=True) for _ in range(2)]
    seen = bench.call(client.chat)
    text = str(seen.error).splitlines()[0][:70]
    bench.observed(f"{seen.words}: {text}; {bench.requests()}")
    assert isinstance(seen.error, openai.APITimeoutError)
    assert "pool" in str(seen.error).lower()
    assert bench.hits == (2, 0)
    assert "connect" not in bench.kinds()
    balance = bench.host.engine.world.pools["all"].budget.balance(bench.host.clock())
    assert balance == 100
    for stream in left_open:
        client.run(stream.close())
    a.steps[:] = [OK]
    assert bench.call(client.chat).text == "hello"


@fault("C62a", "streams left by break, and forgotten", colours=("sync",))
def forgotten(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO[:2], LONG_S, *HELLO[2:]))
    client = bench.client(
        a,
        options={"limits": {"max_connections": 2}, "timeout": openai.Timeout(5.0, pool=1.0)},
    )
    for _ in range(2):
        client.take(client.chat(stream=True), 1)
    gc.collect()
    a.steps[:] = [OK]
    seen = bench.call(client.chat)
    bench.observed()
    assert seen.text == "hello"


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
