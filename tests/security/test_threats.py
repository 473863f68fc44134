"""The threat model of SECURITY.md, one test per row. `tests/house/test_threats.py` holds the two
together."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.core import affinity as affinities
from headway.core.engine import Engine
from headway.core.model import CallFacts, FailureClass, Outcome, Send
from headway.errors import FetchError, VerifyError
from headway.hosts import origin_allowed, origin_of
from headway.policy.cache import DiskCache
from headway.policy.http_source import HttpSource
from headway.policy.models import Policy
from headway.policy.signing import PublicKeys, keygen, sign, signature_file
from headway.policy.sources import StaticSource
from headway.testing import ScriptedEndpoints
from headway.testing.replies import Reply
from tests.policy.bench import Bench, Remote
from tests.policy.samples import CREDENTIALS, document, encoded, put
from tests.policy.servers import PolicyServer, policy_server

OPS, SECOND = keygen("ops"), keygen("second")
OK = Outcome(FailureClass.OK, status=200, input_tokens=10, output_tokens=10)


class Signed(Remote):
    signatures: bytes | None = None

    def publish(self, *pairs: Any, **top: object) -> None:
        self.content = encoded(document(**top))
        self.signatures = signature_file(
            sign(self.content, pair.private, key_id=pair.key_id) for pair in pairs
        )

    def read_signatures(self) -> list[bytes] | None:
        return None if self.signatures is None else [self.signatures]


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as running:
        running.content = encoded(document())
        yield running


def attacked(change: Any) -> Bench:
    """A running supply whose server now serves a sound document, changed by a thief."""
    remote = Remote()
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = encoded(document(change, version=8))
    bench.later(30)
    return bench


# ----------------------------------------------------------------------------- the policy's host


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1",
        "https://a.example.evil.example/v1",
        "https://a.example@evil.example/v1",
        "https://a.example:8443@evil.example",
        "http://a.example/v1",
        "http://169.254.169.254/latest/meta-data",
        "https://[fd00:ec2::254]/latest",
        "https://metadata.google.internal/",
        "http://localhost:6379/",
        "file:///etc/passwd",
        "https://a.example\\@evil.example/",
        "https://аexample/",
    ],
)
def test_a_stolen_policy_host_cannot_name_a_host_that_code_does_not_allow(url: str) -> None:
    bench = attacked(put("endpoints.a.base_url", url))

    assert bench.version == 7
    assert bench.reasons() == ["invalid"]


@pytest.mark.parametrize(
    ("endpoint", "credential"),
    [("a", "b-key"), ("c", "b-key"), ("a", "env:HOME"), ("a", "env:b-key"), ("a", "absent")],
)
def test_a_stolen_policy_host_cannot_send_a_key_elsewhere(endpoint: str, credential: str) -> None:
    """A declared key to another allowed host, a variable of the environment, a name nobody knows."""

    def change(made: dict[str, Any]) -> None:
        made["endpoints"][endpoint]["credential"] = credential
        made["routes"][0] = {"weights": {endpoint: 1}}

    bench = attacked(change)

    assert bench.version == 7
    assert "canary" not in str(bench.supply.status())


def test_the_clients_own_key_stays_with_its_own_host() -> None:
    """An endpoint without a credential, at another host that code allows: it is sent no key."""
    fleet = ScriptedEndpoints({"own": 503, "other": "hi"}, model="m")
    for endpoint in fleet.document["endpoints"].values():  # type: ignore[attr-defined]
        del endpoint["credential"]
    client = fleet.wrap(fleet.client(api_key="canary-own"))
    for _ in range(40):  # each is drawn in its turn, by chance
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])

    sent = {s.endpoint: s.headers for s in fleet.requests}
    assert sent["own"]["authorization"] == "Bearer canary-own"
    assert "authorization" not in sent["other"]


@pytest.mark.parametrize("header", ["Authorization", "api-key", "Cookie", "Host", "X-Api-Key"])
def test_a_stolen_policy_host_cannot_write_headers_that_carry_keys(header: str) -> None:
    bench = attacked(put("endpoints.a.headers", {header: "x"}))

    assert bench.version == 7


def test_a_stolen_policy_host_cannot_bring_an_old_version_back(tmp_path: Path) -> None:
    remote = Remote()
    for version in (7, 8):
        remote.content = encoded(document(version=version))
        bench = Bench(remote, cache_dir=tmp_path)
        bench.supply.initial()
        bench.later(30)
    remote.content = encoded(document(version=7))
    restarted = Bench(remote, cache_dir=tmp_path)
    restarted.supply.initial()

    assert not restarted.later(30)
    assert restarted.version == 8


def test_a_stolen_policy_host_cannot_lead_its_readers_elsewhere(server: PolicyServer) -> None:
    """Redirects with the fetching key in hand, to a host that code doesn't allow."""
    server.answer = lambda h: (302, {"Location": "https://evil.example/p.json"}, b"")
    key = headway.Credential(value="canary-fetch", hosts=["127.0.0.1"])

    with pytest.raises(FetchError, match=r"redirected to https://evil\.example") as caught:
        HttpSource(server.url, credential=key).fetch()
    assert "canary" not in str(caught.value)
    assert [r["authorization"] for r in server.requests] == ["Bearer canary-fetch"]


def test_a_stolen_policy_host_cannot_fill_the_memory(server: PolicyServer) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n")
            while True:
                handler.wfile.write(b"[" * 65536)
        except OSError:
            pass

    server.answer = endless
    tracemalloc.start()
    try:
        with pytest.raises(FetchError, match="too large"):
            HttpSource(server.url).fetch()
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_stolen_policy_host_without_the_key_can_change_nothing() -> None:
    remote = Signed()
    remote.publish(OPS, expires_at="2027-01-01T00:00:00Z")
    bench = Bench(remote, public_keys={"ops": OPS.public}, allow_unsigned=False)
    bench.supply.initial()
    good = remote.content
    rng = random.Random(3)
    assert isinstance(good, bytes)
    for _ in range(30):  # any one byte
        changed = bytearray(good)
        changed[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        remote.content = bytes(changed)
        assert not bench.later(30)
    remote.signatures = None
    remote.content = encoded(document(version=8))
    assert not bench.later(30)
    assert bench.version == 7


def test_an_unsigned_policy_from_elsewhere_is_never_taken_by_accident() -> None:
    for argument in ("https://config.example/p.json", "memory://bucket/p.json"):
        with pytest.raises(VerifyError, match="allow_unsigned=True"):
            headway.Router(argument)


# ----------------------------------------------------------------------------- signing keys


def test_a_stolen_signing_key_is_bounded_by_what_code_allows() -> None:
    remote = Signed()
    remote.publish(OPS)
    bench = Bench(remote, public_keys={"ops": OPS.public})
    bench.supply.initial()
    elsewhere = {"a": {"base_url": "https://evil.example"}}
    remote.publish(OPS, version=8, endpoints=elsewhere, routes=[{"weights": {"a": 1}}])
    assert not bench.later(30)
    remote.publish(OPS, version=8, policy_id="another")
    assert not bench.later(30)

    assert (bench.version, bench.reasons()) == (7, ["invalid", "other_policy"])


def test_one_stolen_key_of_several_signs_nothing() -> None:
    remote = Signed()
    remote.publish(OPS, SECOND)
    keys = PublicKeys({"ops": OPS.public, "second": SECOND.public}, threshold=2)
    bench = Bench(remote, public_keys=keys)
    bench.supply.initial()
    remote.publish(OPS, version=8)

    assert not bench.later(30)
    assert bench.reasons() == ["signature"]


def test_a_stolen_key_is_undone_by_taking_it_out_of_the_code(tmp_path: Path) -> None:
    remote = Signed()
    remote.publish(OPS, epoch=2**53 - 1, version=2**53 - 1)  # as high as it goes
    Bench(remote, public_keys={"ops": OPS.public}, cache_dir=tmp_path).supply.initial()
    remote.publish(SECOND, version=9)

    found = Bench(remote, public_keys={"second": SECOND.public}, cache_dir=tmp_path)
    assert found.supply.initial().version == 9


def test_whoever_writes_to_the_cache_cannot_sign_what_is_there(tmp_path: Path) -> None:
    remote = Signed()
    remote.publish(OPS)
    keys = {"ops": OPS.public}
    Bench(remote, public_keys=keys, cache_dir=tmp_path).supply.initial()
    kept = DiskCache(tmp_path).load("remote")
    assert kept is not None
    forged = encoded(document(version=99))
    assert DiskCache(tmp_path).store(
        "remote",
        forged,
        format="json",
        etag=None,
        mark=(0, 99),
        label="remote",
        signatures=kept.signatures,
        policy_id="prod-eu",
    )

    found = Bench(remote, public_keys=keys, cache_dir=tmp_path)
    assert found.supply.initial().version == 7


# ----------------------------------------------------------------------------- endpoints


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_malicious_endpoint_cannot_have_the_prompt_and_key_sent_on(status: int) -> None:
    redirect = Reply(status=status, headers={"location": "https://evil.headway.test/v1/x"})
    fleet = ScriptedEndpoints({"own": redirect, "evil": "hi"}, model="m")
    fleet.document["routes"][0]["weights"] = {"own": 1, "evil": 0}  # type: ignore[index]
    client = fleet.wrap(fleet.client(api_key="canary-own"))

    with pytest.raises(Exception, match="redirect") as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "secret"}])
    assert "canary" not in str(caught.value)
    assert [s.endpoint for s in fleet.requests if s.endpoint == "evil"] == []


def test_a_malicious_endpoint_cannot_stop_the_others_or_itself_for_ever() -> None:
    """`Retry-After: 1e9`, and every failure there is: bounded, and of that endpoint alone."""
    lie = Reply(status=429, headers={"retry-after": "1000000000"})
    fleet = ScriptedEndpoints({"bad": lie, "good": "hi"}, model="m")
    client = fleet.wrap()
    for _ in range(20):
        reply = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}]
        )
        assert reply.choices[0].message.content == "hi"
    rows = {row.endpoint_id: row for row in fleet.router.status().endpoints}
    assert max(left for *_, left in rows["bad"].out) <= 1.25 * 86_400
    assert rows["good"].out == ()


# ----------------------------------------------------------------------------- tenants


def test_a_malicious_tenant_cannot_fill_the_memory_with_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of sessions, models and prompts of its own: every map is bounded (here by less)."""
    assert (affinities.SESSIONS_MAX, affinities.PREFIXES_MAX) <= (8_192, 65_536)
    monkeypatch.setattr(affinities, "SESSIONS_MAX", 500)
    monkeypatch.setattr(affinities, "PREFIXES_MAX", 500)
    policy = Policy.load(
        {
            "schema_version": "1.0",
            "version": 1,
            "endpoints": {
                "a": {"base_url": "https://a.example"},
                "b": {"base_url": "https://b.example"},
            },
            "routes": [{"weights": {"a": 1, "b": 1}}],
        }
    ).compile()
    engine = Engine(policy, rng=random.Random(1))

    def calls(first: int, last: int) -> None:
        for i in range(first, last):
            facts = CallFacts(model=f"m{i}", session=f"s{i}", prefix=(i, i + 1), prompt_tokens=1000)
            call = engine.begin(facts, i * 0.01)
            assert call is not None
            action = call.next_action(i * 0.01)
            assert isinstance(action, Send)
            call.on_outcome(action.attempt, OK, i * 0.01 + 0.005)

    calls(0, 600)  # every map is full by now
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        calls(1_000, 4_000)
        # What is new takes the place of what was there, which the tracer has not seen come.
        assert tracemalloc.get_traced_memory()[0] - before < 1024 * 1024
    finally:
        tracemalloc.stop()
    affinity = engine.world.affinity
    assert (len(affinity._sessions), len(affinity._prefixes)) == (500, 500)
    assert all(len(state.breakers) <= 256 for state in engine.world.states.values())


def test_a_malicious_tenant_cannot_choose_where_its_call_goes() -> None:
    """Model names that look like endpoints, URLs and routes choose by the policy's routes alone."""
    fleet = ScriptedEndpoints({"own": "hi", "inner": "hi"}, model="m")
    fleet.document["routes"] = [{"match": {"model": "m"}, "weights": {"own": 1}}]
    client = fleet.wrap()
    for model in (
        "inner",
        "https://inner.headway.test/v1",
        "../inner",
        "inner\r\nHost: x",
        "m#inner",
    ):
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "x"}], user="inner"
        )

    assert {s.endpoint for s in fleet.requests} == {"own"}


def test_a_malicious_tenant_cannot_spend_beyond_its_tasks_caps() -> None:
    fleet = ScriptedEndpoints({"own": "hi"}, model="m")
    client = fleet.wrap()
    with headway.task("tenant-7", max_calls=3):
        for _ in range(3):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(headway.TaskLimitExceeded):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    with headway.task("tenant-8"):  # and it is nobody else's cap
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])

    assert len(fleet.requests) == 4


def test_a_malicious_tenant_cannot_spend_beyond_its_budget() -> None:
    fleet = ScriptedEndpoints({"own": "hi"}, model="m")
    for endpoint in fleet.document["endpoints"].values():
        endpoint["price"] = {"per_request": "0.01"}
    fleet.document["tenants"] = {"*": {"max_cost": "0.03"}}
    client = fleet.wrap()

    def say(tenant: str, **more: Any) -> None:
        with headway.options(tenant=tenant):
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], **more
            )

    for _ in range(3):
        say("seven")
    for more in ({}, {"user": "eight"}, {"extra_headers": {"x-tenant": "eight"}}):
        with pytest.raises(headway.TaskLimitExceeded, match="'seven'"):
            say("seven", **more)
    say("eight")

    assert len(fleet.requests) == 4


# ----------------------------------------------------------------------------- what code declares


def test_patterns_mean_what_they_say() -> None:
    """The list in code is the last word, so no spelling may stretch it."""
    allowed = ("*.openai.azure.com", "api.example.com:8443", "10.1.0.0/16")
    for url in (
        "https://openai.azure.com",
        "https://evil-openai.azure.com.evil.example",
        "https://api.example.com",
        "http://api.example.com:8443",
        "http://10.1.2.3",
        "https://10.2.0.1",
    ):
        assert not origin_allowed(origin_of(url), allowed), url
    for url in ("https://x.y.openai.azure.com", "https://api.example.com:8443", "https://10.1.9.9"):
        assert origin_allowed(origin_of(url), allowed), url


def test_a_local_document_is_the_applications_own_word() -> None:
    """What the application itself names may use any https host and `env:` names."""
    made = document(put("endpoints.a", {"base_url": "https://any.example", "credential": "env:X"}))
    supply = Bench(StaticSource(made), allowed_hosts=None, credentials=CREDENTIALS).supply

    assert supply.initial().endpoints["a"].credential == "env:X"
    plain = document(put("endpoints.a.base_url", "http://any.example"))
    with pytest.raises(headway.ValidationError, match="https"):
        Bench(StaticSource(plain), allowed_hosts=None).supply.initial()
