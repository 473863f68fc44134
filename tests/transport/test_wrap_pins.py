"""Objects are asked for where they live, and made where the plain client makes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from headway.core.snapshot import Endpoint
from headway.credentials import Credential
from tests.servers import SSE, R, Server, error, event
from tests.transport.hosts import Host, policy

DOWN = R(503, error("down"))


def response(name: str, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **more,
    }


def pair(serve: Callable[..., Any], *steps: Any, at_a: Any = DOWN) -> tuple[Server, Server, Host]:
    """The client's own endpoint, which is down, and another with a key of its own."""
    a, b = serve(at_a), serve(*steps)
    other = Endpoint(id="b", base_url=b.url, credential="b")
    key = Credential(value="sk-b", hosts=[f"http://127.0.0.1:{b.port}"])
    return a, b, Host(policy({"a": a.url, "b": other}), credentials={"b": key})


def test_a_response_is_gone_on_with_where_it_was_made(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b, host = pair(serve, R(200, response("resp_1")), R(200, response("resp_2")))
    client = caller(a.url, host)
    responses = client.client.responses

    client.run(responses.create(model="m", input="x"))
    client.run(responses.create(model="m", input="y", previous_response_id="resp_1"))
    client.run(responses.retrieve("resp_2"))
    client.run(responses.cancel("resp_2"))

    assert len(a.hits) == 1
    assert [seen.line.rpartition(" ")[0] for seen in b.hits] == [
        "POST /v1/responses",
        "POST /v1/responses",
        "GET /v1/responses/resp_2",
        "POST /v1/responses/resp_2/cancel",
    ]
    assert {seen.headers["authorization"] for seen in b.hits} == {"Bearer sk-b"}


def test_a_streamed_response_is_found_again_with_all_that_it_made(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}
    stream = SSE(
        [
            event({"type": "response.created", "response": response("resp_1", status="queued")}),
            event({"type": "response.output_item.done", "output_index": 0, "item": item}),
            event({"type": "response.output_text.delta", "delta": "hi", "output_index": 1}),
            event({"type": "response.completed", "response": response("resp_1", output=[item])}),
        ]
    )
    a, b, host = pair(serve, stream, R(200, response("resp_2")))
    client = caller(a.url, host)

    client.drain(client.run(client.client.responses.create(model="m", input="x", stream=True)))
    client.run(client.client.responses.create(model="m", input=[item], store=False))
    client.run(client.client.responses.delete("resp_1"))

    assert len(a.hits) == 1
    assert [seen.line.partition(" ")[0] for seen in b.hits] == ["POST", "POST", "DELETE"]


def test_an_unknown_object_is_looked_for_at_the_clients_own_endpoint(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b, host = pair(serve, R(200, response("resp_1")), at_a=R(200, response("resp_9")))
    client = caller(a.url, host)

    client.run(client.client.responses.retrieve("resp_unheard"))
    client.run(client.client.responses.create(model="m", previous_response_id="resp_unheard"))

    assert len(a.hits) == 2
    assert not b.hits


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_what_is_made_at_another_endpoint_is_remembered_with_it(
    encoding: str, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    listed = {
        "object": "list",
        "has_more": False,
        "data": [{"id": "cfile_1", "container_id": "cntr_1"}],
    }
    body = json.dumps(listed).encode()
    told = R(200, body if encoding == "identity" else gzip.compress(body))
    told.headers = {"content-encoding": encoding}
    made = response("resp_1", output=[{"type": "code_interpreter_call", "container_id": "cntr_1"}])
    a, b, host = pair(serve, R(200, made), told, R(200, {"id": "batch_1", "object": "batch"}))
    client = caller(a.url, host)

    client.run(client.client.responses.create(model="m", input="x"))
    listing = client.drain(client.client.containers.files.list("cntr_1"))
    client.run(
        client.client.batches.create(
            input_file_id="cfile_1", endpoint="/v1/responses", completion_window="24h"
        )
    )
    client.run(client.client.batches.retrieve("batch_1"))

    assert [file.id for file in listing] == ["cfile_1"]
    assert [seen.path for seen in b.hits[1:]] == [
        "/v1/containers/cntr_1/files",
        "/v1/batches",
        "/v1/batches/batch_1",
    ]


def test_what_an_application_calls_its_own_binds_nothing(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    batch = {"id": "batch_1", "object": "batch", "metadata": {"user_id": "customer-42"}}
    a, b, host = pair(serve, R(200, response("resp_1")), R(200, batch), at_a=R(200, batch))
    host.pins.record(["file-b"], "b")
    client = caller(a.url, host)
    create = client.client.batches.create
    options = {"endpoint": "/v1/responses", "completion_window": "24h"}

    client.run(create(input_file_id="file-a", metadata={"file_id": "file-b"}, **options))
    assert (len(a.hits), len(b.hits)) == (1, 0)
    client.run(create(input_file_id="file-b", **options))
    assert (len(a.hits), len(b.hits)) == (1, 1)
    client.run(create(input_file_id="customer-42", **options))
    assert (len(a.hits), len(b.hits)) == (2, 1)


def test_clients_of_several_endpoints_find_each_others_objects(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    file = R(200, {"id": "file-1", "object": "file", "filename": "x", "purpose": "batch"})
    a, b = serve(file), serve(R(200, {"id": "batch_1", "object": "batch"}))
    key = Credential(value="sk-a", hosts=[f"http://127.0.0.1:{a.port}"])
    owner = Endpoint(id="a", base_url=a.url, credential="a")
    host = Host(policy({"a": owner, "b": b.url}), credentials={"a": key})
    first, second = caller(a.url, host), caller(b.url, host)

    first.run(first.client.files.create(file=b"{}", purpose="batch"))
    second.run(second.client.files.retrieve("file-1"))
    second.run(second.client.batches.retrieve("batch_1"))

    assert [seen.line.rpartition(" ")[0] for seen in a.hits] == [
        "POST /v1/files",
        "GET /v1/files/file-1",
    ]
    assert a.hits[1].headers["authorization"] == "Bearer sk-a"
    assert [seen.path for seen in b.hits] == ["/v1/batches/batch_1"]


def test_sessions_and_unheard_of_paths_are_never_led_elsewhere(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b, host = pair(serve, R(200, {}), at_a=R(200, {"value": "ek_1"}))
    host.pins.record(["call_1", "object_1"], "b")
    client = caller(a.url, host)

    client.run(client.client.post("/realtime/calls/call_1/hangup", cast_to=object))
    client.run(client.client.get("/objects/object_1", cast_to=object))

    assert len(a.hits) == 2
    assert not b.hits
