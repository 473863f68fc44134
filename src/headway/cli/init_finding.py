"""What a first policy can be made of: a client, or what the environment has. Reads no key."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from headway.cli.providers import PROVIDERS
from headway.credentials import ENV_PREFIX
from headway.hosts import split_url

CLIENT: Final = "client"
"""The id of a client's own endpoint."""
AZURE_KEYS: Final = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN")
LOOKED_FOR: Final = (
    "OPENAI_API_KEY, OPENAI_BASE_URL, AZURE_OPENAI_ENDPOINT or another provider's key"
)


class Found(NamedTuple):
    """Endpoints as in a document, in order of precedence."""

    endpoints: dict[str, dict[str, Any]]
    unused: dict[str, str]
    """Other providers, and the variable that their key is in: they lack a model to be asked for."""
    hints: tuple[str, ...] = ()
    """What to do in code, and what was seen and is not enough."""


def in_environment(environ: Mapping[str, str], names: Mapping[str, str]) -> Found:
    """What the environment has. `names`: the model to ask for, by provider."""
    found: dict[str, dict[str, Any]] = {}
    hints: list[str] = []
    base, key = environ.get("OPENAI_BASE_URL"), environ.get("OPENAI_API_KEY")
    if base or key:
        found["openai"] = {"base_url": (base or "https://api.openai.com/v1").rstrip("/")}
        if key:
            found["openai"]["credential"] = f"{ENV_PREFIX}OPENAI_API_KEY"
    azure = environ.get("AZURE_OPENAI_ENDPOINT")
    if azure:
        found["azure"] = {"base_url": azure.rstrip("/"), "dialect": "azure"}
        if environ.get("OPENAI_API_VERSION"):
            found["azure"]["api_version"] = environ["OPENAI_API_VERSION"]
        elif not found["azure"]["base_url"].endswith("/openai/v1"):
            hints.append("azure: OPENAI_API_VERSION is not set: clients have to name one")
        if environ.get(AZURE_KEYS[0]):
            found["azure"]["credential"] = f"{ENV_PREFIX}{AZURE_KEYS[0]}"
    else:
        hints += [
            f"{name} is set, but AZURE_OPENAI_ENDPOINT is not: it is not used"
            for name in AZURE_KEYS
            if environ.get(name)
        ]
    unused: dict[str, str] = {}
    seen = {one["base_url"] for one in found.values()}
    for name, row in PROVIDERS.items():
        if name == "azure" or not row.base_url or row.key == "OPENAI_API_KEY":
            continue  # no address of its own, or what was looked at above
        variable = row.key_set(environ)
        if variable is None or row.base_url in seen:
            continue
        if name in names:
            found[name] = {"base_url": row.base_url, "credential": f"{ENV_PREFIX}{variable}"}
        else:
            unused[name] = variable
    for name, model in names.items():
        if name in found:
            found[name]["model"] = model
    return Found(found, unused, tuple(hints))


def loaded(place: str) -> object:
    """The client at `module:name`, or what a function there makes. Raises ValueError."""
    module, separator, path = place.partition(":")
    if not (module and separator and path):
        raise ValueError(f"--from {place}: expected MODULE:CLIENT")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` has it; a console script has not
    try:
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found() if not hasattr(found, "base_url") and callable(found) else found
    except Exception as error:  # noqa: BLE001 - whatever somebody else's module raises
        # Its text may quote what it was given: a key, for example.
        why = f": {error}" if isinstance(error, ImportError | AttributeError) else ""
        raise ValueError(f"--from {place}: {type(error).__name__}{why}") from None


def of_client(client: object, place: str) -> Found:
    """A client's own endpoint. Its key stays its own: the document names none.

    Raises ValueError.
    """
    import openai

    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise ValueError(
            f"--from {place}: expected an OpenAI or AsyncOpenAI client, not {type(client).__name__}"
        )
    try:
        origin, path = split_url(str(client.base_url))
    except ValueError as error:
        raise ValueError(f"--from {place}: its base_url: {error}") from None
    endpoint: dict[str, Any] = {"base_url": f"{origin}{path}".rstrip("/")}
    if isinstance(client, openai.AzureOpenAI | openai.AsyncAzureOpenAI):
        endpoint["dialect"] = "azure"
        if not path.rstrip("/").endswith("/openai/v1"):
            # Of a resource: the dialect writes the rest, as the client does.
            endpoint["base_url"] = f"{origin}{path.partition('/openai')[0]}"
            endpoint["api_version"] = client._api_version
        deployment = getattr(client, "_azure_deployment", None)
        if deployment:
            endpoint["model"] = deployment
    hint = "client: its own key is used, and goes to its own host alone"
    if getattr(client, "_provider_runtime", None) is not None:  # it signs each request
        endpoint["credential"] = CLIENT
        hint = (
            f'client: it signs its requests: Router(clients={{"{CLIENT}": {place.split(":")[1]}}})'
        )
    return Found({CLIENT: endpoint}, {}, (hint,))


def beside(first: Found, others: Found) -> Found:
    """The first's endpoints, and those of the others that are somewhere else."""
    there = {one["base_url"] for one in first.endpoints.values()}
    hosts = {str(split_url(url)[0]) for url in there}
    endpoints = dict(first.endpoints)
    endpoints |= {
        name: one
        for name, one in others.endpoints.items()
        if one["base_url"] not in there and one["base_url"] not in hosts
    }
    hints = (*first.hints, *others.hints)
    return Found(endpoints, others.unused, hints)
