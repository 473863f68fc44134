"""Signed documents: detached Ed25519 over a document's exact bytes.

Beside `policy.json` lies `policy.json.sig`, a small JSON file with one entry per signature:

    {"signatures": [{"key": "ops-2026", "sha256": "9f...", "sig": "base64"}]}

The keys that count, and how many of them must have signed, are pinned in code (`PublicKeys`), never
fetched. `sha256` says which bytes an entry is for, so that the file can hold the signatures of the
document in place and of the next one: whoever publishes puts the signatures up first, and no reader
ever sees a document without its own. `key` only helps people: every pinned key may have made an
entry, and a key that is pinned under two names counts once.

Needs `headway[signing]` (cryptography). Pure: no clock, no I/O.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from headway.errors import PolicyError, VerifyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

SUFFIX = ".sig"
"""What is appended to a document's path to find its signatures."""
SIGNATURES_BYTES_MAX = 16 * 1024  # sixty signatures: thirty signers in the middle of a rotation
SIGNATURES_MAX = 64
KEYS_MAX = 32  # people and machines that sign a policy, with their successors
KEY_BYTES = 32
SIGNATURE_BYTES = 64
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_NEEDS = "signed policies need cryptography: pip install 'headway[signing]'"


class SignatureError(VerifyError):
    """The document is not signed by enough of the pinned keys."""


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The keys that a document must be signed with, and how many of them.

    `keys`: key id -> Ed25519 public key, as base64 of its 32 bytes (what `headway policy keygen`
    prints), as PEM, or as the bytes themselves. `threshold`: how many different keys must have
    signed. Raises ValueError for what is no key, and for a threshold that the keys can't meet.
    """

    keys: Mapping[str, str | bytes]
    """As given, by id."""
    threshold: int = 1
    """How many different ones must have signed."""
    raw: Mapping[str, bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.keys) <= KEYS_MAX:
            raise ValueError(f"public_keys: expected 1 to {KEYS_MAX} keys, got {len(self.keys)}")
        raw = {key_id: _raw_key(key_id, key) for key_id, key in self.keys.items()}
        distinct = len(set(raw.values()))
        if not 1 <= self.threshold <= distinct:
            raise ValueError(
                f"public_keys: expected a threshold from 1 to {distinct}, the number of different "
                f"keys, got {self.threshold}"
            )
        object.__setattr__(self, "keys", dict(self.keys))
        object.__setattr__(self, "raw", raw)

    def __hash__(self) -> int:
        return hash((frozenset(self.raw.items()), self.threshold))


KeysArgument: TypeAlias = "PublicKeys | Mapping[str, str | bytes]"


def keys_of(argument: KeysArgument | None) -> PublicKeys | None:
    """What a `public_keys=` argument means; a mapping means that one key is enough."""
    if argument is None or isinstance(argument, PublicKeys):
        return argument
    return PublicKeys(argument)


def keys_from_text(text: str) -> PublicKeys:
    """Keys as an environment variable holds them: `id=base64[,id=base64...][;threshold]`."""
    listed, _, threshold = text.partition(";")
    pairs = [entry.strip().partition("=") for entry in listed.split(",") if entry.strip()]
    if threshold.strip() and not threshold.strip().isdecimal():
        raise ValueError("public_keys: expected a number after the semicolon: the threshold")
    return PublicKeys(
        {key_id.strip(): key.strip() for key_id, _, key in pairs}, int(threshold.strip() or 1)
    )


class KeyPair(NamedTuple):
    """A new signing key. `repr` shows the public half only."""

    key_id: str
    public: str
    """Base64, for `PublicKeys`."""
    private: bytes
    """PEM (PKCS 8), encrypted if a password was given. Keep it away from the policy's host."""

    def __repr__(self) -> str:
        return f"KeyPair(key_id={self.key_id!r}, public={self.public!r}, private=<hidden>)"


class Signature(NamedTuple):
    """One entry of a signature file."""

    key: str
    sha256: str
    sig: bytes


class Verified(NamedTuple):
    """Who vouches for a document."""

    key_ids: tuple[str, ...]
    """Of the pinned keys that signed it, one id for each different key."""


def keygen(key_id: str | None = None, *, password: bytes | None = None) -> KeyPair:
    """Make a key. Without an id it is named by its fingerprint."""
    from cryptography.hazmat.primitives import serialization

    private = _ed25519().Ed25519PrivateKey.generate()
    public = private.public_key()
    secrecy: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        secrecy = serialization.BestAvailableEncryption(password)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secrecy
    )
    raw = public.public_bytes_raw()
    return KeyPair(_checked_id(key_id or fingerprint(raw)), base64.b64encode(raw).decode(), pem)


def fingerprint(raw: bytes) -> str:
    """A name for a public key that nobody gave one: 16 hex digits of its SHA-256."""
    return hashlib.sha256(raw).hexdigest()[:16]


def load_private(pem: bytes, *, password: bytes | None = None) -> Ed25519PrivateKey:
    """Read a private key. Raises ValueError, which repeats nothing of it."""
    _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(pem, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(
            "expected an Ed25519 private key as PEM, and its password if it has one"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"expected an Ed25519 private key, got {type(key).__name__}")
    return key


def public_text(private: Ed25519PrivateKey) -> str:
    """The public half of a private key, as `PublicKeys` takes it."""
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


def sign(
    content: bytes,
    private: Ed25519PrivateKey | bytes,
    *,
    key_id: str | None = None,
    password: bytes | None = None,
) -> Signature:
    """Sign a document's exact bytes. `private` is a key, or PEM (with its `password`)."""
    key = load_private(private, password=password) if isinstance(private, bytes) else private
    name = key_id or fingerprint(key.public_key().public_bytes_raw())
    digest = hashlib.sha256(content).hexdigest()
    return Signature(_checked_id(name), digest, key.sign(content))


def signature_file(signatures: Iterable[Signature], *, keep: bytes | None = None) -> bytes:
    """The bytes of a signature file with these entries, after the ones that `keep` holds.

    Signing with a second key, and putting up the signatures of the next document beside those of
    the one in place, are both this. An entry of the same key over the same bytes is replaced.
    """
    entries = {(s.key, s.sha256): s for s in read_signatures(keep or b'{"signatures": []}')}
    entries.update({(s.key, s.sha256): s for s in signatures})
    listed = [
        {"key": s.key, "sha256": s.sha256, "sig": base64.b64encode(s.sig).decode()}
        for s in entries.values()
    ]
    made = json.dumps({"signatures": listed}, indent=1).encode() + b"\n"
    if len(listed) > SIGNATURES_MAX or len(made) > SIGNATURES_BYTES_MAX:
        raise ValueError(f"a signature file holds at most {SIGNATURES_MAX} signatures")
    return made


def only_for(content: bytes, signatures: bytes) -> bytes:
    """A signature file without what is for other bytes than these."""
    digest = hashlib.sha256(content).hexdigest()
    return signature_file(s for s in read_signatures(signatures) if s.sha256 == digest)


def read_signatures(content: bytes, *, source: str | None = None) -> tuple[Signature, ...]:
    """The entries of a signature file; those that have no meaning here are passed over.

    Raises SignatureError for what is no signature file.
    """
    try:
        if len(content) > SIGNATURES_BYTES_MAX:
            raise ValueError
        tree: object = json.loads(content)
        fields = cast("dict[str, object]", tree) if isinstance(tree, dict) else {}
        entries = fields["signatures"]
        if not isinstance(entries, list):
            raise ValueError
    except (ValueError, KeyError, RecursionError):
        raise SignatureError(
            "its signature file can't be read",
            expected=f'{{"signatures": [...]}} of at most {SIGNATURES_BYTES_MAX} bytes',
            source=source,
        ) from None
    found = (_entry(entry) for entry in cast("list[object]", entries)[:SIGNATURES_MAX])
    return tuple(entry for entry in found if entry is not None)


def verify(
    content: bytes, signatures: bytes | None, keys: PublicKeys, *, source: str | None = None
) -> Verified:
    """Check that enough of the pinned keys signed these very bytes. Raises SignatureError."""
    if signatures is None:
        raise SignatureError(
            "is not signed",
            expected=f"{_wanted(keys)}, in a {SUFFIX} file beside it",
            source=source,
        )
    entries = read_signatures(signatures, source=source)
    digest = hashlib.sha256(content).hexdigest()
    ours = [entry for entry in entries if entry.sha256 == digest]
    vouching: dict[bytes, str] = {}
    for key_id, raw in keys.raw.items():
        if raw not in vouching and _has_signed(raw, key_id, content, ours):
            vouching[raw] = key_id
    if len(vouching) < keys.threshold:
        raise SignatureError(
            _why_not(entries, ours, vouching.values()), expected=_wanted(keys), source=source
        )
    return Verified(tuple(vouching.values()))


# ----------------------------------------------------------------------------- inside


def _has_signed(raw: bytes, key_id: str, content: bytes, entries: Sequence[Signature]) -> bool:
    from cryptography.exceptions import InvalidSignature

    key: Ed25519PublicKey = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
    # Names are for people: the key may be known by another one here. Its own name is likelier.
    for entry in sorted(entries, key=lambda e: e.key != key_id):
        try:
            key.verify(entry.sig, content)
        except InvalidSignature:
            continue
        return True
    return False


def _why_not(
    entries: Sequence[Signature], ours: Sequence[Signature], vouching: Iterable[str]
) -> str:
    good = ", ".join(vouching)
    if good:
        return f"is signed by too few of the pinned keys: {good}"
    if not entries:
        return "is not signed: its signature file is empty"
    if not ours:
        return "has signatures for other bytes than these"
    named = ", ".join(dict.fromkeys(entry.key for entry in ours))
    return f"is signed, but by no pinned key (its signatures are named {named[:200]})"


def _wanted(keys: PublicKeys) -> str:
    named = ", ".join(keys.keys)
    return f"the signature of {keys.threshold} of the pinned keys ({named})"


def _entry(entry: object) -> Signature | None:
    match entry:
        case {"key": str() as key, "sha256": str() as digest, "sig": str() as text}:
            pass
        case _:
            return None
    try:
        sig = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(sig) != SIGNATURE_BYTES or not _KEY_ID.fullmatch(key):
        return None
    return Signature(key, digest.lower(), sig)


def _checked_id(key_id: str) -> str:
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError("a key id is up to 128 of A-Z a-z 0-9 . _ : / @ + -")
    return key_id


def _raw_key(key_id: str, key: object) -> bytes:
    _checked_id(key_id)
    raw: bytes | None = None
    if isinstance(key, bytes) and len(key) == KEY_BYTES:
        raw = key
    elif isinstance(key, str | bytes):
        text = key if isinstance(key, bytes) else key.encode()
        raw = _from_pem(text) if b"-----BEGIN" in text else _from_base64(text)
    if raw is None:
        raise ValueError(
            f"public_keys[{key_id!r}]: expected an Ed25519 public key: base64 of 32 bytes, or PEM"
        )
    _ed25519()  # told where the keys are declared, not when a document comes
    return raw


def _from_base64(text: bytes) -> bytes | None:
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == KEY_BYTES else None


def _from_pem(text: bytes) -> bytes | None:
    _ed25519()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = serialization.load_pem_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


def _ed25519() -> Any:  # a module
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise PolicyError(_NEEDS) from None
    return ed25519
