"""Policy from object stores, and whatever else fsspec has a file system for.

`s3://` needs `headway[s3]`, `gs://` `headway[gcs]`, `az://` `headway[azure]`; other schemes the
package that fsspec names. fsspec runs its asynchronous file systems on one daemon thread of its
own, started at the first look; it is not ours, and shared with everything else that uses fsspec.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from headway.errors import FetchError, PolicyError
from headway.policy.document import format_of
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.signing import SIGNATURES_BYTES_MAX, SUFFIX
from headway.policy.sources import (
    NotModified,
    PolicyArgument,
    PolicySource,
    Reply,
    TooLargeError,
    local_source_for,
)

STORE_INTERVAL_S = 30.0
STORE_JITTER = 0.2
STORE_TIMEOUT_S = 10.0
EXTRAS: Mapping[str, str] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_TAGS = (
    *("ETag", "etag", "md5Hash", "content_md5", "generation", "version_id", "sha"),
    *("mtime", "modified", "last_modified", "created"),
)
"""What file systems call that which changes with an object's content."""


_COMPARING = frozenset({"s3", "s3a"})
"""Whose file systems hand a condition on to the store."""


class AbsentError(FetchError):
    """There is no such object."""


class ChangedError(FetchError):
    """There is another object than the one that was read."""


class StoreSource(PolicySource):
    """A document in an object store, by URL: `s3://bucket/llm/policy.json`.

    `options` go to the file system, as fsspec's `storage_options` (`endpoint_url`, `anon`, `token`,
    `connection_string`, ...); without them it finds its own credentials, as its command line tools
    do. At most the bytes that a document may have are asked for. What an object store gives is
    fetched: it may name only hosts and credentials that code declared, and has to be signed.
    """

    interval_s = STORE_INTERVAL_S
    jitter = STORE_JITTER

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        interval_s: float = STORE_INTERVAL_S,
        timeout_s: float = STORE_TIMEOUT_S,
        bootstrap: PolicyArgument | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise PolicyError(
                "the policy's URL holds more than a place",
                expected="keys in options={...}, or where the store's own tools look for them",
                source=f"{parts.scheme[:20]}://...",
            )
        if interval_s <= 0 or timeout_s <= 0:
            raise ValueError("StoreSource: expected interval_s and timeout_s above 0")
        self.label = url
        self.interval_s = interval_s
        self.cache_key = hashlib.sha256(url.encode()).hexdigest()[:32]
        self.bootstrap = local_source_for(bootstrap, self.label)
        self._scheme = parts.scheme.lower()
        self._options = dict(options or {})
        self._timeout_s = timeout_s
        self._opened: tuple[int, Any] | None = None
        _file_system_class(self._scheme)  # told where the policy is named, not in the background

    def read(self, etag: str | None) -> Reply | NotModified:
        found: Mapping[str, Any] = self._call("info", self.label)
        tag = self._tag(found)
        if tag is not None and tag == etag:
            return NotModified()
        # Asked for after its tag: if it changes in between, the next look finds another tag.
        content = self._head(self.label, DOCUMENT_BYTES_MAX) if found.get("size") != 0 else b""
        return Reply([content], etag=tag, format=format_of(self.label))

    def read_signatures(self) -> Iterable[bytes] | None:
        try:
            return [self._head(self.label + SUFFIX, SIGNATURES_BYTES_MAX)]
        except AbsentError:
            return None

    def exists(self) -> bool:
        """Whether there is an object. Raises FetchError."""
        try:
            self._call("info", self.label)
        except AbsentError:
            return False
        return True

    def tag(self) -> str | None:
        """What to compare with before writing; None: nothing is there, or it can't be compared."""
        if self._scheme not in _COMPARING:
            return None
        try:
            found: Mapping[str, Any] = self._call("info", self.label)
        except AbsentError:
            return None
        return found.get("ETag")

    def write(
        self, suffix: str, content: bytes, *, tag: str | None = None, is_new: bool = False
    ) -> None:
        """Put the document there, or what belongs beside it.

        `tag`: only in place of what had it; `is_new`: only where nothing is. On S3, and stores like
        it that know conditions; others write. Raises FetchError; ChangedError for another object.
        """
        condition: dict[str, Any] = {}
        if self._scheme in _COMPARING:
            condition = {"mode": "create"} if is_new else {} if tag is None else {"IfMatch": tag}
        self._call("pipe_file", self.label + suffix, content, **condition)  # no two name it alike

    def _head(self, url: str, cap: int) -> bytes:
        content: bytes = self._call("cat_file", url, start=0, end=cap + 1)
        return content

    def _tag(self, found: Mapping[str, Any]) -> str | None:
        size = found.get("size")
        if isinstance(size, int) and size > DOCUMENT_BYTES_MAX:
            raise TooLargeError(
                "the document is too large",
                expected=f"at most {DOCUMENT_BYTES_MAX} bytes",
                source=self.label,
            )
        named = next((found[name] for name in _TAGS if found.get(name)), None)
        return None if named is None else f"{named}-{size}"

    def _call(self, method: str, url: str, *given: Any, **arguments: Any) -> Any:
        """Call the file system, within `timeout_s` where it is an asynchronous one."""
        asyn = import_module("fsspec.asyn")  # it has no types
        fs = self._file_system()
        path = fs._strip_protocol(url)
        try:
            if isinstance(fs, asyn.AsyncFileSystem):
                call = getattr(fs, f"_{method}")
                return asyn.sync(fs.loop, call, path, *given, timeout=self._timeout_s, **arguments)
            return getattr(fs, method)(path, *given, **arguments)
        except FileNotFoundError:
            raise AbsentError("is not there", source=self.label) from None
        except Exception as exc:  # noqa: BLE001 - whatever a store's client raises
            if method == "pipe_file" and arguments and _is_not_so(exc):
                raise ChangedError("is not what was read", source=self.label) from None
            # Its text may repeat a request with its signature: the class says enough.
            raise FetchError(
                f"{type(exc).__name__} while asking for it", source=self.label
            ) from None

    def _file_system(self) -> Any:
        # A forked child must not use its parent's sessions, nor anybody our listing cache.
        pid = os.getpid()
        if self._opened is None or self._opened[0] != pid:
            made = _file_system_class(self._scheme)(
                **self._options, use_listings_cache=False, skip_instance_cache=True
            )
            self._opened = pid, made
        fs = self._opened[1]
        with contextlib.suppress(Exception):
            fs.invalidate_cache()
        return fs


def _is_not_so(exc: Exception) -> bool:
    """Whether a condition did not hold, as s3fs says it (PreconditionFailed)."""
    return isinstance(exc, FileExistsError) or getattr(exc, "errno", None) == errno.EINVAL


def _file_system_class(scheme: str) -> Any:
    extra = EXTRAS.get(scheme)
    hint = f"pip install 'headway[{extra}]'" if extra else "pip install 'headway[fsspec]'"
    try:
        fsspec = import_module("fsspec")
    except ImportError:
        raise PolicyError(f"policies at {scheme[:20]}:// need fsspec: {hint}") from None
    try:
        return _plain(fsspec.get_filesystem_class(scheme))
    except ImportError as exc:
        need = hint if extra else str(exc)
        raise PolicyError(f"policies at {scheme[:20]}:// need another package: {need}") from None
    except ValueError:
        raise PolicyError(
            f"no source for {scheme[:20]}:// addresses",
            expected="https://, http:// on loopback, s3://, gs://, az://, file://, or a path",
        ) from None


def _plain(cls: Any) -> Any:
    """Of gcsfs the class that speaks HTTP alone.

    The one that it registers asks over gRPC what kind of bucket it is before it reads. Where that
    can't be reached (a proxy, a firewall, an emulator) it tries for a minute, at every look.
    """
    if cls.__module__ == "gcsfs.extended_gcsfs":
        return import_module("gcsfs.core").GCSFileSystem
    return cls
