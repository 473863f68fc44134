"""Which calls are alike: what may answer several of them, and what tells two calls apart.

Two calls are alike when everything is the same that the answer, the bill or the right to see the
answer could depend on: client's origin, path, body, credentials, the tenant, and every header but
those that are known to belong to the one exchange. A header that nobody here knows keeps calls
apart: it may name a tenant, too.

In the body, white space and the order of the top-level members are form. The order further down is
content: that of a JSON schema's properties steers the model.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from secrets import token_bytes
from typing import TYPE_CHECKING, NamedTuple, cast

from headway.core.snapshot import Endpoint, Route, Snapshot
from headway.task import current_scope

if TYPE_CHECKING:
    from headway.transport.flight import Flight
    from headway.transport.signer import Signer

GENERATING = frozenset({"chat", "completions", "responses"})
COMPUTING = frozenset({"embeddings", "moderations"})
"""The same input has the same result, whatever the request says."""
SHAREABLE = GENERATING | COMPUTING
ROUTES_DEPTH_MAX = 8

_OF_THE_EXCHANGE = frozenset({
    b"accept-encoding", b"baggage", b"cache-control", b"connection", b"content-length",
    b"date", b"host", b"idempotency-key", b"newrelic", b"sentry-trace", b"b3", b"traceparent",
    b"tracestate", b"transfer-encoding", b"uber-trace-id", b"user-agent", b"x-amzn-trace-id",
    b"x-client-request-id", b"x-cloud-trace-context", b"x-correlation-id",
    b"x-ms-client-request-id", b"x-request-id",
})  # fmt: skip
_OF_THE_WAY = (
    b"__cf",
    b"_cfuvid",
    b"awsalb",
    b"awselb",
    b"arraffinity",
    b"gclb",
    b"incap_",
    b"visid_",
)
"""Cookies that CDNs and load balancers set to know a connection again: they differ by process."""
_OF_THE_EXCHANGE_PREFIXES = (b"x-stainless-", b"x-datadog-", b"x-b3-")


class Wish(NamedTuple):
    """What may be done with a call, by what it asks for."""

    may_join: bool
    """Another call's answer will do."""
    may_reuse: bool
    """A kept answer will do."""
    may_keep: bool
    """Its answer may be kept."""
    body: bytes
    """In its normal form."""


def wish_of(flight: Flight) -> Wish | None:
    """None: the call is of a kind that has its own request, always.

    Never shared: what is stored, runs tools at the provider's, continues something, is bound to an
    endpoint, or says `cache-control: no-store`. A call that asks for variety (a temperature above
    zero, or several choices, without a `seed`) joins no other; kept answers are only for calls
    that would get the same again: temperature zero, a `seed`, embeddings, moderations.
    """
    route, surface, facts = flight.call.route, flight.surface, flight.body_facts
    if (
        surface.name not in SHAREABLE
        or surface.pinned
        or not surface.repeatable
        or flight.facts.pinned_to is not None
        or flight.is_delegated
        or facts.store
        or (surface.name == "responses" and facts.store is not False)
    ):
        return None
    said = flight.request.headers.get("cache-control", "").lower()
    if "no-store" in said:
        return None
    try:
        parsed: object = facts.parsed if facts.parsed is not None else json.loads(flight.body)
        members = cast("dict[str, object]", parsed)
        body = _normal(members)
    except (ValueError, RecursionError):
        return None
    is_same = surface.name in COMPUTING or _repeats_itself(members)
    is_cached = is_same and route.cache.enabled
    wish = Wish(
        may_join=route.coalesce and (is_same or not _asks_for_variety(members, facts.choices)),
        may_reuse=is_cached and "no-cache" not in said,
        may_keep=is_cached,
        body=body,
    )
    return wish if wish.may_join or wish.may_keep else None


def _repeats_itself(members: Mapping[str, object]) -> bool:
    if members.get("seed") is not None:
        return True
    temperature = members.get("temperature")
    return (
        isinstance(temperature, int | float)
        and not isinstance(temperature, bool)
        and temperature == 0
    )


def _asks_for_variety(members: Mapping[str, object], choices: int) -> bool:
    best_of = members.get("best_of")
    return (
        members.get("temperature") is not None
        or choices > 1
        or (isinstance(best_of, int) and best_of > 1)
    )


def _normal(members: Mapping[str, object]) -> bytes:
    ordered = {name: members[name] for name in sorted(members)}
    return json.dumps(ordered, separators=(",", ":")).encode()


# --------------------------------------------------------------------------- what tells them apart


class Keys(NamedTuple):
    """The identity of a call, as digests: nothing can be read from them."""

    answer: str
    """Of calls that one answer serves, at any time."""
    call: str
    """Of calls that one request serves, at once: that also have the same limits."""


def reach_of(route: Route, snapshot: Snapshot) -> tuple[Endpoint, ...]:
    """Every endpoint that may come to answer a call of this route."""
    found: dict[str, Endpoint] = {}
    routes: list[Route] = [route]
    for depth, here in enumerate(routes):
        ids = {e for buckets in here.weights.by_zone.values() for _, w in buckets for e, _ in w}
        for fallback in here.fallback:
            if fallback.endpoint is not None:
                ids.add(fallback.endpoint)
            target = snapshot.route_named(fallback.route) if fallback.route else None
            if target is None and fallback.model:
                target = snapshot.route_for(fallback.model)
            if target is not None and target not in routes and depth < ROUTES_DEPTH_MAX:
                routes.append(target)
        found.update({e: snapshot.endpoints[e] for e in sorted(ids) if e in snapshot.endpoints})
    return tuple(found.values())


def keys_of(
    flight: Flight, body: bytes, reach: Iterable[Endpoint], secrets: Mapping[str, bytes]
) -> Keys:
    """The call's identity; `secrets` are fingerprints of the endpoints' keys, by name."""
    request, facts, call = flight.request, flight.facts, flight.call
    digest = blake2b(digest_size=20)
    _feed(digest, b"headway 1", request.method.encode(), flight.surface.name.encode())
    _feed(digest, repr(flight.desk.home.origin).encode(), request.url.raw_path)
    _feed(digest, call.route.name.encode(), _own_key(flight.desk.home.signer))
    for name, value in sorted((n.lower(), v) for n, v in request.headers.raw):
        if name == b"cookie":
            value = _without_the_way(value)
            if not value:
                continue
        if name not in _OF_THE_EXCHANGE and not name.startswith(_OF_THE_EXCHANGE_PREFIXES):
            _feed(digest, name, value)
    for endpoint in reach:
        what = (
            endpoint.id, endpoint.base_url, endpoint.dialect, endpoint.api_version,
            endpoint.upstream_model(facts.model), endpoint.params_drop,
            sorted(endpoint.params_rename.items()), sorted(endpoint.headers.items()),
        )  # fmt: skip
        _feed(digest, repr(what).encode(), repr(sorted(endpoint.params_set.items())).encode())
        _feed(digest, secrets.get(endpoint.credential or "", b""))
    tenant = current_scope().options.tenant
    if tenant is not None:
        _feed(digest, b"tenant", tenant.encode("utf-8", "surrogatepass"))
    _feed(digest, b"body", body)
    answer = digest.hexdigest()
    timeouts: dict[str, object] = request.extensions.get("timeout") or {}
    limits = (facts.priority, facts.traffic_class, facts.hedge, sorted(timeouts.items(), key=repr))
    _feed(digest, repr(limits).encode(), flight.desk.home.family.name.encode())
    return Keys(answer, digest.hexdigest())


_signers: weakref.WeakKeyDictionary[Signer, bytes] = weakref.WeakKeyDictionary()


def _own_key(signer: Signer | None) -> bytes:
    """What stands for the key of a client that signs: no header of its requests shows it here."""
    return b"" if signer is None else _signers.setdefault(signer, token_bytes())


def _without_the_way(cookies: bytes) -> bytes:
    each = (cookie.strip() for cookie in cookies.split(b";"))
    return b"; ".join(sorted(c for c in each if c and not c.lower().startswith(_OF_THE_WAY)))


def fingerprint(secret: str) -> bytes:
    """What stands for a key in an identity."""
    return blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _feed(digest: blake2b, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
