"""What a document may name, by where it came from and what the application declared in code.

A document chooses where prompts and keys go. So one that was fetched may name only hosts and
credentials that code declared; one that the application itself names may use any https host and
`env:NAME`. Plain http stays on loopback unless a pattern with `http://` allows more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.credentials import ENV_PREFIX, Credential
from headway.hosts import Origin, is_loopback, origin_allowed, split_url
from headway.policy.fields import JsonPath
from headway.policy.fleet import Endpoint
from headway.policy.models import Policy
from headway.policy.problems import Problem
from headway.policy.signing import PublicKeys

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAMED_MAX = 8  # an error names a few of the declared hosts, not a hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What the document at hand may name."""

    fetched: bool = True
    """It came from elsewhere; False for what the application itself names (a path, an object)."""
    allowed_hosts: tuple[str, ...] | None = None
    """Host patterns (`headway.hosts`); None: the hosts that the credentials may be sent to."""
    own_hosts: tuple[str, ...] = ()
    """Always allowed: where the wrapped client sends its calls anyway."""
    credentials: Mapping[str, Credential] | None = None
    """The declared ones; None: names are not looked up (tools that only read documents)."""
    from_loopback: bool = False
    """It was fetched from this machine, so it may name this machine when nothing is declared."""
    keys: PublicKeys | None = None
    """Who must have signed it; None: nobody."""
    policy_id: str | None = None
    """Which policy it must be; None: any."""
    patterns: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        declared = self.allowed_hosts
        if declared is None:
            declared = tuple(h for c in (self.credentials or {}).values() for h in c.hosts)
        object.__setattr__(self, "patterns", declared + self.own_hosts)

    def allows(self, origin: Origin) -> bool:
        """Whether endpoints may be at this origin."""
        if origin_allowed(origin, self.patterns):
            return True
        if not self.fetched:
            return origin.scheme == "https" or is_loopback(origin.host)
        return self.allowed_hosts is None and self.from_loopback and is_loopback(origin.host)


def endpoint_problems(policy: Policy, trust: Trust) -> dict[str, Problem]:
    """The first problem of each endpoint that may not be used."""
    found: dict[str, Problem] = {}
    for endpoint_id, endpoint in policy.endpoints.items():
        problem = _problem(("endpoints", endpoint_id), endpoint, policy, trust)
        if problem is not None:
            found[endpoint_id] = problem
    return found


def _problem(path: JsonPath, endpoint: Endpoint, policy: Policy, trust: Trust) -> Problem | None:
    profile = endpoint.profile
    if profile is not None and profile not in policy.profiles:
        return Problem((*path, "profile"), "a profile", profile, known=policy.profiles)
    try:
        origin, _ = split_url(endpoint.base_url)
    except ValueError as exc:
        return Problem((*path, "base_url"), str(exc).removeprefix("expected "))
    return _host_problem((*path, "base_url"), origin, trust) or _credential_problem(
        (*path, "credential"), endpoint, origin, trust
    )


def _host_problem(path: JsonPath, origin: Origin, trust: Trust) -> Problem | None:
    if trust.allows(origin):
        return None
    if origin.scheme == "http" and not is_loopback(origin.host):
        return Problem(
            path,
            f'https (plain http only on loopback, or allowed in code: allowed_hosts=["{origin}"])',
            str(origin),
        )
    declared = ", ".join(trust.patterns[:NAMED_MAX]) or "none"
    return Problem(
        path, f"a host that code allows a fetched policy to name; allowed: {declared}", str(origin)
    )


def _credential_problem(
    path: JsonPath, endpoint: Endpoint, origin: Origin, trust: Trust
) -> Problem | None:
    # The name is never shown: it may be a key, pasted where its name belongs.
    name = endpoint.credential
    if name is None:
        return None
    declared = trust.credentials or {}
    if name in declared:
        if declared[name].allows(endpoint.base_url):
            return None
        return Problem(path, f"one that code lets go to {origin}: Credential(..., hosts=[...])")
    if name.startswith(ENV_PREFIX):
        if trust.fetched:
            return Problem(
                path, "a name declared in code; env: is for files that the application itself names"
            )
        if _VARIABLE.fullmatch(name.removeprefix(ENV_PREFIX)):
            return None
        return Problem(path, "env: and the name of an environment variable")
    if trust.credentials is None:
        return None
    names = ", ".join(sorted(declared)[:NAMED_MAX]) or "none"
    return Problem(
        path,
        f"a credential declared in code: credentials={{name: Credential(...)}}; declared: {names}",
    )
