"""What a sound document means: the snapshot it is compiled to."""

from __future__ import annotations

import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headway.core.model import INFINITY, FailureClass
from headway.core.snapshot import Snapshot, Weights
from headway.credentials import Credential
from headway.errors import PolicyError, ValidationError
from headway.policy.builtin import pass_through
from headway.policy.fields import FailureName
from headway.policy.models import Policy
from tests.policy.samples import CREDENTIALS, Document, compiled, document, encoded, put


def weights(snapshot: Snapshot, zone: str | None = None, tokens: int = 0, route: int = 0) -> Weights:
    return snapshot.routes[route].weights.pick(zone, tokens)


def shares(found: Weights) -> dict[str, float]:
    return {endpoint: round(share, 6) for endpoint, share in found}


def test_the_sound_document() -> None:
    snapshot = compiled(document(issued_at="2026-11-30T11:00:00Z"))

    assert (snapshot.policy_id, snapshot.epoch, snapshot.version) == ("prod-eu", 0, 7)
    assert snapshot.source == "test"
    assert snapshot.issued_at == 1796036400.0
    assert snapshot.endpoints["c"].upstream_model("chat-large") == "small"
    route = snapshot.route_for("chat-large")
    assert route is not None
    assert route.name == "chat-large"
    assert shares(weights(snapshot)) == {"a": 0.75, "b": 0.25}
    assert route.endpoint_ids == {"a", "b"}
    assert route.fallback[0].endpoint == "c"


def test_milliseconds_become_seconds() -> None:
    profile = compiled(document()).endpoints["a"].profile

    assert profile is not None
    assert profile.ttft_s.y == (0.075, 0.12, 0.52)
    assert profile.ttft_p99_s is not None
    assert profile.ttft_p99_s.y[-1] == 1.8
    assert profile.prefill_s_per_token == pytest.approx(55e-6)
    assert profile.ttft_ref_uncached_tokens == 1000


def test_everything_left_out_is_the_cores_default() -> None:
    bare = compiled(
        {
            "schema_version": "1.0",
            "version": 1,
            "endpoints": {"a": {"base_url": "https://a.example/v1/"}},
            "routes": [{"weights": {"a": 5}}],
        }
    )

    expected = pass_through("https://a.example/v1").routes[0]
    route = bare.routes[0]
    for block in (
        "selection", "affinity", "deadline", "retry", "hedge", "admission", "cache", "coalesce",
        "expected_input_tokens", "expected_output_tokens", "match", "name", "mode",
    ):  # fmt: skip
        assert getattr(route, block) == getattr(expected, block), block
    assert bare.endpoints["a"].base_url == "https://a.example/v1"


def test_a_route_is_laid_over_the_defaults_field_by_field() -> None:
    def change(d: Document) -> None:
        d["defaults"] = {
            "retry": {"max_attempts": 5, "budget": {"start": 1, "capacity": 9}, "on": ["connect"]},
            "deadline": {"total_ms": 60000, "idle_ms": 9000},
            "coalesce": True,
            "mode": "observe",
            "expected_tokens": {"input": 50},
        }
        d["routes"][0].update(
            retry={"budget": {"start": 2}, "backoff": {"cap_ms": 100}},
            deadline={"total_ms": 1500.5},
            mode="enforce",
            expected_tokens={"output": 7},
        )

    route = compiled(document(change)).routes[0]

    assert route.retry.attempts_max == 5
    assert (route.retry.budget_start, route.retry.budget_capacity) == (2, 9)
    assert (route.retry.backoff_base_s, route.retry.backoff_cap_s) == (0.5, 0.1)
    assert route.retry.on == {"connect"}
    assert (route.deadline.total_s, route.deadline.idle_s) == (1.5005, 9.0)
    assert route.deadline.ttft_s == INFINITY
    assert route.coalesce
    assert route.mode == "enforce"
    assert (route.expected_input_tokens, route.expected_output_tokens) == (50, 7)


def test_false_and_zero_in_a_route_beat_the_defaults() -> None:
    def change(d: Document) -> None:
        d["defaults"] = {"coalesce": True, "admission": {"max_queue": 9}, "affinity": {"key": ["session"]}}
        d["routes"][0].update(coalesce=False, admission={"max_queue": 0}, affinity={"key": []})

    route = compiled(document(change)).routes[0]

    assert not route.coalesce
    assert route.admission.max_queue == 0
    assert route.affinity.key == ()


def test_weights_by_zone_and_size() -> None:
    change = put(
        "routes.0.weights",
        [
            {"max_prompt_tokens": 1000, "weights": {"a": 1}},
            {"weights": {"eu": {"b": 2, "a": 0}, "*": {"a": 1, "b": 1}}},
        ],
    )
    snapshot = compiled(document(change))

    assert shares(weights(snapshot, "eu", 1000)) == {"a": 1.0}
    assert shares(weights(snapshot, "eu", 1001)) == {"b": 1.0}
    assert shares(weights(snapshot, "us", 1001)) == {"a": 0.5, "b": 0.5}
    assert shares(weights(snapshot, None, 10)) == {"a": 1.0}
    assert all(table[-1][0] == INFINITY for table in snapshot.routes[0].weights.by_zone.values())


def test_without_weights_the_faster_and_larger_gets_more() -> None:
    def change(d: Document) -> None:
        slow = {"x": [0, 1], "mean": [1000, 1000]}
        d["profiles"] = {
            "fast": {"ttft_ms": {"x": [0, 1], "mean": [500, 500]}, "tpot_ms": {"x": [0, 1], "mean": [0, 0]}},
            "slow": {"ttft_ms": slow, "tpot_ms": {"x": [0, 1], "mean": [5, 5]}},
        }
        d["endpoints"]["a"]["profile"] = "fast"
        d["endpoints"]["b"]["profile"] = "slow"
        d["routes"][0].pop("weights")

    # a: 0.5 s; b: 1 s + 200 x 5 ms = 2 s; c is a fallback, so no candidate
    assert shares(weights(compiled(document(change)))) == {"a": 0.8, "b": 0.2}

    def larger(d: Document) -> None:
        change(d)
        d["endpoints"]["a"]["capacity"] = {"concurrency": 1}
        d["endpoints"]["b"]["capacity"] = {"concurrency": 4}

    assert shares(weights(compiled(document(larger)))) == {"a": 0.5, "b": 0.5}


def test_without_weights_an_unknown_speed_is_taken_as_the_mean_of_the_known() -> None:
    change = put("routes.0", {"endpoints": ["a", "b"]})

    assert shares(weights(compiled(document(change)))) == {"a": 0.5, "b": 0.5}


def test_without_weights_and_profiles_the_weights_are_equal() -> None:
    def change(d: Document) -> None:
        d["routes"] = [{"match": {"model": ["m", "n"]}}, {}]
        d["endpoints"]["a"].pop("profile")
        d["endpoints"]["b"]["models"] = {"other": "x"}
        d["endpoints"]["d"] = {"base_url": "https://d.example", "state": "disabled"}

    snapshot = compiled(document(change))

    assert shares(weights(snapshot)) == {"a": 0.5, "c": 0.5}  # b serves only "other"
    assert shares(weights(snapshot, route=1)) == {"a": 0.333333, "b": 0.333333, "c": 0.333333}


def test_a_share_divides_capacity_but_leaves_room_for_one_call() -> None:
    def change(d: Document) -> None:
        d["shares"] = {"client_count": 4}
        d["endpoints"]["a"]["capacity"] = {"concurrency": 10, "rpm": 100, "output_tps": 8}
        d["endpoints"]["b"]["capacity"] = {"concurrency": 1}
        d["endpoints"]["a"]["price"] = {"per_gpu_hour": "2.50", "gpus": 4}

    endpoints = compiled(document(change)).endpoints

    assert endpoints["a"].capacity.concurrency == 2
    assert endpoints["a"].capacity.rpm == 25
    assert endpoints["a"].capacity.tpm is None
    assert endpoints["a"].capacity.output_tps == 2
    assert endpoints["b"].capacity.concurrency == 1
    price = endpoints["a"].price
    assert price is not None
    assert (price.per_gpu_hour, price.gpus, price.slots) == (Decimal("2.50"), Decimal(4), 10)


def test_money_is_exact() -> None:
    change = put("endpoints.a.price", {"input_per_mtok": "0.1", "output_per_mtok": 3})
    price = compiled(document(change)).endpoints["a"].price

    assert price is not None
    assert price.input_per_mtok == Decimal("0.1")
    assert price.output_per_mtok == Decimal(3)
    assert price.cached_input_per_mtok is None


@pytest.mark.parametrize(
    ("zone", "rtt_s"), [("eu", 0.004), ("us", 0.092), ("ap", 0.08), (None, 0.08), ("moon", 0.08)]
)
def test_round_trips_are_from_this_processs_zone(zone: str | None, rtt_s: float) -> None:
    def change(d: Document) -> None:
        d["network"] = {"default_rtt_ms": 80, "rtt_ms": {"eu": {"eu": 4, "us": 92}}}
        d["endpoints"]["a"]["zone"] = "eu"

    assert compiled(document(change), zone=zone).endpoints["a"].rtt_s == pytest.approx(rtt_s)


def test_the_same_zone_is_near_unless_said_otherwise() -> None:
    def change(d: Document) -> None:
        d["network"] = {"default_rtt_ms": 80}
        d["endpoints"]["a"]["zone"] = "eu"

    assert compiled(document(change), zone="eu").endpoints["a"].rtt_s == 0


def test_the_planned_load_is_what_the_publisher_plans() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["a"]["observed"] = {"utilization": 0.61, "planned_utilization": 0.66}
        d["endpoints"]["b"]["observed"] = {"utilization": 0.3}

    endpoints = compiled(document(change)).endpoints

    assert [endpoints[e].planned_load for e in "abc"] == [0.66, 0.3, 0.5]


def test_a_profile_over_calls_in_flight_plans_in_calls_in_flight() -> None:
    def change(d: Document) -> None:
        d["profiles"]["h100"]["load"] = "inflight"
        d["profiles"]["h100"]["ttft_ms"]["x"] = [0, 32, 64]
        d["profiles"]["h100"]["tpot_ms"]["x"] = [0, 32, 64]
        d["endpoints"]["b"] |= {"profile": "h100", "capacity": {"concurrency": 20}}
        d["endpoints"]["c"] |= {"profile": "h100", "observed": {"in_flight": 3}}

    endpoints = compiled(document(change)).endpoints

    assert [endpoints[e].planned_load for e in "abc"] == [32, 10, 3]


def test_classes_and_matches() -> None:
    def change(d: Document) -> None:
        d["classes"] = {
            "batch": {"priority": -1, "usd_per_second": "0.00001"},
            "chat": {"sheddable": False, "slo": {"ttft_p99_ms": 1000}},
        }
        d["routes"][0]["match"] = {"model": ["x", "y"], "class": "batch", "task": "t", "surface": "chat"}

    snapshot = compiled(document(change))

    assert snapshot.classes["batch"].priority == -1
    assert snapshot.classes["batch"].usd_per_second == 0.00001
    assert snapshot.classes["chat"].ttft_slo_s == 1.0
    assert snapshot.classes["chat"].tpot_slo_s == INFINITY
    assert not snapshot.classes["chat"].sheddable
    route = snapshot.routes[0]
    assert route.name == "x+y|task=t|class=batch|surface=chat"
    assert route.match.models == {"x", "y"}
    assert snapshot.route_for("x", task="t", traffic_class="batch") is route
    assert snapshot.route_for("x", task="t", traffic_class="chat") is None


def test_names_of_routes_outlive_reordering() -> None:
    one, two, three = {"match": {"model": "m"}}, {"match": {"class": "c"}}, {"name": "mine"}
    for route in (one, two, three):
        route["weights"] = {"a": 1}

    def names(*routes: Document) -> list[str]:
        return [r.name for r in compiled(document(routes=list(routes))).routes]

    assert names(one, two, three) == ["m", "class=c", "mine"]
    assert names(three, two, one) == ["mine", "class=c", "m"]
    assert names(one, one, three) == ["m", "m#2", "mine"]
    long = compiled(document(routes=[{"match": {"model": ["m" * 200, "n"]}, "weights": {"a": 1}}]))
    assert len(long.routes[0].name) == 120


def test_a_chain_of_fallbacks_that_ends_is_no_cycle() -> None:
    def change(d: Document) -> None:
        d["routes"] = [
            {"name": "x", "weights": {"a": 1}, "fallback": [{"route": "y"}, {"route": "z"}]},
            {"name": "y", "weights": {"b": 1}, "fallback": [{"route": "z"}]},
            {"name": "z", "weights": {"c": 1}, "fallback": [{"endpoint": "a", "on": ["auth"]}]},
        ]

    routes = compiled(document(change)).routes

    assert [f.route for f in routes[0].fallback] == ["y", "z"]
    assert routes[2].fallback[0].on == {"auth"}


def test_hosts_are_brought_to_one_spelling() -> None:
    change = put("endpoints.a.base_url", "HTTPS://Bücher.Example.:443/v1/")

    assert compiled(document(change)).endpoints["a"].base_url == "https://xn--bcher-kva.example/v1"


def test_params_and_headers() -> None:
    def change(d: Document) -> None:
        d["endpoints"]["a"] |= {
            "params": {"drop": ["seed"], "rename": {"max_tokens": "max_completion_tokens"}, "set": {"store": False}},
            "headers": {"x-tenant": "blue"},
            "supports": ["tools"],
            "max_context_tokens": 1000,
            "max_body_bytes": 2000,
            "dialect": "azure",
            "api_version": "2025-04-01-preview",
            "provider": "azure.ai.openai",
            "state": "draining",
            "failure_domain": "rack-1",
            "prefix_cache": {"blocks": 10},
        }  # fmt: skip

    endpoint = compiled(document(change)).endpoints["a"]

    assert endpoint.params_drop == ("seed",)
    assert endpoint.params_rename == {"max_tokens": "max_completion_tokens"}
    assert endpoint.params_set == {"store": False}
    assert endpoint.headers == {"x-tenant": "blue"}
    assert endpoint.supports == {"tools"}
    assert (endpoint.max_context_tokens, endpoint.max_body_bytes) == (1000, 2000)
    assert (endpoint.dialect, endpoint.state, endpoint.failure_domain) == ("azure", "draining", "rack-1")
    assert (endpoint.prefix_cache.blocks, endpoint.prefix_cache.block_tokens) == (10, 64)


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
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)

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
