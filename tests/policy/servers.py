"""A policy server on loopback, scripted answer by answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class PolicyServer:
    """Serves what `answer` says; remembers the requests."""

    url: str = ""
    content: bytes = b"{}"
    etag: str | None = None
    signatures: bytes | None = None
    """What is at the document's path with .sig after it."""
    answer: Callable[[BaseHTTPRequestHandler], Answer | None] | None = None
    """Overrides everything; None as the answer: it has written its own."""
    requests: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def policy_server() -> Iterator[PolicyServer]:
    server = PolicyServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen = {name.lower(): value for name, value in self.headers.items()}
            server.requests.append(seen | {":path": self.path})
            if server.answer is not None:
                answer = server.answer(self)
                if answer is None:
                    return
                status, headers, body = answer
            elif self.path.partition("?")[0].endswith(".sig"):
                status, headers = 404 if server.signatures is None else 200, {}
                body = server.signatures or b""
            elif server.etag is not None and seen.get("if-none-match") == server.etag:
                status, headers, body = 304, {}, b""
            else:
                headers = {} if server.etag is None else {"ETag": server.etag}
                status, body = 200, server.content
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:  # type: ignore[override]
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}/policy.json"
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
