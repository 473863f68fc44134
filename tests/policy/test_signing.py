"""Detached Ed25519 over exact bytes: what is accepted, and what every slip looks like."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import random
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway.errors import PolicyError, VerifyError
from headway.policy.signing import (
    KEYS_MAX,
    SIGNATURES_BYTES_MAX,
    PublicKeys,
    Signature,
    SignatureError,
    fingerprint,
    keygen,
    keys_from_text,
    keys_of,
    load_private,
    only_for,
    public_text,
    read_signatures,
    sign,
    signature_file,
    verify,
)

ANNA, BERT, CLEO = keygen("anna"), keygen("bert"), keygen("cleo")
CONTENT = b'{"schema_version": "1.0"}'


def pinned(*pairs: Any, threshold: int = 1) -> PublicKeys:
    return PublicKeys({pair.key_id: pair.public for pair in pairs}, threshold)


def signed(content: bytes, *pairs: Any) -> bytes:
    return signature_file(sign(content, pair.private, key_id=pair.key_id) for pair in pairs)


# ----------------------------------------------------------------------------- what is accepted


def test_the_standards_own_example_verifies() -> None:
    # RFC 8032, section 7.1, test 3: whatever signs by the standard can sign a policy.
    public = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
    content = bytes.fromhex("af82")
    made = bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    entry = Signature("rfc", hashlib.sha256(content).hexdigest(), made)

    assert verify(content, signature_file([entry]), PublicKeys({"rfc": public})).key_ids == ("rfc",)


def test_one_of_the_pinned_keys_is_enough_unless_more_are_wanted() -> None:
    file = signed(CONTENT, ANNA, BERT)

    assert verify(CONTENT, file, pinned(ANNA)).key_ids == ("anna",)
    assert verify(CONTENT, file, pinned(CLEO, BERT)).key_ids == ("bert",)
    assert verify(CONTENT, file, pinned(ANNA, BERT, CLEO, threshold=2)).key_ids == ("anna", "bert")
    with pytest.raises(SignatureError, match="too few of the pinned keys: anna, bert") as caught:
        verify(CONTENT, file, pinned(ANNA, BERT, CLEO, threshold=3), source="s3://b/p")
    assert "3 of the pinned keys (anna, bert, cleo)" in str(caught.value)
    assert caught.value.source == "s3://b/p"
    assert isinstance(caught.value, VerifyError)


def test_a_key_counts_once_however_often_it_is_named_or_signs() -> None:
    twice = PublicKeys({"anna": ANNA.public, "again": ANNA.public, "bert": BERT.public}, 2)
    file = signature_file(
        [sign(CONTENT, ANNA.private, key_id=name) for name in ("anna", "again", "bert")]
    )

    with pytest.raises(SignatureError, match="too few"):
        verify(CONTENT, file, twice)
    with pytest.raises(ValueError, match="threshold from 1 to 1"):
        PublicKeys({"anna": ANNA.public, "again": ANNA.public}, 2)


def test_names_are_for_people_only() -> None:
    file = signature_file([sign(CONTENT, ANNA.private, key_id="whoever")])

    assert verify(CONTENT, file, pinned(ANNA)).key_ids == ("anna",)
    forged = signature_file([sign(CONTENT, CLEO.private, key_id="anna")])
    with pytest.raises(SignatureError, match=r"by no pinned key .*anna"):
        verify(CONTENT, forged, pinned(ANNA))


def test_the_file_holds_the_next_documents_signatures_beside_this_ones() -> None:
    following = CONTENT + b"\n"
    both = signature_file(
        [sign(following, ANNA.private, key_id="anna")], keep=signed(CONTENT, ANNA)
    )

    for content in (CONTENT, following):
        assert verify(content, both, pinned(ANNA)).key_ids == ("anna",)
    after = only_for(following, both)
    assert [s.key for s in read_signatures(after)] == ["anna"]
    with pytest.raises(SignatureError, match="for other bytes"):
        verify(CONTENT, after, pinned(ANNA))


def test_a_second_signer_adds_and_a_repeated_one_replaces() -> None:
    file = signature_file([sign(CONTENT, BERT.private, key_id="bert")], keep=signed(CONTENT, ANNA))
    file = signature_file([sign(CONTENT, BERT.private, key_id="bert")], keep=file)

    assert [s.key for s in read_signatures(file)] == ["anna", "bert"]


# ----------------------------------------------------------------------------- what is not


def test_every_changed_bit_is_noticed() -> None:
    rng = random.Random(41)
    file = signed(CONTENT, ANNA)
    for _ in range(50):
        changed = bytearray(CONTENT)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        entry = read_signatures(file)[0]
        digest = hashlib.sha256(changed).hexdigest()
        relabelled = signature_file([entry._replace(sha256=digest)])
        with pytest.raises(SignatureError):
            verify(bytes(changed), relabelled, pinned(ANNA))
        sig = bytearray(entry.sig)
        sig[rng.randrange(64)] ^= 1 << rng.randrange(8)
        with pytest.raises(SignatureError):
            verify(CONTENT, signature_file([entry._replace(sig=bytes(sig))]), pinned(ANNA))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (None, "is not signed"),
        (b"", "can't be read"),
        (b"[]", "can't be read"),
        (b"{}", "can't be read"),
        (b'{"signatures": {}}', "can't be read"),
        (b"\xff\xfe", "can't be read"),
        (b"[" * 10_000, "can't be read"),
        (b'{"signatures": []}' + b" " * SIGNATURES_BYTES_MAX, "can't be read"),
        (b'{"signatures": []}', "is empty"),
        (b'{"signatures": [1, {}, {"key": "a", "sha256": 1, "sig": ""}]}', "is empty"),
        (b'{"signatures": [{"key": "a", "sha256": "x", "sig": "!!"}]}', "is empty"),
    ],
)
def test_what_is_no_signature_is_said_to_be_none(file: bytes | None, words: str) -> None:
    with pytest.raises(SignatureError, match=words):
        verify(CONTENT, file, pinned(ANNA))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_else(file: bytes) -> None:
    with pytest.raises(SignatureError):
        verify(CONTENT, file, pinned(ANNA))


def test_a_thousand_signatures_cost_no_more_than_a_few() -> None:
    entry = {"key": "x", "sha256": read_signatures(signed(CONTENT, ANNA))[0].sha256, "sig": "QQ=="}
    file = json.dumps({"signatures": [entry] * 150}).encode()

    assert read_signatures(file) == ()
    with pytest.raises(ValueError, match="at most 64"):
        signature_file(sign(CONTENT, ANNA.private, key_id=f"k{i}") for i in range(65))


# ----------------------------------------------------------------------------- keys


def test_a_key_pair_shows_its_public_half_only() -> None:
    pair = keygen()
    assert pair.key_id == fingerprint(base64.b64decode(pair.public))
    for shown in (repr(pair), str(pair)):
        assert pair.public in shown
        assert "PRIVATE" not in shown
    locked = keygen("ops", password=b"canary-pass")
    assert b"ENCRYPTED" in locked.private
    assert public_text(load_private(locked.private, password=b"canary-pass")) == locked.public
    for password in (None, b"wrong"):
        with pytest.raises(ValueError, match="expected an Ed25519 private key") as caught:
            sign(CONTENT, locked.private, password=password)
        assert caught.value.__cause__ is None


def test_a_key_is_given_as_base64_pem_or_bytes() -> None:
    from cryptography.hazmat.primitives import serialization

    public = load_private(ANNA.private).public_key()
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for given_as in (
        ANNA.public,
        f" {ANNA.public}\n",
        pem,
        pem.decode(),
        public.public_bytes_raw(),
    ):
        assert verify(CONTENT, signed(CONTENT, ANNA), PublicKeys({"a": given_as})).key_ids == ("a",)


def test_other_kinds_of_key_are_refused() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    other = ec.generate_private_key(ec.SECP256R1())
    pem = other.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = other.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with pytest.raises(ValueError, match="expected an Ed25519 private key, got"):
        sign(CONTENT, pem)
    for key in (public, b"-----BEGIN nonsense", "c2hvcnQ=", "", 42, ANNA.private):
        with pytest.raises(ValueError, match=r"public_keys\['k'\]: expected an Ed25519") as caught:
            PublicKeys({"k": key})  # type: ignore[dict-item]
        assert "PRIVATE" not in str(caught.value)


def test_thresholds_and_counts_that_make_no_sense_are_refused() -> None:
    for keys, threshold in (({}, 1), ({"a": ANNA.public}, 0), ({"a": ANNA.public}, 2)):
        with pytest.raises(ValueError, match="expected"):
            PublicKeys(keys, threshold)
    with pytest.raises(ValueError, match=f"1 to {KEYS_MAX}"):
        PublicKeys({f"k{i}": ANNA.public for i in range(KEYS_MAX + 1)})
    with pytest.raises(ValueError, match="key id"):
        PublicKeys({"a b": ANNA.public})


def test_a_mapping_means_that_any_one_will_do() -> None:
    assert keys_of(None) is None
    assert keys_of({"a": ANNA.public}) == PublicKeys({"a": ANNA.public})
    both = pinned(ANNA, BERT, threshold=2)
    assert keys_of(both) is both
    assert keys_from_text(f"anna={ANNA.public}, bert={BERT.public};2") == both
    assert keys_from_text(f"anna={ANNA.public}") == pinned(ANNA)
    for wrong in ("", "anna", f"anna={ANNA.public};x"):
        with pytest.raises(ValueError, match="public_keys"):
            keys_from_text(wrong)
    assert hash(both) == hash(pinned(ANNA, BERT, threshold=2))
    assert pickle.loads(pickle.dumps(both)) == both
    assert headway.PublicKeys is PublicKeys


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(PolicyError, match=r"headway\[signing\]"):
        PublicKeys({"a": ANNA.public})
