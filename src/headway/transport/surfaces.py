"""What a request is: a closed allow-list of what may be routed; everything else stays where it is.

A request is *managed* when any endpoint of a route may answer it. It is *pinned* when it names an
object that lives at one endpoint, or is of a kind we do not know: an unknown path is never routed.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from headway.transport.body import BodyFacts


class Surface(NamedTuple):
    """What a request is and what may be done with it."""

    name: str
    """chat | completions | embeddings | responses | moderations | images | audio | files | ... |
    other (a path nobody declared)"""
    managed: bool
    """Goes through the engine: counted, priced, retried; routed unless `pinned`."""
    pinned: bool = False
    """Bound to one endpoint: the one that `pin_ids` live at, the default one if that is unknown."""
    pin_ids: tuple[str, ...] = ()
    """Objects the request names, the most binding first; look them up in the `PinMap`."""
    pin_kind: str | None = None
    deployment: str | None = None
    """Azure: the model named in the path."""
    path: str = ""
    """Path suffix without query and Azure `/deployments/{name}`, e.g. "/chat/completions"."""
    repeatable: bool = True
    """False: running it twice could do harm beyond cost."""
    json_body: bool = False
    """The body is a JSON object with `model` in it: worth a `peek`."""
    creates: bool = False
    """The reply may name objects that later requests are bound to: `ids_in_response`."""
    operation: str | None = None
    """gen_ai.operation.name: chat | text_completion | embeddings; None where there is none."""


_MANAGED: dict[str, Surface] = {
    "/chat/completions": Surface("chat", True, json_body=True, operation="chat"),
    "/completions": Surface("completions", True, json_body=True, operation="text_completion"),
    "/embeddings": Surface("embeddings", True, json_body=True, operation="embeddings"),
    "/moderations": Surface("moderations", True, json_body=True),
    "/responses": Surface("responses", True, json_body=True, creates=True, operation="chat"),
    "/images/generations": Surface("images", True, json_body=True),
    "/audio/speech": Surface("audio", True, json_body=True),
}
"""POST requests that any endpoint may answer, unless the body says otherwise (`refine`)."""

_ONE_ATTEMPT: dict[str, str] = {
    "/images/edits": "images",
    "/images/variations": "images",
    "/audio/transcriptions": "audio",
    "/audio/translations": "audio",
    "/responses/input_tokens": "responses",
    "/responses/compact": "responses",
    "/content_provenance_checks": "content_provenance_checks",
    "/fine_tuning/alpha/graders/run": "fine_tuning",
    "/fine_tuning/alpha/graders/validate": "fine_tuning",
    "/decisions": "decisions",
    "/vector_stores/search": "vector_stores",
}
"""POST requests without an object of their own, sent once to the default endpoint: multipart bodies
and vendor features."""

_COLLECTIONS: dict[str, tuple[str, str | None]] = {
    "/responses": ("responses", "response"),
    "/chat/completions": ("chat", "completion"),
    "/conversations": ("conversations", "conversation"),
    "/files": ("files", "file"),
    "/uploads": ("uploads", "upload"),
    "/batches": ("batches", "batch"),
    "/vector_stores": ("vector_stores", "vector_store"),
    "/containers": ("containers", "container"),
    "/skills": ("skills", "skill"),
    "/evals": ("evals", "eval"),
    "/fine_tuning/jobs": ("fine_tuning", "fine_tuning_job"),
    "/fine_tuning/checkpoints": ("fine_tuning", "model"),
    "/videos/characters": ("videos", "character"),
    "/videos": ("videos", "video"),
    "/assistants": ("assistants", "assistant"),
    "/threads": ("threads", "thread"),
    "/chatkit/sessions": ("chatkit", "chatkit_session"),
    "/chatkit/threads": ("chatkit", "thread"),
    "/agents/automations": ("agents", "automation"),
    "/agents/environments/templates": ("agents", "environment_template"),
    "/agents/environments": ("agents", "environment"),
    "/agents/sessions": ("agents", "session"),
    "/agents": ("agents", "agent"),
    "/vaults": ("vaults", "vault"),
    "/audio/voices": ("audio", "voice"),
    "/audio/voice_consents": ("audio", "voice_consent"),
    "/webhook_endpoints": ("webhooks", "webhook_endpoint"),
    "/webhook_event_types": ("webhooks", "webhook_event_type"),
    "/safety/alerts": ("safety", "safety_alert"),
    "/safety/cases": ("safety", "safety_case"),
    "/models": ("models", "model"),
    "/realtime/calls": ("realtime", "call"),
    "/realtime": ("realtime", "realtime"),
    "/live/sessions": ("live", "session"),
    "/organization": ("admin", None),
    "/projects": ("admin", None),
}
"""Where objects live: the path segment after the longest match is the object's id, of this kind.
None: one account's administration, whose ids name nothing that calls are bound to."""

_VERBS = frozenset({"runs", "edits", "extensions", "client_secrets", "sessions", "translations"})
"""Segments that stand where an id could and are none."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

OTHER = Surface("other", managed=False, pinned=True, repeatable=False)
"""A path that nobody declared: forwarded untouched, never repeated elsewhere."""


def classify_request(method: str, path: str, content_type: str = "") -> Surface:
    """The surface of a request; `path` is what follows the client's base path, query or not."""
    path = path.partition("?")[0]
    if len(path) > 1 and path.endswith("/"):
        path = path.rstrip("/")
    deployment, path = _without_deployment(path)
    if method == "POST":
        known = _MANAGED.get(path)
        if known is not None:
            if content_type and not content_type.lower().startswith("application/json"):
                return Surface(known.name, managed=False, pinned=True, path=path, repeatable=False)
            return known._replace(path=path, deployment=deployment)
        name = _ONE_ATTEMPT.get(path)
        if name is not None:
            return Surface(
                name, managed=False, pinned=True, deployment=deployment, path=path, creates=True
            )
    return _pinned(method, path)


def refine(surface: Surface, facts: BodyFacts) -> Surface:
    """The same after a look at the body: pinned by what it names, unrepeatable by what it asks."""
    if not surface.managed:
        return surface
    if not facts.is_json:
        return surface._replace(managed=False, pinned=True)
    pinned = bool(facts.pin_ids)
    repeatable = not facts.server_tools
    creates = surface.creates
    if surface.name == "chat" and (facts.store or facts.server_tools):
        pinned = True
        creates = creates or bool(facts.store)
    if facts.background:
        # A job: it is fetched by id later, and two of them are two jobs.
        pinned, repeatable = True, False
    if facts.pin_kind in ("response", "conversation"):
        # A conversation that a failed attempt may have advanced must not be advanced twice.
        repeatable = repeatable and facts.pin_kind == "response"
    if not pinned and repeatable and creates == surface.creates:
        return surface
    return surface._replace(
        pinned=pinned,
        pin_ids=facts.pin_ids,
        pin_kind=facts.pin_kind,
        repeatable=repeatable,
        creates=creates,
    )


def _without_deployment(path: str) -> tuple[str | None, str]:
    """Split Azure's `[/openai]/deployments/{name}/rest`."""
    rest = path.removeprefix("/openai")
    if not rest.startswith("/deployments/"):
        return None, path
    name, slash, tail = rest[len("/deployments/") :].partition("/")
    if not name or not slash:
        return None, path
    return unquote(name), "/" + tail


def _pinned(method: str, path: str) -> Surface:
    segments = path.split("/")[1:]
    for depth in (3, 2, 1):
        if len(segments) < depth:
            continue
        known = _COLLECTIONS.get("/" + "/".join(segments[:depth]))
        if known is None:
            continue
        name, kind = known
        below = segments[depth : depth + 1]
        has_id = kind is not None and bool(below) and below[0] not in _VERBS
        idempotent = method in _SAFE_METHODS or path.endswith("/cancel")
        return Surface(
            name,
            managed=False,
            pinned=True,
            pin_ids=(unquote(below[0]),) if has_id else (),
            pin_kind=kind if has_id else None,
            path=path,
            repeatable=idempotent,
            creates=method == "POST" or (method == "GET" and not has_id),
        )
    return OTHER._replace(path=path, repeatable=method in ("GET", "HEAD"))
