"""Putting a document where clients fetch it: a file, an object store, an HTTP server with PUT.

What is there is read first: a document that is not newer, or that is another policy, is refused
here rather than by every client. The order of writing is what lets clients read at any moment:
first the signatures of both documents, then the document, then the new one's signatures alone.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headway.credentials import Credential
from headway.errors import FetchError, PolicyError, VerifyError
from headway.hosts import is_loopback, origin_allowed, origin_of
from headway.policy.document import Order, format_of, order, read_local
from headway.policy.models import Policy
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.signing import (
    SUFFIX,
    Signature,
    SignatureError,
    only_for,
    read_signatures,
    signature_file,
)
from headway.policy.sources import FileSource, PolicySource, Reply, source_for
from headway.policy.store_source import ChangedError, StoreSource

PUT_TIMEOUT_S = 30.0
OVERTAKEN = "somebody else has published there in the meantime"


class Published(NamedTuple):
    """What was done."""

    target: str
    rank: tuple[int, int]
    """(epoch, version) that is there now."""
    replaced: tuple[int, int] | None
    """What was there before; None: nothing."""
    changed: bool
    """False: the very same bytes were there already, and only signatures were written, if any."""
    signed_by: tuple[str, ...]
    """Key ids of the signatures that lie beside it now."""


class Place(NamedTuple):
    """What is at a target."""

    content: bytes | None
    signatures: bytes | None
    tag: str | None = None
    """For servers that compare before they swap."""


def publish(
    content: bytes,
    target: str | os.PathLike[str],
    *,
    signatures: Iterable[Signature] = (),
    credential: Credential | None = None,
    options: Mapping[str, Any] | None = None,
) -> Published:
    """Put a document's exact bytes, and its signatures, at `target`: a path, or a URL as in
    `Router(policy=...)`.

    `signatures` are entries of `headway.policy.signing.sign`, of these very bytes; more signers can
    add theirs by publishing the same bytes again. `credential` goes to an HTTP server that its
    hosts cover, `options` to fsspec. Raises ValidationError for a document that is not sound,
    VerifyError for one that is not newer than what is there or is another policy, FetchError where
    the target can't be read or written.
    """
    there = _target_for(target, credential, options)
    policy = _checked(content, there.label)
    now = there.look()
    replaced = None if now.content is None else _replaced(policy, content, now.content, there.label)
    changed = now.content != content
    entries = list(signatures)
    if any(entry.sha256 != hashlib.sha256(content).hexdigest() for entry in entries):
        raise ValueError("signatures: expected signatures of the very bytes that are published")
    both = signature_file(entries, keep=_still_good(now))
    new = only_for(content, both)
    signed_by = tuple(entry.key for entry in read_signatures(new))
    if entries or now.signatures is not None:
        there.write(SUFFIX, both, None)
    if changed:
        there.write("", content, now)
    if (entries or now.signatures is not None) and both != new:
        there.write(SUFFIX, new, None)
    return Published(there.label, (policy.epoch, policy.version), replaced, changed, signed_by)


def _still_good(now: Place) -> bytes | None:
    """The signatures of what is there."""
    if now.content is None or now.signatures is None:
        return None
    try:
        return only_for(now.content, now.signatures)
    except SignatureError:
        return None  # no signature file: whoever insists on one refuses the document already


def _checked(content: bytes, label: str) -> Policy:
    return read_local(content, format=format_of(label), source=label)


def _replaced(policy: Policy, content: bytes, before: bytes, label: str) -> tuple[int, int] | None:
    try:
        old = _checked(before, label)
    except PolicyError:
        return None  # what is there is no policy: anything is better
    rank, new = (old.epoch, old.version), (policy.epoch, policy.version)
    if before == content:
        return rank
    if old.policy_id != policy.policy_id:
        raise VerifyError(
            f'got "{policy.policy_id}"',
            path="policy_id",
            expected=f'"{old.policy_id}": clients of it refuse another policy',
            source=label,
        )
    match order(new, rank):
        case Order.OLDER:
            raise VerifyError(
                f"(epoch, version) {new} is older than {rank}, which is there",
                expected="a higher version; to go back on purpose, a higher epoch",
                source=label,
            )
        case Order.SAME:
            raise VerifyError(
                f"(epoch, version) {new} is there already, with other content",
                expected="a higher version: clients pass over a change without one",
                source=label,
            )
        case Order.NEWER:
            return rank


# ----------------------------------------------------------------------------- targets


class Target(abc.ABC):
    """A place that can be read and written. What it raises becomes a FetchError."""

    label: str

    @abc.abstractmethod
    def read(self) -> Place:
        """What is there now. May raise anything."""

    @abc.abstractmethod
    def put(self, suffix: str, content: bytes, now: Place | None) -> None:
        """Write the document, or the signatures (by suffix). May raise anything."""

    def look(self) -> Place:
        """What is there now. Raises FetchError."""
        place: Place = self._told(self.read, "read")
        return place

    def write(self, suffix: str, content: bytes, now: Place | None) -> None:
        """Write, unless something other than `now` is there where that can be told."""
        self._told(lambda: self.put(suffix, content, now), "written")

    def _told(self, act: Any, what: str) -> Any:
        try:
            return act()
        except PolicyError:
            raise
        except Exception as exc:
            raise FetchError(f"can't be {what}: {type(exc).__name__}", source=self.label) from exc


def _target_for(
    target: str | os.PathLike[str],
    credential: Credential | None,
    options: Mapping[str, Any] | None,
) -> Target:
    if isinstance(target, str) and target.lower().startswith(("http://", "https://")):
        return _Http(target, credential)
    source: PolicySource
    if isinstance(target, str) and "://" in target and not target.startswith("file://"):
        source = StoreSource(target, options=options)
    else:
        source = source_for(target)
    match source:
        case FileSource():
            return _File(source.path)
        case StoreSource():
            return _Store(source)
        case _:
            raise PolicyError(
                "can't be published to", expected="a path or a URL", source=source.label
            )


class _File(Target):
    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path

    def read(self) -> Place:
        return Place(_bytes_of(self._path), _bytes_of(self._beside(SUFFIX)))

    def put(self, suffix: str, content: bytes, now: Place | None) -> None:
        del now  # file systems know no compare and swap
        path = self._beside(suffix)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(mode)
            # Through a link: what it leads to is replaced, not the link.
            Path(name).replace(path.resolve())
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)


def _bytes_of(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)
    except FileNotFoundError:
        return None


class _Store(Target):
    """S3 compares before it swaps, as HTTP does; of other stores the last who writes wins."""

    def __init__(self, source: StoreSource) -> None:
        self.label = source.label
        self._source = source

    def read(self) -> Place:
        if not self._source.exists():
            return Place(None, None)
        tag = self._source.tag()  # before the content: what changes in between is noticed
        return Place(_whole(self._source), _signatures(self._source), tag)

    def put(self, suffix: str, content: bytes, now: Place | None) -> None:
        try:
            self._source.write(
                suffix,
                content,
                tag=None if now is None else now.tag,
                is_new=now is not None and now.content is None,
            )
        except ChangedError:
            raise VerifyError(OVERTAKEN, source=self.label) from None


def _whole(source: PolicySource) -> bytes:
    reply = source.read(None)
    assert isinstance(reply, Reply), "nothing was given to compare with"
    return b"".join(reply.chunks)


def _signatures(source: PolicySource) -> bytes | None:
    found = source.read_signatures()
    return None if found is None else b"".join(found)


class _Http(Target):
    """PUT with `If-Match`, so that of two that publish at once one is told (412)."""

    def __init__(self, url: str, credential: Credential | None) -> None:
        from headway.policy.http_source import without_query

        self.label = without_query(url)
        try:
            self._origin = origin_of(url)
        except ValueError as exc:
            raise PolicyError(f"the target's URL: {exc}", source=self.label) from None
        if self._origin.scheme != "https" and not is_loopback(self._origin.host):
            raise PolicyError(
                "the target's URL is plain http off loopback",
                expected="https://",
                source=self.label,
            )
        self._url = url
        self._credential = credential

    def read(self) -> Place:
        status, content, tag = self._send("GET", "")
        if status in (404, 410):
            return Place(None, None)
        self._check(status, "reading it", 200)
        status, signatures, _ = self._send("GET", SUFFIX)
        return Place(content, signatures if status == 200 else None, tag)

    def put(self, suffix: str, content: bytes, now: Place | None) -> None:
        headers = {"content-type": "application/yaml" if self._is_yaml else "application/json"}
        if now is not None and now.content is None:
            headers["if-none-match"] = "*"
        elif now is not None and now.tag is not None:
            headers["if-match"] = now.tag
        status, _, _ = self._send("PUT", suffix, content, headers)
        if status == 412:
            raise VerifyError(OVERTAKEN, source=self.label)
        self._check(status, "writing it", 200, 201, 202, 204)

    @property
    def _is_yaml(self) -> bool:
        return format_of(self.label) == "yaml"

    def _check(self, status: int, what: str, *fine: int) -> None:
        if status not in fine:
            raise FetchError(f"answered {status} to {what}", source=self.label)

    def _send(
        self,
        method: str,
        suffix: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes, str | None]:
        import httpx2

        sent = {"user-agent": "headway-policy", "accept-encoding": "identity", **(headers or {})}
        if self._credential is not None and origin_allowed(self._origin, self._credential.hosts):
            name, value = self._credential.header_for(self._credential.get())
            sent[name.lower()] = value
        url = httpx2.URL(self._url)
        url = url.copy_with(path=url.path + suffix)
        # Redirects are not followed: a document and a key go where the command says, or nowhere.
        with (
            httpx2.Client(trust_env=False, timeout=PUT_TIMEOUT_S) as client,
            client.stream(method, url, content=content, headers=sent) as response,
        ):
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > DOCUMENT_BYTES_MAX:
                    raise FetchError("what is there is too large", source=self.label)
            return response.status_code, bytes(body), response.headers.get("etag")
