"""(signatures first; bodies follow)"""

from __future__ import annotations

from collections.abc import Mapping

from typing import NamedTuple

from headway.core.model import Outcome, Usage


class ReplyFacts(NamedTuple):
    id: str | None
    model: str | None
    service_tier: str | None
    finish_reasons: tuple[str, ...]
    usage: Usage | None



def classify(status: int, headers: Mapping[str, str], body: bytes, *, wall_now: float) -> Outcome:
    """How an attempt that was answered ended. `headers` is any case-insensitive or lower-case
    mapping. For 2xx it looks at the body only for failures in disguise (see `classify_body`)."""
    raise NotImplementedError


def classify_body(
    headers: Mapping[str, str], body: bytes, *, surface: str, wall_now: float, stream: bool = False
) -> Outcome | None:
    """A 2xx reply read whole: the failure it hides, or None when it is a success.

    `stream=True`: the caller asked for SSE and got this (non event-stream) body instead."""
    raise NotImplementedError


def classify_error(error: object, *, wall_now: float = 0.0, status: int | None = None) -> Outcome:
    """An in-band error: the value under "error" (object or text), or the failing event itself."""
    raise NotImplementedError


def classify_exception(exc: BaseException, *, phase: str = "send") -> Outcome | None:
    """phase: "connect" | "send" (no response head yet) | "first_token" (head seen, no content) |
    "stream" (content seen). None: not a transport failure, let it propagate untouched."""
    raise NotImplementedError


def retry_after_hint(headers: Mapping[str, str], body: bytes, wall_now: float) -> float | None:
    """Seconds the server asks to wait; None when absent or unusable."""
    raise NotImplementedError


def extract_usage(obj: Mapping[str, object]) -> Usage | None:
    """The usage of a reply, chunk or event (any surface); None when nothing usable is told."""
    raise NotImplementedError


def usage_from_body(body: bytes) -> Usage | None:
    """The same from a whole JSON body, without parsing all of it."""
    raise NotImplementedError


def reply_facts(body: bytes) -> ReplyFacts:
    """id, model, service_tier, finish_reasons and usage of a non-streamed JSON reply."""
    raise NotImplementedError


def guess_provider(host: str) -> str:
    """`gen_ai.provider.name` for a host; "openai" when nothing is known."""
    raise NotImplementedError
