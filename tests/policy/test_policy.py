"""`Policy` in and out, YAML, and the built-in policy."""

from __future__ import annotations

import sys
from pathlib import Path

import pydantic
import pytest
import tenacity

from headway.core.model import FailureClass
from headway.errors import PolicyError, ValidationError
from headway.policy.builtin import pass_through
from headway.policy.fields import FailureName
from headway.policy.models import Policy
from tests.policy.samples import (
    CREDENTIALS,
    Document,
    compiled,
    document,
    encoded,
    shares,
    weights,
)

# ----------------------------------------------------------------------------- Policy


def test_a_policy_goes_out_and_comes_back(tmp_path: Path) -> None:
    policy = Policy.load(document())
    path = tmp_path / "policy.json"
    path.write_bytes(policy.dump())

    assert Policy.load(path) == policy
    assert Policy.load(str(path)) == policy
    assert Policy.load(policy.dump()) == policy
    assert Policy.load(policy.dump().decode()) == policy
    assert Policy.load(policy) == policy
    assert policy.compile() == compiled(document(), source="static")


def test_dumped_money_and_instants_are_the_text_that_was_read() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["a"]["price"] = {"input_per_mtok": "0.10"}
        d["issued_at"] = "2026-11-30T12:00:00+01:00"

    dumped = Policy.load(document(change)).dump()

    assert b'"0.10"' in dumped
    assert b'"2026-11-30T11:00:00Z"' in dumped
    assert b"null" not in dumped


def test_a_policy_made_in_code_is_forgiven_nothing() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["b"] = {"base_url": "http://b.example"}
        d["routes"][0]["weights"] = {"a": 99, "b": 1}

    policy = Policy.load(document(change))

    with pytest.raises(ValidationError, match=r"endpoints\.b\.base_url"):
        policy.compile()
    assert policy.compile(allowed_hosts=["http://b.example"]).version == 7
    with pytest.raises(ValidationError, match="credential"):
        Policy.load(document()).compile(credentials={})
    assert Policy.load(document()).compile(credentials=CREDENTIALS).version == 7


def test_yaml_is_read_as_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        """
        schema_version: "1.0"
        version: 7
        issued_at: 2026-11-30T11:00:00Z   # a timestamp is text
        endpoints:
          openai: {base_url: "https://api.openai.com/v1", credential: env:OPENAI_API_KEY}
          vllm-1:
            base_url: https://vllm.example/v1
            model: meta-llama/Llama-3.3-70B-Instruct
            zone: us-east
            price: {input_per_mtok: "0.10"}
        routes:
          - match: {model: chat-large}
            weights: {vllm-1: 3, openai: 1}
            retry: {on: [connect]}        # `on` is no boolean
            mode: null
        """
    )

    snapshot = Policy.load(path).compile()

    assert shares(weights(snapshot)) == {"vllm-1": 0.75, "openai": 0.25}
    assert snapshot.issued_at == 1796036400.0
    assert snapshot.routes[0].retry.on == {"connect"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &x [1]\nb: *x", "line 2, column 4: an alias"),
        ("a: !!python/object:os.system {}", "a tag"),
        ("a: !secret x", "the tag"),
        ("version: 1\nversion: 2", "version: the key occurs twice"),
        ("version: .nan", "version: got nan"),
        ("version: .inf", "version: got inf"),
        ("? [a]\n: 1", "a key that is not plain text"),
        ("a: 1\n---\nb: 2", "a second document"),
        ("a: [1,\nb", "line"),
        ("a: \x01", "YAML"),
        ("", "got null (expected an object)"),
        ("[" * 40 + "]" * 40, "levels"),
        ("version: " + "9" * 5000, "thousands of digits"),
    ],
)
def test_yaml_beyond_json_is_refused(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        compiled(text.encode(), format="yaml")

    assert words in str(caught.value)


def test_yaml_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    with pytest.raises(PolicyError, match=r"headway\[yaml\]"):
        compiled(b"a: 1", format="yaml")


def test_json_is_yaml_of_the_same_meaning() -> None:
    assert compiled(encoded(document()), format="yaml") == compiled(document())


def test_the_failure_names_are_the_cores() -> None:
    assert set(FailureName.__args__) == set(FailureClass) - {"ok", "cancelled"}


def test_the_built_in_policy_takes_any_model_to_the_clients_own_endpoint() -> None:
    snapshot = pass_through("http://10.0.0.1:8000/v1/")

    assert snapshot.pass_through
    assert snapshot.endpoints["default"].base_url == "http://10.0.0.1:8000/v1"
    route = snapshot.route_for("anything", surface="embeddings")
    assert route is not None
    assert weights(snapshot) == (("default", 1.0),)
    assert route.endpoint_ids == {"default"}
    assert pass_through("https://a.example/v1?x=1").endpoints["default"].base_url.endswith("?x=1")


def policy_with_backoff(backoff: object) -> Policy:
    routes = [{**document()["routes"][0], "retry": {"backoff": backoff}}]
    return Policy.model_validate(document(routes=routes))


def test_a_wait_of_tenacity_may_stand_for_a_backoff() -> None:
    made = policy_with_backoff(tenacity.wait_random_exponential(multiplier=0.2, max=3))

    retry = made.compile(credentials=CREDENTIALS).routes[0].retry
    assert (retry.backoff_base_s, retry.backoff_cap_s) == (0.2, 3.0)
    assert b'"base_ms": 200.0' in made.dump()


@pytest.mark.parametrize(
    "wait",
    [
        tenacity.wait_fixed(1),
        tenacity.wait_exponential(),
        tenacity.wait_random_exponential(exp_base=3),
        tenacity.wait_random_exponential(min=1),
    ],
)
def test_a_wait_without_full_jitter_is_refused(wait: object) -> None:
    with pytest.raises(pydantic.ValidationError, match="wait_random_exponential"):
        policy_with_backoff(wait)
