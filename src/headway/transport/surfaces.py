"""(signatures first; bodies follow)"""

from __future__ import annotations

from typing import NamedTuple

from headway.transport.body import BodyFacts


class Surface(NamedTuple):
    """What a request is and what may be done with it."""

    name: str
    """chat | completions | embeddings | responses | moderations | images | audio | files | ... | other"""
    managed: bool
    """Routable freely: any endpoint of the matching route may answer."""
    pin_id: str | None = None
    """The object the request is bound to; look it up in the PinMap (unknown: default endpoint)."""
    pin_kind: str | None = None
    deployment: str | None = None
    """Azure: the model named in the path."""
    path: str = ""
    """Path suffix without the Azure `/openai/deployments/{name}` part, e.g. "/chat/completions"."""
    repeatable: bool = True
    """False: running it twice could do harm beyond cost."""
    json_body: bool = False
    """The body is a JSON object with `model` in it (worth a `peek`)."""
    creates: bool = False
    """The reply may create an object that later requests name: pass it to `ids_in_response`."""
    operation: str | None = None
    """gen_ai.operation.name: chat | text_completion | embeddings | None."""


def classify_request(method: str, path: str, content_type: str = "") -> Surface:
    """`path` is what follows the client's base path (query removed or not), e.g. "/responses/resp_1"."""
    raise NotImplementedError


def refine(surface: Surface, facts: BodyFacts) -> Surface:
    """The same after a look at the body: pinned by the ids it names, not repeatable by what it asks."""
    raise NotImplementedError
