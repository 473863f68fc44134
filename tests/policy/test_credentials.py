"""Keys never show, and go only where they may."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import HeadwayError, Router
from headway.credentials import (
    Credential,
    CredentialUnavailable,
    credential_named,
    host_allowed,
    is_loopback,
    normalise_host,
)
from headway.hosts import check_patterns, origin_allowed, origin_of, patterns_of, split_url

CANARY = "sk-canary-5f21"
HOSTS = ["api.example.com"]


async def canary_async() -> str:
    return CANARY


def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Credential]:
    monkeypatch.setenv("HEADWAY_TEST_KEY", CANARY)
    path = tmp_path / "key"
    path.write_text(f"{CANARY}\n")
    return {
        "env": Credential(env="HEADWAY_TEST_KEY", hosts=HOSTS),
        "file": Credential(file=path, hosts=HOSTS),
        "value": Credential(value=CANARY, hosts=HOSTS),
        "call": Credential(call=lambda: CANARY, hosts=HOSTS),
        "acall": Credential(acall=canary_async, hosts=HOSTS),
    }


async def test_every_origin_gives_the_secret_and_none_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, credential in credentials(tmp_path, monkeypatch).items():
        assert await credential.aget() == CANARY
        if name != "acall":
            assert credential.get() == CANARY
        assert CANARY not in repr(credential) + str(credential) + format(credential)
        assert "api.example.com" in repr(credential)
        assert not hasattr(credential, "__dict__")
        assert copy.copy(credential) is credential
        assert copy.deepcopy({"x": credential})["x"] is credential


def test_only_those_that_hold_no_secret_are_pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, credential in credentials(tmp_path, monkeypatch).items():
        if name in {"env", "file"}:
            pickled = pickle.dumps(credential)
            assert CANARY.encode() not in pickled
            assert repr(pickle.loads(pickled)) == repr(credential)
        else:
            with pytest.raises(TypeError, match="can't be pickled"):
                pickle.dumps(credential)


def test_a_rotated_secret_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = credentials(tmp_path, monkeypatch)
    assert made["file"].get() == CANARY
    monkeypatch.setenv("HEADWAY_TEST_KEY", "second")
    (tmp_path / "key").write_text("the-second")

    assert made["env"].get() == "second"
    assert made["file"].get() == "the-second"


def broken_call() -> str:
    raise RuntimeError("no token today")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: Credential(env="HEADWAY_TEST_ABSENT", hosts=HOSTS), "ABSENT'.*is not set"),
        (lambda p: Credential(file=p / "absent", hosts=HOSTS), "can't be read: FileNotFoundError"),
        (lambda p: Credential(file=p, hosts=HOSTS), "expected a file"),
        (lambda p: Credential(call=broken_call, hosts=HOSTS), "the callable raised RuntimeError"),
        (lambda p: Credential(call=lambda: "", hosts=HOSTS), "is empty"),
        (lambda p: Credential(call=lambda: f"{CANARY}\n", hosts=HOSTS), "can't carry"),
        (lambda p: Credential(call=lambda: f"{CANARY}é", hosts=HOSTS), "can't carry"),
        (lambda p: Credential(acall=canary_async, hosts=HOSTS), "give call= beside it"),
    ],
)
def test_what_cannot_be_had_says_why(
    make: Callable[[Path], Credential], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CredentialUnavailable, match=words) as caught:
        make(tmp_path).get()

    # Tools that print local variables of a traceback must not find it either.
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = [f for f in shown.stack if f.filename.endswith("credentials.py")]
    assert CANARY not in str([f.locals for f in frames])


@pytest.mark.parametrize("how", ["call", "acall"])
async def test_a_callables_secret_is_kept_for_as_long_as_it_says(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, made, fails = 1000.0, 0, False
    monkeypatch.setattr("headway.credentials.time.monotonic", lambda: now)

    def call() -> str:
        nonlocal made
        made += 1
        if fails:
            raise OSError("the token service is down")
        return f"canary-{made}"

    async def acall() -> str:
        return call()

    given: Any = {"call": call, "acall": acall}[how]
    credential = Credential(**{how: given}, hosts=["a.example"], ttl_s=60.0)

    async def get() -> str:
        return await credential.aget() if how == "acall" else credential.get()

    assert [await get() for _ in range(3)] == ["canary-1"] * 3
    now += 60.0
    assert [await get() for _ in range(2)] == ["canary-2"] * 2
    now, fails = now + 60.0, True
    assert await get() == "canary-2"  # better than none, for as long again
    now += 60.0
    with pytest.raises(CredentialUnavailable, match="OSError"):
        await get()
    fails = False
    assert (await get()).startswith("canary-")


async def test_one_asks_again_while_the_others_go_on() -> None:
    import asyncio

    asked = 0
    go = asyncio.Event()

    async def acall() -> str:
        nonlocal asked
        asked += 1
        if asked > 1:
            await go.wait()
        return f"canary-{asked}"

    credential = Credential(acall=acall, hosts=["a.example"], ttl_s=3600.0)
    assert await credential.aget() == "canary-1"
    assert credential._kept is not None
    credential._kept = credential._kept[0], credential._kept[1] - 3601.0
    first = asyncio.create_task(credential.aget())
    await asyncio.sleep(0)
    assert [await credential.aget() for _ in range(5)] == ["canary-1"] * 5
    go.set()
    assert await first == "canary-2"
    assert asked == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hosts": HOSTS}, "got none"),
        ({"env": "A", "value": CANARY, "hosts": HOSTS}, "got env and value"),
        ({"env": "A", "acall": canary_async, "hosts": HOSTS}, "got env and call"),
        ({"env": "A", "hosts": []}, "at least one host"),
        ({"env": "A", "hosts": ["a.example/v1"]}, "paths don't belong"),
        ({"env": "A", "hosts": ["*.com"]}, "two labels"),
        ({"env": "A", "hosts": ["*"]}, "host pattern"),
        ({"env": "A", "hosts": ["a.*.example"]}, "host pattern"),
        ({"env": "A", "hosts": ["ftp://a.example"]}, "https:// or http://"),
        ({"env": "A", "hosts": ["a.example:0"]}, "port"),
        ({"env": "A", "hosts": HOSTS, "header": "x y"}, "header name"),
        ({"value": f"{CANARY}\n", "hosts": HOSTS}, "can't carry"),
        ({"value": "", "hosts": HOSTS}, "is empty"),
        ({"env": "A", "hosts": HOSTS, "ttl_s": 5.0}, "ttl_s"),
        ({"call": str, "hosts": HOSTS, "ttl_s": 0.0}, "ttl_s"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_stands(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Credential(**arguments)

    assert CANARY not in str(caught.value)


def test_one_host_instead_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match="a list of host patterns"):
        Credential(env="A", hosts="a.example")


def test_a_bare_key_instead_of_a_credential_is_refused_and_not_repeated() -> None:
    document = {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {"a": {"base_url": "https://api.example.com/v1", "credential": "ours"}},
        "routes": [{"weights": {"a": 1}}],
    }
    bare: Any = {"ours": CANARY}

    with pytest.raises(HeadwayError, match=r"credentials\['ours'\] must be .* got str") as caught:
        Router(document, credentials=bare)

    assert CANARY not in str(caught.value)


def test_the_header_is_the_dialects_unless_declared() -> None:
    plain = Credential(env="A", hosts=HOSTS)
    entra = Credential(env="A", hosts=HOSTS, header="Authorization")
    own = Credential(env="A", hosts=HOSTS, header="X-Goog-Api-Key")

    assert plain.header_for("k") == ("Authorization", "Bearer k")
    assert plain.header_for("k", dialect="azure") == ("api-key", "k")
    assert entra.header_for("k", dialect="azure") == ("Authorization", "Bearer k")
    assert own.header_for("k") == ("X-Goog-Api-Key", "k")


def test_a_credential_allows_https_to_its_hosts_only() -> None:
    credential = Credential(env="A", hosts=["*.azure.example", "b.example:8443", "localhost"])

    assert credential.allows("https://east.azure.example/v1")
    assert credential.allows("https://a.b.azure.example")
    assert credential.allows("https://b.example:8443/v1")
    assert credential.allows("http://localhost:8000/v1")
    for url in (
        "http://east.azure.example/v1",
        "https://azure.example",
        "https://xazure.example",
        "https://azure.example.evil",
        "https://b.example/v1",
        "https://u@b.example:8443",
        "nonsense",
    ):
        assert not credential.allows(url)


def test_names_are_resolved_for_compiled_endpoints() -> None:
    declared = {"x": Credential(env="A", hosts=HOSTS)}

    assert credential_named("x", "https://b.example/v1", declared) is declared["x"]
    assert credential_named("y", "https://b.example/v1", declared) is None
    found = credential_named("env:KEY", "https://b.example:8443/v1", declared)
    assert found is not None
    assert found.env == "KEY"
    assert found.allows("https://b.example:8443/v2")
    assert not found.allows("https://b.example/v2")
    assert credential_named("env:KEY", "https://b.example:8443/v1", {}) is found
    local = credential_named("env:KEY", "http://10.0.0.1/v1", {})
    assert local is not None
    assert local.allows("http://10.0.0.1/v1")


# ----------------------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    ("host", "normal"),
    [
        ("API.Example.COM", "api.example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("faß.example", "xn--fa-hia.example"),
        ("my_host", "my_host"),
        ("127.0.0.1", "127.0.0.1"),
        ("[2001:DB8:0::1]", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_a_host_has_one_spelling(host: str, normal: str) -> None:
    assert normalise_host(host) == normal
    assert normalise_host(normal) == normal


@pytest.mark.parametrize(
    "host",
    [
        "", ".", "a..b", "a b", "-a.example", "a.example-", "a/b", "a@b", "127.1", "0x7f.0.0.1",
        "2130706433", "127.0.0.01", "1.2.3.4.5", "256.0.0.1", "fe80::1%eth0", "[::1", "a" * 254,
        "a%2eexample", "*", "a\x00b", "\ud800",
    ],
)  # fmt: skip
def test_what_could_be_read_in_two_ways_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        normalise_host(host)
    assert not host_allowed(host, ["*.example.com"])
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.9.9.9", "::1", "::ffff:127.0.0.1"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "0.0.0.0", "::", "notlocalhost"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_patterns() -> None:
    assert host_allowed("a.example.com", ["*.example.com"])
    assert host_allowed("A.Example.com.", ["A.EXAMPLE.COM"])
    assert host_allowed("10.1.2.3", ["10.1.0.0/16"])
    assert host_allowed("2001:db8::7", ["2001:db8::/32"])
    assert host_allowed("2001:db8::7", ["[2001:DB8::7]:443"])
    assert not host_allowed("a.example.com", ["10.1.0.0/16", "*.a.example.com", "example.com"])
    assert not host_allowed("a.example.com", [])


def test_origins_are_matched_by_scheme_and_port() -> None:
    def allowed(url: str, *patterns: str) -> bool:
        return origin_allowed(origin_of(url), check_patterns(patterns))

    assert allowed("https://a.example", "a.example")
    assert allowed("https://a.example:8443", "a.example")
    assert allowed("https://a.example:8443", "a.example:8443")
    assert allowed("https://a.example", "http://a.example")  # safer than what was allowed
    assert allowed("http://localhost:1", "localhost")
    assert not allowed("https://a.example:8443", "a.example:443")
    assert not allowed("http://a.example", "a.example")
    assert not allowed("http://a.example:81", "http://a.example:80")


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example\\@b.example", "https://a.example\t", " https://a.example", "https://",
        "https://a.example:99999", "https://a.example:0", "https://a.example:x", "https:/a.example",
        "//a.example", "https://a.example#f", "https://a.example/?q=1", "https://u:p@a.example",
        "https://[::1", "javascript:alert(1)", "https://a.example/\nx",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        split_url(url)


def test_a_url_gives_the_pattern_that_covers_it_and_nothing_else() -> None:
    for url in ("https://A.example/v1/", "http://10.0.0.1:8000/v1?x=1", "http://[::1]:8000"):
        patterns = patterns_of(url)
        assert origin_allowed(origin_of(url), check_patterns(patterns))
    assert patterns_of("https://A.example/v1/") == ("https://a.example",)
    assert patterns_of("nonsense") == ()


@given(st.text(max_size=40))
def test_any_text_is_an_url_or_a_value_error(text: str) -> None:
    for url in (text, f"https://{text}", f"https://a.example{text}"):
        try:
            origin, _ = split_url(url)
        except ValueError:
            continue
        assert normalise_host(origin.host) == origin.host
        assert split_url(str(origin))[0] == origin
