"""Policy over http(s): conditional requests, bounded in bytes, time and redirects."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import ssl
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urljoin, urlsplit, urlunsplit

from headway.credentials import Credential
from headway.errors import FetchError, PolicyError
from headway.hosts import Origin, check_patterns, is_loopback, origin_allowed, origin_of
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.sources import (
    NotModified,
    PolicyArgument,
    PolicySource,
    Reply,
    UnavailableError,
    source_for,
)

if TYPE_CHECKING:
    import httpx2

HTTP_INTERVAL_S = 30.0
HTTP_JITTER = 0.2  # a fleet started together must not ask together for ever
FETCH_TIMEOUT_S = 5.0
REDIRECTS_MAX = 3
RETRY_AFTER_MAX_S = 3600.0  # a slip in a header must not stop refreshing for a year
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GZIP_WBITS = 31


class HttpSource(PolicySource):
    """A document at an https URL (plain http only on loopback, or allowed in `hosts`).

    - `hosts`: where redirects may lead, and where plain http is allowed, as patterns of
      `headway.hosts`; the URL's own origin always counts.
    - `credential`: sent to the hosts it allows, after redirects too.
    - `headers`: sent to the URL's own origin only.
    - `bootstrap`: a local document to start from when there is neither an answer nor a cached one.
    - `proxy`: a proxy's URL. Proxy variables of the environment are not used: a policy decides
      where prompts go, so its way here is chosen explicitly. `SSL_CERT_FILE` and `_DIR` are used.

    A connection is made per fetch: nothing is left open between fetches, or shared by a fork.
    """

    interval_s = HTTP_INTERVAL_S
    jitter = HTTP_JITTER

    def __init__(
        self,
        url: str,
        *,
        hosts: Iterable[str] = (),
        credential: Credential | None = None,
        headers: Mapping[str, str] | None = None,
        interval_s: float = HTTP_INTERVAL_S,
        timeout_s: float = FETCH_TIMEOUT_S,
        bootstrap: PolicyArgument | None = None,
        proxy: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.label = _without_query(url)
        self._hosts = check_patterns(hosts)
        try:
            self._origin = origin_of(url)
        except ValueError as exc:
            raise PolicyError(f"the policy's URL: {exc}", source=self.label) from None
        if not self._reachable(self._origin):
            raise PolicyError(
                "the policy's URL is plain http off loopback",
                expected=f'https://, or HttpSource(url, hosts=["{self._origin}"])',
                source=self.label,
            )
        if interval_s <= 0 or timeout_s <= 0:
            raise ValueError("HttpSource: expected interval_s and timeout_s above 0")
        self.interval_s = interval_s
        self.from_loopback = is_loopback(self._origin.host)
        self.cache_key = hashlib.sha256(url.encode()).hexdigest()[:32]
        self.bootstrap = None if bootstrap is None else source_for(bootstrap)
        if self.bootstrap is not None and self.bootstrap.fetched:
            raise PolicyError("a bootstrap policy must be local", source=self.label)
        self._url = url
        self._credential = credential
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._proxy = proxy
        self._ssl_context = ssl_context
        self._clock = clock
        self._wall_clock = wall_clock

    def read(self, etag: str | None) -> Reply | NotModified:
        import httpx2

        give_up_at = self._clock() + self._timeout_s
        with ExitStack() as stack:
            stack.enter_context(_uninstrumented())
            try:
                client = stack.enter_context(self._client())
                response = self._follow(client, stack, etag, give_up_at)
            except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
                # Its text may repeat a URL with a token in its query: the class says enough.
                self._fail(f"{type(exc).__name__} while asking for it")
            if response.status_code == 304:
                return NotModified()
            if response.status_code != 200:
                self._refused(response)
            token = _token(response.headers)
            return Reply(self._body(response, stack.pop_all(), give_up_at), etag=token)

    def _client(self) -> httpx2.Client:
        import httpx2

        if self._ssl_context is None:  # kept: building one costs more than the fetch
            self._ssl_context = httpx2.create_ssl_context()
        return httpx2.Client(
            verify=self._ssl_context,
            trust_env=False,
            proxy=self._proxy,
            follow_redirects=False,
            timeout=self._timeout_s,
        )

    def _follow(
        self, client: httpx2.Client, stack: ExitStack, etag: str | None, give_up_at: float
    ) -> httpx2.Response:
        url, origin = self._url, self._origin
        for _ in range(REDIRECTS_MAX + 1):
            self._check_time(give_up_at)
            request = client.build_request("GET", url, headers=self._request_headers(origin, etag))
            response = client.send(request, stream=True)
            stack.callback(response.close)
            location = response.headers.get("location")
            if response.status_code not in _REDIRECTS or location is None:
                return response
            url = urljoin(url, location)
            try:
                origin = origin_of(url)
            except ValueError:
                self._fail("is redirected to something that is no http(s) URL")
            if origin != self._origin and not (
                self._reachable(origin) and origin_allowed(origin, self._hosts)
            ):
                self._fail(
                    f"is redirected to {origin}", expected="its own host, or one of hosts=[...]"
                )
        return self._fail(f"is redirected more than {REDIRECTS_MAX} times")

    def _reachable(self, origin: Origin) -> bool:
        return (
            origin.scheme == "https"
            or is_loopback(origin.host)
            or origin_allowed(origin, self._hosts)
        )

    def _request_headers(self, origin: Origin, etag: str | None) -> dict[str, str]:
        headers = {
            "accept": "application/json",
            "accept-encoding": "gzip",
            "user-agent": "headway-policy",
        }
        if origin == self._origin:
            headers.update({name.lower(): value for name, value in self._headers.items()})
        if self._credential is not None and origin_allowed(origin, self._credential.hosts):
            name, value = self._credential.header_for(self._credential.get())
            headers[name.lower()] = value
        kind, _, validator = (etag or "").partition(":")
        if kind == "etag":
            headers["if-none-match"] = validator
        elif kind == "date":
            headers["if-modified-since"] = validator
        return headers

    def _body(
        self, response: httpx2.Response, stack: ExitStack, give_up_at: float
    ) -> Iterator[bytes]:
        import httpx2

        with stack:
            encoding = response.headers.get("content-encoding", "identity").lower()
            if encoding not in {"identity", "gzip"}:
                self._fail("has a content-encoding that was not asked for", expected="gzip or none")
            unzip = zlib.decompressobj(_GZIP_WBITS) if encoding == "gzip" else None
            try:
                # Not in chunks of a size: those would be waited for, out of sight of the clock.
                for raw in response.iter_raw():
                    self._check_time(give_up_at)
                    # Decoded a bounded piece at a time: a few bytes can unfold to gigabytes.
                    yield raw if unzip is None else unzip.decompress(raw, DOCUMENT_BYTES_MAX + 1)
                    if unzip is not None and unzip.unconsumed_tail:
                        yield bytes(DOCUMENT_BYTES_MAX + 1)  # more than the cap: let it say so
            except httpx2.HTTPError as exc:
                self._fail(f"{type(exc).__name__} while reading it")
            except zlib.error:
                self._fail("is not the gzip it says it is")
            if unzip is not None and not unzip.eof:
                self._fail("ends in the middle")

    def _check_time(self, give_up_at: float) -> None:
        # The client's timeouts are per read; a server that drips could hold on for ever.
        if self._clock() > give_up_at:
            self._fail(f"took longer than {self._timeout_s:g} s")

    def _refused(self, response: httpx2.Response) -> NoReturn:
        error = UnavailableError(
            f"answered {response.status_code}", expected="200 or 304", source=self.label
        )
        error.retry_after_s = _retry_after_s(
            response.headers.get("retry-after"), self._wall_clock()
        )
        raise error

    def _fail(self, message: str, *, expected: str | None = None) -> NoReturn:
        raise FetchError(message, expected=expected, source=self.label) from None


def _without_query(url: str) -> str:
    """The URL without what may be secret in it: user information and query."""
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return "policy URL"


def _token(headers: Mapping[str, str]) -> str | None:
    if etag := headers.get("etag"):
        return f"etag:{etag}"
    if date := headers.get("last-modified"):
        return f"date:{date}"
    return None


def _retry_after_s(value: str | None, wall_now: float) -> float | None:
    """Seconds from a Retry-After header (RFC 9110: seconds or a date), within reason."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - wall_now
        except (ValueError, OverflowError):
            return None
    return min(seconds, RETRY_AFTER_MAX_S) if seconds > 0 else None  # also when not a number


@contextlib.contextmanager
def _uninstrumented() -> Generator[None, None, None]:
    """Keep HTTP instrumentation from recording a span for every look at the policy."""
    try:
        from opentelemetry import context
    except ImportError:
        yield
        return
    # The two names that the contrib instrumentations read; they are not exported by the API.
    quiet = context.set_value("suppress_http_instrumentation", True)
    token = context.attach(context.set_value("suppress_instrumentation", True, quiet))
    try:
        yield
    finally:
        context.detach(token)
