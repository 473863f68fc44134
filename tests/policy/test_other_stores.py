"""Policies in Azure's and Google's object stores: azurite and an emulator, over the wire.

`make test-stores` installs them; a store whose server or file system isn't there is left out.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headway.errors import FetchError, VerifyError
from headway.policy.parse import DOCUMENT_BYTES_MAX
from headway.policy.publish import publish
from headway.policy.signing import keygen, read_signatures, sign
from headway.policy.sources import Fetched, NotModified, TooLargeError
from headway.policy.store_source import StoreSource
from tests.policy.bench import Bench
from tests.policy.samples import document, encoded

pytestmark = [
    pytest.mark.slow,
    # gcsfs and adlfs leave sessions to the collector when their thread ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONTENT = encoded(document())
CANARY = base64.b64encode(b"canary-key-of-the-account-0123456").decode()
AZURITE = Path(__file__).resolve().parents[2] / ".venvs/azurite/node_modules/.bin/azurite-blob"
STARTS_WITHIN_S = 60.0


class Store(NamedTuple):
    """A server with an empty bucket."""

    scheme: str
    options: dict[str, Any]
    nobody: dict[str, Any]
    """The same, at a port where nobody answers."""
    fs: Any

    def url(self, name: str = "policies/llm/policy.json") -> str:
        return f"{self.scheme}://{name}"

    def source(self, name: str = "policies/llm/policy.json", **more: Any) -> StoreSource:
        return StoreSource(self.url(name), options=self.options, **more)

    def put(self, content: bytes, name: str = "policies/llm/policy.json") -> None:
        self.fs.pipe_file(name, content)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def wait_for(port: int, alive: Callable[[], bool]) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert alive(), "the server ended"
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server doesn't answer")


def azure(directory: Path) -> Iterator[Store]:
    found = shutil.which("azurite-blob") or (str(AZURITE) if AZURITE.exists() else None)
    if found is None or find_spec("adlfs") is None:
        pytest.skip("azurite or adlfs isn't here: make test-stores")
    port = free_port()
    server = subprocess.Popen(
        [
            *(found, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry"),
            *("--inMemoryPersistence", "--skipApiVersionCheck", "--silent"),
        ],
        cwd=directory,
        env={**os.environ, "AZURITE_ACCOUNTS": f"headway:{CANARY}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def options(port: int) -> dict[str, Any]:
        place = f"BlobEndpoint=http://127.0.0.1:{port}/headway"
        account = f"AccountName=headway;AccountKey={CANARY}"
        return {"connection_string": f"DefaultEndpointsProtocol=http;{account};{place};"}

    try:
        wait_for(port, lambda: server.poll() is None)
        fs = import_module("adlfs").AzureBlobFileSystem(**options(port))
        yield Store("az", options(port), options(1), fs)
    finally:
        server.terminate()
        server.wait(10)


def google(directory: Path) -> Iterator[Store]:
    if find_spec("gcp_storage_emulator") is None or find_spec("gcsfs") is None:
        pytest.skip("gcp-storage-emulator or gcsfs isn't here: make test-stores")
    port = free_port()
    server = import_module("gcp_storage_emulator.server").create_server(
        "127.0.0.1", port, in_memory=True
    )
    server.start()

    def options(port: int) -> dict[str, Any]:
        return {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon", "project": "p"}

    try:
        wait_for(port, lambda: True)
        fs = import_module("gcsfs.core").GCSFileSystem(**options(port))
        yield Store("gs", options(port), options(1), fs)
    finally:
        server.stop()


@pytest.fixture(scope="module", params=[azure, google], ids=["az", "gs"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    yield from request.param(tmp_path_factory.mktemp("store"))


@pytest.fixture
def store(server: Store) -> Iterator[Store]:
    server.fs.mkdir("policies")
    server.put(CONTENT)
    yield server
    server.fs.invalidate_cache()
    for name in server.fs.find("policies"):
        server.fs.rm_file(name)
    server.fs.invalidate_cache()
    server.fs.rmdir("policies")


def test_a_document_is_read_and_read_again_only_when_it_changed(store: Store) -> None:
    source = store.source()
    got = source.fetch(signed=True)
    assert isinstance(got, Fetched)
    assert (got.content, got.signatures) == (CONTENT, None)
    assert isinstance(source.fetch(got.etag), NotModified)

    changed = CONTENT.replace(b"prod-eu", b"prod-us")  # of the same size
    store.put(changed)
    store.put(b"signed", "policies/llm/policy.json.sig")
    again = source.fetch(got.etag, signed=True)
    assert isinstance(again, Fetched)
    assert (again.content, again.signatures) == (changed, b"signed")


def test_what_is_empty_too_large_absent_or_elsewhere_is_told(store: Store) -> None:
    store.put(b"", "policies/empty.json")
    store.put(b" " * (DOCUMENT_BYTES_MAX + 1), "policies/large.json")

    empty = store.source("policies/empty.json").fetch()
    assert isinstance(empty, Fetched)
    assert empty.content == b""
    with pytest.raises(TooLargeError):
        store.source("policies/large.json").fetch()
    for absent in ("policies/absent.json", "no-such-bucket/policy.json"):
        with pytest.raises(FetchError, match="is not there"):
            store.source(absent).fetch()
    with pytest.raises(FetchError, match="while asking for it") as caught:
        StoreSource(store.url(), options=store.nobody, timeout_s=2).fetch()
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_supply_follows_the_store(store: Store, tmp_path: Path) -> None:
    bench = Bench(store.source(), cache_dir=tmp_path)
    assert bench.supply.initial().version == 7
    store.put(encoded(document(version=8)))
    assert bench.later(30)
    store.put(encoded(document(version=6)))
    assert not bench.later(30)
    assert bench.reasons() == ["rollback"]

    store.fs.rm_file("policies/llm/policy.json")
    again = Bench(store.source(), cache_dir=tmp_path)
    assert again.supply.initial().version == 8
    with pytest.raises(VerifyError, match="allow_unsigned"):
        Bench(store.source(), allow_unsigned=False)


def test_what_is_published_is_signed_and_never_goes_back(store: Store) -> None:
    ops = keygen("ops")
    newer = encoded(document(version=8))
    signature = sign(newer, ops.private, key_id="ops")
    done = publish(newer, store.url(), signatures=[signature], options=store.options)
    assert (done.rank, done.replaced, done.changed) == ((0, 8), (0, 7), True)

    got = store.source().fetch(signed=True)
    assert isinstance(got, Fetched)
    assert got.content == newer
    assert got.signatures is not None
    assert [entry.key for entry in read_signatures(got.signatures)] == ["ops"]
    with pytest.raises(VerifyError):
        publish(encoded(document(version=7)), store.url(), options=store.options)


def test_a_forked_child_asks_for_itself(store: Store) -> None:
    source = store.source()
    source.fetch()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if isinstance(source.fetch(), Fetched) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_store_that_never_answers_is_given_up(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = {
            name: value.replace(":1/", f":{port}/") if isinstance(value, str) else value
            for name, value in store.nobody.items()
        }
        options |= {"endpoint_url": f"http://127.0.0.1:{port}"} if store.scheme == "gs" else {}
        began = time.monotonic()
        with pytest.raises(FetchError, match="Timeout"):
            StoreSource(store.url(), options=options, timeout_s=0.5).fetch()
        assert time.monotonic() - began < 30
