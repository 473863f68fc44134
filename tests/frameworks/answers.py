"""An endpoint that holds up its end of an agent's conversation: a tool call, then the answer.

What it answers is decided by the request alone, so that any framework may drive it:

- an adding tool on offer, none used yet: call it with 2 and 3;
- results are there and a tool called `final_answer` is on offer: call that;
- another tool is on offer (a structured output): call it with what its schema wants;
- otherwise: say "The sum is 5."

Chat completions and responses, whole and streamed. Every answer has other token counts, and a
stream tells them only when asked, as the real thing does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tests.servers import DONE, SSE, R, Seen, event

QUESTION = "What is 2 + 3? Use the tool."
ANSWER = "The sum is 5."
PRICE = {"input_per_mtok": "2.50", "cached_input_per_mtok": "1.25", "output_per_mtok": "10"}


class Counts:
    """What one answer used; no two answers of an endpoint use the same."""

    def __init__(self, number: int) -> None:
        self.given = 100 + 17 * number
        self.cached = 20 + number
        self.written = 7 + 3 * number

    @property
    def cost(self) -> Decimal:
        """By `PRICE`, to the last digit."""
        uncached = Decimal(PRICE["input_per_mtok"]) * (self.given - self.cached)
        cached = Decimal(PRICE["cached_input_per_mtok"]) * self.cached
        return (uncached + cached + Decimal(PRICE["output_per_mtok"]) * self.written) / 1_000_000


class Answers:
    """A step for `tests.servers.Server`; `counts` are those of every answer given."""

    def __init__(self) -> None:
        self.counts: list[Counts] = []
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> R | SSE:
        body = seen.json
        if seen.path.endswith("/input_tokens"):  # one framework has them counted before each call
            return R(200, {"object": "response.input_tokens", "input_tokens": 42})
        with self._lock:
            counts = Counts(len(self.counts))
            self.counts.append(counts)
        if seen.path.endswith("/responses"):
            return _responses(body, counts)
        return _chat(body, counts)


# --------------------------------------------------------------------------- what to say


def _decide(tools: list[dict[str, Any]], has_results: bool) -> tuple[str, str] | None:
    """The tool to call and its arguments; None: answer."""
    by_name = {tool["name"]: tool.get("parameters") or {} for tool in tools}
    adders = [name for name in by_name if name.endswith("add")]  # or "Calculator-add"
    structured = [name for name in by_name if name not in (*adders, "final_answer")]
    if adders and not has_results:
        return adders[0], json.dumps({"a": 2, "b": 3})
    if "final_answer" in by_name:
        return "final_answer", json.dumps({"answer": ANSWER})
    if structured:
        return structured[0], json.dumps(_instance(by_name[structured[0]]))
    return None


def _instance(schema: Mapping[str, Any]) -> Any:
    """The simplest value of a JSON schema, in which every number is five."""
    match schema.get("type"):
        case "object":
            return {name: _instance(part) for name, part in schema.get("properties", {}).items()}
        case "integer" | "number":
            return 5
        case "array":
            return []
        case "boolean":
            return True
        case _:
            return ANSWER


def _used_a_tool(messages: list[Any]) -> bool:
    # Some frameworks tell a tool's result as a message of the user.
    return any(
        message.get("role") in ("tool", "function")
        or message.get("type") == "function_call_output"
        or message.get("tool_calls")
        or "Observation" in json.dumps(message.get("content"))
        for message in messages
        if message.get("role") not in ("system", "developer")
    )


# --------------------------------------------------------------------------- chat completions


def _chat(body: Mapping[str, Any], counts: Counts) -> R | SSE:
    tools = [tool["function"] for tool in body.get("tools") or ()]
    call = _decide(tools, _used_a_tool(body["messages"]))
    model = body["model"]
    text = ANSWER if call or not _wants_json(body) else json.dumps(_instance(_schema_of(body)))
    usage = {
        "prompt_tokens": counts.given,
        "completion_tokens": counts.written,
        "total_tokens": counts.given + counts.written,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
    }
    head = {"id": f"chatcmpl-{counts.given}", "created": 1, "model": model}
    if not body.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": None if call else text}
        if call:
            message["tool_calls"] = [_tool_call(call, counts)]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if call else "stop",
            "logprobs": None,
        }
        return R(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None if call else ""}]
    if call:
        name, arguments = call
        begun = {**_tool_call((name, ""), counts), "index": 0}
        deltas.append({"tool_calls": [begun]})
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
            for part in (arguments[:5], arguments[5:])
        ]
    else:
        deltas += [{"content": text[:8]}, {"content": text[8:]}]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"})
    head["object"] = "chat.completion.chunk"
    parts = [event({**head, "choices": [choice]}) for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        parts.append(event({**head, "choices": [], "usage": usage}))
    return SSE([*parts, DONE])


def _wants_json(body: Mapping[str, Any]) -> bool:
    return bool(_schema_of(body))


def _schema_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    wanted = body.get("response_format") or {}
    return (wanted.get("json_schema") or {}).get("schema") or {}


def _tool_call(call: tuple[str, str], counts: Counts) -> dict[str, Any]:
    name, arguments = call
    return {
        "id": f"call_{counts.given}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


# --------------------------------------------------------------------------- responses


def _responses(body: Mapping[str, Any], counts: Counts) -> R | SSE:
    given = body["input"]
    call = _decide(list(body.get("tools") or ()), isinstance(given, list) and _used_a_tool(given))
    if call:
        name, arguments = call
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{counts.given}",
            "call_id": f"call_{counts.given}",
            "name": name,
            "arguments": arguments,
            "status": "completed",
        }
    else:
        content = [{"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}]
        item = {
            "type": "message",
            "id": f"msg_{counts.given}",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    whole = _response(body, counts, "completed", [item])
    if not body.get("stream"):
        return R(200, whole)
    return SSE(_numbered(_events(_response(body, counts, "in_progress", []), item, whole)))


def _response(
    body: Mapping[str, Any], counts: Counts, status: str, output: list[dict[str, Any]]
) -> dict[str, Any]:
    usage = {
        "input_tokens": counts.given,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
        "output_tokens": counts.written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.given + counts.written,
    }
    return {
        "id": f"resp_{counts.given}",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": body["model"],
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if status == "completed" else None,
    }


def _events(
    begun: dict[str, Any], item: dict[str, Any], whole: dict[str, Any]
) -> list[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": 0}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    if item["type"] == "function_call":
        empty = {**item, "arguments": "", "status": "in_progress"}
        arguments = item["arguments"]
        middle = [
            {"type": "response.function_call_arguments.delta", "delta": part, **at}
            for part in (arguments[:5], arguments[5:])
        ]
        middle.append(
            {
                "type": "response.function_call_arguments.done",
                "arguments": arguments,
                "name": item["name"],
                **at,
            }
        )
    else:
        empty = {**item, "content": [], "status": "in_progress"}
        at |= {"content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        middle = [{"type": "response.content_part.added", "part": part, **at}]
        middle += [
            {"type": "response.output_text.delta", "delta": text, "logprobs": [], **at}
            for text in (ANSWER[:8], ANSWER[8:])
        ]
        middle.append({"type": "response.output_text.done", "text": ANSWER, "logprobs": [], **at})
        middle.append(
            {"type": "response.content_part.done", "part": {**part, "text": ANSWER}, **at}
        )
    events.append({"type": "response.output_item.added", "output_index": 0, "item": empty})
    events += middle
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return events


def _numbered(events: list[dict[str, Any]]) -> list[bytes]:
    return [
        b"event: " + item["type"].encode() + b"\n" + event({**item, "sequence_number": number})
        for number, item in enumerate(events)
    ]
