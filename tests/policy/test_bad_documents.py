"""A bad document is refused by one error that names the place, the value and what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.errors import FetchError, ValidationError, VerifyError
from headway.policy.models import Policy
from tests.policy.samples import compiled, document, put

X3 = [0, 0.5, 1.0]
FALLS = {"x": X3, "mean": [120, 100, 520]}
BUCKET = {"max_prompt_tokens": 1000, "weights": {"a": 1}}

# (change, path named, what the message holds)
BAD: dict[str, tuple[Any, str, list[str]]] = {
    # the lines of the contract
    "typo in a route": (
        lambda d: d["routes"][0].update(wieghts=d["routes"][0].pop("weights")),
        "routes[0].wieghts",
        ["unknown field", '"weights", perhaps'],
    ),
    "typo at the top": (put("endponts", {}), "endponts", ["unknown field", '"endpoints"']),
    "typo deep down": (
        put("routes.0.retry", {"budget": {"captacity": 1}}),
        "routes[0].retry.budget.captacity",
        ['"capacity"'],
    ),
    "typo in an endpoint": (put("endpoints.c.modle", "x"), "endpoints.c.modle", ['"model"']),
    "field like no other": (put("routes.0.zzz", 1), "routes[0].zzz", ["one of", "weights"]),
    "wrong type": (put("version", "seven"), "version", ['"seven"', "integer"]),
    "boolean for a number": (put("version", True), "version", ["true", "integer"]),
    "text for a weight": (
        put("routes.0.weights.a", "3"),
        "routes[0].weights.a",
        ['"3"', "number"],
    ),
    "cycle of fallbacks": (
        lambda d: d.update(
            routes=[
                {"name": "x", "weights": {"a": 1}, "fallback": [{"route": "y"}]},
                {"name": "y", "weights": {"a": 1}, "fallback": [{"endpoint": "b"}, {"route": "x"}]},
            ]
        ),
        "routes[1].fallback[1].route",
        ['"x"', "x -> y -> x", "cycle"],
    ),
    "fallback to itself": (
        lambda d: d["routes"][0].update(name="x", fallback=[{"route": "x"}]),
        "routes[0].fallback[0].route",
        ["x -> x"],
    ),
    "unknown endpoint": (
        put("routes.0.weights", {"aa": 1}),
        "routes[0].weights.aa",
        ['"aa"', "an endpoint of the document"],
    ),
    "unknown fallback endpoint": (
        put("routes.0.fallback.0.endpoint", "d"),
        "routes[0].fallback[0].endpoint",
        ['"d"', "there are: a, b, c"],
    ),
    "unknown fallback route": (
        put("routes.0.fallback", [{"route": "chat-lrge"}]),
        "routes[0].fallback[0].route",
        ['"chat-large", perhaps'],
    ),
    "weights of zero": (
        put("routes.0.weights", {"a": 0, "b": 0.0}),
        "routes[0].weights",
        ["only zeros", "at least one weight above 0"],
    ),
    "weights of zero in one zone": (
        put("routes.0.weights", {"eu": {"a": 1}, "*": {"a": 0}}),
        'routes[0].weights["*"]',
        ["only zeros"],
    ),
    "negative weight": (put("routes.0.weights.a", -1), "routes[0].weights.a", ["-1", "0"]),
    "falling profile": (
        put("profiles.h100.ttft_ms", FALLS),
        "profiles.h100.ttft_ms.mean[1]",
        ["got 100", "at least 120"],
    ),
    "x that doesn't rise": (
        put("profiles.h100.tpot_ms.x", [0, 0.5, 0.5]),
        "profiles.h100.tpot_ms.x[2]",
        ["got 0.5", "more than 0.5"],
    ),
    "profile of uneven lengths": (
        put("profiles.h100.tpot_ms.mean", [1, 2]),
        "profiles.h100.tpot_ms.mean",
        ["got 2", "3 values"],
    ),
    "profile of one point": (
        put("profiles.h100.tpot_ms", {"x": [0], "mean": [1]}),
        "profiles.h100.tpot_ms.x",
        ["at least 2"],
    ),
    "utilization in percent": (
        put("profiles.h100.tpot_ms.x", [0, 50, 100]),
        "profiles.h100.tpot_ms.x[2]",
        ["got 100", "0 to 1"],
    ),
    "http off loopback": (
        put("endpoints.a.base_url", "http://10.1.0.5:8000/v1"),
        "endpoints.a.base_url",
        ['"http://10.1.0.5:8000"', "https", "allowed_hosts"],
    ),
    # versions
    "no version of the format": (lambda d: d.pop("schema_version"), "schema_version", ['"1.0"']),
    "version of the format as a number": (
        put("schema_version", 1.0),
        "schema_version",
        ["in quotes"],
    ),
    "newer major": (put("schema_version", "2.0"), "schema_version", ['"2.0"', "1.x"]),
    "feature we don't know": (
        put("must_understand", ["hedge", "teleport"]),
        "must_understand[1]",
        ['"teleport"'],
    ),
    "no version": (lambda d: d.pop("version"), "version", ["required"]),
    "fractional version": (put("version", 1.5), "version", ["1.5", "integer"]),
    # places that must hold something
    "no endpoints": (put("endpoints", {}), "endpoints", ["at least 1"]),
    "no routes": (put("routes", []), "routes", ["at least 1"]),
    "no weights": (put("routes.0.weights", {}), "routes[0].weights", ["at least 1"]),
    "routes as an object": (put("routes", {}), "routes", ["an object", "a list"]),
    "route as text": (put("routes.0", "all"), "routes[0]", ["an object"]),
    "weights as a number": (put("routes.0.weights", 3), "routes[0].weights", ["3", "an object"]),
    "flat and zoned weights at once": (
        put("routes.0.weights", {"eu": {"a": 1}, "b": 1}),
        "routes[0].weights.b",
        ["an object"],
    ),
    "weights and endpoints at once": (
        put("routes.0.endpoints", ["a"]),
        "routes[0].endpoints",
        ["either weights or endpoints"],
    ),
    "unknown endpoint to derive weights for": (
        lambda d: d["routes"].__setitem__(0, {"endpoints": ["a", "q"]}),
        "routes[0].endpoints[1]",
        ['"q"'],
    ),
    "nothing serves the route": (
        lambda d: d.update(
            endpoints={"a": {"base_url": "https://a.example", "models": {"x": "y"}}},
            routes=[{"match": {"model": "z"}}],
        ),
        "routes[0].weights",
        ["endpoints that serve"],
    ),
    "sizes that don't rise": (
        put("routes.0.weights", [BUCKET, BUCKET, {"weights": {"a": 1}}]),
        "routes[0].weights[1].max_prompt_tokens",
        ["1000", "more than 1000"],
    ),
    "last size with a bound": (
        put("routes.0.weights", [{"max_prompt_tokens": 10, "weights": {"a": 1}}]),
        "routes[0].weights[0].max_prompt_tokens",
        ["10", "every longer prompt"],
    ),
    "size that forgets a zone": (
        put("routes.0.weights", [{**BUCKET, "weights": {"eu": {"a": 1}}}, {"weights": {"us": {"a": 1}}}]),
        "routes[0].weights[0].weights",
        ['zone us or "*"'],
    ),
    "fallback to nothing": (
        put("routes.0.fallback", [{"model": "m"}]),
        "routes[0].fallback[0]",
        ["neither", "an endpoint or a route"],
    ),
    "fallback to two things": (
        put("routes.0.fallback", [{"endpoint": "c", "route": "chat-large"}]),
        "routes[0].fallback[0]",
        ["both"],
    ),
    "fallback on an unknown failure": (
        put("routes.0.fallback.0.on", ["503"]),
        "routes[0].fallback[0].on[0]",
        ['"503"', "overloaded"],
    ),
    "two routes of one name": (
        lambda d: d.update(routes=[{"name": "x", "weights": {"a": 1}}] * 2),
        "routes[1].name",
        ['"x"', "no other route"],
    ),
    "pattern for a model": (
        put("routes.0.match.model", ["gpt-*"]),
        "routes[0].match.model[0]",
        ['"gpt-*"', "exact names"],
    ),
    "unknown strategy": (
        put("routes.0.selection", {"algorithm": "fastest"}),
        "routes[0].selection.algorithm",
        ['"fastest"', "steady"],
    ),
    # values
    "deadline of zero": (
        put("routes.0.deadline", {"total_ms": 0}),
        "routes[0].deadline.total_ms",
        ["greater than 0"],
    ),
    "deadline of years": (
        put("defaults", {"deadline": {"total_ms": 1e12}}),
        "defaults.deadline.total_ms",
        ["less than or equal to"],
    ),
    "price as a binary number": (
        put("endpoints.a.price", {"input_per_mtok": 0.15}),
        "endpoints.a.price.input_per_mtok",
        ["0.15", "decimal text"],
    ),
    "negative price": (
        put("endpoints.a.price", {"input_per_mtok": "-1"}),
        "endpoints.a.price.input_per_mtok",
        ['"-1"', "decimal text"],
    ),
    "two kinds of price": (
        put("endpoints.a.price", {"input_per_mtok": "1", "per_gpu_hour": "2"}),
        "endpoints.a.price.input_per_mtok",
        ["either token prices or per_gpu_hour"],
    ),
    "instant without an offset": (
        put("fresh_until", "2026-11-30T11:00:00"),
        "fresh_until",
        ['"2026-11-30T11:00:00"', "an instant such as"],
    ),
    "instant as a number": (put("issued_at", 1764500000), "issued_at", ["an instant such as"]),
    "no such day": (put("issued_at", "2026-02-30T11:00:00Z"), "issued_at", ["an instant"]),
    "stale after expiry": (
        lambda d: d.update(fresh_until="2026-12-02T00:00:00Z", expires_at="2026-12-01T00:00:00Z"),
        "fresh_until",
        ["not after expires_at"],
    ),
    "unknown expiry rule": (put("on_expiry", "panic"), "on_expiry", ['"panic"', "degrade"]),
    "two ways to share": (
        put("shares", {"client_count": 2, "share": 0.5}),
        "shares.share",
        ["either client_count or share"],
    ),
    "endpoint id with a space": (
        put("endpoints", {"a b": {"base_url": "https://a.example"}}),
        'endpoints["a b"]',
        ["match pattern"],
    ),
    "unknown profile": (
        put("endpoints.a.profile", "h10"),
        "endpoints.a.profile",
        ['"h10"', '"h100", perhaps'],
    ),
    "model set by params": (
        put("endpoints.a.params", {"set": {"model": "x"}}),
        "endpoints.a.params.set.model",
        ["other than model"],
    ),
    "header that frames": (
        put("endpoints.a.headers", {"Content-Length": "1"}),
        "endpoints.a.headers.Content-Length",
        ["frames no message"],
    ),
    "header that breaks the line": (
        put("endpoints.a.headers", {"x-tenant": "a\r\nx: y"}),
        "endpoints.a.headers.x-tenant",
        ["printable ASCII"],
    ),
    # URLs
    "no scheme": (put("endpoints.a.base_url", "a.example/v1"), "endpoints.a.base_url", ["https://"]),
    "other scheme": (put("endpoints.a.base_url", "ftp://a.example"), "endpoints.a.base_url", ["https://"]),
    "user information": (
        put("endpoints.a.base_url", "https://u:canary-pw@a.example"),
        "endpoints.a.base_url",
        ["user information"],
    ),
    "query": (
        put("endpoints.a.base_url", "https://a.example/v1?key=canary-pw"),
        "endpoints.a.base_url",
        ["without a query"],
    ),
    "decimal for an address": (
        put("endpoints.a.base_url", "https://2130706433/v1"),
        "endpoints.a.base_url",
        ["IPv4"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_names_the_place_the_value_and_what_was_expected(case: str) -> None:
    change, path, words = BAD[case]

    with pytest.raises(ValidationError) as caught:
        compiled(document(change))

    error = caught.value
    assert error.path == path
    assert str(error).startswith(f"{path}: ")
    for word in words:
        assert word in str(error), str(error)
    assert error.source == "test"
    assert "canary" not in str(error)


# Where endpoints are, and what they refer to, is checked when a policy is compiled.
AT_COMPILE = ("endpoints.a.base_url", "endpoints.a.profile")


@pytest.mark.parametrize("case", [c for c in BAD if BAD[c][1] not in AT_COMPILE])
def test_policy_load_refuses_them_too(case: str) -> None:
    change, path, _ = BAD[case]

    with pytest.raises(ValidationError) as caught:
        Policy.load(document(change))

    assert caught.value.path == path


def test_one_error_names_the_other_places() -> None:
    def change(d: dict[str, Any]) -> None:
        d["routes"][0]["wieghts"] = {}
        d["version"] = "x"
        d["on_expiry"] = "x"

    with pytest.raises(ValidationError) as caught:
        compiled(document(change))

    assert caught.value.path == "routes[0].wieghts"
    assert "also wrong: version, on_expiry" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("endpoints.a.credential", 3.5),
        ("endpoints.a.credential", "canary-key\n"),
        ("endpoints.a", "canary-key"),
        ("endpoints.a.headers", {"authorization": "Bearer canary-key"}),
        ("endpoints.a.headers", {"x-tenant": "canary-key\n"}),
        ("endpoints.a.headers", "canary-key"),
        ("endpoints.a.api_key", "canary-key"),
        ("endpoints.a.params", {"set": "canary-key"}),
        ("endpoints.a.base_url", "https://a.example\\canary-key"),
        ("extensions", "canary-key"),
    ],
)
def test_never_repeats_what_may_be_a_secret(path: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        compiled(document(put(path, value)))

    assert "canary" not in str(caught.value)
    assert "canary" not in repr(caught.value.__cause__)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_key_pasted_as_a_credential_name_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        compiled(document(put("endpoints.a.credential", "sk-canary")))

    assert caught.value.path == "endpoints.a.credential"
    assert "declared: b-key" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_an_older_version_is_refused_and_the_same_is_not() -> None:
    assert compiled(document(), current=(0, 7)).version == 7
    assert compiled(document(epoch=1), current=(0, 99)).epoch == 1
    with pytest.raises(VerifyError) as caught:
        compiled(document(), current=(0, 8))
    assert caught.value.path == "version"


def test_a_missing_file_is_a_fetch_error(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"absent\.json"):
        Policy.load(tmp_path / "absent.json")
