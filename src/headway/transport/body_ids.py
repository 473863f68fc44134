"""What stands deep inside a request body: tools the provider runs, ids of stored objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

CLIENT_TOOLS = frozenset({"function", "custom", "namespace", "apply_patch", "local_shell"})
"""Tools that the application runs itself; all others run at the provider's, with effects there."""


def has_server_tools(members: Mapping[str, object]) -> bool:
    """Whether the provider is asked to run something: web search, code, MCP, plugins."""
    if members.get("plugins"):
        return True
    tools = members.get("tools")
    if not isinstance(tools, list):
        return False
    for tool in cast("list[object]", tools):
        kind = cast("dict[str, object]", tool).get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in CLIENT_TOOLS:
            return True
    return False


def stored_ids(parts: Iterable[object]) -> dict[str, str]:
    """Ids of the stored objects that tools and prompt parts name, each with its kind."""
    found: dict[str, str] = {}
    for part in parts:
        _collect_ids(part, found)
    return found


def _collect_ids(value: object, found: dict[str, str]) -> None:
    """Ids of stored objects under `value`, each with its kind. Iterative: depth is the caller's."""
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(reversed(cast("list[object]", item)))
        elif isinstance(item, dict):
            node = cast("dict[str, object]", item)
            kind = node.get("type")
            own_id = node.get("id")
            if kind == "item_reference" and isinstance(own_id, str):
                found.setdefault(own_id, "item")
            elif node.get("encrypted_content"):
                found.setdefault(own_id if isinstance(own_id, str) else "", "encrypted")
            if kind == "function":
                continue  # a tool's parameter schema names no stored object
            for key, entry in node.items():
                id_kind = _ID_KEYS.get(key)
                if id_kind is not None and isinstance(entry, str):
                    found.setdefault(entry, id_kind)
                elif id_kind is not None and isinstance(entry, list):
                    for name in cast("list[object]", entry):
                        if isinstance(name, str):
                            found.setdefault(name, id_kind)
                elif isinstance(entry, dict | list):
                    stack.append(cast("object", entry))


_ID_KEYS: dict[str, str] = {
    "file_id": "file",
    "file_ids": "file",
    "vector_store_ids": "vector_store",
    "container": "container",
    "container_id": "container",
    "skill_id": "skill",
}


def id_of(value: object) -> str | None:
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("id")
    return value if isinstance(value, str) and value else None
