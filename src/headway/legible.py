"""What a router shows of itself, as text for people: `print(router.status())`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.snapshot import Snapshot
    from headway.core.views import EndpointStatus
    from headway.router import RouterStatus

NEAR_MAX = 3
"""Names that a typo may have meant."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns that line up, two spaces apart."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def status_text(status: RouterStatus) -> str:
    """The whole status: policy, endpoints, routes."""
    return "\n".join(_status_lines(status))


def _status_lines(status: RouterStatus) -> Iterator[str]:
    if status.disabled:
        yield "disabled (HEADWAY_DISABLED): every call passes straight through, none is counted"
        return
    policy = status.policy
    notes = [
        status.mode,
        f"{policy.age_s:.0f} s old",
        *(["stale"] if policy.stale else []),
        *(["expired"] if policy.expired else []),
    ]
    name = f"policy {policy.policy_id!r} " if policy.policy_id else "policy "
    yield f"{name}version {policy.version} ({', '.join(notes)})"
    if policy.last_error:
        yield f"  last look at {policy.source}: {policy.last_error}"
    yield from (f"  {warning}" for warning in policy.warnings)
    yield table(
        ("endpoint", "state", "in flight", "limit", "seen/planned", "kept from calls by"),
        (
            (
                row.endpoint_id,
                row.state,
                str(row.in_flight),
                "-" if row.limit is None else f"{row.limit:.0f}",
                "-" if row.residual is None else f"{row.residual:.2f}",
                "; ".join(_obstacles(row)) or "-",
            )
            for row in status.endpoints
        ),
    )
    if status.pools:
        yield table(
            ("route", "in flight", "queued", "retry budget"),
            (
                (
                    row.route,
                    str(row.in_flight),
                    str(row.queued),
                    f"{row.retry_budget:.1f} of {row.retry_capacity:.0f}",
                )
                for row in status.pools
            ),
        )
    seen = status.observed
    if seen.calls:
        yield (
            f"observed {seen.calls} calls: {seen.elsewhere} would have gone elsewhere, "
            f"{seen.refused} been refused, {seen.retried} been retried"
        )
    fleet = status.fleet
    if fleet is not None:
        is_lost = fleet.is_reachable is False
        yield f"fleet rates: {f'store unreachable ({fleet.reason})' if is_lost else 'shared'}"


def _obstacles(row: EndpointStatus) -> Iterator[str]:
    """Why calls may not come here, and for how long."""
    for breaker in row.breakers:
        if breaker.state != "closed":
            left = f", {breaker.opens_in_s:.0f} s" if breaker.opens_in_s > 0 else ""
            yield f"breaker of {breaker.model} {breaker.state} ({breaker.reason}{left})"
    for model, reason, left_s in row.out:
        yield f"{model} {reason} ({left_s:.0f} s)"
    if row.credential_blocked_s > 0:
        yield f"key blocked ({row.credential_blocked_s:.0f} s)"
    if row.ejected_s > 0:
        yield f"ejected ({row.ejected_s:.0f} s)"


def unrouted(model: str, surface: str, snapshot: Snapshot) -> str:
    """That no route takes such a call, what becomes of it, and what may have been meant."""
    known = sorted({name for route in snapshot.routes for name in route.match.models})
    near = difflib.get_close_matches(model, known, n=NEAR_MAX)
    meant = f" Near: {', '.join(map(repr, near))}." if near else ""
    return (
        f"No route of the policy matches model {model!r} ({surface}): such a call passes to the "
        f"client's own endpoint as it is.{meant}"
    )
