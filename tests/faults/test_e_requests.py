"""4xx: what is wrong with the request, with the model, with the key; and who else may be asked."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from headway.core.model import AttemptEnded, Health
from tests.faults.bench import Bench, Fault, fault, play, plays_of
from tests.servers import OK, R, Seen, Step, completion, error

SECTION = "E. Refused for what they are"


def teaches_nothing(bench: Bench) -> bool:
    """The first attempt's end counts nothing against its endpoint."""
    return bench.host.named(AttemptEnded)[0].outcome.health is Health.NOTHING


# --------------------------------------------------------------------------- length

TOO_LONG: dict[str, tuple[str, R]] = {
    "C49": (
        "a prompt too long, by its code",
        R(400, error("too long", "invalid_request_error", "context_length_exceeded")),
    ),
    "C49a": (
        "a prompt too long, by vLLM",
        R(
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 32768 tokens.",
                "code": 400,
            },
        ),
    ),
    "C49b": (
        "a prompt too long, by SGLang",
        R(400, error("The input is longer than the model's context length", "BadRequest", 400)),
    ),
    "C49c": (
        "a prompt too long, by a count",
        R(400, error("prompt token count of 125516 exceeds the limit of 64000", "x", None)),
    ),
    "C49d": (
        "a prompt too long, by llama.cpp",
        R(400, error("the request exceeds the size", "exceed_context_size_error", 400)),
    ),
}


def too_long(name: str, title: str, step: Step) -> None:
    @fault(name, title)
    def refused(bench: Bench) -> None:
        a, b = bench.serve(step), bench.serve(OK)
        seen = bench.call(bench.client(a, b).chat)
        bench.observed()
        assert isinstance(seen.error, openai.BadRequestError)
        assert (bench.hits, bench.kinds()) == ((1, 0), ["context_length"])
        assert teaches_nothing(bench)


for name, (title, step) in TOO_LONG.items():
    too_long(name, title, step)


def windows(*tokens: int) -> dict[str, Any]:
    return {name: {"max_context_tokens": n} for name, n in zip("abc", tokens, strict=False)}


@fault("C49e", "a prompt too long, where a larger window is known")
def larger_window(bench: Bench) -> None:
    a, b, c = bench.serve(TOO_LONG["C49"][1]), bench.serve(OK), bench.serve(OK)
    seen = bench.call(bench.client(a, b, c, endpoints=windows(8_000, 4_000, 32_000)).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 0, 1))


@fault("C49f", "a failure, and the next endpoint's window too small for the prompt")
def smaller_window(bench: Bench) -> None:
    a, b, c = bench.serve(R(500, error("x"))), bench.serve(OK), bench.serve(OK)
    client = bench.client(a, b, c, endpoints=windows(8_000, 400, 32_000))
    prompt = [{"role": "user", "content": "word " * 2_000}]
    seen = bench.call(client.chat, messages=prompt)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 0, 1))


# --------------------------------------------------------------------------- the model

MISSING = R(404, {"error": {"code": "DeploymentNotFound", "message": "no such deployment"}})
UNKNOWN = R(404, error("The model `m` does not exist", "invalid_request_error", "model_not_found"))


def knows_others(seen: Seen, refusal: R) -> Step:
    return refusal if seen.json["model"] == "m" else R(200, completion("other"))


def not_found(name: str, title: str, refusal: R) -> None:
    @fault(name, title)
    def elsewhere(bench: Bench) -> None:
        a = bench.serve(lambda seen: knows_others(seen, refusal))
        b = bench.serve(OK)
        client = bench.client(a, b)
        bench.call(client.chat)
        bench.observed()
        bench.call(client.chat)
        bench.call(client.chat, model="n")
        assert [seen.text for seen in bench.calls] == ["hello", "hello", "other"]
        assert bench.hits == (2, 2)
        assert teaches_nothing(bench)


not_found("C50", "404, no such deployment", MISSING)
not_found("C50a", "404, no such model", UNKNOWN)


@fault("C50b", "404 without a body, as in a restart")
def bare_404(bench: Bench) -> None:
    a, b = bench.serve(R(404, b"", ctype="text/plain")), bench.serve(OK)
    seen = bench.call(bench.client(a, b).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (1, 1))
    assert bench.kinds() == ["server_error", "ok"]


@fault("C50c", "404, no such model, and no other endpoint")
def alone_404(bench: Bench) -> None:
    a = bench.serve(UNKNOWN)
    seen = bench.call(bench.client(a).chat)
    bench.observed()
    assert isinstance(seen.error, openai.NotFoundError)
    assert bench.hits == (1,)


# --------------------------------------------------------------------------- the key


@fault("E1", "401, beside an endpoint with another key")
def bad_key(bench: Bench) -> None:
    a, b = bench.serve(R(401, error("bad key", "x", "invalid_api_key"))), bench.serve(OK)
    client = bench.client(a, b)
    for _ in range(1 if bench.is_plain else 4):
        bench.call(client.chat)
    bench.observed()
    assert {seen.text for seen in bench.calls} == {"hello"}
    assert bench.hits == (1, 4)


@fault("E1a", "401, and no other endpoint")
def bad_key_alone(bench: Bench) -> None:
    a = bench.serve(R(401, error("bad key", "x", "invalid_api_key")))
    seen = bench.call(bench.client(a).chat)
    bench.observed()
    assert isinstance(seen.error, openai.AuthenticationError)
    assert bench.hits == (1,)


# --------------------------------------------------------------------------- bytes

EDGE = R(413, b"<html><h1>413 Request Entity Too Large</h1></html>", ctype="text/html")
LONG = [{"role": "user", "content": "word " * 400_000}]


@fault("C52", "413 from an edge, for a body of 2 MB")
def too_large(bench: Bench) -> None:
    a, b = bench.serve(EDGE), bench.serve(OK)
    seen = bench.call(bench.client(a, b).chat, messages=LONG)
    bench.observed()
    assert isinstance(seen.error, openai.APIStatusError)
    assert seen.error.status_code == 413
    assert bench.hits == (1, 0)
    assert teaches_nothing(bench)


@fault("C52a", "a body too large for one endpoint, as the policy says")
def known_too_large(bench: Bench) -> None:
    a, b = bench.serve(EDGE), bench.serve(OK)
    limits = {"a": {"max_body_bytes": 1_000_000}, "b": {"max_body_bytes": 10_000_000}}
    seen = bench.call(bench.client(a, b, endpoints=limits).chat, messages=LONG)
    bench.observed()
    assert (seen.text, bench.hits) == ("hello", (0, 1))


@fault("C52b", "a body of 2 MB, sent again")
def large_again(bench: Bench) -> None:
    a, b = bench.serve(R(503, b"")), bench.serve(OK)
    seen = bench.call(bench.client(a, b).chat, messages=LONG)
    bench.observed()
    assert seen.text == "hello"
    assert a.hits[0].body == b.hits[0].body


# --------------------------------------------------------------------------- all others

FINAL = (400, 405, 406, 411, 412, 414, 415, 416, 417, 418, 421, 422, 423, 426, 428, 431, 451)


@fault("C53", "every 4xx that a second try would not change")
def final(bench: Bench) -> None:
    a, b = bench.serve(OK), bench.serve(OK)
    client = bench.client(a, b)
    for status in FINAL:
        a.steps[:] = [R(status, error("no", "invalid_request_error"))]
        bench.call(client.chat, model=f"m{status}")
    bench.observed(f"{len(a.hits) / len(FINAL):.1f} requests each")
    assert all(isinstance(seen.error, openai.APIStatusError) for seen in bench.calls)
    assert bench.hits == (len(FINAL), 0)


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
