"""What every source owes, and what each one adds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.errors import FetchError, PolicyError, ValidationError
from headway.policy.http_source import HttpSource
from headway.policy.models import Policy
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.sources import (
    Fetched,
    FileSource,
    NotModified,
    PolicySource,
    Reply,
    StaticSource,
    TooLargeError,
    source_for,
)
from tests.policy.samples import document, encoded
from tests.policy.servers import PolicyServer, policy_server

CONTENT = encoded(document())
Put = Callable[[bytes], PolicySource]
"""Makes a source hold these bytes, and returns it (the same one each time, or a new one)."""


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as running:
        yield running


@pytest.fixture(params=["static", "file", "http"])
def put(request: pytest.FixtureRequest, tmp_path: Path, server: PolicyServer) -> Put:
    def static(content: bytes) -> PolicySource:
        return StaticSource(content)

    def file(content: bytes) -> PolicySource:
        path = tmp_path / "policy.json"
        path.write_bytes(content)
        return FileSource(path)

    def http(content: bytes) -> PolicySource:
        server.content, server.etag = content, f'"{len(content)}"'
        return HttpSource(server.url)

    return {"static": static, "file": file, "http": http}[request.param]


# ----------------------------------------------------------------------------- the contract


def test_gives_the_exact_bytes(put: Put) -> None:
    got = put(CONTENT).fetch()

    assert isinstance(got, Fetched)
    assert got.content == CONTENT
    assert got.format == "json"


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
    before = {t for t in threading.enumerate() if "process_request" not in t.name}
    put(CONTENT).fetch()

    after = {t for t in threading.enumerate() if "process_request" not in t.name}
    assert after <= before


def test_shows_its_label_and_no_content(put: Put) -> None:
    source = put(CONTENT)

    assert source.label in repr(source)
    assert "chat-large" not in repr(source)


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
    assert source_for(static) is static
    with pytest.raises(PolicyError, match="no source for s3:// addresses"):
        source_for("s3://bucket/policy.json")
    with pytest.raises(TypeError, match="got int"):
        source_for(42)  # type: ignore[arg-type]


def test_a_mapping_without_a_json_form_is_refused() -> None:
    with pytest.raises(ValidationError, match="no JSON form"):
        StaticSource({"a": object()})


# ----------------------------------------------------------------------------- files


def test_an_atomic_rename_is_seen(tmp_path: Path) -> None:
    path, new = tmp_path / "policy.json", tmp_path / "new"
    path.write_bytes(CONTENT)
    source = FileSource(path)
    first = source.fetch()
    assert isinstance(first, Fetched)
    before = path.stat()
    new.write_bytes(CONTENT.replace(b"prod-eu", b"prod-us"))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))  # same time, same size
    new.replace(path)

    second = source.fetch(first.etag)

    assert isinstance(second, Fetched)
    assert b"prod-us" in second.content


def test_a_symlink_swap_is_seen(tmp_path: Path) -> None:
    # As Kubernetes mounts a ConfigMap: policy.json -> ..data/policy.json, ..data -> a dated directory
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.json").write_text(name)
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "policy.json").symlink_to("data/policy.json")
    source = FileSource(tmp_path / "policy.json")
    first = source.fetch()
    assert isinstance(first, Fetched)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "data")

    second = source.fetch(first.etag)

    assert isinstance(second, Fetched)
    assert second.content == b"two"


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
