"""Bytes -> verified snapshot. Pure: no clock, no I/O; `wall_now` comes in.

The order is that of the contract: size, syntax, version, fields, then what only the whole shows,
then what this process trusts. A part that is wrong takes the document with it, but for one case: an
endpoint that can't be used is left out, with a warning, as long as no route loses more than a third
of its weight by it.
"""

from __future__ import annotations

import copy
import enum
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import pydantic

from headway.core.snapshot import Snapshot
from headway.credentials import Credential
from headway.errors import FetchError, VerifyError
from headway.hosts import check_patterns
from headway.policy.blocks import WeightBucket
from headway.policy.checks import candidates, cross_problems, weight_tables
from headway.policy.compile import build_snapshot
from headway.policy.fields import JsonPath
from headway.policy.models import FEATURES, SCHEMA_VERSION, Policy, PolicyLike, Route
from headway.policy.parse import DOCUMENT_BYTES_MAX, check_tree, parse, path_text, refuse, show
from headway.policy.problems import Problem, first_error, problems_from
from headway.policy.trust import Trust, endpoint_problems

log = logging.getLogger("headway.policy")

LOST_WEIGHT_MAX = 1 / 3
CLOCK_SKEW_S = 300.0
WARNINGS_MAX = 8  # each kind; the rest is counted
ROUNDS_MAX = 4  # a field forgiven may uncover faults, so validation runs again, a few times
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


class Compiled(NamedTuple):
    """A document that was accepted, and what was forgiven in it."""

    snapshot: Snapshot
    warnings: tuple[str, ...] = ()
    signed_by: tuple[str, ...] = ()
    """Ids of the pinned keys that vouch for it."""


class Order(enum.Enum):
    """How an offered document stands to what is trusted already."""

    NEWER = "newer"
    SAME = "same"
    OLDER = "older"


def order(offered: tuple[int, int], trusted: tuple[int, int] | None) -> Order:
    """Compare `(epoch, version)` pairs: only a newer document replaces a trusted one."""
    if trusted is None or offered > trusted:
        return Order.NEWER
    return Order.SAME if offered == trusted else Order.OLDER


def compile_document(
    content: bytes,
    *,
    source: str,
    allowed_hosts: Iterable[str] | None = None,
    credentials: Mapping[str, Credential] | None = None,
    zone: str | None = None,
    wall_now: float = 0.0,
    current: tuple[int, int] | None = None,
    fetched: bool = True,
    format: str = "json",  # noqa: A002
) -> Snapshot:
    """Verify a document and compile it for a caller in `zone`; warnings are logged.

    `fetched` is False only for documents that the application itself names. `current` is the
    `(epoch, version)` already trusted: an older document raises VerifyError. Everything else that
    is wrong raises ValidationError.
    """
    trust = Trust(
        fetched=fetched,
        allowed_hosts=None if allowed_hosts is None else check_patterns(allowed_hosts),
        credentials=credentials,
    )
    compiled = read_document(
        content, trust=trust, zone=zone, wall_now=wall_now, source=source, format=format
    )
    snapshot = compiled.snapshot
    if order((snapshot.epoch, snapshot.version), current) is Order.OLDER:
        raise VerifyError(
            f"got {snapshot.version} (epoch {snapshot.epoch})",
            path="version",
            expected=f"more than {current}, the (epoch, version) in force",
            source=source,
        )
    for warning in compiled.warnings:
        log.warning("%s", warning)
    return snapshot


def read_document(
    content: bytes,
    *,
    trust: Trust,
    zone: str | None,
    wall_now: float,
    source: str,
    format: str = "json",  # noqa: A002
) -> Compiled:
    """As `compile_document`, with the warnings returned instead of logged."""
    tree = parse(content, format=format, source=source)
    policy, warnings, dropped = _validated(tree, source, strict=False)
    dropped |= endpoint_problems(policy, trust)
    if dropped:
        policy = _without(policy, dropped, source)
        told = list(dropped.values())[:WARNINGS_MAX]
        warnings += [f"endpoint left out: {problem.error(source)}" for problem in told]
        if len(dropped) > len(told):
            warnings.append(f"{source}: left out as well: {len(dropped) - len(told)} more")
    _check_whole(policy, source)
    if policy.issued_at is not None and policy.issued_at.timestamp() > wall_now + CLOCK_SKEW_S:
        warnings.append(f"{source}: issued_at is in the future: check both clocks")
    return Compiled(build_snapshot(policy, source=source, zone=zone), tuple(warnings))


def compile_policy(policy: Policy, *, source: str, zone: str | None, trust: Trust) -> Snapshot:
    """Compile a policy made in code. Nothing is forgiven: its author is at hand."""
    problems = list(endpoint_problems(policy, trust).values())
    if problems:
        raise first_error(problems, source)
    _check_whole(policy, source)
    return build_snapshot(policy, source=source, zone=zone)


def load_policy(document: PolicyLike) -> Policy:
    """Read and check a document; see `Policy.load`."""
    if isinstance(document, Policy):
        _check_whole(document, None)
        return document
    if isinstance(document, Mapping):
        tree: object = dict(document)
        source = None
        check_tree(tree)
    else:
        content, text_format, source = _local_bytes(document)
        tree = parse(content, format=text_format, source=source)
    return _strict(tree, source)


def read_local(content: bytes, *, format: str, source: str) -> Policy:  # noqa: A002
    """As `load_policy`, for bytes whose format is known."""
    return _strict(parse(content, format=format, source=source), source)


def _strict(tree: object, source: str | None) -> Policy:
    policy, warnings, _ = _validated(tree, source, strict=True)
    _check_whole(policy, source)
    for warning in warnings:
        log.warning("%s", warning)
    return policy


def format_of(path: str | os.PathLike[str]) -> str:
    """How a file is written, by its name: "yaml" or "json"."""
    return "yaml" if Path(path).suffix.lower() in {".yaml", ".yml"} else "json"


def _local_bytes(document: bytes | str | os.PathLike[str]) -> tuple[bytes, str, str | None]:
    if isinstance(document, bytes):
        return document, "json", None
    if isinstance(document, str) and document.lstrip().startswith("{"):
        return document.encode("utf-8", "surrogatepass"), "json", None
    path = Path(document)
    try:
        with path.open("rb") as file:
            content = file.read(DOCUMENT_BYTES_MAX + 1)  # one more, so that `parse` sees it
    except (OSError, ValueError) as exc:
        raise FetchError(f"can't be read: {exc}", source=str(path)) from exc
    return content, format_of(path), str(path)


# ----------------------------------------------------------------------------- fields


def _validated(
    tree: object, source: str | None, *, strict: bool
) -> tuple[Policy, list[str], dict[str, Problem]]:
    """Check the fields: (policy, warnings, endpoints taken out for their own faults)."""
    if not isinstance(tree, dict):
        refuse((), f"got {show(tree)}", expected="an object", source=source)
    document = cast("dict[str, Any]", tree)
    newer = _check_head(document, source)
    ignored: list[str] = []
    dropped: dict[str, Problem] = {}
    for _ in range(ROUNDS_MAX):
        try:
            policy = Policy.model_validate(document)
        except pydantic.ValidationError as exc:
            found = exc.errors(include_url=False)
            problems = problems_from(found)
            unknown = [p.path for p in problems if p.unknown_field]
            faulty = {} if strict else _endpoint_faults(problems, document)
            if unknown and newer:
                document = _pruned(document, unknown)
                ignored += [path_text(path) for path in unknown]
            elif faulty and not unknown:
                document = _pruned(document, [("endpoints", name) for name in faulty])
                dropped |= faulty
            else:
                raise first_error(problems, source) from None
        else:
            return policy, _ignored_warning(ignored, document, source), dropped
    return _refuse_rounds(source, dropped)


def _refuse_rounds(source: str | None, dropped: Mapping[str, Problem]) -> NoReturn:
    if dropped:
        raise first_error(list(dropped.values()), source)
    refuse((), "too many faults", expected="a document of version 1.0", source=source)


def _check_head(document: Mapping[str, Any], source: str | None) -> bool:
    """Refuse what we can't understand; True when the minor version is newer than ours."""
    ours = f"{SCHEMA_VERSION[0]}.{SCHEMA_VERSION[1]}"
    if "schema_version" not in document:
        refuse(("schema_version",), "missing", expected=f'"{ours}"', source=source)
    text = document["schema_version"]
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        expected = f'text such as "{ours}" (in quotes)'
        refuse(("schema_version",), f"got {show(text)}", expected=expected, source=source)
    if int(found[1]) != SCHEMA_VERSION[0]:
        expected = f"{SCHEMA_VERSION[0]}.x, which this version of headway reads"
        refuse(("schema_version",), f"got {show(text)}", expected=expected, source=source)
    features = document.get("must_understand")
    for i, feature in enumerate(
        cast("list[object]", features) if isinstance(features, list) else ()
    ):
        if isinstance(feature, str) and feature not in FEATURES:
            expected = "a feature this version of headway knows"
            refuse(("must_understand", i), f"got {show(feature)}", expected=expected, source=source)
    return int(found[2]) > SCHEMA_VERSION[1]


def _ignored_warning(
    ignored: list[str], document: Mapping[str, Any], source: str | None
) -> list[str]:
    if not ignored:
        return []
    where = f"{source}: " if source else ""
    return [
        f"{where}fields of schema {document['schema_version']} that this version of headway "
        f"doesn't know are ignored: {', '.join(ignored[:WARNINGS_MAX])}"
        + (f" and {len(ignored) - WARNINGS_MAX} more" if len(ignored) > WARNINGS_MAX else "")
    ]


def _pruned(document: dict[str, Any], paths: Iterable[JsonPath]) -> dict[str, Any]:
    document = copy.deepcopy(document)
    for path in paths:
        node: Any = document
        for part in path[:-1]:
            node = node[part]
        node.pop(path[-1], None)
    return document


def _endpoint_faults(
    problems: Iterable[Problem], document: Mapping[str, Any]
) -> dict[str, Problem]:
    """The first problem of each faulty endpoint, unless that is all of them."""
    faults: dict[str, Problem] = {}
    for problem in problems:
        if problem.path[:1] == ("endpoints",) and len(problem.path) > 1:
            faults.setdefault(str(problem.path[1]), problem)
    return faults if faults and len(faults) < len(document["endpoints"]) else {}


# ----------------------------------------------------------------------------- the whole


def _check_whole(policy: Policy, source: str | None) -> None:
    problems = cross_problems(policy)
    if problems:
        raise first_error(problems, source)


def _without(policy: Policy, dropped: Mapping[str, Problem], source: str) -> Policy:
    """The policy without the dropped endpoints; refused where a route would lose too much."""
    for i, route in enumerate(policy.routes):
        lost, culprit = _lost_weight(route, policy, dropped)
        if lost > LOST_WEIGHT_MAX:
            note = f"; leaving it out would take {lost:.0%} of routes[{i}]'s weight"
            raise dropped[culprit].error(source, note=note)
    endpoints = {k: v for k, v in policy.endpoints.items() if k not in dropped}
    if not endpoints:
        raise first_error(list(dropped.values()), source)
    routes = tuple(_route_without(route, dropped) for route in policy.routes)
    return policy.model_copy(update={"endpoints": endpoints, "routes": routes})


def _lost_weight(route: Route, policy: Policy, dropped: Mapping[str, Problem]) -> tuple[float, str]:
    """The largest share of any of the route's tables that is dropped, and one endpoint of it."""
    tables = [dict(table) for *_, table in weight_tables(route)]
    if route.weights is None:
        ids = {*candidates(route, policy)}
        if route.endpoints is None:  # those that pydantic refused are no longer in the policy
            ids |= dropped.keys() - {f.endpoint for f in route.fallback}
        tables = [dict.fromkeys(ids, 1.0)]
    worst, culprit = 0.0, ""
    for table in tables:
        lost = {k: w for k, w in table.items() if k in dropped and w > 0}
        if lost and (share := sum(lost.values()) / sum(table.values())) > worst:
            worst, culprit = share, max(lost, key=lambda k: lost[k])
    return worst, culprit


def _route_without(route: Route, dropped: Mapping[str, Problem]) -> Route:
    def kept(weights: Any) -> Any:  # any of the shapes of `Weights`
        if isinstance(weights, tuple):
            return tuple(
                bucket.model_copy(update={"weights": kept(bucket.weights)})
                for bucket in cast("tuple[WeightBucket, ...]", weights)
            )
        table = cast("dict[str, Any]", weights)
        return {
            key: kept(value) if isinstance(value, dict) else value
            for key, value in table.items()
            if isinstance(value, dict) or key not in dropped
        }

    return route.model_copy(
        update={
            "weights": None if route.weights is None else kept(route.weights),
            "endpoints": None
            if route.endpoints is None
            else tuple(e for e in route.endpoints if e not in dropped),
            "fallback": tuple(f for f in route.fallback if f.endpoint not in dropped),
        }
    )
