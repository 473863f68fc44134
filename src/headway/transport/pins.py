"""Where stored objects live: object id -> endpoint id, bounded, forgotten oldest first.

An id that is not known (made by another process, or long ago) pins to the client's own endpoint,
which is where a client without Headway would have sent it. So what lives there isn't remembered,
unless clients of several endpoints share the map.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import cast

from headway.quirks.usage import load_json

PINS_MAX = 4096
"""About 0.5 MB; an agent that keeps more conversations alive than this names them by session."""

HOMES_MAX = 2
"""One more than one is all there is to know."""
IDS_PER_REPLY_MAX = 128
SCAN_BYTES = 1024 * 1024
ID_CHARS_MAX = 256

_RESPONSE_IDS = re.compile(
    rb'"(?:id|container_id|file_id)"\s*:\s*"((?:resp|conv|cntr|rs|cmp|file|vs|cfile)[_-][A-Za-z0-9_-]{1,200})"'
)
_NAMES_OBJECT = re.compile(r"(?:[a-z_]*_)?(?:ids?|files?|container|assistant)")
"""Members whose values are ids: `id`, `input_file_id`, `vector_store_ids`, `training_file`..."""
_USERS_OWN = frozenset({"metadata", "content", "instructions", "text"})
"""What these hold is the application's, whatever it looks like."""
_HEAD_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,256})"')


class PinMap:
    """A bounded, thread-safe map from object id to the endpoint that holds the object."""

    def __init__(self, size_max: int = PINS_MAX) -> None:
        self._size_max = size_max
        self._lock = threading.Lock()
        self._endpoints: OrderedDict[str, str] = OrderedDict()
        self._homes: set[object] = set()

    def serve(self, home: object) -> None:
        """A client whose own endpoint this is uses the map, too."""
        if len(self._homes) < HOMES_MAX:
            self._homes.add(home)

    @property
    def is_shared(self) -> bool:
        """Clients of different endpoints use it: none of them is where all unknown objects are."""
        return len(self._homes) > 1

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

    def after_fork(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = threading.Lock()

    def forget(self, name: str) -> None:
        """Drop one id (its object was deleted)."""
        with self._lock:
            self._endpoints.pop(name, None)


def ids_in_response(surface: str, body: bytes) -> tuple[str, ...]:
    """Ids of the objects a JSON reply made or named, at most 128, in order of appearance.

    Whatever id a reply names belongs to the endpoint that sent it. Replies of models aren't parsed:
    a key cannot be found inside a string, since quotes there are escaped.
    """
    if surface == "chat":
        found = _HEAD_ID.search(body, 0, 1024)
        return () if found is None else (found[1].decode("utf-8", "replace"),)
    if surface != "responses":
        return ids_in_document(body)
    ids: dict[str, None] = {}
    for match in _RESPONSE_IDS.finditer(body, 0, SCAN_BYTES):
        ids[match[1].decode("utf-8", "replace")] = None
        if len(ids) >= IDS_PER_REPLY_MAX:
            break
    return tuple(ids)


def ids_in_document(body: bytes) -> tuple[str, ...]:
    """Ids of the objects that a JSON document names, whatever it is; at most 128."""
    if len(body) > SCAN_BYTES:
        return ()
    try:
        document = load_json(body)
    except (ValueError, RecursionError):
        return ()
    return ids_in(document)


def ids_in(document: object) -> tuple[str, ...]:
    """The same of a document already parsed."""
    ids: dict[str, None] = {}
    for name in _named_in(document):
        if 0 < len(name) <= ID_CHARS_MAX:
            ids[name] = None
        if len(ids) >= IDS_PER_REPLY_MAX:
            break
    return tuple(ids)


def _named_in(document: object) -> Iterator[str]:
    """Values of members that are called like ids, in order of appearance. Iterative."""
    stack: list[tuple[str, object]] = [("", document)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, str):
            if _NAMES_OBJECT.fullmatch(key):
                yield value
        elif isinstance(value, dict):
            members = cast("dict[str, object]", value)
            stack.extend(item for item in reversed(members.items()) if item[0] not in _USERS_OWN)
        elif isinstance(value, list):
            stack.extend((key, item) for item in reversed(cast("list[object]", value)))
