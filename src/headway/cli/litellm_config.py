"""LiteLLM's `config.yaml` as a policy, with a report of everything that has no counterpart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headway.cli.foreign import FIGURE_MAX, Imported, Reading, is_one_model
from headway.cli.litellm_deployment import Deployment, deployment
from headway.policy.fields import DAY_MS, JsonPath

SECTIONS: Final = ("router_settings", "litellm_settings")
"""Where settings of the router stand; the first that has one counts."""
ATTEMPTS_MAX = 20  # the format's
FALLBACKS_MAX = 32
ALGORITHMS: Final = {
    "simple-shuffle": ("weighted_random", ""),
    "least-busy": ("least_inflight", ""),
    "cost-based-routing": ("min_cost", ""),
    "lowest-cost": ("min_cost", ""),
    "latency-based-routing": ("steady", "endpoints that turn out slow or failing get less"),
    "usage-based-routing": ("steady", "rpm and tpm bound each endpoint; the rest is balanced"),
    "usage-based-routing-v2": ("steady", "rpm and tpm bound each endpoint; the rest is balanced"),
}
KINDS: Final = (
    ("context_window_fallbacks", ["context_length"]),
    ("content_policy_fallbacks", ["content_filter"]),
    ("fallbacks", None),
)
"""The narrow ones first: each failure goes where it is meant to go."""
SERVERS = "is the proxy server's own: there is none here"
REASONS: Final = {
    **dict.fromkeys(
        (
            *("general_settings", "guardrails", "policies", "policy_attachments", "mcp_servers"),
            *("search_tools", "sandbox_tools", "vector_store_registry", "prompts", "tag_routing"),
            *("files_settings", "finetune_settings", "worker_registry"),
        ),
        SERVERS,
    ),
    "environment_variables": "set it where the application runs",
    "include": "other files are not read: import them one by one, or put them in one",
    "allowed_fails": "breakers follow what endpoints do",
    "allowed_fails_policy": "breakers follow what endpoints do",
    "cooldown_time": "breakers follow what endpoints do",
    "disable_cooldowns": "breakers follow what endpoints do",
    "retry_after": "waits are drawn below a rising ceiling, or are the server's Retry-After",
    "retry_policy": "what may be retried depends on the failure; see retry.on",
    "redis_host": 'Router(shared_state="redis://...") counts limits for a fleet',
    "redis_port": 'Router(shared_state="redis://...") counts limits for a fleet',
    "redis_password": 'Router(shared_state="redis://...") counts limits for a fleet',
    "redis_url": 'Router(shared_state="redis://...") counts limits for a fleet',
    "cache": "the nearest is cache of a route, with Router(response_cache=...)",
    "cache_params": "the nearest is cache of a route, with Router(response_cache=...)",
    "cache_responses": "the nearest is cache of a route, with Router(response_cache=...)",
    "service_callbacks": "telemetry is OpenTelemetry's",
    "callback_settings": "telemetry is OpenTelemetry's",
    "callbacks": "telemetry is OpenTelemetry's",
    "success_callback": "telemetry is OpenTelemetry's",
    "failure_callback": "telemetry is OpenTelemetry's",
    "litellm_credential_name": "declare it in code: credentials={name: Credential(...)}",
    "credential_list": "declare them in code: credentials={name: Credential(...)}",
    "drop_params": "params.drop of an endpoint names parameters one by one",
    "enable_pre_call_checks": "limits of endpoints (max_context_tokens) are always looked at",
    "stream_timeout": "the nearest is deadline.ttft_ms, the time to a first token",
    "timeout": "the deployments of one model differ in it, or it is no number of seconds",
    "max_retries": "retry.max_attempts is a route's, not an endpoint's",
    "max_input_tokens": "the nearest is max_context_tokens, which counts the answer, too",
    "organization": "headers of an endpoint may say it: OpenAI-Organization",
    "weight": "only a shuffle looks at it, where the first deployment in order has one",
    "model_info": "only describes the model",
    "litellm_params": "what calls say goes: params.set of an endpoint would overwrite it",
}


def from_litellm(
    tree: Mapping[str, object], environ: Mapping[str, str], *, policy_id: str = "default"
) -> Imported:
    """Convert a configuration. Sends nothing, and takes no keys over."""
    reading = Reading(tree, environ)
    total = reading.length(("model_list",))
    taken: set[str] = set()
    made = [d for i in range(total) if (d := deployment(reading, i, taken)) is not None]
    groups: dict[str, list[Deployment]] = {}
    for one in made:
        groups.setdefault(one.model_name, []).append(one)
    algorithm = _algorithm(reading)
    aliases = _aliases(reading, groups)
    routes = {
        name: _route(reading, name, group, aliases.get(name, []), algorithm)
        for name, group in groups.items()
    }
    _add_fallbacks(reading, routes, groups)
    defaults: dict[str, Any] = {"selection": {"algorithm": algorithm}}
    _retries(reading, defaults)
    _timeout(reading, defaults)
    policy = {
        "schema_version": "1.0",
        "policy_id": policy_id,
        "version": 1,
        "endpoints": {one.id: one.endpoint for one in made},
        # What takes every model comes last: the first that matches is the one.
        "routes": sorted(routes.values(), key=lambda route: "match" not in route),
        "defaults": defaults,
    }
    return Imported(policy, total, tuple(reading.notes(REASONS)))


def _setting(reading: Reading, name: str) -> JsonPath | None:
    """Where a setting stands that counts; others of its name are reported."""
    found = [(s, name) for s in SECTIONS if reading.look((s, name)) is not None]
    for path in found[1:]:
        reading.lost(path, f"{found[0][0]} has one, too, which is the one that counts")
    return found[0] if found else None


def _algorithm(reading: Reading) -> str:
    path: JsonPath = ("router_settings", "routing_strategy")
    said = reading.look(path)
    if said is None:
        return "weighted_random"
    if not isinstance(said, str) or said not in ALGORITHMS:
        reading.lost(path, "a strategy without a counterpart: steady is used")
        return "steady"
    reading.take(path, str)
    algorithm, note = ALGORITHMS[said]
    if note:
        reading.differs(path, f"became {algorithm}: {note}")
    return algorithm


def _aliases(reading: Reading, groups: Mapping[str, object]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    at = _setting(reading, "model_group_alias")
    if at is None:
        return found
    for alias in reading.keys(at):
        path = (*at, alias)
        target = reading.take(path, str) or reading.take((*path, "model"), str)
        if target not in groups or alias in groups or not is_one_model(alias):
            reading.lost(path, "an alias of a model that was not imported, or that is one itself")
        elif target is not None:
            found.setdefault(target, []).append(alias)
    return found


def _route(
    reading: Reading,
    name: str,
    group: list[Deployment],
    aliases: list[str],
    algorithm: str,
) -> dict[str, Any]:
    route: dict[str, Any] = {"name": name}
    if name != "*":
        route["match"] = {"model": [name, *aliases]}
    own, later = _by_order(reading, group)
    weights = _weights(reading, own, by_weight=algorithm == "weighted_random")
    # Drawn there only when nobody else is left.
    idle = [one for one in own if not weights[one.id]]
    for one in idle:
        reading.differs(one.path, "comes after the others: it has none of what they are drawn by")
    route["weights"] = {name: weight for name, weight in weights.items() if weight}
    later = [*idle, *later]
    if later:
        route["fallback"] = [{"endpoint": one.id} for one in later]
    timeouts = {repr(reading.look((*one.path, "litellm_params", "timeout"))) for one in group}
    if len(timeouts) == 1:
        for one in group:
            path = (*one.path, "litellm_params", "timeout")
            _deadline(route, reading, path, reading.take(path, float))
    return route


def _by_order(
    reading: Reading, group: list[Deployment]
) -> tuple[list[Deployment], list[Deployment]]:
    """Those that come first, and the others in order."""
    ranks = {d.id: reading.take((*d.path, "litellm_params", "order"), float) for d in group}
    ranked = sorted(group, key=lambda d: float("inf") if ranks[d.id] is None else ranks[d.id] or 0)
    first = ranks[ranked[0].id]
    for d in group if first is not None and len(set(ranks.values())) == 1 else ():
        reading.differs((*d.path, "litellm_params", "order"), "orders nothing: all have the same")
    own = [d for d in ranked if ranks[d.id] == first]
    return own, ranked[len(own) :]


def _weights(reading: Reading, own: list[Deployment], *, by_weight: bool) -> dict[str, float]:
    """As a shuffle does: by the first deployment's weight, rpm or tpm, evenly otherwise."""
    if by_weight:
        first = reading.number((*own[0].path, "litellm_params", "weight"))
        if first is not None and 0 < first <= FIGURE_MAX:  # else a shuffle looks at nobody's weight
            paths = {d.id: (*d.path, "litellm_params", "weight") for d in own}
            return {n: reading.figure(path, least=0) or 0.0 for n, path in paths.items()}
        for name in ("rpm", "tpm"):
            figure = {d.id: d.endpoint.get("capacity", {}).get(name, 0.0) for d in own}
            if figure[own[0].id] > 0:
                return figure
    return dict.fromkeys((d.id for d in own), 1.0)


def _add_fallbacks(
    reading: Reading,
    routes: Mapping[str, dict[str, Any]],
    groups: Mapping[str, list[Deployment]],
) -> None:
    leads: dict[str, set[str]] = {name: set() for name in routes}
    endpoints = {one.id for group in groups.values() for one in group}  # model_info.id
    for path, source, target, on in _wanted(reading, routes):
        is_endpoint = target in endpoints and target not in routes
        if source not in routes or source == target or not (is_endpoint or target in routes):
            reading.lost(path, "a fallback from or to a model that was not imported, or to itself")
            continue
        entries: list[dict[str, Any]] = [{"route": target}]
        if is_endpoint:
            entries = [{"endpoint": target}]
        elif _reaches(leads, target, source):
            reading.differs(path, "leads back: it became a fallback to that model's endpoints")
            entries = [{"endpoint": one.id} for one in groups[target]]
        else:
            leads[source].add(target)
        if on is not None:
            entries = [{**entry, "on": on} for entry in entries]
        listed: list[dict[str, Any]] = routes[source].setdefault("fallback", [])
        if len(listed) + len(entries) > FALLBACKS_MAX:
            reading.lost(path, f"more than {FALLBACKS_MAX} fallbacks")
        else:
            listed += [entry for entry in entries if entry not in listed]


def _wanted(
    reading: Reading, routes: Mapping[str, object]
) -> Iterator[tuple[JsonPath, str, str, list[str] | None]]:
    for kind, on in KINDS:
        at = _setting(reading, kind)
        for path, source in () if at is None else _listed(reading, at):
            target = reading.take(path, str)
            sources = [r for r in routes if r != target] if source == "*" else [source]
            for one in () if target is None else sources:
                yield path, one, target or "", on
    at = _setting(reading, "default_fallbacks")
    if at is None:
        return
    for j in range(reading.length(at)):
        path = (*at, j)
        target = reading.take(path, str)
        for one in () if target is None else routes:
            if one != target:
                yield path, one, target or "", None


def _listed(reading: Reading, at: JsonPath) -> Iterator[tuple[JsonPath, str]]:
    """The places of the names in `[{model: [model, ...]}, ...]`, each with whose fallback it is."""
    for i in range(reading.length(at)):
        for source in reading.keys((*at, i)):
            for j in range(reading.length((*at, i, source))):
                yield (*at, i, source, j), source


def _reaches(leads: Mapping[str, set[str]], start: str, goal: str) -> bool:
    seen: set[str] = set()
    rest = [start]
    while rest:
        name = rest.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            rest += leads[name]
    return False


def _retries(reading: Reading, defaults: dict[str, Any]) -> None:
    path = _setting(reading, "num_retries")
    retries = None if path is None else reading.take(path, int)
    if path is None or retries is None:
        return
    if retries < 0 or retries + 1 > ATTEMPTS_MAX:
        reading.differs(path, f"at most {ATTEMPTS_MAX} attempts")
    defaults["retry"] = {"max_attempts": min(max(retries, 0) + 1, ATTEMPTS_MAX)}
    reading.differs(path, "bounds attempts; how many of them a budget allows is a matter of health")


def _timeout(reading: Reading, defaults: dict[str, Any]) -> None:
    for name in ("timeout", "request_timeout"):
        path = _setting(reading, name)
        if path is not None and "deadline" not in defaults:
            _deadline(defaults, reading, path, reading.take(path, float))


def _deadline(
    block: dict[str, Any], reading: Reading, path: JsonPath, seconds: float | None
) -> None:
    if seconds is None:
        return
    if not 0 < seconds * 1000 <= DAY_MS:
        reading.lost(path, "no time limit that a call can have")
        return
    block["deadline"] = {"total_ms": seconds * 1000}
    reading.differs(path, "bounds the whole call here, all of its attempts; there, each attempt")
