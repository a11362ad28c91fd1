"""Downloads from a real server on this machine: whole, resumed, cut off, refused, silent."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DownloadFailed
from pipeline.models.download import download

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
            told.release.wait(20)
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
            told.release.wait(20)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    told = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        http_server.told = told  # type: ignore[attr-defined]
        told.port = http_server.server_address[1]
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        told.release.set()
        http_server.shutdown()
        thread.join()


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt.part"


@pytest.mark.parametrize("mode", ["ranges", "no ranges", "no length", "redirect"])
def test_whole(server: Server, part: Path, mode: str) -> None:
    server.mode = mode
    told: list[tuple[int, int | None]] = []
    download(server.url, part, lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    total = None if mode == "no length" else len(CONTENT)
    assert told[0] == (0, total)
    assert told[-1] == (len(CONTENT), total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_goes_on_where_it_stopped(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT[:123_456])
    told: list[tuple[int, int | None]] = []
    download(server.url, part, lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    assert server.requests == ["bytes=123456-"]
    assert told[0] == (123_456, len(CONTENT))


def test_a_redirect_keeps_the_place(server: Server, part: Path) -> None:
    server.mode = "redirect"
    part.write_bytes(CONTENT[:1000])
    download(server.url, part)
    assert part.read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", "bytes=1000-"]


def test_a_server_without_ranges_sends_all_again(server: Server, part: Path) -> None:
    server.mode = "no ranges"
    part.write_bytes(b"x" * 5000)
    download(server.url, part)
    assert part.read_bytes() == CONTENT


def test_what_is_whole_already_is_not_sent_again(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT)
    download(server.url, part)
    assert part.read_bytes() == CONTENT


def test_more_than_the_server_has_is_dropped(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT + b"more")
    with pytest.raises(DownloadFailed, match="of another file, and were dropped"):
        download(server.url, part)
    download(server.url, part)
    assert part.read_bytes() == CONTENT


def test_cut_off_keeps_what_came_and_the_next_call_goes_on(server: Server, part: Path) -> None:
    server.mode = "cut off"
    with pytest.raises(DownloadFailed, match=f"after 350000 of {len(CONTENT)} bytes"):
        download(server.url, part)
    assert part.read_bytes() == CONTENT[:350_000]
    server.mode = "ranges"
    download(server.url, part)
    assert part.read_bytes() == CONTENT


def test_a_part_that_was_not_asked_for_is_refused(server: Server, part: Path) -> None:
    server.mode = "wrong part"
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadFailed, match="another part"):
        download(server.url, part)
    assert part.read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("mode", ["404", "503"])
def test_a_refusal_keeps_what_came(server: Server, part: Path, mode: str) -> None:
    server.mode = mode
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadFailed, match=f"the server answered {mode}"):
        download(server.url, part)
    assert part.read_bytes() == CONTENT[:1000]


def test_a_server_that_never_answers(server: Server, part: Path) -> None:
    server.mode = "silent"
    with pytest.raises(DownloadFailed, match="stopped answering"):
        download(server.url, part, timeout_s=0.3)


def test_a_server_that_stops_in_the_middle(server: Server, part: Path) -> None:
    server.mode = "stalls"
    with pytest.raises(DownloadFailed, match=f"stopped answering after 350000 of {len(CONTENT)} bytes"):
        download(server.url, part, timeout_s=0.3)
    assert part.read_bytes() == CONTENT[:350_000]


def test_nobody_listens(server: Server, part: Path) -> None:
    with pytest.raises(DownloadFailed, match="refused") as caught:
        download("http://127.0.0.1:1/weights.pt", part)
    assert "--weights-file" in str(caught.value)
