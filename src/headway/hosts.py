"""Where a URL points, and whether a declared pattern covers it.

A policy names base URLs; code declares where prompts and keys may go. Both sides are brought to one
spelling first, so that `API.Example.com.` and `api.example.com` are the same host, and every
spelling that two libraries could read differently is refused rather than guessed at.

Patterns: `api.example.com`, `*.example.com` (any depth below, not the name itself), an address or
a network (`10.1.0.0/16`), each with an optional `:port` (not networks) and an optional scheme.
Without a scheme a pattern means https; `http://10.1.0.0/16` allows plain http off loopback.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

import idna

DEFAULT_PORTS = {"https": 443, "http": 80}
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\<>\"{}|^`]")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NUMERIC_LABEL = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
HOST_CHARS_MAX = 253  # RFC 1035


class Origin(NamedTuple):
    """Scheme, normalised host (no brackets) and port of a URL."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if DEFAULT_PORTS[self.scheme] == self.port else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


def normalise_host(host: str) -> str:
    """Bring a host to its one spelling: lower case, no trailing dot, punycode, short IPv6.

    Raises ValueError for what is no host, and for spellings that resolvers read in their own ways
    (`127.1`, `0x7f.0.0.1`, IPv6 zone ids).
    """
    text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ":" in text:
        return _ipv6(text)
    text = text.removesuffix(".")
    if not text or len(text) > HOST_CHARS_MAX:
        raise ValueError(f"expected a host of 1 to {HOST_CHARS_MAX} characters")
    if not text.isascii():
        try:
            text = idna.encode(text, uts46=True).decode("ascii")
        except UnicodeError:  # idna.IDNAError is one
            raise ValueError("expected a valid internationalised host name") from None
    text = text.lower()
    if not _NAME.fullmatch(text):
        raise ValueError("expected a host name or an address")
    if _NUMERIC_LABEL.fullmatch(text.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise ValueError("expected an IPv4 address as four decimal numbers") from None
    return text


def _ipv6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("expected an IPv6 address") from None
    if address.scope_id is not None:
        raise ValueError("expected an IPv6 address without a zone id")
    # ::ffff:10.0.0.1 reaches 10.0.0.1: one spelling, so that a pattern can't be sidestepped.
    return str(address.ipv4_mapped or address)


def split_url(url: str) -> tuple[Origin, str]:
    """Split an http(s) URL into its origin and its path (no trailing slash).

    Raises ValueError, saying what was expected and repeating nothing of the URL, for user
    information, a query, a fragment, control characters, backslashes and other schemes.
    """
    origin, path, query = _split(url)
    if query:
        raise ValueError("expected a URL without a query")
    return origin, path.rstrip("/")


def origin_of(url: str) -> Origin:
    """The origin of an http(s) URL that may carry a query (a policy's own address)."""
    return _split(url)[0]


def patterns_of(url: str) -> tuple[str, ...]:
    """The pattern that covers exactly this URL's origin; none for what is no http(s) URL."""
    try:
        return (str(origin_of(url)),)
    except ValueError:
        return ()


def _split(url: str) -> tuple[Origin, str, str]:
    if _UNSAFE.search(url):
        raise ValueError("expected a URL without spaces, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("expected an http(s) URL with a valid host and port") from None
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS or not parts.netloc:
        raise ValueError("expected a URL that begins with https:// (or http:// on loopback)")
    if "@" in parts.netloc:
        raise ValueError("expected a URL without user information (name a credential instead)")
    if parts.fragment or url.endswith("#"):
        raise ValueError("expected a URL without a fragment")
    if port == 0:
        raise ValueError("expected a port from 1 to 65535")
    host = normalise_host(parts.hostname or "")
    return Origin(scheme, host, port or DEFAULT_PORTS[scheme]), parts.path, parts.query


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by name or address; no name is looked up."""
    try:
        name = normalise_host(host)
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Pattern(NamedTuple):
    scheme: str
    name: str
    """An exact host, or a suffix that begins with a dot."""
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None
    port: int | None


@functools.lru_cache(maxsize=1024)  # patterns are written in code: few, and the same ones again
def _pattern(text: str) -> _Pattern:
    scheme, separator, rest = text.rpartition("://")
    scheme = scheme.lower() if separator else "https"
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f"host pattern {text!r}: expected https:// or http://, or no scheme")
    if "/" in rest:
        try:
            return _Pattern(scheme, "", ipaddress.ip_network(rest), None)
        except ValueError as exc:
            raise ValueError(f"host pattern {text!r}: {exc}; paths don't belong here") from None
    host, port = _split_port(text, rest)
    suffix = host.startswith("*.")
    try:
        name = normalise_host(host[2:] if suffix else host)
    except ValueError as exc:
        raise ValueError(f"host pattern {text!r}: {exc}, or *.name, or a network") from None
    if suffix and "." not in name:
        raise ValueError(f"host pattern {text!r}: expected at least two labels after the *")
    return _Pattern(scheme, "." + name if suffix else name, None, port)


def _split_port(text: str, rest: str) -> tuple[str, int | None]:
    head, colon, tail = rest.rpartition(":")
    if not colon or (":" in head and not head.endswith("]")):  # no port, or a bare IPv6 address
        return rest, None
    if not tail.isdecimal() or not 0 < int(tail) < 65536:
        raise ValueError(f"host pattern {text!r}: expected a port from 1 to 65535")
    return head, int(tail)


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns as a tuple; raises ValueError at the first that means nothing."""
    if isinstance(patterns, str):
        raise TypeError(f"expected a list of host patterns, not the text {patterns!r}")
    checked = tuple(patterns)
    for pattern in checked:
        _pattern(pattern)
    return checked


def origin_allowed(origin: Origin, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns covers this origin: scheme, host and port."""
    for text in patterns:
        pattern = _pattern(text)
        # Plain http is only what a pattern says it is; loopback never leaves the machine.
        if origin.scheme != pattern.scheme and not (
            origin.scheme == "https" or is_loopback(origin.host)
        ):
            continue
        if _host_matches(origin.host, pattern) and pattern.port in {None, origin.port}:
            return True
    return False


def host_allowed(host: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns covers this host, at any port."""
    try:
        name = normalise_host(host)
    except ValueError:
        return False
    return any(_host_matches(name, _pattern(text)) for text in patterns)


def _host_matches(name: str, pattern: _Pattern) -> bool:
    if pattern.network is not None:
        try:
            return ipaddress.ip_address(name) in pattern.network
        except ValueError:
            return False
    if pattern.name.startswith("."):
        return name.endswith(pattern.name)
    return name == pattern.name
