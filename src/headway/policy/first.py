"""What a supply starts from: the steps that happen once, at the router's construction."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from headway.errors import FetchError, PolicyError, VerifyError
from headway.policy.cache import DiskCache
from headway.policy.decide import rank
from headway.policy.document import Compiled, compile_policy, read_document
from headway.policy.sources import (
    Fetched,
    NotModified,
    PolicySource,
    StaticSource,
    TooLargeError,
)
from headway.policy.trust import Trust

log = logging.getLogger("headway.policy")


def compile_fetched(
    source: PolicySource, fetched: Fetched, *, trust: Trust, zone: str | None, wall_now: float
) -> Compiled:
    """Verify and compile what `source` gave. Raises PolicyError."""
    if isinstance(source, StaticSource) and source.policy is not None:
        return Compiled(compile_policy(source.policy, source=source.label, zone=zone, trust=trust))
    return read_document(
        fetched.content,
        trust=trust,
        zone=zone,
        wall_now=wall_now,
        source=source.label,
        format=fetched.format,
    )


class Local(NamedTuple):
    """What can be started from without asking anybody."""

    compiled: Compiled | None
    fetched: Fetched | None
    """What `compiled` was fetched as, when it is the source's own last answer."""
    mark: tuple[int, int] | None


def newest_local(
    source: PolicySource,
    cache: DiskCache | None,
    compile_one: Callable[[PolicySource, Fetched], Compiled],
) -> Local:
    """The newest sound document of the disk cache and the bootstrap.

    A cached document that is no longer sound is passed over; a bootstrap that isn't raises
    PolicyError: it is part of the application.
    """
    local = Local(None, None, None)
    cached = None
    if cache is not None and source.cache_key is not None:
        cached = cache.load(source.cache_key)
    if cached is not None:
        local = local._replace(mark=cached.mark)
        if cached.content is not None:
            kept = Fetched(cached.content, cached.etag, cached.format)
            try:
                local = local._replace(compiled=compile_one(source, kept), fetched=kept)
            except PolicyError as exc:  # what code declares may have changed since
                log.warning("the cached policy is not used: %s", exc)
    if source.bootstrap is not None:
        # Shipped with the application, so the high-water mark doesn't bind it.
        bundled = compile_one(source.bootstrap, first_fetch(source.bootstrap))
        best = local.compiled
        if best is None or rank(bundled.snapshot) > rank(best.snapshot):
            local = local._replace(compiled=bundled, fetched=None)
    return local


def first_fetch(source: PolicySource) -> Fetched:
    """Fetch without an etag. Raises FetchError."""
    got = source.fetch()
    if isinstance(got, NotModified):
        raise FetchError("says that nothing changed since nothing", source=source.label)
    return got


def bounded_fetch(source: PolicySource, timeout_s: float) -> Fetched:
    """Fetch within `timeout_s`, name look-up included, which no http client bounds."""
    answers: list[Fetched | FetchError] = []

    def ask() -> None:
        try:
            answers.append(first_fetch(source))
        except FetchError as exc:
            answers.append(exc)

    thread = threading.Thread(target=ask, name="headway-policy-first", daemon=True)
    thread.start()
    thread.join(timeout_s)
    answer = answers[0] if answers else FetchError(f"no answer within {timeout_s:g} s")
    if isinstance(answer, Fetched):
        return answer
    raise FetchError(
        f"there is no policy to start from: {answer.message}. Make it reachable, or give "
        "cache_dir=... (what the last run kept) or HttpSource(url, bootstrap=...) (a file shipped "
        "with the application)",
        source=source.label,
    ) from answer


def reason_of(exc: PolicyError) -> str:
    """The word for a refusal in events: too_large, fetch, rollback or invalid."""
    match exc:
        case TooLargeError():
            return "too_large"
        case FetchError():
            return "fetch"
        case VerifyError():
            return "rollback"
        case _:
            return "invalid"
