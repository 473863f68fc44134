"""What `headway doctor` finds about the policy: is it there, valid, signed; keys, hosts, clocks."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from headway.cli.findings import NOTE, OK_, SKIPPED, WRONG, Finding
from headway.cli.screen import one_line

if TYPE_CHECKING:
    from headway.core.snapshot import Endpoint, Snapshot
    from headway.policy.models import Policy
    from headway.policy.sources import Fetched, PolicySource

LOOKUP_S: Final = 5.0
ASK_S: Final = 10.0
SKEW_S: Final = 30.0
YES: Final = ("1", "true", "yes", "on")


def policy_findings(
    place: str | None, hosts: list[str], *, send: bool, named_by: str = ""
) -> Iterator[Finding]:
    """Everything about the policy at a place. Sends requests only if told to.

    `named_by` stands before what is said of the place: the variable that it is from.
    """
    from headway.errors import PolicyError
    from headway.policy.document import read_local
    from headway.policy.first import first_fetch
    from headway.policy.sources import source_for

    if place is None:
        yield Finding("policy", OK_, "none is named: each client goes where it would have gone")
        yield from _key_of_client()
        return
    try:
        source = source_for(place)
        if source.fetched and not send:
            yield Finding("policy", SKIPPED, f"{named_by}{source.label}: --send fetches it")
            yield from _who_must_sign(source)
            return
        fetched = first_fetch(source, signed=True)
        policy = read_local(fetched.content, format=fetched.format, source=source.label)
        snapshot = policy.compile(source=source.label, allowed_hosts=hosts or None)
    except PolicyError as error:
        yield Finding("policy", WRONG, one_line(f"{named_by}{error}"))
        return
    yield Finding("policy", OK_, f"{named_by}{source.label}: version {snapshot.version}")
    yield from _dates(policy)
    yield from _who_signed(source, fetched)
    yield from _keys(snapshot, fetched=source.fetched)
    yield from _lookups(snapshot)
    for endpoint in snapshot.endpoints.values() if send else ():
        yield from _asked(endpoint)


def _dates(policy: Policy) -> Iterator[Finding]:
    now = time.time()
    if policy.issued_at is not None and policy.issued_at.timestamp() > now + SKEW_S:
        yield Finding("policy issued_at", NOTE, "in the future: check both clocks")
    for name in ("fresh_until", "expires_at"):
        instant = getattr(policy, name)
        if instant is not None and instant.timestamp() < now:
            state = WRONG if name == "expires_at" else NOTE
            yield Finding(f"policy {name}", state, f"{instant.isoformat()} is over")


def _who_must_sign(source: PolicySource) -> Iterator[Finding]:
    """What a client would insist on, told before anything is fetched."""
    if os.environ.get("HEADWAY_POLICY_KEYS") or source.from_loopback:
        return
    if os.environ.get("HEADWAY_POLICY_UNSIGNED", "").strip().lower() in YES:
        yield Finding("policy signatures", NOTE, "unsigned documents are accepted")
    else:
        yield Finding(
            "policy signatures",
            NOTE,
            "from another machine: refused unless code pins public_keys, or "
            "HEADWAY_POLICY_KEYS does",
        )


def _who_signed(source: PolicySource, fetched: Fetched) -> Iterator[Finding]:
    from headway.errors import PolicyError
    from headway.policy.signing import keys_from_text, verify

    text = os.environ.get("HEADWAY_POLICY_KEYS")
    if not text:
        if source.fetched:
            yield from _who_must_sign(source)
        return
    try:
        vouched = verify(fetched.content, fetched.signatures, keys_from_text(text))
    except (PolicyError, ValueError) as error:
        yield Finding("policy signatures", WRONG, one_line(str(error)))
    else:
        yield Finding("policy signatures", OK_, f"signed by {', '.join(vouched.key_ids)}")


def _key_of_client() -> Iterator[Finding]:
    if os.environ.get("OPENAI_API_KEY"):
        yield Finding("OPENAI_API_KEY", OK_, "set")
    else:
        yield Finding("OPENAI_API_KEY", NOTE, "not set: clients need api_key=")


def _keys(snapshot: Snapshot, *, fetched: bool) -> Iterator[Finding]:
    """Whether there are keys, never what they are."""
    from headway.credentials import ENV_PREFIX

    declared: dict[str, list[str]] = {}
    for endpoint in snapshot.endpoints.values():
        if endpoint.credential:
            declared.setdefault(endpoint.credential, []).append(endpoint.id)
    for name, users in declared.items():
        of = f"of {', '.join(users[:3])}" + (" and others" if len(users) > 3 else "")
        if not name.startswith(ENV_PREFIX):
            yield Finding("credential", NOTE, f"{of}: by its name, which code has to declare")
            continue
        if fetched:
            said = "env: is for files that the application itself names"
            yield Finding("credential", WRONG, f"{of}: {said}")
            continue
        variable = name.removeprefix(ENV_PREFIX)
        is_set = bool(os.environ.get(variable))
        said = "is set" if is_set else "is not set"
        yield Finding("credential", OK_ if is_set else WRONG, f"{of}: {variable} {said}")
    if any(endpoint.credential is None for endpoint in snapshot.endpoints.values()):
        yield from _key_of_client()


def _lookups(snapshot: Snapshot) -> Iterator[Finding]:
    """Which hosts have addresses. Asked at once: a resolver that hangs costs its time-out once."""
    from headway.hosts import split_url

    ports: dict[str, int] = {}
    for endpoint in snapshot.endpoints.values():
        origin, _ = split_url(endpoint.base_url)
        ports.setdefault(origin.host, origin.port)
    answers: dict[str, str | int] = {}

    def look(host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            answers[host] = error.strerror or type(error).__name__
        else:
            answers[host] = len({address[4][0] for address in found})

    threads = [
        threading.Thread(target=look, args=item, name="headway-doctor", daemon=True)
        for item in ports.items()
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + LOOKUP_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for host in ports:
        answer = answers.get(host, f"no answer within {LOOKUP_S:g} s")
        if isinstance(answer, int):
            yield Finding("host", OK_, f"{host}: {answer} address{'' if answer == 1 else 'es'}")
        else:
            yield Finding("host", WRONG, f"{host} can't be resolved: {answer}")


def _asked(endpoint: Endpoint) -> Iterator[Finding]:
    """Whether somebody answers there; any HTTP answer will do, as no key is sent."""
    import httpx2

    what = f"endpoint {endpoint.id}"
    sent = time.time()
    try:
        with httpx2.Client(timeout=ASK_S) as client:
            reply = client.get(f"{endpoint.base_url.rstrip('/')}/models")
    except httpx2.HTTPError as error:
        yield Finding(what, WRONG, f"no answer: {type(error).__name__}: {error}")
        return
    took = time.time() - sent
    yield Finding(what, OK_, f"answers ({reply.status_code}) after {took * 1000:.0f} ms")
    skew = _skew(reply.headers.get("date"), sent, took)
    if skew is not None:
        how = "behind" if skew > 0 else "ahead of"
        yield Finding(what, NOTE, f"this clock is {abs(skew):.0f} s {how} its own")


def _skew(date: str | None, sent: float, took: float) -> float | None:
    """How far the other clock is ahead of this one, if that is worth a word."""
    try:
        theirs = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return None
    skew = theirs - (sent + took / 2)
    return skew if abs(skew) > SKEW_S else None
