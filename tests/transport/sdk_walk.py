"""The installed SDK, walked: every public method of every resource, and the requests it makes."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
from typing import Any

import openai
from openai._resource import AsyncAPIResource, SyncAPIResource

VERBS = {
    "_get": "GET",
    "_get_api_list": "GET",
    "_post": "POST",
    "_put": "PUT",
    "_patch": "PATCH",
    "_delete": "DELETE",
}
RESOURCES = (SyncAPIResource, AsyncAPIResource)


def requests_of(function: Any) -> list[tuple[str, str]]:
    """(verb, path) of the requests that a method makes by itself."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            verb = VERBS.get(node.func.attr)
            path = _path_of(node.args[0]) if verb else None
            if verb and path and path.startswith("/"):
                found.append((verb, path))
    return found


@functools.cache
def methods(client: type) -> dict[str, list[tuple[str, str]]]:
    """Dotted name of each public method -> the requests it makes by itself. Takes seconds: it imports
    all of the SDK and parses most of it."""
    found: dict[str, list[tuple[str, str]]] = {}
    _walk(client, (), found)
    return found


def _walk(cls: type, path: tuple[str, ...], found: dict[str, list[tuple[str, str]]]) -> None:
    for name, member in inspect.getmembers(cls):
        if name.startswith(("_", "with_")):
            continue
        if isinstance(member, functools.cached_property | property):
            resource = _resource(member)
            if resource is not None:
                _walk(resource, (*path, name), found)
        elif inspect.isfunction(member) and path:
            found[".".join((*path, name))] = requests_of(member)


def _resource(member: Any) -> type | None:
    """The resource class that a property of a client or resource gives."""
    getter: Any = member.func if isinstance(member, functools.cached_property) else member.fget
    note = getter.__annotations__.get("return")
    found: Any = note
    if isinstance(note, str):
        found = getter.__globals__.get(note)
        if found is None:  # imported where it is used
            source = inspect.getsource(getter)
            imported = re.search(rf"from (\S+) import [^\n]*\b{re.escape(note)}\b", source)
            if imported is not None:
                package = inspect.getmodule(getter).__package__  # type: ignore[union-attr]
                found = getattr(importlib.import_module(imported[1], package), note)
    return found if inspect.isclass(found) and issubclass(found, RESOURCES) else None


def _path_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_path_of(part) or "{id}" for part in node.values)
    if isinstance(node, ast.Call) and node.args:  # path_template("/files/{file_id}", file_id=...)
        return _path_of(node.args[0])
    return None


def sync() -> dict[str, list[tuple[str, str]]]:
    return methods(openai.OpenAI)


def asynchronous() -> dict[str, list[tuple[str, str]]]:
    return methods(openai.AsyncOpenAI)


def resources() -> list[str]:
    """The names of a client's resources, without a look at any of them."""
    return [
        name
        for name, member in inspect.getmembers(openai.OpenAI)
        if isinstance(member, functools.cached_property) and not name.startswith(("_", "with_"))
    ]
