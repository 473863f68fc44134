"""What is forgiven in a document, and what it may name."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headway.credentials import Credential
from headway.errors import ValidationError
from tests.policy.samples import Document, compiled, document, put, shares, weights

# ----------------------------------------------------------------------------- forgiveness


def test_a_newer_minor_may_have_fields_we_dont_know_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def change(d: Document) -> None:
        d["schema_version"] = "1.9"
        d["novel"] = {"x": 1}
        d["routes"][0]["hegde"] = {}
        d["endpoints"]["b"]["colour"] = "blue"

    snapshot = compiled(document(change))

    assert snapshot.version == 7
    assert set(snapshot.endpoints) == {"a", "b", "c"}
    [warning] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warning.endswith("are ignored: endpoints.b.colour, routes[0].hegde, novel")


def test_a_newer_minor_is_not_forgiven_wrong_values() -> None:
    with pytest.raises(ValidationError, match=r"routes\[0\]\.weights\.a"):
        compiled(document(put("routes.0.weights.a", "x"), schema_version="1.1", novel=1))


BROKEN: dict[str, Any] = {
    "value": {"base_url": "https://b.example", "state": "resting"},
    "host": {"base_url": "http://b.example"},
    "profile": {"base_url": "https://b.example", "profile": "h200"},
    "credential": {"base_url": "https://b.example", "credential": "mine"},
    "missing": {},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_endpoint_of_a_third_or_less_is_left_out(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    def change(d: Document) -> None:
        d["endpoints"]["b"] = BROKEN[fault]
        d["routes"].append({"weights": {"eu": {"a": 2, "b": 1}}})
        d["routes"][0]["fallback"].append({"endpoint": "b"})

    snapshot = compiled(document(change))

    assert set(snapshot.endpoints) == {"a", "c"}
    assert shares(weights(snapshot)) == {"a": 1.0}
    assert [f.endpoint for f in snapshot.routes[0].fallback] == ["c"]
    assert "endpoint left out: endpoints.b" in caplog.text


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_endpoint_of_more_than_a_third_takes_the_document_with_it(fault: str) -> None:
    def change(d: Document) -> None:
        d["endpoints"]["b"] = BROKEN[fault]
        d["routes"].append({"weights": {"eu": {"a": 1.9, "b": 1}, "*": {"a": 1}}})

    with pytest.raises(ValidationError) as caught:
        compiled(document(change))

    assert (caught.value.path or "").startswith("endpoints.b")
    assert "34% of routes[1]'s weight" in str(caught.value)


def test_losing_every_endpoint_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"endpoints\.a"):
        compiled(
            {
                "schema_version": "1.0",
                "version": 1,
                "endpoints": {"a": {"base_url": "http://a.example"}},
                "routes": [{"weights": {"a": 1}}],
            }
        )


def test_a_derived_route_counts_what_it_loses_too() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["b"] = BROKEN["value"]
        d["routes"] = [{"endpoints": ["a", "b"]}]

    with pytest.raises(ValidationError, match=r"50% of routes\[0\]"):
        compiled(document(change))


# ----------------------------------------------------------------------------- trust


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"fetched": False}, "abc"),
        ({"fetched": True, "allowed_hosts": ["*.example.com", "a.example", "b.example"]}, "ab"),
        ({"fetched": True, "allowed_hosts": ["a.example", "b.example", "c.example:444"]}, "ab"),
        ({"fetched": True, "allowed_hosts": ["a.example", "b.example", "C.Example."]}, "abc"),
    ],
)
def test_a_fetched_document_may_name_only_allowed_hosts(options: Any, kept: str) -> None:
    assert "".join(compiled(document(), **options).endpoints) == kept


def test_without_allowed_hosts_a_fetched_document_may_go_where_credentials_may() -> None:
    credentials = {
        "b-key": Credential(value="x", hosts=["b.example"]),
        "other": Credential(value="x", hosts=["a.example"]),
    }

    assert set(compiled(document(), fetched=True, credentials=credentials).endpoints) == {"a", "b"}
    with pytest.raises(ValidationError, match=r"endpoints\.a\.base_url.*allowed: b\.example"):
        compiled(document(), fetched=True)


def test_a_credential_goes_only_to_its_hosts() -> None:
    change = put("endpoints.a", {"base_url": "https://evil.example/v1", "credential": "b-key"})

    with pytest.raises(ValidationError) as caught:
        compiled(document(change))

    assert caught.value.path == "endpoints.a.credential"
    assert "https://evil.example" in str(caught.value)


def test_a_local_document_may_name_an_environment_variable_a_fetched_one_may_not() -> None:
    change = put("endpoints.a.credential", "env:A_KEY")

    assert compiled(document(change)).endpoints["a"].credential == "env:A_KEY"
    for fetched in ({"fetched": True, "allowed_hosts": ["*.b.example", "a.example", "b.example"]},):
        with pytest.raises(ValidationError, match=r"endpoints\.a\.credential: refused.*env:"):
            compiled(document(change), **fetched)
        with pytest.raises(ValidationError, match=r"endpoints\.a\.credential"):
            compiled(document(change), **fetched, credentials=None)
    with pytest.raises(ValidationError, match="name of an environment variable"):
        compiled(document(put("endpoints.a.credential", "env:A KEY")))


@pytest.mark.parametrize(
    "url", ["http://localhost:8000/v1", "http://127.0.0.2/v1", "http://[::1]:1/v1", "http://x.localhost"]
)  # fmt: skip
def test_plain_http_is_for_loopback(url: str) -> None:
    assert compiled(document(put("endpoints.a.base_url", url))).version == 7


@pytest.mark.parametrize("fetched", [True, False])
def test_plain_http_elsewhere_needs_a_word_in_code(fetched: bool) -> None:
    made = document(put("endpoints.a.base_url", "http://10.1.0.5:8000/v1"))
    rest = ["b.example", "c.example"]

    for pattern in ("http://10.1.0.5", "http://10.1.0.5:8000", "http://10.1.0.0/16"):
        assert compiled(made, fetched=fetched, allowed_hosts=[pattern, *rest]).version == 7
    for pattern in ("10.1.0.5", "https://10.1.0.5", "http://10.1.0.5:80", "http://10.2.0.0/16"):
        with pytest.raises(ValidationError, match=r"endpoints\.a\.base_url"):
            compiled(made, fetched=fetched, allowed_hosts=[pattern, *rest])


def test_without_credentials_given_names_are_not_looked_up() -> None:
    assert compiled(document(), credentials=None).endpoints["b"].credential == "b-key"
