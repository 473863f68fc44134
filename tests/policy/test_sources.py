"""What every source owes: one contract, each kind of source in turn."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headway.errors import FetchError, PolicyError, ValidationError
from headway.policy.http_source import HttpSource
from headway.policy.models import Policy
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.signing import SIGNATURES_BYTES_MAX
from headway.policy.sources import (
    EnvSource,
    Fetched,
    FileSource,
    NotModified,
    PackageSource,
    PolicySource,
    Reply,
    StaticSource,
    TooLargeError,
    Unsettled,
    source_for,
)
from headway.policy.store_source import StoreSource
from headway.router import Router
from tests.policy.samples import document, encoded
from tests.policy.servers import PolicyServer, policy_server

CONTENT = encoded(document())
Put = Callable[..., PolicySource]
"""put(content, signatures=None): makes a source hold these bytes, and returns it."""
KINDS = ["static", "file", "http", "store", "env", "package"]
SIGNABLE = ["file", "http", "store", "env"]


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as running:
        yield running


class Puts:
    """Ways to put a document where a source finds it."""

    def __init__(self, tmp_path: Path, server: PolicyServer, monkeypatch: Any) -> None:
        self.tmp_path, self.server, self.monkeypatch = tmp_path, server, monkeypatch
        self.name = f"p{uuid.uuid4().hex}"

    def static(self, content: bytes, signatures: bytes | None = None) -> PolicySource:
        return StaticSource(content)

    def file(self, content: bytes, signatures: bytes | None = None) -> PolicySource:
        path = self.tmp_path / "policy.json"
        path.write_bytes(content)
        if signatures is not None:
            path.with_name("policy.json.sig").write_bytes(signatures)
        return FileSource(path, wall_clock=lambda: 0.0)  # long after the file was written

    def http(self, content: bytes, signatures: bytes | None = None) -> PolicySource:
        self.server.content, self.server.etag = content, f'"{len(content)}"'
        self.server.signatures = signatures
        return HttpSource(self.server.url)

    def store(self, content: bytes, signatures: bytes | None = None) -> PolicySource:
        url = f"memory://{self.name}/policy.json"
        memory = fsspec.filesystem("memory")
        memory.pipe_file(url, content)
        if signatures is not None:
            memory.pipe_file(f"{url}.sig", signatures)
        return StoreSource(url)

    def env(self, content: bytes, signatures: bytes | None = None) -> PolicySource:
        self.monkeypatch.setenv("THE_POLICY", content.decode())
        if signatures is not None:
            self.monkeypatch.setenv("THE_POLICY_SIG", signatures.decode())
        return EnvSource("THE_POLICY")

    def package(self, content: bytes, signatures: bytes | None = None) -> PolicySource:
        home = self.tmp_path / self.name
        home.mkdir(exist_ok=True)
        (home / "__init__.py").touch()
        (home / "policy.json").write_bytes(content)
        self.monkeypatch.syspath_prepend(self.tmp_path)
        return PackageSource(self.name)


@pytest.fixture
def puts(tmp_path: Path, server: PolicyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Puts]:
    made = Puts(tmp_path, server, monkeypatch)
    yield made
    sys.modules.pop(made.name, None)


@pytest.fixture(params=KINDS)
def put(request: pytest.FixtureRequest, puts: Puts) -> Put:
    made: Put = getattr(puts, request.param)
    return made


# ----------------------------------------------------------------------------- the contract


def test_gives_the_exact_bytes(put: Put) -> None:
    got = put(CONTENT).fetch()

    assert isinstance(got, Fetched)
    assert got.content == CONTENT
    assert got.format == "json"


def test_an_empty_document_is_no_bytes(put: Put) -> None:
    got = put(b"").fetch()

    assert isinstance(got, Fetched)
    assert got.content == b""


def test_says_when_nothing_changed(put: Put) -> None:
    source = put(CONTENT)
    got = source.fetch()
    assert isinstance(got, Fetched)

    assert isinstance(source.fetch(got.etag), NotModified)
    assert isinstance(source.fetch(None), Fetched)


def test_reads_no_more_than_a_document_may_have(put: Put) -> None:
    largest = put(b" " * DOCUMENT_BYTES_MAX).fetch()
    assert isinstance(largest, Fetched)
    with pytest.raises(TooLargeError, match="at most 1048576 bytes"):
        put(b" " * (DOCUMENT_BYTES_MAX + 1)).fetch()


def test_has_no_thread_of_its_own(put: Put) -> None:
    # fsspec's, for asynchronous file systems, is fsspec's: shared by everything that uses it.
    before = {t for t in threading.enumerate() if "process_request" not in t.name}
    put(CONTENT).fetch()

    after = {t for t in threading.enumerate() if "process_request" not in t.name}
    assert after <= before


def test_shows_its_label_and_no_content(put: Put) -> None:
    source = put(CONTENT)

    assert source.label in repr(source)
    assert "chat-large" not in repr(source)


@pytest.mark.parametrize("kind", SIGNABLE)
def test_gives_the_signatures_beside_the_document_when_asked(kind: str, puts: Puts) -> None:
    bare = getattr(puts, kind)(CONTENT).fetch(signed=True)
    assert isinstance(bare, Fetched)
    assert bare.signatures is None

    source = getattr(puts, kind)(CONTENT, b'{"signatures": []}')
    got = source.fetch(signed=True)
    assert isinstance(got, Fetched)
    assert (got.content, got.signatures) == (CONTENT, b'{"signatures": []}')
    assert got.digest != bare.digest  # a signature that comes later is a change
    unasked = source.fetch()
    assert isinstance(unasked, Fetched)
    assert unasked.signatures is None


@pytest.mark.parametrize("kind", SIGNABLE)
def test_reads_no_more_signatures_than_there_may_be(kind: str, puts: Puts) -> None:
    source = getattr(puts, kind)(CONTENT, b" " * (SIGNATURES_BYTES_MAX + 1))

    with pytest.raises(TooLargeError, match="signature file"):
        source.fetch(signed=True)


@pytest.mark.parametrize("kind", ["static", "package"])
def test_what_is_part_of_the_application_needs_no_signature(kind: str, puts: Puts) -> None:
    assert getattr(puts, kind)(CONTENT).in_code


class Endless(PolicySource):
    label = "endless"
    closed = False

    def read(self, etag: str | None) -> Reply | NotModified:
        return Reply(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        try:
            while True:
                yield b" " * 65536
        finally:
            self.closed = True


class Broken(PolicySource):
    label = "broken"

    def read(self, etag: str | None) -> Reply | NotModified:
        raise ZeroDivisionError("whatever")


def test_the_base_class_bounds_and_closes_what_a_source_streams() -> None:
    source = Endless()

    with pytest.raises(TooLargeError):
        source.fetch()
    assert source.closed


def test_nothing_but_a_fetch_error_escapes() -> None:
    with pytest.raises(FetchError, match="ZeroDivisionError: whatever") as caught:
        Broken().fetch()
    assert caught.value.source == "broken"


# ----------------------------------------------------------------------------- arguments


def test_an_argument_means_a_source(tmp_path: Path) -> None:
    policy = Policy.load(document())

    static = source_for(policy)
    assert isinstance(static, StaticSource)
    assert static.policy is policy
    for argument in (document(), CONTENT, CONTENT.decode(), "  " + CONTENT.decode()):
        assert isinstance(source_for(argument), StaticSource)
    for argument in ("policy.yaml", tmp_path / "p.json", "file:///etc/policy.json", "C:/p.json"):
        assert isinstance(source_for(argument), FileSource)
    assert source_for("file:///etc/policy.json").label == "/etc/policy.json"
    for argument in ("https://config.example/p.json", "HTTP://localhost/p"):
        assert isinstance(source_for(argument), HttpSource)
    for argument in ("s3://bucket/policy.json", "memory://a/policy.json"):
        assert isinstance(source_for(argument), StoreSource)
    env, package = source_for("env:THE_POLICY"), source_for("package:app.policies/prod.json")
    assert isinstance(env, EnvSource)
    assert env.variable == "THE_POLICY"
    assert isinstance(package, PackageSource)
    assert (package.package, package.name) == ("app.policies", "prod.json")
    assert source_for(static) is static
    with pytest.raises(PolicyError, match="no source for warp:// addresses"):
        source_for("warp://bucket/policy.json")
    with pytest.raises(TypeError, match="got int"):
        source_for(42)  # type: ignore[arg-type]


def test_a_mapping_without_a_json_form_is_refused() -> None:
    with pytest.raises(ValidationError, match="no JSON form"):
        StaticSource({"a": object()})


def test_what_is_not_there_says_so(puts: Puts) -> None:
    for source in (
        EnvSource("SURELY_NOT_SET"),
        PackageSource("surely_no_package"),
        PackageSource("headway", "no.json"),
        StoreSource("memory://nowhere/policy.json"),
    ):
        with pytest.raises(FetchError) as caught:
            source.fetch()
        assert caught.value.source == source.label


# ----------------------------------------------------------------------------- files


def took(source: FileSource, etag: str | None) -> bytes:
    """What a changed file is read as, once it has stood still."""
    assert isinstance(source.fetch(etag), Unsettled)
    got = source.fetch(etag)
    assert isinstance(got, Fetched)
    return got.content


def first(source: FileSource) -> str | None:
    got = source.fetch()
    assert isinstance(got, Fetched)
    return got.etag


def test_an_atomic_rename_is_seen(tmp_path: Path) -> None:
    path, new = tmp_path / "policy.json", tmp_path / "new"
    path.write_bytes(CONTENT)
    source = FileSource(path)
    etag = first(source)
    before = path.stat()
    new.write_bytes(CONTENT.replace(b"prod-eu", b"prod-us"))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))  # same time, same size
    new.replace(path)

    assert b"prod-us" in took(source, etag)


def test_it_stays_the_file_that_was_named_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.json").write_bytes(encoded(document(policy_id=name)))
    monkeypatch.chdir(tmp_path / "here")
    source = source_for("policy.json")
    assert source.label == "policy.json"
    monkeypatch.chdir(tmp_path / "there")
    fetched = source.fetch()
    assert isinstance(fetched, Fetched)
    assert fetched.content == (tmp_path / "here" / "policy.json").read_bytes()


def test_a_configmaps_symlink_swap_is_seen(tmp_path: Path) -> None:
    # As Kubernetes mounts one: policy.json -> ..data/policy.json, ..data -> a dated directory
    for name in ("..2026_01", "..2026_02"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.json").write_text(name)
    (tmp_path / "..data").symlink_to("..2026_01")
    (tmp_path / "policy.json").symlink_to("..data/policy.json")
    source = FileSource(tmp_path / "policy.json")
    etag = first(source)
    (tmp_path / "..data_tmp").symlink_to("..2026_02")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    (tmp_path / "..2026_01" / "policy.json").unlink()  # the kubelet removes what it replaced

    assert took(source, etag) == b"..2026_02"


def _in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)  # nano, cp, shell redirection: the same inode, cut and written anew


def _backup_and_create(path: Path, content: bytes) -> None:
    path.rename(f"{path}~")  # vim with backupcopy=no, emacs
    path.write_bytes(content)


def _unlink_and_create(path: Path, content: bytes) -> None:
    path.unlink()  # rsync --inplace=no on some systems, git checkout
    path.write_bytes(content)


def _rename_over(path: Path, content: bytes) -> None:
    new = path.with_name(".policy.json.swp")  # VS Code and everything careful
    new.write_bytes(content)
    new.replace(path)


@pytest.mark.parametrize("write", [_in_place, _backup_and_create, _unlink_and_create, _rename_over])
def test_however_an_editor_writes_it_is_seen(
    write: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(CONTENT)
    source = FileSource(path)
    etag = first(source)
    changed = CONTENT + b"\n"
    write(path, changed)

    assert took(source, etag) == changed


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"whole: 1\n")
    source = FileSource(path)
    etag = first(source)

    for size in (3, 9, 15):  # half a YAML file may well be a document
        path.write_bytes(b"half: 1\nmore: 2\nroutes: 3\n"[:size])
        assert isinstance(source.fetch(etag), Unsettled)
    path.write_bytes(b"half: 1\nmore: 2\nroutes: 3\n")
    assert took(source, etag).endswith(b"routes: 3\n")


def test_a_second_change_within_a_tick_of_the_files_clock_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(b"one")
    before = path.stat()
    wall = before.st_mtime
    source = FileSource(path, wall_clock=lambda: wall + 1.0)
    etag = first(source)
    assert etag is None  # so young that its time of change may not be its last
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same tick, same size, same inode

    got = source.fetch(etag)
    assert isinstance(got, Fetched)
    assert got.content == b"two"
    wall += 10.0
    assert first(source) is not None


def test_what_is_no_readable_file_is_a_fetch_error(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    for path in (tmp_path / "absent", tmp_path, fifo, "nul\0"):
        with pytest.raises(FetchError) as caught:
            FileSource(path).fetch()
        assert caught.value.source == str(path)


def test_the_suffix_says_how_a_file_is_written(tmp_path: Path) -> None:
    for name, text_format in (
        ("p.yaml", "yaml"),
        ("p.YML", "yaml"),
        ("p.json", "json"),
        ("p", "json"),
    ):
        (tmp_path / name).write_bytes(b"{}")
        got = FileSource(tmp_path / name).fetch()
        assert isinstance(got, Fetched)
        assert got.format == text_format


def test_a_file_that_is_not_there_is_named_with_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FetchError) as caught:
        FileSource("nope.json").read(None)
    assert str(caught.value) == (
        f"can't be read: No such file or directory: {tmp_path / 'nope.json'} [nope.json]"
    )


def test_a_fault_of_a_document_in_code_says_that_it_is_the_one_in_code() -> None:
    with pytest.raises(ValidationError, match=r"\[the policy given in code\]$"):
        Router({"schema_version": "2.0"})
