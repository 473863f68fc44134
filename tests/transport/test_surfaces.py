"""What each request of the SDK is; every method and path of the installed version is declared."""

from __future__ import annotations

import pytest

from headway.transport.body import peek
from headway.transport.pins import PinMap, ids_in_response
from headway.transport.surfaces import Surface, classify_request, refine
from tests.transport.sdk_walk import asynchronous, resources, sync

MANAGED = {
    "chat.completions.create",
    "chat.completions.parse",
    "completions.create",
    "embeddings.create",
    "moderations.create",
    "responses.create",
    "responses.parse",
    "responses.compact",
    "responses.input_tokens.count",
    "images.generate",
    "images.edit",
    "images.create_variation",
    "audio.speech.create",
    "audio.transcriptions.create",
    "audio.translations.create",
}
"""Any endpoint of the route may answer."""

UNTOUCHED = (
    "admin",
    "beta.realtime",
    "content_provenance_checks",
    "decisions",
    "fine_tuning.alpha.graders",
    "live",
    "realtime",
)
"""Resources that are none of our business, one client's own account and sessions."""

PINNED = (
    "audio.voice_consents",
    "audio.voices",
    "batches",
    "beta.agents",
    "beta.assistants",
    "beta.chatkit",
    "beta.threads",
    "beta.vaults",
    "chat.completions",
    "containers",
    "conversations",
    "evals",
    "files",
    "fine_tuning",
    "models",
    "responses",
    "safety",
    "skills",
    "uploads",
    "vector_stores",
    "videos",
    "webhooks",
)
"""Resources whose objects live at the endpoint that made them."""

HELPERS = {
    "connect": "a websocket: not over http",
    "create_and_poll": "create, then retrieve",
    "create_and_run_poll": "create_and_run, then retrieve",
    "create_and_run_stream": "create_and_run",
    "create_and_stream": "create",
    "for_result": "retrieve",
    "parse": "create",
    "poll": "retrieve",
    "prepare": "reads local files",
    "prepare_directory": "reads local files",
    "stream": "create",
    "submit_tool_outputs_and_poll": "submit_tool_outputs, then retrieve",
    "submit_tool_outputs_stream": "submit_tool_outputs",
    "unwrap": "checks a signature",
    "upload": "files.create, then create",
    "upload_and_poll": "files.create, then create and retrieve",
    "upload_file_chunked": "create, parts.create, complete",
    "verify_signature": "checks a signature",
    "wait_for_processing": "retrieve",
}
"""Methods that make no request of their own, with the ones that they call."""


def under(method: str, resources: tuple[str, ...]) -> bool:
    return any(method.startswith(resource + ".") for resource in resources)


def declared(method: str) -> str | None:
    """What is to become of a method's requests; None: nobody said."""
    for alias in ("beta.chat.", "beta.responses."):
        if method.startswith(alias):
            method = method.removeprefix("beta.")
    if method in MANAGED:
        return "managed"
    if under(method, UNTOUCHED):
        return "untouched"
    return "pinned" if under(method, PINNED) else None


def test_the_walk_finds_the_sdk() -> None:
    assert len(sync()) > 300
    assert set(sync()) == set(asynchronous())
    assert {method.partition(".")[0] for method in sync()} == set(resources())


@pytest.mark.parametrize("resource", resources())
def test_every_method_of_the_installed_sdk_is_declared(resource: str) -> None:
    for method, by_itself in sync().items():
        if method.partition(".")[0] == resource:
            requests = {*by_itself, *asynchronous()[method]}
            assert requests or method.rpartition(".")[2] in HELPERS, f"{method}: what does it call?"
            for verb, path in requests:
                check(method, verb, path)


def check(method: str, verb: str, path: str) -> None:
    expected = declared(method)
    surface = classify_request(verb, path)
    bare = path.partition("?")[0]
    assert expected is not None, f"{method}: declare the resource here"
    assert surface.name != "other", f"{method}: declare {path} in surfaces.py"
    assert surface.treatment == expected, method
    if expected == "managed":
        return
    if "{" in bare and expected == "pinned":
        assert surface.pin_ids, f"{method}: the id in {path} pins the request"
        assert surface.pin_ids[0].startswith("{")
    is_safe = verb in ("GET", "DELETE") or bare.endswith("/cancel")
    assert surface.repeatable == is_safe, method


@pytest.mark.parametrize("method", sorted(MANAGED))
def test_every_managed_method_is_known_by_its_path(method: str) -> None:
    if method not in sync():
        pytest.skip("not in this version of the SDK")
    for verb, path in sync()[method]:
        bare = path.partition("?")[0]
        is_form = bare in FORMS
        assert verb == "POST"
        assert classify_request(verb, path).form == is_form


FORMS = {"/images/edits", "/images/variations", "/audio/transcriptions", "/audio/translations"}


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
    assert (surface.name, surface.treatment) == (name, "untouched")
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
    surface = classify_request("POST", path)
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
        ("POST", "/vector_stores/search", (), None),
        ("DELETE", "/models/ft:gpt-4o:org::id", ("ft:gpt-4o:org::id",), "model"),
    ],
)
def test_a_path_names_the_object_it_is_bound_to(
    method: str, path: str, ids: tuple[str, ...], kind: str | None
) -> None:
    surface = classify_request(method, path)
    assert (surface.pin_ids, surface.pin_kind, surface.managed) == (ids, kind, False)


def refined(path: str, body: bytes) -> Surface:
    surface = classify_request("POST", path)
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
    assert surface.treatment == "untouched"


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
