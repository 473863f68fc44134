"""Publishing: what clients would refuse is refused before, and no reader sees a half of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.credentials import Credential
from headway.errors import FetchError, PolicyError, ValidationError, VerifyError
from headway.policy.http_source import HttpSource
from headway.policy.publish import Published, publish
from headway.policy.signing import PublicKeys, keygen, read_signatures, sign
from headway.policy.sources import FileSource, PolicySource
from headway.policy.store_source import StoreSource
from tests.policy.bench import Bench
from tests.policy.samples import document, encoded
from tests.policy.shelf import Shelf

OPS, NEXT = keygen("ops"), keygen("next")


def doc(version: int, **top: object) -> bytes:
    return encoded(document(version=version, **top))


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    made = Shelf()
    yield made
    made.close()


Where = tuple[Any, Callable[[], PolicySource]]


@pytest.fixture(params=["file", "store", "http"])
def where(request: pytest.FixtureRequest, tmp_path: Path, shelf: Shelf) -> Where:
    """(target, a fresh source of it)."""
    path = tmp_path / "policy.json"
    url = f"memory://{tmp_path.name}/policy.json"
    made: dict[str, Where] = {
        "file": (path, lambda: FileSource(path)),
        "store": (url, lambda: StoreSource(url)),
        "http": (shelf.url, lambda: HttpSource(shelf.url)),
    }
    return made[request.param]


def found(source: PolicySource) -> Any:
    return source.fetch(signed=True)


def signed(content: bytes, *pairs: Any) -> list[Any]:
    return [sign(content, pair.private, key_id=pair.key_id) for pair in pairs or (OPS,)]


# ----------------------------------------------------------------------------- every target


def test_the_exact_bytes_and_their_signatures_are_put_there(where: Where) -> None:
    target, source = where
    first, second = doc(7), doc(8)
    done = publish(first, target, signatures=signed(first))
    assert done == Published(done.target, (0, 7), None, True, ("ops",))
    assert publish(second, target, signatures=signed(second)).replaced == (0, 7)

    got = found(source())
    assert got.content == second
    assert [s.key for s in read_signatures(got.signatures)] == ["ops"]
    keys = PublicKeys({"ops": OPS.public})
    assert Bench(source(), public_keys=keys, allow_unsigned=False).supply.initial().version == 8


def test_what_clients_would_refuse_is_refused_before(where: Where) -> None:
    target, source = where
    publish(doc(7), target)
    for content, error, words in (
        (doc(6), VerifyError, "older than"),
        (doc(7, on_expiry="fail"), VerifyError, "there already, with other content"),
        (doc(9, policy_id="staging"), VerifyError, "policy_id"),
        (doc(9, routes=[]), ValidationError, "routes"),
        (b"{", ValidationError, "JSON"),
    ):
        with pytest.raises(error, match=words):
            publish(content, target)
    assert found(source()).content == doc(7)
    assert publish(doc(3, epoch=1), target).rank == (1, 3)  # the emergency way down


def test_the_same_bytes_again_only_add_signatures(where: Where) -> None:
    target, source = where
    content = doc(7)
    publish(content, target, signatures=signed(content, OPS))
    done = publish(content, target, signatures=signed(content, NEXT))

    assert not done.changed
    assert done.signed_by == ("ops", "next")
    two = PublicKeys({"ops": OPS.public, "next": NEXT.public}, threshold=2)
    assert Bench(source(), public_keys=two, allow_unsigned=False).supply.initial().version == 7
    unsigned = publish(doc(8), target)  # what was signed before doesn't vouch for what follows
    assert unsigned.signed_by == ()


def test_signatures_of_something_else_are_noticed(where: Where) -> None:
    with pytest.raises(ValueError, match="of the very bytes"):
        publish(doc(7), where[0], signatures=signed(doc(8)))


def test_what_is_there_and_no_policy_is_replaced(where: Where) -> None:
    target, source = where
    publish(doc(7), target)
    if isinstance(target, Path):
        target.write_bytes(b"oops")
        target.with_name("policy.json.sig").write_bytes(b"oops")
        assert publish(doc(3), target).replaced is None
        assert found(source()).content == doc(3)


def test_a_reader_never_sees_a_document_without_its_signatures(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every state in between, seen by a client that insists on signatures."""
    target, source = where
    keys = PublicKeys({"ops": OPS.public})
    seen: list[int] = []

    def look() -> None:
        bench = Bench(source(), public_keys=keys, allow_unsigned=False)
        seen.append(bench.supply.initial().version)

    publish(doc(7), target, signatures=signed(doc(7)))
    from headway.policy import publish as module

    for name in ("_File", "_Store", "_Http"):
        kind = getattr(module, name)
        before = kind.put

        def put(self: Any, *args: Any, before: Any = before) -> None:
            look()
            before(self, *args)
            look()

        monkeypatch.setattr(kind, "put", put)
    publish(doc(8), target, signatures=signed(doc(8)))

    assert seen == [7, 7, 7, 8, 8, 8]


# ----------------------------------------------------------------------------- files


def test_a_link_stays_a_link_and_a_mode_a_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "policy.json"
    real.write_bytes(doc(7))
    real.chmod(0o640)
    link.symlink_to(real)
    publish(doc(8), link)

    assert link.is_symlink()
    assert real.read_bytes() == doc(8)
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.json", "real.json"]


def test_yaml_is_published_as_it_is_written(tmp_path: Path) -> None:
    text = b"# by hand\n" + json.dumps(document()).encode()
    publish(text, tmp_path / "policy.yaml")
    assert (tmp_path / "policy.yaml").read_bytes() == text


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="can't be written: FileNotFoundError"):
        publish(doc(7), tmp_path / "absent" / "policy.json")
    for target in ("env:X", "package:headway"):
        with pytest.raises(PolicyError, match="can't be published to"):
            publish(doc(7), target)


# ----------------------------------------------------------------------------- http


def test_two_that_publish_at_once_do_not_undo_each_other(shelf: Shelf) -> None:
    publish(doc(7), shelf.url)
    original = shelf.tag

    def raced(path: str) -> str:
        tag = original(path)
        shelf.kept["/policy.json"] = doc(9)  # between our look and our write
        return tag

    shelf.tag = raced  # type: ignore[method-assign]
    with pytest.raises(VerifyError, match="in the meantime"):
        publish(doc(8), shelf.url)
    assert shelf.kept["/policy.json"] == doc(9)


def test_the_key_goes_to_its_hosts_and_nowhere_else(shelf: Shelf) -> None:
    publish(doc(7), shelf.url, credential=Credential(value="canary", hosts=["127.0.0.1"]))
    publish(doc(8), shelf.url, credential=Credential(value="canary", hosts=["other.example"]))
    assert [h.get("authorization") for h in shelf.seen] == ["Bearer canary", None]
    assert {h["content-type"] for h in shelf.seen} == {"application/json"}
    with pytest.raises(PolicyError, match="plain http"):
        publish(doc(8), "http://config.example/policy.json")
    with pytest.raises(FetchError, match="can't be read"):
        publish(doc(8), "http://127.0.0.1:1/policy.json")
