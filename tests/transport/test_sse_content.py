"""What the observer sees in a stream, within bounds and without parsing more than it must."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from headway.core.model import FailureClass, Usage
from headway.transport.sse import EVENT_BYTES_MAX, StreamObserver
from tests.transport.streams import (
    DONE,
    ROLE,
    STOP,
    chat,
    chunk,
    event,
    responses,
    responses_delta,
    responses_event,
    watch,
)

C = FailureClass


def test_a_whole_chat_stream() -> None:
    observer, out = watch(chat("He", "llo"))

    assert out == chat("He", "llo")
    assert observer.content_events == 2
    assert observer.partial_text == "Hello"
    assert (observer.terminal, observer.done) == (True, True)
    assert observer.finish_reasons == ("stop",)
    assert (observer.response_id, observer.model) == ("chatcmpl-1", "m-1")
    assert observer.outcome().kind is C.OK


def test_the_first_token_is_the_first_event_with_content() -> None:
    observer = StreamObserver()
    azure_first = event({"choices": [], "id": "", "model": "", "prompt_filter_results": [{}]})
    for quiet in (azure_first, event({"choices": None}), ROLE, b": ping\n\n", chunk("")):
        assert observer.feed(quiet) == quiet
        assert not observer.saw_content
    observer.feed(chunk("H"))
    assert observer.saw_content


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": [{"type": "thinking", "thinking": "x"}]},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"refusal": "x"},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}]},
        {"function_call": {"name": "f", "arguments": ""}},
        {"audio": {"data": "AA=="}},
    ],
    ids=lambda delta: next(iter(delta)),
)
def test_every_kind_of_content_counts(delta: dict[str, object]) -> None:
    observer, _ = watch(chunk(delta=delta))
    assert observer.content_events == 1


@pytest.mark.parametrize(
    "delta", [{}, {"role": "assistant"}, {"content": None}, {"tool_calls": []}]
)
def test_what_is_no_content_does_not_count(delta: dict[str, object]) -> None:
    observer, _ = watch(chunk(delta=delta))
    assert observer.content_events == 0


def test_completions_stream_has_text() -> None:
    part = event(
        {
            "id": "cmpl-1",
            "model": "m",
            "choices": [{"index": 0, "text": "Hi", "finish_reason": None}],
        }
    )
    last = event(
        {
            "id": "cmpl-1",
            "model": "m",
            "choices": [{"index": 0, "text": "", "finish_reason": "length"}],
        }
    )
    observer, out = watch(part + part + last + DONE, "completions")
    assert (observer.content_events, observer.partial_text) == (2, "HiHi")
    assert (observer.finish_reasons, out) == (("length",), part + part + last + DONE)


def test_responses_stream() -> None:
    observer, out = watch(responses("Hel", "lo"), "responses")
    assert out == responses("Hel", "lo")
    assert (observer.content_events, observer.partial_text) == (2, "Hello")
    assert (observer.terminal, observer.done) == (True, True)
    assert observer.usage == Usage(5, 7, None, None, 3)
    assert (observer.response_id, observer.model, observer.service_tier) == (
        "resp_1",
        "m-1",
        "default",
    )
    outcome = observer.outcome()
    assert (outcome.kind, outcome.input_tokens, outcome.output_tokens) == (C.OK, 5, 7)


def test_responses_incomplete_is_a_success_with_a_reason() -> None:
    last = responses_event(
        "response.incomplete",
        9,
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    )
    observer, _ = watch(responses_delta(1, "x") + last, "responses")
    assert observer.outcome().kind is C.OK
    assert observer.finish_reasons == ("max_output_tokens",)


def test_a_response_that_comes_whole_at_the_end_is_content() -> None:
    observer, _ = watch(responses(), "responses")
    assert observer.content_events == 1


def test_tool_calls_are_kept_as_far_as_they_came() -> None:
    stream = (
        chunk(
            delta={
                "tool_calls": [
                    {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}
                ]
            }
        )
        + chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]})
        + chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": ': "é'}}]})
        + chunk(
            delta={
                "tool_calls": [
                    {"index": 1, "id": "call_2", "function": {"name": "g", "arguments": "{}"}}
                ]
            }
        )
    )
    observer, out = watch(stream)
    assert out == stream
    assert observer.partial_tool_calls == (
        {"id": "call_1", "name": "f", "arguments": '{"a": "é'},
        {"id": "call_2", "name": "g", "arguments": "{}"},
    )


def test_responses_tool_calls() -> None:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "f",
        "arguments": "",
    }
    stream = event({"type": "response.output_item.added", "output_index": 0, "item": item})
    for part in ('{"a":', "1}"):
        stream += event(
            {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": part}
        )
    observer, _ = watch(stream, "responses")
    assert observer.partial_tool_calls == ({"id": "call_1", "name": "f", "arguments": '{"a":1}'},)
    assert observer.content_events == 2


def test_two_choices_end_when_both_end() -> None:
    start = chunk("a", index=0) + chunk("b", index=1) + chunk(None, "stop", index=0)
    observer = StreamObserver()
    observer.feed(start)
    assert not observer.terminal
    assert observer.finish_reasons == ("stop", "error")
    observer.feed(chunk(None, "length", index=1))
    assert observer.terminal
    assert observer.finish_reasons == ("stop", "length")
    assert observer.partial_text == "a"  # of the first choice


def test_an_end_without_done_is_an_end() -> None:
    assert watch(chat("x").removesuffix(DONE))[0].outcome().kind is C.OK


def test_done_without_finish_reason_is_an_end() -> None:
    assert watch(chunk("x") + DONE)[0].outcome().kind is C.OK


def test_an_empty_answer_that_finished_is_an_answer() -> None:
    assert watch(ROLE + STOP + DONE)[0].outcome().kind is C.OK


def test_nothing_after_done_is_observed() -> None:
    late = event({"error": {"message": "late"}})
    observer, out = watch(chat("x") + late)
    assert observer.error is None
    assert out.endswith(late)


def test_an_event_of_20_megabytes_passes_through_in_bounded_memory() -> None:
    observer = StreamObserver("responses")
    observer.feed(responses_delta(1, "x"))
    big = b'event: response.completed\ndata: {"type":"response.completed","response":{"output":"'
    end = b'","usage":{"input_tokens":3,"output_tokens":4}}}\n\n'
    block = b"y" * 65536
    tracemalloc.start()
    sent = received = 0
    for part in [big, *([block] * 320), end]:
        sent += len(part)
        received += len(observer.feed(part))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert received == sent
    assert peak < 6 * EVENT_BYTES_MAX
    assert (observer.done, observer.terminal, observer.usage) == (True, True, Usage(3, 4))


def test_an_endless_line_is_passed_on() -> None:
    observer = StreamObserver()
    received = sum(len(observer.feed(b"x" * 4096)) for _ in range(1024))
    assert received >= 4096 * 1024 - EVENT_BYTES_MAX
    assert len(observer.finish()) < EVENT_BYTES_MAX


def test_after_a_huge_event_observation_goes_on() -> None:
    huge = event(
        {"type": "image_generation.partial_image", "b64_json": "A" * (EVENT_BYTES_MAX + 10)}
    )
    for size in (4096, len(huge) + 1):
        observer = StreamObserver()
        stream = huge + chat("x")
        out = b"".join(observer.feed(stream[i : i + size]) for i in range(0, len(stream), size))
        assert out == stream
        assert observer.terminal


def test_the_partial_answer_is_bounded() -> None:
    observer = StreamObserver()
    for _ in range(40):
        observer.feed(chunk("z" * 10_000))
    assert 200_000 < len(observer.partial_text) <= 256 * 1024
    assert observer.content_events == 40


def test_ordinary_chunks_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = StreamObserver(hide_usage=True)
    observer.feed(ROLE + chunk(" first", usage=None, obfuscation="a1"))
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    for word in [" the", " naïve", ' say "hi"', "\n\n", " \\", "𝄞", "\ud83d"]:
        observer.feed(
            chunk(word, usage=None, obfuscation="xYz9").replace(b"\xed\xa0\xbd", b"\\ud83d")
            if word != "\ud83d"
            else chunk("@", usage=None, obfuscation="b").replace(b"@", b"\\ud83d")
        )
    assert parsed == []
    assert observer.content_events == 8


def test_a_stream_whose_chunks_never_repeat_stops_being_learned() -> None:
    observer = StreamObserver()
    for number in range(200):
        observer.feed(chunk(" x").replace(b"chatcmpl-1", b"chatcmpl-%d" % number))
    assert observer.content_events == 200
    assert observer._learned <= 20
