"""What a supply starts from: the steps that happen once, at the router's construction."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from headway.core.model import INFINITY
from headway.errors import FetchError, PolicyError, VerifyError
from headway.policy.cache import Cached, DiskCache
from headway.policy.decide import rank, takes_part
from headway.policy.document import Compiled, compile_policy, read_document
from headway.policy.signing import SignatureError, verify
from headway.policy.sources import (
    Fetched,
    PolicySource,
    StaticSource,
    TooLargeError,
)
from headway.policy.standing import Standing
from headway.policy.trust import Trust

log = logging.getLogger("headway.policy")

ROLLOUT_KEY = "{}-rollout"
"""What a document that is not for every process is filed under, beside the one that is."""


class OtherPolicyError(VerifyError):
    """The document is a version of another policy than the one that is expected here."""


def compile_fetched(
    source: PolicySource, fetched: Fetched, *, trust: Trust, zone: str | None, wall_now: float
) -> Compiled:
    """Verify and compile what `source` gave. Raises PolicyError."""
    signed_by: tuple[str, ...] = ()
    if trust.keys is not None and not source.in_code:
        # Before anything of it is parsed: what nobody vouches for is not even looked at.
        vouched = verify(fetched.content, fetched.signatures, trust.keys, source=source.label)
        signed_by = vouched.key_ids
    if isinstance(source, StaticSource) and source.policy is not None:
        snapshot = compile_policy(source.policy, source=source.label, zone=zone, trust=trust)
        compiled = Compiled(snapshot)
    else:
        compiled = read_document(
            fetched.content,
            trust=trust,
            zone=zone,
            wall_now=wall_now,
            source=source.label,
            format=fetched.format,
        )
    found = compiled.snapshot.policy_id
    if trust.policy_id is not None and found != trust.policy_id:
        raise OtherPolicyError(
            f'got "{found}"',
            path="policy_id",
            expected=f'"{trust.policy_id}", as pinned in code: policy_id=...',
            source=source.label,
        )
    warnings = compiled.warnings
    if signed_by and source.fetched and compiled.snapshot.hints_until == INFINITY:
        note = (
            f"{source.label}: neither fresh_until nor expires_at is set: a server that keeps "
            "giving the same old signed version would not be noticed"
        )
        warnings = (*warnings, note)
    return compiled._replace(signed_by=signed_by, warnings=warnings)


class Local(NamedTuple):
    """What can be started from without asking anybody."""

    compiled: Compiled | None
    fetched: Fetched | None
    """What `compiled` was fetched as, when it is the source's own last answer."""
    mark: tuple[int, int] | None
    void: tuple[int, int] | None = None
    """A mark on the disk that counts no longer: today's keys don't vouch for what set it."""
    bound: str | None = None
    """The policy that the mark is of."""


def newest_local(
    source: PolicySource,
    cache: DiskCache | None,
    key: str | None,
    compile_one: Callable[[PolicySource, Fetched], Compiled],
    instance: str,
) -> Local:
    """The newest sound document of the disk cache (filed under `key`) and the bootstrap.

    A cached document that is no longer sound is passed over, as is one that is being rolled out and
    not for this `instance`; a bootstrap that isn't sound raises PolicyError: it is part of the
    application.
    """
    local = Local(None, None, None)
    for name in () if cache is None or key is None else (key, ROLLOUT_KEY.format(key)):
        assert cache is not None
        cached = cache.load(name)
        if cached is not None:
            local = _with_cached(local, cached, source, compile_one, instance)
    if source.bootstrap is not None:
        # Shipped with the application, so the high-water mark doesn't bind it.
        bundled = compile_one(source.bootstrap, first_fetch(source.bootstrap))
        best = local.compiled
        if best is None or rank(bundled.snapshot) > rank(best.snapshot):
            local = local._replace(compiled=bundled, fetched=None)
    return local


def _with_cached(
    local: Local,
    cached: Cached,
    source: PolicySource,
    compile_one: Callable[[PolicySource, Fetched], Compiled],
    instance: str,
) -> Local:
    mark = cached.mark if local.mark is None else max(local.mark, cached.mark)
    bound = cached.policy_id or local.bound
    if cached.content is None:
        return local._replace(mark=mark, bound=bound)
    kept = Fetched(cached.content, cached.etag, cached.format, cached.signatures)
    try:
        compiled = compile_one(source, kept)
    except SignatureError as exc:
        # A stolen key may have set the mark as high as it goes. Taking the key out of the code must
        # be enough to come back from that, so a mark counts as long as its keys do.
        log.warning("the cached policy and its version are forgotten: %s", exc)
        return local._replace(void=max(cached.mark, local.void or cached.mark))
    except PolicyError as exc:  # what code declares may have changed since
        log.warning("the cached policy is not used: %s", exc)
        return local._replace(mark=mark, bound=bound)
    if not takes_part(compiled.snapshot, instance):
        return local
    if local.compiled is not None and rank(local.compiled.snapshot) >= rank(compiled.snapshot):
        return local._replace(mark=mark, bound=bound)
    return local._replace(compiled=compiled, fetched=kept, mark=mark, bound=bound)


def first_fetch(source: PolicySource, *, signed: bool = False) -> Fetched:
    """Fetch without an etag. Raises FetchError."""
    for _ in range(2):  # a file that another supply has seen change is taken as it is now
        got = source.fetch(signed=signed)
        if isinstance(got, Fetched):
            return got
    raise FetchError("says that nothing changed since nothing", source=source.label)


def bounded_fetch(source: PolicySource, timeout_s: float, *, signed: bool) -> Fetched:
    """Fetch within `timeout_s`, name look-up included, which no http client bounds."""
    answers: list[Fetched | FetchError] = []

    def ask() -> None:
        try:
            answers.append(first_fetch(source, signed=signed))
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
    """The word for a refusal in events: one of `headway.telemetry.names.POLICY_REASONS`."""
    match exc:
        case TooLargeError():
            return "too_large"
        case FetchError():
            return "fetch"
        case SignatureError():
            return "signature"
        case OtherPolicyError():
            return "other_policy"
        case VerifyError():
            return "rollback"
        case _:
            return "invalid"


def cache_key(source: PolicySource | None, policy_id: str | None) -> str | None:
    """What the disk cache files the policy under: its pinned id, or else where it comes from."""
    if source is None or source.cache_key is None or policy_id is None:
        return None if source is None else source.cache_key
    return hashlib.sha256(f"policy_id {policy_id}".encode()).hexdigest()[:32]


def refuse_unsigned(source: PolicySource | None) -> None:
    """Raise VerifyError for what comes from another machine with nobody to vouch for it."""
    if source is not None and source.fetched and not source.from_loopback:
        raise VerifyError(
            "a policy from another machine decides where prompts go, and nobody has to sign it: "
            'give public_keys={"ops": "..."} (docs/how-to/sign-a-policy.md), or accept unsigned '
            "documents from there with allow_unsigned=True",
            source=source.label,
        )


def keep(
    cache: DiskCache | None, key: str | None, standing: Standing, fetched: Fetched, label: str
) -> None:
    """Keep on the disk what has just been put in force, for the next start."""
    snapshot, mark = standing.snapshot, standing.mark
    if cache is None or key is None or snapshot is None or mark is None:
        return
    cache.store(
        key if snapshot.rollout_share >= 1.0 else ROLLOUT_KEY.format(key),
        fetched.content,
        format=fetched.format,
        etag=fetched.etag,
        mark=mark,
        label=label,
        signatures=fetched.signatures,
        policy_id=snapshot.policy_id,
        void=standing.void,
    )
