"""The disk's copy of the last good document, and the highest version ever trusted.

One file per policy: a line of JSON about the document, its signatures with it, then its exact
bytes. Written to a temporary file and moved into place, so a reader sees the old one or the new one
whole, whichever of a host's processes wrote it. Nothing here raises: a cache that fails is a cache
that is empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, cast

from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.sources import absolute

log = logging.getLogger("headway.policy")

FORMAT = 1
HEADER_BYTES_MAX = 64 * 1024  # the signatures, an etag and a few short fields


class Cached(NamedTuple):
    """What was kept: the document (None when its bytes are damaged) and the high-water mark."""

    content: bytes | None
    format: str
    etag: str | None
    mark: tuple[int, int]
    """The highest (epoch, version) trusted: nothing older may replace it."""
    signatures: bytes | None = None
    policy_id: str | None = None


class DiskCache:
    """Keeps documents in one directory, readable by this user alone."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = absolute(directory)

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.policy"

    def load(self, key: str) -> Cached | None:
        """The cached document, or None."""
        try:
            with self._path(key).open("rb") as file:
                header = file.readline(HEADER_BYTES_MAX)
                content = file.read(DOCUMENT_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as exc:
            log.warning("policy cache %s can't be read: %s", self._path(key), exc.strerror)
            return None
        cached = _cached(header, content)
        if cached is None or cached.content is None:
            log.warning("policy cache %s is damaged, its document is not used", self._path(key))
        return cached

    def store(
        self,
        key: str,
        content: bytes,
        *,
        format: str,  # noqa: A002
        etag: str | None,
        mark: tuple[int, int],
        label: str,
        signatures: bytes | None = None,
        policy_id: str | None = None,
        void: tuple[int, int] | None = None,
    ) -> bool:
        """Keep a document that was trusted; False when it could not be, or a newer one is there.

        A mark of `void` on the disk counts for nothing.
        """
        header = {
            "format": FORMAT,
            "source": label,
            "document": format,
            "etag": etag,
            "mark": list(mark),
            "policy_id": policy_id,
            "signatures": None if signatures is None else signatures.decode("utf-8", "replace"),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        header["check"] = _check(header)
        line = json.dumps(header).encode() + b"\n"
        if len(line) > HEADER_BYTES_MAX:
            return False
        path = self._path(key)
        # Processes of one host share the file; one that lags must not undo the others' mark.
        there = self.load(key)
        if there is not None and there.mark > mark and there.mark != void:
            return False
        temporary: Path | None = None
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In the same directory, so that the move can't cross file systems. Created 0600.
            descriptor, name = tempfile.mkstemp(dir=self._directory, prefix=f".{key}.")
            temporary = Path(name)
            with os.fdopen(descriptor, "wb") as file:
                file.write(line + content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as exc:
            log.warning("policy cache %s can't be written: %s", path, exc.strerror)
            if temporary is not None:
                with contextlib.suppress(OSError):
                    temporary.unlink()
            return False
        return True


def _check(header: dict[str, Any]) -> str:
    """A checksum over the header, so that a flipped bit in the mark is not taken for a version."""
    rest = {name: value for name, value in header.items() if name != "check"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _cached(header: bytes, content: bytes) -> Cached | None:
    try:
        parsed: object = json.loads(header)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    fields = cast("dict[str, Any]", parsed)
    if fields.get("check") != _check(fields):
        return None
    match fields:
        case {
            "format": 1,
            "document": str() as text_format,
            "etag": (str() | None) as etag,
            "mark": [int() as epoch, int() as version],
            "sha256": str() as digest,
        }:
            whole = len(content) <= DOCUMENT_BYTES_MAX
            whole = whole and hashlib.sha256(content).hexdigest() == digest
            signatures, policy_id = fields.get("signatures"), fields.get("policy_id")
            return Cached(
                content if whole else None,
                text_format,
                etag,
                (epoch, version),
                signatures.encode() if isinstance(signatures, str) else None,
                policy_id if isinstance(policy_id, str) else None,
            )
        case _:
            return None
