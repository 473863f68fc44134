"""A server that policies are published to."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Shelf:
    """An HTTP server that keeps what is PUT there, by the rules of RFC 9110."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.writes: list[str] = []
        self.seen: list[dict[str, str]] = []
        shelf = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = shelf.kept.get(self.path)
                self.send_response(200 if found is not None else 404)
                self.send_header("ETag", shelf.tag(self.path))
                self.end_headers()
                self.wfile.write(found or b"")

            def do_PUT(self) -> None:
                shelf.seen.append({k.lower(): v for k, v in self.headers.items()})
                content = self.rfile.read(int(self.headers["content-length"]))
                match, none = self.headers["if-match"], self.headers["if-none-match"]
                if (match and match != shelf.tag(self.path)) or (none and self.path in shelf.kept):
                    self.send_response(412)
                else:
                    self.send_response(204)
                    shelf.kept[self.path] = content
                    shelf.writes.append(self.path)
                self.end_headers()

            def log_message(self, *args: object) -> None:  # type: ignore[override]
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/policy.json"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def tag(self, path: str) -> str:
        return f'"{hash(self.kept.get(path))}"'

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
