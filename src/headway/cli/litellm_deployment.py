"""An entry of LiteLLM's `model_list` as an endpoint."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headway.cli.foreign import (
    ENVIRON,
    FIGURE_MAX,
    PER_TOKEN_MAX,
    Reading,
    free,
    is_one_model,
    per_mtok,
    slug,
)
from headway.cli.providers import PROVIDERS
from headway.credentials import ENV_PREFIX
from headway.hosts import is_loopback, split_url
from headway.policy.fields import JsonPath

_GUESSED = (
    (re.compile(r"(gpt-|chatgpt-|o[1-9]|text-embedding-|dall-e|whisper|tts-|omni-)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)
_PRICES = {
    "input_cost_per_token": "input_per_mtok",
    "output_cost_per_token": "output_per_mtok",
    "cache_read_input_token_cost": "cached_input_per_mtok",
    "cache_creation_input_token_cost": "cache_write_per_mtok",
}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class Deployment(NamedTuple):
    """One that has become an endpoint."""

    path: JsonPath
    id: str
    model_name: str
    endpoint: dict[str, Any]
    """As in a document."""


def deployment(reading: Reading, index: int, taken: set[str]) -> Deployment | None:
    """Make an endpoint; None where it can't be one, which is reported."""
    path: JsonPath = ("model_list", index)
    params: JsonPath = (*path, "litellm_params")
    name = reading.take((*path, "model_name"), str)
    model = reading.take((*params, "model"), str)
    if not name or not model:
        reading.lost(path, "left out: it has no model_name, or no litellm_params.model")
        return None
    if (name, model) == ("*", "*"):
        reading.lost(path, "left out: each call's model names its provider: list the models")
        return None
    provider, upstream = _provider(reading, params, model)
    if provider not in PROVIDERS:
        reading.lost(path, _unknown(provider))
        return None
    if not upstream:
        reading.lost(path, "left out: litellm_params.model names a provider and no model")
        return None
    if not (is_one_model(name) and is_one_model(upstream)) and (name, upstream) != ("*", "*"):
        reading.lost(path, "left out: names with a * that rewrite the model asked for, or too long")
        return None
    base_url = _base_url(reading, params, provider)
    if base_url is None:
        reading.lost(path, "left out: where it is can't be told (api_base)")
        return None
    endpoint_id = _id(reading, path, name, taken)
    made: dict[str, Any] = {"base_url": base_url}
    if upstream != "*":
        made["model"] = upstream
    if provider == "azure":
        made["dialect"] = "azure"
        version = reading.text((*params, "api_version")) or reading.variable("AZURE_API_VERSION")
        if version:
            made["api_version"] = version
        elif not base_url.endswith("/openai/v1"):
            reading.differs(path, "no api_version is given, nor AZURE_API_VERSION set: name one")
    credential = _credential(reading, params, provider, endpoint_id)
    if credential is not None:
        made["credential"] = credential
    _figures(reading, path, made)
    return Deployment(path, endpoint_id, name, made)


def _unknown(provider: str) -> str:
    if not provider:
        return "left out: its provider can't be told from the model's name"
    return (
        f"left out: {provider} is not known to speak the OpenAI API; where an SDK client speaks to "
        "it, declare that as an endpoint: Router(clients={...})"
    )


def _provider(reading: Reading, params: JsonPath, model: str) -> tuple[str, str]:
    said = reading.take((*params, "custom_llm_provider"), str)
    prefix, slash, rest = model.partition("/")
    if said:
        return said, rest if slash and prefix == said else model
    if slash:
        return prefix, rest
    guessed = next((name for pattern, name in _GUESSED if pattern.match(model)), "")
    return guessed, model


def _base_url(reading: Reading, params: JsonPath, provider: str) -> str | None:
    at = next((k for k in ("api_base", "base_url") if reading.look((*params, k))), None)
    row = PROVIDERS[provider]
    if at is not None:
        base = reading.text((*params, at))
    else:
        base = row.base_url or reading.variable(f"{provider.upper()}_API_BASE")
    if base is None:
        return None
    base = base.rstrip("/")
    if row.suffix and not base.endswith(row.suffix):
        base += row.suffix
    try:
        origin, _ = split_url(base)
    except ValueError:
        return None
    if origin.scheme == "http" and not is_loopback(origin.host):
        place = (*params, at) if at is not None else params
        reading.differs(place, f'plain http: code has to allow it: allowed_hosts=["{origin}"]')
    return base


def _credential(reading: Reading, params: JsonPath, provider: str, endpoint_id: str) -> str | None:
    path = (*params, "api_key")
    key = reading.take(path, str)
    default = PROVIDERS[provider].key
    if not key:
        return None if default is None else f"{ENV_PREFIX}{default}"
    if key.startswith(ENVIRON):
        return f"{ENV_PREFIX}{key.removeprefix(ENVIRON)}"
    reading.lost(
        path,
        "a key that stands in the file is not taken over: declare it in code, "
        f'credentials={{"{endpoint_id}": Credential(env=..., hosts=[...])}}',
    )
    return endpoint_id


def _figures(reading: Reading, path: JsonPath, made: dict[str, Any]) -> None:
    """Limits and prices, wherever LiteLLM lets them stand."""
    places = ((*path, "litellm_params"), (*path, "model_info"), path)
    limits = {"rpm": "rpm", "tpm": "tpm", "max_parallel_requests": "concurrency"}
    capacity: dict[str, Any] = {
        ours: int(figure) if ours == "concurrency" else figure
        for theirs, ours in limits.items()
        if (figure := _first(reading, places, theirs, least=1))
    }
    price = {
        ours: per_mtok(cost)
        for theirs, ours in _PRICES.items()
        if (cost := _first(reading, places, theirs, least=0, most=PER_TOKEN_MAX)) is not None
    }
    made.update({k: v for k, v in (("capacity", capacity), ("price", price)) if v})


def _first(
    reading: Reading,
    places: tuple[JsonPath, ...],
    name: str,
    *,
    least: float,
    most: float = FIGURE_MAX,
) -> float | None:
    """What is said first, if it can be said here; what can't be stays, and is reported."""
    figures = (reading.figure((*place, name), least=least, most=most) for place in places)
    return next((figure for figure in figures if figure is not None), None)


def _id(reading: Reading, path: JsonPath, name: str, taken: set[str]) -> str:
    wanted = reading.take((*path, "model_info", "id"), str)
    if wanted is None or not _ID.fullmatch(wanted):
        stem = slug(name)
        wanted = f"{stem}-{1 + sum(t.rpartition('-')[0] == stem for t in taken)}"
    return free(wanted, taken)
