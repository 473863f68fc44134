"""Where stored objects live: object id -> endpoint id, bounded, forgotten oldest first.

An id that is not known (made by another process, or long ago) pins to the default endpoint: the
client's own, which is where a client without Headway would have sent it.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable

PINS_MAX = 4096
"""About 0.5 MB; an agent that keeps more conversations alive than this names them by session."""

IDS_PER_REPLY_MAX = 128
SCAN_BYTES = 1024 * 1024
ID_CHARS_MAX = 256

_RESPONSE_IDS = re.compile(
    rb'"(?:id|container_id|file_id)"\s*:\s*"((?:resp|conv|cntr|rs|cmp|file|vs|cfile)[_-][A-Za-z0-9_-]{1,200})"'
)
_ANY_IDS = re.compile(rb'"(?:[a-z]+_){0,3}id"\s*:\s*"([^"\\]{1,256})"')
_HEAD_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,256})"')


class PinMap:
    """A bounded, thread-safe map from object id to the endpoint that holds the object."""

    def __init__(self, size_max: int = PINS_MAX) -> None:
        self._size_max = size_max
        self._lock = threading.Lock()
        self._endpoints: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._endpoints)

    def record(self, ids: Iterable[str], endpoint_id: str) -> None:
        """Remember that `ids` live at `endpoint_id`."""
        with self._lock:
            for name in ids:
                if not name or len(name) > ID_CHARS_MAX:
                    continue
                self._endpoints[name] = endpoint_id
                self._endpoints.move_to_end(name)
            while len(self._endpoints) > self._size_max:
                self._endpoints.popitem(last=False)

    def find(self, *ids: str) -> str | None:
        """The endpoint that holds the first known of `ids`; None when none is known."""
        with self._lock:
            for name in ids:
                endpoint_id = self._endpoints.get(name)
                if endpoint_id is not None:
                    self._endpoints.move_to_end(name)
                    return endpoint_id
        return None

    def endpoint_ids(self) -> frozenset[str]:
        """Every endpoint that holds something."""
        with self._lock:
            return frozenset(self._endpoints.values())

    def forget(self, name: str) -> None:
        """Drop one id (its object was deleted)."""
        with self._lock:
            self._endpoints.pop(name, None)


def ids_in_response(surface: str, body: bytes) -> tuple[str, ...]:
    """Ids of the objects a JSON reply made or named, at most 128, in order of appearance.

    A key cannot be found inside a string (quotes there are escaped), and whatever id a reply names
    belongs to the endpoint that sent it, so no parse is needed.
    """
    if surface == "responses":
        pattern = _RESPONSE_IDS
    elif surface == "chat":
        found = _HEAD_ID.search(body, 0, 1024)
        return () if found is None else (found[1].decode("utf-8", "replace"),)
    else:
        pattern = _ANY_IDS
    ids: dict[str, None] = {}
    for match in pattern.finditer(body, 0, SCAN_BYTES):
        ids[match[1].decode("utf-8", "replace")] = None
        if len(ids) >= IDS_PER_REPLY_MAX:
            break
    return tuple(ids)
