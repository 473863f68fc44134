"""Where a wrapped client itself points: what is its own, what is foreign, what it was set to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx2

    from headway.transport.family import Family
    from headway.transport.signer import NewOptions, Signer

Origin = tuple[str, str, int | None]
"""(scheme, host, port); the http libraries leave the port out where it is the scheme's own."""


class Place(NamedTuple):
    """A request's path, told apart from the client's base path."""

    path: str
    """After the base path: "/chat/completions"."""
    query: str


class Home:
    """The wrapped client's own endpoint and settings; fixed when it is wrapped."""

    __slots__ = (
        "attempts_max", "azure", "base_url", "family", "follows_redirects", "is_async",
        "new_options", "origin", "prefix", "root", "signer",
    )  # fmt: skip

    def __init__(
        self,
        family: Family,
        *,
        base_url: str,
        azure: bool,
        attempts_max: int,
        follows_redirects: bool = True,
        is_async: bool = False,
        signer: Signer | None = None,
        new_options: NewOptions | None = None,
    ) -> None:
        self.family = family
        self.base_url = base_url
        self.azure = azure
        self.is_async = is_async
        self.signer = signer
        """The client itself, where it signs its requests before they come here (Bedrock, Vertex):
        one that is changed has to be signed anew."""
        self.new_options = new_options
        """Of the SDK that the client is of."""
        self.attempts_max = attempts_max
        """The user's `max_retries` plus one."""
        self.follows_redirects = follows_redirects
        """What the user's http client is set to."""
        url = family.URL(base_url)
        self.origin = origin_of(url)
        self.prefix = url.raw_path.decode("ascii").partition("?")[0].rstrip("/")
        self.root = self.prefix.partition("/deployments/")[0] if azure else self.prefix
        """Where paths begin that belong to no deployment: an Azure client may be made for one."""

    def is_origin_of(self, url: httpx2.URL) -> bool:
        """Whether a URL is of the client's own origin."""
        scheme, host, port = self.origin
        return url.host == host and url.port == port and url.scheme == scheme

    def place_of(self, raw_path: bytes) -> Place | None:
        """Where under the client's base path this is; None for anywhere else."""
        path, _, query = raw_path.decode("ascii").partition("?")
        base = self.prefix
        if not path.startswith(base):
            base = self.root
            if not path.startswith(base):
                return None
        rest = path[len(base) :]
        return Place(rest, query) if rest.startswith("/") else None


def origin_of(url: httpx2.URL) -> Origin:
    """The origin of a URL of either http library."""
    return url.scheme, url.host, url.port
