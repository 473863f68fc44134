"""What each request of the SDK is; every method and path of the installed version is declared."""

from __future__ import annotations

import ast
from pathlib import Path

import openai
import pytest

from headway.transport.body import peek
from headway.transport.pins import PinMap, ids_in_response
from headway.transport.surfaces import Surface, classify_request, refine

VERBS = {
    "_get": "GET",
    "_get_api_list": "GET",
    "_post": "POST",
    "_put": "PUT",
    "_patch": "PATCH",
    "_delete": "DELETE",
}
MANAGED = {
    ("POST", "/chat/completions"),
    ("POST", "/completions"),
    ("POST", "/embeddings"),
    ("POST", "/moderations"),
    ("POST", "/responses"),
    ("POST", "/images/generations"),
    ("POST", "/audio/speech"),
}


def path_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(path_of(part) or "{id}" for part in node.values)
    if isinstance(node, ast.Call) and node.args:  # path_template("/files/{file_id}", file_id=...)
        return path_of(node.args[0])
    return None


def sdk_requests() -> list[tuple[str, str]]:
    root = Path(openai.__file__).parent
    found: set[tuple[str, str]] = set()
    for folder in ("resources", "lib"):
        for source in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.args
                ):
                    verb = VERBS.get(node.func.attr)
                    path = path_of(node.args[0]) if verb else None
                    if verb and path and path.startswith("/"):
                        found.add((verb, path))
    return sorted(found)


REQUESTS = sdk_requests()


def test_the_walk_finds_the_sdk() -> None:
    assert len(REQUESTS) > 300
    assert {(method, path) for method, path in REQUESTS} >= MANAGED


@pytest.mark.parametrize(("method", "path"), REQUESTS, ids=lambda value: str(value))
def test_every_request_of_the_installed_sdk_is_declared(method: str, path: str) -> None:
    surface = classify_request(method, path)
    bare = path.partition("?")[0]
    assert surface.name != "other", "a new resource: declare it in surfaces.py"
    assert surface.managed == ((method, bare) in MANAGED)
    assert surface.pinned == (not surface.managed)
    if "{" in bare and surface.name != "admin":
        assert surface.pin_ids, "an id in the path pins the request"
        assert surface.pin_ids[0].startswith("{")
    if method in ("GET", "DELETE") or bare.endswith("/cancel"):
        assert surface.repeatable
    elif not surface.managed and bare.count("/") > 0 and "{" in bare:
        assert not surface.repeatable


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/unheard/of", "other"),
        ("GET", "/", "other"),
        ("POST", "", "other"),
        ("POST", "/chat/completionsx", "other"),
        ("POST", "//chat/completions", "other"),
        ("PUT", "/embeddings", "other"),
        ("GET", "/embeddings", "other"),
        ("POST", "/v1/chat/completions", "other"),
        ("POST", "/deployments/x", "other"),
        ("POST", "/openai/deployments//chat/completions", "other"),
    ],
)
def test_an_unknown_request_is_never_routed(method: str, path: str, name: str) -> None:
    surface = classify_request(method, path)
    assert (surface.name, surface.managed, surface.pinned) == (name, False, True)
    assert surface.repeatable == (method == "GET")


@pytest.mark.parametrize(
    ("path", "deployment", "suffix"),
    [
        ("/openai/deployments/gpt-4o/chat/completions", "gpt-4o", "/chat/completions"),
        (
            "/openai/deployments/gpt-4o/chat/completions?api-version=2025-04-01-preview",
            "gpt-4o",
            "/chat/completions",
        ),
        ("/deployments/my%20dep/embeddings", "my dep", "/embeddings"),
        ("/chat/completions/", None, "/chat/completions"),
    ],
)
def test_azure_names_the_deployment_in_the_path(
    path: str, deployment: str | None, suffix: str
) -> None:
    surface = classify_request("POST", path, "application/json")
    assert (surface.managed, surface.deployment, surface.path) == (True, deployment, suffix)


@pytest.mark.parametrize(
    ("method", "path", "ids", "kind"),
    [
        ("GET", "/responses/resp_1", ("resp_1",), "response"),
        ("POST", "/responses/resp_1/cancel?beta=true", ("resp_1",), "response"),
        ("GET", "/chat/completions/c%2F1/messages", ("c/1",), "completion"),
        ("GET", "/files/file-1/content", ("file-1",), "file"),
        ("GET", "/fine_tuning/jobs/ftjob-1/events", ("ftjob-1",), "fine_tuning_job"),
        ("POST", "/threads/thread_1/runs", ("thread_1",), "thread"),
        ("POST", "/threads/runs", (), None),
        ("GET", "/videos/characters/char_1", ("char_1",), "character"),
        ("GET", "/agents/environments/templates/t_1", ("t_1",), "environment_template"),
        ("GET", "/files", (), None),
        ("POST", "/responses/compact", (), None),
        ("DELETE", "/models/ft:gpt-4o:org::id", ("ft:gpt-4o:org::id",), "model"),
    ],
)
def test_a_path_names_the_object_it_is_bound_to(
    method: str, path: str, ids: tuple[str, ...], kind: str | None
) -> None:
    surface = classify_request(method, path)
    assert (surface.pin_ids, surface.pin_kind, surface.managed) == (ids, kind, False)


def test_a_form_is_sent_once_to_the_default_endpoint() -> None:
    form = "multipart/form-data; boundary=x"
    for path in ("/audio/transcriptions", "/images/edits", "/chat/completions"):
        surface = classify_request("POST", path, form)
        assert (surface.managed, surface.pinned) == (False, True)


def refined(path: str, body: bytes) -> Surface:
    surface = classify_request("POST", path, "application/json")
    return refine(surface, peek(body, surface.name))


@pytest.mark.parametrize(
    ("path", "body", "pinned", "repeatable", "creates"),
    [
        ("/chat/completions", b'{"model":"m","messages":[]}', False, True, False),
        ("/chat/completions", b'{"model":"m","messages":[],"store":true}', True, True, True),
        (
            "/chat/completions",
            b'{"model":"m","messages":[],"web_search_options":{}}',
            True,
            False,
            False,
        ),
        (
            "/chat/completions",
            b'{"model":"m","messages":[{"content":[{"file":{"file_id":"f"}}]}]}',
            True,
            True,
            False,
        ),
        ("/responses", b'{"model":"m","input":"x"}', False, True, True),
        ("/responses", b'{"model":"m","input":"x","store":false}', False, True, True),
        ("/responses", b'{"model":"m","input":"x","background":true}', True, False, True),
        (
            "/responses",
            b'{"model":"m","input":"x","previous_response_id":"resp_1"}',
            True,
            True,
            True,
        ),
        ("/responses", b'{"model":"m","input":"x","conversation":"conv_1"}', True, False, True),
        ("/responses", b'{"model":"m","input":"x","tools":[{"type":"mcp"}]}', False, False, True),
        ("/responses", b'{"input":"x","prompt":{"id":"pmpt_1"}}', True, True, True),
        ("/embeddings", b'{"model":"m","input":"x"}', False, True, False),
    ],
)
def test_the_body_decides_what_may_be_done(
    path: str, body: bytes, pinned: bool, repeatable: bool, creates: bool
) -> None:
    surface = refined(path, body)
    assert surface.managed
    assert (surface.pinned, surface.repeatable, surface.creates) == (pinned, repeatable, creates)


def test_a_body_that_is_no_json_object_is_not_routed() -> None:
    surface = refined("/chat/completions", b"not json")
    assert (surface.managed, surface.pinned) == (False, True)


# ------------------------------------------------------------------ pins


def test_pins_are_bounded_and_forget_the_oldest() -> None:
    pins = PinMap(size_max=3)
    pins.record(["a", "b", "c"], "e1")
    assert pins.find("a") == "e1"  # used: now the newest
    pins.record(["d"], "e2")
    assert pins.find("b") is None
    assert pins.find("nope", "d") == "e2"
    assert pins.find("a") == "e1"
    assert len(pins) == 3
    pins.forget("a")
    assert pins.find("a") is None
    pins.record(["", "x" * 1000], "e1")
    assert len(pins) == 2


@pytest.mark.parametrize(
    ("surface", "body", "ids"),
    [
        (
            "responses",
            (
                b'{"id":"resp_1","conversation":{"id":"conv_1"},"output":[{"type":"reasoning","id":"rs_1"},'
                b'{"type":"code_interpreter_call","id":"ci_1","container_id":"cntr_1"},{"content":[{"text":"\\"id\\":\\"resp_fake\\""}]}]}'
            ),
            ("resp_1", "conv_1", "rs_1", "cntr_1"),
        ),
        ("chat", b'{"id": "chatcmpl-1", "choices": [{"id": "x"}]}', ("chatcmpl-1",)),
        (
            "files",
            b'{"object":"list","data":[{"id":"file-1"},{"id":"file-2"}]}',
            ("file-1", "file-2"),
        ),
        (
            "batches",
            b'{"id":"batch_1","input_file_id":"file-1","output_file_id":"file-2"}',
            ("batch_1", "file-1", "file-2"),
        ),
        ("files", b"", ()),
        ("files", b"\xff\x00binary", ()),
    ],
)
def test_ids_that_a_reply_names(surface: str, body: bytes, ids: tuple[str, ...]) -> None:
    assert ids_in_response(surface, body) == ids


def test_a_list_of_thousands_names_a_bounded_number() -> None:
    body = b"[" + b",".join(b'{"id":"file-%d"}' % i for i in range(5000)) + b"]"
    assert len(ids_in_response("files", body)) == 128
