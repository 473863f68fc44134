"""Streams: errors in band, ends of every kind, silence, odd events. In every way of streaming."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import headway
from headway.core.model import Usage
from headway.core.snapshot import DeadlinePolicy
from tests.faults.bench import Bench, Fault, counted, fault, play, plays_of
from tests.faults.streams import (
    ALL,
    CHAT,
    END,
    HELLO,
    RESPONSES,
    START,
    Both,
    Piece,
    Say,
    failure,
    script,
)
from tests.servers import DONE, ROLE, SSE, R, chunk, event
from tests.transport import streams as recorded

SECTION = "D. Streams"
PATIENT = {"timeout": None}


def interrupted(
    name: str,
    title: str,
    *pieces: Piece,
    end: str = "clean",
    ways: tuple[str, ...] = ALL,
    says: str = "",
    text: str = "hel",
    kind: str = "",
    deadline: DeadlinePolicy | None = None,
) -> None:
    """After the first content: a typed error with what had come, and nobody else is asked."""

    @fault(name, title, ways=ways)
    def broke(bench: Bench) -> None:
        a = bench.serve(script(bench.way, *pieces, end=end))
        b = bench.serve(script(bench.way, *HELLO))
        options = PATIENT if deadline else {}
        seen = bench.stream(bench.client(a, b, deadline=deadline, options=options))
        bench.observed()
        assert isinstance(seen.error, headway.StreamInterrupted), seen
        assert isinstance(seen.error, openai.APIError)
        assert seen.text == seen.error.partial.text == text
        assert seen.error.endpoint == "a"
        assert says in str(seen.error)
        assert bench.hits == (1, 0)
        assert bench.kinds() != ["ok"]
        assert not kind or bench.kinds() == [kind]
        assert bench.host.in_flight == 0


def replaced(
    name: str,
    title: str,
    *pieces: Piece,
    end: str = "clean",
    ways: tuple[str, ...] = ALL,
    kind: str = "",
    deadline: DeadlinePolicy | None = None,
) -> None:
    """Before the first content: another endpoint's answer, whole, and no trace of the first."""

    @fault(name, title, ways=ways)
    def answered(bench: Bench) -> None:
        a = bench.serve(script(bench.way, *pieces, end=end))
        b = bench.serve(script(bench.way, *HELLO))
        options = PATIENT if deadline else {}
        seen = bench.stream(bench.client(a, b, deadline=deadline, options=options))
        bench.observed()
        assert (seen.error, seen.text, bench.hits) == (None, "hello", (1, 1))
        assert not kind or bench.kinds()[0] == kind


def untouched(
    name: str, title: str, *pieces: Piece, end: str = "clean", ways: tuple[str, ...] = ALL
) -> None:
    """Nothing is wrong with it, however it looks."""

    @fault(name, title, ways=ways)
    def passed(bench: Bench) -> None:
        a = bench.serve(script(bench.way, *pieces, end=end))
        b = bench.serve(script(bench.way, *HELLO))
        seen = bench.stream(bench.client(a, b))
        bench.observed()
        assert (seen.error, seen.text, bench.hits) == (None, "hello", (1, 0))
        assert bench.kinds() == ["ok"]


HEL = (START, Say("hel"))

# --------------------------------------------------------------------------- errors in band

OVERLOADED = failure("overloaded", 503)
interrupted("C26", "an error object in the middle", *HEL, OVERLOADED, ways=CHAT, says="overloaded")
replaced("C26a", "an error object before any content", START, OVERLOADED)
replaced("C26b", "an error object as the first event", OVERLOADED)
NAMED = recorded.event(
    {"type": "error", "code": "server_error", "message": "boom", "param": None}, "error"
)
interrupted("C28", "an event named error in the middle", *HEL, NAMED, ways=CHAT, says="boom")
replaced("C28a", "an event named error before any content", START, NAMED)


def told_in_events(name: str, title: str, last: bytes, ways: tuple[str, ...] = RESPONSES) -> None:
    """The Responses API tells failures in events, which its applications read: they get them."""

    @fault(name, title, ways=ways)
    def events(bench: Bench) -> None:
        a = bench.serve(script(bench.way, *HEL, last))
        b = bench.serve(script(bench.way, *HELLO))
        seen = bench.stream(bench.client(a, b))
        kinds = [getattr(item, "type", "?") for item in seen.items]
        bench.observed(f"{seen.words}, last event `{kinds[-1]}`; {bench.requests()}")
        assert seen.text == "hel"
        assert seen.error is not None or kinds[-1] in ("error", "response.failed")
        assert bench.hits == (1, 0)
        assert bench.kinds() == ["server_error"]


ERROR = recorded.event(
    {"type": "error", "code": "server_error", "message": "b", "param": None, "sequence_number": 9},
    "error",
)
FAILED = recorded.responses_event(
    "response.failed",
    9,
    created_at=1,
    status="failed",
    error={"code": "server_error", "message": "boom"},
    output=[],
    parallel_tool_calls=False,
    tool_choice="auto",
    tools=[],
)
told_in_events("C28b", "an event named error after some text (Responses)", ERROR)
told_in_events("C28c", "response.failed after some text", FAILED)
replaced("C28d", "response.failed before any text", START, FAILED, ways=RESPONSES)
TEXT = event({"error": "boom"})
interrupted("C29", "an error that is text", *HEL, TEXT, ways=CHAT, says="boom")
replaced("C29a", "an error that is text, first", TEXT)
replaced(
    "C29b",
    "a rate limit whose code is text",
    event({"error": {"code": "429", "message": "slow down"}}),
    kind="rate_limited",
)
replaced(
    "C29c",
    "a spent quota in band",
    failure("You exceeded your current quota", "insufficient_quota"),
    kind="quota_exhausted",
)

# --------------------------------------------------------------------------- ends

interrupted("C31", "the connection closes in the middle", *HEL, end="eof")
interrupted("C31a", "the connection is reset in the middle", *HEL, end="rst")
interrupted("C31b", "the body ends in the middle, properly", *HEL, end="clean")
replaced("C31c", "the connection closes before any content", START, end="eof")
replaced("C31d", "the connection is reset before any content", START, end="rst")
interrupted("C31e", "the body ends within an event", *HEL, b'data: {"id":"c","cho', end="eof")
replaced("C32", "an empty stream")
replaced("C32a", "nothing but the end", DONE, ways=CHAT)
replaced("C32b", "nothing but a comment", b": hello\n\n")
replaced("C32c", "a start and an end without content", ROLE, DONE, ways=CHAT)


@fault("C32d", "an empty stream, and no other endpoint", ways=ALL)
def empty_alone(bench: Bench) -> None:
    a = bench.serve(script(bench.way))
    seen = bench.stream(bench.client(a))
    bench.observed()
    assert isinstance(seen.error, openai.APIError)
    assert len(a.hits) <= 3


# --------------------------------------------------------------------------- silence

SOON_SILENT = DeadlinePolicy(idle_s=0.25)
SOON_LATE = DeadlinePolicy(ttft_s=0.8)
PING = b": ping\n\n"
PINGS: tuple[Piece, ...] = (PING, 0.05) * 80


def stalls(name: str, title: str, *pieces: Piece) -> None:
    @fault(name, title, ways=ALL)
    def stalled(bench: Bench) -> None:
        long = pieces if bench.is_plain else pieces * 3  # a busy machine is slow, too
        a = bench.serve(script(bench.way, *HEL, *long, Say("lo"), END))
        b = bench.serve(script(bench.way, *HELLO))
        seen = bench.stream(bench.client(a, b, deadline=SOON_SILENT, options=PATIENT))
        bench.observed(f"{seen.words}{', as slow as the server' if seen.took_s > 3.5 else ''}")
        assert isinstance(seen.error, headway.StreamInterrupted)
        assert isinstance(seen.error, openai.APITimeoutError)
        assert seen.error.partial.text == "hel"
        assert seen.took_s < 10
        assert (bench.hits, bench.kinds()) == ((1, 0), ["stalled"])


stalls("C34", "silence in the middle, and no timeout", 4.0)
stalls("C35", "keep-alives and no content, in the middle", *PINGS)
stalls(
    "C35a",
    "empty chunks and no content, in the middle",
    *((event({"id": "c", "choices": []}), 0.05) * 80),
)


def slow_start(name: str, title: str, *pieces: Piece) -> None:
    @fault(name, title, ways=ALL)
    def late(bench: Bench) -> None:
        long = pieces if bench.is_plain else pieces * 3
        a = bench.serve(script(bench.way, START, *long, *HELLO[1:]))
        b = bench.serve(script(bench.way, *HELLO))
        seen = bench.stream(bench.client(a, b, deadline=SOON_LATE, options=PATIENT))
        bench.observed(f"{seen.words}{', as slow as the server' if seen.took_s > 3.5 else ''}")
        assert (seen.error, seen.text, bench.hits) == (None, "hello", (1, 1))
        assert seen.took_s < 10


slow_start("C34a", "silence before any content, and no timeout", 4.0)
slow_start("C36", "keep-alives before any content, and no timeout", *PINGS)


@fault("C37", "the end, and then the connection stays open", ways=ALL)
def stays_open(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO, end="noterm"))
    seen = bench.stream(bench.client(a))
    bench.observed()
    assert (seen.error, seen.text, bench.hits) == (None, "hello", (1,))
    assert seen.took_s < 20  # it is held for thirty


@fault("C38", "four streams, one after another", ways=ALL)
def reused(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO))
    client = bench.client(a)
    for _ in range(4):
        bench.stream(client)
    bench.observed(counted(a.connections, "connection"))
    assert [seen.text for seen in bench.calls] == ["hello"] * 4
    assert a.connections == 1


# --------------------------------------------------------------------------- odd events


def with_ids(stream: bytes) -> bytes:
    """The same events, each with an id."""
    return b"".join(b"id: 7\n" + part + b"\n\n" for part in stream.split(b"\n\n") if part)


ODD = {
    "C40": ("a comment after an event with an id", b": ping\n\n"),
    "C40a": ("an event without data", b"data:\n\n"),
    "C40b": ("an event with nothing but a name", b"event: ping\n\n"),
    "C40c": ("an event with nothing but an id", b"id: 8\n\n"),
    "C40d": ("a retry field", b"retry: 3000\n\n"),
    "C40e": ("an unknown field", b"foo: bar\n\n"),
}
for name, (title, odd) in ODD.items():
    identified = Both(with_ids(START.chat), with_ids(START.responses))
    untouched(name, title, identified, odd, Say("hel"), odd, Say("lo"), odd, END)
    if name in ("C40", "C40a", "C40b"):
        crlf = odd.replace(b"\n", b"\r\n")
        untouched(f"{name}-crlf", f"{title}, CRLF", identified, crlf, *HELLO[1:3], crlf, END)


def crlf(piece: bytes) -> bytes:
    return piece.replace(b"\n", b"\r\n")


untouched(
    "C40f",
    "CRLF throughout",
    Both(crlf(START.chat), crlf(START.responses)),
    Both(crlf(chunk("hello")), crlf(recorded.responses_delta(3, "hello"))),
    Both(crlf(END.chat), crlf(END.responses)),
)
untouched("C40g", "a byte order mark", b"\xef\xbb\xbf", *HELLO)

BAD = b"data: {oops\n\n"
interrupted("C41", "an event that is no JSON, in the middle", *HEL, BAD, Say("lo"), END)
replaced("C41a", "an event that is no JSON, first", BAD, *HELLO)
interrupted(
    "C41b", "an event that is cut, in the middle", *HEL, b'data: {"id": "c", "choi\n\n', END
)

HUGE = "x" * 3_000_000


@fault("C43", "an event of 3 MB", ways=ALL)
def huge_event(bench: Bench) -> None:
    a = bench.serve(script(bench.way, START, Say(HUGE), END))
    seen = bench.stream(bench.client(a))
    bench.observed(f"{len(seen.text) / 1e6:.0f} MB of text")
    assert (seen.error, seen.text == HUGE) == (None, True)


@fault("C43a", "a line without an end")
def endless_line(bench: Bench) -> None:
    a = bench.serve(SSE([b"data: " + b"x" * 2_000_000], end="eof"))
    b = bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert isinstance(seen.error, openai.APIError)
    assert bench.host.in_flight == 0


@fault("C43b", "a header of 120 kB", ways=("create", "responses"))
def long_header(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO, headers={"x-padding": "x" * 60_000}))
    seen = bench.stream(bench.client(a))
    bench.observed()
    assert (seen.error, seen.text) == (None, "hello")


# --------------------------------------------------------------------------- usage


def told(*usages: Any, last: bool = True) -> tuple[Piece, ...]:
    """A chat of three chunks with these usages, and one without choices for the last."""
    texts = ["he", "l", "lo"]
    given = list(usages[:-1] if last else usages)
    pieces: list[Piece] = [ROLE]
    for number, text in enumerate(texts):
        more = {"usage": given[number]} if number < len(given) else {}
        pieces.append(chunk(text, **more))
    tail = chunk(None, "stop")
    end = event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                 "choices": [], "usage": usages[-1]}) if last else b""  # fmt: skip
    return (*pieces, tail, end, DONE) if end else (*pieces, tail, DONE)


def tokens(inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": inputs,
        "completion_tokens": outputs,
        "total_tokens": inputs + outputs,
        **more,
    }


def usage(name: str, title: str, expected: Usage | None, *pieces: Piece) -> None:
    @fault(name, title)
    def billed(bench: Bench) -> None:
        a = bench.serve(script(bench.way, *pieces))
        asked = {"stream_options": {"include_usage": True}}
        seen = bench.stream(bench.client(a), **asked)
        given = [item.usage for item in seen.items if item.usage is not None]
        if bench.is_plain:
            said = sum(u.completion_tokens or 0 for u in given)
            bench.observed(f"chunks that sum to {said} output tokens")
        record = bench.host.records[-1].attempts[0].usage
        words = (
            "unknown" if record is None else f"in {record.input_tokens}, out {record.output_tokens}"
        )
        bench.observed(f"accounts: {words}")
        assert seen.text == "hello"
        assert record == expected


usage(
    "C44",
    "usage in every chunk, growing",
    Usage(1, 3),
    *told(None, tokens(1, 1), tokens(1, 2), tokens(1, 3)),
)
usage("C44a", "usage that is null first", Usage(1, 3), *told(None, tokens(1, 3)))
usage("C44b", "usage that is all zeros", None, *told(tokens(0, 0)))
usage(
    "C44c",
    "usage of nothing but details",
    None,
    *told({"prompt_tokens_details": {"cached_tokens": 4}}),
)
usage(
    "C44d",
    "usage with details",
    Usage(9, 3, cached_input_tokens=8, reasoning_tokens=2),
    *told(
        tokens(
            9,
            3,
            prompt_tokens_details={"cached_tokens": 8},
            completion_tokens_details={"reasoning_tokens": 2},
        )
    ),
)
usage(
    "C44e",
    "usage in the last chunk with content",
    Usage(1, 3),
    *told(None, None, tokens(1, 3), last=False),
)


@fault("C44f", "a cut stream without usage")
def estimated(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HEL, end="eof"))
    seen = bench.stream(bench.client(a))
    bench.observed()
    assert isinstance(seen.error, headway.StreamInterrupted)
    assert seen.error.usage is not None
    assert seen.error.usage.estimated
    assert (seen.error.usage.output_tokens or 0) > 0


FILTERS = event(
    {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": []}
)
untouched("C46", "a first chunk of filter results, without choices", FILTERS, *HELLO, ways=CHAT)
untouched(
    "C46a",
    "a first chunk whose choices are null",
    event(
        {"id": "", "object": "chat.completion.chunk", "created": 0, "model": "", "choices": None}
    ),
    *HELLO,
    ways=("create", "raw", "streaming"),
)
replaced("C46b", "filter results, and then the connection closes", FILTERS, end="eof", ways=CHAT)

# --------------------------------------------------------------------------- the filter

REFUSED = {
    "error": {
        "code": "content_filter",
        "message": "The response was filtered",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {"violence": {"filtered": True, "severity": "medium"}},
        },
    }
}


@fault("C47", "a prompt that the filter refuses")
def refused(bench: Bench) -> None:
    a, b = bench.serve(R(400, REFUSED)), bench.serve(SSE([]))
    seen = bench.call(bench.client(a, b).chat)
    bench.observed()
    assert isinstance(seen.error, openai.BadRequestError)
    assert seen.error.body["innererror"]["code"] == "ResponsibleAIPolicyViolation"  # type: ignore[index, call-overload]
    assert (bench.hits, bench.kinds()) == ((1, 0), ["content_filter"])


@fault("C47a", "a prompt that the filter refuses, streamed", ways=ALL)
def refused_stream(bench: Bench) -> None:
    a, b = bench.serve(R(400, REFUSED)), bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert isinstance(seen.error, openai.BadRequestError)
    assert bench.hits == (1, 0)


@fault("C47b", "an answer that the filter ends", ways=("create", "raw", "streaming"))
def filtered(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HEL, chunk(None, "content_filter"), DONE))
    b = bench.serve(script(bench.way, *HELLO))
    seen = bench.stream(bench.client(a, b))
    bench.observed()
    assert (seen.error, seen.text, bench.hits) == (None, "hel", (1, 0))
    assert bench.kinds() == ["ok"]


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
