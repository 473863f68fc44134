"""Keys, declared in code: where each comes from, and the hosts it may be sent to.

A policy document names a credential and never carries one. What the name means, and where the
secret may travel, is decided here, so a forged policy can't send a key to a host of its choosing.

    Credential(env="AZURE_KEY", hosts=["*.openai.azure.com"])
"""

from __future__ import annotations

import functools
import os
import re
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import overload

from headway.errors import HeadwayError
from headway.hosts import (
    check_patterns,
    host_allowed,
    is_loopback,
    normalise_host,
    origin_allowed,
    patterns_of,
    split_url,
)

__all__ = [
    "Credential",
    "CredentialUnavailable",
    "credential_named",
    "host_allowed",
    "is_loopback",
    "normalise_host",
]

SECRET_FILE_BYTES_MAX = 64 * 1024  # a key or a token, not a database
ENV_PREFIX = "env:"


class CredentialUnavailable(HeadwayError):  # noqa: N818 (named for what the caller meets)
    """The secret could not be had (unset variable, missing file, failing callable)."""


class Credential:
    """A key and the hosts it may be sent to.

    Exactly one origin, read anew at each call so that rotation needs no restart:

    - `env`: name of an environment variable
    - `file`: path of a file holding only the secret (re-read when it changes)
    - `value`: the secret itself
    - `call`: a callable returning it; called on the path of each call, unless `ttl_s` is given
    - `acall`: an async callable, for async clients; may be given beside `call`

    `ttl_s`: keep what `call` or `acall` returned for so long, then ask again, once, while other
    calls go on with what there is. If that fails the old secret serves for as long again. Give less
    than what a token lives.

    `hosts` are the patterns of `headway.hosts`: "api.openai.com", "*.openai.azure.com",
    "http://10.1.0.0/16". `header` is the header that carries the key: None for the dialect's own
    (`api-key` for azure, `Authorization: Bearer` elsewhere), "Authorization" for a bearer token
    whatever the dialect (Azure with Entra ID), or any other name for the bare key.

    Never shows its secret: not in `repr`, not in errors, and one that holds the secret itself (or a
    callable) refuses to be pickled. Safe to use from any thread.
    """

    __slots__ = (
        *("_acall", "_cached", "_call", "_kept", "_renewing", "_shown", "_value"),
        *("env", "file", "header", "hosts", "ttl_s"),
    )

    @overload
    def __init__(self, *, env: str, hosts: Iterable[str], header: str | None = None) -> None: ...
    @overload
    def __init__(
        self, *, file: str | os.PathLike[str], hosts: Iterable[str], header: str | None = None
    ) -> None: ...
    @overload
    def __init__(self, *, value: str, hosts: Iterable[str], header: str | None = None) -> None: ...
    @overload
    def __init__(
        self,
        *,
        call: Callable[[], str],
        acall: Callable[[], Awaitable[str]] | None = None,
        hosts: Iterable[str],
        header: str | None = None,
        ttl_s: float | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        acall: Callable[[], Awaitable[str]],
        hosts: Iterable[str],
        header: str | None = None,
        ttl_s: float | None = None,
    ) -> None: ...
    def __init__(
        self,
        *,
        env: str | None = None,
        file: str | os.PathLike[str] | None = None,
        value: str | None = None,
        call: Callable[[], str] | None = None,
        acall: Callable[[], Awaitable[str]] | None = None,
        hosts: Iterable[str],
        header: str | None = None,
        ttl_s: float | None = None,
    ) -> None:
        origins = [
            name
            for name, given in (
                ("env", env),
                ("file", file),
                ("value", value),
                ("call", call if call is not None else acall),
            )
            if given is not None
        ]
        if len(origins) != 1:
            got = " and ".join(origins) or "none"
            raise ValueError(
                f"Credential: expected one of env, file, value, call or acall, got {got}"
            )
        self.env = env
        """Name of the variable."""
        self.file = None if file is None else Path(file)
        """Path of the file."""
        self.header = header
        """Header that carries the key; None: the dialect's own."""
        self.hosts = check_patterns(hosts)
        """Patterns of where it may be sent."""
        if not self.hosts:
            raise ValueError("Credential: expected at least one host that the key may be sent to")
        if header is not None and not _is_token(header):
            raise ValueError(f"Credential: expected a header name, got {header!r}")
        if value is not None and (trouble := _trouble(value)):
            del value
            raise ValueError(f"Credential: value {trouble}")
        if ttl_s is not None and (ttl_s <= 0 or origins[0] != "call"):
            raise ValueError("Credential: ttl_s is above 0, and of call and acall only")
        self.ttl_s = ttl_s
        """Seconds for which what a callable returned is kept; None: it is asked each time."""
        self._kept: tuple[str, float] | None = None
        """(secret, when it was had), of callables with a `ttl_s`."""
        self._renewing = False
        self._value = value
        self._call = call
        self._acall = acall
        self._cached: tuple[tuple[int, int, int], str] | None = None
        self._shown = {"env": f"env={env!r}", "file": f"file={str(self.file)!r}"}.get(
            origins[0], f"{origins[0]}=<hidden>"
        )

    def get(self) -> str:
        """The secret. Raises CredentialUnavailable, which says why and never shows it."""
        if self._value is not None:
            return self._value
        if self.env is not None:
            return self._checked(os.environ.get(self.env))
        if self.file is not None:
            return self._checked(self._from_file(self.file))
        if self._call is None:
            raise CredentialUnavailable(
                f"{self!r} has only an async callable; give call= beside it for sync clients"
            )
        kept = self._still_kept()
        if kept is not None:
            return kept
        self._renewing = True
        try:
            return self._keep(self._checked(self._call()))
        except CredentialUnavailable:
            return self._rather_old()
        except Exception as exc:  # noqa: BLE001 - whatever a user's callable raises
            return self._rather_old(exc)
        finally:
            self._renewing = False

    async def aget(self) -> str:
        """As `get`, awaiting `acall` where there is one. A plain `call` runs on the event loop."""
        if self._acall is None:
            return self.get()
        kept = self._still_kept()
        if kept is not None:
            return kept
        self._renewing = True
        try:
            return self._keep(self._checked(await self._acall()))
        except CredentialUnavailable:
            return self._rather_old()
        except Exception as exc:  # noqa: BLE001 - whatever a user's callable raises
            return self._rather_old(exc)
        finally:
            self._renewing = False

    def _still_kept(self) -> str | None:
        """What a callable returned lately, or at all while somebody is asking it again."""
        if self._kept is None or self.ttl_s is None:
            return None
        secret, had_at = self._kept
        age_s = time.monotonic() - had_at
        return secret if age_s < self.ttl_s or (self._renewing and age_s < 2 * self.ttl_s) else None

    def _keep(self, secret: str) -> str:
        if self.ttl_s is not None:
            self._kept = secret, time.monotonic()
        return secret

    def _rather_old(self, exc: Exception | None = None) -> str:
        """In an except clause: the secret that was kept, if it may still do; else the error."""
        kept = self._kept
        if kept is not None and self.ttl_s is not None:
            if time.monotonic() - kept[1] < 2 * self.ttl_s:
                return kept[0]
            del kept  # tracebacks that show local variables must not show it
        if exc is None:
            raise  # noqa: PLE0704 - called where one is handled
        raise self._raised(exc) from exc

    def header_for(self, secret: str, *, dialect: str = "openai") -> tuple[str, str]:
        """(name, value) of the request header that carries `secret` in this dialect."""
        name = self.header or ("api-key" if dialect == "azure" else "Authorization")
        return (name, f"Bearer {secret}") if name.lower() == "authorization" else (name, secret)

    def allows(self, base_url: str) -> bool:
        """Whether the key may be sent to this URL: its host, its port, and https off loopback."""
        try:
            origin, _ = split_url(base_url)
        except ValueError:
            return False
        return origin_allowed(origin, self.hosts)

    def _from_file(self, path: Path) -> str:
        try:
            found = path.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if self._cached is not None and self._cached[0] == seen:
                return self._cached[1]
            if not stat.S_ISREG(found.st_mode) or found.st_size > SECRET_FILE_BYTES_MAX:
                raise CredentialUnavailable(
                    f"{self!r}: expected a file of at most {SECRET_FILE_BYTES_MAX} bytes"
                )
            secret = path.read_text("utf-8").strip()
        except (OSError, UnicodeError) as exc:
            raise CredentialUnavailable(f"{self!r} can't be read: {type(exc).__name__}") from None
        self._cached = (seen, secret)
        return secret

    def _raised(self, exc: Exception) -> CredentialUnavailable:
        return CredentialUnavailable(f"{self!r}: the callable raised {type(exc).__name__}")

    def _checked(self, secret: str | None) -> str:
        trouble = "is not set" if secret is None else _trouble(secret)
        if secret is not None and not trouble:
            return secret
        del secret  # tracebacks that show local variables must not show it
        raise CredentialUnavailable(f"{self!r} {trouble}")

    def __repr__(self) -> str:
        header = "" if self.header is None else f", header={self.header!r}"
        return f"Credential({self._shown}, hosts={list(self.hosts)}{header})"

    def __reduce__(self) -> tuple[Callable[..., Credential], tuple[object, ...]]:
        if self.env is None and self.file is None:
            raise TypeError("a Credential that holds its secret can't be pickled: use env or file")
        return _restore, (self.env, self.file, self.hosts, self.header)

    def __copy__(self) -> Credential:
        return self

    def __deepcopy__(self, memo: object) -> Credential:
        return self


def _restore(
    env: str | None, file: Path | None, hosts: tuple[str, ...], header: str | None
) -> Credential:
    if env is not None:
        return Credential(env=env, hosts=hosts, header=header)
    assert file is not None, "a pickled Credential names a variable or a file"
    return Credential(file=file, hosts=hosts, header=header)


def _trouble(secret: object) -> str:
    """What is wrong with a secret, in words that don't repeat it; empty when nothing is."""
    if not isinstance(secret, str):
        return f"is not text but {type(secret).__name__}"
    if not secret:
        return "is empty"
    # It goes into a header: a line break would let it write others.
    if not secret.isascii() or not secret.isprintable():
        return "has characters that a header can't carry (a line break at its end, perhaps)"
    return ""


def _is_token(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) is not None


def credential_named(
    name: str, base_url: str, declared: Mapping[str, Credential]
) -> Credential | None:
    """The credential a compiled endpoint names: a declared one, or `env:NAME` for its own host.

    `env:` names only survive compilation in documents that the application itself named, so finding
    one here is permission enough. None when the name is unknown.
    """
    found = declared.get(name)
    if found is not None or not name.startswith(ENV_PREFIX):
        return found
    return _from_environment(name.removeprefix(ENV_PREFIX), base_url)


@functools.lru_cache(maxsize=1024)  # asked on every call; as many as a document has endpoints
def _from_environment(variable: str, base_url: str) -> Credential:
    return Credential(env=variable, hosts=patterns_of(base_url))
