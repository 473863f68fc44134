"""Where policy bytes come from.

A source is one class with one method, or two where its documents can be signed.
`PolicySource.fetch` wraps them with what every source owes: bounded reading, and nothing but
FetchError escapes. To add one, subclass, write `read` (and `read_signatures`), and pass the
contract test (`tests/policy/test_sources.py`).
"""

from __future__ import annotations

import abc
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias, cast, final

from headway.errors import FetchError, PolicyError, ValidationError
from headway.policy.document import format_of
from headway.policy.models import Policy
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.signing import SIGNATURES_BYTES_MAX, SUFFIX

FILE_INTERVAL_S = 2.0
FILE_SETTLE_S = 0.25
"""A changed file is read once it has stood still this long: half a YAML file is a document, too."""
FILE_YOUNG_S = 3.0
"""A file changed this lately may change again within one tick of its clock (2 s on FAT)."""
CHUNK_BYTES = 64 * 1024


class UnavailableError(FetchError):
    """A FetchError that may know when asking again is welcome."""

    retry_after_s: float | None = None


class TooLargeError(FetchError):
    """The source has more bytes than a document may have."""


class Reply(NamedTuple):
    """What a source has, not yet read."""

    chunks: Iterable[bytes]
    etag: str | None = None
    """Opaque: given back at the next read, to learn that nothing changed."""
    format: str = "json"
    fresh_s: float | None = None
    """For how long the source says that asking again is idle; None: it doesn't say."""


class Fetched(NamedTuple):
    """A document as it was read."""

    content: bytes
    etag: str | None = None
    format: str = "json"
    """"json" or "yaml"."""
    signatures: bytes | None = None
    """The signature file beside it; None where there is none, or none was asked for."""
    fresh_s: float | None = None

    @property
    def digest(self) -> str:
        """Tells one content, signatures included, from another."""
        return hashlib.sha256(self.content + b"\0" + (self.signatures or b"")).hexdigest()


class NotModified(NamedTuple):
    """The document is the one that `etag` stood for."""

    fresh_s: float | None = None


class Unsettled(NamedTuple):
    """The document is being written just now: look again in a moment."""

    again_s: float


class PolicySource(abc.ABC):
    """A place that policy documents come from. Used by one thread at a time."""

    label: str
    """Names the source in messages and events. Holds no secrets."""
    fetched: ClassVar[bool] = True
    """Documents come from elsewhere, so they may name only what code declared."""
    in_code: ClassVar[bool] = False
    """Documents are part of the application, so pinned keys need not have signed them."""
    interval_s: float | None = None
    """How often to look; None: it never changes."""
    jitter: float = 0.0
    """The interval is stretched or shrunk by up to this part of it."""
    from_loopback: bool = False
    """What is fetched comes from this machine."""
    cache_key: str | None = None
    """What the disk cache files the document under; None: not kept there."""
    bootstrap: PolicySource | None = None
    """A local document to start from when this source has nothing yet."""

    @abc.abstractmethod
    def read(self, etag: str | None) -> Reply | NotModified | Unsettled:
        """Ask for the document, `etag` being the one of the last reply. May raise anything."""

    def read_signatures(self) -> Iterable[bytes] | None:
        """The signature file of the document just read; None: there is none. May raise anything."""
        return None

    @final
    def fetch(
        self, etag: str | None = None, *, signed: bool = False
    ) -> Fetched | NotModified | Unsettled:
        """Read the document, and its signatures if they are wanted, within the byte caps.

        Raises FetchError and nothing else.
        """
        try:
            reply = self.read(etag)
            if not isinstance(reply, Reply):
                return reply
            content = self._within_cap(reply.chunks, DOCUMENT_BYTES_MAX, "document")
            beside = self.read_signatures() if signed else None
            signatures = None
            if beside is not None:
                signatures = self._within_cap(beside, SIGNATURES_BYTES_MAX, "signature file")
            return Fetched(content, reply.etag, reply.format, signatures, reply.fresh_s)
        except FetchError:
            raise
        except Exception as exc:
            raise FetchError(f"{type(exc).__name__}: {exc}", source=self.label) from exc

    def _within_cap(self, chunks: Iterable[bytes], cap: int, what: str) -> bytes:
        content = bytearray()
        try:
            for chunk in chunks:
                content += chunk
                if len(content) > cap:
                    raise TooLargeError(
                        f"the {what} is too large",
                        expected=f"at most {cap} bytes",
                        source=self.label,
                    )
        finally:
            if isinstance(chunks, Iterator) and (close := getattr(chunks, "close", None)):
                close()
        return bytes(content)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.label!r})"


class StaticSource(PolicySource):
    """A document made in code: bytes, JSON text, a mapping, or a `Policy`. Never changes."""

    fetched: ClassVar[bool] = False
    in_code: ClassVar[bool] = True

    def __init__(
        self, document: Policy | Mapping[str, object] | bytes | str, *, label: str = "static"
    ) -> None:
        self.label = label
        self.policy = document if isinstance(document, Policy) else None
        self._content = _static_bytes(document, label)

    def read(self, etag: str | None) -> Reply | NotModified:
        if etag == "static":
            return NotModified()
        return Reply([self._content], etag="static")


def _static_bytes(document: Policy | Mapping[str, object] | bytes | str, label: str) -> bytes:
    match document:
        case Policy():
            return document.dump(indent=None)
        case bytes():
            return document
        case str():
            return document.encode("utf-8", "surrogatepass")
        case _:
            try:
                return json.dumps(dict(document)).encode()
            except (TypeError, ValueError, RecursionError) as exc:
                raise ValidationError(
                    f"the mapping has no JSON form: {exc}", path="$", source=label
                ) from None


class EnvSource(PolicySource):
    """A document that stands in an environment variable, as text. Read once: it never changes."""

    fetched: ClassVar[bool] = False

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.label = f"environment variable {variable}"

    def read(self, etag: str | None) -> Reply | NotModified:
        text = os.environ.get(self.variable)
        if text is None:
            raise FetchError("is not set", expected="a policy document", source=self.label)
        content = text.encode("utf-8", "surrogateescape")
        tag = hashlib.sha256(content).hexdigest()
        if tag == etag:
            return NotModified()
        return Reply([content], etag=tag, format="json" if content.lstrip()[:1] == b"{" else "yaml")

    def read_signatures(self) -> Iterable[bytes] | None:
        text = os.environ.get(f"{self.variable}_SIG")
        return None if text is None else [text.encode("utf-8", "surrogateescape")]


class PackageSource(PolicySource):
    """A document shipped inside a Python package, also a zipped one: what a start falls back on."""

    fetched: ClassVar[bool] = False
    in_code: ClassVar[bool] = True

    def __init__(self, package: str, name: str = "policy.json") -> None:
        self.package, self.name = package, name
        self.label = f"{name} of package {package}"
        self._format = format_of(name)

    def read(self, etag: str | None) -> Reply | NotModified:
        if etag == "package":
            return NotModified()
        from importlib import resources

        try:
            with resources.files(self.package).joinpath(self.name).open("rb") as file:
                content = file.read(DOCUMENT_BYTES_MAX + 1)
        except (OSError, ImportError, TypeError) as exc:
            raise FetchError(f"can't be read: {type(exc).__name__}", source=self.label) from exc
        return Reply([content], etag="package", format=self._format)


class FileSource(PolicySource):
    """A local file that the application names: JSON, or YAML by its suffix. Followed as it changes.

    A change is a new modification time, size or inode of what the path leads to: replacing the file
    by `os.replace`, swapping a symbolic link to it or to its directory (as Kubernetes mounts a
    ConfigMap), and writing over it are all seen. A change is taken once it has stood still for
    `FILE_SETTLE_S`, so that a file that is being written is not read by halves.
    """

    fetched: ClassVar[bool] = False
    interval_s = FILE_INTERVAL_S

    def __init__(
        self, path: str | os.PathLike[str], *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.label = str(Path(path))
        self.path = absolute(path)  # wherever the process goes
        self._format = format_of(self.path)
        self._wall_clock = wall_clock
        self._seen: str | None = None

    def read(self, etag: str | None) -> Reply | NotModified | Unsettled:
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for a writer
                raise FetchError("is no regular file", source=self.label)
            now = _signature(found)
            if etag is not None and etag == now:
                return NotModified()
            known, self._seen = self._seen, now
            # The first document is wanted at once; the ones that follow can wait to be whole.
            if known is not None and now != known:
                return Unsettled(FILE_SETTLE_S)
            # The descriptor is asked again: the path may lead elsewhere by now.
            with self.path.open("rb") as file:
                opened = os.fstat(file.fileno())
                chunks = list(_bounded(iter(lambda: file.read(CHUNK_BYTES), b"")))
                if known is not None and _signature(os.fstat(file.fileno())) != now:
                    return Unsettled(FILE_SETTLE_S)
        except (OSError, ValueError) as exc:
            self._seen = self._seen or ""
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            where = "" if self.label == str(self.path) else f": {self.path}"
            raise FetchError(f"can't be read: {why}{where}", source=self.label) from exc
        young = abs(self._wall_clock() - opened.st_mtime) < FILE_YOUNG_S
        return Reply(chunks, etag=None if young else _signature(opened), format=self._format)

    def read_signatures(self) -> Iterable[bytes] | None:
        path = self.path.with_name(self.path.name + SUFFIX)
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                return None
            with path.open("rb") as file:
                return [file.read(SIGNATURES_BYTES_MAX + 1)]
        except FileNotFoundError:
            return None


def _signature(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_size}-{found.st_dev}-{found.st_ino}"


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """At most one chunk more than a document may have: enough for the cap to see it."""
    total = 0
    for chunk in chunks:
        yield chunk
        total += len(chunk)
        if total > DOCUMENT_BYTES_MAX:
            return


PolicyArgument: TypeAlias = (
    "PolicySource | Policy | Mapping[str, object] | bytes | str | os.PathLike[str]"
)


def source_for(argument: PolicyArgument) -> PolicySource:
    """The source that a `policy=` argument means.

    A source is itself; a Policy, mapping, bytes, or text that begins with `{` is a static
    document; `http://` and `https://` URLs are fetched, as are those of object stores (`s3://`,
    `gs://`, `az://` and what else fsspec knows); `env:NAME` is a document in an environment
    variable, `package:NAME/FILE` one in a Python package; other text and paths are files. Raises
    PolicyError for other URLs, TypeError for anything else.
    """
    match argument:
        case PolicySource():
            return argument
        case Policy() | bytes() | Mapping():
            return StaticSource(argument)
        case str() if argument.lstrip().startswith("{"):
            return StaticSource(argument)
        case str():
            return _source_for_text(argument)
        case os.PathLike():
            return FileSource(argument)
        case _:  # pyright: ignore[reportUnnecessaryComparison] - for callers without a checker
            raise TypeError(
                "policy: expected a path, a URL, a Policy, a mapping, bytes or a PolicySource, "
                f"got {type(argument).__name__}"
            )


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path as seen from the working directory of now."""
    with suppress(OSError):
        return Path(path).absolute()
    return Path(path)  # the working directory is gone


def file_of(argument: object) -> Path | None:
    """The file that a `policy=` argument means; None: it means something else."""
    if not isinstance(argument, str | os.PathLike):
        return None
    if isinstance(argument, str) and "://" in argument and argument[:7].lower() != "file://":
        return None
    with suppress(PolicyError):
        source = source_for(cast("str | os.PathLike[str]", argument))
        return source.path if isinstance(source, FileSource) else None
    return None


def local_source_for(argument: PolicyArgument | None, label: str) -> PolicySource | None:
    """What a `bootstrap=` argument means: any source that asks nobody else. Raises PolicyError."""
    if argument is None:
        return None
    source = source_for(argument)
    if source.fetched:
        raise PolicyError("a bootstrap policy must be local", source=label)
    return source


def _source_for_text(text: str) -> PolicySource:
    scheme, separator, rest = text.partition("://")
    match scheme.lower() if separator else "":
        case "":
            return _local_source(text)
        case "file":
            return FileSource(rest)
        case "http" | "https":
            from headway.policy.http_source import HttpSource

            return HttpSource(text)
        case _:
            from headway.policy.store_source import StoreSource

            return StoreSource(text)


def _local_source(text: str) -> PolicySource:
    kind, colon, rest = text.partition(":")
    match kind if colon else "":
        case "env":
            return EnvSource(rest)
        case "package":
            package, _, name = rest.partition("/")
            return PackageSource(package, name or "policy.json")
        case _:
            return FileSource(text)
