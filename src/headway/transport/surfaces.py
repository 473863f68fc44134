"""What a request is: a closed allow-list of what may be routed; everything else stays where it is.

A request is *managed* when any endpoint of a route may answer it. It is *pinned* when it makes or
names an object that lives at one endpoint, and *untouched* where it is none of our business: an
unknown path is never routed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple
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
    form: bool = False
    """The body is a multipart form with `model` among its fields; else a JSON object."""
    creates: bool = False
    """The reply may name objects that later requests are bound to: `ids_in_response`."""

    @property
    def treatment(self) -> Treatment:
        """What becomes of the request, as far as its path tells."""
        if self.managed:
            return "managed"
        return "pinned" if self.pinned else "untouched"


Treatment = Literal["managed", "pinned", "untouched"]

_MANAGED: dict[str, Surface] = {
    "/chat/completions": Surface("chat", True),
    "/completions": Surface("completions", True),
    "/embeddings": Surface("embeddings", True),
    "/moderations": Surface("moderations", True),
    "/responses": Surface("responses", True, creates=True),
    "/responses/input_tokens": Surface("input_tokens", True),
    "/responses/compact": Surface("responses", True, creates=True),
    "/images/generations": Surface("images", True),
    "/images/edits": Surface("images", True, form=True),
    "/images/variations": Surface("images", True, form=True),
    "/audio/speech": Surface("audio", True),
    "/audio/transcriptions": Surface("audio", True, form=True),
    "/audio/translations": Surface("audio", True, form=True),
}
"""POST requests that any endpoint may answer, unless the body says otherwise (`refine`)."""

_VENDORS_OWN: dict[str, str] = {
    "/content_provenance_checks": "content_provenance_checks",
    "/fine_tuning/alpha/graders/run": "fine_tuning",
    "/fine_tuning/alpha/graders/validate": "fine_tuning",
    "/decisions": "decisions",
}
"""POST requests without an object of their own that one vendor alone answers."""

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

_VERBS = frozenset(
    {"runs", "edits", "extensions", "client_secrets", "search", "sessions", "translations"}
)
"""Segments that stand where an id could and are none."""

_NAMES_NOTHING = frozenset({"realtime", "live", "admin", "models"})
"""Replies whose ids are no objects that requests are bound to: a model's name is one anywhere."""

_UNTOUCHED = frozenset({"realtime", "live", "admin"})
"""Sessions whose secrets are bound to the host that gave them, and one account's administration."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})

OTHER = Surface("other", managed=False, repeatable=False)
"""A path that nobody declared: forwarded untouched, never repeated elsewhere."""


def rows() -> Iterator[tuple[str, Surface]]:
    """Every declared request (`POST /embeddings`, `/files...`) with what becomes of it."""
    for path, surface in _MANAGED.items():
        yield f"POST {path}", surface
    for path in _COLLECTIONS:
        yield f"{path}...", _pinned("POST", path)
    for path, name in _VENDORS_OWN.items():
        yield f"POST {path}", Surface(name, managed=False)
    yield "anything else", OTHER


def classify_request(method: str, path: str) -> Surface:
    """The surface of a request; `path` is what follows the client's base path, query or not."""
    path = path.partition("?")[0]
    if len(path) > 1 and path.endswith("/"):
        path = path.rstrip("/")
    deployment, path = _without_deployment(path)
    if method == "POST":
        known = _MANAGED.get(path)
        if known is not None:
            return known._replace(path=path, deployment=deployment)
        name = _VENDORS_OWN.get(path)
        if name is not None:
            return Surface(name, managed=False, path=path, repeatable=False)
    return _pinned(method, path)


def refine(surface: Surface, facts: BodyFacts) -> Surface:
    """The same after a look at the body: pinned by what it names, unrepeatable by what it asks."""
    if not surface.managed:
        return surface
    if not facts.is_json:
        return surface._replace(managed=False)
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
            pinned=name not in _UNTOUCHED,
            pin_ids=(unquote(below[0]),) if has_id else (),
            pin_kind=kind if has_id else None,
            path=path,
            repeatable=idempotent,
            creates=method in ("GET", "POST") and name not in _NAMES_NOTHING,
        )
    return OTHER._replace(path=path, repeatable=method in ("GET", "HEAD"))
