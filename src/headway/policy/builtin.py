"""The policy of a client that has none: everything goes where it would have gone."""

from __future__ import annotations

from headway.core.model import INFINITY
from headway.core.snapshot import Endpoint, Route, Snapshot, TrafficClass, WeightTable
from headway.hosts import split_url

ENDPOINT_ID = "default"
CLASSES = {
    "interactive": TrafficClass(priority=10),
    "background": TrafficClass(priority=-10),
}
"""Classes that every policy has: a task may name them without a document that defines them."""


def pass_through(base_url: str, *, dialect: str = "openai") -> Snapshot:
    """A snapshot with one endpoint at the client's own `base_url`, for every model.

    The client's own key is used and the requested model is sent on. Unlike a document's, the URL
    may be any that the client accepts: the application chose it, and goes there without us too.
    """
    try:
        origin, path = split_url(base_url)
    except ValueError:
        url = base_url.rstrip("/")
    else:
        url = f"{origin}{path}"
    return Snapshot(
        policy_id="builtin",
        source="builtin",
        endpoints={ENDPOINT_ID: Endpoint(id=ENDPOINT_ID, base_url=url, dialect=dialect)},
        routes=(
            Route(
                name="*",
                weights=WeightTable(by_zone={"*": ((INFINITY, ((ENDPOINT_ID, 1.0),)),)}),
                endpoint_ids=frozenset({ENDPOINT_ID}),
            ),
        ),
        classes=CLASSES,
        pass_through=True,
    )
