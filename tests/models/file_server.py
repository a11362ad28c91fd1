"""A small file server on this machine, which behaves as told: for the tests of downloads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT = bytes(hashlib.shake_256(b"weights").digest(700_000))


@dataclass
class Server:
    """A file server that behaves as told."""

    mode: str = "ranges"
    content: bytes = CONTENT
    requests: list[str | None] = field(default_factory=list)  # the Range header of each
    release: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/weights.pt"


class Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        told: Server = self.server.told
        asked = self.headers.get("Range")
        told.requests.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and told.mode != "no ranges" else 0
        if told.mode in ("404", "503"):
            self.send_error(int(told.mode))
        elif told.mode == "redirect" and self.path == "/weights.pt":
            self._answer(302, Location="/elsewhere")
        elif told.mode == "silent":
            told.release.wait(60)
        elif start >= len(told.content):
            self._answer(416, **{"Content-Range": f"bytes */{len(told.content)}", "Content-Length": "0"})
        else:
            self._send(told, start)

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, told: Server, start: int) -> None:
        body, total = told.content[start:], len(told.content)
        headers = {} if told.mode == "no length" else {"Content-Length": str(len(body))}
        if start:
            first = start + 1 if told.mode == "wrong part" else start
            headers["Content-Range"] = f"bytes {first}-{total - 1}/{total}"
        self._answer(206 if start else 200, **headers)
        if told.mode in ("cut off", "stalls"):
            body = body[: len(body) // 2]
        self.wfile.write(body)
        if told.mode == "stalls":
            self.wfile.flush()
            told.release.wait(60)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@contextmanager
def serving(content: bytes = CONTENT) -> Iterator[Server]:
    """The server, on a port of its own; `mode` may be changed at any time."""
    told = Server(content=content)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        http_server.told = told  # type: ignore[attr-defined]
        told.port = http_server.server_address[1]
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield told
        finally:
            told.release.set()
            http_server.shutdown()
            thread.join()
