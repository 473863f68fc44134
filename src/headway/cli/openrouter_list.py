"""OpenRouter's lists of models and providers as a policy.

Three shapes: what requests say (`model`, `models`, `provider`), one of it or a list; the list of
models that `GET /models` answers; and the list of a model's providers that `GET
/models/AUTHOR/NAME/endpoints` answers, of which each becomes an endpoint of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headway.cli.foreign import (
    PER_TOKEN_MAX,
    Imported,
    Reading,
    free,
    is_one_model,
    per_mtok,
    slug,
    usd,
)
from headway.cli.providers import PROVIDERS
from headway.credentials import ENV_PREFIX
from headway.policy.fields import JsonPath

PREFERENCES: Final = ("provider", "plugins", "transforms")
"""Fields of a request that say how OpenRouter routes it: no call of the OpenAI SDK has them."""
FALLBACKS_MAX = 32  # the format's
PRICES: Final = {
    "prompt": "input_per_mtok",
    "completion": "output_per_mtok",
    "input_cache_read": "cached_input_per_mtok",
    "input_cache_write": "cache_write_per_mtok",
}
_DESCRIBES = "only describes the model"
_SEEN = "each process goes by what it sees itself"
REASONS: Final = {
    **dict.fromkeys(
        (
            *("name", "created", "description", "architecture", "top_provider", "supports_tools"),
            *("canonical_slug", "hugging_face_id", "model_name", "model_id", "quantization"),
            *("supported_parameters", "default_parameters", "per_request_limits", "links"),
            *("supports_implicit_caching", "expiration_date", "knowledge_cutoff", "provider_name"),
            *("max_completion_tokens", "max_prompt_tokens", "variant"),
        ),
        _DESCRIBES,
    ),
    **dict.fromkeys(
        (
            *("status", "uptime_last_5m", "uptime_last_30m", "uptime_last_1d"),
            *("latency_last_30m", "throughput_last_30m"),
        ),
        _SEEN,
    ),
    "pricing": "price has no such part",
    "messages": "the prompt is the call's",
    "stream": "whether to stream is the call's",
    "route": "fallbacks are in the policy",
}
_SAID: Final = "what calls say goes: params.set of an endpoint would overwrite it"


def from_openrouter(
    tree: object, environ: Mapping[str, str], *, policy_id: str = "default"
) -> Imported:
    """Convert a list. Sends nothing."""
    reading = Reading(tree, environ)
    made = _Made(reading)
    if reading.length(("data", "endpoints")):
        total = reading.length(("data", "endpoints"))
        _providers(made, total)
    elif reading.length(("data",)):
        total = reading.length(("data",))
        for i in range(total):
            _model(made, ("data", i))
    else:
        places: list[JsonPath] = [(i,) for i in range(reading.length(()))] or [()]
        total = len(places)
        for path in places:
            _request(made, path)
    policy: dict[str, Any] = {
        "schema_version": "1.0",
        "policy_id": policy_id,
        "version": 1,
        "endpoints": made.endpoints,
        "routes": made.routes,
    }
    return Imported(policy, total, tuple(reading.notes(REASONS)))


class _Made:
    """What has been made so far."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.endpoints: dict[str, dict[str, Any]] = {}
        self.routes: list[dict[str, Any]] = []
        self.models: set[str] = set()
        self.by_params: dict[str, str] = {}
        self._taken: set[str] = set()

    def endpoint(self, wanted: str, **fields: Any) -> str:
        row = PROVIDERS["openrouter"]
        made = {"base_url": row.base_url, "credential": f"{ENV_PREFIX}{row.key}"}
        made.update({name: value for name, value in fields.items() if value})
        name = free(slug(wanted), self._taken)
        self.endpoints[name] = made
        return name


def _request(made: _Made, path: JsonPath) -> None:
    """The models in order, and the preferences as what is set in every request."""
    reading = made.reading
    listed: JsonPath = (*path, "models")
    wanted = [reading.take((*path, "model"), str)]
    wanted += [reading.take((*listed, i), str) for i in range(reading.length(listed))]
    models = list(dict.fromkeys(name for name in wanted if name and is_one_model(name)))
    if not models or models[0] in made.models:
        why = "an entry before it is for this model" if models else "it names no model"
        reading.lost(path, f"left out: {why}")
        return
    made.models.add(models[0])
    said = {
        name: reading.whole((*path, name))
        for name in PREFERENCES
        if isinstance(reading.look((*path, name)), dict | list)
    }
    for name in reading.keys(path):
        if name not in {*PREFERENCES, "model", "models", *REASONS}:
            reading.lost((*path, name), _SAID)
    key = json.dumps(said, sort_keys=True)
    if key not in made.by_params:
        params = {"set": said} if said else None
        made.by_params[key] = made.endpoint("openrouter", params=params)
    name = made.by_params[key]
    route: dict[str, Any] = {"match": {"model": models[0]}, "weights": {name: 1.0}}
    rest = models[1 : FALLBACKS_MAX + 1]
    if rest:
        route["fallback"] = [{"endpoint": name, "model": model} for model in rest]
        reading.differs(listed, "tried one after the other here, and not at OpenRouter")
    if len(models) > FALLBACKS_MAX + 1:
        reading.lost(listed, f"more than {FALLBACKS_MAX} models to fall back to")
    made.routes.append(route)


def _model(made: _Made, path: JsonPath) -> None:
    """A model as an endpoint that knows what it costs and how much it takes."""
    model = made.reading.take((*path, "id"), str)
    if model is None or not is_one_model(model) or model in made.models:
        why = "an entry before it is for this model" if model else "it names no model"
        made.reading.lost(path, f"left out: {why}")
        return
    made.models.add(model)
    name = made.endpoint(model, model=model, **_figures(made.reading, path))
    made.routes.append({"match": {"model": model}, "weights": {name: 1.0}})


def _providers(made: _Made, total: int) -> None:
    """Each provider of one model as an endpoint: the choice between them is made here."""
    reading = made.reading
    model = reading.take(("data", "id"), str)
    if model is None or not is_one_model(model):
        reading.lost(("data",), "left out: it names no model")
        return
    names: list[str] = []
    for i in range(total):
        path: JsonPath = ("data", "endpoints", i)
        tag = reading.take((*path, "tag"), str) or reading.take((*path, "provider_name"), str)
        if not tag:
            reading.lost(path, "left out: it names no provider")
            continue
        only = {"provider": {"only": [tag], "allow_fallbacks": False}}
        figures = _figures(reading, path)
        names.append(made.endpoint(tag, model=model, params={"set": only}, **figures))
    if not names:
        reading.lost(("data",), "left out: so is each of its providers")
        return
    made.routes.append({"match": {"model": model}, "weights": dict.fromkeys(names, 1.0)})


def _figures(reading: Reading, path: JsonPath) -> dict[str, Any]:
    """Prices per token, which stand there as text, and the context."""
    price: dict[str, str] = {}
    for theirs, ours in PRICES.items():
        cost = reading.number((*path, "pricing", theirs))
        if cost is not None and 0 <= cost <= PER_TOKEN_MAX:
            reading.whole((*path, "pricing", theirs))
            price[ours] = per_mtok(str(reading.look((*path, "pricing", theirs))))
    per_request = reading.number((*path, "pricing", "request"))
    if per_request is not None and 0 <= per_request <= PER_TOKEN_MAX:
        reading.whole((*path, "pricing", "request"))
        if per_request:
            price["per_request"] = usd(str(reading.look((*path, "pricing", "request"))))
    context = reading.figure((*path, "context_length"), least=1)
    return {"price": price, "max_context_tokens": context and int(context)}
