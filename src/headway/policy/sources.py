"""Where policy bytes come from.

A source is one class with one method. `PolicySource.fetch` wraps it with what every source owes: at
most `DOCUMENT_BYTES_MAX` bytes are read, and nothing but FetchError escapes. To add one, subclass,
write `read`, and pass the contract test (`tests/policy/test_sources.py`).
"""

from __future__ import annotations

import abc
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias, final

from headway.errors import FetchError, PolicyError, ValidationError
from headway.policy.document import format_of
from headway.policy.models import Policy
from headway.policy.parse import DOCUMENT_BYTES_MAX

FILE_INTERVAL_S = 2.0
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


class Fetched(NamedTuple):
    """A document as it was read."""

    content: bytes
    etag: str | None = None
    format: str = "json"
    """"json" or "yaml"."""

    @property
    def digest(self) -> str:
        """Tells one content from another."""
        return hashlib.sha256(self.content).hexdigest()


class NotModified(NamedTuple):
    """The document is the one that `etag` stood for."""


class PolicySource(abc.ABC):
    """A place that policy documents come from. Used by one thread at a time."""

    label: str
    """Names the source in messages and events. Holds no secrets."""
    fetched: ClassVar[bool] = True
    """Documents come from elsewhere, so they may name only what code declared."""
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
    def read(self, etag: str | None) -> Reply | NotModified:
        """Ask for the document, `etag` being the one of the last reply. May raise anything."""

    @final
    def fetch(self, etag: str | None = None) -> Fetched | NotModified:
        """Read the document within the byte cap. Raises FetchError and nothing else."""
        try:
            reply = self.read(etag)
            if isinstance(reply, NotModified):
                return reply
            return Fetched(self._within_cap(reply.chunks), reply.etag, reply.format)
        except FetchError:
            raise
        except Exception as exc:
            raise FetchError(f"{type(exc).__name__}: {exc}", source=self.label) from exc

    def _within_cap(self, chunks: Iterable[bytes]) -> bytes:
        content = bytearray()
        try:
            for chunk in chunks:
                content += chunk
                if len(content) > DOCUMENT_BYTES_MAX:
                    raise TooLargeError(
                        "the document is too large",
                        expected=f"at most {DOCUMENT_BYTES_MAX} bytes",
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


class FileSource(PolicySource):
    """A local file that the application names: JSON, or YAML by its suffix. Followed as it changes.

    A change is a new modification time, size or inode of what the path leads to, so replacing the
    file by `os.replace`, and swapping a symbolic link to it or to its directory, are both seen.
    """

    fetched: ClassVar[bool] = False
    interval_s = FILE_INTERVAL_S

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.label = str(self.path)
        self._format = format_of(self.path)

    def read(self, etag: str | None) -> Reply | NotModified:
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for a writer
                raise FetchError("is no regular file", source=self.label)
            if etag is not None and etag == _signature(found):
                return NotModified()
            # The descriptor is asked again: the path may lead elsewhere by now.
            with self.path.open("rb") as file:
                signature = _signature(os.fstat(file.fileno()))
                chunks = list(_bounded(iter(lambda: file.read(CHUNK_BYTES), b"")))
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise FetchError(f"can't be read: {why}", source=self.label) from exc
        return Reply(chunks, etag=signature, format=self._format)


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
    document; `http://` and `https://` URLs are fetched; other text and paths are files. Raises
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


def _source_for_text(text: str) -> PolicySource:
    scheme, separator, rest = text.partition("://")
    match scheme.lower() if separator else "":
        case "":
            return FileSource(text)
        case "file":
            return FileSource(rest)
        case "http" | "https":
            from headway.policy.http_source import HttpSource

            return HttpSource(text)
        case other:
            raise PolicyError(
                f"no source for {other[:20]}:// addresses",
                expected="https://, http:// on loopback, file://, or a path",
            )
