"""What the caller sees of a stream: every byte but those that harm or were never asked for."""

from __future__ import annotations

import pytest

from headway.core.model import FailureClass, Usage
from tests.transport.streams import (
    DONE,
    ROLE,
    STOP,
    chat,
    chunk,
    event,
    usage_chunk,
    watch,
)

C = FailureClass


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize(
    "crash",
    [
        b"data:\n\n",
        b"data: \n\n",
        b"event: ping\n\n",
        b"retry: 10\n\n",
        b"data:\ndata:\n\n",
        b"data\n\n",
    ],
)
def test_events_without_data_never_reach_the_caller(crash: bytes, eol: bytes) -> None:
    good = chat("He", "llo").split(b"\n\n")[:-1]
    stream = b"".join(crash + part + b"\n\n" for part in good).replace(b"\n", eol)
    observer, out = watch(stream)
    assert out == chat("He", "llo").replace(b"\n", eol)
    assert observer.outcome().kind is C.OK


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_a_ping_after_an_id_is_dropped_because_the_id_sticks(eol: bytes) -> None:
    stream = (b"id: 7\n" + chunk("a") + b": ping\n\n" + chunk("b") + b"\n").replace(b"\n", eol)
    _, out = watch(stream)
    assert out == (b"id: 7\n" + chunk("a") + chunk("b")).replace(b"\n", eol)


def test_comments_and_blank_lines_pass_where_they_do_no_harm() -> None:
    stream = b"\n: hello\n\n\n" + chunk("a") + b": ping\n\n"
    assert watch(stream)[1] == stream


def test_a_byte_order_mark_does_not_cost_the_first_event() -> None:
    observer, out = watch(b"\xef\xbb\xbf" + chat("x"))
    assert out == chat("x")
    assert observer.partial_text == "x"


def test_an_event_in_many_data_lines() -> None:
    stream = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"hi"}}]}\n: c\n\n'
    observer, out = watch(stream)
    assert (observer.partial_text, out) == ("hi", stream)


def test_asked_for_usage_is_hidden_again() -> None:
    asked = (
        ROLE.replace(b"}\n\n", b',"usage":null}\n\n')
        + chunk("He", usage=None)
        + chunk("llo", usage=None)
        + chunk("!", usage=None, obfuscation="xyz")
        + chunk("?", usage=None, obfuscation="q")
        + chunk(None, "stop", usage=None)
        + usage_chunk(1, 2)
        + DONE
    )
    plain = (
        ROLE
        + chunk("He")
        + chunk("llo")
        + chunk("!", obfuscation="xyz")
        + chunk("?", obfuscation="q")
        + STOP
        + DONE
    )
    observer, out = watch(asked, hide_usage=True)
    assert out == plain
    assert observer.usage == Usage(1, 2)
    assert watch(asked)[1] == asked  # whoever asked himself sees it


def test_a_usage_null_is_cut_where_it_stands() -> None:
    first = b'data: {"usage":null,"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    alone = b'data: {"usage":null}\n\n'
    spaced = b'data: {"choices": [] , "usage" : null, "x": {"usage": null}}\n\n'
    nested = b'data: {"choices":[],"x":{"a":1,"usage":null}}\n\n'
    for raw, shown in [
        (first, b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'),
        (alone, b"data: {}\n\n"),
        (spaced, b'data: {"choices": [] , "x": {"usage": null}}\n\n'),
        (nested, nested),
    ]:
        observer, out = watch(raw, hide_usage=True)
        assert (out.replace(b"[]  ,", b"[] ,"), observer.error) == (shown, None)


def test_text_that_looks_like_usage_is_not_touched() -> None:
    stream = chunk('","usage":null,"') + chunk('\\","usage":null') + STOP + DONE
    assert watch(stream, hide_usage=True)[1] == stream


def test_usage_on_a_chunk_with_choices_stays() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.001}
    last = event(
        {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": None}], "usage": usage}
    )
    observer, out = watch(chunk("x") + STOP + last + DONE, hide_usage=True)
    assert out == chunk("x") + STOP + last + DONE
    assert observer.usage is not None
    assert observer.usage.output_tokens == 2


def test_cumulative_usage_is_never_summed() -> None:
    stream = (
        chunk("a", usage=None)
        + chunk("b", usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})
        + chunk("c", "stop", usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})
        + usage_chunk(1, 2)
        + event(
            {
                "choices": [],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            }
        )
        + event({"choices": [], "usage": {"completion_tokens": 9}})
    )
    assert watch(stream)[0].usage == Usage(1, 2)
