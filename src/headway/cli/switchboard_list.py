"""A list of resources and their deployments, as azure-switchboard takes it, as a policy.

azure-switchboard is configured in code, by `Foundry(name, api_key=..., models=[...])` with
`OpenAIDeployment(name, tpm=..., rpm=...)`. The same names are read from a file here: `resources`
(or `deployments`, or the list alone), each with `name`, `base` or `endpoint`, `api_key`, `timeout`
and `models`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headway.cli.foreign import ENVIRON, Imported, Reading, free, is_one_model, slug
from headway.credentials import ENV_PREFIX
from headway.hosts import is_loopback, split_url
from headway.policy.fields import DAY_MS, JsonPath

LISTS: Final = ("resources", "deployments")
FOUNDRY: Final = "https://{name}.services.ai.azure.com"
PATH: Final = "/openai/v1"
"""What is appended to a resource's base, unless the endpoint is given whole."""
KINDS: Final = ("type", "api", "class")
VARIABLE: Final = re.compile(rf"(?:{ENVIRON}|{ENV_PREFIX}|\$\{{?)([A-Za-z_][A-Za-z0-9_]*)\}}?")
OPENAI: Final = "openai"
REASONS: Final = {
    "default_cooldown": "breakers follow what endpoints do",
    "selector": "weights follow the limits, corrected by what the process sees (steady)",
    "failover_policy": "one retry budget bounds attempts; see retry.max_attempts",
    "ratelimit_window": "limits are per minute, and paced",
    "max_sessions": "the map of sessions has a bound of its own",
    "anthropic_fallback": "the Messages API is not the OpenAI API",
    "timeout": "the deployments of one model differ in it, or it is no number of seconds",
}


class _Deployment(NamedTuple):
    id: str
    model: str
    timeout: JsonPath
    endpoint: dict[str, Any]


def from_switchboard(
    tree: object, environ: Mapping[str, str], *, policy_id: str = "default"
) -> Imported:
    """Convert a list of resources. Sends nothing, and takes no keys over."""
    reading = Reading(tree, environ)
    root: JsonPath = next(((name,) for name in LISTS if reading.length((name,))), ())
    taken = {OPENAI}
    made: list[_Deployment] = []
    total = 0
    for i in range(reading.length(root)):
        models = reading.length((*root, i, "models"))
        total += models
        made += _resource(reading, (*root, i), models, taken)
    endpoints = {one.id: one.endpoint for one in made}
    groups: dict[str, list[_Deployment]] = {}
    for one in made:
        groups.setdefault(one.model, []).append(one)
    routes = [_route(reading, name, group) for name, group in groups.items()]
    if reading.look(("openai_fallback",)) is True:
        reading.whole(("openai_fallback",))
        key = f"{ENV_PREFIX}OPENAI_API_KEY"
        endpoints[OPENAI] = {"base_url": "https://api.openai.com/v1", "credential": key}
        for route in routes:
            route["fallback"] = [{"endpoint": OPENAI}]
        # A model that no resource has is asked for there, too.
        routes.append({"name": "any", "weights": {OPENAI: 1.0}})
    elif reading.look(("openai_fallback",)) is False:
        reading.whole(("openai_fallback",))
    policy: dict[str, Any] = {
        "schema_version": "1.0",
        "policy_id": policy_id,
        "version": 1,
        "endpoints": endpoints,
        "routes": routes,
    }
    return Imported(policy, total, tuple(reading.notes(REASONS)))


def _resource(reading: Reading, path: JsonPath, models: int, taken: set[str]) -> list[_Deployment]:
    name = reading.take((*path, "name"), str)
    if not name or not models:
        reading.lost(path, f"left out: it has no {'models' if name else 'name'}")
        return []
    at = next((key for key in ("base", "endpoint", "base_url") if reading.look((*path, key))), None)
    base = FOUNDRY.format(name=name) if at is None else reading.text((*path, at)) or ""
    credential = _credential(reading, path, slug(name))
    made: list[_Deployment] = []
    for j in range(models):
        one: JsonPath = (*path, "models", j)
        model = reading.take(one, str) or reading.take((*one, "name"), str)
        if model is None or not is_one_model(model):
            reading.lost(one, "left out: it has no name, or one for many")
            continue
        if not _speaks_openai(reading, one):
            reading.lost(one, "left out: it speaks the Messages API, which is not the OpenAI API")
            continue
        own = reading.text((*one, "endpoint")) if reading.look((*one, "endpoint")) else None
        url = _whole_url(reading, (*one, "endpoint") if own else path, own or base, bare=not own)
        if url is None:
            reading.lost(one, "left out: where it is can't be told (base, endpoint)")
            continue
        endpoint: dict[str, Any] = {"base_url": url, "model": model, "credential": credential}
        capacity = {k: v for k in ("rpm", "tpm") if (v := reading.figure((*one, k), least=0))}
        if capacity:
            endpoint["capacity"] = capacity
        wanted = f"{slug(name)}/{slug(model)}"
        made.append(_Deployment(free(wanted, taken), model, (*path, "timeout"), endpoint))
    if not made:
        reading.lost(path, "left out: so is each of its models")
    return made


def _speaks_openai(reading: Reading, path: JsonPath) -> bool:
    for kind in KINDS:
        said = reading.take((*path, kind), str)
        if said is not None and not said.lower().startswith("openai"):
            return False
    return True


def _whole_url(reading: Reading, path: JsonPath, base: str, *, bare: bool) -> str | None:
    url = base.rstrip("/")
    if bare and not url.endswith(PATH):
        url += PATH
    try:
        origin, _ = split_url(url)
    except ValueError:
        return None
    if origin.scheme == "http" and not is_loopback(origin.host):
        reading.differs(path, f'plain http: code has to allow it: allowed_hosts=["{origin}"]')
    return url


def _credential(reading: Reading, path: JsonPath, name: str) -> str:
    declare = f'declare it in code, credentials={{"{name}": Credential(env=..., hosts=[...])}}'
    key = reading.take((*path, "api_key"), str)
    found = VARIABLE.fullmatch(key or "")
    if found:
        return f"{ENV_PREFIX}{found[1]}"
    if key:
        reading.lost((*path, "api_key"), f"a key in the file is not taken over: {declare}")
    else:
        reading.differs(path if key is None else (*path, "api_key"), f"names no key: {declare}")
    return name


def _route(reading: Reading, name: str, group: list[_Deployment]) -> dict[str, Any]:
    """Shares in proportion to what the deployments may carry, as even utilization comes to."""
    limits = [one.endpoint.get("capacity", {}) for one in group]
    by = next((key for key in ("tpm", "rpm") if all(key in limit for limit in limits)), None)
    weights = {one.id: limit[by] if by else 1.0 for one, limit in zip(group, limits, strict=True)}
    route: dict[str, Any] = {"name": name, "match": {"model": name}, "weights": weights}
    seconds = {reading.number(one.timeout) for one in group}
    [same] = seconds if len(seconds) == 1 else [None]
    if same is not None and 0 < same * 1000 <= DAY_MS:
        route["deadline"] = {"total_ms": same * 1000}
        for one in group:
            reading.take(one.timeout, float)
            reading.differs(one.timeout, "bounds the whole call here; there, each attempt")
    return route
