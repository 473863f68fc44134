"""Policy from an object store: a real S3 server (moto's) on loopback, over the wire."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headway.errors import FetchError, PolicyError, VerifyError
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.publish import _Store, publish
from headway.policy.sources import Fetched, NotModified, TooLargeError
from headway.policy.store_source import StoreSource
from tests.policy.bench import Bench
from tests.policy.samples import document, encoded

URL = "s3://policies/llm/policy.json"
CONTENT = encoded(document())


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Options for a client of a server with an empty bucket."""
    from moto.server import ThreadedMotoServer

    environment = {
        "AWS_ACCESS_KEY_ID": "canary-access",
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("policies")
    yield options
    server.stop()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def bucket(s3: dict[str, Any]) -> Iterator[Any]:
    fs = fsspec.filesystem("s3", **s3)
    fs.pipe_file(URL, CONTENT)
    yield fs
    fs.rm("policies", recursive=True)
    fs.mkdir("policies")


def test_a_document_is_read_and_read_again_only_when_it_changed(
    s3: dict[str, Any], bucket: Any
) -> None:
    source = StoreSource(URL, options=s3)
    got = source.fetch(signed=True)
    assert isinstance(got, Fetched)
    assert (got.content, got.signatures) == (CONTENT, None)
    assert isinstance(source.fetch(got.etag), NotModified)

    changed = CONTENT.replace(b"prod-eu", b"prod-us")  # of the same size
    bucket.pipe_file(URL, changed)
    bucket.pipe_file(f"{URL}.sig", b"signed")
    again = source.fetch(got.etag, signed=True)
    assert isinstance(again, Fetched)
    assert (again.content, again.signatures) == (changed, b"signed")


def test_what_is_empty_too_large_absent_or_elsewhere_is_told(
    s3: dict[str, Any], bucket: Any
) -> None:
    bucket.pipe_file("policies/empty.json", b"")
    bucket.pipe_file("policies/large.json", b" " * (DOCUMENT_BYTES_MAX + 1))

    empty = StoreSource("s3://policies/empty.json", options=s3).fetch()
    assert isinstance(empty, Fetched)
    assert empty.content == b""
    with pytest.raises(TooLargeError):
        StoreSource("s3://policies/large.json", options=s3).fetch()
    for absent in ("s3://policies/absent.json", "s3://no-such-bucket/policy.json"):
        with pytest.raises(FetchError, match="is not there"):
            StoreSource(absent, options=s3).fetch()
    nobody = {
        "endpoint_url": "http://127.0.0.1:1",
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    with pytest.raises(FetchError, match="while asking for it") as caught:
        StoreSource(URL, options=nobody).fetch()
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("is_new", [False, True])
def test_of_two_that_publish_at_once_one_is_told(
    is_new: bool, s3: dict[str, Any], bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_new:
        bucket.rm(URL)
    look = _Store.read

    def overtaken(target: Any) -> Any:
        found = look(target)
        bucket.pipe_file(URL, encoded(document(version=9)))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(_Store, "read", overtaken)
        with pytest.raises(VerifyError, match="in the meantime"):
            publish(encoded(document(version=8)), URL, options=s3)
    assert bucket.cat_file(URL) == encoded(document(version=9))

    done = publish(encoded(document(version=10)), URL, options=s3)
    assert (done.replaced, done.changed) == ((0, 9), True)
    bucket.rm(URL)
    assert publish(encoded(document(version=1)), URL, options=s3).replaced is None
    assert bucket.cat_file(URL) == encoded(document(version=1))


def test_a_supply_follows_a_bucket(s3: dict[str, Any], bucket: Any, tmp_path: Path) -> None:
    bench = Bench(StoreSource(URL, options=s3), cache_dir=tmp_path)
    assert bench.supply.initial().version == 7
    bucket.pipe_file(URL, encoded(document(version=8)))
    assert bench.later(30)
    bucket.pipe_file(URL, encoded(document(version=6)))
    assert not bench.later(30)
    assert bench.reasons() == ["rollback"]

    bucket.rm(URL)
    again = Bench(StoreSource(URL, options=s3), cache_dir=tmp_path)
    assert again.supply.initial().version == 8
    with pytest.raises(VerifyError, match="allow_unsigned"):
        Bench(StoreSource(URL, options=s3), allow_unsigned=False)


def test_a_forked_child_asks_for_itself(s3: dict[str, Any], bucket: Any) -> None:
    source = StoreSource(URL, options=s3)
    source.fetch()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if isinstance(source.fetch(), Fetched) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_store_that_never_answers_is_given_up(s3: dict[str, Any]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        source = StoreSource(URL, options=options, timeout_s=0.2)
        with pytest.raises(FetchError, match="Timeout"):
            source.fetch()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://key:secret@bucket/policy.json", "holds more than a place"),
        ("az://c/policy.json?sig=secret", "holds more than a place"),
        ("gs://bucket/policy.json", "headway\\[gcs\\]"),
        ("az://container/policy.json", "headway\\[azure\\]"),
        ("webhdfs2://x/policy.json", "no source for"),
    ],
)
def test_what_cannot_be_had_says_what_to_install_or_change(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for module in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PolicyError, match=words) as caught:
        StoreSource(url)
    assert "secret" not in str(caught.value)


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(PolicyError, match="headway\\[s3\\]"):
        StoreSource(URL)


def test_nothing_is_started_before_the_first_look(s3: dict[str, Any]) -> None:
    before = set(threading.enumerate())
    StoreSource(URL, options=s3)
    assert set(threading.enumerate()) == before
