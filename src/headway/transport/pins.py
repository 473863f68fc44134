"""(signatures first; bodies follow)"""

from __future__ import annotations

from collections.abc import Iterable


class PinMap:
    def __init__(self, size_max: int = 4096) -> None:
        raise NotImplementedError

    def record(self, ids: Iterable[str], endpoint_id: str) -> None:
        raise NotImplementedError

    def find(self, *ids: str) -> str | None:
        """The endpoint that holds the first known of `ids`; None when none is known."""
        raise NotImplementedError


def ids_in_response(surface: str, body: bytes) -> tuple[str, ...]:
    """Ids of objects a reply created or named (response, conversation, file, batch, container...)."""
    raise NotImplementedError
