"""Policy over http(s): conditional requests, bounded in bytes, time and redirects."""

from __future__ import annotations

import contextlib
import email.utils
import functools
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
from headway.policy.document import format_of
from headway.policy.http_deadline import hurry
from headway.policy.signing import SUFFIX
from headway.policy.sources import (
    CHUNK_BYTES,
    NotModified,
    PolicyArgument,
    PolicySource,
    Reply,
    UnavailableError,
    local_source_for,
)

if TYPE_CHECKING:
    import httpx2

HTTP_INTERVAL_S = 30.0
HTTP_JITTER = 0.2  # a fleet started together must not ask together for ever
FETCH_TIMEOUT_S = 5.0
REDIRECTS_MAX = 3
RETRY_AFTER_MAX_S = 3600.0  # a slip in a header must not stop refreshing for a year
FRESH_MAX_S = 300.0  # Cache-Control is often a CDN's default; a revocation must not wait for it
_JSON_TYPES = frozenset({"application/json", "text/json", "text/plain", "application/octet-stream",
                         "binary/octet-stream"})  # fmt: skip
"""What servers send JSON files as; S3 says binary/octet-stream where nobody said anything."""
_YAML_TYPES = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ABSENT = frozenset({403, 404, 410})  # 403: S3's, for what may not be listed
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

    `Retry-After` is honoured up to an hour, `Cache-Control: max-age` (less `Age`) up to five
    minutes; neither ever makes a look come sooner. The signatures are at the same URL with `.sig`
    after its path. A connection is made per fetch: nothing is left open between fetches, or shared
    by a fork.
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
        self.label = without_query(url)
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
        self.bootstrap = local_source_for(bootstrap, self.label)
        self._url = url
        self._credential = credential
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._proxy = proxy
        self._ssl_context = ssl_context
        self._clock = clock
        self._wall_clock = wall_clock

    def read(self, etag: str | None) -> Reply | NotModified:
        give_up_at = self._clock() + self._timeout_s
        response, stack = self._ask(self._url, etag, give_up_at)
        with stack:
            fresh_s = _fresh_s(response.headers)
            if response.status_code == 304:
                return NotModified(fresh_s)
            if response.status_code != 200:
                self._refused(response)
            text_format = self._format(response)
            chunks = self._body(response, stack.pop_all(), give_up_at)
            return Reply(chunks, _token(response.headers), text_format, fresh_s)

    def read_signatures(self) -> Iterable[bytes] | None:
        parts = urlsplit(self._url)
        give_up_at = self._clock() + self._timeout_s
        url = urlunsplit(parts._replace(path=parts.path + SUFFIX))
        response, stack = self._ask(url, None, give_up_at)
        with stack:
            if response.status_code in _ABSENT:
                return None
            if response.status_code != 200:
                self._refused(response)
            return self._body(response, stack.pop_all(), give_up_at)

    def _ask(
        self, url: str, etag: str | None, give_up_at: float
    ) -> tuple[httpx2.Response, ExitStack]:
        """The response, its body not yet read, and what closes it."""
        import httpx2

        with ExitStack() as stack:
            stack.enter_context(_uninstrumented())
            try:
                client = stack.enter_context(self._client())
                if hasattr(client._transport, "_pool"):
                    hurry(client, give_up_at, self._clock)
                response = self._follow(client, stack, url, etag, give_up_at)
            except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
                # Its text may repeat a URL with a token in its query: the class says enough.
                self._fail(f"{type(exc).__name__} while asking for it")
            return response, stack.pop_all()

    def _format(self, response: httpx2.Response) -> str:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _YAML_TYPES:
            return "yaml"
        if kind and kind not in _JSON_TYPES and not kind.endswith("+json"):
            # A login page, most likely, or a proxy's: told as such, not as line 1, column 1.
            self._fail(f"is {kind[:80]}, no policy", expected="application/json, or YAML")
        unsaid = not kind or kind in _JSON_TYPES - {"application/json", "text/json"}
        return format_of(urlsplit(self._url).path) if unsaid else "json"

    def _client(self) -> httpx2.Client:
        import httpx2

        if self._ssl_context is None:
            self._ssl_context = _usual_ssl_context()
        return httpx2.Client(
            verify=self._ssl_context,
            trust_env=False,
            proxy=self._proxy,
            follow_redirects=False,
            timeout=self._timeout_s,
        )

    def _follow(
        self, client: httpx2.Client, stack: ExitStack, url: str, etag: str | None, give_up_at: float
    ) -> httpx2.Response:
        origin = self._origin
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
            "accept": "application/json, application/yaml;q=0.5",
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
                    if unzip is None:
                        yield raw
                        continue
                    packed = raw
                    while packed:
                        if unzip.eof:  # what follows would be kept whole, wherever it ends
                            self._fail("goes on after its end")
                        # A bounded piece at a time: a few bytes can unfold to gigabytes.
                        yield unzip.decompress(packed, CHUNK_BYTES)
                        packed = unzip.unconsumed_tail
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


@functools.cache  # building one costs more than a fetch, and half a megabyte
def _usual_ssl_context() -> ssl.SSLContext:
    import httpx2

    return httpx2.create_ssl_context()


def without_query(url: str) -> str:
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


def _fresh_s(headers: Mapping[str, str]) -> float | None:
    """Seconds for which asking again is idle, by Cache-Control and Age (RFC 9111), bounded."""
    for directive in headers.get("cache-control", "").lower().split(","):
        name, _, value = directive.strip().partition("=")
        if name == "max-age" and (text := value.strip('"')).isdecimal() and len(text) < 10:
            age = headers.get("age", "")
            passed = int(age) if age.isdecimal() and len(age) < 10 else 0
            return min(max(int(text) - passed, 0.0), FRESH_MAX_S)
    return None


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
