"""Streams as servers send them: the shapes of those that people call through an OpenAI client.

One entry per server and surface, short enough to be cut and damaged a million times. Each is modelled
on what that server is documented, or seen, to send: order of members, spaces, line ends, comments,
what stands where beside the content.
"""

from __future__ import annotations

import json
from typing import Any

Corpus = dict[str, tuple[str, bytes]]
DONE = b"data: [DONE]\n\n"
WORDS = (
    "The",
    " answer",
    ",",
    " isn't",
    " é",
    "日本",
    " 42",
    "\n\n",
    ' "q"',
    " \U0001f600",
    " end",
)


def _data(value: Any, *, tight: bool = True, plain: bool = False) -> bytes:
    separators = (",", ":") if tight else (", ", ": ")
    return (
        b"data: " + json.dumps(value, separators=separators, ensure_ascii=plain).encode() + b"\n\n"
    )


def _chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-Bx",
        "object": "chat.completion.chunk",
        "created": 1764500000,
        "model": "m-2026",
        **more.pop("head", {}),
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        **more,
    }


def _usage(**more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 9, "completion_tokens": 11, "total_tokens": 20, **more}


def _openai() -> bytes:
    head = {"service_tier": "default", "system_fingerprint": "fp_1"}
    parts = [
        _chunk({"role": "assistant", "content": "", "refusal": None}, head=head, obfuscation="aZ"),
        *(
            _chunk({"content": w}, head=head, usage=None, obfuscation="b9" * (i % 3))
            for i, w in enumerate(WORDS)
        ),
        _chunk({}, "stop", head=head, usage=None, obfuscation=""),
    ]
    last = {
        **_chunk({}),
        "choices": [],
        "usage": _usage(prompt_tokens_details={"cached_tokens": 4}),
    }
    return b"".join(map(_data, [*parts, last])) + DONE


def _openai_tools() -> bytes:
    def call(index: int, **more: Any) -> dict[str, Any]:
        return _chunk({"tool_calls": [{"index": index, **more}]})

    return (
        b"".join(
            _data(part, plain=True)
            for part in [
                _chunk({"role": "assistant", "content": None}),
                call(0, id="call_1", type="function", function={"name": "look", "arguments": ""}),
                *(
                    call(0, function={"arguments": piece})
                    for piece in ('{"', "q", '":"', "x é", '"}')
                ),
                call(1, id="call_2", type="function", function={"name": "see", "arguments": "{}"}),
                _chunk({}, "tool_calls"),
            ]
        )
        + DONE
    )


def _responses() -> bytes:
    def named(kind: str, number: int, **more: Any) -> bytes:
        body = {"type": kind, "sequence_number": number, **more}
        return b"event: " + kind.encode() + b"\n" + _data(body)

    reply = {"id": "resp_1", "object": "response", "model": "m-2026", "service_tier": "auto"}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    usage = {"input_tokens": 9, "output_tokens": 11, "total_tokens": 20}
    item = {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "look",
        "arguments": "",
    }
    return b"".join(
        [
            named("response.created", 0, response={**reply, "status": "in_progress"}),
            named(
                "response.output_item.added",
                1,
                output_index=0,
                item={"id": "msg_1", "type": "message"},
            ),
            *(
                named(
                    "response.output_text.delta",
                    2 + i,
                    **place,
                    delta=w,
                    logprobs=[],
                    obfuscation="q7",
                )
                for i, w in enumerate(WORDS)
            ),
            named("response.output_text.done", 20, **place, text="".join(WORDS)),
            named("response.output_item.added", 21, output_index=1, item=item),
            named(
                "response.function_call_arguments.delta",
                22,
                item_id="fc_1",
                output_index=1,
                delta="{}",
            ),
            named(
                "response.completed",
                23,
                response={**reply, "status": "completed", "output": [{}], "usage": usage},
            ),
        ]
    )


def _responses_failed() -> bytes:
    error = {"code": "server_error", "message": "boom"}
    reply = {"id": "resp_1", "object": "response", "status": "failed", "error": error}
    return b"event: response.failed\n" + _data({"type": "response.failed", "response": reply})


def _azure() -> bytes:
    filters = [{"prompt_index": 0, "content_filter_results": {}}]
    first = {"choices": [], "created": 0, "id": "", "model": "", "prompt_filter_results": filters}

    def part(word: str) -> dict[str, Any]:
        made = _chunk({"content": word})
        made["choices"][0]["content_filter_results"] = {"hate": {"filtered": False}}
        return made

    return b"".join(map(_data, [first, *map(part, WORDS), _chunk({}, "content_filter")])) + DONE


def _vllm() -> bytes:
    parts = [
        _chunk({"role": "assistant", "content": ""}),
        *(
            _chunk({"content": w}, usage=_usage(completion_tokens=i + 1))
            for i, w in enumerate(WORDS)
        ),
        _chunk({"content": ""}, "length"),
    ]
    return b"".join(map(_data, parts)) + DONE


def _vllm_error() -> bytes:
    error = {
        "object": "error",
        "message": "EngineDeadError",
        "type": "InternalServerError",
        "code": 500,
    }
    return _data(_chunk({"content": "a"})) + _data({"error": error}) + DONE


def _llama_cpp() -> bytes:
    def part(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        tail = {"id": "chatcmpl-x", "model": "gguf", "object": "chat.completion.chunk"}
        return {"choices": [choice], "created": 1764500000, **tail, **more}

    timings = {"prompt_n": 9, "predicted_n": 11, "predicted_ms": 104.5}
    return (
        b"".join(
            map(
                _data,
                [
                    part({"role": "assistant", "content": None}),
                    *(part({"content": w}) for w in WORDS),
                    part({}, "stop", timings=timings),
                ],
            )
        )
        + DONE
    )


def _ollama() -> bytes:
    return (
        b"".join(
            _data(_chunk({"role": "assistant", "content": w}), tight=True, plain=True)
            for w in WORDS
        )
        + _data(_chunk({"role": "assistant", "content": ""}, "stop"))
        + DONE
    )


def _openrouter() -> bytes:
    waiting = b": OPENROUTER PROCESSING\n\n"
    reasoning = [{"type": "reasoning.text", "text": "hm"}]
    parts = [
        _chunk(
            {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_details": reasoning}
        ),
        *(_chunk({"role": "assistant", "content": w}, native_finish_reason=None) for w in WORDS),
        _chunk({"content": ""}, "stop"),
        _chunk({"role": "assistant", "content": ""}, usage={**_usage(), "cost": 0.00012}),
    ]
    return waiting * 2 + waiting.join(map(_data, parts)) + DONE


def _openrouter_error() -> bytes:
    broken = _chunk({"content": ""}, "error", error={"code": 502, "message": "provider went away"})
    return _data(_chunk({"content": "a"})) + _data(broken)


def _deepseek() -> bytes:
    parts = [
        _chunk({"role": "assistant", "content": None, "reasoning_content": ""}),
        *(_chunk({"content": None, "reasoning_content": w}) for w in WORDS[:5]),
        *(_chunk({"content": w, "reasoning_content": None}) for w in WORDS),
        _chunk({"content": ""}, "stop", usage={**_usage(), "prompt_cache_hit_tokens": 3}),
    ]
    return b": keep-alive\n\n" + b"".join(map(_data, parts)) + DONE


def _groq() -> bytes:
    end = _chunk({}, "stop", x_groq={"id": "req_1", "usage": _usage()})
    return b"".join(map(_data, [*(_chunk({"content": w}) for w in WORDS), end])) + DONE


def _gemini() -> bytes:
    parts = [
        _chunk({"content": w, "role": "assistant"})
        for w in ("".join(WORDS[:4]), "".join(WORDS[4:]))
    ]
    parts[-1]["choices"][0]["finish_reason"] = "stop"
    return b"".join(map(_data, parts)).replace(b"\n", b"\r\n") + DONE.replace(b"\n", b"\r\n")


def _anthropic_error() -> bytes:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    return _data(_chunk({"content": "a"})) + b"event: error\n" + _data(error)


def _spaced() -> bytes:
    parts = [_chunk({"content": w}, head={"created": 1764500000 + i}) for i, w in enumerate(WORDS)]
    body = b"".join(_data(part, tight=False, plain=True) for part in parts)
    return b"\xef\xbb\xbf" + body + _data(_chunk({}, "stop"), tight=False) + DONE


def _pings() -> bytes:
    ping = b"event: ping\ndata:\n\n: c\n\nid: 7\n\n\nretry: 10\n\nevent: ping\n\ndata: \n\n"
    return ping.join(_data(_chunk({"content": w})) for w in WORDS) + ping + DONE


def _many_lines() -> bytes:
    lines = json.dumps(_chunk({"content": "a b"}), indent=1).split("\n")
    event = "".join(f"data: {line}\n" for line in lines).encode() + b"\n"
    return event * 3 + _data(_chunk({}, "stop")) + DONE


def _completions() -> bytes:
    def part(text: str, finish: str | None = None) -> dict[str, Any]:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }

    return b"".join(map(_data, [*map(part, WORDS), part("", "stop")])) + DONE


def _choices() -> bytes:
    def part(index: int, word: str, finish: str | None = None) -> dict[str, Any]:
        made = _chunk({"content": word} if word else {}, finish)
        made["choices"][0]["index"] = index
        return made

    parts = [part(i % 2, w) for i, w in enumerate(WORDS)] + [
        part(0, "", "stop"),
        part(1, "", "length"),
    ]
    return b"".join(map(_data, parts)) + DONE


RECORDED: Corpus = {
    "anthropic error": ("chat", _anthropic_error()),
    "azure": ("chat", _azure()),
    "completions": ("completions", _completions()),
    "deepseek": ("chat", _deepseek()),
    "empty": ("chat", DONE),
    "gemini": ("chat", _gemini()),
    "groq": ("chat", _groq()),
    "html": ("chat", b"<html><head><title>502 Bad Gateway</title></head></html>"),
    "json": ("chat", json.dumps({"choices": [], "usage": _usage()}).encode()),
    "json error": ("chat", b'{"error":{"message":"no","code":429}}'),
    "llama.cpp": ("chat", _llama_cpp()),
    "many lines": ("chat", _many_lines()),
    "ollama": ("chat", _ollama()),
    "openai": ("chat", _openai()),
    "openai tools": ("chat", _openai_tools()),
    "openrouter": ("chat", _openrouter()),
    "openrouter error": ("chat", _openrouter_error()),
    "pings": ("chat", _pings()),
    "responses": ("responses", _responses()),
    "responses failed": ("responses", _responses_failed()),
    "spaced": ("chat", _spaced()),
    "two choices": ("chat", _choices()),
    "vllm": ("chat", _vllm()),
    "vllm error": ("chat", _vllm_error()),
}
